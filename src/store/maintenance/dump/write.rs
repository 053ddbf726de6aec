//! Writing dumps.
//!
//! After the header come a list of all keyspaces, then the rows of each keyspace in blocks, then
//! the totals. An incremental dump has only the changed rows of a keyspace that existed at its
//! start timestamp, and all rows of a newer one.

use std::collections::BTreeSet;
use std::io::Write;
use std::ops::ControlFlow;
use std::sync::Arc;

use crate::coordinator::check_within_retention;
use crate::error::{Error, Result};
use crate::read_view::ReadView;
use crate::row::{KeyspaceId, Value};
use crate::store::catalog::reader::CatalogReader;
use crate::store::keyspace::Keyspace;
use crate::store::maintenance::dump::blocks::{BLOCK_BYTES, BLOCK_ROWS, DumpBlock, DumpWriter};
use crate::store::maintenance::dump::{DumpBase, DumpOptions, DumpStats, changes};
use crate::store::maintenance::progress::{IntoControlFlow, check_progress};
use crate::store::read::key_range::key_range_in;
use crate::store::read::snapshot::Snapshot;
use crate::timestamp::Timestamp;

impl Snapshot {
    /// Writes all keyspaces and rows of the snapshot, compressed with LZ4, for
    /// [`Store::restore`](crate::Store::restore). `progress` is called after each block, and may
    /// [cancel](IntoControlFlow) the dump.
    ///
    /// The dump needs memory for about three times the rows of one block. A block has about 256 KiB
    /// of rows, or more if its last value is larger. If the snapshot expires before the dump ends,
    /// the dump fails with [`ErrorKind::SnapshotTooOld`](crate::ErrorKind::SnapshotTooOld). A
    /// snapshot expires [`Builder::max_snapshot_age`](crate::Builder::max_snapshot_age) after its
    /// state is replaced, which is at the latest at the first commit that it does not show. A
    /// snapshot of [`Store::snapshot_at`](crate::Store::snapshot_at) expires that long after the
    /// call. In a store opened [read-only](crate::Builder::read_only) or on a shared engine a
    /// snapshot never expires.
    ///
    /// All dumped rows are durable, also with
    /// [`Durability::Buffered`](crate::Durability::Buffered), because the dump first waits for a
    /// sync.
    ///
    /// ```
    /// # fn main() -> percolite::Result<()> {
    /// use percolite::{OnExisting, Store};
    /// let store = Store::in_memory()?;
    /// let towns = store.keyspace("towns")?;
    /// store.transact(|txn| txn.put(&towns, "Oslo", "717710"))?;
    ///
    /// let mut dump = Vec::new();
    /// store.snapshot()?.dump(&mut dump, |_| ())?;
    ///
    /// let copy = Store::in_memory()?;
    /// let restored = copy.restore(dump.as_slice(), OnExisting::Fail, |_| ())?;
    /// assert_eq!((restored.keyspaces, restored.rows), (1, 1));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::Io`](crate::ErrorKind::Io) if `to` fails,
    /// [`ErrorKind::Cancelled`](crate::ErrorKind::Cancelled), and those of [`Snapshot::get`] and
    /// [`Store::sync`](crate::Store::sync). After an error the output is not a complete dump, and a
    /// restore refuses it.
    pub fn dump<P: IntoControlFlow>(&self, to: impl Write, progress: impl FnMut(&DumpStats) -> P) -> Result<DumpStats> {
        self.dump_with(DumpOptions::default(), to, progress)
    }

