//! The record of a version with an inline value, which nearly every write and read uses. It is
//! encoded by hand, because bincode takes several times as long and ten bytes more.
//!
//! The layout, with integers in little-endian order:
//!
//! | bytes | content |
//! |---|---|
//! | 1 | tag, `02` |
//! | 1 | lengths: of the timestamp distance (lower half), of the owner (upper half) |
//! | 8 | commit timestamp |
//! | 0 to 8 | distance from start to commit timestamp |
//! | 0 to 8 | owner id, XOR an id with the start timestamp's time, which is usually equal |
//! | rest | the value |

use crate::owner_id::OwnerId;
use crate::timestamp::Timestamp;

/// The record's first byte.
pub const INLINE_WRITE_TAG: u8 = 2;
/// Maximum size of the record without its value.
const INLINE_WRITE_OVERHEAD_BYTES_MAX: usize = 26;

/// A version with an inline value and no lock-only commit after it, decoded in place.
#[derive(Debug)]
pub struct InlineWrite<'a> {
    /// Its commit timestamp.
    pub commit_ts: Timestamp,
    /// The transaction's start timestamp.
    pub start_ts: Timestamp,
    /// The transaction's owner id.
    pub owner: OwnerId,
    /// The value.
    pub value: &'a [u8],
}

impl<'a> InlineWrite<'a> {
    /// Appends the record's bytes.
    pub fn encode(&self, bytes: &mut Vec<u8>) {
        let ts_distance = ts_delta(self.start_ts, self.commit_ts);
        let owner = self.owner.to_u64() ^ owner_baseline(self.start_ts);
        let (ts_distance_bytes, owner_bytes) = (significant_bytes(ts_distance), significant_bytes(owner));
        bytes.reserve(INLINE_WRITE_OVERHEAD_BYTES_MAX + self.value.len());
        bytes.extend_from_slice(&[INLINE_WRITE_TAG, ts_distance_bytes | owner_bytes << 4]);
        bytes.extend_from_slice(&self.commit_ts.to_u64().to_le_bytes());
        let both = u128::from(ts_distance) | u128::from(owner) << (u8::BITS * u32::from(ts_distance_bytes));
        bytes.extend_from_slice(&both.to_le_bytes()[..usize::from(ts_distance_bytes + owner_bytes)]);
        bytes.extend_from_slice(self.value);
    }

    /// Decodes only the commit timestamp and the value, which is all that a reader needs: decoding
    /// the rest costs measurable time in a scan. Returns `None` exactly if [`InlineWrite::decode`]
    /// does.
    #[inline]
    pub fn decode_value(bytes: &'a [u8]) -> Option<(Timestamp, &'a [u8])> {
        let (&[kind, lengths], rest) = bytes.split_first_chunk()?;
        if kind != INLINE_WRITE_TAG {
            return None;
        }
        let (commit_ts, rest) = rest.split_first_chunk()?;
        let (ts_distance_bytes, owner_bytes) = (usize::from(lengths & 0x0f), usize::from(lengths >> 4));
        let (_, value) = rest.split_at_checked(ts_distance_bytes + owner_bytes)?;
        let are_numbers = ts_distance_bytes.max(owner_bytes) <= size_of::<u64>();
        are_numbers.then(|| (Timestamp::from_u64(u64::from_le_bytes(*commit_ts)), value))
    }

    /// Decodes the record. `None` if the bytes are another kind of record, or malformed.
    #[inline]
    pub fn decode(bytes: &'a [u8]) -> Option<Self> {
        let (&[kind, lengths], rest) = bytes.split_first_chunk()?;
        if kind != INLINE_WRITE_TAG {
            return None;
        }
        let (commit_ts, rest) = rest.split_first_chunk()?;
        let (ts_distance, rest) = read_le(rest, lengths & 0x0f)?;
        let (owner, value) = read_le(rest, lengths >> 4)?;
        let commit_ts = u64::from_le_bytes(*commit_ts);
        let start_ts = Timestamp::from_u64(commit_ts.wrapping_sub(ts_distance));
        let owner = OwnerId::from_u64(owner ^ owner_baseline(start_ts));
        Some(Self { commit_ts: Timestamp::from_u64(commit_ts), start_ts, owner, value })
    }
}

/// The owner id with the time of `start_ts` and all random bits zero.
#[inline]
fn owner_baseline(start_ts: Timestamp) -> u64 {
    OwnerId::new(start_ts.millis(), 0).to_u64()
}

/// Length of a number in bytes, without its leading zeros.
#[inline]
fn significant_bytes(number: u64) -> u8 {
    let Ok(bytes) = u8::try_from((u64::BITS - number.leading_zeros()).div_ceil(8)) else {
        unreachable!("invariant: a 64-bit number has at most 8 bytes")
    };
    bytes
}

/// Decodes a number of `length` bytes; returns it and the rest.
#[inline]
fn read_le(bytes: &[u8], length: u8) -> Option<(u64, &[u8])> {
    let (significant, rest) = bytes.split_at_checked(length.into())?;
    let number = significant.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte));
    (significant.len() <= size_of::<u64>()).then_some((number, rest))
}

/// The distance from one timestamp to another. It wraps, so that any pair of timestamps survives a
/// round trip.
pub(super) fn ts_delta(from: Timestamp, to: Timestamp) -> u64 {
    to.to_u64().wrapping_sub(from.to_u64())
}
