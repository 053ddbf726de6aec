//! What the workloads write: a body that means something to them, and a stamp that no other write has.
//!
//! A value on disk is `body|session.number.write|length` and then as many `~` as the length says, so that values can be
//! long enough to live in the data column, and a damaged one is noticed. A history keeps everything but the filling.

/// Who wrote a value.
#[derive(Clone, Copy, Debug)]
pub struct WriteId {
    /// The session.
    pub session: u64,
    /// Which of its transactions.
    pub txn: u64,
    /// Which write of that transaction.
    pub write: u64,
}

/// A value as it is stored, and as a history shows it.
pub fn encode_value(body: &str, write_id: WriteId, padding: usize) -> (Vec<u8>, String) {
    let WriteId { session, txn: number, write } = write_id;
    let shown = format!("{body}|{session}.{number}.{write}|{padding}");
    let mut stored = shown.clone().into_bytes();
    stored.resize(stored.len() + padding, b'~');
    (stored, shown)
}

/// A stored value as a history shows it. One that nobody can have written so is shown as damaged, which no write matches.
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

/// The body of a value that a history shows.
pub fn body(shown: &str) -> &str {
    shown.split('|').next().unwrap_or_default()
}

/// Who wrote a value that a history shows.
pub fn writer(shown: &str) -> String {
    let write_id = shown.split('|').nth(1).unwrap_or_default();
    match write_id.split('.').collect::<Vec<_>>()[..] {
        [session, number, _] => format!("written by session {session} as its transaction {number}"),
        _ => "written by nobody known".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAMP: WriteId = WriteId { session: 1, txn: 2, write: 3 };

    #[test]
    fn what_is_sealed_is_unsealed() {
        for padding in [0, 1, 1000] {
            let (stored, shown) = encode_value("body", STAMP, padding);
            assert_eq!(decode_value(&stored), shown);
            assert_eq!(body(&shown), "body");
            assert_eq!(writer(&shown), "written by session 1 as its transaction 2");
        }
    }

    #[test]
    fn a_damaged_value_is_shown_as_what_it_is() {
        let (mut stored, _) = encode_value("body", STAMP, 300);
        stored.pop();
        assert!(decode_value(&stored).starts_with("damaged"));
        let (mut stored, _) = encode_value("body", STAMP, 300);
        stored[200] = 0;
        assert!(decode_value(&stored).starts_with("damaged"));
    }
}
