//! `percolite txn`: the status of a transaction.

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
  percolite locks shop --json         prints start_ts and owner of transactions with row locks
  percolite txn shop 1763726400123.7  its row locks, and its status
  percolite txn shop 1763726400123.7 --keyspace fruit --key apple
                                      its status at a row that it wrote, if it has no locks left
  percolite txn shop 1763726400123.7 --owner 0b0d4f421fc00007 --keyspace fruit --key apple
                                      the same; finds the record of a rollback, too

With --key the output is pending, committed or rolled back; if the row has no record of the transaction the exit \
code is 3. START_TS may then be a commit timestamp, too, as `versions` prints it.

For a store that another process has open, the output is from the status that this process publishes: see \
`percolite top --help`.")]
pub struct Args {
    #[command(flatten)]
    pub store: StoreDir,
    /// The start timestamp of the transaction
    #[arg(value_name = "START_TS", value_parser = locks::parse_timestamp)]
    start_ts: Timestamp,
    /// The owner id of the transaction, 16 hexadecimal digits
    #[arg(long, value_name = "OWNER", value_parser = parse_owner, requires = "key")]
    owner: Option<OwnerId>,
    /// The keyspace of --key
    #[arg(long, requires = "key")]
    keyspace: Option<String>,
    /// The row to read: the primary, or any other row that the transaction wrote
    #[arg(long, requires = "keyspace")]
    key: Option<std::ffi::OsString>,
    #[command(flatten)]
    encodings: EncodingArgs,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

fn parse_owner(text: &str) -> Result<OwnerId, String> {
    u64::from_str_radix(text, 16).map(OwnerId::from_u64).map_err(|_| "not an owner: 16 hexadecimal digits".to_owned())
}

/// The status of the transaction with this start or commit timestamp, from the versions and the
/// lock of a row that it wrote.
fn status_at_row(store: &Store, keyspace: &Keyspace, key: &[u8], ts: Timestamp) -> Result<Option<TxnStatus>> {
    for version in store.snapshot()?.versions(keyspace, key)? {
        let version = version?;
        if version.start_ts == ts || version.commit_ts == ts {
            return Ok(Some(TxnStatus::Committed(version.commit_ts)));
        }
    }
    let row = keyspace.row_key(key);
    for lock in store.row_locks()? {
        let lock = lock?;
        if lock.row == row && lock.start_ts == ts {
            return Ok(store.txn_status(&lock.primary, ts, lock.owner_id)?);
        }
    }
    Ok(None)
}

/// Prints what the status says about the transaction: whether the transaction is active, was slow,
/// or has row locks. The process that has the store open has published the status.
fn print_status(args: &Args, status: &StoreStatus) -> Result<()> {
    if args.key.is_some() {
        return Err(Code::Busy.error(
            "the store is open in another process: that process can read the row (Store::txn_status); \
             this command needs the store closed",
        ));
    }
    let active: Vec<_> = status.active.iter().filter(|txn| txn.start_ts == Some(args.start_ts)).collect();
    let slow: Vec<_> =
        status.slow.iter().chain(&status.slowest).filter(|slow| slow.start_ts == args.start_ts).take(1).collect();
    let locks: Vec<_> = status.row_locks.iter().filter(|lock| lock.start_ts == args.start_ts).cloned().collect();
    if active.is_empty() && slow.is_empty() && locks.is_empty() {
        return Err(Code::NotFound.error(format!(
            "the transaction {:#} is not in the status that process {} published {:.1?} ago: \
             it was not active, had no row lock and was not slow",
            args.start_ts,
            status.pid,
            status_report::age(status)
        )));
    }
    if args.json {
        return print_line(json!({
            "pid": status.pid,
            "age_s": status_report::age(status).as_secs_f64(),
            "active": active,
            "slow": slow,
            "row_locks": locks.iter().map(status_report::row_lock_json).collect::<Vec<_>>(),
        }));
    }
    print_line(status_report::header(status))?;
    if !active.is_empty() {
        print_line(status_report::active_table(active.iter().copied(), active.len() as u64))?;
    }
    if !slow.is_empty() {
        print_line(status_report::slow_table("slow transaction", slow))?;
    }
    status_report::row_lock_table(&locks).map_or(Ok(()), print_line)
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
            Some(TxnStatus::Pending) => ("pending", None),
            Some(TxnStatus::Committed(ts)) => ("committed", Some(ts)),
            Some(TxnStatus::RolledBack) => ("rolled back", None),
            None => {
                let owner_hint =
                    if args.owner.is_none() { ", or give its --owner to find the record of a rollback" } else { "" };
                let message = format!(
                    "the row has no record of the transaction {:#}: try a row that only it has written{owner_hint}",
                    args.start_ts
                );
                return Err(Code::NotFound.error(message));
            }
        };
        if args.json {
            return print_line(json!({
                "status": word,
                "commit_ts": commit_ts.map(|ts| ts.to_string()),
                "commit_time": commit_ts.map(table::format_timestamp),
            }));
        }
        return match commit_ts {
            Some(ts) => print_line(format_args!("committed at {ts:#}")),
            None => print_line(word),
        };
    }
    let no_locks = || {
        Code::NotFound.error(format!(
            "no row is locked by the transaction {:#}; --keyspace and --key read a row that it wrote",
            args.start_ts
        ))
    };
    if args.json {
        let locks = store.row_locks()?.filter(|lock| lock.as_ref().map_or(true, |lock| lock.start_ts == args.start_ts));
        let locks =
            locks.map(|lock| Ok(locks::row_lock_json(&lock?, args.encodings.get()))).collect::<Result<Vec<_>>>()?;
        return if locks.is_empty() { Err(no_locks()) } else { print_line(json!({ "row_locks": locks })) };
    }
    let is_own = |lock: &RowLock| lock.start_ts == args.start_ts;
    if !is_terminal() {
        return if locks::print(&store, args.encodings.get(), false, is_own)? { Ok(()) } else { Err(no_locks()) };
    }
    print_line(locks::render_table(&store, args.encodings.get(), is_own)?.ok_or_else(no_locks)?)
}
