//! Reading a column around what cannot be read of it.
//!
//! A block that fails its checksum stops a scan. Where the next block begins nobody is told, but RocksDB says how many bytes of tables
//! lie between two keys, from their indexes, and that number makes a step exactly where a block begins. So the scan is tried again
//! behind each such step, and what it came in behind is read backwards down to the damage: a bad block hides the rows between
//! its borders, and no others. What other tables have in that stretch stays hidden too, on purpose: it may be older than what is lost.
//!
//! After [`SINGLE_BLOCK_SKIPS`] tries in vain the steps double, since a table that is destroyed from end to end is not worth a try for each of
//! its blocks. Where the index says nothing, the borders of tables are tried.

use std::ops::Bound;

use super::RocksStorage;
use crate::engine::storage::{CellReader as _, Column};
use crate::engine::{EngineError, RowRange};
use crate::keys::prefix_successor;

/// So many bad blocks in a row are passed one by one.
const SINGLE_BLOCK_SKIPS: u32 = 64;
/// The first of the steps that double, in bytes of tables.
const SKIP_BYTES: u64 = 4096;
/// A key between two blocks is found to so many bytes behind where it begins to differ.
const BISECT_BYTES: usize = 64;

/// What cannot be read, as far as it is known.
struct Gap {
    /// The last key that was read; `None` at the column's beginning.
    after_key: Option<Vec<u8>>,
    why: EngineError,
    attempts: u32,
}

/// Hands every cell of a column that can be read to `visit`, in no order where something cannot. The answer is what that was.
pub fn scan_skipping_corruption<E>(
    storage: &RocksStorage,
    column: Column,
    mut visit: impl FnMut(&[u8], &[u8]) -> Result<(), E>,
) -> Result<Vec<String>, E> {
    let borders = storage.table_boundaries(column);
    let (mut lost, mut from, mut gap) = (Vec::new(), None::<Vec<u8>>, None::<Gap>);
    loop {
        let range = RowRange { start: from.clone().map_or(Bound::Unbounded, Bound::Included), end: Bound::Unbounded };
        let (last, read) = read(storage, column, &range, false, &mut visit)?;
        if last.is_some() || read.is_ok() {
            let gap = gap.take().map(|gap| finish_gap(storage, column, gap, from.as_deref(), &mut visit));
            lost.extend(gap.transpose()?);
        }
        let Err(why) = read else { return Ok(lost) };
        let behind = last.clone();
        let gap_now = gap.get_or_insert(Gap { after_key: behind, why, attempts: 0 });
        from = next_seek_key(storage, column, &borders, &last.or(from).unwrap_or_default(), gap_now.attempts);
        gap_now.attempts += 1;
        if from.is_none() {
            let gap = gap.take().map(|gap| finish_gap(storage, column, gap, None, &mut visit));
            lost.extend(gap.transpose()?);
            return Ok(lost);
        }
    }
}

/// Reads on from behind, down to the damage, and says what is left of the gap.
fn finish_gap<E>(
    storage: &RocksStorage,
    column: Column,
    gap: Gap,
    before: Option<&[u8]>,
    visit: impl FnMut(&[u8], &[u8]) -> Result<(), E>,
) -> Result<String, E> {
    let Gap { after_key: behind, why, .. } = gap;
    let start = behind.clone().map_or(Bound::Unbounded, Bound::Excluded);
    let end = before.map_or(Bound::Unbounded, |before| Bound::Excluded(before.to_vec()));
    // Its own error is the same damage, met from behind.
    let (first, _) = read(storage, column, &RowRange { start, end }, true, visit)?;
    let before = first.as_deref().or(before);
    let shown = |key: &[u8]| format!("\"{}\"", key.escape_ascii());
    Ok(format!(
        "cells {} and {}, nobody knows how many, cannot be read: {why}",
        behind.as_deref().map_or_else(|| "from the beginning".into(), |key| format!("behind {}", shown(key))),
        before.map_or_else(|| "to the end".into(), |key| format!("before {}", shown(key))),
    ))
}

/// Reads a range until it ends, or cannot be read, and says which key came last.
#[allow(clippy::type_complexity, reason = "what `visit` says is one thing, and what the scan says another")]
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

/// Behind which key of those above `at` to try again; `None` when there is none.
fn next_seek_key(
    storage: &RocksStorage,
    column: Column,
    borders: &[Vec<u8>],
    at: &[u8],
    tries: u32,
) -> Option<Vec<u8>> {
    let step = tries.checked_sub(SINGLE_BLOCK_SKIPS).map_or(0, |doublings| SKIP_BYTES << doublings.min(40));
    let is_within = |key: &[u8]| key <= at || storage.approximate_size(column, at, key) <= step;
    let border = borders.iter().find(|border| border.as_slice() > at)?;
    let block = if is_within(border) { None } else { bisect_first_beyond(at, is_within) };
    Some(block.filter(|block| block < border).unwrap_or_else(|| border.clone()))
}

/// The first key that is not within, or one little above it. All keys up to some key, `at` among them, are within.
fn bisect_first_beyond(at: &[u8], is_within: impl Fn(&[u8]) -> bool) -> Option<Vec<u8>> {
    let goes_beyond = |prefix: &[u8]| prefix_successor(prefix).is_none_or(|after| !is_within(&after));
    let lengths: Vec<usize> = (1..=at.len()).collect();
    let common = lengths.partition_point(|length| at.get(..*length).is_some_and(goes_beyond));
    // The last key within begins with this, and none beyond does all through.
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
        fn the_first_key_beyond_is_found(at in "[\\x00a\\u{7f}]{0,6}", tail: Vec<u8>, keep in 0_usize..6) {
            let at = at.into_bytes();
            // The last key within: at or above it.
            let mut last = at[..keep.min(at.len())].to_vec();
            last.extend(tail);
            prop_assume!(last >= at && last.len() < BISECT_BYTES);
            let found = bisect_first_beyond(&at, |key| key <= last.as_slice());
            last.push(0);
            prop_assert_eq!(found, Some(last));
        }

        #[test]
        fn a_key_beyond_a_long_one_is_above_it(last in prop::collection::vec(any::<u8>(), 70..90)) {
            let found = bisect_first_beyond(b"", |key| key <= last.as_slice());
            prop_assert!(found.is_none_or(|found| found > last && found.len() <= BISECT_BYTES));
        }
    }
}
