//! `percolite locks`: orphan row locks, with the status of their transactions, and named locks.

use std::panic::resume_unwind;
use std::time::{Duration, SystemTime};

use anyhow::Result;
use percolite::{LockEntry, RowLock, Store, StoreStatus, Timestamp, TxnStatus};
use serde_json::{Value, json};

use crate::encoding::{Encoding, EncodingArgs, Encodings};
use crate::exit::Code;
use crate::interrupt::Interrupt;
use crate::lock::render;
use crate::open::{self, StoreDir, StoreOrStatus};
use crate::output::{LineWriter, count, is_terminal, print_line};
use crate::progress::Progress;
use crate::status_report;
use crate::table::{self, KeyspaceNames, RowLockTable};
use crate::tuning::Tuning;

/// How often `--resolve` updates the progress bar.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// While row locks are counted, the progress bar is updated after this many.
const PROGRESS_EVERY: u64 = 1024;

/// The options of `locks`.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  percolite locks shop            row locks and named locks, with their holders
  percolite locks shop --tree     named locks only, as a tree of holders and waiters
  percolite locks shop --json     one JSON line per lock
  percolite locks shop --resolve  rolls all orphan row locks forward or back

A row lock in a closed store is an orphan: its process ended in the middle of a commit. A reader of the row resolves \
it, and so does the background worker of a process that opens the store for writing. This command changes nothing \
without --resolve. A terminal shows the first rows of the first transactions only; plain lines and --json have \
all row locks.

For a store that another process has open, the output is the status that this process publishes: at most 100 row \
locks, 100 held and 100 waiting named locks. Keys are text then, escaped if they are not UTF-8: --key-encoding does \
not apply. In a closed store there are only named locks held by a lease. Commands that wait for a lock (`lock run`, \
`lock acquire`) are not shown: they wait outside of the store, in the order of their arrival. Deadlock cycles are not \
published; a program finds them with Store::lock_table.

Columns of plain lines, row lock:
  keyspace, key, start_ts, owner, keyspace of the primary, key of the primary, status, commit_ts

Columns of plain lines, named lock:
  (empty), name, token, holder, mode, state, seconds left of the lease, reason

A JSON line has a `kind`: `row`; `named`, whose target is the name, whose blocked_by has the ids of the requests that \
it waits for, and whose waiters with --tree are the requests that wait for it first of all; or, as the last line, \
`not_listed` with the numbers of held and waiting locks beyond the limits.")]
pub struct Args {
    #[command(flatten)]
    pub store: StoreDir,
    #[command(flatten)]
    encodings: EncodingArgs,
    /// Roll all orphan row locks forward or back
    #[arg(long)]
    resolve: bool,
    /// Show named locks as a tree of holders and waiters
    #[arg(long, conflicts_with = "resolve")]
    tree: bool,
    #[command(flatten)]
    tuning: Tuning,
    /// Print JSON lines
    #[arg(long)]
    json: bool,
}

pub fn run(args: &Args) -> Result<()> {
    if args.resolve {
        return resolve(args);
    }
    if args.tuning.is_set() {
        return Err(Code::Usage.error("--memory-budget and --compression need --resolve"));
    }
    let store = match args.store.open_or_status()? {
        StoreOrStatus::Store(store) => open::warn_data_loss(store),
        StoreOrStatus::Status(status) => return print_status(args, &status),
    };
    let leases = store.lock_table()?.entries;
    if args.tree {
        return print_tree(args, &leases, SystemTime::now());
    }
    print(&store, args.encodings.get(), args.json, |_| true)?;
    if args.json {
        return print_each(leases.iter().map(render::to_json));
    }
    if is_terminal() {
        return render::held_table(&leases, 0).map_or(Ok(()), print_line);
    }
    let mut out = LineWriter::new();
    leases.iter().try_for_each(|lease| out.write_bytes(&render::plain_line(lease)))?;
    out.finish()
}

