//! `percolite dump`, `restore` and `checkpoint`: taking a store elsewhere.

use std::cell::Cell;
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read as _, Write as _};
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use percolite::engine::storage::Column;
use percolite::{DumpBase, DumpHeader, DumpOptions, DumpStats, OnExisting, Store};
use serde_json::json;

use crate::destination::Destination;
use crate::exit::Code;
use crate::interrupt::{Ending, Interrupt, Patient};
use crate::made::Made;
use crate::moment::{Moment, When};
use crate::open::{self, Folder};
use crate::output::{Unread, count, say, unsaid};
use crate::progress::Progress;
use crate::table;
use crate::tuning::{Compression, Tuning};

/// In errors of a dump that an increment cannot follow because it is damaged.
pub const ANOTHER_BASE: &str = "name another dump, or begin with a full one";

/// The options of `dump`.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  percolite dump shop shop.dump               every keyspace, as of one moment
  percolite dump --at 1h shop before.dump     as of an hour ago (see `percolite history --help`)
  percolite dump --since-dump sunday.dump shop monday.dump
                                              what has changed since; monday.dump goes onto sunday.dump
  percolite dump --compression none shop - | zstd > shop.dump.zst
  percolite dump shop - | ssh host percolite restore shop -

The file appears under its name when it is whole; into a pipe or a device it is written as it comes. Each of its blocks has a \
checksum. It holds rows, not what they were before: no history.

--since-dump and --since make an increment: the rows that were set or deleted since, and the keyspaces that are new. The store must keep \
history that goes back so far (percolite history STORE --keep 7d). To restore: the full dump, then each increment in turn. A folder \
that was put back from an older copy begins with a full dump.")]
pub struct DumpArgs {
    #[command(flatten)]
    pub store: Folder,
    #[command(flatten)]
    moment: Moment,
    /// The file to write, which must not be there; - is standard output
    file: PathBuf,
    /// Only what has changed since this moment, the one that the dump before ends at: as --at, or `read_ts` of --json
    #[arg(long, value_name = "WHEN", value_parser = crate::moment::read, conflicts_with = "since_dump")]
    since: Option<When>,
    /// Only what has changed since this dump was made of the same store
    #[arg(long, value_name = "DUMP")]
    since_dump: Option<PathBuf>,
    /// How the dump is compressed
    #[arg(long, value_name = "HOW", default_value = "lz4")]
    compression: Compression,
    /// Write over a file that is there
    #[arg(long)]
    force: bool,
    /// One JSON document on what was dumped
    #[arg(long)]
    json: bool,
}

impl DumpArgs {
    fn options(&self, store: &Store) -> Result<DumpOptions> {
        let since = match (&self.since_dump, self.since) {
            (Some(file), _) => {
                let shown = || file.display().to_string();
                let opened = File::open(file).with_context(|| format!("cannot open {}", shown()))?;
                let header = DumpHeader::read(BufReader::new(opened)).with_context(shown);
                let header = header.map_err(|why| match Code::of(&why) {
                    // The dump's damage says nothing of the store.
                    Code::Damaged => Code::Damaged.error(format!("{}; {ANOTHER_BASE}", crate::one_line(&why))),
                    _ => why,
                });
                Some(header?.into())
            }
            (None, when) => when.map(|when| when.resolve(store)).transpose()?.map(DumpBase::from),
        };
        if since.is_some() {
            crate::moment::check_kept(store)?;
        }
        Ok(DumpOptions { since, compression: self.compression.into() })
    }
}

