//! The record that nearly every write and read meets, by hand: a version whose value rides in it.
//!
//! The general way takes several times as long, and ten bytes more. The record begins with a byte of its own, `02`; the next one
//! tells how many bytes the distance between the timestamps (its lower half) and the owner (its upper half) take, of eight each.
//! Then come the commit timestamp, that distance, and the owner, all of them little-endian, and behind them nothing but the value.
//! What is kept of the owner is the difference to one that began when the transaction did: the time is the same, mostly.

use super::ts_delta;
use crate::owner::OwnerId;
use crate::timestamp::Timestamp;

/// What the record begins with.
pub const INLINE_WRITE_TAG: u8 = 2;
/// All of it but the value, at most.
const INLINE_WRITE_OVERHEAD_BYTES_MAX: usize = 26;

/// The record of a version whose value rides in it and that nobody has held since, read where it lies.
pub struct InlineWrite<'a> {
    /// When it was committed.
    pub commit_ts: Timestamp,
    /// Which transaction it was, and whose.
    pub start_ts: Timestamp,
    /// See [`InlineWrite::start_ts`].
    pub owner: OwnerId,
    /// The value.
    pub value: &'a [u8],
}

impl<'a> InlineWrite<'a> {
    /// Appends the record's bytes.
    pub fn encode(&self, bytes: &mut Vec<u8>) {
        let took = ts_delta(self.start_ts, self.commit_ts);
        let owner = self.owner.to_u64() ^ owner_baseline(self.start_ts);
        let (took_bytes, owner_bytes) = (significant_bytes(took), significant_bytes(owner));
        bytes.reserve(INLINE_WRITE_OVERHEAD_BYTES_MAX + self.value.len());
        bytes.extend_from_slice(&[INLINE_WRITE_TAG, took_bytes | owner_bytes << 4]);
        bytes.extend_from_slice(&self.commit_ts.to_u64().to_le_bytes());
        let both = u128::from(took) | u128::from(owner) << (u8::BITS * u32::from(took_bytes));
        bytes.extend_from_slice(both.to_le_bytes().get(..usize::from(took_bytes + owner_bytes)).unwrap_or_default());
        bytes.extend_from_slice(self.value);
    }

    /// When it was committed and its value, which is all that a reader wants: working out the rest shows in a scan.
    /// `None` where [`InlineWrite::decode`] says so.
    #[inline]
    pub fn decode_value(bytes: &'a [u8]) -> Option<(Timestamp, &'a [u8])> {
        let (&[kind, lengths], rest) = bytes.split_first_chunk()?;
        if kind != INLINE_WRITE_TAG {
            return None;
        }
        let (commit_ts, rest) = rest.split_first_chunk()?;
        let (took_bytes, owner_bytes) = (usize::from(lengths & 0x0f), usize::from(lengths >> 4));
        let (_, value) = rest.split_at_checked(took_bytes + owner_bytes)?;
        let are_numbers = took_bytes.max(owner_bytes) <= size_of::<u64>();
        are_numbers.then(|| (Timestamp::from_u64(u64::from_le_bytes(*commit_ts)), value))
    }

    /// `None` where it is not such a record, or not a whole one.
    #[inline]
    pub fn decode(bytes: &'a [u8]) -> Option<Self> {
        let (&[kind, lengths], rest) = bytes.split_first_chunk()?;
        if kind != INLINE_WRITE_TAG {
            return None;
        }
        let (commit_ts, rest) = rest.split_first_chunk()?;
        let (took, rest) = read_le(rest, lengths & 0x0f)?;
        let (owner, value) = read_le(rest, lengths >> 4)?;
        let commit_ts = u64::from_le_bytes(*commit_ts);
        let start_ts = Timestamp::from_u64(commit_ts.wrapping_sub(took));
        let owner = OwnerId::from_u64(owner ^ owner_baseline(start_ts));
        Some(Self { commit_ts: Timestamp::from_u64(commit_ts), start_ts, owner, value })
    }
}

/// The owner that would have begun with the transaction, without what is random.
#[inline]
fn owner_baseline(start_ts: Timestamp) -> u64 {
    OwnerId::new(start_ts.millis(), 0).to_u64()
}

/// How many bytes are left of a number without the zeros in front.
#[inline]
fn significant_bytes(number: u64) -> u8 {
    // At most eight.
    u8::try_from((u64::BITS - number.leading_zeros()).div_ceil(8)).unwrap_or(8)
}

/// A number of so many bytes, and what follows.
#[inline]
fn read_le(bytes: &[u8], length: u8) -> Option<(u64, &[u8])> {
    let (significant, rest) = bytes.split_at_checked(length.into())?;
    let number = significant.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte));
    (significant.len() <= size_of::<u64>()).then_some((number, rest))
}
