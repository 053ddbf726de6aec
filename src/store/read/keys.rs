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

impl Scan {
    /// The keys of the remaining rows. Their values are not copied. A value of more than 255 bytes
    /// ([`MAX_SHORT_VALUE_BYTES`](crate::row::MAX_SHORT_VALUE_BYTES)) that a two-phase commit or a
    /// large transaction wrote is not read either; any other lies beside its key.
    ///
    /// ```
    /// # fn main() -> percolite::Result<()> {
    /// # let store = percolite::Store::in_memory()?;
    /// # let photos = store.keyspace("photos")?;
    /// # store.transact(|txn| {
    /// #     ["a", "b", "c"].iter().try_for_each(|key| txn.put(&photos, key, vec![0; 1 << 20]))
    /// # })?;
    /// let names = store.range(&photos, "b"..)?.keys().collect::<percolite::Result<Vec<_>>>()?;
    /// assert_eq!(names, [b"b", b"c"]);
    /// # Ok(()) }
    /// ```
    pub fn keys(self) -> Keys {
        Keys { scan: self }
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
