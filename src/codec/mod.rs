//! Records on disk: only this module encodes and decodes them.
//!
//! A record is one byte of format version, then bincode with variable-length integers. Nearly all
//! versions have an inline value; these have a format of their own ([`InlineWrite`]). A record with
//! several timestamps stores one of them, and the distances of the others from it.
//!
//! Golden bytes in the tests fix the format. A change of the format needs a new build tag, in
//! `format_line`.

mod put;

use bincode::config::{Configuration, Limit, LittleEndian, Varint, standard};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

pub use self::put::InlineWrite;
use self::put::{INLINE_WRITE_TAG, ts_delta};
use crate::owner_id::OwnerId;
use crate::row::{Lock, LockType, RowKey, StoredValue, TxnId, TxnRecord, Value, WriteRecord};
use crate::timestamp::Timestamp;

const VERSION: u8 = 1;
const CONFIG: Configuration = standard();
/// Limits the memory that decoding claims. Memory for a damaged length is claimed before the bytes
/// turn out to be missing; without the limit bincode would panic. Valid values stay within it: the
/// longest is encoded in 32 MiB, and claims at most 16 times as much (for `u128`s of one byte).
const READ_CONFIG: Configuration<LittleEndian, Varint, Limit<{ 512 << 20 }>> = standard().with_limit();

/// Why bytes are not a valid record.
#[derive(Debug, thiserror::Error)]
pub enum CodecError {
    /// The record's version byte is unknown to this program.
    #[error("record has unknown format version {0}")]
    UnknownVersion(u8),
    /// The bytes do not decode, or some bytes are left over.
    #[error("record of {0} bytes does not decode: {1}")]
    Malformed(usize, String),
    /// The value cannot be encoded, or its own serialization fails.
    #[error("serialization failed: {0}")]
    Unserializable(String),
}

/// A record that a column stores.
pub trait Record: Sized {
    /// Appends the record's bytes.
    fn encode(&self, bytes: &mut Vec<u8>);
    /// Decodes the record; all bytes must belong to it.
    fn decode(bytes: &[u8]) -> Result<Self, CodecError>;
}

/// An entry of the history column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HistoryEntry {
    /// How a transaction ended at the row. The cell's key has the transaction's `start_ts`.
    Ended(TxnRecord),
    /// A version of the row that was replaced. The cell's key has its commit timestamp.
    Version(WriteRecord),
}

#[derive(Serialize, Deserialize)]
struct StoredWrite {
    commit_ts: Timestamp,
    start_ts_delta: u64,
    owner: OwnerId,
    value: Option<StoredValue>,
    lock_only_delta: Option<u64>,
}

#[derive(Serialize, Deserialize)]
struct StoredLock {
    start_ts: Timestamp,
    owner: OwnerId,
    primary: RowKey,
    write_seq: u32,
    ttl_ms: u64,
    min_commit_delta: u64,
    lock_type: LockType,
}

#[derive(Serialize, Deserialize)]
enum StoredHistory {
    Ended(TxnRecord),
    Version(StoredWrite),
}

#[derive(Serialize)]
struct BorrowedWrite<'a> {
    commit_ts: Timestamp,
    start_ts_delta: u64,
    owner: OwnerId,
    value: &'a Option<StoredValue>,
    lock_only_delta: Option<u64>,
}

#[derive(Serialize)]
struct BorrowedLock<'a> {
    start_ts: Timestamp,
    owner: OwnerId,
    primary: &'a RowKey,
    write_seq: u32,
    ttl_ms: u64,
    min_commit_delta: u64,
    lock_type: &'a LockType,
}

#[derive(Serialize)]
enum BorrowedHistory<'a> {
    Ended(TxnRecord),
    Version(BorrowedWrite<'a>),
}

