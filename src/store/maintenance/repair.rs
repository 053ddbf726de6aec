//! Repair: copies everything that can be read of a damaged store into a new one, and reports what
//! cannot be read.
//!
//! The store is not repaired in place: the damaged directory is only read, so other tools can still
//! be tried on it. A row is read as a snapshot reads it: if the row is locked by a committed
//! transaction, its value is that of the lock. A reported loss is one row, or a range of keys with
//! an unknown number of rows.
//!
//! The write-ahead log is read from the flushed sequence or, if the frames there are gone, from the
//! oldest frame that is left, up to the first damage. The new store has its own store id. Its
//! timestamps are above those of the old store if the old high-water mark can be read. History is
//! not copied.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::codec::{HistoryEntry, Record as _};
use crate::coordinator::commit_ts_from_primary;
use crate::engine::Engine as _;
use crate::engine::directory::new_directory::{NewDirectory, resolve_new};
use crate::engine::directory::salvage::{self, read_readable_cells};
use crate::engine::local::LocalEngine;
use crate::engine::storage::Column;
use crate::error::{Error, ErrorKind, Result};
use crate::keys::decode_history_key;
use crate::local_oracle::read_high_water;
use crate::read_view::ReadView;
use crate::row::{KeyspaceId, LockType, RowKey};
use crate::store::builder::Builder;
use crate::store::catalog::entries::{CATALOG_ID, entry_id, entry_name};
use crate::store::catalog::staging::StagedKeyspaces;
use crate::store::handle::Store;
use crate::store::keyspace::Keyspace;
use crate::store::maintenance::dump::OnExisting;
use crate::store::maintenance::progress::{IntoControlFlow, check_progress};
use crate::store::maintenance::verify::report::{ISSUES_MAX, IntegrityIssue};
use crate::store::options::{Durability, MAX_TRANSACTION_BYTES, TxnOptions};
use crate::store::read::row_reader::{load_found, load_value, visible_version};
use crate::timestamp::Timestamp;
use crate::value::Value;

/// The number of cells between two calls of the progress callback.
const PROGRESS_INTERVAL_CELLS: u64 = 1024;
const BATCH_ROWS: usize = 1024;
const BATCH_BYTES: usize = 1 << 20;

/// What a repair has copied and could not read, so far or in total.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RepairReport {
    /// The number of keyspaces of the new store.
    pub keyspaces: u64,
    /// The number of rows of the new store.
    pub rows: u64,
    /// The size of the copied keys and values, in bytes.
    pub bytes: u64,
    /// The number of losses. One loss may be a range of keys with an unknown number of rows.
    pub loss_count: u64,
    /// The first thousand losses.
    pub losses: Vec<IntegrityIssue>,
    /// The number of replaced versions in the old store's [history](Builder::history_retention).
    /// They are not copied, which does not count as a loss.
    pub history_skipped: u64,
}

