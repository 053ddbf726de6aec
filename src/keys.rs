//! Keys on disk: how rows and timestamps become the keys of the columns.
//!
//! The lock and write columns use a row's bytes as they are: keyspace id (4 bytes, big-endian),
//! then the user key. The data and history columns have several cells for one row, so a timestamp
//! follows the user key. In these columns the user key is escaped: each zero byte becomes `00 ff`,
//! and `00 01` ends the key. Escaped keys sort as the keys do, and cells of `a`, `a\0` and
//! `a\0\xff` never interleave. History inverts its timestamps, so the newest cell comes first.

use crate::row::{KeyspaceId, RowKey};
use crate::timestamp::Timestamp;

const KEYSPACE_BYTES: usize = size_of::<u32>();
const TIMESTAMP_BYTES: usize = size_of::<u64>();
const ESCAPE: u8 = 0x00;
const ESCAPED_ZERO: u8 = 0xff;
const END: u8 = 0x01;

/// Key of an out-of-line value in the data column.
pub fn data_key(row: &RowKey, start_ts: Timestamp) -> Vec<u8> {
    with_timestamp(row, start_ts.to_u64())
}

/// Key of a transaction record or a replaced version in the history column.
pub fn history_key(row: &RowKey, ts: Timestamp) -> Vec<u8> {
    with_timestamp(row, !ts.to_u64())
}

/// Decodes a data key; `None` if it is invalid.
pub fn decode_data_key(key: &[u8]) -> Option<(RowKey, Timestamp)> {
    let (row, number) = split(key)?;
    Some((row, Timestamp::from_u64(number)))
}

/// Decodes a history key; `None` if it is invalid.
pub fn decode_history_key(key: &[u8]) -> Option<(RowKey, Timestamp)> {
    let (row, number) = split(key)?;
    Some((row, Timestamp::from_u64(!number)))
}

/// Start and end of a keyspace's keys, in any column; the end is exclusive.
pub fn keyspace_range(id: KeyspaceId) -> (Vec<u8>, Vec<u8>) {
    // The last keyspace id has no successor. 64 KiB of `ff` are above all its keys, because no key
    // is so long.
    let end = id.0.checked_add(1).map_or(vec![0xff; 1 << 16], |next| next.to_be_bytes().to_vec());
    (id.0.to_be_bytes().to_vec(), end)
}

/// The first key after all keys with the prefix; `None` if there is none.
pub fn prefix_successor(prefix: &[u8]) -> Option<Vec<u8>> {
    let last = prefix.iter().rposition(|byte| *byte != 0xff)?;
    let mut end = prefix.get(..=last)?.to_vec();
    if let Some(byte) = end.last_mut() {
        *byte += 1;
    }
    Some(end)
}

fn with_timestamp(row: &RowKey, number: u64) -> Vec<u8> {
    let mut key = Vec::with_capacity(row.as_bytes().len() + 2 + TIMESTAMP_BYTES + 8);
    key.extend_from_slice(&row.keyspace_id().0.to_be_bytes());
    for byte in row.user_key() {
        key.push(*byte);
        if *byte == ESCAPE {
            key.push(ESCAPED_ZERO);
        }
    }
    key.extend_from_slice(&[ESCAPE, END]);
    key.extend_from_slice(&number.to_be_bytes());
    key
}

fn split(bytes: &[u8]) -> Option<(RowKey, u64)> {
    let (keyspace, mut rest) = bytes.split_first_chunk::<KEYSPACE_BYTES>()?;
    let mut key = Vec::with_capacity(rest.len());
    loop {
        let (byte, after) = rest.split_first()?;
        rest = after;
        if *byte != ESCAPE {
            key.push(*byte);
            continue;
        }
        let (mark, after) = rest.split_first()?;
        rest = after;
        match *mark {
            ESCAPED_ZERO => key.push(ESCAPE),
            END => break,
            _ => return None,
        }
    }
    let number = u64::from_be_bytes(rest.try_into().ok()?);
    Some((RowKey::new(KeyspaceId(u32::from_be_bytes(*keyspace)), &key), number))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn row(key: &[u8]) -> RowKey {
        RowKey::new(KeyspaceId(7), key)
    }

    #[test]
    fn cells_of_prefix_rows_never_interleave() {
        let rows = [row(b"a"), row(b"a\0"), row(b"a\0\xff"), row(b"a\0\xff\0"), row(b"a\x01"), row(b"b")];
        for pair in rows.windows(2) {
            assert!(data_key(&pair[0], Timestamp::MAX) < data_key(&pair[1], Timestamp::ZERO), "{pair:?}");
            assert!(history_key(&pair[0], Timestamp::ZERO) < history_key(&pair[1], Timestamp::MAX), "{pair:?}");
        }
    }

    #[test]
    fn a_prefix_of_ff_bytes_has_no_successor() {
        assert_eq!(prefix_successor(b"\xff\xff"), None);
        assert_eq!(prefix_successor(b"a\xff"), Some(b"b".to_vec()));
        assert_eq!(prefix_successor(b""), None);
    }

    proptest! {
        #[test]
        fn keys_round_trip(key: Vec<u8>, ts: u64) {
            let ts = Timestamp::from_u64(ts);
            prop_assert_eq!(decode_data_key(&data_key(&row(&key), ts)), Some((row(&key), ts)));
            prop_assert_eq!(decode_history_key(&history_key(&row(&key), ts)), Some((row(&key), ts)));
        }

        #[test]
        fn keys_sort_by_row_then_timestamp(a in "[\\x00\\x01ab]{0,4}", b in "[\\x00\\x01ab]{0,4}", s: u64, t: u64) {
            let (a, b) = (row(a.as_bytes()), row(b.as_bytes()));
            let (s, t) = (Timestamp::from_u64(s), Timestamp::from_u64(t));
            prop_assert_eq!(data_key(&a, s).cmp(&data_key(&b, t)), a.cmp(&b).then(s.cmp(&t)));
            prop_assert_eq!(history_key(&a, s).cmp(&history_key(&b, t)), a.cmp(&b).then(t.cmp(&s)));
        }

        #[test]
        fn decoding_a_key_never_panics(bytes: Vec<u8>) {
            // The encoding is unique: what decodes is re-encoded to the same bytes.
            if let Some((row, ts)) = decode_data_key(&bytes) {
                prop_assert_eq!(data_key(&row, ts), bytes.clone());
            }
            if let Some((row, ts)) = decode_history_key(&bytes) {
                prop_assert_eq!(history_key(&row, ts), bytes);
            }
        }

        #[test]
        fn prefix_successor_is_a_tight_bound(prefix: Vec<u8>, tail: Vec<u8>) {
            if let Some(end) = prefix_successor(&prefix) {
                let mut inside = prefix.clone();
                inside.extend(tail);
                prop_assert!(inside < end);
                prop_assert!(prefix < end);
            }
        }
    }
}
