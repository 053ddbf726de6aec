//! Making dumps.

use std::collections::BTreeSet;
use std::io::Write;
use std::ops::ControlFlow;
use std::sync::Arc;

use crate::coordinator::check_within_retention;
use crate::error::{Error, Result};
use crate::read_view::ReadView;
use crate::row::{Bytes, KeyspaceId};
use crate::store::maintenance::dump::blocks::{BLOCK_BYTES, BLOCK_ROWS, DumpBlock, DumpWriter};
use crate::store::maintenance::dump::{DumpBase, DumpOptions, DumpStats, changes};
use crate::store::maintenance::progress::{IntoControlFlow, check_progress};
use crate::store::read::key_range::key_range_in;
use crate::store::{Keyspace, Snapshot};
use crate::timestamp::Timestamp;

impl Snapshot {
    /// Writes everything that the snapshot shows, every keyspace of it, in a form that [`Store::restore`](crate::Store::restore)
    /// reads; compressed by LZ4. `progress` is called after each block, and may [stop](IntoControlFlow) it.
    ///
    /// It takes memory for one block, about three times the longest value. A dump that takes longer than
    /// [`Builder::max_snapshot_age`](crate::Builder::max_snapshot_age) of a store that is written to meanwhile ends with
    /// [`ErrorKind::SnapshotTooOld`](crate::ErrorKind::SnapshotTooOld); that of one opened [read-only](crate::Builder::read_only) never does.
    ///
    /// What is dumped is durable, also where the store is opened [`Durability::Buffered`](crate::Durability::Buffered): one sync is
    /// waited for there.
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
    /// [`ErrorKind::Io`](crate::ErrorKind::Io) when `to` does not take it, [`ErrorKind::Cancelled`](crate::ErrorKind::Cancelled), and those of reading and of
    /// [`Store::sync`](crate::Store::sync). What was written until then is no whole dump, and restoring it is refused.
    pub fn dump<P: IntoControlFlow>(&self, to: impl Write, progress: impl FnMut(&DumpStats) -> P) -> Result<DumpStats> {
        self.dump_with(DumpOptions::default(), to, progress)
    }

    /// [`Snapshot::dump`] with options of its own: not compressed, or an *increment*, which has only what was committed after a moment.
    ///
    /// A chain of a full dump and increments, each of which begins where the one before it ends, holds what a full dump of the last
    /// moment would hold. Changed and deleted rows are found in one pass over the newest versions of all rows, in memory for one block;
    /// keyspaces that were created since, or truncated, are in it as a whole. The store must keep [history](crate::Builder::history_retention)
    /// that goes back to where the increment begins, since history is what keeps the records of deletions.
    ///
    /// ```
    /// # fn main() -> percolite::Result<()> {
    /// use std::time::Duration;
    /// use percolite::{DumpHeader, DumpOptions, OnExisting, Store};
    /// let store = Store::builder().history_retention(Duration::from_secs(3600)).in_memory()?;
    /// let towns = store.keyspace("towns")?;
    /// store.transact(|txn| txn.put(&towns, "Oslo", "717710").and_then(|()| txn.put(&towns, "Atlantis", "0")))?;
    /// let mut sunday = Vec::new();
    /// store.snapshot()?.dump(&mut sunday, |_| ())?;
    ///
    /// store.transact(|txn| txn.put(&towns, "Bergen", "291940").and_then(|()| txn.delete(&towns, "Atlantis")))?;
    /// let mut monday = Vec::new();
    /// let after = DumpHeader::read(sunday.as_slice())?;
    /// let dumped = store.snapshot()?.dump_with(DumpOptions::since(after), &mut monday, |_| ())?;
    /// assert_eq!((dumped.rows, dumped.deleted), (1, 1));
    ///
    /// let copy = Store::in_memory()?;
    /// copy.restore(sunday.as_slice(), OnExisting::Fail, |_| ())?;
    /// copy.restore(monday.as_slice(), OnExisting::Fail, |_| ())?;
    /// let towns = copy.keyspace("towns")?;
    /// let snapshot = copy.snapshot()?;
    /// assert!(snapshot.contains_key(&towns, "Bergen")? && !snapshot.contains_key(&towns, "Atlantis")?);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// Those of [`Snapshot::dump`]. Of an increment also [`ErrorKind::SnapshotTooOld`](crate::ErrorKind::SnapshotTooOld) when the history does not go back to where it
    /// begins, and [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) when the store keeps none, when it begins after the snapshot, when it is to
    /// follow a dump of another store or of no store that is known, and when commits [were lost](crate::Store::data_losses) from the log: what the dump
    /// before holds may be among them.
    pub fn dump_with<P: IntoControlFlow>(
        &self,
        options: DumpOptions,
        to: impl Write,
        mut progress: impl FnMut(&DumpStats) -> P,
    ) -> Result<DumpStats> {
        let progress = |so_far: &DumpStats| {
            let stopped = || format!("stopped after {} rows; what was written is no whole dump", so_far.rows);
            check_progress(progress(so_far), stopped)
        };
        let source = self.store.store_id()?;
        let base = options.since.map(|since| self.base(since, source)).transpose()?;
        self.store.wait_durable_up_to(self.read_ts())?;
        let (read_ts, since) = (self.read_ts(), base.as_ref().map(|base| base.moment));
        let mut dump = DumpJob {
            out: DumpWriter::begin(to, options.compression)?,
            dumped: DumpStats { read_ts, since, ..DumpStats::default() },
            section: None,
            rows: Vec::new(),
            deleted: Vec::new(),
            bytes: 0,
            progress,
        };
        dump.out.write(&DumpBlock::Header { source, read_ts, since })?;
        let is_new = |id: KeyspaceId| base.as_ref().is_none_or(|base| !base.keyspaces.contains(&id.0));
        let keyspaces = self.keyspaces()?;
        for keyspace in &keyspaces {
            let (number, name) = (keyspace.id().0, keyspace.name().to_owned());
            dump.out.write(&DumpBlock::Keyspace { number, name, is_new: is_new(keyspace.id()) })?;
            dump.dumped.keyspaces += 1;
        }
        for keyspace in &keyspaces {
            match since.filter(|_| !is_new(keyspace.id())) {
                Some(since) => dump.changed_rows(self, keyspace, since)?,
                None => dump.full_keyspace(self, keyspace)?,
            }
        }
        dump.finish()
    }

