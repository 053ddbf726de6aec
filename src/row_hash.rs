//! A hash of a row, for row queues, unlock waits and Bloom filters.

use rapidhash::v3::{RapidSecrets, rapidhash_v3_seeded};

use crate::row::RowKey;

/// The seed is fixed, so that a simulation can be repeated. A collision of two rows costs time and
/// nothing else.
pub fn row_hash(row: &RowKey) -> u64 {
    const SECRETS: RapidSecrets = RapidSecrets::seed(0);
    rapidhash_v3_seeded(row.as_bytes(), &SECRETS)
}
