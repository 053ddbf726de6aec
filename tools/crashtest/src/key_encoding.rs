//! The encoding of keys: stored keys have 1 byte to 8 kB.
//!
//! Histories and messages have short keys. A stored key may be longer: a zero byte and padding
//! follow the key. The length of the padding depends on the key alone, so every process and every
//! incarnation finds the row. The encoding keeps order and prefixes.

use std::hash::{DefaultHasher, Hasher as _};

/// The longest stored key.
const LONGEST: usize = 8_000;
/// The prefix of the keys that large transactions write. Only one of `LARGE_EVERY` of these keys
/// can have padding.
const LARGE: &str = "g/";
const LARGE_EVERY: u64 = 64;
/// Ends the shown part of a key; no shown key contains it.
const END: u8 = 0;

/// The stored key.
pub fn encode_key(key: &str) -> Vec<u8> {
    let mut stored = key.as_bytes().to_vec();
    let length = length_of(key);
    if stored.len() < length {
        stored.push(END);
        let padding = (stored.len()..length).map(|at| u8::try_from(at % 251).unwrap_or_default());
        stored.extend(padding);
    }
    stored
}

/// The shown part of a stored key.
pub fn decode_key(stored: &[u8]) -> String {
    let end = stored.iter().position(|byte| *byte == END).unwrap_or(stored.len());
    String::from_utf8_lossy(&stored[..end]).into_owned()
}

fn length_of(key: &str) -> usize {
    let mut hasher = DefaultHasher::new();
    hasher.write(key.as_bytes());
    let hash = hasher.finish();
    if key.starts_with(LARGE) && !hash.is_multiple_of(LARGE_EVERY) {
        return 0;
    }
    let sort = if key.starts_with(LARGE) { hash / LARGE_EVERY } else { hash };
    let varied = usize::try_from(hash >> 32).unwrap_or_default();
    match sort % 16 {
        0..=9 => 0,
        10..=12 => varied % 64,
        13 | 14 => varied % 1000,
        _ => LONGEST,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encoded_keys_keep_order_and_prefixes() {
        let keys: Vec<String> =
            (0..2000).map(|n| format!("{}/{n}", ["b", "m", "bb"][n % 3])).chain(["c".into()]).collect();
        let mut sorted: Vec<&String> = keys.iter().collect();
        sorted.sort();
        let rows: Vec<Vec<u8>> = sorted.iter().map(|key| encode_key(key)).collect();
        assert!(rows.is_sorted_by(|before, after| before < after));
        for (key, row) in sorted.iter().zip(&rows) {
            assert_eq!(decode_key(row), **key);
            assert!(row.starts_with(key.as_bytes()) && row.len() <= LONGEST);
        }
        let lengths = |length: usize| rows.iter().filter(|row| row.len() == length).count();
        assert!(lengths(LONGEST) > 50 && rows.iter().any(|row| row.len() == 1), "{}", lengths(LONGEST));
    }
}