impl RepairReport {
    /// Whether the new store has everything that the old one had, as far as checksums can show.
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
    /// Creates a new store in the directory `to`, with these options, from everything that can be
    /// read of the damaged store in `from`, and reports what cannot be read. Nothing in `from` is
    /// changed.
    ///
    /// Use this call if a store cannot be opened, or [`Store::verify`] finds damage, and there is
    /// no backup. The copied rows need not all be from one state of the store;
    /// [`RepairReport::losses`] lists where rows may be missing or stale. Rows of a keyspace whose
    /// name is lost are copied into a keyspace named `recovered <id>`, with the id of the old
    /// keyspace. Replaced versions are not copied; [`RepairReport::history_skipped`] is their
    /// number. The new store has a history only if these options set one.
    ///
    /// The write-ahead log is read up to the first damage: the commits in later frames may depend
    /// on commits in the damaged ones. A torn tail, which a power cut leaves, is not a loss.
    ///
    /// If RocksDB cannot open the tables, their files are copied or linked temporarily into another
    /// directory. Its path is that of `to`, with `.repairing` appended.
    ///
    /// `progress` is first called when the store in `to` exists, and then about every thousand
    /// cells, also in the first passes, which only read the names of keyspaces. The callback may
    /// [cancel](IntoControlFlow) the repair.
    ///
    /// # Errors
    /// - [`ErrorKind::Io`]: `to` exists, or cannot be created.
    /// - [`ErrorKind::UnrecognizedFormat`]: `from` is not a store, or has another format.
    /// - [`ErrorKind::AlreadyOpen`]: a process has `from` open.
    /// - [`ErrorKind::Corruption`]: nothing of `from` can be recovered.
    /// - [`ErrorKind::InvalidArgument`]: an option is out of [bounds](crate::option_ranges).
    /// - [`ErrorKind::Cancelled`], and those of [`Txn::commit`](crate::Txn::commit).
    ///
    /// If the repair fails after it has created the store in `to`, that store is not complete, and
    /// its directory can be deleted.
    pub fn repair<P: IntoControlFlow>(
        self,
        from: impl AsRef<Path>,
        to: impl AsRef<Path>,
        mut progress: impl FnMut(&RepairReport) -> P,
    ) -> Result<RepairReport> {
        self.options.check()?;
        if to.as_ref().as_os_str().is_empty() {
            return Err(Error::invalid("the path of the repaired store must not be empty"));
        }
        let from = std::path::absolute(from.as_ref()).unwrap_or_else(|_| from.as_ref().into());
        let to = &resolve_new(to.as_ref(), "repair")?;
        let mut scratch = to.as_os_str().to_owned();
        scratch.push(".repairing");
        let salvaged = salvage::open(&from, &PathBuf::from(scratch), self.directory_options())?;
        let mut report = RepairReport::default();
        salvaged.notes.iter().for_each(|note| report.add_loss(Column::Meta, note));
        let engine = LocalEngine::new(salvaged.storage, true);
        let store = self.create_target(to)?;
        match read_high_water(&engine) {
            Ok(mark) => store.inner.coordinator.advance_past(mark)?,
            Err(error) => report.add_loss(Column::Meta, format!("cannot read the timestamp high-water mark: {error}")),
        }
        let mut progress = |so_far: &RepairReport| {
            let stopped = || {
                let (rows, to) = (so_far.rows, to.display());
                format!("stopped after {rows} rows; the store in {to} has no keyspaces and can be deleted")
            };
            check_progress(progress(so_far), stopped)
        };
        // Called only now, because `progress` may rely on a store in `to` from its first call on.
        progress(&report)?;
        // At the maximum timestamp every commit is visible, even if the high-water mark is lost.
        let view = ReadView::new(Timestamp::MAX, engine.snapshot()?, true);
        let mut repair = Repair {
            view,
            catalog: BTreeMap::new(),
            dropped: BTreeSet::new(),
            keyspaces: HashMap::new(),
            staged: StagedKeyspaces::new(&store),
            batch: Vec::new(),
            batch_bytes: 0,
            report,
            store: &store,
            cells_read: 0,
            progress: &mut progress,
        };
        let storage = engine.storage();
        // Two passes read the names of keyspaces. Two more copy the rows: first the rows with
        // versions, then those with only a lock.
        for column in [Column::Write, Column::Lock] {
            read_readable_cells(storage, column, |key, _| repair.read_catalog_entry(column, key))?;
        }
        repair.create_keyspaces()?;
        for column in [Column::Write, Column::Lock] {
            let lost = read_readable_cells(storage, column, |key, _| repair.copy_row(column, key))?;
            lost.into_iter().for_each(|what| repair.report.add_loss(column, what));
        }
        read_readable_cells(storage, Column::History, |key, bytes| repair.count_history(key, bytes))?;
        let Repair { staged, report, .. } = repair.finish()?;
        staged.publish(OnExisting::Fail, None)?;
        store.close()?;
        Ok(report)
    }