fn print_tree(args: &Args, entries: &[LockEntry], at: SystemTime) -> Result<()> {
    if args.json {
        return print_each(render::tree_json(entries));
    }
    print_line(render::tree(entries, at).unwrap_or_else(|| "no named locks".into()))
}

fn print_each(documents: impl IntoIterator<Item = Value>) -> Result<()> {
    let mut out = LineWriter::new();
    documents.into_iter().try_for_each(|document| out.write_line(document))?;
    out.finish()
}

/// Prints the row locks that `wanted` selects, and returns whether there are any.
pub fn print(store: &Store, encodings: Encodings, json: bool, wanted: impl Fn(&RowLock) -> bool) -> Result<bool> {
    if !json && is_terminal() {
        let table = render_table(store, encodings, wanted)?;
        let is_any = table.is_some();
        print_line(table.unwrap_or_else(|| "no row locks".into()))?;
        return Ok(is_any);
    }
    let mut out = LineWriter::new();
    let mut is_any = false;
    for lock in store.row_locks()? {
        let lock = lock?;
        if wanted(&lock) {
            is_any = true;
            if json {
                out.write_line(row_lock_json(&lock, encodings))?;
            } else {
                out.write_bytes(&plain_line(&lock, encodings))?;
            }
        }
    }
    out.finish()?;
    Ok(is_any)
}

fn plain_line(lock: &RowLock, encodings: Encodings) -> Vec<u8> {
    let (status, commit_ts) = txn_status(lock);
    let mut line = Vec::new();
    let name = |name: Option<&String>, id: u32, line: &mut Vec<u8>| match name {
        Some(name) => Encoding::Text.write_column(name.as_bytes(), line),
        None => line.extend_from_slice(id.to_string().as_bytes()),
    };
    name(lock.keyspace.as_ref(), lock.row.keyspace_id().0, &mut line);
    line.push(b'\t');
    encodings.keys.write_column(lock.row.user_key(), &mut line);
    line.extend_from_slice(format!("\t{}\t{}\t", lock.start_ts, lock.owner_id).as_bytes());
    name(lock.primary_keyspace.as_ref(), lock.primary.keyspace_id().0, &mut line);
    line.push(b'\t');
    encodings.keys.write_column(lock.primary.user_key(), &mut line);
    let commit_ts = commit_ts.map(|ts| ts.to_string()).unwrap_or_default();
    line.extend_from_slice(format!("\t{status}\t{commit_ts}\n").as_bytes());
    line
}

/// The status of the lock's transaction, as text, and its commit timestamp.
fn txn_status(lock: &RowLock) -> (&'static str, Option<Timestamp>) {
    match lock.txn_status {
        TxnStatus::Pending => ("pending", None),
        TxnStatus::Committed(ts) => ("committed", Some(ts)),
        TxnStatus::RolledBack => ("rolled back", None),
    }
}

/// Prints the locks in the published status of the process that has the store open.
fn print_status(args: &Args, status: &StoreStatus) -> Result<()> {
    let named = || status.held_locks.iter().chain(&status.lock_waits);
    let not_listed = status_report::not_listed(status);
    if args.json && !args.tree {
        let listed = status.row_locks.iter().map(status_report::row_lock_json).chain(named().map(render::to_json));
        return print_each(listed.chain(not_listed.json()));
    }
    if !args.json {
        print_line(status_report::header(status))?;
    }
    if args.tree {
        print_tree(args, &named().cloned().collect::<Vec<_>>(), status.taken_at)?;
        return match not_listed.all() {
            0 => Ok(()),
            _ if args.json => print_each(not_listed.json()),
            more => print_line(format_args!("and {} not listed", count(more, "more request"))),
        };
    }
    print_line(status_report::row_lock_table(&status.row_locks).unwrap_or_else(|| "no row locks".into()))?;
    status_report::named_lock_tables(status, usize::MAX).into_iter().try_for_each(print_line)
}

