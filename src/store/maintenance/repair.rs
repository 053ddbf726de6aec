//! Repairing: everything that can still be read of a damaged store, in a new one, and a report of what could not.
//!
//! It is a dump of what is left rather than a repair in place: the damaged folder is only read, so it can be tried again with
//! better means. Each row is read as any reader would read it, its lock's fate included. What cannot be read is told, row by row
//! or stretch by stretch. Of the log all is read that lies above the tables, or from the oldest segment that is left, up to the first
//! damage. The new store is one of its own: timestamps go on above those of the old one, as far as those are known, and the history
//! stays behind.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::codec::{HistoryEntry, Record as _};
use crate::coordinator::commit_ts_from_primary;
use crate::engine::folder::salvage::{self, read_readable_cells};
use crate::engine::local::LocalEngine;
use crate::engine::storage::Column;
use crate::engine::{Engine as _, EngineError};
use crate::error::{Error, ErrorKind, Result};
use crate::keys::decode_history_key;
use crate::oracle::read_high_water;
use crate::read_view::ReadView;
use crate::row::{KeyspaceId, LockType, RowKey};
use crate::store::catalog::{CATALOG_ID, StagedKeyspaces, entry_id};
use crate::store::maintenance::progress::{IntoControlFlow, check_progress};
use crate::store::maintenance::verify::ISSUES_MAX;
use crate::store::options::MAX_TRANSACTION_BYTES;
use crate::store::read::row::{load_value, visible_version};
use crate::store::{Builder, Durability, IntegrityIssue, Keyspace, OnExisting, Store, TxnOptions};
use crate::timestamp::Timestamp;

/// So many cells are looked at between two calls of the progress callback.
const PROGRESS_INTERVAL_CELLS: u64 = 1024;
const BATCH_ROWS: usize = 1024;
const BATCH_BYTES: usize = 1 << 20;

/// What a repair has brought over and what not, so far or in all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RepairReport {
    /// Keyspaces of the new store.
    pub keyspaces: u64,
    /// Rows of the new store.
    pub rows: u64,
    /// Bytes of their keys and values.
    pub bytes: u64,
    /// How many losses there are. One may be of a whole stretch: how many rows were in it, nobody can know.
    pub loss_count: u64,
    /// The first thousand of them.
    pub losses: Vec<IntegrityIssue>,
    /// Replaced versions of the old store's [history](Builder::history_retention), all of which stay behind. They are no loss of what it was.
    pub history_skipped: u64,
}

impl RepairReport {
    /// Whether everything that was there is in the new store: as far as checksums can tell.
    pub fn is_complete(&self) -> bool {
        self.loss_count == 0
    }

    fn add_loss(&mut self, column: Column, what: impl Into<String>) {
        self.add_loss_of(column, None, None, what.into());
    }

    fn add_loss_of(&mut self, column: Column, row: Option<RowKey>, keyspace: Option<String>, what: String) {
        self.loss_count += 1;
        if self.losses.len() < ISSUES_MAX {
            self.losses.push(IntegrityIssue { column, row, keyspace, message: what });
        }
    }
}

