//! `percolite load`: many rows from a file, in bounded transactions.
//!
//! One thread reads and parses ([`pairs`]), this one commits, so an input that says nothing for a while does not keep Ctrl-C
//! from being heard. Each transaction is durable before the next begins; so at any end it is known what is in: everything before
//! some record, and nothing behind it.

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

/// How often to look for Ctrl-C while there is nothing to read.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// A key that is known takes less than a quarter of this; `--memory-budget` is mostly for the store.
const BYTES_PER_KEY: usize = 128;

/// The command's options.
#[expect(clippy::struct_excessive_bools, reason = "each is an option")]
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  percolite load --create shop fruit fruit.jsonl        {\"key\": \"apple\", \"value\": \"red\"}, one a line
  percolite load --create shop people --key-field id p.jsonl  other objects, whose field `id` is the key
  percolite load --create shop fruit fruit.csv          two columns; --header if they have names
  percolite scan shop fruit --json | percolite load --create copy fruit -
  percolite scan shop fruit | percolite load --create copy fruit -
                                                        the same with plain lines, which are smaller
  jq -c '{key: .id, value: .}' p.json | percolite load --create shop people --value-encoding json
  percolite load shop fruit big.csv --skip 120000       goes on where a load was interrupted

In JSON, a key or value that is no text is {\"hex\": \"00ff\"} or {\"base64\": \"AP8=\"}; any other JSON is kept as it is. With \
--value-encoding json every value is, a string with its quotes. In TSV \\t, \\n, \\r, \\\\ and \\xHH are what `scan` means by them, unless the layout is \
raw-tsv. Rows that are there already are replaced, and it is said how many. Telling that takes up to 75 MB, or a quarter of --memory-budget. Ctrl-C ends it behind the transaction that runs, and says what is in.")]
pub struct Args {
    #[command(flatten)]
    pub store: StoreDir,
    /// The keyspace
    keyspace: String,
    /// The file; - is standard input
    #[arg(default_value = "-")]
    file: PathBuf,
    /// How the file is laid out; default: by its name, else by its beginning
    #[arg(long)]
    format: Option<Format>,
    /// JSON lines: the field that is the key; the value is the whole object, as it is
    #[arg(long, value_name = "FIELD")]
    key_field: Option<String>,
    /// CSV and TSV: the first line names the columns
    #[arg(long)]
    header: bool,
    /// Leave out so many records at the beginning
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    skip: u64,
    /// Leave out records that cannot be read, instead of ending
    #[arg(long)]
    skip_bad: bool,
    /// The most rows of one transaction, up to 100,000
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    batch: u64,
    /// Make the store and the keyspace if they are not there
    #[arg(long)]
    create: bool,
    #[command(flatten)]
    tuning: Tuning,
    #[command(flatten)]
    encodings: EncodingArgs,
    /// One JSON document on what was loaded
    #[arg(long)]
    json: bool,
}

/// What is in.
#[derive(Default)]
struct Loaded {
    /// Records of the input that are done with: everything before this one.
    records: u64,
    rows: u64,
    /// Those of them whose keys were there already, from before or from an earlier record.
    replaced: u64,
    bytes: u64,
    skipped: u64,
    transactions: u64,
}

/// Why it ended.
enum End {
    EndOfInput,
    Interrupted,
    Failed(anyhow::Error),
    /// More were to be left out.
    FewerThanSkip {
        records: u64,
    },
}

