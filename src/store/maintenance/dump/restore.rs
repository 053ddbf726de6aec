//! Putting dumps back.
//!
//! **A restore happens as a whole or not at all.** Rows of new keyspaces go into such as have a number but no name yet, and stand in
//! the catalog among those that were dropped; one transaction at the end gives them their names. Whatever ends a restore early,
//! a damaged dump or a power cut, the background erases what there is of it. An increment changes the rows that are there in that same
//! transaction.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;

use crate::error::{Error, Result};
use crate::row::Bytes;
use crate::store::catalog::{Increment, Listed, RestoreOrigin, StagedKeyspaces, check_name};
use crate::store::maintenance::dump::blocks::{DumpBlock, DumpReader};
use crate::store::maintenance::dump::{DumpHeader, DumpStats, OnExisting};
use crate::store::maintenance::progress::{IntoControlFlow, check_progress};
use crate::store::{Durability, Keyspace, MAX_KEY_BYTES, Store, TxnOptions};

const NOTHING_RESTORED: &str = ", so nothing of it was restored";

impl Store {
    /// Puts everything that a [dump](crate::Snapshot::dump) holds into this store: all of it, durably, or nothing. Every timestamp
    /// that the store hands out from here on is greater than those in the store that was dumped. `progress` is called after each block,
    /// and may [stop](IntoControlFlow) it: nothing is restored then. It takes memory for one block, about three times the longest value,
    /// whatever the dump says.
    ///
    /// An [increment](crate::Snapshot::dump_with) goes onto a store to which the dump before it was the last to be restored
    /// ([`Store::restored_ts`]), and onto no other. The store then has the source's keyspaces and rows as of the new moment, so far as
    /// nobody wrote here: rows that were written here meanwhile are replaced where the source has changed them since, and stay as they
    /// are where it has not. All of it is one large transaction ([`Builder::large_transaction_bytes`](crate::Builder::large_transaction_bytes)), which locks
    /// the rows that it changes: a concurrent transaction that writes one of them, or the restore, ends with a conflict. It must not
    /// take longer than [`Builder::max_snapshot_age`](crate::Builder::max_snapshot_age) where the store is written to.
    ///
    /// # Errors
    /// [`ErrorKind::UnrecognizedFormat`](crate::ErrorKind::UnrecognizedFormat) when it is no dump or one of a format that this program does not know,
    /// [`ErrorKind::Corruption`](crate::ErrorKind::Corruption) when it is damaged or was cut off;
    /// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) when the store has keyspaces and [`OnExisting::Fail`] is said, when
    /// an increment does not follow what was restored last, when a keyspace that it changes was dropped here, and when the store is
    /// read-only or shared with other processes; [`ErrorKind::Io`](crate::ErrorKind::Io) when `from` cannot be read;
    /// [`ErrorKind::Cancelled`](crate::ErrorKind::Cancelled); of an increment [`ErrorKind::Conflict`](crate::ErrorKind::Conflict) and
    /// [`ErrorKind::SnapshotTooOld`](crate::ErrorKind::SnapshotTooOld); and those of a commit.
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
                "the store is not empty: restore into a new one, or say that keyspaces may be replaced",
            ));
        }
        let mut restoring = RestoreJob::new(self, header, existing);
        while restoring.apply_block(&mut from)? {
            let so_far = &restoring.restored;
            check_progress(progress(so_far), || format!("stopped after {} rows; nothing was restored", so_far.rows))?;
        }
        // Not before it is known that it fits and is whole: timestamps never go back.
        self.inner.coordinator.advance_past(header.read_ts)?;
        restoring.finish()
    }
}

/// A restore at work.
struct RestoreJob<'a> {
    store: &'a Store,
    header: DumpHeader,
    existing: OnExisting,
    restored: DumpStats,
    names: BTreeSet<String>,
    section: Option<(Keyspace, bool)>,
    into: RestoreTarget<'a>,
}