impl<'a> From<&'a WriteRecord> for BorrowedWrite<'a> {
    fn from(record: &'a WriteRecord) -> Self {
        Self {
            commit_ts: record.commit_ts,
            start_ts_delta: ts_delta(record.txn.start_ts, record.commit_ts),
            owner: record.txn.owner,
            value: &record.value,
            lock_only_delta: record.lock_only_ts.map(|lock_only_ts| ts_delta(record.commit_ts, lock_only_ts)),
        }
    }
}

impl From<StoredWrite> for WriteRecord {
    fn from(stored: StoredWrite) -> Self {
        let start_ts = Timestamp::from_u64(stored.commit_ts.to_u64().wrapping_sub(stored.start_ts_delta));
        let lock_only_ts = |delta| Timestamp::from_u64(stored.commit_ts.to_u64().wrapping_add(delta));
        Self {
            lock_only_ts: stored.lock_only_delta.map(lock_only_ts),
            commit_ts: stored.commit_ts,
            txn: TxnId { start_ts, owner: stored.owner },
            value: stored.value,
        }
    }
}

impl Record for WriteRecord {
    fn encode(&self, bytes: &mut Vec<u8>) {
        match (&self.value, self.lock_only_ts) {
            (Some(StoredValue::Inline(Value(value))), None) => {
                let Self { commit_ts, txn, .. } = *self;
                InlineWrite { commit_ts, start_ts: txn.start_ts, owner: txn.owner, value }.encode(bytes);
            }
            _ => encode_value(&BorrowedWrite::from(self), bytes),
        }
    }

    fn decode(bytes: &[u8]) -> Result<Self, CodecError> {
        match InlineWrite::decode(bytes) {
            Some(InlineWrite { commit_ts, start_ts, owner, value }) => Ok(Self {
                commit_ts,
                txn: TxnId { start_ts, owner },
                value: Some(StoredValue::Inline(value.into())),
                lock_only_ts: None,
            }),
            None if bytes.first() == Some(&INLINE_WRITE_TAG) => {
                Err(CodecError::Malformed(bytes.len(), "record is truncated".into()))
            }
            None => decode_value::<StoredWrite>(bytes).map(Into::into),
        }
    }
}

impl Record for Lock {
    fn encode(&self, bytes: &mut Vec<u8>) {
        let stored = BorrowedLock {
            start_ts: self.txn.start_ts,
            owner: self.txn.owner,
            primary: &self.primary,
            write_seq: self.write_seq,
            ttl_ms: self.ttl_ms,
            min_commit_delta: ts_delta(self.txn.start_ts, self.min_commit_ts),
            lock_type: &self.lock_type,
        };
        encode_value(&stored, bytes);
    }

    fn decode(bytes: &[u8]) -> Result<Self, CodecError> {
        let stored: StoredLock = decode_value(bytes)?;
        let min_commit_ts = stored.start_ts.to_u64().wrapping_add(stored.min_commit_delta);
        Ok(Self {
            txn: TxnId { start_ts: stored.start_ts, owner: stored.owner },
            primary: stored.primary,
            lock_type: stored.lock_type,
            write_seq: stored.write_seq,
            ttl_ms: stored.ttl_ms,
            min_commit_ts: Timestamp::from_u64(min_commit_ts),
        })
    }
}

impl Record for HistoryEntry {
    fn encode(&self, bytes: &mut Vec<u8>) {
        let stored = match self {
            Self::Ended(status) => BorrowedHistory::Ended(*status),
            Self::Version(record) => BorrowedHistory::Version(record.into()),
        };
        encode_value(&stored, bytes);
    }

    fn decode(bytes: &[u8]) -> Result<Self, CodecError> {
        Ok(match decode_value(bytes)? {
            StoredHistory::Ended(status) => Self::Ended(status),
            StoredHistory::Version(stored) => Self::Version(stored.into()),
        })
    }
}

/// Encodes a value that is not a [`Record`], such as a lease row or a block of a dump.
pub fn encode_value<T: Serialize>(record: &T, bytes: &mut Vec<u8>) {
    if let Err(error) = try_encode_value(record, bytes) {
        unreachable!("invariant: every record type can be encoded into memory: {error}");
    }
}

