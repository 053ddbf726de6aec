//! `percolite repair`: what can still be read of a damaged store, in a new one.

use std::path::{Path, PathBuf};

use anyhow::Result;
use percolite::engine::storage::Column;
use percolite::{ErrorKind, Store};
use serde_json::json;

use crate::exit::Code;
use crate::interrupt::Interrupt;
use crate::made::Made;
use crate::open;
use crate::output::{count, say};
use crate::progress::Progress;
use crate::tuning::Tuning;
use crate::verify::problem_json;

/// So many losses are shown to people.
const SHOWN: usize = 50;

/// The command's options.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  percolite repair shop rescued        everything that can be read of `shop`, and what cannot
  percolite repair shop rescued --json | jq '.losses[]'
  percolite verify rescued

Where there is a checkpoint or a dump, prefer it: what is brought over need not be one moment of the store. The damaged \
folder is only read. The exit code is 0 if nothing is lost and 6 if anything is; the new store is there in both cases. The history, if any \
was kept, stays behind: that is told, and is no loss.")]
pub struct Args {
    /// The damaged store's folder
    #[arg(value_name = "OLD")]
    from: PathBuf,
    /// The new store's folder, which must not be there
    #[arg(value_name = "NEW")]
    to: PathBuf,
    #[command(flatten)]
    tuning: Tuning,
    /// One JSON document
    #[arg(long)]
    json: bool,
}

pub fn run(args: &Args) -> Result<()> {
    let interrupt = Interrupt::watch()?;
    open::refuse_inside(&args.from, &args.to)?;
    let made = Made::unless_there(&args.to);
    let progress = Progress::of("rows");
    if progress.is_seen()
        && let Some(rows) = rows_about(&args.from)
    {
        progress.expect(rows, "about ");
    }
    let repaired = args.tuning.builder().repair(&args.from, &args.to, |so_far| {
        made.is_ours();
        let losses = if so_far.is_complete() { String::new() } else { format!(", {}", losses(so_far.loss_count)) };
        progress.at(so_far.rows, format!("rows{losses}"));
        interrupt.flow()
    });
    drop(progress);
    let repaired = repaired.map_err(|why| match why.kind() {
        ErrorKind::Cancelled(_) => Interrupt::told(why, || format!("nothing is left of {}", args.to.display())),
        _ => made.failed("nothing was repaired", why),
    })?;
    made.keep();
    let (keyspaces, rows) = (count(repaired.keyspaces, "keyspace"), count(repaired.rows, "row"));
    if args.json {
        say(json!({
            "whole": repaired.is_complete(),
            "keyspaces": repaired.keyspaces,
            "rows": repaired.rows,
            "bytes": repaired.bytes,
            "versions_left": repaired.history_skipped,
            "losses_found": repaired.loss_count,
            "losses": repaired.losses.iter().map(problem_json).collect::<Vec<_>>(),
        }))?;
    } else {
        say(format_args!("{keyspaces}, {rows}, {} in {}", indicatif::HumanBytes(repaired.bytes), args.to.display()))?;
        if repaired.history_skipped > 0 {
            let left = count(repaired.history_skipped, "replaced version");
            let stay = if repaired.history_skipped == 1 { "stays" } else { "stay" };
            say(format_args!(
                "{left} of the history {stay} behind; percolite history {} --keep 7d has one begin",
                args.to.display()
            ))?;
        }
        for loss in repaired.losses.iter().take(SHOWN) {
            say(loss)?;
        }
        if repaired.losses.len() > SHOWN {
            say("… and more: --json shows the first thousand")?;
        }
    }
    if repaired.is_complete() {
        return Ok(());
    }
    let what = format!("{}; what could be read is in {}", losses(repaired.loss_count), args.to.display());
    Err(Code::Damaged.error(what))
}

/// How many rows there are to bring over, if RocksDB can open what is left.
fn rows_about(from: &Path) -> Option<u64> {
    let store = Store::builder().read_only(true).open(from).ok()?;
    let columns = store.engine_stats().ok()?.columns;
    columns.iter().find(|column| column.column == Column::Write).map(|column| column.estimated_keys)
}

fn losses(found: u64) -> String {
    if found == 1 { "1 loss".into() } else { format!("{} losses", indicatif::HumanCount(found)) }
}