    /// [`Snapshot::dump`] with options: uncompressed, or an *incremental dump*, which has only what
    /// was committed after a timestamp, its start.
    ///
    /// A full dump and a chain of incremental dumps, each starting where the dump before it ends,
    /// are equivalent to a full dump taken at the end of the chain. One pass over the newest
    /// versions of all rows finds the changed and deleted rows, with memory for one block.
    /// Keyspaces that were created or truncated since the start are dumped whole. The store's
    /// [history](crate::Builder::history_retention) must go back to the start, because history
    /// keeps the tombstones of deleted rows.
    ///
    /// ```
    /// # fn main() -> percolite::Result<()> {
    /// use std::time::Duration;
    /// use percolite::{DumpHeader, DumpOptions, OnExisting, Store};
    /// let store = Store::builder().history_retention(Duration::from_secs(3600)).in_memory()?;
    /// let towns = store.keyspace("towns")?;
    /// store.transact(|txn| {
    ///     txn.put(&towns, "Oslo", "717710")?;
    ///     txn.put(&towns, "Atlantis", "0")
    /// })?;
    /// let mut sunday = Vec::new();
    /// store.snapshot()?.dump(&mut sunday, |_| ())?;
    ///
    /// store.transact(|txn| {
    ///     txn.put(&towns, "Bergen", "291940")?;
    ///     txn.delete(&towns, "Atlantis")
    /// })?;
    /// let mut monday = Vec::new();
    /// let changes = DumpOptions::default().since(DumpHeader::read(sunday.as_slice())?);
    /// let dumped = store.snapshot()?.dump_with(changes, &mut monday, |_| ())?;
    /// assert_eq!((dumped.rows, dumped.deleted_rows), (1, 1));
    ///
    /// let copy = Store::in_memory()?;
    /// copy.restore(sunday.as_slice(), OnExisting::Fail, |_| ())?;
    /// copy.restore(monday.as_slice(), OnExisting::Fail, |_| ())?;
    /// let towns = copy.keyspace("towns")?;
    /// let snapshot = copy.snapshot()?;
    /// assert!(snapshot.contains_key(&towns, "Bergen")?);
    /// assert!(!snapshot.contains_key(&towns, "Atlantis")?);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// Those of [`Snapshot::dump`], and for an incremental dump:
    /// - [`ErrorKind::SnapshotTooOld`](crate::ErrorKind::SnapshotTooOld): the history does not go
    ///   back to its start.
    /// - [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument): the store has no
    ///   history; the start is after the snapshot; the base dump is of another store, or has no
    ///   store id; or acknowledged commits [were lost](crate::Store::data_losses), which the base
    ///   dump may contain.
    pub fn dump_with<P: IntoControlFlow>(
        &self,
        options: DumpOptions,
        to: impl Write,
        mut progress: impl FnMut(&DumpStats) -> P,
    ) -> Result<DumpStats> {
        let progress = |so_far: &DumpStats| {
            let stopped = || format!("stopped after {} rows; the output is not a complete dump", so_far.rows);
            check_progress(progress(so_far), stopped)
        };
        let store_id = self.store.inner.store_id()?;
        let base = options.since.map(|since| self.increment_base(since, store_id)).transpose()?;
        self.store.inner.wait_durable_up_to(self.read_ts())?;
        let (read_ts, since) = (self.read_ts(), base.as_ref().map(|base| base.ts));
        let mut dump = DumpJob {
            out: DumpWriter::begin(to, options.compression)?,
            stats: DumpStats { read_ts, since, ..DumpStats::default() },
            current_keyspace: None,
            rows: Vec::new(),
            deleted: Vec::new(),
            bytes: 0,
            progress,
        };
        dump.out.write(&DumpBlock::Header { store_id, read_ts, since })?;
        let is_new = |id: KeyspaceId| base.as_ref().is_none_or(|base| !base.keyspaces.contains(&id.0));
        let keyspaces = self.keyspaces()?;
        for keyspace in &keyspaces {
            let (id, name) = (keyspace.id().0, keyspace.name().to_owned());
            dump.out.write(&DumpBlock::Keyspace { id, name, is_new: is_new(keyspace.id()) })?;
            dump.stats.keyspaces += 1;
        }
        for keyspace in &keyspaces {
            match since.filter(|_| !is_new(keyspace.id())) {
                Some(since) => dump.changed_rows(self, keyspace, since)?,
                None => dump.full_keyspace(self, keyspace)?,
            }
        }
        dump.finish()
    }