/// Encodes a value of a user's type, whose serialization may fail.
pub fn try_encode_value<T: Serialize>(record: &T, bytes: &mut Vec<u8>) -> Result<(), CodecError> {
    bytes.push(VERSION);
    let mut tail = VecWriter(bytes);
    bincode::serde::encode_into_writer(record, &mut tail, CONFIG)
        .map_err(|error| CodecError::Unserializable(error.to_string()))
}

/// The inverse of [`encode_value()`].
pub fn decode_value<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, CodecError> {
    let malformed = |reason: String| CodecError::Malformed(bytes.len(), reason);
    let (version, body) = bytes.split_first().ok_or_else(|| malformed("record is empty".into()))?;
    if *version != VERSION {
        return Err(CodecError::UnknownVersion(*version));
    }
    let (record, used) =
        bincode::serde::borrow_decode_from_slice(body, READ_CONFIG).map_err(|error| malformed(error.to_string()))?;
    if used != body.len() {
        return Err(malformed(format!("{} bytes are left over", body.len() - used)));
    }
    Ok(record)
}

struct VecWriter<'a>(&'a mut Vec<u8>);

impl bincode::enc::write::Writer for VecWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> Result<(), bincode::error::EncodeError> {
        self.0.extend_from_slice(bytes);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::row::KeyspaceId;

    fn bytes_of<T: Record>(record: &T) -> Vec<u8> {
        let mut bytes = Vec::new();
        record.encode(&mut bytes);
        bytes
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().fold(String::new(), |hex, byte| hex + &format!("{byte:02x}"))
    }

    fn txn() -> TxnId {
        TxnId { start_ts: Timestamp::from_u64(0x0665_0000_0000_0001), owner: OwnerId::from_u64(0x0b0d_4f42_1fc0_0007) }
    }

    fn put(value: StoredValue) -> WriteRecord {
        WriteRecord {
            commit_ts: Timestamp::from_u64(0x0665_0000_0000_0003),
            txn: txn(),
            value: Some(value),
            lock_only_ts: None,
        }
    }

    fn lock(lock_type: LockType) -> Lock {
        Lock {
            txn: txn(),
            primary: RowKey::new(KeyspaceId(2), b"alice"),
            lock_type,
            write_seq: 1,
            ttl_ms: 3000,
            min_commit_ts: txn().start_ts.next(),
        }
    }

    #[test]
    fn golden_bytes_of_record_1() {
        let inline = || StoredValue::Inline(b"v1".as_slice().into());
        let golden = [
            (bytes_of(&put(StoredValue::OutOfLine)), "01fd030000000000650602fd0700c01f424f0d0b010100"),
            (bytes_of(&WriteRecord { value: None, ..put(inline()) }), "01fd030000000000650602fd0700c01f424f0d0b0000"),
            (
                bytes_of(&lock(LockType::Put(inline()))),
                "01fd0100000000006506fd0700c01f424f0d0b0900000002616c69636501fbb80b010000027631",
            ),
            (
                bytes_of(&lock(LockType::Put(StoredValue::OutOfLine))),
                "01fd0100000000006506fd0700c01f424f0d0b0900000002616c69636501fbb80b010001",
            ),
            (
                bytes_of(&lock(LockType::Delete)),
                "01fd0100000000006506fd0700c01f424f0d0b0900000002616c69636501fbb80b0101",
            ),
            (
                bytes_of(&lock(LockType::LockOnly)),
                "01fd0100000000006506fd0700c01f424f0d0b0900000002616c69636501fbb80b0102",
            ),
            (bytes_of(&HistoryEntry::Ended(TxnRecord::RolledBack)), "010001"),
            (bytes_of(&HistoryEntry::Ended(TxnRecord::Committed(put(inline()).commit_ts))), "010000fd0300000000006506"),
            (bytes_of(&HistoryEntry::Version(put(inline()))), "0101fd030000000000650602fd0700c01f424f0d0b010002763100"),
        ];
        for (index, (bytes, expected)) in golden.iter().enumerate() {
            assert_eq!(hex(bytes), *expected, "record {index}");
        }
    }