    fn create_target(self, to: &Path) -> Result<Store> {
        // The directory is created here, so that it is certain to be new and may be deleted if no
        // store can be created in it.
        let target = NewDirectory::create(to, "repair")?;
        let mut builder = self.read_only(false);
        // A lower limit in the caller's options must not reject a large row of the old store.
        let max_bytes = &mut builder.options.max_transaction_bytes;
        *max_bytes = MAX_TRANSACTION_BYTES.max(*max_bytes);
        let store = builder.open(target.directory().path())?;
        target.keep();
        Ok(store)
    }
}

struct Repair<'a> {
    view: Arc<ReadView>,
    /// The names of the old store's keyspaces, by id.
    catalog: BTreeMap<KeyspaceId, String>,
    dropped: BTreeSet<KeyspaceId>,
    /// The keyspaces of the new store, by their ids in the old store. The values are always `Some`.
    keyspaces: HashMap<KeyspaceId, Option<Keyspace>>,
    staged: StagedKeyspaces<'a>,
    batch: Vec<(Keyspace, Vec<u8>, Value)>,
    batch_bytes: usize,
    report: RepairReport,
    store: &'a Store,
    /// The number of cells read, including those of the passes that only read names.
    cells_read: u64,
    progress: &'a mut dyn FnMut(&RepairReport) -> Result<()>,
}

