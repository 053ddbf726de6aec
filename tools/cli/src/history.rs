//! `percolite history`: how long the past is kept.

use std::time::Duration;

use anyhow::Result;
use serde_json::json;

use crate::open::Folder;
use crate::output::say;
use crate::table;

/// The command's options.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  percolite history shop                 how far back the past can be read
  percolite history shop --keep 7d       every commit keeps what it replaces, for seven days
  percolite history shop --end           no longer; what was kept goes

This is the store's: whoever opens it goes on with it, unless Builder::history or Builder::no_history says otherwise.
Reading the past: percolite get --at, scan --at, dump --at, versions.")]
pub struct Args {
    #[command(flatten)]
    store: Folder,
    /// Keep replaced versions for so long
    #[arg(long, value_name = "TIME", value_parser = time)]
    keep: Option<Duration>,
    /// Keep none
    #[arg(long, conflicts_with = "keep")]
    end: bool,
    /// One JSON document
    #[arg(long)]
    json: bool,
}

pub fn run(args: &Args) -> Result<()> {
    if args.keep.is_some() || args.end {
        let store = args.store.write_with(|store| match args.keep {
            Some(time) => store.history(time),
            None => store.no_history(),
        })?;
        store.close()?;
    }
    let from = args.store.look()?.stats().history_from;
    if args.json {
        return say(
            json!({ "from": from.map(|from| from.to_string()), "from_ms": from.map(percolite::Timestamp::millis) }),
        );
    }
    match from {
        Some(from) => {
            say(format!("the past can be read from {} on", table::time(from.millis(), "%Y-%m-%d %H:%M:%S UTC")))
        }
        None => say("no history is kept"),
    }
}

fn time(text: &str) -> Result<Duration, String> {
    let read = |span: jiff::Span| {
        let days = jiff::SpanRelativeTo::days_are_24_hours();
        Duration::try_from(span.to_duration(days)?)
    };
    text.parse().and_then(read).map_err(|why| why.to_string())
}