impl Args {
    fn check(&self) -> Result<()> {
        if self.key_field.is_some() && !matches!(self.encodings.get().values, Encoding::Text | Encoding::Json) {
            return Err(Code::Usage.error(
                "--value-encoding is for {\"key\": …, \"value\": …} and for columns: with --key the value is the object",
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
    let source = RecordReader::open(&args.file, options, &interrupt)?;
    let store = args.store.open_tuned(args.create, &args.tuning)?;
    let keyspace = open::keyspace_to_write(&store, &args.keyspace, args.create)?;
    let mut known = DuplicateDetector::of(
        &store,
        &keyspace,
        args.tuning.items_that_fit(BYTES_PER_KEY).min(duplicates::MAX_TRACKED_KEYS),
    )?;
    let progress = Progress::new(source.length);
    let (read, began) = (source.bytes_read.clone(), Instant::now());

    let (give, portions) = sync_channel(2);
    std::thread::spawn(move || source.send(&give));
    let mut loaded = Loaded { records: args.skip, ..Loaded::default() };
    let end = loop {
        if interrupt.is_requested() {
            break End::Interrupted;
        }
        match next_batch(&portions) {
            None => {}
            Some(Batch::End) => break End::EndOfInput,
            Some(Batch::Failed(err)) => break End::Failed(err),
            Some(Batch::FewerThanSkip { records }) => break End::FewerThanSkip { records },
            Some(Batch::BadRecord { .. }) if args.skip_bad => {
                loaded.skipped += 1;
                loaded.records += 1;
            }
            Some(Batch::BadRecord { line, err }) => {
                let told = format!("line {line} {err}; --skip-bad leaves such records out");
                break End::Failed(Code::Failed.error(told));
            }
            Some(Batch::Rows(rows)) => match put(&store, &keyspace, &rows, &mut known) {
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
        progress.set(read.load(Ordering::Relaxed), count(loaded.rows, "row"));
    };
    drop(progress);
    let closed = match end {
        End::EndOfInput => open::close_after_cleanup(store),
        _ => store.close().map_err(anyhow::Error::from),
    };
    let end = match (end, closed) {
        // What closing a store that has failed answers is only the echo.
        (End::EndOfInput | End::Interrupted, Err(err)) => End::Failed(err),
        (end, _) => end,
    };
    report(args, &loaded, began.elapsed(), end)
}

fn next_batch(portions: &Receiver<Batch>) -> Option<Batch> {
    match portions.recv_timeout(POLL_INTERVAL) {
        Ok(portion) => Some(portion),
        Err(RecvTimeoutError::Timeout) => None,
        Err(RecvTimeoutError::Disconnected) => Some(Batch::Failed(anyhow::anyhow!("the reading thread has ended"))),
    }
}

/// Puts them in a transaction. The answer is how many of them replaced another.
fn put(store: &Store, keyspace: &Keyspace, rows: &[Pair], known: &mut DuplicateDetector) -> Result<u64> {
    let asked = known.classify(store, keyspace, rows)?;
    let put = store.transact(|txn| {
        let mut replaced = asked.replaced;
        for key in &asked.keys {
            replaced += u64::from(txn.contains_key(keyspace, key)?);
        }
        rows.iter().try_for_each(|(key, value)| txn.put(keyspace, key, value))?;
        Ok::<_, percolite::Error>(replaced)
    });
    put.context("a transaction failed")
}

/// Whether a transaction was neither acknowledged nor refused.
fn is_undetermined(err: &anyhow::Error) -> bool {
    let is_it = |err: &percolite::Error| matches!(err.kind(), ErrorKind::Undetermined(_));
    err.chain().filter_map(|cause| cause.downcast_ref()).any(is_it)
}

fn report(args: &Args, loaded: &Loaded, took: Duration, end: End) -> Result<()> {
    let whole = matches!(end, End::EndOfInput);
    if args.json {
        print_line(json!({
            "complete": whole,
            "rows": loaded.rows,
            "new": loaded.rows - loaded.replaced,
            "replaced": loaded.replaced,
            "bytes": loaded.bytes,
            "left_out": loaded.skipped,
            "transactions": loaded.transactions,
            "next_record": loaded.records,
            "seconds": took.as_secs_f64(),
        }))?;
    }
    let (rows, left_out) = (count(loaded.rows, "row"), count(loaded.skipped, "record"));
    let is_open = matches!(&end, End::Failed(err) if is_undetermined(err));
    let behind = if is_open { "perhaps those of the next transaction" } else { "nothing after them" };
    let (new, replaced) =
        (indicatif::HumanCount(loaded.rows - loaded.replaced), indicatif::HumanCount(loaded.replaced));
    let is_in = if loaded.records == 0 && !is_open {
        "nothing was loaded".to_owned()
    } else {
        format!(
            "in the keyspace {:?} now: {rows} of the input ({new} new, {replaced} replaced), and {behind}; to go on: --skip {}",
            args.keyspace, loaded.records
        )
    };
    match end {
        End::EndOfInput if args.json => Ok(()),
        End::EndOfInput => {
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                clippy::cast_precision_loss,
                reason = "a rate"
            )]
            let rate = (loaded.rows as f64 / took.as_secs_f64().max(0.001)) as u64;
            let bad = if loaded.skipped == 0 { String::new() } else { format!(", {left_out} left out") };
            let transactions = count(loaded.transactions, "transaction");
            print_line(format_args!(
                "{rows} in {transactions}: {new} new, {replaced} replaced{bad}; {:.1} s, {} a second",
                took.as_secs_f64(),
                count(rate, "row")
            ))
        }
        End::FewerThanSkip { records } => {
            let records = count(records, "record");
            Err(Code::Failed
                .error(format!("the input has {records}, and --skip {} leaves out more: nothing was put", args.skip)))
        }
        End::Interrupted => Err(Code::Interrupted.error(format!("interrupted: {is_in}"))),
        End::Failed(err) => {
            let code = Code::of(&err);
            Err(code.error(format!("{}; {is_in}", crate::format_chain(&err))))
        }
    }
}