    #[test]
    fn golden_bytes_of_record_2() {
        let record = put(StoredValue::Inline(b"v1".as_slice().into()));
        assert_eq!(hex(&bytes_of(&record)), "02810300000000006506020700c0c1e7f5b5017631");
        let of_its_time = OwnerId::new(record.txn.start_ts.millis(), 0x0012_3456);
        let usual = WriteRecord { txn: TxnId { owner: of_its_time, ..txn() }, ..record };
        assert_eq!(hex(&bytes_of(&usual)), "02310300000000006506025634127631");
    }

    #[test]
    fn a_wrong_length_does_not_allocate() {
        for length in [b"\xfc\xff\xff\xff\xff".as_slice(), b"\xfd\xff\xff\xff\xff\xff\xff\xff\xff", b"\xfb\xff\xff"] {
            let bytes = [&[VERSION], length].concat();
            assert!(decode_value::<String>(&bytes).is_err());
            assert!(decode_value::<Vec<u64>>(&bytes).is_err());
            assert!(decode_value::<Vec<String>>(&bytes).is_err());
            assert!(decode_value::<Value>(&bytes).is_err());
        }
    }

    #[test]
    fn the_read_limit_admits_the_longest_value() {
        let numbers = vec![1_u128; 2 << 20];
        let mut bytes = Vec::new();
        try_encode_value(&numbers, &mut bytes).unwrap();
        assert_eq!(decode_value::<Vec<u128>>(&bytes).unwrap(), numbers);
        // The longest value has 32 MiB, at most 16 times as many bytes as this one. If it consists
        // of such numbers, they take at most 16 times as much memory, within the 512 MiB.
        assert!(bytes.len() * 16 >= 32 << 20);
        assert!(size_of_val(numbers.as_slice()) * 16 <= 512 << 20);
    }

    #[test]
    fn unknown_versions_and_leftover_bytes_are_refused() {
        let mut bytes = bytes_of(&put(StoredValue::OutOfLine));
        bytes[0] = 9;
        assert!(matches!(WriteRecord::decode(&bytes), Err(CodecError::UnknownVersion(9))));
        bytes[0] = VERSION;
        bytes.push(0);
        assert!(matches!(WriteRecord::decode(&bytes), Err(CodecError::Malformed(..))));
        assert!(matches!(WriteRecord::decode(&[]), Err(CodecError::Malformed(..))));
    }

    prop_compose! {
        fn any_txn()(start_ts: u64, owner: u64) -> TxnId {
            TxnId { start_ts: Timestamp::from_u64(start_ts), owner: OwnerId::from_u64(owner) }
        }
    }

    fn any_value() -> impl Strategy<Value = StoredValue> {
        prop_oneof![any::<Vec<u8>>().prop_map(|v| StoredValue::Inline(v.into())), Just(StoredValue::OutOfLine)]
    }

    prop_compose! {
        fn any_shape()(commit_ts: u64, txn in any_txn(), value in prop::option::of(any_value()), held: Option<u64>) -> WriteRecord {
            WriteRecord { commit_ts: Timestamp::from_u64(commit_ts), txn, value, lock_only_ts: held.map(Timestamp::from_u64) }
        }
    }

    prop_compose! {
        /// Records whose numbers have all possible lengths.
        fn any_inline()(commit_ts: u64, took in 0_u32..64, owner in 0_u32..64, owner_bits: u64, value: Vec<u8>) -> WriteRecord {
            let start_ts = Timestamp::from_u64(commit_ts.wrapping_sub(u64::MAX >> took));
            let owner = OwnerId::from_u64(OwnerId::new(start_ts.millis(), 0).to_u64() ^ owner_bits >> owner);
            let (commit_ts, txn) = (Timestamp::from_u64(commit_ts), TxnId { start_ts, owner });
            WriteRecord { commit_ts, txn, value: Some(StoredValue::Inline(value.into())), lock_only_ts: None }
        }
    }

