//! Numbers and times for tables.

/// A number with about three significant digits.
pub fn count(number: f64) -> String {
    match number {
        _ if number >= 9_999_500.0 => format!("{:.1} M", number / 1e6),
        _ if number >= 999_500.0 => format!("{:.2} M", number / 1e6),
        _ if number >= 9_995.0 => format!("{:.1} k", number / 1e3),
        _ if number >= 999.5 => format!("{:.2} k", number / 1e3),
        _ if number >= 99.5 => format!("{number:.0}"),
        _ => format!("{number:.1}"),
    }
}

/// A duration in the unit that suits it.
pub fn time(micros: f64) -> String {
    match micros {
        _ if micros >= 1e6 => format!("{:.2} s", micros / 1e6),
        _ if micros >= 1e3 => format!("{:.2} ms", micros / 1e3),
        _ if micros >= 10.0 => format!("{micros:.0} µs"),
        _ => format!("{micros:.2} µs"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_have_three_digits() {
        let cases = [
            (12_345_678.0, "12.3 M"),
            (1_234_567.0, "1.23 M"),
            (45_678.0, "45.7 k"),
            (9_999.0, "10.0 k"),
            (99.96, "100"),
            (1.25, "1.2"),
        ];
        for (number, text) in cases {
            assert_eq!(count(number), text);
        }
    }
}
