//! What users see of a running store: statistics, row locks, active transactions, the slow log,
//! sizes, and the status document that puts them together.

pub(in crate::store) mod active;
pub(in crate::store) mod active_readers;
pub(in crate::store) mod keyspace_stats;
pub(in crate::store) mod slow_log;
mod slow_transactions;
pub(in crate::store) mod stats;
pub(in crate::store) mod status;
pub(in crate::store) mod status_entries;
