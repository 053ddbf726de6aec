//! `percolite stats`: how a store stands.

use std::path::Path;

use anyhow::{Context as _, Result};
use percolite::{KeyspaceStats, Store, StoreStatus, Timestamp};
use serde_json::json;

use crate::exit::Code;
use crate::open::{Folder, Seen};
use crate::output::say;
use crate::{table, told};

/// The command's options.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  percolite stats shop           size, row locks, newest commit, what is in each keyspace
  percolite stats shop --exact   counts every row, however long that takes
  percolite stats shop --json | jq .bytes_on_disk

Of large keyspaces a part is counted and the rest estimated by what it takes on the disk: such figures are marked with \"about\", and too \
large by what was replaced or deleted and not compacted yet. What is only in the log yet does not count there as on disk. A keyspace that was dropped keeps its space until nobody can read it any more.

Acknowledged commits that were lost from the log, and without which the store was opened, stand below the table \
(--json: lost_log_bytes). A store whose loss was not accepted does not open.

Of a store that a process has open it shows what that process says of it (commits, conflicts, syncs, who is live, who was slow), if it \
does: see `percolite top --help`. --json is then that document, with its age_s; of a lock by name the target is {\"name\": …} there, and the name alone in `locks --json`. \
Anything else only that process can tell.")]
pub struct Args {
    #[command(flatten)]
    pub store: Folder,
    /// Count all rows, and estimate none; of a store that is closed only
    #[arg(long)]
    pub exact: bool,
    /// One JSON document
    #[arg(long)]
    json: bool,
}

/// About so many rows are counted in all.
const COUNTED: u64 = 1_000_000;
/// And so many of each keyspace, if it has them.
const COUNTED_OF_EACH: u64 = 1000;
/// So many keyspaces are shown.
const SHOWN: usize = 100;

pub fn run(args: &Args) -> Result<()> {
    match args.store.look_in()? {
        Seen::Closed(store) => closed(args, &store),
        Seen::Open(status) => open(args, &status),
    }
}

fn open(args: &Args, status: &StoreStatus) -> Result<()> {
    if args.exact {
        return Err(Code::Busy.error("the store is open in another process, which alone can count its rows"));
    }
    if args.json {
        return say(told::document(status)?);
    }
    say(told::heading(status))?;
    told::tables(status).into_iter().try_for_each(say)?;
    if status.keyspaces.is_empty() {
        return Ok(());
    }
    let size = |bytes| indicatif::HumanBytes(bytes).to_string();
    let rows = status.keyspaces.iter().map(|keyspace| [keyspace.name.clone(), size(keyspace.stored_bytes)]);
    say(table::texts(["keyspace", "about, on disk"], rows.collect()))
}

fn closed(args: &Args, store: &Store) -> Result<()> {
    let snapshot = store.snapshot()?;
    let keyspaces = snapshot.keyspaces()?.len();
    let mut locks = 0_u64;
    for lock in store.row_locks()? {
        lock?;
        locks += 1;
    }
    let bytes = bytes_in(&args.store.folder)?;
    let newest = snapshot.read_ts();
    let history_from = store.stats().history_start_ts;
    let figures = store.engine_stats()?;
    let restored_upto = store.restored_ts()?;
    let spaces = keyspace_figures(store, args.exact)?;
    if args.json {
        let columns = figures.columns.iter().map(|column| {
            json!({
                "column": format!("{:?}", column.column),
                "files": column.sst_files,
                "files_at_level_0": column.level0_files,
                "bytes": column.sst_bytes,
                "cells": column.estimated_keys,
            })
        });
        return say(json!({
            "columns": columns.collect::<Vec<_>>(),
            "lost_log_bytes": store.data_losses().iter().map(|lost| lost.lost_bytes).sum::<u64>(),
            "log_bytes": figures.wal_bytes,
            "pending_compaction_bytes": figures.pending_compaction_bytes,
            "keyspaces": keyspaces,
            "keyspace_figures": spaces.iter().map(figures_json).collect::<Vec<_>>(),
            "restored_upto_ts": restored_upto.map(|upto| upto.to_string()),
            "row_locks": locks,
            "bytes_on_disk": bytes,
            "newest_ts": newest.to_string(),
            "newest_ms": newest.millis(),
            "newest_time": table::moment(newest),
            "history_from_ms": history_from.map(Timestamp::millis),
            "history_from_time": history_from.map(table::moment),
        }));
    }
    let time = |ts: Timestamp| table::time(ts.millis(), "%Y-%m-%d %H:%M:%S UTC");
    let mut rows = vec![
        ["on disk".to_owned(), indicatif::HumanBytes(bytes).to_string()],
        ["keyspaces".to_owned(), keyspaces.to_string()],
        ["row locks of dead processes".to_owned(), indicatif::HumanCount(locks).to_string()],
        ["nothing is newer than".to_owned(), time(newest)],
        ["history begins".to_owned(), history_from.map_or_else(|| "none is kept".into(), time)],
        ["in the log".to_owned(), indicatif::HumanBytes(figures.wal_bytes).to_string()],
        ["still to be compacted".to_owned(), indicatif::HumanBytes(figures.pending_compaction_bytes).to_string()],
    ];
    for column in &figures.columns {
        let name = format!("{:?}", column.column).to_lowercase();
        let (bytes, cells) = (indicatif::HumanBytes(column.sst_bytes), indicatif::HumanCount(column.estimated_keys));
        rows.push([format!("{name} column"), format!("{bytes} in {} tables, about {cells} cells", column.sst_files)]);
    }
    if let Some(upto) = restored_upto {
        rows.push(["restored, up to".to_owned(), upto.to_string()]);
    }
    say(table::texts(["store", ""], rows))?;
    say_keyspaces(&spaces)?;
    store.data_losses().iter().try_for_each(say)
}

