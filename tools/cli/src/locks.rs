//! `percolite locks`: row locks that a killed process has left behind, and what will become of them; and locks by name.

use std::panic::resume_unwind;
use std::time::{Duration, SystemTime};

use anyhow::Result;
use percolite::{LockEntry, RowLock, Store, StoreStatus, Timestamp, TransactionStatus};
use serde_json::{Value, json};

use crate::bytes::{Form, FormArgs, Forms};
use crate::exit::Code;
use crate::interrupt::Interrupt;
use crate::lock::shown;
use crate::open::{self, Folder, Seen};
use crate::output::{Lines, count, is_for_people, say};
use crate::progress::Progress;
use crate::table::{self, LockTable, Names};
use crate::told;
use crate::tuning::Tuning;

const LOOK_EVERY: Duration = Duration::from_millis(20);
/// So many row locks are counted between two looks at the progress bar.
const LOCKS_UNTOLD: u64 = 1024;

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
and escaped where they are none: --keys does not apply.

Locks by name that are held by leases stand in the store. Others, and requests that wait, come from the process that has the store open: the first hundred of each. \
Commands that wait, `lock run` and `lock take`, are not shown: they keep the store closed, and are in no queue. Cycles of requests are not shown either: the process does not publish them, and finds them with Store::lock_table.

In plain lines a lock by name has an empty first column, then its name, token, holder, mode, whether it is held, how many seconds of the lease are left, and what it is for. \
JSON lines have a `kind`: `row` for a row lock; `name` for a lock by name, with id, target, mode, state (`held`, `waiting` or `converting`), token, holder, why, since_ms, lease_left_s, \
waiters, taken_over, and blocked_by: the ids of those that it waits for. (Here the target is the name. In what the library serialises, and so in `stats --json`, it is {\"name\": …}.) With --tree those that wait are in `behind` of the first that they wait for. \
Where there are more than the hundred of each, a last line of the kind `not_listed` says how many more are held and waiting.")]
pub struct Args {
    #[command(flatten)]
    pub store: Folder,
    #[command(flatten)]
    forms: FormArgs,
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
        return Err(Code::Usage.error("--memory and --compression are for --resolve: looking writes nothing"));
    }
    let store = match args.store.look_in()? {
        Seen::Closed(store) => open::telling_lost(store),
        Seen::Open(status) => return of_open(args, &status),
    };
    let leases = store.lock_table()?.entries;
    if args.tree {
        return show_tree(args, &leases, SystemTime::now());
    }
    show(&store, args.forms.get(), args.json, |_| true)?;
    if args.json {
        return say_each(leases.iter().map(shown::json));
    }
    if is_for_people() {
        return shown::held(&leases, 0).map_or(Ok(()), say);
    }
    let mut out = Lines::new();
    leases.iter().try_for_each(|lease| out.bytes(&shown::plain_line(lease)))?;
    out.finish()
}

fn show_tree(args: &Args, entries: &[LockEntry], at: SystemTime) -> Result<()> {
    if args.json {
        return say_each(shown::tree_json(entries));
    }
    say(shown::tree(entries, at).unwrap_or_else(|| "no locks by name are held".into()))
}

fn say_each(documents: impl IntoIterator<Item = Value>) -> Result<()> {
    let mut out = Lines::new();
    documents.into_iter().try_for_each(|document| out.say(document))?;
    out.finish()
}

/// Shows those row locks that are wanted. The answer is whether there are any.
pub fn show(store: &Store, forms: Forms, json: bool, wanted: impl Fn(&RowLock) -> bool) -> Result<bool> {
    if !json && is_for_people() {
        let table = table_of(store, forms, wanted)?;
        let is_any = table.is_some();
        say(table.unwrap_or_else(|| "there are no row locks".into()))?;
        return Ok(is_any);
    }
    let mut out = Lines::new();
    let mut is_any = false;
    for lock in store.row_locks()? {
        let lock = lock?;
        if wanted(&lock) {
            is_any = true;
            if json { out.say(as_json(&lock, forms))? } else { out.bytes(&plain_line(&lock, forms))? }
        }
    }
    out.finish()?;
    Ok(is_any)
}

fn plain_line(lock: &RowLock, forms: Forms) -> Vec<u8> {
    let (fate, commit_ts) = fate(lock);
    let mut line = Vec::new();
    let name = |name: Option<&String>, id: u32, line: &mut Vec<u8>| match name {
        Some(name) => Form::Text.plain(name.as_bytes(), line),
        None => line.extend_from_slice(id.to_string().as_bytes()),
    };
    name(lock.keyspace.as_ref(), lock.row.keyspace_id().0, &mut line);
    line.push(b'\t');
    forms.keys.plain(lock.row.user_key(), &mut line);
    line.extend_from_slice(format!("\t{}\t{}\t", lock.start_ts, lock.owner_id).as_bytes());
    name(lock.primary_keyspace.as_ref(), lock.primary.keyspace_id().0, &mut line);
    line.push(b'\t');
    forms.keys.plain(lock.primary.user_key(), &mut line);
    let commit_ts = commit_ts.map(|ts| ts.to_string()).unwrap_or_default();
    line.extend_from_slice(format!("\t{fate}\t{commit_ts}\n").as_bytes());
    line
}