impl Builder {
    /// Makes a new store in the folder `to`, with these options, of everything that can still be read of the damaged one in `from`,
    /// and tells what cannot. Nothing in `from` is changed, and it is not opened beside a process that has it open. `progress` is
    /// called when the store in `to` is there and then every thousand cells or so, from the first pass on, which only looks for names, and may [stop](IntoControlFlow) the repair.
    ///
    /// Take it where a store does not open any more, or [`Store::verify`] finds damage, and there is no backup: what it brings over
    /// need not be one moment of the store. What it tells in [`RepairReport::losses`] says how far that is so. Rows of a keyspace whose
    /// name is lost come into one called `recovered` and its number. Replaced versions, where the store keeps a
    /// [history](Builder::history_retention), stay behind, and [`RepairReport::history_skipped`] says how many; the new store keeps a history only if
    /// these options say so.
    ///
    /// The log is read up to the first damage: whole frames beyond it would be commits without those before them. A torn end, which a power
    /// cut leaves, is no loss.
    ///
    /// If RocksDB cannot open the tables, their files are copied or linked for a while into a folder beside `to`, of the same
    /// name with `.repairing` behind it.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] when `to` exists or cannot be made, [`ErrorKind::UnrecognizedFormat`] when `from` has nothing of a store in it or
    /// another format, [`ErrorKind::AlreadyOpen`] when a process has it open, [`ErrorKind::Corruption`] when nothing at all can be made of
    /// it, [`ErrorKind::InvalidArgument`] when an option is out of [bounds](crate::bounds), [`ErrorKind::Cancelled`], and those of a commit. A store that is in `to` after an error has no keyspaces, and the folder may be
    /// removed.
    pub fn repair<P: IntoControlFlow>(
        self,
        from: impl AsRef<Path>,
        to: impl AsRef<Path>,
        mut progress: impl FnMut(&RepairReport) -> P,
    ) -> Result<RepairReport> {
        self.options.check()?;
        let to = to.as_ref();
        if to.as_os_str().is_empty() || to.symlink_metadata().is_ok() {
            let what = format!("{} is there already, and a repair needs a folder of its own", to.display());
            return Err(ErrorKind::Io(what).into());
        }
        let mut aside = to.as_os_str().to_owned();
        aside.push(".repairing");
        if let Some(above) = to.parent().filter(|above| !above.as_os_str().is_empty()) {
            std::fs::create_dir_all(above)
                .map_err(|why| EngineError::Io(format!("cannot create {}: {why}", above.display())))?;
        }
        let salvaged = salvage::open(from.as_ref(), &PathBuf::from(aside), self.folder_options())?;
        let mut repaired = RepairReport::default();
        salvaged.notes.iter().for_each(|note| repaired.add_loss(Column::Meta, note));
        let engine = LocalEngine::new(salvaged.storage, true);
        // Ours from here on, so what cannot be made into a store may go.
        std::fs::create_dir(to).map_err(|why| EngineError::Io(format!("cannot create {}: {why}", to.display())))?;
        let mut builder = self.read_only(false);
        // Rows come over whole, however little a transaction may hold later.
        let bytes_max = &mut builder.options.max_transaction_bytes;
        *bytes_max = MAX_TRANSACTION_BYTES.max(*bytes_max);
        let store = builder.open(to).inspect_err(|_| drop(std::fs::remove_dir_all(to)))?;
        match read_high_water(&engine) {
            Ok(mark) => store.inner.coordinator.advance_past(mark)?,
            Err(why) => repaired.add_loss(Column::Meta, format!("the newest timestamp is lost: {why}")),
        }
        let mut progress = |so_far: &RepairReport| {
            let stopped = || {
                let (rows, to) = (so_far.rows, to.display());
                format!("stopped after {rows} rows; the store in {to} has no keyspaces, and may be removed")
            };
            check_progress(progress(so_far), stopped)
        };
        // Whoever asks for the store knows from here on that it is there.
        progress(&repaired)?;
        // Everything that was committed, whatever the oracle remembers.
        let view = ReadView::new(Timestamp::MAX, engine.snapshot()?, true);
        let mut repair = Repair {
            view,
            catalog: BTreeMap::new(),
            dropped: BTreeSet::new(),
            keyspaces: HashMap::new(),
            unnamed: StagedKeyspaces::new(&store),
            batch: Vec::new(),
            batch_bytes: 0,
            repaired,
            store: &store,
            looked: 0,
            progress: &mut progress,
        };
        let storage = engine.storage();
        // First the names, then the rows; of those that have nothing but a lock, behind.
        for column in [Column::Write, Column::Lock] {
            read_readable_cells(storage, column, |key, _| repair.read_catalog_entry(column, key))?;
        }
        repair.create_keyspaces()?;
        for column in [Column::Write, Column::Lock] {
            let lost = read_readable_cells(storage, column, |key, _| repair.copy_row(column, key))?;
            lost.into_iter().for_each(|what| repair.repaired.add_loss(column, what));
        }
        read_readable_cells(storage, Column::History, |key, bytes| repair.count_history(key, bytes))?;
        let Repair { unnamed, repaired, .. } = repair.finish()?;
        unnamed.publish(OnExisting::Fail, None)?;
        store.close()?;
        Ok(repaired)
    }
}

struct Repair<'a> {
    view: Arc<ReadView>,
    /// Names by number.
    catalog: BTreeMap<KeyspaceId, String>,
    dropped: BTreeSet<KeyspaceId>,
    /// Those of the new store, by the numbers of the old one; none for those that were dropped.
    keyspaces: HashMap<KeyspaceId, Option<Keyspace>>,
    unnamed: StagedKeyspaces<'a>,
    batch: Vec<(Keyspace, Vec<u8>, Vec<u8>)>,
    batch_bytes: usize,
    repaired: RepairReport,
    store: &'a Store,
    /// At so many cells, passes that only look for names included.
    looked: u64,
    progress: &'a mut dyn FnMut(&RepairReport) -> Result<()>,
}