    /// Checks the start of an incremental dump, and reads which keyspaces existed at the start.
    fn increment_base(&self, since: DumpBase, store_id: Option<u64>) -> Result<IncrementBase> {
        let ts = match since {
            DumpBase::Timestamp(ts) => ts,
            DumpBase::Dump(header) => {
                if header.store_id.is_none() || header.store_id != store_id {
                    return Err(Error::invalid(
                        "the base dump is not of this store, or the store has lost commits since: take a full dump",
                    ));
                }
                header.read_ts
            }
        };
        if ts > self.read_ts() {
            let what =
                format!("the incremental dump would start at {ts:#}, after the snapshot at {:#}", self.read_ts());
            return Err(Error::invalid(what));
        }
        if store_id.is_none() {
            return Err(Error::invalid(
                "the store has no store id, which an incremental dump needs: a store in a directory gets one when it is \
                 opened for writing, one on a shared engine never",
            ));
        }
        // `oldest_ts`, the start of the history, only increases. So a start of the dump that is
        // within the history now was also within it when the view was taken, and the view has all
        // tombstones from the start on.
        check_within_retention(ts, self.store.inner.coordinator.retention().map(|retention| retention.oldest_ts))?;
        if !self.store.data_losses().is_empty() {
            return Err(Error::invalid(
                "the store has lost acknowledged commits, which the base dump may contain: take a full dump",
            ));
        }
        let view = &self.reader.view;
        let view_at_start = ReadView::new(ts, Arc::clone(&view.snapshot), view.must_check_locks);
        Ok(IncrementBase { ts, keyspaces: CatalogReader::new(&self.store).ids_at(&view_at_start)? })
    }
}

/// The start of an incremental dump.
struct IncrementBase {
    ts: Timestamp,
    /// The ids of the keyspaces that existed at the start.
    keyspaces: BTreeSet<u32>,
}

/// A dump that is being written.
struct DumpJob<W, F> {
    out: DumpWriter<W>,
    stats: DumpStats,
    /// The keyspace of the last section block.
    current_keyspace: Option<u32>,
    /// The rows of the next block.
    rows: Vec<(Value, Value)>,
    deleted: Vec<Value>,
    bytes: usize,
    progress: F,
}

impl<W: Write, F: FnMut(&DumpStats) -> Result<()>> DumpJob<W, F> {
    fn full_keyspace(&mut self, snapshot: &Snapshot, keyspace: &Keyspace) -> Result<()> {
        let result = snapshot.range(keyspace, ..).visit(|key, value| match self.row(keyspace, key, Some(value)) {
            Ok(()) => ControlFlow::Continue(()),
            Err(error) => ControlFlow::Break(error),
        })?;
        match result {
            ControlFlow::Continue(()) => self.finish_keyspace(keyspace),
            ControlFlow::Break(error) => Err(error),
        }
    }

    fn changed_rows(&mut self, snapshot: &Snapshot, keyspace: &Keyspace, since: Timestamp) -> Result<()> {
        let range = key_range_in(keyspace, &..);
        changes::visit_changed_rows(&snapshot.store, &snapshot.reader.view, range, since, |key, value| {
            self.row(keyspace, key, value)
        })?;
        self.finish_keyspace(keyspace)
    }

    fn row(&mut self, keyspace: &Keyspace, key: &[u8], value: Option<&[u8]>) -> Result<()> {
        let bytes = key.len() + value.map_or(0, <[u8]>::len);
        self.stats.bytes += bytes as u64;
        self.bytes += bytes;
        if let Some(value) = value {
            self.stats.rows += 1;
            self.rows.push((key.into(), value.into()));
        } else {
            self.stats.deleted_rows += 1;
            self.deleted.push(key.into());
        }
        if self.bytes >= BLOCK_BYTES || self.rows.len() + self.deleted.len() >= BLOCK_ROWS {
            self.flush(keyspace)?;
            (self.progress)(&self.stats)?;
        }
        Ok(())
    }

    fn finish_keyspace(&mut self, keyspace: &Keyspace) -> Result<()> {
        self.flush(keyspace)?;
        (self.progress)(&self.stats)
    }

    fn flush(&mut self, keyspace: &Keyspace) -> Result<()> {
        self.bytes = 0;
        if self.rows.is_empty() && self.deleted.is_empty() {
            return Ok(());
        }
        let id = keyspace.id().0;
        if self.current_keyspace != Some(id) {
            self.out.write(&DumpBlock::Section(id))?;
            self.current_keyspace = Some(id);
        }
        if !self.rows.is_empty() {
            self.out.write(&DumpBlock::Rows(std::mem::take(&mut self.rows)))?;
        }
        if !self.deleted.is_empty() {
            self.out.write(&DumpBlock::Deleted(std::mem::take(&mut self.deleted)))?;
        }
        Ok(())
    }

    fn finish(mut self) -> Result<DumpStats> {
        let DumpStats { keyspaces, rows, deleted_rows: deleted, .. } = self.stats;
        self.out.write(&DumpBlock::Totals { keyspaces, rows, deleted })?;
        self.out.finish()?;
        Ok(self.stats)
    }
}