pub fn figures_json(figures: &KeyspaceStats) -> serde_json::Value {
    json!({
        "name": figures.name,
        "rows": figures.name.as_ref().map(|_| figures.rows),
        "bytes": figures.name.as_ref().map(|_| figures.logical_bytes),
        "exact": figures.is_exact,
        "stored_bytes": figures.disk_bytes,
    })
}

/// Rows and sizes of the keyspaces; about so many rows are counted in all, unless all are to be.
pub fn keyspace_figures(store: &Store, exact: bool) -> Result<Vec<KeyspaceStats>> {
    let keyspaces = store.keyspace_names()?.len();
    let each = (COUNTED / u64::try_from(keyspaces).unwrap_or(u64::MAX).max(1)).max(COUNTED_OF_EACH);
    Ok(store.keyspace_stats(if exact { u64::MAX } else { each })?)
}

pub fn say_keyspaces(spaces: &[KeyspaceStats]) -> Result<()> {
    let size = |bytes| indicatif::HumanBytes(bytes).to_string();
    let (named, dropped): (Vec<_>, Vec<_>) = spaces.iter().partition(|figures| figures.name.is_some());
    let row = |figures: &&KeyspaceStats| {
        let about = if figures.is_exact { "" } else { "about " };
        let rows = format!("{about}{}", indicatif::HumanCount(figures.rows));
        let name = figures.name.clone().unwrap_or_default();
        [name, rows, format!("{about}{}", size(figures.logical_bytes)), size(figures.disk_bytes)]
    };
    let mut rows: Vec<_> = named.iter().take(SHOWN).map(row).collect();
    if let Some(more) = named.len().checked_sub(SHOWN).filter(|more| *more > 0) {
        rows.push([format!("({more} more: --json)"), String::new(), String::new(), String::new()]);
    }
    if !dropped.is_empty() {
        let stored = dropped.iter().map(|figures| figures.disk_bytes).fold(0, u64::saturating_add);
        rows.push([format!("({} dropped)", dropped.len()), String::new(), String::new(), size(stored)]);
    }
    if rows.is_empty() { Ok(()) } else { say(table::texts(["keyspace", "rows", "keys and values", "on disk"], rows)) }
}

fn bytes_in(folder: &Path) -> Result<u64> {
    let mut bytes = 0;
    let entries = std::fs::read_dir(folder).with_context(|| format!("cannot look into {}", folder.display()))?;
    for entry in entries {
        let entry = entry?;
        let found = entry.metadata();
        // Files go while they are counted.
        bytes += match found {
            Ok(found) if found.is_dir() => bytes_in(&entry.path()).unwrap_or_default(),
            found => found.map_or(0, |found| found.len()),
        };
    }
    Ok(bytes)
}
