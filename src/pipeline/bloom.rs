//! A Bloom filter that grows: which rows a large transaction may have locked.
//!
//! The filter has no false negatives. A few percent of the rows that were not added are false
//! positives; the only effect is that a commit of such a row makes the engine read the row. The
//! filter takes two to four bytes per row; a map of locks would store the key of each row.

use crate::row::RowKey;
use crate::row_hash::row_hash;
use crate::tunables::FIRST_LEVEL_ROWS;

const BITS_PER_ROW: usize = 16;
const PROBES: u64 = 5;

/// A set of rows, with false positives but without false negatives.
#[derive(Default)]
pub struct RowBloomFilter {
    /// The bits of the filter. Rows are added to the last level only. When that is full, a level of
    /// twice its size is appended.
    levels: Vec<Box<[u64]>>,
    last_level_rows: usize,
}

impl RowBloomFilter {
    pub fn insert(&mut self, row: &RowKey) {
        let capacity = |level: &[u64]| level.len() * 64 / BITS_PER_ROW;
        if self.levels.last().is_none_or(|last| self.last_level_rows >= capacity(last)) {
            let words = (FIRST_LEVEL_ROWS << self.levels.len()) * BITS_PER_ROW / 64;
            self.levels.push(vec![0; words].into());
            self.last_level_rows = 0;
        }
        // A lock that is in no level would be seen by no commit of its row.
        let Some(last) = self.levels.last_mut() else { unreachable!("invariant: a filter with a row has a level") };
        for bit in bits(row_hash(row), last.len()) {
            last[bit / 64] |= 1 << (bit % 64);
        }
        self.last_level_rows += 1;
    }

    /// Whether the row may have been added; `false` is certain.
    pub fn may_contain(&self, row: &RowKey) -> bool {
        let hash = row_hash(row);
        let has = |level: &[u64], bit: usize| level[bit / 64] & (1 << (bit % 64)) != 0;
        self.levels.iter().any(|level| bits(hash, level.len()).all(|bit| has(level, bit)))
    }
}

/// The indices of the bits that stand for a hash in a level of `words` words, by double hashing
/// from the two halves of the hash (Kirsch and Mitzenmacher). `words` must be a power of two,
/// because the indices are masked.
fn bits(hash: u64, words: usize) -> impl Iterator<Item = usize> {
    let mask = words as u64 * 64 - 1;
    let step = hash.rotate_left(32) | 1;
    (0..PROBES).map(move |probe| {
        let Ok(bit) = usize::try_from(hash.wrapping_add(step.wrapping_mul(probe)) & mask) else {
            unreachable!("invariant: a bit of a level has an index")
        };
        bit
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::row::KeyspaceId;

    fn row(number: u64) -> RowKey {
        RowKey::new(KeyspaceId(1), &number.to_be_bytes())
    }

    #[test]
    fn no_false_negatives_and_few_false_positives() {
        const ROWS: u64 = 300_000;
        let mut filter = RowBloomFilter::default();
        assert!(!filter.may_contain(&row(0)));
        (0..ROWS).for_each(|number| filter.insert(&row(number)));
        assert!((0..ROWS).all(|number| filter.may_contain(&row(number))));
        let mistaken = (ROWS..2 * ROWS).filter(|number| filter.may_contain(&row(*number))).count();
        assert!(mistaken < 15_000, "{mistaken} false positives of {ROWS} rows");
        let bytes: usize = filter.levels.iter().map(|level| level.len() * 8).sum();
        assert!(bytes < 6 * 300_000, "{bytes} bytes");
    }
}
