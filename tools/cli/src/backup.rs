//! `percolite dump`, `restore` and `checkpoint`: taking a store elsewhere.

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Write as _};
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use percolite::{Dumped, Existing};
use serde_json::json;

use crate::destination::Destination;
use crate::exit::Code;
use crate::interrupt::{Ending, Interrupt};
use crate::made::Made;
use crate::moment::Moment;
use crate::open::{self, Folder};
use crate::output::{Unread, count, say, unsaid};
use crate::progress::Progress;
use crate::table;
use crate::tuning::Tuning;

/// The options of `dump`.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  percolite dump shop shop.dump               every keyspace, as of one moment
  percolite dump --at 1h shop before.dump     as of an hour ago (see `percolite history --help`)
  percolite dump shop - | zstd > shop.dump.zst
  percolite dump shop - | ssh host percolite restore shop -

The file appears under its name when it is whole; into a pipe or a device it is written as it comes. Each of its blocks has a \
checksum. It holds rows, not what they were before: no history.")]
pub struct DumpArgs {
    #[command(flatten)]
    pub store: Folder,
    #[command(flatten)]
    moment: Moment,
    /// The file to write, which must not be there; - is standard output
    file: PathBuf,
    /// Write over a file that is there
    #[arg(long)]
    force: bool,
    /// One JSON document on what was dumped
    #[arg(long)]
    json: bool,
}

pub fn dump(args: &DumpArgs) -> Result<()> {
    let interrupt = Interrupt::watch()?;
    let store = args.store.look()?;
    let snapshot = args.moment.snapshot(&store)?;
    let progress = Progress::new(None);
    let told = |so_far: &Dumped| progress.at(so_far.bytes, count(so_far.rows, "row"));
    if args.file.as_os_str() == "-" {
        if args.json {
            return Err(Code::Usage.error("the dump itself goes to standard output: leave --json out, or name a file"));
        }
        let mut out = io::stdout().lock();
        let mut broken = None;
        let watched = Noting { stream: Ending { stream: &mut out, interrupt: interrupt.clone() }, failed: &mut broken };
        let dumped = snapshot.dump(watched, told);
        return match (dumped, broken) {
            (Ok(_), _) => out.flush().map_err(unsaid),
            (Err(_), Some(io::ErrorKind::BrokenPipe)) => Err(Unread.into()),
            (Err(why), _) => Err(interrupted(&interrupt, "the dump is not whole").unwrap_or(why.into())),
        };
    }
    open::refuse_inside(&args.store.folder, &args.file)?;
    let to = Destination::open(&args.file, args.force)?;
    let out = BufWriter::new(Ending { stream: &to.file, interrupt: interrupt.clone() });
    let dumped =
        snapshot.dump(out, told).map_err(|why| interrupted(&interrupt, to.rest()).unwrap_or_else(|| why.into()))?;
    to.finish()?;
    drop(progress);
    report("dumped", &dumped, args.json)
}

/// The options of `restore`.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  percolite restore copy shop.dump          makes the store `copy`
  zstd -d < shop.dump.zst | percolite restore copy -
  percolite restore --replace shop shop.dump
                                            puts back the keyspaces that are in the dump, and leaves others alone

All of the dump is restored or nothing. The exit code is 6 if it is damaged or was cut off, and 1 if it is no dump, or the store is not \
empty and --replace is not said. A dump holds no history: a restored row begins with the version that it is restored to.")]
pub struct RestoreArgs {
    #[command(flatten)]
    pub store: Folder,
    /// The dump; - is standard input
    file: PathBuf,
    /// Replace keyspaces of the same names
    #[arg(long)]
    replace: bool,
    #[command(flatten)]
    tuning: Tuning,
    /// One JSON document on what was restored
    #[arg(long)]
    json: bool,
}

