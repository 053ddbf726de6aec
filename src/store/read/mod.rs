//! Reading: snapshots, scans, versions.
//!
//! A read looks at a row through a [view](crate::read_view::ReadView): its lock, if locks may hide commits,
//! its newest version, and the history for older timestamps.

pub(in crate::store) mod column_cursor;
pub(in crate::store) mod key_range;
pub(in crate::store) mod row;
pub(in crate::store) mod scan;
pub(in crate::store) mod snapshot;
pub(in crate::store) mod versions;
