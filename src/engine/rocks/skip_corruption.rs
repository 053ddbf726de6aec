//! Scans that skip unreadable blocks.
//!
//! ```text
//!   keys      a ······ c │ d ·· bad ·· m │ n ······ z       │ block boundary
//!   forward   ─────────▶ error
//!   seek                                   ▶                at or slightly after n
//!   forward                                ────────▶
//!   reverse                        error ◀─                 from there down to the damage
//! ```
//!
//! A block with a wrong checksum stops a scan, and RocksDB does not report where the next block
//! starts. But RocksDB's approximate size between two keys is computed from the index blocks, and
//! grows exactly at block boundaries. So a bisection by this size finds the first key after the bad
//! block, and the scan resumes there.
//!
//! The keys between the damage and the resume key are a gap, which is then also read in reverse,
//! from the resume key down to the damage. So a bad block hides only the rows between its
//! boundaries. Rows that other tables have between these boundaries stay hidden on purpose, because
//! they may be older than the lost ones.
//!
//! Bad blocks are skipped one by one. After [`SINGLE_BLOCK_SKIPS`] of them in a row each further
//! skip is twice as long as the one before, because a table that is damaged from end to end is not
//! worth an attempt for each block. If the bisection finds no key, the scan resumes at the next
//! table boundary.

use std::ops::Bound;

use super::RocksStorage;
use crate::engine::storage::{CellReader as _, Column};
use crate::engine::{EngineError, RowRange};
use crate::keys::prefix_successor;

/// The number of consecutive bad blocks that are skipped one by one.
const SINGLE_BLOCK_SKIPS: u32 = 64;
/// The length of the first skip after the single blocks, in bytes of tables. Each further skip is
/// twice as long.
const SKIP_BYTES: u64 = 4096;
/// The bisection builds the key from which to resume: a prefix of its start key, and at most this
/// number of bytes, which it finds one by one.
const BISECT_BYTES: usize = 64;

/// An unreadable interval of keys.
struct Gap {
    /// The last key that was read before the gap; `None` at the start of the column.
    after_key: Option<Vec<u8>>,
    error: EngineError,
    attempts: u32,
}

/// Calls `visit` with each readable cell of a column; around gaps the cells are not in order.
/// Returns descriptions of the gaps.
pub fn scan_skipping_corruption<E: From<EngineError>>(
    storage: &RocksStorage,
    column: Column,
    mut visit: impl FnMut(&[u8], &[u8]) -> Result<(), E>,
) -> Result<Vec<String>, E> {
    let boundaries = storage.table_boundaries(column)?;
    let (mut lost, mut from, mut gap) = (Vec::new(), None::<Vec<u8>>, None::<Gap>);
    loop {
        let range = RowRange { start: from.clone().map_or(Bound::Unbounded, Bound::Included), end: Bound::Unbounded };
        let (last, read) = read(storage, column, &range, false, &mut visit)?;
        if last.is_some() || read.is_ok() {
            let gap = gap.take().map(|gap| finish_gap(storage, column, gap, from.as_deref(), &mut visit));
            lost.extend(gap.transpose()?);
        }
        let Err(error) = read else { return Ok(lost) };
        let after_key = last.clone();
        let gap_now = gap.get_or_insert(Gap { after_key, error, attempts: 0 });
        from = next_seek_key(storage, column, &boundaries, &last.or(from).unwrap_or_default(), gap_now.attempts);
        gap_now.attempts += 1;
        if from.is_none() {
            let gap = gap.take().map(|gap| finish_gap(storage, column, gap, None, &mut visit));
            lost.extend(gap.transpose()?);
            return Ok(lost);
        }
    }
}

/// Reads the gap in reverse, down to the damage, and describes the part that stays unread.
fn finish_gap<E>(
    storage: &RocksStorage,
    column: Column,
    gap: Gap,
    before: Option<&[u8]>,
    visit: impl FnMut(&[u8], &[u8]) -> Result<(), E>,
) -> Result<String, E> {
    let Gap { after_key, error, .. } = gap;
    let start = after_key.clone().map_or(Bound::Unbounded, Bound::Excluded);
    let end = before.map_or(Bound::Unbounded, |before| Bound::Excluded(before.to_vec()));
    // The error of the reverse scan is ignored, because it reports the same damage.
    let (first, _) = read(storage, column, &RowRange { start, end }, true, visit)?;
    let before = first.as_deref().or(before);
    let shown = |key: &[u8]| format!("\"{}\"", key.escape_ascii());
    Ok(format!(
        "an unknown number of cells between {} and {} cannot be read: {error}",
        after_key.as_deref().map_or_else(|| "the start".into(), shown),
        before.map_or_else(|| "the end".into(), shown),
    ))
}

