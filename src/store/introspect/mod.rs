//! What users see of a running store: statistics, row locks, active transactions, the slow log,
//! sizes, and the status document that puts them together.

pub(in crate::store) mod active_readers;
mod api;
#[cfg(feature = "metrics")]
pub(in crate::store) mod gauges;
pub(in crate::store) mod keyspace_stats;
pub(in crate::store) mod monitor;
pub(in crate::store) mod retrying_calls;
pub(in crate::store) mod row_locks;
pub(in crate::store) mod slow_log;
pub(in crate::store) mod stats;
pub(in crate::store) mod status;
pub(in crate::store) mod status_entries;
