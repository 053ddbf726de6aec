//! Numbers and times for people.

/// The longest shown text of a violation; the rest is in the saved directory.
const DETAILS_MAX: usize = 2000;

/// 1234567 as `1,234,567`.
pub fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A number of things, as `1 gap` or `2 gaps`.
pub fn plural(number: usize, thing: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{} {thing}{plural}", count(number as u64))
}

/// A number with three significant digits.
pub fn number(value: f64) -> String {
    let size = value.abs();
    if size >= 100.0 || value.fract() == 0.0 {
        let sign = if value <= -0.5 { "-" } else { "" };
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the cast saturates")]
        return format!("{sign}{}", count(size.round() as u64));
    }
    let places = if size >= 10.0 {
        1
    } else if size >= 1.0 {
        2
    } else {
        3
    };
    let text = format!("{value:.places$}");
    text.trim_end_matches('0').trim_end_matches('.').into()
}

/// A time in seconds, in a suitable unit.
pub fn time(seconds: f64) -> String {
    if seconds < 1.0 {
        return format!("{} ms", number(seconds.max(0.0) * 1000.0));
    }
    if seconds < 60.0 {
        return format!("{seconds:.1} s");
    }
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the cast saturates")]
    let whole = seconds.round() as u64;
    let (hours, minutes) = (whole / 3600, whole / 60 % 60);
    if hours == 0 { format!("{minutes} min {:02} s", whole % 60) } else { format!("{hours} h {minutes:02} min") }
}

/// The beginning of a long text.
pub fn truncate(text: &str) -> String {
    match text.char_indices().nth(DETAILS_MAX) {
        None => text.into(),
        Some((end, _)) => {
            format!("{} … and {} more characters", &text[..end], count(text[end..].chars().count() as u64))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_times_are_readable() {
        assert_eq!(
            ["0", "999", "1,000", "1,234,567"],
            [0, 999, 1000, 1_234_567].map(count).each_ref().map(String::as_str)
        );
        assert_eq!(
            ["0", "0.125", "1.5", "12.3", "1,235", "-2"],
            [0.0, 0.125, 1.5, 12.34, 1234.6, -2.0].map(number).each_ref().map(String::as_str)
        );
        assert_eq!(
            ["0 ms", "12.5 ms", "2.0 s", "1 min 05 s", "4 h 00 min"],
            [0.0, 0.0125, 2.0, 65.0, 14400.0].map(time).each_ref().map(String::as_str)
        );
        assert_eq!(["1 gap", "2 gaps"], [1, 2].map(|number| plural(number, "gap")).each_ref().map(String::as_str));
    }

    #[test]
    fn long_text_is_cut_between_characters() {
        let text = truncate(&"ä".repeat(DETAILS_MAX + 5));
        assert!(text.starts_with(&"ä".repeat(DETAILS_MAX)) && text.ends_with("ä … and 5 more characters"));
        assert_eq!(truncate("short"), "short");
    }
}
