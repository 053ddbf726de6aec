//! Restoring dumps.
//!
//! **A restore is atomic.** Rows of new keyspaces are written into staged keyspaces: these have an
//! id but no name, and the catalog lists them as dropped. One transaction at the end gives them
//! their names. If the restore ends early, through a damaged dump or a power cut, the background
//! worker purges the staged keyspaces. The transaction that gives the names also writes the rows
//! that an incremental dump changes in existing keyspaces.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;

use crate::error::{Error, Result};
use crate::store::catalog::entries::check_name;
use crate::store::catalog::incremental_restore::{Increment, Listed};
use crate::store::catalog::restore_origin::RestoreOrigin;
use crate::store::catalog::staging::StagedKeyspaces;
use crate::store::handle::Store;
use crate::store::keyspace::Keyspace;
use crate::store::limits::MAX_KEY_BYTES;
use crate::store::maintenance::dump::blocks::{DumpBlock, DumpReader};
use crate::store::maintenance::dump::{DumpHeader, DumpStats, OnExisting};
use crate::store::maintenance::progress::{IntoControlFlow, check_progress};
use crate::store::options::{Durability, TxnOptions};
use crate::timestamp::Timestamp;
use crate::value::Value;

const NOTHING_RESTORED: &str = "; nothing was restored";

impl Store {
    /// Restores a [dump](crate::Snapshot::dump) into this store, atomically and durably. Every
    /// later timestamp of this store is above those of the commits in the dump. `progress` is
    /// called after each block, and may [cancel](IntoControlFlow) the restore, which then restores
    /// nothing. The dump is read one block at a time, which takes at most about three times
    /// [`MAX_VALUE_BYTES`](crate::MAX_VALUE_BYTES) of memory, even if the dump is malicious.
    ///
    /// An [incremental dump](crate::Snapshot::dump_with) can only be restored into a store whose
    /// last restored dump ended where the incremental one starts ([`Store::restored_ts`]). The
    /// store then has the source's keyspaces and rows as of the end of the dump, except for rows
    /// that were written in this store between the two restores: such a row is replaced if the dump
    /// changes it, and stays otherwise.
    ///
    /// An incremental dump is restored by one large transaction
    /// ([`Builder::large_transaction_bytes`](crate::Builder::large_transaction_bytes)), which locks
    /// the rows that it changes. A transaction that writes such a row while it is locked fails with
    /// a conflict. So does the restore, if it meets the lock of another transaction. In a store
    /// that is written to, the restore must not take longer than
    /// [`Builder::max_snapshot_age`](crate::Builder::max_snapshot_age).
    ///
    /// # Errors
    /// - [`ErrorKind::UnrecognizedFormat`](crate::ErrorKind::UnrecognizedFormat): not a dump, or an
    ///   unknown format.
    /// - [`ErrorKind::Corruption`](crate::ErrorKind::Corruption): the dump is damaged or truncated.
    /// - [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument): the store has keyspaces
    ///   and `existing` is [`OnExisting::Fail`]; an incremental dump does not start where the last
    ///   restored dump ended; a keyspace that it changes was dropped in this store; the store is
    ///   read-only or on a shared engine.
    /// - [`ErrorKind::Io`](crate::ErrorKind::Io): `from` cannot be read.
    /// - [`ErrorKind::Cancelled`](crate::ErrorKind::Cancelled).
    /// - [`ErrorKind::Conflict`](crate::ErrorKind::Conflict) and
    ///   [`ErrorKind::SnapshotTooOld`](crate::ErrorKind::SnapshotTooOld), of an incremental dump.
    /// - Those of [`Txn::commit`](crate::Txn::commit).
    pub fn restore<P: IntoControlFlow>(
        &self,
        from: impl Read,
        existing: OnExisting,
        mut progress: impl FnMut(&DumpStats) -> P,
    ) -> Result<DumpStats> {
        self.inner.check_open()?;
        self.inner.check_writable()?;
        if !self.inner.coordinator.is_exclusive() {
            return Err(Error::invalid("not supported on a shared engine: restoring a dump"));
        }
        let mut from = DumpReader::open(from, NOTHING_RESTORED)?;
        let header = from.header()?;
        if header.since.is_none() && existing == OnExisting::Fail && !self.keyspace_names()?.is_empty() {
            return Err(Error::invalid(
                "the store is not empty: restore into a new store, or pass OnExisting::Replace",
            ));
        }
        let mut job = RestoreJob::new(self, header, existing);
        while job.apply_block(&mut from)? {
            let so_far = &job.restored;
            check_progress(progress(so_far), || format!("stopped after {} rows; nothing was restored", so_far.rows))?;
        }
        // Called only after the whole dump is read and checked, because the advance cannot be
        // undone: timestamps never decrease.
        self.inner.coordinator.advance_past(header.read_ts)?;
        job.finish()
    }

