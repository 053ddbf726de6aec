//! `percolite repair`: copies the readable data of a damaged store into a new store.

use std::path::{Path, PathBuf};

use anyhow::Result;
use percolite::engine::storage::Column;
use percolite::{ErrorKind, Store};
use serde_json::json;

use crate::exit::Code;
use crate::interrupt::Interrupt;
use crate::new_dir::NewDir;
use crate::open;
use crate::output::{count, print_line};
use crate::progress::Progress;
use crate::tuning::Tuning;
use crate::verify::issue_json;

/// The maximum number of losses that are listed without `--json`.
const MAX_LISTED: usize = 50;

/// The command's options.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  percolite repair shop rescued        copies all readable data of `shop`, and lists the losses
  percolite repair shop rescued --json | jq '.losses[]'
  percolite verify rescued

Prefer a checkpoint or a dump if there is one: the copy need not be a consistent snapshot. The damaged directory is \
only read. The exit code is 0 if nothing is lost, else 6; the new store is created in both cases. History is not \
copied, which does not count as a loss.")]
pub struct Args {
    /// The directory of the damaged store
    #[arg(value_name = "OLD")]
    pub from: PathBuf,
    /// The directory of the new store, which must not exist
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
    open::reject_nested(&args.from, &args.to)?;
    let new_dir = NewDir::track(&args.to);
    let progress = Progress::items("rows");
    if progress.is_visible()
        && let Some(rows) = estimated_rows(&args.from)
    {
        progress.expect(rows, "about ");
    }
    let repaired = args.tuning.builder().repair(&args.from, &args.to, |so_far| {
        new_dir.mark_created();
        let losses = if so_far.is_complete() { String::new() } else { format!(", {}", losses(so_far.loss_count)) };
        progress.set(so_far.rows, format!("rows{losses}"));
        interrupt.control_flow()
    });
    drop(progress);
    let repaired = repaired.map_err(|err| match err.kind() {
        ErrorKind::Cancelled(_) => Interrupt::map_error(err, || format!("{} was removed", args.to.display())),
        _ => new_dir.error("nothing was repaired", err),
    })?;
    new_dir.keep();
    let (keyspaces, rows) = (count(repaired.keyspaces, "keyspace"), count(repaired.rows, "row"));
    if args.json {
        print_line(json!({
            "complete": repaired.is_complete(),
            "keyspaces": repaired.keyspaces,
            "rows": repaired.rows,
            "bytes": repaired.bytes,
            "history_skipped": repaired.history_skipped,
            "loss_count": repaired.loss_count,
            "losses": repaired.losses.iter().map(issue_json).collect::<Vec<_>>(),
        }))?;
    } else {
        let to = args.to.display();
        print_line(format_args!("{keyspaces}, {rows}, {} in {to}", indicatif::HumanBytes(repaired.bytes)))?;
        if repaired.history_skipped > 0 {
            let skipped = count(repaired.history_skipped, "replaced version");
            print_line(format_args!(
                "history is not repaired, {skipped} not copied; percolite retention {to} --set 7d starts a new history"
            ))?;
        }
        for loss in repaired.losses.iter().take(MAX_LISTED) {
            print_line(loss)?;
        }
        if repaired.losses.len() > MAX_LISTED {
            print_line("… and more: --json shows the first thousand")?;
        }
    }
    if repaired.is_complete() {
        return Ok(());
    }
    let losses = losses(repaired.loss_count);
    Err(Code::Corrupt.error(format!("{losses}; the readable data is in {}", args.to.display())))
}

/// The estimated number of rows, if the damaged store opens.
fn estimated_rows(from: &Path) -> Option<u64> {
    let store = Store::builder().read_only(true).open(from).ok()?;
    let columns = store.engine_stats().ok()?.columns;
    columns.iter().find(|column| column.column == Column::Write).map(|column| column.estimated_keys)
}

fn losses(found: u64) -> String {
    if found == 1 { "1 loss".into() } else { format!("{} losses", indicatif::HumanCount(found)) }
}
