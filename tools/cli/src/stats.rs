//! `percolite stats`: how a store stands.

use std::path::Path;

use anyhow::{Context as _, Result};
use percolite::{Status, Store, Timestamp};
use serde_json::json;

use crate::open::{Folder, Seen};
use crate::output::say;
use crate::{table, told};

/// The command's options.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  percolite stats shop           size, keyspaces, locks, newest commit, bytes of each column
  percolite stats shop --json | jq .bytes_on_disk

A log that was damaged in the middle, and what of it is not read, stands below the table (--json: lost_log_bytes).

Of a store that a process has open it shows what that process says of it (commits, conflicts, syncs, who is live, who was slow), if it \
does: see `percolite top --help`. --json is then that document, with its age_s. \
Anything else only that process can tell.")]
pub struct Args {
    #[command(flatten)]
    pub store: Folder,
    /// One JSON document
    #[arg(long)]
    json: bool,
}

pub fn run(args: &Args) -> Result<()> {
    match args.store.look_in()? {
        Seen::Closed(store) => closed(args, &store),
        Seen::Open(status) => open(args, &status),
    }
}

fn open(args: &Args, status: &Status) -> Result<()> {
    if args.json {
        return say(told::document(status)?);
    }
    say(told::heading(status))?;
    told::tables(status).into_iter().try_for_each(say)
}

fn closed(args: &Args, store: &Store) -> Result<()> {
    let snapshot = store.snapshot()?;
    let keyspaces = snapshot.keyspaces()?.len();
    let mut locks = 0_u64;
    for lock in store.locks()? {
        lock?;
        locks += 1;
    }
    let bytes = bytes_in(&args.store.folder)?;
    let newest = snapshot.read_ts();
    let history_from = store.stats().history_from;
    let figures = store.engine_figures()?;
    if args.json {
        let columns = figures.columns.iter().map(|column| {
            json!({
                "column": format!("{:?}", column.column),
                "files": column.files,
                "files_at_level_0": column.files_at_level_0,
                "bytes": column.bytes,
                "cells": column.cells,
            })
        });
        return say(json!({
            "columns": columns.collect::<Vec<_>>(),
            "lost_log_bytes": store.lost_logs().iter().map(|lost| lost.bytes).sum::<u64>(),
            "log_bytes": figures.log_bytes,
            "pending_compaction_bytes": figures.pending_compaction_bytes,
            "keyspaces": keyspaces,
            "locks": locks,
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
        ["locks of dead processes".to_owned(), indicatif::HumanCount(locks).to_string()],
        ["nothing is newer than".to_owned(), time(newest)],
        ["history begins".to_owned(), history_from.map_or_else(|| "none is kept".into(), time)],
        ["in the log".to_owned(), indicatif::HumanBytes(figures.log_bytes).to_string()],
        ["still to be compacted".to_owned(), indicatif::HumanBytes(figures.pending_compaction_bytes).to_string()],
    ];
    for column in &figures.columns {
        let name = format!("{:?}", column.column).to_lowercase();
        let (bytes, cells) = (indicatif::HumanBytes(column.bytes), indicatif::HumanCount(column.cells));
        rows.push([format!("{name} column"), format!("{bytes} in {} tables, about {cells} cells", column.files)]);
    }
    say(table::texts(["store", ""], rows))?;
    store.lost_logs().iter().try_for_each(say)
}

fn bytes_in(folder: &Path) -> Result<u64> {
    let mut bytes = 0;
    let entries = std::fs::read_dir(folder).with_context(|| format!("cannot look into {}", folder.display()))?;
    for entry in entries {
        bytes += entry?.metadata().map_or(0, |found| found.len());
    }
    Ok(bytes)
}
