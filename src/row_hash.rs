//! A hash of a row, without a seed: row queues, unlock waits and Bloom filters go by it.

use rapidhash::v3::{RapidSecrets, rapidhash_v3_seeded};

use crate::row::RowKey;

/// The same in every run, so that a simulation repeats. Two rows with one hash cost time and nothing else.
pub fn row_hash(row: &RowKey) -> u64 {
    const SECRETS: RapidSecrets = RapidSecrets::seed(0);
    rapidhash_v3_seeded(row.as_bytes(), &SECRETS)
}
