//! Scans: the rows of a range, from both ends, over a read view and a transaction's own writes.
//!
//! A scan owns what it needs and reads ahead in pages. It borrows nothing, so it may outlive the
//! transaction or snapshot that created it. Between two pages a
//! [`ScanCursor`](crate::engine::ScanCursor) keeps the engine's position.
//!
//! Usually only the newest versions matter. Their cells are buffered as stored, and each cell is
//! decoded when its row is returned or lent, so only the result is allocated. If there may be locks
//! or own writes, a merging cursor merges them with the versions, row by row. It reads locks only
//! as far as versions are read.

use std::fmt;
use std::ops::ControlFlow;
use std::sync::Arc;

use crate::engine::{RowRange, decode_user_key};
use crate::error::{Error, Result};
use crate::store::handle::Store;
use crate::store::introspect::active_readers::ActiveReader;
use crate::store::read::merge::MergeCursor;
use crate::store::read::row_reader::visible_value_in_cell;
use crate::store::read::scanned_row::{FoundValue, Row};
use crate::store::txn::large_writes::LargeWrites;
use crate::write_set;

/// A page of an asynchronous scan has at most three times as many rows as cells were read before
/// it, clamped to these two limits.
#[cfg(feature = "tokio")]
const ASYNC_PAGE_ROWS: (usize, usize) = (32, 512);
/// The approximate maximum size of a page of an asynchronous scan, in bytes.
#[cfg(feature = "tokio")]
const ASYNC_PAGE_BYTES: usize = 1 << 20;

/// An iterator over [rows](Row), in the order of their keys; `rev()` reverses it.
///
/// [`Scan::visit`] lends the rows instead of copying them. After an error the iterator ends.
///
/// From its first row to its end, a scan keeps the files and memory that it reads: they are not
/// freed, even if their content is replaced meanwhile. Drop a scan that is not read to its end.
#[must_use]
pub struct Scan {
    store: Store,
    reader: Arc<ActiveReader>,
    ahead: MergeCursor,
}

impl fmt::Debug for Scan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scan").field("read_ts", &self.reader.view.read_ts).finish_non_exhaustive()
    }
}

/// The sources of a scan: own writes in memory, own writes locked in the store, and the range.
pub(in crate::store) type ScanSources = (Option<write_set::WriteSetRange>, Option<LargeWrites>, RowRange);

impl Scan {
    pub(in crate::store) fn new(store: &Store, reader: &Arc<ActiveReader>, what: Result<ScanSources>) -> Self {
        let ahead = match what {
            Ok((own, large_writes, range)) => MergeCursor::new(&reader.view, own, large_writes, range),
            Err(error) => MergeCursor { failed: Some(error), ended: false, ..MergeCursor::empty() },
        };
        Self { store: store.clone(), reader: Arc::clone(reader), ahead }
    }

    /// Calls `on_row` with the key and value of each remaining row, in the order of keys, until
    /// `on_row` returns [`ControlFlow::Break`]; then returns that break. The row at which `on_row`
    /// breaks is consumed, and the scan can continue after it.
    ///
    /// The iterator copies each row; for short rows, the copy takes as long as finding the row.
    /// This call lends values of up to 255 bytes
    /// ([`MAX_SHORT_VALUE_BYTES`](crate::row::MAX_SHORT_VALUE_BYTES)) without a copy, unless locks
    /// or own writes have to be merged. `on_row` may read and write the store; while `on_row` runs,
    /// what the scan has read stays in memory. If reads are timed
    /// ([`Builder::track_read_timing`](crate::store::Builder::track_read_timing)), the time of
    /// `on_row` counts as reading.
    ///
    /// ```
    /// # fn main() -> percolite::Result<()> {
    /// use std::ops::ControlFlow;
    /// # let store = percolite::Store::in_memory()?;
    /// # let log = store.keyspace("log")?;
    /// # store.transact(|txn| {
    /// #     ["a", "b", "c"].iter().try_for_each(|key| txn.put(&log, key, "12345"))
    /// # })?;
    /// let mut bytes = 0;
    /// let all = store.snapshot()?.range(&log, ..).visit(|key, value| {
    ///     bytes += key.len() + value.len();
    ///     ControlFlow::<()>::Continue(())
    /// })?;
    /// assert_eq!((bytes, all.is_continue()), (18, true));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// Those of [`Txn::get`](crate::store::Txn::get). `on_row` may have been called with rows
    /// before the error.
    pub fn visit<B>(&mut self, mut on_row: impl FnMut(&[u8], &[u8]) -> ControlFlow<B>) -> Result<ControlFlow<B>> {
        loop {
            if let Some(broke) = self.visit_borrowed(&mut on_row)? {
                return Ok(ControlFlow::Break(broke));
            }
            let on_row =
                |row: &[u8], value: FoundValue<'_>| Ok::<_, Error>(on_row(decode_user_key(row)?, &value.load(row)?));
            match self.next_row_step(false, on_row).transpose()? {
                Some(ControlFlow::Continue(())) => {}
                Some(broke) => return Ok(broke),
                None => return Ok(ControlFlow::Continue(())),
            }
        }
    }

