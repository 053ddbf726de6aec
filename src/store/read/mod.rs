//! Reading: single rows, snapshots, scans, versions.
//!
//! A read sees a row through a [read view](crate::read_view::ReadView). If the view may
//! have locks of committed transactions, the read first checks the row's lock, because such a lock
//! holds the row's value. Then it reads the newest version and, if that is too new for the view,
//! the history.

pub(in crate::store) mod column_cursor;
pub(in crate::store) mod key_range;
pub(in crate::store) mod keys;
mod latest;
mod merge;
pub(in crate::store) mod reader;
pub(in crate::store) mod row_reader;
pub(in crate::store) mod scan;
pub(in crate::store) mod scanned_row;
pub(in crate::store) mod snapshot;
pub(in crate::store) mod versions;