pub fn dump(args: &DumpArgs) -> Result<()> {
    let interrupt = Interrupt::watch()?;
    let store = args.store.look()?;
    let options = args.options(&store)?;
    let snapshot = args.moment.snapshot(&store)?;
    let progress = Progress::of("rows");
    // How much of it has changed is not known.
    if options.since.is_none() && progress.is_seen() {
        let columns = store.engine_stats()?.columns;
        progress
            .expect(columns.iter().filter(|of| of.column == Column::Write).map(|of| of.estimated_keys).sum(), "about ");
    }
    let told = |so_far: &DumpStats| {
        progress.at(so_far.rows, format_args!("rows, {}", indicatif::HumanBytes(so_far.bytes)));
    };
    if args.file.as_os_str() == "-" {
        if args.json {
            return Err(Code::Usage.error("the dump itself goes to standard output: leave --json out, or name a file"));
        }
        let mut out = io::stdout().lock();
        let mut broken = None;
        let watched = Noting { stream: Ending { stream: &mut out, interrupt: interrupt.clone() }, failed: &mut broken };
        let dumped = snapshot.dump_with(options, watched, told);
        return match (dumped, broken) {
            (Ok(_), _) => out.flush().map_err(unsaid),
            (Err(_), Some(io::ErrorKind::BrokenPipe)) => Err(Unread.into()),
            (Err(why), _) => Err(interrupted(&interrupt, "the dump is not whole").unwrap_or(why.into())),
        };
    }
    open::refuse_inside(&args.store.folder, &args.file)?;
    if let Some(base) = &args.since_dump
        && let (Ok(base), Ok(to)) = (base.canonicalize(), args.file.canonicalize())
        && base == to
    {
        return Err(Code::Usage.error("the increment would replace the dump that it follows: name another file"));
    }
    let to = Destination::open(&args.file, args.force)?;
    let out = BufWriter::new(Ending { stream: &to.file, interrupt: interrupt.clone() });
    let dumped = snapshot.dump_with(options, out, told);
    let dumped = dumped.map_err(|why| interrupted(&interrupt, to.rest()).unwrap_or_else(|| why.into()))?;
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
  percolite restore copy sunday.dump && percolite restore copy monday.dump
                                            a full dump and the increment that follows it (dump --since-dump)

All of the dump is restored or nothing. The exit code is 6 if it is damaged or was cut off, 5 if it is no dump or one of another format, \
and 1 if the store is not empty and --replace is not said. A dump holds no history: a restored row begins with the version that it is \
restored to.

An increment goes only onto a store whose last restore ended where it begins. Rows that were written there meanwhile are replaced where \
the source has changed them since, and stay where it has not.")]
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
        (Box::new(Patient::stdin(&interrupt)), None)
    } else {
        open::refuse_inside(&args.store.folder, &args.file)?;
        let cannot = || format!("cannot open {}", args.file.display());
        let found = args.file.metadata().with_context(cannot)?;
        let file = args.file.clone();
        let open = move || File::open(file);
        if found.is_dir() {
            let what = "is a folder and no dump; a checkpoint is a store of its own and needs no restore";
            return Err(Code::NotAStore.error(format!("{} {what}", args.file.display())));
        }
        if found.is_file() {
            (Box::new(open().with_context(cannot)?), Some(found.len()))
        } else {
            (Box::new(Patient::open(open, &interrupt)), None)
        }
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
    let is_empty = store.keyspace_names()?.is_empty();
    if is_empty {
        made.is_ours();
    }
    let progress = Progress::new(length);
    // Of the file, whose blocks may be compressed: rows say nothing of how much of it is left.
    let read = Cell::new(0);
    let stream = Counted { stream, read: &read };
    let from = BufReader::with_capacity(1 << 20, Ending { stream, interrupt: interrupt.clone() });
    let (header, from) = header(from);
    // What is wrong with it is for the library to say.
    if header.is_ok_and(|header| header.since.is_none()) && !args.replace && !is_empty {
        let what = "is not empty: restore into a new folder, or say --replace";
        return Err(Code::Failed.error(format!("{} {what}", args.store.folder.display())));
    }
    let existing = if args.replace { OnExisting::Replace } else { OnExisting::Fail };
    let restored = store.restore(from, existing, |so_far| progress.at(read.get(), count(so_far.rows, "row")));
    let restored = restored.map_err(|why| {
        interrupted(&interrupt, "nothing was restored").unwrap_or_else(|| made.failed("nothing was restored", why))
    })?;
    drop(progress);
    made.keep();
    open::finish(store)?;
    report("restored", &restored, args.json)
}

/// What a dump says of itself, and all of it.
fn header(from: impl io::Read) -> (percolite::Result<DumpHeader>, impl io::Read) {
    let mut copied = Copied { stream: from, bytes: Vec::new() };
    let header = DumpHeader::read(&mut copied);
    let Copied { stream, bytes } = copied;
    (header, io::Cursor::new(bytes).chain(stream))
}

/// Counts what was read, in bytes.
struct Counted<'a, S> {
    stream: S,
    read: &'a Cell<u64>,
}

impl<S: io::Read> io::Read for Counted<'_, S> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.stream.read(buffer)?;
        self.read.set(self.read.get() + read as u64);
        Ok(read)
    }
}

/// Keeps what was read.
struct Copied<S> {
    stream: S,
    bytes: Vec<u8>,
}

impl<S: io::Read> io::Read for Copied<S> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.stream.read(buffer)?;
        self.bytes.extend_from_slice(buffer.get(..read).unwrap_or_default());
        Ok(read)
    }
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

fn report(what: &str, dumped: &DumpStats, json: bool) -> Result<()> {
    if json {
        return say(json!({
            "keyspaces": dumped.keyspaces,
            "rows": dumped.rows,
            "bytes": dumped.bytes,
            "deleted": dumped.deleted_rows,
            "since_ts": dumped.since.map(|since| since.to_string()),
            "read_ts": dumped.read_ts.to_string(),
            "read_time": table::moment(dumped.read_ts),
        }));
    }
    let (keyspaces, rows) = (count(dumped.keyspaces, "keyspace"), count(dumped.rows, "row"));
    let bytes = indicatif::HumanBytes(dumped.bytes);
    match dumped.since {
        None => say(format_args!("{what} {keyspaces}, {rows}, {bytes}, as of {:#}", dumped.read_ts)),
        Some(since) => {
            let deleted = count(dumped.deleted_rows, "deleted row");
            let upto = dumped.read_ts;
            say(format_args!(
                "{what} the changes of {keyspaces}, {rows}, {deleted}, {bytes}, after {since:#} and up to {upto:#}"
            ))
        }
    }
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
