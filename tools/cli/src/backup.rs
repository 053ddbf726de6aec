//! `percolite dump`, `restore` and `checkpoint`: copies of a store.

use std::cell::Cell;
use std::fs::File;
use std::io::{self, BufRead as _, BufReader, BufWriter, Read as _, Write as _};
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use percolite::engine::storage::Column;
use percolite::{DumpBase, DumpHeader, DumpOptions, DumpStats, OnExisting, Store};
use serde_json::json;

use crate::at::{AtArgs, PointInTime};
use crate::dump_file::DumpFile;
use crate::exit::Code;
use crate::file_kind;
use crate::interrupt::{Interrupt, InterruptibleReader, InterruptibleStream};
use crate::new_dir::NewDir;
use crate::open::{self, StoreDir};
use crate::output::{BrokenPipe, count, print_line, stdout_error};
use crate::progress::Progress;
use crate::table;
use crate::text_input::{file_argument, input_name};
use crate::tuning::{Compression, Tuning};

/// The advice that is added to the error of a damaged base dump.
pub const BASE_HINT: &str = "name another base, or make a full dump";

/// The options of `dump`.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  percolite dump shop shop.dump               a consistent snapshot of every keyspace
  percolite dump --at 1h shop before.dump     the state of an hour ago (see `percolite retention`)
  percolite dump --base full.dump shop monday.dump
                                              an increment: the changes since full.dump
  percolite dump --compression none shop - | zstd > shop.dump.zst
  percolite dump shop - | ssh host percolite restore shop -

A regular file gets its name when the dump is complete; a pipe or a device is written directly. Each block of the \
dump has a checksum. A dump has the newest version of each row, and no history.

