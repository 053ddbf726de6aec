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

This is the store's: whoever opens it goes on with it, unless Builder::history or Builder::no_history says otherwise. \
Reading the past: percolite get --at, scan --at, dump --at, versions. A timestamp is exact to the commit. Times are as exact as the \
store's clock: the next life of a store whose process was killed begins up to three seconds ahead, and goes on so until the clock \
has caught up; and without history, a commit after a pause can bear the time at which the pause began. What is said as how long ago is counted back from the newest timestamp then; 0s is always all there is.")]
pub struct Args {
    #[command(flatten)]
    pub store: Folder,
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
    let stats = if args.keep.is_some() || args.end {
        let store = args.store.write_with(|store| match args.keep {
            Some(time) => store.history_retention(time),
            None => store.disable_history(),
        })?;
        store.close()?;
        args.store.look_silently()?.stats()
    } else {
        args.store.look()?.stats()
    };
    let (from, keep) = (stats.history_start_ts, stats.history_retention);
    if args.json {
        return say(json!({
            "from": from.map(|from| from.to_string()),
            "from_time": from.map(table::moment),
            "from_ms": from.map(percolite::Timestamp::millis),
            "keep_seconds": keep.map(|keep| keep.as_secs_f64()),
        }));
    }
    match (from, keep) {
        (Some(from), Some(keep)) => {
            let from = table::time(from.millis(), "%Y-%m-%d %H:%M:%S UTC");
            say(format_args!("the past can be read from {from} on; replaced versions are kept for {}", span(keep)))
        }
        _ => say("no history is kept"),
    }
}

/// In the words that `--keep` takes.
pub fn span(keep: Duration) -> String {
    let days = jiff::SpanRelativeTo::days_are_24_hours();
    let seconds = i64::try_from(keep.as_secs()).ok().and_then(|seconds| jiff::Span::new().try_seconds(seconds).ok());
    let largest = jiff::SpanRound::new().largest(jiff::Unit::Day).relative(days);
    match seconds.and_then(|seconds| seconds.round(largest).ok()) {
        Some(span) if keep.subsec_nanos() == 0 => format!("{span:#}"),
        _ => format!("{keep:?}"),
    }
}

/// A time as a command line says it: `7d`, `1h 30m`, `200ms`.
pub fn time(text: &str) -> Result<Duration, String> {
    let days = jiff::SpanRelativeTo::days_are_24_hours();
    // What jiff says of its own types helps no reader, and the years that it proposes have no fixed length.
    let time = text.parse().and_then(|span: jiff::Span| span.to_duration(days));
    let time = time.map_err(|_| "it must be a time such as 200ms, 90s, 1h 30m or 7d")?;
    Duration::try_from(time).map_err(|_| "it must not be negative".into())
}

/// A time as it stands in a sentence, in units that are read at a glance.
pub fn readable(time: Duration) -> String {
    let tenths = Duration::from_millis(u64::try_from(time.as_millis()).unwrap_or(u64::MAX) / 100 * 100);
    match time.as_millis() {
        _ if time.is_zero() => "0s".into(),
        0 => format!("{time:.0?}"),
        1..1000 => format!("{}ms", time.as_millis()),
        // Without a zero behind the point.
        1000..10_000 => format!("{tenths:?}"),
        _ => span(Duration::from_secs(time.as_secs())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_shown_in_units_that_are_read_at_a_glance() {
        let shown = [0, 100, 467_300, 999_999, 3_000_000, 4_260_000, 90_500_000, 5_400_000_000, 86_400_000_000];
        let shown = shown.map(|micros| readable(Duration::from_micros(micros)));
        assert_eq!(shown, ["0s", "100µs", "467ms", "999ms", "3s", "4.2s", "1m 30s", "1h 30m", "1d"]);
        assert_eq!(readable(Duration::from_secs(31_708_800)), "367d");
    }
}
