//! `percolite retention`: shows or sets how long replaced versions are kept.

use std::time::Duration;

use anyhow::Result;
use serde_json::json;

use crate::duration;
use crate::open::StoreDir;
use crate::output::print_line;
use crate::table;

/// The command's options.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  percolite retention shop            start and retention of the history
  percolite retention shop --set 7d   keeps replaced versions for seven days
  percolite retention shop --disable  keeps no replaced versions, and removes the existing ones

The setting is stored, and applies to every process that opens the store without Builder::history_retention or \
Builder::disable_history. The history is read with get --at, scan --at, dump --at and versions.

A timestamp of --at is exact to the commit. A time is as exact as the store's clock. Each kill of a \
process moves the store's timestamps up to three seconds further ahead, until the clock has caught up; without history, a commit after a \
pause can have the time at which the pause began. Relative times (1h) are counted back from the newest timestamp if \
that is ahead of the clock, so with a history 0s is always the newest state.")]
pub struct Args {
    #[command(flatten)]
    pub store: StoreDir,
    /// Keep replaced versions for this time
    #[arg(long, value_name = "TIME", value_parser = duration::parse_duration)]
    set: Option<Duration>,
    /// Keep no replaced versions
    #[arg(long, conflicts_with = "set")]
    disable: bool,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

impl Args {
    pub fn changes(&self) -> bool {
        self.set.is_some() || self.disable
    }
}

pub fn run(args: &Args) -> Result<()> {
    let stats = if args.changes() {
        let store = args.store.open_with(|store| match args.set {
            Some(retention) => store.history_retention(retention),
            None => store.disable_history(),
        })?;
        store.close()?;
        args.store.open_read_only_quiet()?.stats()
    } else {
        args.store.open_read_only()?.stats()
    };
    let (start, retention) = (stats.history_start_ts, stats.history_retention);
    if args.json {
        return print_line(json!({
            "history_start_ts": start.map(|start| start.to_string()),
            "history_start_time": start.map(table::format_timestamp),
            "history_start_ms": start.map(percolite::Timestamp::millis),
            "history_retention_s": retention.map(|retention| retention.as_secs_f64()),
        }));
    }
    match (start, retention) {
        (Some(start), Some(retention)) => {
            let start = table::format_time(start.millis(), "%Y-%m-%d %H:%M:%S UTC");
            print_line(format_args!("history starts at {start}, retention {}", duration::format_duration(retention)))
        }
        _ => print_line("no history"),
    }
}
