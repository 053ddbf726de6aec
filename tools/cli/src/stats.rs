//! `percolite stats`: statistics of a store.

use std::path::Path;

use anyhow::{Context as _, Result};
use percolite::{EngineStats, KeyspaceStats, SpaceLeft, Store, StoreStatus, Timestamp};
use serde_json::json;

use crate::exit::Code;
use crate::open::{StoreDir, StoreOrStatus};
use crate::output::print_line;
use crate::status_report::NOT_MEASURED;
use crate::{status_report, table};

/// The command's options.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  percolite stats shop           size, row locks, newest timestamp, statistics of each keyspace
  percolite stats shop --exact   counts every row, which may take long
  percolite stats shop --json | jq .disk_bytes

Of a large keyspace a sample of the rows is counted, and the rest is estimated from its size on disk. Estimates are \
marked with \"about\"; they are too large by what was replaced or deleted and is not compacted yet. Rows that are \
only in the WAL are not in the size on disk. A dropped keyspace keeps its space until no snapshot can read it.

Accepted losses of acknowledged commits are listed at the end (--json: data_loss_bytes). A store whose loss was \
not accepted does not open.

For a store that another process has open, the output is the status that this process publishes: commits, conflicts, \
WAL syncs, active transactions, slow transactions, locks (see `percolite top --help`). --json prints that document \
with its age_s; the target of a named lock is {\"name\": …} there, and the name alone in `locks --json`.")]
pub struct Args {
    #[command(flatten)]
    pub store: StoreDir,
    /// Count all rows instead of estimating; not for a store that another process has open
    #[arg(long)]
    pub exact: bool,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

/// Without `--exact`, about this many rows are counted in all keyspaces together.
const COUNT_BUDGET: u64 = 1_000_000;
/// At least this many rows are counted in each keyspace, even if there are many keyspaces.
const COUNT_MIN: u64 = 1000;
/// The maximum number of keyspaces that are listed without `--json`.
const MAX_LISTED: usize = 100;

pub fn run(args: &Args) -> Result<()> {
    match args.store.open_or_status()? {
        StoreOrStatus::Store(store) => print_store(args, &store),
        StoreOrStatus::Status(status) => print_status(args, &status),
    }
}

fn print_status(args: &Args, status: &StoreStatus) -> Result<()> {
    if args.exact {
        return Err(Code::Busy.error("the store is open in another process; --exact needs it closed"));
    }
    if args.json {
        return print_line(status_report::to_json(status)?);
    }
    print_line(status_report::header(status))?;
    status_report::tables(status).into_iter().try_for_each(print_line)?;
    if status.keyspaces.is_empty() {
        return Ok(());
    }
    let size = |bytes| indicatif::HumanBytes(bytes).to_string();
    let rows = status.keyspaces.iter().map(|keyspace| [keyspace.name.clone(), size(keyspace.disk_bytes)]);
    print_line(table::text_table(["keyspace", "approx. size on disk"], rows.collect()))
}

fn print_store(args: &Args, store: &Store) -> Result<()> {
    let snapshot = store.snapshot()?;
    let keyspace_count = snapshot.keyspaces()?.len();
    let mut locks = 0_u64;
    for lock in store.row_locks()? {
        lock?;
        locks += 1;
    }
    let disk_bytes = dir_bytes(&args.store.path)?;
    let newest = snapshot.read_ts();
    let history_start = store.stats().history_start_ts;
    let engine = store.engine_stats()?;
    let restored_ts = store.restored_ts()?;
    let keyspaces = keyspace_stats(store, args.exact)?;
    if args.json {
        return print_line(json!({
            "columns": engine.columns,
            "data_loss_bytes": store.data_losses().iter().map(|loss| loss.lost_bytes).sum::<u64>(),
            "wal_bytes": engine.wal_bytes,
            "wal_segments": engine.wal_segments,
            "lost_wal_bytes": engine.lost_wal_bytes,
            "other_table_bytes": engine.other_table_bytes,
            "disk_free_bytes": engine.disk_free_bytes,
            "space_left": engine.space_left,
            "pending_compaction_bytes": engine.pending_compaction_bytes,
            "keyspaces": keyspace_count,
            "keyspace_stats": keyspaces.iter().map(keyspace_json).collect::<Vec<_>>(),
            "restored_ts": restored_ts.map(|ts| ts.to_string()),
            "row_locks": locks,
            "disk_bytes": disk_bytes,
            "newest_ts": newest.to_string(),
            "newest_ms": newest.millis(),
            "newest_time": table::format_timestamp(newest),
            "history_start_ms": history_start.map(Timestamp::millis),
            "history_start_time": history_start.map(table::format_timestamp),
        }));
    }
    let time = |ts: Timestamp| table::format_time(ts.millis(), "%Y-%m-%d %H:%M:%S UTC");
    let size = |bytes| indicatif::HumanBytes(bytes).to_string();
    let mut rows = vec![
        ["size on disk".to_owned(), size(disk_bytes)],
        ["keyspaces".to_owned(), keyspace_count.to_string()],
        ["orphan locks".to_owned(), indicatif::HumanCount(locks).to_string()],
        ["newest timestamp".to_owned(), time(newest)],
        ["history starts".to_owned(), history_start.map_or_else(|| "no history".into(), time)],
        ["WAL".to_owned(), wal_text(&engine)],
        ["RocksDB's other files".to_owned(), size(engine.other_table_bytes)],
        ["free on disk".to_owned(), free_text(&engine)],
        ["pending compaction".to_owned(), size(engine.pending_compaction_bytes)],
    ];
    for column in &engine.columns {
        let name = format!("{:?}", column.column).to_lowercase();
        let (bytes, keys) = (size(column.sst_bytes), indicatif::HumanCount(column.estimated_keys));
        rows.push([format!("{name} column"), format!("{bytes} in {} tables, about {keys} keys", column.sst_files)]);
    }
    if let Some(ts) = restored_ts {
        rows.push(["restored up to".to_owned(), ts.to_string()]);
    }
    print_line(table::text_table(["store", ""], rows))?;
    print_keyspaces(&keyspaces)?;
    store.data_losses().iter().try_for_each(print_line)
}

fn wal_text(engine: &EngineStats) -> String {
    let size = |bytes| indicatif::HumanBytes(bytes).to_string();
    let lost = if engine.lost_wal_bytes > 0 {
        format!(", and {} of accepted data losses", size(engine.lost_wal_bytes))
    } else {
        String::new()
    };
    let own = engine.wal_bytes.saturating_sub(engine.lost_wal_bytes);
    format!("{} in {} segments{lost}", size(own), engine.wal_segments)
}

fn free_text(engine: &EngineStats) -> String {
    let free =
        engine.disk_free_bytes.map_or_else(|| NOT_MEASURED.into(), |free| indicatif::HumanBytes(free).to_string());
    if engine.space_left == SpaceLeft::Enough { free } else { format!("{free}: only deletions are possible") }
}

/// The JSON of a keyspace's statistics; a dropped keyspace has only its size on disk.
pub fn keyspace_json(keyspace: &KeyspaceStats) -> serde_json::Value {
    json!({
        "name": keyspace.name,
        "rows": keyspace.name.as_ref().map(|_| keyspace.rows),
        "logical_bytes": keyspace.name.as_ref().map(|_| keyspace.logical_bytes),
        "is_exact": keyspace.is_exact,
        "disk_bytes": keyspace.disk_bytes,
    })
}

/// Rows and sizes of the keyspaces; without `exact` only about [`COUNT_BUDGET`] rows are counted.
pub fn keyspace_stats(store: &Store, exact: bool) -> Result<Vec<KeyspaceStats>> {
    let keyspaces = store.keyspace_names()?.len();
    let each = (COUNT_BUDGET / u64::try_from(keyspaces).unwrap_or(u64::MAX).max(1)).max(COUNT_MIN);
    Ok(store.keyspace_stats(if exact { u64::MAX } else { each })?)
}

/// Prints a table of the keyspaces; all dropped ones together have one row.
pub fn print_keyspaces(keyspaces: &[KeyspaceStats]) -> Result<()> {
    let size = |bytes| indicatif::HumanBytes(bytes).to_string();
    let (named, dropped): (Vec<_>, Vec<_>) = keyspaces.iter().partition(|keyspace| keyspace.name.is_some());
    let row = |keyspace: &&KeyspaceStats| {
        let about = if keyspace.is_exact { "" } else { "about " };
        let rows = format!("{about}{}", indicatif::HumanCount(keyspace.rows));
        let name = keyspace.name.clone().unwrap_or_default();
        [name, rows, format!("{about}{}", size(keyspace.logical_bytes)), size(keyspace.disk_bytes)]
    };
    let mut rows: Vec<_> = named.iter().take(MAX_LISTED).map(row).collect();
    if let Some(more) = named.len().checked_sub(MAX_LISTED).filter(|more| *more > 0) {
        rows.push([format!("({more} more: --json)"), String::new(), String::new(), String::new()]);
    }
    if !dropped.is_empty() {
        let disk_bytes = dropped.iter().map(|keyspace| keyspace.disk_bytes).fold(0, u64::saturating_add);
        rows.push([format!("(dropped: {})", dropped.len()), String::new(), String::new(), size(disk_bytes)]);
    }
    if rows.is_empty() {
        Ok(())
    } else {
        print_line(table::text_table(["keyspace", "rows", "keys and values", "on disk"], rows))
    }
}

/// The size of all files in the directory.
fn dir_bytes(dir: &Path) -> Result<u64> {
    let mut bytes = 0;
    let entries = std::fs::read_dir(dir).with_context(|| format!("cannot read {}", dir.display()))?;
    for entry in entries {
        let entry = entry?;
        let found = entry.metadata();
        // A file that was removed since the listing has no size.
        bytes += match found {
            Ok(found) if found.is_dir() => dir_bytes(&entry.path()).unwrap_or_default(),
            found => found.map_or(0, |found| found.len()),
        };
    }
    Ok(bytes)
}
