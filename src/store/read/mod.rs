//! Reading: single rows, snapshots, scans, versions.
//!
//! A read sees a row through a [read view](crate::read_view::ReadView). It checks the row's lock,
//! if locks may hide commits; then its newest version; and for an older timestamp its history.

pub(in crate::store) mod column_cursor;
pub(in crate::store) mod key_range;
mod latest;
mod merge;
pub(in crate::store) mod row_reader;
pub(in crate::store) mod scan;
pub(in crate::store) mod scanned_row;
pub(in crate::store) mod snapshot;
pub(in crate::store) mod versions;
