//! `percolite txn`: what became of a transaction.

use anyhow::Result;
use percolite::{Keyspace, OwnerId, RowLock, Store, StoreStatus, Timestamp, TxnStatus};
use serde_json::json;

use crate::encoding::EncodingArgs;
use crate::exit::Code;
use crate::open::{self, StoreDir, StoreOrStatus};
use crate::output::{is_terminal, print_line};
use crate::{locks, status_report, table};

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
pub struct Args {
    #[command(flatten)]
    pub store: StoreDir,
    /// The timestamp that names the transaction
    #[arg(value_name = "START_TS", value_parser = locks::timestamp)]
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
    encodings: EncodingArgs,
    /// One JSON document
    #[arg(long)]
    json: bool,
}

fn parse_owner(text: &str) -> Result<OwnerId, String> {
    u64::from_str_radix(text, 16).map(OwnerId::from_u64).map_err(|_| "not an owner: 16 hexadecimal digits".to_owned())
}

/// What a row's lock and versions tell of a transaction that is named by when it began or committed.
fn status_at_row(store: &Store, keyspace: &Keyspace, key: &[u8], ts: Timestamp) -> Result<TxnStatus> {
    for version in store.snapshot()?.versions(keyspace, key)? {
        let version = version?;
        if version.start_ts == ts || version.commit_ts == ts {
            return Ok(TxnStatus::Committed(version.commit_ts));
        }
    }
    let row = keyspace.row_key(key);
    for lock in store.row_locks()? {
        let lock = lock?;
        if lock.row == row && lock.start_ts == ts {
            return Ok(store.txn_status(&lock.primary, ts, lock.owner_id)?);
        }
    }
    Ok(TxnStatus::NoTrace)
}

/// What the process that has the store open tells of a transaction: whether it goes on, was slow, or holds row locks.
fn print_status(args: &Args, status: &StoreStatus) -> Result<()> {
    if args.key.is_some() {
        return Err(Code::Busy.error(
            "a row can be asked by the process that has the store open (Store::txn_status), or when that has closed it",
        ));
    }
    let live: Vec<_> = status.active.iter().filter(|live| live.start_ts == Some(args.start_ts)).collect();
    let slow: Vec<_> =
        status.slow.iter().chain(&status.slowest).filter(|slow| slow.start_ts == args.start_ts).take(1).collect();
    let held: Vec<_> = status.row_locks.iter().filter(|lock| lock.start_ts == args.start_ts).cloned().collect();
    if live.is_empty() && slow.is_empty() && held.is_empty() {
        return Err(Code::NotFound.error(format!(
            "process {}, which has the store open, said nothing of a transaction {:#} when it last spoke, {:.1?} ago: it was not live, held no row lock and was not slow",
            status.pid,
            args.start_ts,
            status_report::age(status)
        )));
    }
    if args.json {
        return print_line(
            json!({ "pid": status.pid, "age_s": status_report::age(status).as_secs_f64(), "live": live, "slow": slow, "row_locks": held.iter().map(status_report::row_lock_json).collect::<Vec<_>>() }),
        );
    }
    print_line(status_report::header(status))?;
    if !live.is_empty() {
        print_line(status_report::active_table(live.iter().copied(), live.len() as u64))?;
    }
    if !slow.is_empty() {
        print_line(status_report::slow_table("slow", slow))?;
    }
    status_report::row_lock_table(&held).map_or(Ok(()), print_line)
}

pub fn run(args: &Args) -> Result<()> {
    let store = match args.store.open_or_status()? {
        StoreOrStatus::Store(store) => open::warn_data_loss(store),
        StoreOrStatus::Status(status) => return print_status(args, &status),
    };
    if let (Some(name), Some(key)) = (&args.keyspace, &args.key) {
        let key = args.encodings.get().keys.decode_arg(key)?;
        let keyspace = open::keyspace(&store, name, false)?;
        let status = match args.owner {
            Some(owner) => store.txn_status(&keyspace.row_key(&key), args.start_ts, owner)?,
            None => status_at_row(&store, &keyspace, &key, args.start_ts)?,
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
                return Err(Code::NotFound.error(what));
            }
        };
        if args.json {
            return print_line(
                json!({ "status": word, "commit_ts": commit_ts.map(|ts| ts.to_string()), "commit_time": commit_ts.map(table::format_timestamp) }),
            );
        }
        return match commit_ts {
            Some(ts) => print_line(format_args!("committed at {ts:#}")),
            None => print_line(word),
        };
    }
    let nobody = || {
        Code::NotFound.error(format!(
            "no row is locked by a transaction {:#}; to ask a row that it wrote, say --keyspace and --key",
            args.start_ts
        ))
    };
    if args.json {
        let locks = store.row_locks()?.filter(|lock| lock.as_ref().map_or(true, |lock| lock.start_ts == args.start_ts));
        let held =
            locks.map(|lock| Ok(locks::row_lock_json(&lock?, args.encodings.get()))).collect::<Result<Vec<_>>>()?;
        return if held.is_empty() { Err(nobody()) } else { print_line(json!({ "row_locks": held })) };
    }
    let held = |lock: &RowLock| lock.start_ts == args.start_ts;
    if !is_terminal() {
        return if locks::print(&store, args.encodings.get(), false, held)? { Ok(()) } else { Err(nobody()) };
    }
    print_line(locks::render_table(&store, args.encodings.get(), held)?.ok_or_else(nobody)?)
}