    /// Lends rows directly from the engine, if the engine can do that and the scan reads only
    /// versions. Returns the value of the break, if `on_row` breaks.
    fn visit_borrowed<B>(&mut self, on_row: &mut impl FnMut(&[u8], &[u8]) -> ControlFlow<B>) -> Result<Option<B>> {
        let Self { store, reader, ahead } = self;
        let MergeCursor { versions, over: None, failed: None, ended: false } = ahead else { return Ok(None) };
        if !versions.needs_page(None, false) {
            return Ok(None);
        }
        let view = &reader.view;
        let mut ended = None;
        let lent = store.inner.monitor.time_read(reader, || {
            loop {
                // Checked here too, because an expired scan must fail even if no row is left.
                store.inner.rows.check_usable(view)?;
                let has_more = versions.visit_unread(&*view.snapshot, |row, content| {
                    let usable = store.inner.rows.check_usable(view);
                    let found = usable.and_then(|()| visible_value_in_cell(view, row, content));
                    let read = found.and_then(|found| {
                        found.map(|found| Ok::<_, Error>((decode_user_key(row)?, found.load(row)?))).transpose()
                    });
                    ended = match read {
                        Ok(None) => None,
                        Ok(Some((key, value))) => match on_row(key, &value) {
                            ControlFlow::Continue(()) => None,
                            ControlFlow::Break(with) => Some(Ok(with)),
                        },
                        Err(error) => Some(Err(error)),
                    };
                    ended.is_none()
                })?;
                if ended.is_some() || !has_more {
                    return Ok(());
                }
            }
        });
        match lent.and(ended.transpose()) {
            Ok(broke) => Ok(broke),
            Err(error) => {
                *ahead = MergeCursor::empty();
                store.inner.monitor.record_conflict(reader, Err(error))
            }
        }
    }

    pub(super) fn next_row_step<T>(
        &mut self,
        backwards: bool,
        on_row: impl FnOnce(&[u8], FoundValue<'_>) -> Result<T>,
    ) -> Option<Result<T>> {
        let Self { store, reader, ahead } = self;
        if ahead.ended {
            return None;
        }
        // Checked for each row: buffered rows must not be returned after the store is closed.
        let open = store.inner.check_open();
        match open.and_then(|()| {
            store.inner.monitor.time_read(reader, || ahead.next(&store.inner.rows, &reader.view, backwards, on_row))
        }) {
            Ok(Some(seen)) => Some(Ok(seen)),
            Ok(None) => {
                *ahead = MergeCursor::empty();
                None
            }
            Err(error) => {
                *ahead = MergeCursor::empty();
                Some(store.inner.monitor.record_conflict(reader, Err(error)))
            }
        }
    }

    /// The next page of rows of an asynchronous scan; empty at the end. With `keys_only` the rows
    /// have no values.
    #[cfg(feature = "tokio")]
    pub(crate) fn next_page(&mut self, backwards: bool, keys_only: bool) -> Result<Vec<Row>> {
        let read_row = if keys_only { Row::without_value } else { Row::new };
        let limit = (self.ahead.cells_read() * 3).clamp(ASYNC_PAGE_ROWS.0, ASYNC_PAGE_ROWS.1);
        let mut rows = Vec::new();
        let mut bytes = 0;
        while rows.len() < limit && bytes < ASYNC_PAGE_BYTES {
            let Some(row) = self.next_row_step(backwards, read_row).transpose()? else { break };
            bytes += row.size_bytes();
            rows.push(row);
        }
        Ok(rows)
    }
}

impl Iterator for Scan {
    type Item = Result<Row>;

    fn next(&mut self) -> Option<Self::Item> {
        self.next_row_step(false, Row::new)
    }
}

impl DoubleEndedIterator for Scan {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.next_row_step(true, Row::new)
    }
}

#[cfg(all(test, feature = "rocks"))]
mod tests {
    use std::ops::Bound;

    use super::*;
    use crate::Keyspace;
    use crate::engine::storage::Column;
    use crate::store::read::column_cursor::ColumnCursor;

    const ROWS: u32 = 3000;