/// Where the rows go.
enum RestoreTarget<'a> {
    /// New keyspaces, by their numbers at the source.
    NewKeyspaces(StagedKeyspaces<'a>, BTreeMap<u32, Keyspace>),
    /// An increment whose keyspaces are not known yet.
    ReadingHeader(Vec<Listed>),
    /// An increment.
    Incremental(Box<Increment<'a>>),
}

impl<'a> RestoreJob<'a> {
    fn new(store: &'a Store, header: DumpHeader, existing: OnExisting) -> Self {
        let restored = DumpStats { read_ts: header.read_ts, since: header.since, ..DumpStats::default() };
        let into = match header.since {
            None => RestoreTarget::NewKeyspaces(StagedKeyspaces::new(store), BTreeMap::new()),
            Some(_) => RestoreTarget::ReadingHeader(Vec::new()),
        };
        Self { store, header, existing, restored, names: BTreeSet::new(), section: None, into }
    }

    /// Takes the next block; the answer is whether there are more.
    fn apply_block<R: Read>(&mut self, from: &mut DumpReader<R>) -> Result<bool> {
        let block = from.read()?;
        if let (RestoreTarget::ReadingHeader(listed), false) = (&self.into, matches!(block, DumpBlock::Keyspace { .. }))
        {
            let increment = Increment::begin(self.store, &self.header, listed, self.existing)?;
            self.into = RestoreTarget::Incremental(Box::new(increment));
        }
        match block {
            DumpBlock::Begin { .. } | DumpBlock::Header { .. } => return Err(from.corrupt("begins a second time")),
            DumpBlock::Keyspace { number, name, is_new } => {
                self.add_keyspace(from, Listed { id: number, name, is_new })?
            }
            DumpBlock::Named(name) => {
                // In format 1 they have no numbers, and are rarely as many as there are numbers.
                let number =
                    u32::try_from(self.restored.keyspaces).map_err(|_| from.corrupt("has too many keyspaces"))?;
                self.add_keyspace(from, Listed { id: number, name, is_new: true })?;
                self.section = self.keyspace_for(number);
            }
            DumpBlock::Section(number) => {
                let target = self.keyspace_for(number);
                self.section =
                    Some(target.ok_or_else(|| from.corrupt("has rows of a keyspace that it does not list"))?);
            }
            DumpBlock::Rows(rows) => self.put(from, &rows)?,
            DumpBlock::Deleted(keys) => self.delete(from, &keys)?,
            DumpBlock::End { keyspaces, rows } => return self.end(from, (keyspaces, rows, 0)),
            DumpBlock::Totals { keyspaces, rows, deleted } => return self.end(from, (keyspaces, rows, deleted)),
        }
        Ok(true)
    }

    fn add_keyspace<R: Read>(&mut self, from: &DumpReader<R>, listed: Listed) -> Result<()> {
        if check_name(&listed.name).is_err() {
            return Err(from.corrupt(&format!("has a keyspace whose name none can have: {:?}", listed.name)));
        }
        if !self.names.insert(listed.name.clone()) || self.keyspace_for(listed.id).is_some() {
            return Err(from.corrupt(&format!("has the keyspace {:?} a second time", listed.name)));
        }
        match &mut self.into {
            RestoreTarget::NewKeyspaces(unnamed, targets) => {
                unnamed.create(&listed.name)?;
                targets.extend(unnamed.last().map(|keyspace| (listed.id, keyspace)));
            }
            RestoreTarget::ReadingHeader(all) if all.iter().all(|other| other.id != listed.id) => all.push(listed),
            RestoreTarget::ReadingHeader(_) | RestoreTarget::Incremental(_) => {
                return Err(from.corrupt(&format!("lists the keyspace {:?} where it must not", listed.name)));
            }
        }
        self.restored.keyspaces += 1;
        Ok(())
    }

    fn keyspace_for(&self, number: u32) -> Option<(Keyspace, bool)> {
        match &self.into {
            RestoreTarget::NewKeyspaces(_, targets) => targets.get(&number).map(|keyspace| (keyspace.clone(), true)),
            RestoreTarget::ReadingHeader(_) => None,
            RestoreTarget::Incremental(increment) => increment.target(number),
        }
    }

    fn put<R: Read>(&mut self, from: &DumpReader<R>, rows: &[(Bytes, Bytes)]) -> Result<()> {
        check_keys(from, rows.iter().map(|(key, _)| key))?;
        let (keyspace, apart) = self.section.as_ref().ok_or_else(|| from.corrupt("has rows before any keyspace"))?;
        match &mut self.into {
            RestoreTarget::Incremental(increment) if !apart => {
                rows.iter().try_for_each(|(key, value)| increment.apply_row(keyspace, &key.0, Some(&value.0)))?;
            }
            _ => {
                let buffered = TxnOptions { durability: Some(Durability::Buffered), ..TxnOptions::default() };
                self.store.transact_with(buffered, |txn| {
                    // Only this restore writes to the keyspace; a forgetful conflict memory must not make up another writer.
                    txn.skip_conflict_check();
                    rows.iter().try_for_each(|(key, value)| txn.put(keyspace, &key.0, &value.0))
                })?;
            }
        }
        crash_point!(RestoreBetween);
        self.restored.rows += rows.len() as u64;
        self.restored.bytes += rows.iter().map(|(key, value)| (key.0.len() + value.0.len()) as u64).sum::<u64>();
        Ok(())
    }

    fn delete<R: Read>(&mut self, from: &DumpReader<R>, keys: &[Bytes]) -> Result<()> {
        check_keys(from, keys.iter())?;
        let (Some((keyspace, false)), RestoreTarget::Incremental(increment)) = (&self.section, &mut self.into) else {
            return Err(from.corrupt("deletes rows where there can be none"));
        };
        keys.iter().try_for_each(|key| increment.apply_row(keyspace, &key.0, None))?;
        crash_point!(RestoreBetween);
        self.restored.deleted_rows += keys.len() as u64;
        self.restored.bytes += keys.iter().map(|key| key.0.len() as u64).sum::<u64>();
        Ok(())
    }

    fn end<R: Read>(&mut self, from: &mut DumpReader<R>, told: (u64, u64, u64)) -> Result<bool> {
        let DumpStats { keyspaces, rows, deleted_rows: deleted, .. } = self.restored;
        if told != (keyspaces, rows, deleted) {
            return Err(from.corrupt("does not hold as much as it says"));
        }
        from.expect_end()?;
        Ok(false)
    }

    fn finish(self) -> Result<DumpStats> {
        crash_point!(RestoreAll);
        match self.into {
            RestoreTarget::NewKeyspaces(unnamed, targets) => {
                let keyspaces = targets.iter().map(|(number, keyspace)| (*number, keyspace.id())).collect();
                let moment = self.header.read_ts;
                let origin = self.header.store_id.map(|source| RestoreOrigin {
                    store_id: source,
                    restored_ts: moment,
                    keyspaces,
                });
                unnamed.publish(self.existing, origin.as_ref())?;
            }
            RestoreTarget::Incremental(increment) => increment.commit()?,
            RestoreTarget::ReadingHeader(_) => return Err(Error::invalid("the dump has no end")),
        }
        crash_point!(RestoreNamed);
        Ok(self.restored)
    }
}

/// Values have their limit from the length of a block.
fn check_keys<'a, R: Read>(from: &DumpReader<R>, mut keys: impl Iterator<Item = &'a Bytes>) -> Result<()> {
    match keys.find(|key| key.0.is_empty() || key.0.len() > MAX_KEY_BYTES) {
        Some(key) => Err(from.corrupt(&format!("has a key of {} bytes, which none can have", key.0.len()))),
        None => Ok(()),
    }
}