impl Repair<'_> {
    fn tick(&mut self) -> Result<()> {
        self.looked += 1;
        if self.looked.is_multiple_of(PROGRESS_INTERVAL_CELLS) { (self.progress)(&self.repaired) } else { Ok(()) }
    }

    /// Looks for what the catalog says.
    fn read_catalog_entry(&mut self, column: Column, key: &[u8]) -> Result<()> {
        self.tick()?;
        let Some(row) = RowKey::from_bytes(key).filter(|row| row.keyspace_id() == CATALOG_ID) else { return Ok(()) };
        let found = self.recovered_value(column, &row).and_then(|value| {
            let Some(value) = value else { return Ok(()) };
            let Some(id) = entry_id(row.user_key(), &value)? else { return Ok(()) };
            match crate::store::catalog::entry_name(row.user_key()) {
                Some(name) => drop(self.catalog.insert(id, name)),
                None => drop(self.dropped.insert(id)),
            }
            Ok(())
        });
        found.or_else(|why| self.record_error(column, &row, why))
    }

    fn create_keyspaces(&mut self) -> Result<()> {
        let named = std::mem::take(&mut self.catalog);
        named.into_iter().try_for_each(|(id, name)| self.create(id, &name))
    }

    fn create(&mut self, id: KeyspaceId, name: &str) -> Result<()> {
        // A name that was damaged may be one twice, or one that no keyspace can have.
        let recovered = format!("recovered {}", id.0);
        if self.unnamed.contains(name) || self.unnamed.create(name).is_err() {
            self.repaired.add_loss(Column::Write, format!("the keyspace {name:?} is called {recovered:?} now"));
            self.unnamed.create(&recovered)?;
        }
        self.repaired.keyspaces += 1;
        self.keyspaces.insert(id, self.unnamed.last());
        Ok(())
    }

    /// Brings a row over.
    fn copy_row(&mut self, column: Column, key: &[u8]) -> Result<()> {
        self.tick()?;
        let Some(row) = RowKey::from_bytes(key) else {
            self.repaired.add_loss(column, format!("\"{}\" is no row", key.escape_ascii()));
            return Ok(());
        };
        let id = row.keyspace_id();
        if id == CATALOG_ID || self.dropped.contains(&id) {
            return Ok(());
        }
        // The row has been brought over, or told of, with its version.
        if column == Column::Lock && !matches!(self.view.snapshot.write(&row), Ok(None)) {
            return Ok(());
        }
        let value = match self.recovered_value(column, &row) {
            Ok(Some(value)) => value,
            Ok(None) => return Ok(()),
            Err(why) => return self.record_error(column, &row, why),
        };
        if !self.keyspaces.contains_key(&id) {
            let name = format!("recovered {}", id.0);
            self.repaired.add_loss(Column::Write, format!("the name of a keyspace is lost: its rows are in {name:?}"));
            self.create(id, &name)?;
        }
        let Some(Some(keyspace)) = self.keyspaces.get(&id) else { return Ok(()) };
        self.batch_bytes += row.user_key().len() + value.len();
        self.batch.push((keyspace.clone(), row.user_key().to_vec(), value));
        if self.batch.len() >= BATCH_ROWS || self.batch_bytes >= BATCH_BYTES { self.write() } else { Ok(()) }
    }

    /// What the row was; the version stands where the lock cannot be read.
    fn recovered_value(&mut self, column: Column, row: &RowKey) -> Result<Option<Vec<u8>>> {
        let view = Arc::clone(&self.view);
        let decided = view.snapshot.lock(row).map_err(Error::from).and_then(|lock| match lock {
            Some(lock) if lock.lock_type != LockType::LockOnly && commit_ts_from_primary(&view, &lock)?.is_some() => {
                match lock.lock_type {
                    LockType::Put(value) => load_value(&view, row, lock.txn, value).map(|value| Some(Some(value))),
                    LockType::Delete | LockType::LockOnly => Ok(Some(None)),
                }
            }
            _ => Ok(None),
        });
        match decided {
            Ok(Some(value)) => return Ok(value),
            Ok(None) => {}
            Err(why) => {
                self.record_error(column, row, why)?;
                self.add_row_loss(Column::Lock, row, "was locked, so it may be older than it was".into());
            }
        }
        view.snapshot.write(row)?.map_or(Ok(None), |newest| visible_version(&view, row, newest))
    }

    fn record_error(&mut self, column: Column, row: &RowKey, why: Error) -> Result<()> {
        match why.kind() {
            ErrorKind::Corruption(_) | ErrorKind::Io(_) => self.add_row_loss(column, row, why.to_string()),
            _ => return Err(why),
        }
        Ok(())
    }

    fn add_row_loss(&mut self, column: Column, row: &RowKey, what: String) {
        let keyspace =
            self.keyspaces.get(&row.keyspace_id()).and_then(|keyspace| Some(keyspace.as_ref()?.name().to_owned()));
        self.repaired.add_loss_of(column, Some(row.clone()), keyspace, what);
    }

    /// Counts what is left behind; what cannot be read of it is no loss.
    fn count_history(&mut self, key: &[u8], bytes: &[u8]) -> Result<()> {
        self.tick()?;
        let is_wanted = |row: &RowKey| row.keyspace_id() != CATALOG_ID && !self.dropped.contains(&row.keyspace_id());
        if decode_history_key(key).is_some_and(|(row, _)| is_wanted(&row))
            && matches!(HistoryEntry::decode(bytes), Ok(HistoryEntry::Version(_)))
        {
            self.repaired.history_skipped += 1;
        }
        Ok(())
    }

    fn write(&mut self) -> Result<()> {
        let batch = std::mem::take(&mut self.batch);
        self.batch_bytes = 0;
        let buffered = TxnOptions { durability: Some(Durability::Buffered), ..TxnOptions::default() };
        self.store.transact_with(buffered, |txn| {
            batch.iter().try_for_each(|(keyspace, key, value)| txn.put(keyspace, key, value))
        })?;
        self.repaired.rows += batch.len() as u64;
        self.repaired.bytes += batch.iter().map(|(_, key, value)| (key.len() + value.len()) as u64).sum::<u64>();
        (self.progress)(&self.repaired)
    }

    fn finish(mut self) -> Result<Self> {
        self.write()?;
        Ok(self)
    }
}
