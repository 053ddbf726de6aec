//! `percolite locks`: row locks that a killed process has left behind, and what will become of them; and locks by name.

use std::panic::resume_unwind;
use std::time::{Duration, SystemTime};

use anyhow::Result;
use percolite::{LockEntry, RowLock, Store, StoreStatus, Timestamp, TransactionStatus};
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

const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// So many row locks are counted between two looks at the progress bar.
const PROGRESS_EVERY: u64 = 1024;

/// The options of `locks`.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  percolite locks shop         row locks and locks by name, with their holders
  percolite locks shop --tree  locks by name alone, and which request waits for which
  percolite locks shop --json  one JSON line for each
  percolite locks shop --resolve
                               rolls all of them forward or back, and says how many each

A row lock that is left in a closed store is an orphan: its process died in the middle of a commit. Whoever reads the row rolls \
it forward or back, and so does opening the store for writing, in the background. Looking changes nothing. \
The table shows the first rows of the first transactions; --json shows everything, and so do plain lines, where there is no terminal, \
with a tab between keyspace, key, start_ts, owner, the primary's keyspace and key, its commit point, and commit_ts. \
Of a store that a process has open it shows the first hundred that this process met when it last said what it does, their keys as text \
and escaped where they are none: --key-encoding does not apply.

Locks by name that are held by leases stand in the store. Others, and requests that wait, come from the process that has the store open: the first hundred of each. \
Commands that wait, `lock run` and `lock acquire`, are not shown: they keep the store closed, and are in no queue. Cycles of requests are not shown either: the process does not publish them, and finds them with Store::lock_table.

In plain lines a lock by name has an empty first column, then its name, token, holder, mode, whether it is held, how many seconds of the lease are left, and what it is for. \
JSON lines have a `kind`: `row` for a row lock; `name` for a lock by name, with id, target, mode, state (`held`, `waiting` or `converting`), token, holder, why, since_ms, lease_left_s, \
waiters, taken_over, and blocked_by: the ids of those that it waits for. (Here the target is the name. In what the library serialises, and so in `stats --json`, it is {\"name\": …}.) With --tree those that wait are in `behind` of the first that they wait for. \
Where there are more than the hundred of each, a last line of the kind `not_listed` says how many more are held and waiting.")]
pub struct Args {
    #[command(flatten)]
    pub store: StoreDir,
    #[command(flatten)]
    encodings: EncodingArgs,
    /// Roll all that is left forward or back, now
    #[arg(long)]
    resolve: bool,
    /// Locks by name as a tree of holders and waiters, without row locks
    #[arg(long, conflicts_with = "resolve")]
    tree: bool,
    #[command(flatten)]
    tuning: Tuning,
    /// JSON lines
    #[arg(long)]
    json: bool,
}