pub fn restore(args: &RestoreArgs) -> Result<()> {
    let interrupt = Interrupt::watch()?;
    let (stream, length): (Box<dyn io::Read>, _) = if args.file.as_os_str() == "-" {
        (Box::new(io::stdin().lock()), None)
    } else {
        open::refuse_inside(&args.store.folder, &args.file)?;
        let file = File::open(&args.file).with_context(|| format!("cannot open {}", args.file.display()))?;
        let length = file.metadata().ok().map(|found| found.len());
        (Box::new(file), length)
    };
    let made = Made::unless_there(&args.store.folder);
    let remedy = |why: anyhow::Error| match Code::of(&why) {
        // Who finds another at work making it is told that it is busy.
        Code::Failed if open::is_unfinished(&args.store.folder) => {
            made.is_ours();
            why
        }
        _ => why,
    };
    let store = args.store.write_tuned(true, &args.tuning).map_err(remedy)?;
    let is_empty = store.keyspaces()?.is_empty();
    if is_empty {
        made.is_ours();
    }
    if !args.replace && !is_empty {
        let what = "is not empty: restore into a new folder, or say --replace";
        return Err(Code::Failed.error(format!("{} {what}", args.store.folder.display())));
    }
    let progress = Progress::new(length);
    let from = BufReader::with_capacity(1 << 20, Ending { stream, interrupt: interrupt.clone() });
    let existing = if args.replace { Existing::Replace } else { Existing::Refuse };
    let restored = store.restore(from, existing, |so_far| progress.at(so_far.bytes, count(so_far.rows, "row")));
    let restored = restored.map_err(|why| {
        interrupted(&interrupt, "nothing was restored").unwrap_or_else(|| made.failed("nothing was restored", why))
    })?;
    drop(progress);
    made.keep();
    open::finish(store)?;
    report("restored", &restored, args.json)
}

/// The options of `checkpoint`.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  percolite checkpoint shop backup/monday  a store of its own, mostly of links
  percolite verify backup/monday

The store must not be open elsewhere. From inside a program that has it open, while it is written to: Store::checkpoint.")]
pub struct CheckpointArgs {
    #[command(flatten)]
    pub store: Folder,
    /// The new folder, which must not be there
    to: PathBuf,
    /// One JSON document
    #[arg(long)]
    json: bool,
}

pub fn checkpoint(args: &CheckpointArgs) -> Result<()> {
    let interrupt = Interrupt::watch()?;
    let store = args.store.write(false)?;
    open::refuse_inside(&args.store.folder, &args.to)?;
    let made = Made::unless_there(&args.to);
    store.checkpoint(&args.to)?;
    made.is_ours();
    store.close()?;
    // RocksDB cannot be stopped in between.
    if let Some(why) = interrupted(&interrupt, "nothing is left of the checkpoint") {
        return Err(why);
    }
    made.keep();
    let to = args.to.display().to_string();
    if args.json { say(json!({ "checkpoint": to })) } else { say(format_args!("{to} is a store of its own")) }
}

fn report(what: &str, dumped: &Dumped, json: bool) -> Result<()> {
    if json {
        return say(json!({
            "keyspaces": dumped.keyspaces,
            "rows": dumped.rows,
            "bytes": dumped.bytes,
            "read_ts": dumped.read_ts.to_string(),
            "read_time": table::moment(dumped.read_ts),
        }));
    }
    let (keyspaces, rows) = (count(dumped.keyspaces, "keyspace"), count(dumped.rows, "row"));
    say(format_args!("{what} {keyspaces}, {rows}, {}", indicatif::HumanBytes(dumped.bytes)))
}

fn interrupted(interrupt: &Interrupt, what: &str) -> Option<anyhow::Error> {
    interrupt.is_wanted().then(|| Code::Interrupted.error(format!("interrupted; {what}")))
}

/// Remembers why a stream failed, which the library tells in words only.
struct Noting<'a, S> {
    stream: S,
    failed: &'a mut Option<io::ErrorKind>,
}

impl<S: io::Write> io::Write for Noting<'_, S> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.write(bytes).inspect_err(|why| *self.failed = Some(why.kind()))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush().inspect_err(|why| *self.failed = Some(why.kind()))
    }
}
