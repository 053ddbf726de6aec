//! `percolite locks` and `percolite txn`: what a killed process has left behind, and what will become of it.

use std::panic::resume_unwind;
use std::time::Duration;

use anyhow::Result;
use percolite::{CommitPoint, Keyspace, OwnerId, RowLock, Status, Store, Timestamp, TxnStatus};
use serde_json::{Value, json};

use crate::bytes::{Form, FormArgs, Forms};
use crate::exit::Code;
use crate::interrupt::Interrupt;
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
  percolite locks shop         who holds which rows, and what their primaries say
  percolite locks shop --json  one JSON line for each row lock
  percolite locks shop --resolve
                               rolls all of them forward or back, and says how many each

A row lock that is left in a closed store is an orphan: its process died in the middle of a commit. Whoever reads the row rolls \
it forward or back, and so does opening the store for writing, in the background. Looking changes nothing. \
The table shows the first rows of the first transactions; --json shows everything, and so do plain lines, where there is no terminal, \
with a tab between keyspace, key, start_ts, owner, the primary's keyspace and key, its commit point, and commit_ts. \
Of a store that a process has open it shows the first hundred that this process met when it last said what it does, their keys as text \
and escaped where they are none: --keys does not apply.")]
pub struct Args {
    #[command(flatten)]
    pub store: Folder,
    #[command(flatten)]
    forms: FormArgs,
    /// Roll all that is left forward or back, now
    #[arg(long)]
    resolve: bool,
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
    show(&store, args.forms.get(), args.json, |_| true).map(|_| ())
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
    name(lock.keyspace.as_ref(), lock.row.keyspace().0, &mut line);
    line.push(b'\t');
    forms.keys.plain(lock.row.key(), &mut line);
    line.extend_from_slice(format!("\t{}\t{}\t", lock.start_ts, lock.owner).as_bytes());
    name(lock.primary_keyspace.as_ref(), lock.primary.keyspace().0, &mut line);
    line.push(b'\t');
    forms.keys.plain(lock.primary.key(), &mut line);
    let commit_ts = commit_ts.map(|ts| ts.to_string()).unwrap_or_default();
    line.extend_from_slice(format!("\t{fate}\t{commit_ts}\n").as_bytes());
    line
}

fn fate(lock: &RowLock) -> (&'static str, Option<Timestamp>) {
    match lock.commit_point {
        CommitPoint::Pending => ("pending", None),
        CommitPoint::Committed(ts) => ("committed", Some(ts)),
        CommitPoint::RolledBack => ("rolled back", None),
    }
}

/// What the process tells that has the store open.
fn of_open(args: &Args, status: &Status) -> Result<()> {
    if args.json {
        let mut out = Lines::new();
        status.row_locks.iter().try_for_each(|lock| out.say(told::lock_json(lock)))?;
        return out.finish();
    }
    say(told::heading(status))?;
    say(told::locks(&status.row_locks).unwrap_or_else(|| "no row locks were met".into()))
}