fn fate(lock: &RowLock) -> (&'static str, Option<Timestamp>) {
    match lock.txn_status {
        TransactionStatus::Pending => ("pending", None),
        TransactionStatus::Committed(ts) => ("committed", Some(ts)),
        TransactionStatus::RolledBack => ("rolled back", None),
    }
}

/// What the process tells that has the store open.
fn of_open(args: &Args, status: &StoreStatus) -> Result<()> {
    let by_name = || status.held_locks.iter().chain(&status.lock_waits);
    let not_listed = told::not_listed(status);
    if args.json && !args.tree {
        let listed = status.row_locks.iter().map(told::lock_json).chain(by_name().map(shown::json));
        return say_each(listed.chain(not_listed.json()));
    }
    if !args.json {
        say(told::heading(status))?;
    }
    if args.tree {
        show_tree(args, &by_name().cloned().collect::<Vec<_>>(), status.taken_at)?;
        return match not_listed.all() {
            0 => Ok(()),
            _ if args.json => say_each(not_listed.json()),
            more => say(format_args!("and {} not listed", count(more, "more request"))),
        };
    }
    say(told::row_locks(&status.row_locks).unwrap_or_else(|| "no row locks were met".into()))?;
    told::by_name(status, usize::MAX).into_iter().try_for_each(say)
}

/// The table of those row locks that are wanted, if there are any.
pub fn table_of(store: &Store, forms: Forms, wanted: impl Fn(&RowLock) -> bool) -> Result<Option<String>> {
    let mut table = LockTable::new(names(store)?, forms.keys);
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
    let progress = Progress::of("row locks");
    for lock in args.store.look_silently()?.row_locks()? {
        *if matches!(lock?.txn_status, TransactionStatus::Committed(_)) { &mut forward } else { &mut back } += 1;
        if (forward + back) % LOCKS_UNTOLD == 0 {
            interrupt.check("nothing was resolved")?;
            progress.at(forward + back, "row locks found");
        }
    }
    let found = forward + back;
    let store = args.store.write_tuned(false, &args.tuning)?;
    progress.expect(found, "");
    std::thread::scope(|scope| {
        let work = scope.spawn(|| store.resolve_orphan_locks());
        loop {
            if interrupt.is_wanted() {
                progress.clear();
                Interrupt::end_at_once("what is still locked is resolved when the store is next opened for writing");
            }
            if work.is_finished() {
                break;
            }
            progress.at(store.stats().orphan_locks_resolved.min(found), "row locks resolved");
            std::thread::sleep(LOOK_EVERY);
        }
        work.join().unwrap_or_else(|why| resume_unwind(why))
    })?;
    drop(progress);
    store.close()?;
    if args.json {
        return say(json!({ "resolved": found, "rolled_forward": forward, "rolled_back": back }));
    }
    let (forward, back) = (indicatif::HumanCount(forward), indicatif::HumanCount(back));
    say(format_args!("{} resolved: {forward} rolled forward, {back} rolled back", count(found, "row lock")))
}

fn names(store: &Store) -> Result<Names> {
    Ok(Names::of(&store.snapshot()?.keyspaces()?))
}

pub fn as_json(lock: &RowLock, forms: Forms) -> Value {
    let (fate, commit_ts) = fate(lock);
    json!({
        "kind": "row",
        "keyspace": lock.keyspace,
        "key": forms.keys.json_value(lock.row.user_key()),
        "start_ts": lock.start_ts.to_string(),
        "start_time": table::moment(lock.start_ts),
        "owner": lock.owner_id.to_string(),
        "owner_began_ms": lock.owner_id.created_at_millis(),
        "primary": { "keyspace": lock.primary_keyspace, "key": forms.keys.json_value(lock.primary.user_key()) },
        "commit_point": fate,
        "commit_ts": commit_ts.map(|ts| ts.to_string()),
        "commit_time": commit_ts.map(table::moment),
        "orphan": lock.is_orphan,
    })
}

/// A timestamp as the commands show it.
pub fn timestamp(text: &str) -> Result<Timestamp, String> {
    let wrong = || "not a timestamp: milliseconds, a dot and a number, as `locks` shows it".to_owned();
    let (millis, count) = text.split_once('.').ok_or_else(wrong)?;
    let first = millis.parse().map(Timestamp::from_millis).map_err(|_| wrong())?;
    let count: u64 = count.parse().map_err(|_| wrong())?;
    let found = Timestamp::from_u64(first.to_u64().saturating_add(count));
    if found.to_string() == text { Ok(found) } else { Err(wrong()) }
}
