//! `percolite top`: what a store does while it does it.
//!
//! One process has a store for itself, and tells others what it does if it was asked to ([`percolite::Builder::status_file_interval`]): that is
//! what is shown.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Result;
use percolite::StoreStatus;

use crate::exit::Code;
use crate::interrupt::Interrupt;
use crate::open::{self, StoreDir, StoreOrStatus};
use crate::output::{is_terminal, print_line};
use crate::status_report::{self, StatusDelta};

/// How often to look whether another process has told something new, and
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// how long beyond its time a status may stay away without a word.
const STALE_AFTER: Duration = Duration::from_secs(3);

/// The command's options.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  percolite top shop                      what the process does that has the store open
  percolite top shop --json | jq .commits_per_second
  percolite top shop --json --seconds 5 | jq '.latencies.commit.p99_s, .slow[0]'
  percolite demo --dir bank --seconds 60  16 threads that transfer money; meanwhile, elsewhere:
  percolite top bank

A store is open in one process at a time, and that process must want to be watched: programs say \
Builder::status_file_interval(Duration::from_secs(1)); load, shell, demo and other commands that write do so by themselves. \
The row locks that a dead process left are shown by `percolite locks`, and so are all requests for locks by name, of which this shows those that have waited longest \
(--json: held_locks and lock_waits, how many there are; longest_lock_wait_s; longest_lock_waits, each as `locks --json` shows it). Ctrl-C ends it.")]
pub struct Args {
    /// The directory of a store that a process has open
    #[arg(value_name = "STORE")]
    store: Option<PathBuf>,
    /// How long; default: until it is closed
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    seconds: Option<u64>,
    /// JSON lines, one a second
    #[arg(long)]
    json: bool,
}

pub fn run(args: &Args) -> Result<()> {
    let Some(dir) = &args.store else {
        return Err(Code::Usage.error(
            "top watches a store that a process has open: percolite top STORE; for one to watch: percolite demo --dir bank --seconds 60, and meanwhile percolite top bank",
        ));
    };
    let interrupt = Interrupt::watch()?;
    let store = &StoreDir { path: dir.clone() };
    let dir = open::shell_quoted(&store.path);
    let StoreOrStatus::Status(mut before) = store.open_or_status()? else {
        return Err(Code::NotFound.error(format!(
            "no process has {dir} open for writing, so nothing happens in it; percolite stats {dir} shows how it stands"
        )));
    };
    let (began, mut news) = (Instant::now(), Instant::now());
    while !interrupt.is_requested() && args.seconds.is_none_or(|seconds| began.elapsed() < Duration::from_secs(seconds))
    {
        std::thread::sleep(POLL_INTERVAL);
        let Some(now) = StoreStatus::read_from(&store.path)? else {
            return notice(args, &format!("process {} has closed it", before.pid));
        };
        if let Some(between) = StatusDelta::of(&before, &now) {
            print(args, &between, &now)?;
        } else if now.pid == before.pid && now.uptime == before.uptime {
            if news.elapsed() > now.publish_interval.unwrap_or_default() + STALE_AFTER {
                // Where nobody has it open any more, its writer was killed.
                let gone = matches!(store.open_or_status(), Ok(StoreOrStatus::Store(_)));
                let what =
                    if gone { "has ended without closing it" } else { "says nothing: it, or its disk, stands still" };
                notice(args, &format!("process {} {what}", now.pid))?;
                if gone {
                    return Ok(());
                }
                news = Instant::now();
            }
            continue;
        }
        (before, news) = (Box::new(now), Instant::now());
    }
    Ok(())
}

/// Says what is no figure: programs read figures only.
fn notice(args: &Args, what: &str) -> Result<()> {
    if args.json {
        eprintln!("{what}");
        return Ok(());
    }
    print_line(what)
}

/// Shows what happened, and whose it is.
fn print(args: &Args, between: &StatusDelta<'_>, of: &StoreStatus) -> Result<()> {
    if args.json {
        return print_line(between.json());
    }
    if is_terminal() {
        print_line("\x1b[H\x1b[2J")?;
    }
    print_line(status_report::header(of))?;
    between.tables().into_iter().try_for_each(print_line)
}
