//! Scans of keys: the keys of a scan's rows, without their values.

use crate::engine::decode_user_key;
use crate::error::Result;
use crate::store::read::scan::Scan;
use crate::store::read::scanned_row::FoundValue;

/// An iterator over the keys of a [`Scan`], in their order; `rev()` reverses it: see
/// [`Scan::keys`]. After an error the iterator ends.
#[derive(Debug)]
#[must_use]
pub struct Keys {
    scan: Scan,
}

impl Keys {
    pub(super) fn new(scan: Scan) -> Self {
        Self { scan }
    }
}

fn key(row: &[u8], _value: FoundValue<'_>) -> Result<Vec<u8>> {
    Ok(decode_user_key(row)?.to_vec())
}

impl Iterator for Keys {
    type Item = Result<Vec<u8>>;

    fn next(&mut self) -> Option<Self::Item> {
        self.scan.next_row_step(false, key)
    }
}

impl DoubleEndedIterator for Keys {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.scan.next_row_step(true, key)
    }
}
