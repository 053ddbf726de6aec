//! The values that workloads write: a body that the workload reads, and a unique write id.
//!
//! A stored value is `body|session.txn.write|length` followed by `length` bytes of `~`. The padding
//! makes some values long enough for the data column, and `length` detects damage. A history has
//! the value without the padding.

/// Identifies one write of a run.
#[derive(Clone, Copy, Debug)]
pub struct WriteId {
    /// The session of the writer.
    pub session: u64,
    /// The number of the transaction in its session.
    pub txn: u64,
    /// The number of the write in its transaction.
    pub write: u64,
}

/// The value as stored, and the value as a history shows it.
pub fn encode_value(body: &str, write_id: WriteId, padding: usize) -> (Vec<u8>, String) {
    let WriteId { session, txn: number, write } = write_id;
    let shown = format!("{body}|{session}.{number}.{write}|{padding}");
    let mut stored = shown.clone().into_bytes();
    stored.resize(stored.len() + padding, b'~');
    (stored, shown)
}

/// A stored value as a history shows it. A value that no client can have written is shown as
/// damaged, so that the checker finds no writer for it.
pub fn decode_value(stored: &[u8]) -> String {
    let padding = stored.iter().rev().take_while(|byte| **byte == b'~').count();
    let shown = stored.get(..stored.len() - padding).and_then(|text| std::str::from_utf8(text).ok());
    match shown {
        Some(shown) if shown.rsplit('|').next() == Some(&padding.to_string()) => shown.to_owned(),
        _ => format!(
            "damaged: {} bytes, {}",
            stored.len(),
            stored.iter().take(64).map(|b| *b as char).collect::<String>()
        ),
    }
}

/// The body of a value from a history.
pub fn body(shown: &str) -> &str {
    shown.split('|').next().unwrap_or_default()
}

/// Describes who wrote a value from a history.
pub fn writer(shown: &str) -> String {
    let write_id = shown.split('|').nth(1).unwrap_or_default();
    match write_id.split('.').collect::<Vec<_>>()[..] {
        [session, number, _] => format!("written by session {session}, transaction {number}"),
        _ => "writer unknown".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAMP: WriteId = WriteId { session: 1, txn: 2, write: 3 };

    #[test]
    fn values_round_trip() {
        for padding in [0, 1, 1000] {
            let (stored, shown) = encode_value("body", STAMP, padding);
            assert_eq!(decode_value(&stored), shown);
            assert_eq!(body(&shown), "body");
            assert_eq!(writer(&shown), "written by session 1, transaction 2");
        }
    }

    #[test]
    fn damaged_values_are_shown_as_damaged() {
        let (mut stored, _) = encode_value("body", STAMP, 300);
        stored.pop();
        assert!(decode_value(&stored).starts_with("damaged"));
        let (mut stored, _) = encode_value("body", STAMP, 300);
        stored[200] = 0;
        assert!(decode_value(&stored).starts_with("damaged"));
    }
}