pub fn run(args: &Args) -> Result<()> {
    if args.resolve {
        return resolve(args);
    }
    if args.tuning.is_set() {
        return Err(Code::Usage.error("--memory-budget and --compression are for --resolve: looking writes nothing"));
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
    print_line(render::tree(entries, at).unwrap_or_else(|| "no locks by name are held".into()))
}

fn print_each(documents: impl IntoIterator<Item = Value>) -> Result<()> {
    let mut out = LineWriter::new();
    documents.into_iter().try_for_each(|document| out.write_line(document))?;
    out.finish()
}

/// Shows those row locks that are wanted. The answer is whether there are any.
pub fn print(store: &Store, encodings: Encodings, json: bool, wanted: impl Fn(&RowLock) -> bool) -> Result<bool> {
    if !json && is_terminal() {
        let table = render_table(store, encodings, wanted)?;
        let is_any = table.is_some();
        print_line(table.unwrap_or_else(|| "there are no row locks".into()))?;
        return Ok(is_any);
    }
    let mut out = LineWriter::new();
    let mut is_any = false;
    for lock in store.row_locks()? {
        let lock = lock?;
        if wanted(&lock) {
            is_any = true;
            if json {
                out.write_line(row_lock_json(&lock, encodings))?
            } else {
                out.write_bytes(&plain_line(&lock, encodings))?
            }
        }
    }
    out.finish()?;
    Ok(is_any)
}

fn plain_line(lock: &RowLock, encodings: Encodings) -> Vec<u8> {
    let (fate, commit_ts) = fate(lock);
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
    line.extend_from_slice(format!("\t{fate}\t{commit_ts}\n").as_bytes());
    line
}

fn txn_status(lock: &RowLock) -> (&'static str, Option<Timestamp>) {
    match lock.txn_status {
        TransactionStatus::Pending => ("pending", None),
        TransactionStatus::Committed(ts) => ("committed", Some(ts)),
        TransactionStatus::RolledBack => ("rolled back", None),
    }
}

/// What the process tells that has the store open.
fn print_status(args: &Args, status: &StoreStatus) -> Result<()> {
    let by_name = || status.held_locks.iter().chain(&status.lock_waits);
    let not_listed = status_report::not_listed(status);
    if args.json && !args.tree {
        let listed = status.row_locks.iter().map(status_report::row_lock_json).chain(by_name().map(render::to_json));
        return print_each(listed.chain(not_listed.json()));
    }
    if !args.json {
        print_line(status_report::header(status))?;
    }
    if args.tree {
        print_tree(args, &by_name().cloned().collect::<Vec<_>>(), status.taken_at)?;
        return match not_listed.all() {
            0 => Ok(()),
            _ if args.json => print_each(not_listed.json()),
            more => print_line(format_args!("and {} not listed", count(more, "more request"))),
        };
    }
    print_line(status_report::row_lock_table(&status.row_locks).unwrap_or_else(|| "no row locks were met".into()))?;
    status_report::named_lock_tables(status, usize::MAX).into_iter().try_for_each(print_line)
}

/// The table of those row locks that are wanted, if there are any.
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
    // Counted before, since the background begins with it as soon as the store is open.
    let (mut forward, mut back) = (0_u64, 0_u64);
    let progress = Progress::items("row locks");
    for lock in args.store.open_read_only_quiet()?.row_locks()? {
        *if matches!(lock?.txn_status, TransactionStatus::Committed(_)) { &mut forward } else { &mut back } += 1;
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
                Interrupt::exit_now("what is still locked is resolved when the store is next opened for writing");
            }
            if work.is_finished() {
                break;
            }
            progress.set(store.stats().orphan_locks_resolved.min(found), "row locks resolved");
            std::thread::sleep(POLL_INTERVAL);
        }
        work.join().unwrap_or_else(|err| resume_unwind(err))
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
    let (fate, commit_ts) = fate(lock);
    json!({
        "kind": "row",
        "keyspace": lock.keyspace,
        "key": encodings.keys.to_json(lock.row.user_key()),
        "start_ts": lock.start_ts.to_string(),
        "start_time": table::format_timestamp(lock.start_ts),
        "owner": lock.owner_id.to_string(),
        "owner_began_ms": lock.owner_id.created_at_millis(),
        "primary": { "keyspace": lock.primary_keyspace, "key": encodings.keys.to_json(lock.primary.user_key()) },
        "commit_point": fate,
        "commit_ts": commit_ts.map(|ts| ts.to_string()),
        "commit_time": commit_ts.map(table::format_timestamp),
        "orphan": lock.is_orphan,
    })
}

/// A timestamp as the commands show it.
pub fn parse_timestamp(text: &str) -> Result<Timestamp, String> {
    let wrong = || "not a timestamp: milliseconds, a dot and a number, as `locks` shows it".to_owned();
    let (millis, count) = text.split_once('.').ok_or_else(wrong)?;
    let first = millis.parse().map(Timestamp::from_millis).map_err(|_| wrong())?;
    let count: u64 = count.parse().map_err(|_| wrong())?;
    let found = Timestamp::from_u64(first.to_u64().saturating_add(count));
    if found.to_string() == text { Ok(found) } else { Err(wrong()) }
}