/// The table of those row locks that are wanted, if there are any.
fn table_of(store: &Store, forms: Forms, wanted: impl Fn(&RowLock) -> bool) -> Result<Option<String>> {
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
        *if matches!(lock?.commit_point, CommitPoint::Committed(_)) { &mut forward } else { &mut back } += 1;
        if (forward + back) % LOCKS_UNTOLD == 0 {
            interrupt.check("nothing was resolved")?;
            progress.at(forward + back, "row locks found");
        }
    }
    let found = forward + back;
    let store = args.store.write_tuned(false, &args.tuning)?;
    progress.expect(found, "");
    std::thread::scope(|scope| {
        let work = scope.spawn(|| store.resolve_orphans());
        loop {
            if interrupt.is_wanted() {
                progress.clear();
                Interrupt::end_at_once("what is still locked is resolved when the store is next opened for writing");
            }
            if work.is_finished() {
                break;
            }
            progress.at(store.stats().swept.min(found), "row locks resolved");
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

fn as_json(lock: &RowLock, forms: Forms) -> Value {
    let (fate, commit_ts) = fate(lock);
    json!({
        "keyspace": lock.keyspace,
        "key": forms.keys.json_value(lock.row.key()),
        "start_ts": lock.start_ts.to_string(),
        "start_time": table::moment(lock.start_ts),
        "owner": lock.owner.to_string(),
        "owner_began_ms": lock.owner.began_millis(),
        "primary": { "keyspace": lock.primary_keyspace, "key": forms.keys.json_value(lock.primary.key()) },
        "commit_point": fate,
        "commit_ts": commit_ts.map(|ts| ts.to_string()),
        "commit_time": commit_ts.map(table::moment),
        "orphan": lock.orphan,
    })
}

/// The options of `txn`.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  percolite locks shop --json             shows start_ts and owner of those that hold row locks
  percolite txn shop 1763726400123.7      the rows that it holds and what will become of them
  percolite txn shop 1763726400123.7 --keyspace fruit --key apple
                                          asks a row that it wrote, when it holds none any more
  percolite txn shop 1763726400123.7 --owner 0b0d4f421fc00007 --keyspace fruit --key apple
                                          the same of a row that may only remember its roll-back

A row is also asked by the timestamp of a commit, as `versions` shows it.

Of a store that a process has open it shows what that process says of it, if it does: see `percolite top --help`. \
The answer to the last is: pending, committed, rolled back, or that the row knows nothing of it (exit code 3).")]
pub struct TxnArgs {
    #[command(flatten)]
    pub store: Folder,
    /// The timestamp that names the transaction
    #[arg(value_name = "START_TS", value_parser = timestamp)]
    start_ts: Timestamp,
    /// Its owner, 16 digits
    #[arg(long, value_name = "OWNER", value_parser = owner, requires = "key")]
    owner: Option<OwnerId>,
    /// The keyspace of the row to ask
    #[arg(long, requires = "key")]
    keyspace: Option<String>,
    /// The row to ask: its primary, or any that it wrote
    #[arg(long, requires = "keyspace")]
    key: Option<std::ffi::OsString>,
    #[command(flatten)]
    forms: FormArgs,
    /// One JSON document
    #[arg(long)]
    json: bool,
}

fn timestamp(text: &str) -> Result<Timestamp, String> {
    let wrong = || "not a timestamp: milliseconds, a dot and a number, as `locks` shows it".to_owned();
    let (millis, count) = text.split_once('.').ok_or_else(wrong)?;
    let first = millis.parse().map(Timestamp::from_millis).map_err(|_| wrong())?;
    let count: u64 = count.parse().map_err(|_| wrong())?;
    let found = Timestamp::from_u64(first.to_u64().saturating_add(count));
    if found.to_string() == text { Ok(found) } else { Err(wrong()) }
}

fn owner(text: &str) -> Result<OwnerId, String> {
    u64::from_str_radix(text, 16).map(OwnerId::from_u64).map_err(|_| "not an owner: 16 hexadecimal digits".to_owned())
}

/// What a row's lock and versions tell of a transaction that is named by when it began or committed.
fn status_by_row(store: &Store, keyspace: &Keyspace, key: &[u8], ts: Timestamp) -> Result<TxnStatus> {
    for version in store.snapshot()?.versions(keyspace, key)? {
        let version = version?;
        if version.start_ts == ts || version.commit_ts == ts {
            return Ok(TxnStatus::Committed(version.commit_ts));
        }
    }
    let row = keyspace.row_of(key);
    for lock in store.row_locks()? {
        let lock = lock?;
        if lock.row == row && lock.start_ts == ts {
            return Ok(store.txn_status(&lock.primary, ts, lock.owner)?);
        }
    }
    Ok(TxnStatus::NoTrace)
}

/// What the process that has the store open tells of a transaction: whether it goes on, was slow, or holds row locks.
fn txn_of_open(args: &TxnArgs, status: &Status) -> Result<()> {
    if args.key.is_some() {
        return Err(Code::Busy.error(
            "a row can be asked by the process that has the store open (Store::txn_status), or when that has closed it",
        ));
    }
    let live: Vec<_> = status.live.iter().filter(|live| live.start_ts == Some(args.start_ts)).collect();
    let slow: Vec<_> =
        status.slow.iter().chain(&status.slowest).filter(|slow| slow.start_ts == args.start_ts).take(1).collect();
    let locks: Vec<_> = status.row_locks.iter().filter(|lock| lock.start_ts == args.start_ts).cloned().collect();
    if live.is_empty() && slow.is_empty() && locks.is_empty() {
        return Err(Code::Missing.error(format!(
            "process {}, which has the store open, said nothing of a transaction {:#} when it last spoke, {:.1?} ago: it was not live, held no row lock and was not slow",
            status.pid,
            args.start_ts,
            told::age(status)
        )));
    }
    if args.json {
        return say(
            json!({ "pid": status.pid, "age_s": told::age(status).as_secs_f64(), "live": live, "slow": slow, "row_locks": locks.iter().map(told::lock_json).collect::<Vec<_>>() }),
        );
    }
    say(told::heading(status))?;
    if !live.is_empty() {
        say(told::live(live.iter().copied(), live.len() as u64))?;
    }
    if !slow.is_empty() {
        say(told::slow("slow", slow))?;
    }
    told::locks(&locks).map_or(Ok(()), say)
}

pub fn run_txn(args: &TxnArgs) -> Result<()> {
    let store = match args.store.look_in()? {
        Seen::Closed(store) => open::telling_lost(store),
        Seen::Open(status) => return txn_of_open(args, &status),
    };
    if let (Some(name), Some(key)) = (&args.keyspace, &args.key) {
        let key = args.forms.get().keys.read(key)?;
        let keyspace = open::keyspace(&store, name, false)?;
        let status = match args.owner {
            Some(owner) => store.txn_status(&keyspace.row_of(&key), args.start_ts, owner)?,
            None => status_by_row(&store, &keyspace, &key, args.start_ts)?,
        };
        let (word, commit_ts) = match status {
            TxnStatus::Pending => ("pending", None),
            TxnStatus::Committed(ts) => ("committed", Some(ts)),
            TxnStatus::RolledBack => ("rolled back", None),
            TxnStatus::NoTrace => {
                let by_owner = if args.owner.is_none() {
                    ", or say its --owner, by which a row remembers a roll-back"
                } else {
                    ""
                };
                let what = format!(
                    "this row knows nothing of the transaction {:#}: ask at one that only it has written{by_owner}",
                    args.start_ts
                );
                return Err(Code::Missing.error(what));
            }
        };
        if args.json {
            return say(
                json!({ "status": word, "commit_ts": commit_ts.map(|ts| ts.to_string()), "commit_time": commit_ts.map(table::moment) }),
            );
        }
        return match commit_ts {
            Some(ts) => say(format_args!("committed at {ts:#}")),
            None => say(word),
        };
    }
    let nobody = || {
        Code::Missing.error(format!(
            "no row is locked by a transaction {:#}; to ask a row that it wrote, say --keyspace and --key",
            args.start_ts
        ))
    };
    if args.json {
        let locks = store.row_locks()?.filter(|lock| lock.as_ref().map_or(true, |lock| lock.start_ts == args.start_ts));
        let held = locks.map(|lock| Ok(as_json(&lock?, args.forms.get()))).collect::<Result<Vec<_>>>()?;
        return if held.is_empty() { Err(nobody()) } else { say(json!({ "row_locks": held })) };
    }
    let held = |lock: &RowLock| lock.start_ts == args.start_ts;
    if !is_for_people() {
        return if show(&store, args.forms.get(), false, held)? { Ok(()) } else { Err(nobody()) };
    }
    say(table_of(&store, args.forms.get(), held)?.ok_or_else(nobody)?)
}
