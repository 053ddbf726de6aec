//! `percolite top`: live rates and activity of a store that another process has open.
//!
//! Only one process at a time can have a store open for writing. If the store was opened with
//! [`percolite::Builder::status_file_interval`], that process publishes its status in the store's
//! directory. `top` reads each published status, and prints the difference from the one before.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Result;
use percolite::StoreStatus;

use crate::exit::Code;
use crate::interrupt::Interrupt;
use crate::open::{self, StoreDir, StoreOrStatus};
use crate::output::{is_terminal, print_line};
use crate::status_report::{self, StatusDelta};

/// How often to check for a new status.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// How long a status may be overdue before `top` reports that.
const STALE_AFTER: Duration = Duration::from_secs(3);

/// The command's options.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  percolite top shop                      the activity of the process that has the store open
  percolite top shop --json | jq .commits_per_second
  percolite top shop --json --seconds 5 | jq '.latencies.commit_durable.p99_s, .slow[0]'
  percolite demo --dir bank --seconds 60  16 threads transfer money; meanwhile, in another terminal:
  percolite top bank

The process must publish its status. A program does with Builder::status_file_interval(Duration::from_secs(1)); load, \
shell, demo and the other commands that write do, too. It ends when the store is closed, or with Ctrl-C.

The tables have commits, conflicts, retries and syncs per second, open views, the durability lag, write stalls, \
memtables and block cache, what the oldest snapshot keeps, latencies with the admission wait, calls that retry after a \
conflict, active transactions, slow ones with their attempts, and row locks with owner and primary. Above them is a \
line for each trouble: orphan locks left and the time to go, a clock behind the store's timestamps, a nearly full \
disk. A process that is stopped, or whose status is late, is said at once.

Orphan row locks are shown by `percolite locks`. Of the named locks only those are shown that have waited longest; \
in JSON these are in longest_lock_waits, each as in `locks --json`, and held_locks_total, lock_waits_total and \
longest_lock_wait_s are about all.")]
pub struct Args {
    /// The directory of a store that another process has open
    #[arg(value_name = "STORE")]
    pub store: Option<PathBuf>,
    /// Stop after this time; default: when the store is closed
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    seconds: Option<u64>,
    /// Print JSON lines, one per status
    #[arg(long)]
    json: bool,
}

pub fn run(args: &Args) -> Result<()> {
    let Some(dir) = &args.store else {
        return Err(Code::Usage.error(
            "the directory of an open store is missing: percolite top STORE; \
             to try it: percolite demo --dir bank --seconds 60, and meanwhile percolite top bank",
        ));
    };
    let interrupt = Interrupt::watch()?;
    let store = &StoreDir { path: dir.clone() };
    let dir = open::shell_quoted(&store.path);
    let StoreOrStatus::Status(mut before) = store.open_or_status()? else {
        return Err(Code::NotFound.error(format!(
            "{dir} is not open for writing in any process; percolite stats {dir} shows its statistics"
        )));
    };
    let (started, mut last_new) = (Instant::now(), Instant::now());
    let is_over = || args.seconds.is_some_and(|seconds| started.elapsed() >= Duration::from_secs(seconds));
    while !interrupt.is_requested() && !is_over() {
        std::thread::sleep(POLL_INTERVAL);
        let Some(now) = StoreStatus::read_from(&store.path)? else {
            return notice(args, &format!("process {} has closed the store", before.pid));
        };
        if let Some(delta) = StatusDelta::of(&before, &now) {
            print(args, &delta, &now)?;
        } else if now.pid == before.pid && now.uptime == before.uptime {
            if last_new.elapsed() > now.publish_interval.unwrap_or_default() + STALE_AFTER {
                // If the store can be opened, the process has ended and has not closed the store: a
                // process that closes its store removes its status.
                let was_killed = matches!(store.open_or_status(), Ok(StoreOrStatus::Store(_)));
                let message = if was_killed {
                    "has ended without closing the store"
                } else {
                    "has published no new status: it, or its disk, hangs"
                };
                notice(args, &format!("process {} {message}", now.pid))?;
                if was_killed {
                    return Ok(());
                }
                last_new = Instant::now();
            }
            continue;
        }
        (before, last_new) = (Box::new(now), Instant::now());
    }
    Ok(())
}

/// Prints a message; with `--json` on standard error, because standard output is for programs.
fn notice(args: &Args, message: &str) -> Result<()> {
    if args.json {
        eprintln!("{message}");
        return Ok(());
    }
    print_line(message)
}

/// Prints the activity since the previous status.
fn print(args: &Args, delta: &StatusDelta<'_>, status: &StoreStatus) -> Result<()> {
    if args.json {
        return print_line(delta.json());
    }
    if is_terminal() {
        print_line("\x1b[H\x1b[2J")?;
    }
    print_line(status_report::header(status))?;
    delta.tables().into_iter().try_for_each(print_line)
}