    /// A store whose even rows are in the tables, and odd ones in the memtable.
    fn rows_in_tables_and_memtable(directory: &std::path::Path) -> (Store, Keyspace) {
        for odd in [0, 1] {
            let store = Store::open(directory).unwrap();
            let rows = store.keyspace("rows").unwrap();
            let all = (0..ROWS).filter(|row| row % 2 == odd).map(u32::to_be_bytes);
            store.transact(|txn| all.clone().try_for_each(|row| txn.put(&rows, row, row))).unwrap();
            if odd == 1 {
                return (store, rows);
            }
            store.checkpoint(directory.with_file_name("copy")).unwrap();
            store.close().unwrap();
        }
        unreachable!()
    }

    #[test]
    fn a_visitor_may_use_the_store_and_stop_anywhere() {
        let directory = tempfile::tempdir().unwrap();
        let (store, rows) = rows_in_tables_and_memtable(&directory.path().join("store"));
        let snapshot = store.snapshot().unwrap();
        let (mut scan, mut seen, mut stops) = (snapshot.range(&rows, ..), 0_u32, 0);
        loop {
            let flow = scan.visit(|key, value| {
                assert_eq!((key, value), (&seen.to_be_bytes()[..], &seen.to_be_bytes()[..]));
                seen += 1;
                if seen % 100 == 0 {
                    // These writes before and after the scan's position must not change what it
                    // reads.
                    let others = [seen / 2, ROWS - seen, ROWS + seen].map(u32::to_be_bytes);
                    store.transact(|txn| others.iter().try_for_each(|row| txn.put(&rows, row, "new"))).unwrap();
                    assert_eq!(snapshot.get(&rows, key).unwrap().as_deref(), Some(value));
                }
                if seen % 700 == 0 { ControlFlow::Break(seen) } else { ControlFlow::Continue(()) }
            });
            match flow.unwrap() {
                ControlFlow::Break(at) => assert_eq!(at, seen),
                ControlFlow::Continue(()) => break,
            }
            stops += 1;
            // The iterator consumes the next row and the last one.
            assert_eq!(scan.next().map(|row| row.unwrap().key().to_vec()), Some(seen.to_be_bytes().to_vec()));
            seen += 1;
            assert!(scan.next_back().is_some());
        }
        assert_eq!((seen, stops), (ROWS - stops, 4));
    }

    #[test]
    fn a_panic_of_the_visitor_ends_the_scan() {
        let directory = tempfile::tempdir().unwrap();
        let (store, rows) = rows_in_tables_and_memtable(&directory.path().join("store"));
        let snapshot = store.snapshot().unwrap();
        let (mut scan, mut lent) = (snapshot.range(&rows, ..), 0);
        let visit = std::panic::AssertUnwindSafe(|| {
            scan.visit(|_, _| -> ControlFlow<()> {
                lent += 1;
                assert!(lent < 10);
                ControlFlow::Continue(())
            })
        });
        assert!(std::panic::catch_unwind(visit).is_err());
        assert!(scan.next().is_none());
    }

    #[test]
    fn an_expired_scan_fails_even_at_its_end() {
        let directory = tempfile::tempdir().unwrap();
        let (store, rows) = rows_in_tables_and_memtable(&directory.path().join("store"));
        let snapshot = store.snapshot().unwrap();
        let mut nothing = snapshot.range(&rows, ROWS.to_be_bytes()..);
        store.transact(|txn| txn.put(&rows, "newer", "")).unwrap();
        store.inner.coordinator.maintain(std::time::Duration::ZERO);
        let end = nothing.visit(|_, _| ControlFlow::<()>::Continue(()));
        assert!(matches!(end.unwrap_err().kind(), crate::ErrorKind::SnapshotTooOld(_)));
    }

    #[test]
    fn one_visit_of_the_engine_is_bounded() {
        let directory = tempfile::tempdir().unwrap();
        let (store, rows) = rows_in_tables_and_memtable(&directory.path().join("store"));
        let (mut lent, mut pieces) = (0, 0);
        let (start, end) = (Bound::Included(rows.row(b"").as_bytes().to_vec()), Bound::Unbounded);
        let mut cursor = ColumnCursor::new(Column::Write, Some(RowRange { start, end }));
        let engine = store.inner.engine.snapshot().unwrap();
        loop {
            pieces += 1;
            let before = lent;
            let has_more = cursor
                .visit_unread(&*engine, |_, _| {
                    lent += 1;
                    true
                })
                .unwrap();
            assert!(lent - before <= 512);
            if !has_more {
                break;
            }
        }
        assert_eq!((lent, pieces), (ROWS, 6));
    }
}