impl Repair<'_> {
    fn tick(&mut self) -> Result<()> {
        self.cells_read += 1;
        if self.cells_read.is_multiple_of(PROGRESS_INTERVAL_CELLS) { (self.progress)(&self.report) } else { Ok(()) }
    }

    /// If the cell is the catalog's entry of a keyspace, records the keyspace's name, or that it
    /// was dropped.
    fn read_catalog_entry(&mut self, column: Column, key: &[u8]) -> Result<()> {
        self.tick()?;
        let Some(row) = RowKey::from_bytes(key).filter(|row| row.keyspace_id() == CATALOG_ID) else { return Ok(()) };
        let result = self.recovered_value(column, &row).and_then(|value| {
            let Some(value) = value else { return Ok(()) };
            let Some(id) = entry_id(row.user_key(), &value)? else { return Ok(()) };
            match entry_name(row.user_key()) {
                Some(name) => drop(self.catalog.insert(id, name)),
                None => drop(self.dropped.insert(id)),
            }
            Ok(())
        });
        result.or_else(|error| self.record_error(column, &row, error))
    }

    fn create_keyspaces(&mut self) -> Result<()> {
        let names = std::mem::take(&mut self.catalog);
        names.into_iter().try_for_each(|(id, name)| self.create(id, &name))
    }

    fn create(&mut self, id: KeyspaceId, name: &str) -> Result<()> {
        // The keyspace gets this name if its own is invalid, or already taken by another keyspace.
        let recovered = format!("recovered {}", id.0);
        if self.staged.contains(name) || self.staged.create(name).is_err() {
            let what = format!("the name {name:?} is a duplicate or invalid; its rows are in keyspace {recovered:?}");
            self.report.add_loss(Column::Write, what);
            self.staged.create(&recovered)?;
        }
        self.report.keyspaces += 1;
        self.keyspaces.insert(id, self.staged.last());
        Ok(())
    }

    /// Copies a row, if it has a value. Skips the catalog, dropped keyspaces, and rows that an
    /// earlier pass has handled.
    fn copy_row(&mut self, column: Column, key: &[u8]) -> Result<()> {
        self.tick()?;
        let Some(row) = RowKey::from_bytes(key) else {
            self.report.add_loss(column, format!("invalid row key \"{}\"", key.escape_ascii()));
            return Ok(());
        };
        let id = row.keyspace_id();
        if id == CATALOG_ID || self.dropped.contains(&id) {
            return Ok(());
        }
        // A row with a version was copied, or reported as lost, in the pass over the versions.
        if column == Column::Lock && !matches!(self.view.snapshot.write(&row), Ok(None)) {
            return Ok(());
        }
        let value = match self.recovered_value(column, &row) {
            Ok(Some(value)) => value,
            Ok(None) => return Ok(()),
            Err(error) => return self.record_error(column, &row, error),
        };
        if !self.keyspaces.contains_key(&id) {
            let name = format!("recovered {}", id.0);
            let what = format!("the name of a keyspace is lost; its rows are in keyspace {name:?}");
            self.report.add_loss(Column::Write, what);
            self.create(id, &name)?;
        }
        let Some(Some(keyspace)) = self.keyspaces.get(&id) else { return Ok(()) };
        self.batch_bytes += row.user_key().len() + value.len();
        self.batch.push((keyspace.clone(), row.user_key().to_vec(), value));
        if self.batch.len() >= BATCH_ROWS || self.batch_bytes >= BATCH_BYTES { self.write_batch() } else { Ok(()) }
    }

    /// The value of the row. If the lock of the row cannot be read, the value of the newest version
    /// is returned, and reported as possibly stale.
    fn recovered_value(&mut self, column: Column, row: &RowKey) -> Result<Option<Value>> {
        let view = Arc::clone(&self.view);
        let from_lock = view.snapshot.lock(row).map_err(Error::from).and_then(|lock| match lock {
            Some(lock) if lock.lock_type != LockType::LockOnly && commit_ts_from_primary(&view, &lock)?.is_some() => {
                match lock.lock_type {
                    LockType::Put(value) => load_value(&view, row, lock.txn, value).map(|value| Some(Some(value))),
                    LockType::Delete | LockType::LockOnly => Ok(Some(None)),
                }
            }
            _ => Ok(None),
        });
        match from_lock {
            Ok(Some(value)) => return Ok(value),
            Ok(None) => {}
            Err(error) => {
                self.record_error(column, row, error)?;
                let what = "the row lock is unreadable; the recovered version may be stale";
                self.add_row_loss(Column::Lock, row, what.into());
            }
        }
        let Some(newest) = view.snapshot.write(row)? else { return Ok(None) };
        load_found(row, visible_version(&view, row, newest)?)
    }

    fn record_error(&mut self, column: Column, row: &RowKey, error: Error) -> Result<()> {
        match error.kind() {
            ErrorKind::Corruption(_) | ErrorKind::Io(_) => self.add_row_loss(column, row, error.to_string()),
            _ => return Err(error),
        }
        Ok(())
    }

    fn add_row_loss(&mut self, column: Column, row: &RowKey, what: String) {
        let keyspace =
            self.keyspaces.get(&row.keyspace_id()).and_then(|keyspace| Some(keyspace.as_ref()?.name().to_owned()));
        self.report.add_loss_of(column, Some(row.clone()), keyspace, what);
    }

    /// Counts the versions that are not copied. Unreadable history is not a loss.
    fn count_history(&mut self, key: &[u8], bytes: &[u8]) -> Result<()> {
        self.tick()?;
        let is_wanted = |row: &RowKey| row.keyspace_id() != CATALOG_ID && !self.dropped.contains(&row.keyspace_id());
        if decode_history_key(key).is_some_and(|(row, _)| is_wanted(&row))
            && matches!(HistoryEntry::decode(bytes), Ok(HistoryEntry::Version(_)))
        {
            self.report.history_skipped += 1;
        }
        Ok(())
    }

    fn write_batch(&mut self) -> Result<()> {
        let batch = std::mem::take(&mut self.batch);
        self.batch_bytes = 0;
        let buffered = TxnOptions::default().durability(Durability::Buffered);
        self.store.transact_with(buffered, |txn| {
            batch.iter().try_for_each(|(keyspace, key, value)| txn.put(keyspace, key, value))
        })?;
        self.report.rows += batch.len() as u64;
        self.report.bytes += batch.iter().map(|(_, key, value)| (key.len() + value.len()) as u64).sum::<u64>();
        (self.progress)(&self.report)
    }

    fn finish(mut self) -> Result<Self> {
        self.write_batch()?;
        Ok(self)
    }
}
