//! Durations on the command line: parsed and printed.

use std::time::Duration;

/// An exact duration, in the format that [`parse_duration`] reads.
pub fn format_duration(duration: Duration) -> String {
    let days = jiff::SpanRelativeTo::days_are_24_hours();
    let seconds = i64::try_from(duration.as_secs()).ok();
    let span = seconds.and_then(|seconds| jiff::Span::new().try_seconds(seconds).ok());
    let largest = jiff::SpanRound::new().largest(jiff::Unit::Day).relative(days);
    match span.and_then(|span| span.round(largest).ok()) {
        Some(span) if duration.subsec_nanos() == 0 => format!("{span:#}"),
        _ => format!("{duration:?}"),
    }
}

/// Parses a duration: `7d`, `1h 30m`, `200ms`.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let days = jiff::SpanRelativeTo::days_are_24_hours();
    let duration = text.parse().and_then(|span: jiff::Span| span.to_duration(days));
    // jiff's error is about its own types, and proposes years, which have no fixed length.
    let duration = duration.map_err(|_| "it must be a time such as 200ms, 90s, 1h 30m or 7d")?;
    Duration::try_from(duration).map_err(|_| "it must not be negative".into())
}

/// A rounded duration, in units that are easy to read.
pub fn human_duration(duration: Duration) -> String {
    let tenths = Duration::from_millis(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX) / 100 * 100);
    match duration.as_millis() {
        _ if duration.is_zero() => "0s".into(),
        0 => format!("{duration:.0?}"),
        1..1000 => format!("{}ms", duration.as_millis()),
        // Formatted without a precision, so that three seconds are "3s", not "3.0s".
        1000..10_000 => format!("{tenths:?}"),
        _ => format_duration(Duration::from_secs(duration.as_secs())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_printed_in_readable_units() {
        let shown = [0, 100, 467_300, 999_999, 3_000_000, 4_260_000, 90_500_000, 5_400_000_000, 86_400_000_000];
        let shown = shown.map(|micros| human_duration(Duration::from_micros(micros)));
        assert_eq!(shown, ["0s", "100µs", "467ms", "999ms", "3s", "4.2s", "1m 30s", "1h 30m", "1d"]);
        assert_eq!(human_duration(Duration::from_secs(31_708_800)), "367d");
    }
}
