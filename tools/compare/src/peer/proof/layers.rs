//! The window's generations, and the tables that are below them.

use std::ops::Bound;
use std::sync::Arc;

use anyhow::Result;
use percolite::engine::RowRange;
use percolite::engine::storage::Column;

use super::below::{Below, Cursor};
use super::memtable::Generation;

/// The proof has one column.
pub const ROWS: Column = Column::Write;

/// The generations, the newest first, and the tables below them as of one moment.
pub struct Layers {
    pub active: Arc<Generation>,
    pub frozen: Option<Arc<Generation>>,
    pub below: Arc<Below>,
}

impl Layers {
    fn generations(&self) -> impl Iterator<Item = &Generation> {
        std::iter::once(&*self.active).chain(self.frozen.as_deref())
    }

    pub fn get(&self, key: &[u8], sequence: u64, see: impl FnOnce(&[u8])) -> Result<bool> {
        for generation in self.generations() {
            if let Some(value) = generation.get(ROWS, key, sequence) {
                value.map(see);
                return Ok(value.is_some());
            }
        }
        self.below.get(key, see)
    }

    /// Merges the layers; of a key that several have the uppermost counts.
    pub fn scan(&self, from: &[u8], rows: usize, sequence: u64, mut see: impl FnMut(&[u8], &[u8])) -> Result<usize> {
        let range = RowRange { start: Bound::Included(from.to_vec()), end: Bound::Unbounded };
        let mut above: Vec<_> =
            self.generations().map(|generation| generation.range(ROWS, &range, false, sequence).peekable()).collect();
        let mut below: Cursor<'_> = self.below.cursor(from);
        let mut seen = 0;
        while seen < rows {
            let mut first: Option<(usize, &[u8])> = None;
            for (layer, rows) in above.iter_mut().enumerate() {
                if let Some((key, _)) = rows.peek()
                    && first.as_ref().is_none_or(|(_, first)| key < first)
                {
                    first = Some((layer, key));
                }
            }
            let Some((layer, key)) = first else {
                // Nothing is above what is left.
                while seen < rows && below.see(&mut see)? {
                    seen += 1;
                }
                return Ok(seen);
            };
            match below.key().map(|found| found.cmp(key)) {
                Some(std::cmp::Ordering::Less) => {
                    below.see(&mut see)?;
                }
                order => {
                    if order == Some(std::cmp::Ordering::Equal) {
                        below.next()?;
                    }
                    for (other, rows) in above.iter_mut().enumerate() {
                        if let Some((_, value)) = rows.next_if(|(next, _)| *next == key)
                            && other == layer
                            && let Some(value) = value
                        {
                            see(key, value);
                        }
                    }
                }
            }
            seen += 1;
        }
        Ok(seen)
    }
}