--base and --since make an increment: the rows that were set or deleted since, and new keyspaces. The store's history \
must go back that far (percolite retention STORE --set 7d). To restore, restore the full dump, then each increment in \
order. After a store's directory was replaced by an older copy, begin with a full dump.")]
pub struct DumpArgs {
    #[command(flatten)]
    pub store: StoreDir,
    #[command(flatten)]
    at: AtArgs,
    /// The file to write, which must not exist; - is standard output
    file: PathBuf,
    /// Only changes since this time: a time as for --at, or the `read_ts` that the previous dump
    /// printed with --json
    #[arg(long, value_name = "TIME", value_parser = crate::at::parse, conflicts_with = "base")]
    since: Option<PointInTime>,
    /// Only changes since this dump of the same store
    #[arg(long, value_name = "DUMP")]
    base: Option<PathBuf>,
    /// Compression of the dump
    #[arg(long, value_name = "METHOD", default_value = "lz4")]
    compression: Compression,
    /// Replace an existing file
    #[arg(long)]
    overwrite: bool,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

impl DumpArgs {
    /// What an incremental dump follows: another dump, or a timestamp. `None` for a full dump.
    fn base(&self, store: &Store) -> Result<Option<DumpBase>> {
        let since = match (&self.base, self.since) {
            (Some(file), _) => {
                let shown = || file.display().to_string();
                let opened = File::open(file).with_context(|| format!("cannot open {}", shown()))?;
                let header = DumpHeader::read(BufReader::new(opened)).with_context(shown);
                let header = header.map_err(|err| match Code::of(&err) {
                    // The dump is damaged, not the store: no advice about the store.
                    Code::Corrupt => Code::Corrupt.error(format!("{}; {BASE_HINT}", crate::format_chain(&err))),
                    _ => err,
                });
                Some(header?.into())
            }
            (None, when) => when.map(|when| when.resolve(store)).transpose()?.map(DumpBase::from),
        };
        if since.is_some() {
            crate::at::require_history(store)?;
        }
        Ok(since)
    }
}

pub fn dump(args: &DumpArgs) -> Result<()> {
    let interrupt = Interrupt::watch()?;
    let store = args.store.open_read_only()?;
    let base = args.base(&store)?;
    let full = DumpOptions::default().compression(args.compression.into());
    let options = base.map_or(full, |base| full.since(base));
    let snapshot = args.at.snapshot(&store)?;
    let progress = Progress::items("rows");
    // The number of rows of an incremental dump is unknown.
    if base.is_none() && progress.is_visible() {
        let columns = store.engine_stats()?.columns;
        let rows = columns.iter().filter(|stats| stats.column == Column::Write).map(|stats| stats.estimated_keys);
        progress.expect(rows.sum(), "about ");
    }
    let on_progress = |so_far: &DumpStats| {
        progress.set(so_far.rows, format_args!("rows, {}", indicatif::HumanBytes(so_far.bytes)));
    };
    if args.file.as_os_str() == "-" {
        if args.json {
            return Err(Code::Usage.error("--json needs an output file: the dump itself goes to standard output"));
        }
        let mut out = io::stdout().lock();
        let mut error_kind = None;
        let stream = InterruptibleStream { stream: &mut out, interrupt: interrupt.clone() };
        let writer = ErrorKindWriter { stream, error_kind: &mut error_kind };
        let dumped = snapshot.dump_with(options, writer, on_progress);
        return match (dumped, error_kind) {
            (Ok(_), _) => out.flush().map_err(stdout_error),
            (Err(_), Some(io::ErrorKind::BrokenPipe)) => Err(BrokenPipe.into()),
            (Err(err), _) => Err(interrupted_error(&interrupt, "the dump is incomplete").unwrap_or(err.into())),
        };
    }
    open::reject_nested(&args.store.path, &args.file)?;
    if let Some(base) = &args.base
        && let (Ok(base), Ok(to)) = (base.canonicalize(), args.file.canonicalize())
        && base == to
    {
        return Err(Code::Usage.error("the increment would replace its base: name another file"));
    }
    let to = DumpFile::open(&args.file, args.overwrite)?;
    let out = BufWriter::new(InterruptibleStream { stream: &to.file, interrupt: interrupt.clone() });
    let dumped = snapshot.dump_with(options, out, on_progress);
    let dumped =
        dumped.map_err(|err| interrupted_error(&interrupt, to.leftover_note()).unwrap_or_else(|| err.into()))?;
    to.finish()?;
    drop(progress);
    report("dumped", &dumped, args.json)
}

/// The options of `restore`.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  percolite restore copy shop.dump          creates the store `copy`
  zstd -d < shop.dump.zst | percolite restore copy -
  percolite restore --replace shop shop.dump
                                            replaces the keyspaces that are in the dump
  percolite restore copy full.dump && percolite restore copy monday.dump
                                            a full dump, then its increment (dump --base)

A dump is restored completely or not at all. The exit code is 6 if it is damaged or truncated, 5 if it is not a dump \
or of another format, and 1 if the store is not empty and --replace is not given. A dump has no history: the history \
of a restored row begins with the restored version.

An increment can be restored only into a store whose last restore ended where the increment begins. Of the rows that \
were written there since, it replaces those that the source has changed, and keeps the others.")]
pub struct RestoreArgs {
    #[command(flatten)]
    pub store: StoreDir,
    /// The dump; - is standard input
    file: PathBuf,
    /// Replace existing keyspaces of the same names
    #[arg(long)]
    replace: bool,
    #[command(flatten)]
    tuning: Tuning,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

pub fn restore(args: &RestoreArgs) -> Result<()> {
    let interrupt = Interrupt::watch()?;
    let (stream, length): (Box<dyn io::Read>, _) = if args.file.as_os_str() == "-" {
        (Box::new(InterruptibleReader::stdin(&interrupt)), None)
    } else {
        open::reject_nested(&args.store.path, &args.file)?;
        let cannot = || format!("cannot open {}", args.file.display());
        let found = args.file.metadata().with_context(cannot)?;
        let file = args.file.clone();
        let open = move || File::open(file);
        if found.is_dir() {
            let message = "is a directory, not a dump; a checkpoint is a store and needs no restore";
            return Err(Code::NotAStore.error(format!("{} {message}", args.file.display())));
        }
        if found.is_file() {
            (Box::new(open().with_context(cannot)?), Some(found.len()))
        } else {
            (Box::new(InterruptibleReader::open(open, &interrupt)), None)
        }
    };
    let new_dir = NewDir::track(&args.store.path);
    let store = args.store.open_tuned(true, &args.tuning).inspect_err(|err| {
        // This process itself has begun to create the store, so the incomplete store may be
        // removed. If another process were creating it, the error would be Busy.
        if Code::of(err) == Code::Failed && open::is_incomplete(&args.store.path) {
            new_dir.mark_created();
        }
    })?;
    let is_empty = store.keyspace_names()?.is_empty();
    if is_empty {
        new_dir.mark_created();
    }
    let progress = Progress::new(length);
    // The progress is counted in bytes of the file, compressed or not, because the total number of
    // rows is unknown.
    let bytes_read = Cell::new(0);
    let stream = CountingReader { stream, bytes_read: &bytes_read };
    let mut from = BufReader::with_capacity(1 << 20, InterruptibleStream { stream, interrupt: interrupt.clone() });
    let beginning = from.fill_buf().map_err(|err| {
        interrupted_error(&interrupt, "nothing was restored")
            .unwrap_or_else(|| anyhow::Error::new(err).context(format!("cannot read {}", input_name(&args.file))))
    })?;
    if let Some(problem) = file_kind::not_a_dump(beginning, &file_argument(&args.file)) {
        return Err(Code::NotAStore.error(format!("{} is not a percolite dump: {problem}", input_name(&args.file))));
    }
    let (header, from) = peek_header(from);
    // An invalid header is ignored here, because the restore reports it.
    if header.is_ok_and(|header| header.since.is_none()) && !args.replace && !is_empty {
        let message = "is not empty: restore into a new directory, or use --replace";
        return Err(Code::Failed.error(format!("{} {message}", args.store.path.display())));
    }
    let existing = if args.replace { OnExisting::Replace } else { OnExisting::Fail };
    let restored = store.restore(from, existing, |so_far| progress.set(bytes_read.get(), count(so_far.rows, "row")));
    let restored = restored.map_err(|err| {
        let outcome = "nothing was restored";
        interrupted_error(&interrupt, outcome).unwrap_or_else(|| new_dir.error(outcome, err))
    })?;
    drop(progress);
    new_dir.keep();
    open::close_after_cleanup(store)?;
    report("restored", &restored, args.json)
}

/// The header of a dump, and a reader of the whole dump, its header included.
fn peek_header(from: impl io::Read) -> (percolite::Result<DumpHeader>, impl io::Read) {
    let mut tee = TeeReader { stream: from, bytes: Vec::new() };
    let header = DumpHeader::read(&mut tee);
    let TeeReader { stream, bytes } = tee;
    (header, io::Cursor::new(bytes).chain(stream))
}

/// Counts the bytes that are read.
struct CountingReader<'a, S> {
    stream: S,
    bytes_read: &'a Cell<u64>,
}

impl<S: io::Read> io::Read for CountingReader<'_, S> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.stream.read(buffer)?;
        self.bytes_read.set(self.bytes_read.get() + read as u64);
        Ok(read)
    }
}