    /// What there was at the moment at which an increment begins.
    fn base(&self, since: DumpBase, source: Option<u64>) -> Result<IncrementBase> {
        let moment = match since {
            DumpBase::Timestamp(moment) => moment,
            DumpBase::Dump(header) => {
                if header.store_id.is_none() || header.store_id != source {
                    return Err(Error::invalid(
                        "the dump that the increment is to follow is not of this store, or part of the store's log was lost since: begin with a full dump",
                    ));
                }
                header.read_ts
            }
        };
        if moment > self.read_ts() {
            let what = format!("the increment would begin at {moment:#}, after the snapshot at {:#}", self.read_ts());
            return Err(Error::invalid(what));
        }
        if source.is_none() {
            return Err(Error::invalid(
                "the store has no number of its own by which an increment could be told from another store's: open it for writing once",
            ));
        }
        // Asked for after the view was taken: what the floor of now keeps was not collected then.
        check_within_retention(moment, self.store.inner.coordinator.retention().map(|kept| kept.oldest_ts))?;
        if !self.store.data_losses().is_empty() {
            return Err(Error::invalid(
                "part of the store's log was lost, and with it perhaps what the dump before has: begin with a full dump",
            ));
        }
        let view = &self.reader.view;
        let then = ReadView::new(moment, Arc::clone(&view.snapshot), view.must_check_locks);
        Ok(IncrementBase { moment, keyspaces: self.store.ids_at(&then)? })
    }
}

/// Where an increment begins.
struct IncrementBase {
    moment: Timestamp,
    /// By their numbers.
    keyspaces: BTreeSet<u32>,
}

/// A dump that is being written.
struct DumpJob<W, F> {
    out: DumpWriter<W>,
    dumped: DumpStats,
    /// The keyspace whose rows follow, as far as it was said.
    section: Option<u32>,
    /// The block to come.
    rows: Vec<(Bytes, Bytes)>,
    deleted: Vec<Bytes>,
    bytes: usize,
    progress: F,
}

impl<W: Write, F: FnMut(&DumpStats) -> Result<()>> DumpJob<W, F> {
    fn full_keyspace(&mut self, snapshot: &Snapshot, keyspace: &Keyspace) -> Result<()> {
        let seen = snapshot.range(keyspace, ..).visit(|key, value| match self.row(keyspace, key, Some(value)) {
            Ok(()) => ControlFlow::Continue(()),
            Err(why) => ControlFlow::Break(why),
        })?;
        match seen {
            ControlFlow::Continue(()) => self.finish_keyspace(keyspace),
            ControlFlow::Break(why) => Err(why),
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
        self.dumped.bytes += bytes as u64;
        self.bytes += bytes;
        if let Some(value) = value {
            self.dumped.rows += 1;
            self.rows.push((key.into(), value.into()));
        } else {
            self.dumped.deleted_rows += 1;
            self.deleted.push(key.into());
        }
        if self.bytes >= BLOCK_BYTES || self.rows.len() + self.deleted.len() >= BLOCK_ROWS {
            self.flush(keyspace)?;
            (self.progress)(&self.dumped)?;
        }
        Ok(())
    }

    fn finish_keyspace(&mut self, keyspace: &Keyspace) -> Result<()> {
        self.flush(keyspace)?;
        (self.progress)(&self.dumped)
    }

    fn flush(&mut self, keyspace: &Keyspace) -> Result<()> {
        self.bytes = 0;
        if self.rows.is_empty() && self.deleted.is_empty() {
            return Ok(());
        }
        let number = keyspace.id().0;
        if self.section != Some(number) {
            self.out.write(&DumpBlock::Section(number))?;
            self.section = Some(number);
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
        let DumpStats { keyspaces, rows, deleted_rows: deleted, .. } = self.dumped;
        self.out.write(&DumpBlock::Totals { keyspaces, rows, deleted })?;
        self.out.finish()?;
        Ok(self.dumped)
    }
}
