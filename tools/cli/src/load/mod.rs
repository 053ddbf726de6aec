//! `percolite load`: loads rows from a file, in bounded transactions.
//!
//! One thread reads and parses the input ([`reader`]), and the main thread commits. So the main
//! thread can react to an interrupt while it waits for input. Each transaction is durable before
//! the next one starts. So wherever the load ends, the committed rows are those before a certain
//! record of the input, and the message gives the number of this record. Only after an undetermined
//! commit may the rows of one more transaction be committed.

mod duplicates;
mod reader;

use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use percolite::{ErrorKind, Keyspace, Store};
use serde_json::json;

use self::duplicates::DuplicateDetector;
use self::reader::{Batch, Format, Pair, RecordReader};
use crate::encoding::{Encoding, EncodingArgs};
use crate::exit::Code;
use crate::interrupt::Interrupt;
use crate::open::{self, StoreDir};
use crate::output::{count, print_line};
use crate::progress::Progress;
use crate::tuning::Tuning;

/// How often to check for an interrupt while no input arrives.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// One key may be tracked per this many bytes of the memory budget. A tracked key takes less than a
/// quarter of them; the rest is for the store.
const BYTES_PER_KEY: usize = 128;

/// The command's options.
#[expect(clippy::struct_excessive_bools, reason = "each is an option")]
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  percolite load --create shop fruit fruit.jsonl   {\"key\": \"apple\", \"value\": \"red\"}, one per line
  percolite load --create shop people --key-field id p.jsonl
                                                   other objects; the field `id` is the key
  percolite load --create shop fruit fruit.csv     two columns; --header skips the first line
  percolite scan shop fruit --json | percolite load --create copy fruit -
  percolite scan shop fruit | percolite load --create copy fruit -
                                                   the same with plain lines, which are smaller
  jq -c '{key: .id, value: .}' p.json | percolite load --create shop people --value-encoding json
  percolite load shop fruit big.csv --skip 120000  resumes an interrupted load

In JSON lines, a binary key or value is {\"hex\": \"00ff\"} or {\"base64\": \"AP8=\"}, and any JSON other than a \
string is stored verbatim; with --value-encoding json strings are, too. TSV has the escapes \\t, \\n, \\r, \\\\ and \
\\xHH, as in the output of `scan`; raw-tsv has none.

Existing rows are replaced. Counting them takes up to 75 MB, or a quarter of --memory-budget. An interrupt ends the \
load after the current transaction, and the message says where to resume.")]
pub struct Args {
    #[command(flatten)]
    pub store: StoreDir,
    /// The keyspace
    keyspace: String,
    /// The file; - is standard input
    #[arg(default_value = "-")]
    file: PathBuf,
    /// Format of the file; default: by the extension, else by the first line
    #[arg(long)]
    format: Option<Format>,
    /// JSON lines: the field that is the key; the value is the whole object, verbatim
    #[arg(long, value_name = "FIELD")]
    key_field: Option<String>,
    /// CSV and TSV: skip the first line, which has the names of the columns
    #[arg(long)]
    header: bool,
    /// Skip the first N records
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    skip: u64,
    /// Skip records that cannot be read, instead of failing
    #[arg(long)]
    skip_bad: bool,
    /// The most rows of a transaction, up to 100,000
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    batch: u64,
    /// Create the store and the keyspace if they do not exist
    #[arg(long)]
    create: bool,
    #[command(flatten)]
    tuning: Tuning,
    #[command(flatten)]
    encodings: EncodingArgs,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

/// What was loaded.
#[derive(Default)]
struct Loaded {
    /// Where to resume: all records before this one are loaded or skipped.
    records: u64,
    rows: u64,
    /// Rows whose key existed already, in the store or in an earlier record.
    replaced: u64,
    bytes: u64,
    skipped: u64,
    transactions: u64,
}

/// Why the load ended.
enum End {
    Complete,
    Interrupted,
    Failed(anyhow::Error),
    /// The input has only this many records, fewer than `--skip`.
    FewerThanSkip {
        records: u64,
    },
}

impl Args {
    fn check(&self) -> Result<()> {
        if self.key_field.is_some() && !matches!(self.encodings.get().values, Encoding::Text | Encoding::Json) {
            return Err(Code::Usage.error(
                "--value-encoding is for {\"key\": …, \"value\": …} and for columns: \
                 with --key-field the value is the whole object",
            ));
        }
        Ok(())
    }
}

pub fn run(args: &Args) -> Result<()> {
    let interrupt = Interrupt::watch()?;
    let options = reader::ReadOptions {
        format: args.format,
        key_field: args.key_field.clone(),
        header: args.header,
        skip: args.skip,
        batch: usize::try_from(args.batch).unwrap_or(usize::MAX),
        encodings: args.encodings.get(),
    };
    args.check()?;
    let reader = RecordReader::open(&args.file, options, &interrupt)?;
    let store = args.store.open_tuned(args.create, &args.tuning)?;
    let keyspace = open::keyspace_to_write(&store, &args.keyspace, args.create)?;
    let max_tracked = args.tuning.items_that_fit(BYTES_PER_KEY).min(duplicates::MAX_TRACKED_KEYS);
    let mut detector = DuplicateDetector::new(&store, &keyspace, max_tracked)?;
    let progress = Progress::new(reader.length);
    let (bytes_read, started) = (reader.bytes_read.clone(), Instant::now());

    let (sender, batches) = sync_channel(2);
    std::thread::spawn(move || reader.send(&sender));
    let mut loaded = Loaded { records: args.skip, ..Loaded::default() };
    let end = loop {
        if interrupt.is_requested() {
            break End::Interrupted;
        }
        match next_batch(&batches) {
            None => {}
            Some(Batch::End) => break End::Complete,
            Some(Batch::Failed(err)) => break End::Failed(err),
            Some(Batch::FewerThanSkip { records }) => break End::FewerThanSkip { records },
            Some(Batch::BadRecord { .. }) if args.skip_bad => {
                loaded.skipped += 1;
                loaded.records += 1;
            }
            Some(Batch::BadRecord { line, reason }) => {
                let message = format!("line {line} {reason}; --skip-bad skips such records");
                break End::Failed(Code::Failed.error(message));
            }
            Some(Batch::Rows(rows)) => match put(&store, &keyspace, &rows, &mut detector) {
                Ok(replaced) => {
                    loaded.replaced += replaced;
                    loaded.records += rows.len() as u64;
                    loaded.rows += rows.len() as u64;
                    loaded.bytes += rows.iter().map(|(key, value)| (key.len() + value.len()) as u64).sum::<u64>();
                    loaded.transactions += 1;
                }
                Err(err) => break End::Failed(err),
            },
        }
        progress.set(bytes_read.load(Ordering::Relaxed), count(loaded.rows, "row"));
    };
    drop(progress);
    let closed = match end {
        End::Complete => open::close_after_cleanup(store),
        _ => store.close().map_err(anyhow::Error::from),
    };
    let end = match (end, closed) {
        // If the load itself has failed, an error of closing the store only repeats that failure.
        (End::Complete | End::Interrupted, Err(err)) => End::Failed(err),
        (end, _) => end,
    };
    report(args, &loaded, started.elapsed(), end)
}

/// The next batch; `None` if there is none yet.
fn next_batch(batches: &Receiver<Batch>) -> Option<Batch> {
    match batches.recv_timeout(POLL_INTERVAL) {
        Ok(batch) => Some(batch),
        Err(RecvTimeoutError::Timeout) => None,
        Err(RecvTimeoutError::Disconnected) => Some(Batch::Failed(anyhow::anyhow!("the reading thread has ended"))),
    }
}

/// Puts the rows in a transaction, and returns how many of them replaced another row.
fn put(store: &Store, keyspace: &Keyspace, rows: &[Pair], detector: &mut DuplicateDetector) -> Result<u64> {
    let lookups = detector.classify(store, keyspace, rows)?;
    let put = store.transact(|txn| {
        let mut replaced = lookups.replaced;
        for key in &lookups.keys {
            replaced += u64::from(txn.contains_key(keyspace, key)?);
        }
        rows.iter().try_for_each(|(key, value)| txn.put(keyspace, key, value))?;
        Ok::<_, percolite::Error>(replaced)
    });
    put.context("a transaction failed")
}

/// Whether the outcome of a commit is undetermined.
fn is_undetermined(err: &anyhow::Error) -> bool {
    let is_undetermined = |err: &percolite::Error| matches!(err.kind(), ErrorKind::Undetermined(_));
    err.chain().filter_map(|cause| cause.downcast_ref()).any(is_undetermined)
}

fn report(args: &Args, loaded: &Loaded, elapsed: Duration, end: End) -> Result<()> {
    if args.json {
        print_line(json!({
            "complete": matches!(end, End::Complete),
            "rows": loaded.rows,
            "new": loaded.rows - loaded.replaced,
            "replaced": loaded.replaced,
            "bytes": loaded.bytes,
            "skipped": loaded.skipped,
            "transactions": loaded.transactions,
            "next_record": loaded.records,
            "seconds": elapsed.as_secs_f64(),
        }))?;
    }
    let rows = count(loaded.rows, "row");
    let is_undetermined = matches!(&end, End::Failed(err) if is_undetermined(err));
    let after = if is_undetermined { "possibly those of the next transaction" } else { "nothing after them" };
    let (new, replaced) =
        (indicatif::HumanCount(loaded.rows - loaded.replaced), indicatif::HumanCount(loaded.replaced));
    let committed = if loaded.records == 0 && !is_undetermined {
        "nothing was loaded".to_owned()
    } else {
        format!(
            "committed to the keyspace {:?}: {rows} of the input ({new} new, {replaced} replaced), and {after}; \
             resume with --skip {}",
            args.keyspace, loaded.records
        )
    };
    match end {
        End::Complete if args.json => Ok(()),
        End::Complete => {
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                clippy::cast_precision_loss,
                reason = "a rate"
            )]
            let rate = (loaded.rows as f64 / elapsed.as_secs_f64().max(0.001)) as u64;
            let skipped = match loaded.skipped {
                0 => String::new(),
                skipped => format!(", {} skipped", count(skipped, "record")),
            };
            let transactions = count(loaded.transactions, "transaction");
            print_line(format_args!(
                "{rows} in {transactions}: {new} new, {replaced} replaced{skipped}; {:.1} s, {}/s",
                elapsed.as_secs_f64(),
                count(rate, "row")
            ))
        }
        End::FewerThanSkip { records } => {
            let (records, skip) = (count(records, "record"), args.skip);
            Err(Code::Failed.error(format!("the input has {records}, fewer than --skip {skip}; nothing was loaded")))
        }
        End::Interrupted => Err(Code::Interrupted.error(format!("interrupted; {committed}"))),
        End::Failed(err) => {
            let code = Code::of(&err);
            Err(code.error(format!("{}; {committed}", crate::format_chain(&err))))
        }
    }
}