    /// The end of the last restored dump, as a timestamp of the source store: see
    /// [`Store::restore`]. The next incremental dump must start at this timestamp. `None` if
    /// nothing was restored, or if the dump had no store id. Writes to this store do not change the
    /// timestamp.
    ///
    /// # Errors
    /// Those of [`Snapshot::get`](crate::Snapshot::get).
    pub fn restored_ts(&self) -> Result<Option<Timestamp>> {
        RestoreOrigin::restored_ts(&self.snapshot()?, &self.inner.catalog.keyspace())
    }
}

/// A restore in progress.
struct RestoreJob<'a> {
    store: &'a Store,
    header: DumpHeader,
    existing: OnExisting,
    restored: DumpStats,
    /// The names of all keyspaces that the dump lists.
    names: BTreeSet<String>,
    /// The keyspace of the rows that follow, and whether it is staged.
    current_keyspace: Option<(Keyspace, bool)>,
    target: RestoreTarget<'a>,
}

/// The keyspaces that the rows are written to.
enum RestoreTarget<'a> {
    /// A full dump: staged keyspaces, by their ids in the source store.
    NewKeyspaces(StagedKeyspaces<'a>, BTreeMap<u32, Keyspace>),
    /// An incremental dump whose list of keyspaces is being read.
    ReadingHeader(Vec<Listed>),
    /// An incremental dump whose rows are being read.
    Incremental(Box<Increment<'a>>),
}

impl<'a> RestoreJob<'a> {
    fn new(store: &'a Store, header: DumpHeader, existing: OnExisting) -> Self {
        let restored = DumpStats { read_ts: header.read_ts, since: header.since, ..DumpStats::default() };
        let target = match header.since {
            None => RestoreTarget::NewKeyspaces(StagedKeyspaces::new(store), BTreeMap::new()),
            Some(_) => RestoreTarget::ReadingHeader(Vec::new()),
        };
        Self { store, header, existing, restored, names: BTreeSet::new(), current_keyspace: None, target }
    }

    /// Reads and applies the next block; returns whether there are more.
    fn apply_block<R: Read>(&mut self, from: &mut DumpReader<R>) -> Result<bool> {
        let block = from.read()?;
        if let (RestoreTarget::ReadingHeader(listed), false) =
            (&self.target, matches!(block, DumpBlock::Keyspace { .. }))
        {
            let increment = Increment::begin(self.store, &self.header, listed, self.existing)?;
            self.target = RestoreTarget::Incremental(Box::new(increment));
        }
        match block {
            DumpBlock::Header { .. } => return Err(from.corrupt("has a second header")),
            DumpBlock::Keyspace { id, name, is_new } => self.add_keyspace(from, Listed { id, name, is_new })?,
            DumpBlock::Section(id) => {
                let target = self.keyspace_for(id);
                self.current_keyspace =
                    Some(target.ok_or_else(|| from.corrupt("has rows of a keyspace that it does not list"))?);
            }
            DumpBlock::Rows(rows) => self.put(from, &rows)?,
            DumpBlock::Deleted(keys) => self.delete(from, &keys)?,
            DumpBlock::Totals { keyspaces, rows, deleted } => {
                return self.check_totals(from, (keyspaces, rows, deleted));
            }
        }
        Ok(true)
    }

    fn add_keyspace<R: Read>(&mut self, from: &DumpReader<R>, listed: Listed) -> Result<()> {
        if check_name(&listed.name).is_err() {
            return Err(from.corrupt(&format!("has an invalid keyspace name: {:?}", listed.name)));
        }
        if !self.names.insert(listed.name.clone()) || self.keyspace_for(listed.id).is_some() {
            return Err(from.corrupt(&format!("lists the keyspace {:?} twice", listed.name)));
        }
        match &mut self.target {
            RestoreTarget::NewKeyspaces(staged, targets) => {
                staged.create(&listed.name)?;
                targets.extend(staged.last().map(|keyspace| (listed.id, keyspace)));
            }
            RestoreTarget::ReadingHeader(all) if all.iter().all(|other| other.id != listed.id) => all.push(listed),
            RestoreTarget::ReadingHeader(_) | RestoreTarget::Incremental(_) => {
                return Err(from.corrupt(&format!("lists the keyspace {:?} twice or in the wrong place", listed.name)));
            }
        }
        self.restored.keyspaces += 1;
        Ok(())
    }

    /// The keyspace with this id in the source store, and whether it is staged.
    fn keyspace_for(&self, id: u32) -> Option<(Keyspace, bool)> {
        match &self.target {
            RestoreTarget::NewKeyspaces(_, targets) => targets.get(&id).map(|keyspace| (keyspace.clone(), true)),
            RestoreTarget::ReadingHeader(_) => None,
            RestoreTarget::Incremental(increment) => increment.target(id),
        }
    }

    fn put<R: Read>(&mut self, from: &DumpReader<R>, rows: &[(Value, Value)]) -> Result<()> {
        check_keys(from, rows.iter().map(|(key, _)| key))?;
        let (keyspace, is_staged) =
            self.current_keyspace.as_ref().ok_or_else(|| from.corrupt("has rows before any keyspace"))?;
        match &mut self.target {
            RestoreTarget::Incremental(increment) if !is_staged => {
                rows.iter().try_for_each(|(key, value)| increment.apply_row(keyspace, &key.0, Some(&value.0)))?;
            }
            _ => {
                let buffered = TxnOptions::default().durability(Durability::Buffered);
                self.store.transact_with(buffered, |txn| {
                    // Only this restore writes to the keyspace, so a conflict could only be
                    // spurious, due to the bounded size of the conflict set.
                    txn.skip_conflict_check();
                    rows.iter().try_for_each(|(key, value)| txn.put(keyspace, &key.0, value))
                })?;
            }
        }
        crash_point!(RestoreBetween);
        self.restored.rows += rows.len() as u64;
        self.restored.bytes += rows.iter().map(|(key, value)| (key.0.len() + value.0.len()) as u64).sum::<u64>();
        Ok(())
    }

    fn delete<R: Read>(&mut self, from: &DumpReader<R>, keys: &[Value]) -> Result<()> {
        check_keys(from, keys.iter())?;
        let (Some((keyspace, false)), RestoreTarget::Incremental(increment)) =
            (&self.current_keyspace, &mut self.target)
        else {
            return Err(from.corrupt("deletes rows of a keyspace that has no base"));
        };
        keys.iter().try_for_each(|key| increment.apply_row(keyspace, &key.0, None))?;
        crash_point!(RestoreBetween);
        self.restored.deleted_rows += keys.len() as u64;
        self.restored.bytes += keys.iter().map(|key| key.0.len() as u64).sum::<u64>();
        Ok(())
    }

    fn check_totals<R: Read>(&mut self, from: &mut DumpReader<R>, totals: (u64, u64, u64)) -> Result<bool> {
        let DumpStats { keyspaces, rows, deleted_rows: deleted, .. } = self.restored;
        if totals != (keyspaces, rows, deleted) {
            return Err(from.corrupt("has counts that do not match its content"));
        }
        from.expect_end()?;
        Ok(false)
    }

    fn finish(self) -> Result<DumpStats> {
        crash_point!(RestoreAll);
        match self.target {
            RestoreTarget::NewKeyspaces(staged, targets) => {
                let keyspaces = targets.iter().map(|(id, keyspace)| (*id, keyspace.id())).collect();
                let restored_ts = self.header.read_ts;
                let origin = self.header.store_id.map(|store_id| RestoreOrigin { store_id, restored_ts, keyspaces });
                staged.publish(self.existing, origin.as_ref())?;
            }
            RestoreTarget::Incremental(increment) => increment.commit()?,
            RestoreTarget::ReadingHeader(_) => return Err(Error::invalid("the dump has no last block")),
        }
        crash_point!(RestoreNamed);
        Ok(self.restored)
    }
}

/// Fails if a key is empty or too long: the dump is then corrupt. The size of the values is checked
/// when the rows are written.
fn check_keys<'a, R: Read>(from: &DumpReader<R>, mut keys: impl Iterator<Item = &'a Value>) -> Result<()> {
    match keys.find(|key| key.0.is_empty() || key.0.len() > MAX_KEY_BYTES) {
        Some(key) => {
            let what = format!("has a key of {} bytes; keys have 1 to {MAX_KEY_BYTES} bytes", key.0.len());
            Err(from.corrupt(&what))
        }
        None => Ok(()),
    }
}