/// Keeps a copy of the bytes that are read.
struct TeeReader<S> {
    stream: S,
    bytes: Vec<u8>,
}

impl<S: io::Read> io::Read for TeeReader<S> {
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
  percolite checkpoint shop backup/monday  a complete store, mostly of hard links
  percolite verify backup/monday

The store must not be open in another process. A program that has it open calls Store::checkpoint, also while it \
writes.")]
pub struct CheckpointArgs {
    #[command(flatten)]
    pub store: StoreDir,
    /// The new directory, which must not exist
    to: PathBuf,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

pub fn checkpoint(args: &CheckpointArgs) -> Result<()> {
    let interrupt = Interrupt::watch()?;
    let store = args.store.open(false)?;
    open::reject_nested(&args.store.path, &args.to)?;
    let new_dir = NewDir::track(&args.to);
    store.checkpoint(&args.to)?;
    new_dir.mark_created();
    store.close()?;
    // RocksDB's checkpoint cannot be interrupted, so an interrupt takes effect here.
    if let Some(err) = interrupted_error(&interrupt, "the checkpoint was removed") {
        return Err(err);
    }
    new_dir.keep();
    let to = args.to.display().to_string();
    if args.json {
        print_line(json!({ "checkpoint": to }))
    } else {
        print_line(format_args!("checkpoint created in {to}"))
    }
}

fn report(what: &str, dumped: &DumpStats, json: bool) -> Result<()> {
    if json {
        return print_line(json!({
            "keyspaces": dumped.keyspaces,
            "rows": dumped.rows,
            "bytes": dumped.bytes,
            "deleted_rows": dumped.deleted_rows,
            "since_ts": dumped.since.map(|since| since.to_string()),
            "read_ts": dumped.read_ts.to_string(),
            "read_time": table::format_timestamp(dumped.read_ts),
        }));
    }
    let (keyspaces, rows) = (count(dumped.keyspaces, "keyspace"), count(dumped.rows, "row"));
    let bytes = indicatif::HumanBytes(dumped.bytes);
    match dumped.since {
        None => print_line(format_args!("{what} {keyspaces}, {rows}, {bytes}, at {:#}", dumped.read_ts)),
        Some(since) => {
            let deleted = count(dumped.deleted_rows, "deleted row");
            let up_to = dumped.read_ts;
            print_line(format_args!(
                "{what} the changes of {keyspaces}, {rows}, {deleted}, {bytes}, after {since:#} up to {up_to:#}"
            ))
        }
    }
}

fn interrupted_error(interrupt: &Interrupt, what: &str) -> Option<anyhow::Error> {
    interrupt.is_requested().then(|| Code::Interrupted.error(format!("interrupted; {what}")))
}

/// Records the kind of a write error, because the library's error contains it only as text.
struct ErrorKindWriter<'a, S> {
    stream: S,
    error_kind: &'a mut Option<io::ErrorKind>,
}

impl<S: io::Write> io::Write for ErrorKindWriter<'_, S> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.write(bytes).inspect_err(|err| *self.error_kind = Some(err.kind()))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush().inspect_err(|err| *self.error_kind = Some(err.kind()))
    }
}
