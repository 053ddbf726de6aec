//! Durations of a command line: read and shown.

use std::time::Duration;

/// In the words that `--keep` takes.
pub fn format_duration(keep: Duration) -> String {
    let days = jiff::SpanRelativeTo::days_are_24_hours();
    let seconds = i64::try_from(keep.as_secs()).ok().and_then(|seconds| jiff::Span::new().try_seconds(seconds).ok());
    let largest = jiff::SpanRound::new().largest(jiff::Unit::Day).relative(days);
    match seconds.and_then(|seconds| seconds.round(largest).ok()) {
        Some(span) if keep.subsec_nanos() == 0 => format!("{span:#}"),
        _ => format!("{keep:?}"),
    }
}

/// A time as a command line says it: `7d`, `1h 30m`, `200ms`.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let days = jiff::SpanRelativeTo::days_are_24_hours();
    // What jiff says of its own types helps no reader, and the years that it proposes have no fixed length.
    let time = text.parse().and_then(|span: jiff::Span| span.to_duration(days));
    let time = time.map_err(|_| "it must be a time such as 200ms, 90s, 1h 30m or 7d")?;
    Duration::try_from(time).map_err(|_| "it must not be negative".into())
}

/// A time as it stands in a sentence, in units that are read at a glance.
pub fn human_duration(time: Duration) -> String {
    let tenths = Duration::from_millis(u64::try_from(time.as_millis()).unwrap_or(u64::MAX) / 100 * 100);
    match time.as_millis() {
        _ if time.is_zero() => "0s".into(),
        0 => format!("{time:.0?}"),
        1..1000 => format!("{}ms", time.as_millis()),
        // Without a zero behind the point.
        1000..10_000 => format!("{tenths:?}"),
        _ => format_duration(Duration::from_secs(time.as_secs())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_shown_in_units_that_are_read_at_a_glance() {
        let shown = [0, 100, 467_300, 999_999, 3_000_000, 4_260_000, 90_500_000, 5_400_000_000, 86_400_000_000];
        let shown = shown.map(|micros| human_duration(Duration::from_micros(micros)));
        assert_eq!(shown, ["0s", "100µs", "467ms", "999ms", "3s", "4.2s", "1m 30s", "1h 30m", "1d"]);
        assert_eq!(human_duration(Duration::from_secs(31_708_800)), "367d");
    }
}
