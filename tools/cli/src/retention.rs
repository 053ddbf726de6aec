//! `percolite retention`: how long the past is kept.

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
  percolite retention shop                 how far back the past can be read
  percolite retention shop --set 7d       every commit keeps what it replaces, for seven days
  percolite retention shop --disable           no longer; what was kept goes

This is the store's: whoever opens it goes on with it, unless Builder::history_retention or Builder::disable_history says otherwise. \
Reading the past: percolite get --at, scan --at, dump --at, versions. A timestamp is exact to the commit. Times are as exact as the \
store's clock: the next life of a store whose process was killed begins up to three seconds ahead, and goes on so until the clock \
has caught up; and without history, a commit after a pause can bear the time at which the pause began. What is said as how long ago is counted back from the newest timestamp then; 0s is always all there is.")]
pub struct Args {
    #[command(flatten)]
    pub store: StoreDir,
    /// Keep replaced versions for so long
    #[arg(long, value_name = "TIME", value_parser = duration::time)]
    set: Option<Duration>,
    /// Keep none
    #[arg(long, conflicts_with = "keep")]
    disable: bool,
    /// One JSON document
    #[arg(long)]
    json: bool,
}

pub fn run(args: &Args) -> Result<()> {
    let stats = if args.set.is_some() || args.disable {
        let store = args.store.open_with(|store| match args.set {
            Some(time) => store.history_retention(time),
            None => store.disable_history(),
        })?;
        store.close()?;
        args.store.open_read_only_quiet()?.stats()
    } else {
        args.store.open_read_only()?.stats()
    };
    let (from, keep) = (stats.history_start_ts, stats.history_retention);
    if args.json {
        return print_line(json!({
            "from": from.map(|from| from.to_string()),
            "from_time": from.map(table::format_timestamp),
            "from_ms": from.map(percolite::Timestamp::millis),
            "keep_seconds": keep.map(|keep| keep.as_secs_f64()),
        }));
    }
    match (from, keep) {
        (Some(from), Some(keep)) => {
            let from = table::format_time(from.millis(), "%Y-%m-%d %H:%M:%S UTC");
            print_line(format_args!(
                "the past can be read from {from} on; replaced versions are kept for {}",
                duration::format_duration(keep)
            ))
        }
        _ => print_line("no history is kept"),
    }
}