/// Reads a range up to its end or the first error. Returns the last key that was read, and the
/// result of the scan; the outer result is that of `visit`.
#[allow(clippy::type_complexity, reason = "the errors of `visit` and of the scan are separate")]
fn read<E>(
    storage: &RocksStorage,
    column: Column,
    range: &RowRange,
    backwards: bool,
    mut visit: impl FnMut(&[u8], &[u8]) -> Result<(), E>,
) -> Result<(Option<Vec<u8>>, Result<(), EngineError>), E> {
    let (mut last, mut stopped) = (None::<Vec<u8>>, Ok(()));
    let read = storage.scan(column, range, backwards, |key, value| {
        let last = last.get_or_insert_default();
        last.clear();
        last.extend_from_slice(key);
        stopped = visit(key, value);
        stopped.is_ok()
    });
    stopped.map(|()| (last, read))
}

/// The key above `at` from which to read next; `None` after the last table.
fn next_seek_key(
    storage: &RocksStorage,
    column: Column,
    boundaries: &[Vec<u8>],
    at: &[u8],
    attempts: u32,
) -> Option<Vec<u8>> {
    let step = attempts.checked_sub(SINGLE_BLOCK_SKIPS).map_or(0, |doublings| SKIP_BYTES << doublings.min(40));
    let is_within = |key: &[u8]| key <= at || storage.approximate_size(column, at, key) <= step;
    let boundary = boundaries.iter().find(|boundary| boundary.as_slice() > at)?;
    let block = if is_within(boundary) { None } else { bisect_first_beyond(at, is_within) };
    Some(block.filter(|block| block < boundary).unwrap_or_else(|| boundary.clone()))
}

/// Bisects for the first key for which `is_within` is false; returns this key or one slightly
/// above. `is_within` must hold for all keys up to some key at or above `at`, and for none after
/// it.
fn bisect_first_beyond(at: &[u8], is_within: impl Fn(&[u8]) -> bool) -> Option<Vec<u8>> {
    let goes_beyond = |prefix: &[u8]| prefix_successor(prefix).is_none_or(|after| !is_within(&after));
    let lengths: Vec<usize> = (1..=at.len()).collect();
    let common = lengths.partition_point(|length| at.get(..*length).is_some_and(goes_beyond));
    // The last key for which `is_within` holds starts with `last`; the loop extends `last` byte by
    // byte.
    let mut last = at.get(..common)?.to_vec();
    for _ in 0..BISECT_BYTES {
        let bytes: [u8; 256] = std::array::from_fn(|byte| byte.to_le_bytes()[0]);
        let beyond = bytes.partition_point(|byte| is_within(&[last.as_slice(), &[*byte]].concat()));
        let Some(before) = beyond.checked_sub(1).and_then(|before| bytes.get(before)) else {
            last.push(0);
            return Some(last);
        };
        last.push(*before);
    }
    prefix_successor(&last)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn bisection_finds_the_first_key_beyond(at in "[\\x00a\\u{7f}]{0,6}", tail: Vec<u8>, keep in 0_usize..6) {
            let at = at.into_bytes();
            // The last key for which `is_within` is to hold: a key at or above `at`.
            let mut last = at[..keep.min(at.len())].to_vec();
            last.extend(tail);
            prop_assume!(last >= at && last.len() < BISECT_BYTES);
            let found = bisect_first_beyond(&at, |key| key <= last.as_slice());
            last.push(0);
            prop_assert_eq!(found, Some(last));
        }

        #[test]
        fn bisection_of_a_long_key_stops_above_it(last in prop::collection::vec(any::<u8>(), 70..90)) {
            let found = bisect_first_beyond(b"", |key| key <= last.as_slice());
            prop_assert!(found.is_none_or(|found| found > last && found.len() <= BISECT_BYTES));
        }
    }
}
