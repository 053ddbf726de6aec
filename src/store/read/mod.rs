//! Reading: single rows, snapshots, scans, versions.
//!
//! A read sees a row through a [read view](crate::read_view::ReadView). If commits may still be
//! locks, the read first checks the row's lock. Then it reads the newest version and, if that is
//! too new for the view, the history.

pub(in crate::store) mod column_cursor;
pub(in crate::store) mod key_range;
mod latest;
mod merge;
pub(in crate::store) mod row_reader;
pub(in crate::store) mod scan;
pub(in crate::store) mod scanned_row;
pub(in crate::store) mod snapshot;
pub(in crate::store) mod versions;