    fn any_write() -> impl Strategy<Value = WriteRecord> {
        prop_oneof![any_shape(), any_inline()]
    }

    prop_compose! {
        fn any_lock()(
            txn in any_txn(), keyspace: u32, key: Vec<u8>, write_seq: u32, ttl_ms: u64, min: u64,
            lock_type in prop_oneof![any_value().prop_map(LockType::Put), Just(LockType::Delete), Just(LockType::LockOnly)],
        ) -> Lock {
            let primary = RowKey::new(KeyspaceId(keyspace), &key);
            Lock { txn, primary, lock_type, write_seq, ttl_ms, min_commit_ts: Timestamp::from_u64(min) }
        }
    }

    proptest! {
        #[test]
        fn records_round_trip(write in any_write(), lock in any_lock()) {
            prop_assert_eq!(WriteRecord::decode(&bytes_of(&write)).unwrap(), write.clone());
            prop_assert_eq!(Lock::decode(&bytes_of(&lock)).unwrap(), lock);
            let version = HistoryEntry::Version(write);
            prop_assert_eq!(HistoryEntry::decode(&bytes_of(&version)).unwrap(), version);
        }

        #[test]
        fn an_inline_value_is_read_in_place(write in any_inline()) {
            let bytes = bytes_of(&write);
            let InlineWrite { commit_ts, start_ts, owner, value } = InlineWrite::decode(&bytes).unwrap();
            prop_assert_eq!(InlineWrite::decode_value(&bytes), Some((commit_ts, value)));
            let found = WriteRecord { commit_ts, txn: TxnId { start_ts, owner }, value: Some(StoredValue::Inline(value.into())), lock_only_ts: None };
            prop_assert_eq!(found, write);
        }

        #[test]
        fn decoding_a_record_never_panics(mut bytes: Vec<u8>) {
            for kind in [VERSION, INLINE_WRITE_TAG] {
                if let Some(first) = bytes.first_mut() {
                    *first = kind;
                }
                prop_assert_eq!(InlineWrite::decode_value(&bytes), InlineWrite::decode(&bytes).map(|put| (put.commit_ts, put.value)));
                let _ = WriteRecord::decode(&bytes);
                let _ = Lock::decode(&bytes);
                let _ = HistoryEntry::decode(&bytes);
            }
        }

        /// Damaged records are closer to real ones than arbitrary bytes are, so decoding gets
        /// further. A record that decodes must survive a round trip.
        #[test]
        fn decoding_a_damaged_record_never_panics(
            write in any_write(), lock in any_lock(),
            damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4), cut in any::<prop::sample::Index>(),
        ) {
            for mut bytes in [bytes_of(&write), bytes_of(&lock), bytes_of(&HistoryEntry::Version(write))] {
                for (at, byte) in &damage {
                    let at = at.index(bytes.len());
                    bytes[at] ^= byte;
                }
                for bytes in [&bytes[..], &bytes[..cut.index(bytes.len())]] {
                    if let Ok(write) = WriteRecord::decode(bytes) {
                        prop_assert_eq!(WriteRecord::decode(&bytes_of(&write)).unwrap(), write);
                    }
                    if let Ok(lock) = Lock::decode(bytes) {
                        prop_assert_eq!(Lock::decode(&bytes_of(&lock)).unwrap(), lock);
                    }
                    if let Ok(entry) = HistoryEntry::decode(bytes) {
                        prop_assert_eq!(HistoryEntry::decode(&bytes_of(&entry)).unwrap(), entry);
                    }
                }
            }
        }
    }
}