/// The table of the row locks that `wanted` selects, if there are any.
pub fn render_table(store: &Store, encodings: Encodings, wanted: impl Fn(&RowLock) -> bool) -> Result<Option<String>> {
    let mut table = RowLockTable::new(keyspace_names(store)?, encodings.keys);
    for lock in store.row_locks()? {
        let lock = lock?;
        if wanted(&lock) {
            table.add(&lock);
        }
    }
    Ok(table.finish())
}

fn resolve(args: &Args) -> Result<()> {
    let interrupt = Interrupt::watch()?;
    // The locks are counted before the store is opened for writing, because the sweep resolves
    // locks from then on.
    let (mut forward, mut back) = (0_u64, 0_u64);
    let progress = Progress::items("row locks");
    for lock in args.store.open_read_only_quiet()?.row_locks()? {
        *if matches!(lock?.txn_status, TxnStatus::Committed(_)) { &mut forward } else { &mut back } += 1;
        if (forward + back) % PROGRESS_EVERY == 0 {
            interrupt.check("nothing was resolved")?;
            progress.set(forward + back, "row locks found");
        }
    }
    let found = forward + back;
    let store = args.store.open_tuned(false, &args.tuning)?;
    progress.expect(found, "");
    std::thread::scope(|scope| {
        let work = scope.spawn(|| store.resolve_orphan_locks());
        loop {
            if interrupt.is_requested() {
                progress.clear();
                Interrupt::exit_now("remaining row locks are resolved when the store is next opened for writing");
            }
            if work.is_finished() {
                break;
            }
            progress.set(store.stats().orphan_locks_resolved.min(found), "row locks resolved");
            std::thread::sleep(POLL_INTERVAL);
        }
        work.join().unwrap_or_else(|panic| resume_unwind(panic))
    })?;
    drop(progress);
    store.close()?;
    if args.json {
        return print_line(json!({ "resolved": found, "rolled_forward": forward, "rolled_back": back }));
    }
    let (forward, back) = (indicatif::HumanCount(forward), indicatif::HumanCount(back));
    print_line(format_args!("{} resolved: {forward} rolled forward, {back} rolled back", count(found, "row lock")))
}

fn keyspace_names(store: &Store) -> Result<KeyspaceNames> {
    Ok(KeyspaceNames::of(&store.snapshot()?.keyspaces()?))
}

pub fn row_lock_json(lock: &RowLock, encodings: Encodings) -> Value {
    let (status, commit_ts) = txn_status(lock);
    json!({
        "kind": "row",
        "keyspace": lock.keyspace,
        "key": encodings.keys.to_json(lock.row.user_key()),
        "start_ts": lock.start_ts.to_string(),
        "start_time": table::format_timestamp(lock.start_ts),
        "owner_id": lock.owner_id.to_string(),
        "owner_created_ms": lock.owner_id.created_at_millis(),
        "primary": { "keyspace": lock.primary_keyspace, "key": encodings.keys.to_json(lock.primary.user_key()) },
        "txn_status": status,
        "commit_ts": commit_ts.map(|ts| ts.to_string()),
        "commit_time": commit_ts.map(table::format_timestamp),
        "is_orphan": lock.is_orphan,
    })
}

/// Parses a timestamp as the commands print it.
pub fn parse_timestamp(text: &str) -> Result<Timestamp, String> {
    let invalid = || "not a timestamp: milliseconds, a dot and a number, as `locks` prints it".to_owned();
    // A script may have read it from a line that ends with CR LF.
    let text = text.trim();
    let (millis, count) = text.split_once('.').ok_or_else(invalid)?;
    let first = millis.parse().map(Timestamp::from_millis).map_err(|_| invalid())?;
    let count: u64 = count.parse().map_err(|_| invalid())?;
    let parsed = Timestamp::from_u64(first.to_u64().saturating_add(count));
    if parsed.to_string() == text { Ok(parsed) } else { Err(invalid()) }
}
