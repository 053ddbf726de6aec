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

use super::catalog::{CATALOG, Unnamed, number_of};
use super::options::TRANSACTION_MAX_BYTES;
use super::proceed::{Proceed, go_on};
use super::read::{fetch, read_write};
use super::verify::PROBLEMS_MAX;
use super::{Builder, Durability, Existing, Keyspace, Problem, Store, TxnOptions};
use crate::codec::{History, Record as _};
use crate::coordinator::committed_by_primary;
use crate::engine::folder::salvage::{self, read_readable_cells};
use crate::engine::local::LocalEngine;
use crate::engine::storage::Column;
use crate::engine::{Engine as _, EngineError};
use crate::error::{Error, ErrorKind, Result};
use crate::keys::split_history_key;
use crate::oracle::read_high_water;
use crate::row::{Intent, KeyspaceId, RowKey};
use crate::timestamp::Timestamp;
use crate::view::PinnedView;

/// So many cells are looked at between two calls of the progress callback.
const CELLS_UNTOLD: u64 = 1024;
const BATCH_ROWS: usize = 1024;
const BATCH_BYTES: usize = 1 << 20;

/// What a repair has brought over and what not, so far or in all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Repaired {
    /// Keyspaces of the new store.
    pub keyspaces: u64,
    /// Rows of the new store.
    pub rows: u64,
    /// Bytes of their keys and values.
    pub bytes: u64,
    /// How many losses there are. One may be of a whole stretch: how many rows were in it, nobody can know.
    pub losses_found: u64,
    /// The first thousand of them.
    pub losses: Vec<Problem>,
    /// Replaced versions of the old store's [history](Builder::history), all of which stay behind. They are no loss of what it was.
    pub versions_left: u64,
}

impl Repaired {
    /// Whether everything that was there is in the new store: as far as checksums can tell.
    pub fn is_whole(&self) -> bool {
        self.losses_found == 0
    }

    fn lose(&mut self, column: Column, what: impl Into<String>) {
        self.lose_of(column, None, None, what.into());
    }

    fn lose_of(&mut self, column: Column, row: Option<RowKey>, keyspace: Option<String>, what: String) {
        self.losses_found += 1;
        if self.losses.len() < PROBLEMS_MAX {
            self.losses.push(Problem { column, row, keyspace, what });
        }
    }
}

impl Builder {
    /// Makes a new store in the folder `to`, with these options, of everything that can still be read of the damaged one in `from`,
    /// and tells what cannot. Nothing in `from` is changed, and it is not opened beside a process that has it open. `progress` is
    /// called when the store in `to` is there and then every thousand cells or so, from the first pass on, which only looks for names, and may [stop](Proceed) the repair.
    ///
    /// Take it where a store does not open any more, or [`Store::verify`] finds damage, and there is no backup: what it brings over
    /// need not be one moment of the store. What it tells in [`Repaired::losses`] says how far that is so. Rows of a keyspace whose
    /// name is lost come into one called `recovered` and its number. Replaced versions, where the store keeps a
    /// [history](Builder::history), stay behind, and [`Repaired::versions_left`] says how many; the new store keeps a history only if
    /// these options say so.
    ///
    /// The log is read up to the first damage: whole frames beyond it would be commits without those before them. A torn end, which a power
    /// cut leaves, is no loss.
    ///
    /// If RocksDB cannot open the tables, their files are copied or linked for a while into a folder beside `to`, of the same
    /// name with `.repairing` behind it.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] when `to` exists or cannot be made, [`ErrorKind::NotAStore`] when `from` has nothing of a store in it or
    /// another format, [`ErrorKind::Busy`] when a process has it open, [`ErrorKind::Corruption`] when nothing at all can be made of
    /// it, [`ErrorKind::InvalidArgument`] when an option is out of [bounds](crate::bounds), [`ErrorKind::Stopped`], and those of a commit. A store that is in `to` after an error has no keyspaces, and the folder may be
    /// removed.
    pub fn repair<P: Proceed>(
        self,
        from: impl AsRef<Path>,
        to: impl AsRef<Path>,
        mut progress: impl FnMut(&Repaired) -> P,
    ) -> Result<Repaired> {
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
        let salvaged = salvage::open(from.as_ref(), &PathBuf::from(aside), self.folder_setup())?;
        let mut repaired = Repaired::default();
        salvaged.notes.iter().for_each(|note| repaired.lose(Column::Meta, note));
        let engine = LocalEngine::new(salvaged.storage, true);
        // Ours from here on, so what cannot be made into a store may go.
        std::fs::create_dir(to).map_err(|why| EngineError::Io(format!("cannot create {}: {why}", to.display())))?;
        let mut builder = self.read_only(false);
        // Rows come over whole, however little a transaction may hold later.
        let bytes_max = &mut builder.options.transaction_max_bytes;
        *bytes_max = TRANSACTION_MAX_BYTES.max(*bytes_max);
        let store = builder.open(to).inspect_err(|_| drop(std::fs::remove_dir_all(to)))?;
        match (read_high_water(&engine), &store.inner.embedded) {
            (Ok(mark), Some(embedded)) => embedded.pipeline().advance_past(mark)?,
            (Err(why), _) => repaired.lose(Column::Meta, format!("the newest timestamp is lost: {why}")),
            (Ok(_), None) => {}
        }
        let mut progress = |so_far: &Repaired| {
            let stopped = || {
                let (rows, to) = (so_far.rows, to.display());
                format!("stopped after {rows} rows; the store in {to} has no keyspaces, and may be removed")
            };
            go_on(progress(so_far), stopped)
        };
        // Whoever asks for the store knows from here on that it is there.
        progress(&repaired)?;
        // Everything that was committed, whatever the oracle remembers.
        let view = PinnedView::new(Timestamp::MAX, engine.snapshot()?, true);
        let mut repair = Repair {
            view,
            catalog: BTreeMap::new(),
            dropped: BTreeSet::new(),
            keyspaces: HashMap::new(),
            unnamed: Unnamed::new(&store),
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
            read_readable_cells(storage, column, |key, _| repair.name(column, key))?;
        }
        repair.create_named()?;
        for column in [Column::Write, Column::Lock] {
            let lost = read_readable_cells(storage, column, |key, _| repair.row(column, key))?;
            lost.into_iter().for_each(|what| repair.repaired.lose(column, what));
        }
        read_readable_cells(storage, Column::History, |key, bytes| repair.replaced(key, bytes))?;
        let Repair { unnamed, repaired, .. } = repair.finish()?;
        unnamed.name_all(Existing::Refuse, None)?;
        store.close()?;
        Ok(repaired)
    }
}

struct Repair<'a> {
    view: Arc<PinnedView>,
    /// Names by number.
    catalog: BTreeMap<KeyspaceId, String>,
    dropped: BTreeSet<KeyspaceId>,
    /// Those of the new store, by the numbers of the old one; none for those that were dropped.
    keyspaces: HashMap<KeyspaceId, Option<Keyspace>>,
    unnamed: Unnamed<'a>,
    batch: Vec<(Keyspace, Vec<u8>, Vec<u8>)>,
    batch_bytes: usize,
    repaired: Repaired,
    store: &'a Store,
    /// At so many cells, passes that only look for names included.
    looked: u64,
    progress: &'a mut dyn FnMut(&Repaired) -> Result<()>,
}

impl Repair<'_> {
    fn tell(&mut self) -> Result<()> {
        self.looked += 1;
        if self.looked.is_multiple_of(CELLS_UNTOLD) { (self.progress)(&self.repaired) } else { Ok(()) }
    }

    /// Looks for what the catalog says.
    fn name(&mut self, column: Column, key: &[u8]) -> Result<()> {
        self.tell()?;
        let Some(row) = RowKey::from_bytes(key).filter(|row| row.keyspace() == CATALOG) else { return Ok(()) };
        let found = self.value(column, &row).and_then(|value| {
            let Some(value) = value else { return Ok(()) };
            let Some(id) = number_of(row.key(), &value)? else { return Ok(()) };
            match super::catalog::name_in(row.key()) {
                Some(name) => drop(self.catalog.insert(id, name)),
                None => drop(self.dropped.insert(id)),
            }
            Ok(())
        });
        found.or_else(|why| self.lost(column, &row, why))
    }

    fn create_named(&mut self) -> Result<()> {
        let named = std::mem::take(&mut self.catalog);
        named.into_iter().try_for_each(|(id, name)| self.create(id, &name))
    }

    fn create(&mut self, id: KeyspaceId, name: &str) -> Result<()> {
        // A name that was damaged may be one twice, or one that no keyspace can have.
        let recovered = format!("recovered {}", id.0);
        if self.unnamed.has(name) || self.unnamed.add(name).is_err() {
            self.repaired.lose(Column::Write, format!("the keyspace {name:?} is called {recovered:?} now"));
            self.unnamed.add(&recovered)?;
        }
        self.repaired.keyspaces += 1;
        self.keyspaces.insert(id, self.unnamed.last());
        Ok(())
    }

    /// Brings a row over.
    fn row(&mut self, column: Column, key: &[u8]) -> Result<()> {
        self.tell()?;
        let Some(row) = RowKey::from_bytes(key) else {
            self.repaired.lose(column, format!("\"{}\" is no row", key.escape_ascii()));
            return Ok(());
        };
        let id = row.keyspace();
        if id == CATALOG || self.dropped.contains(&id) {
            return Ok(());
        }
        // The row has been brought over, or told of, with its version.
        if column == Column::Lock && !matches!(self.view.view.write(&row), Ok(None)) {
            return Ok(());
        }
        let value = match self.value(column, &row) {
            Ok(Some(value)) => value,
            Ok(None) => return Ok(()),
            Err(why) => return self.lost(column, &row, why),
        };
        if !self.keyspaces.contains_key(&id) {
            let name = format!("recovered {}", id.0);
            self.repaired.lose(Column::Write, format!("the name of a keyspace is lost: its rows are in {name:?}"));
            self.create(id, &name)?;
        }
        let Some(Some(keyspace)) = self.keyspaces.get(&id) else { return Ok(()) };
        self.batch_bytes += row.key().len() + value.len();
        self.batch.push((keyspace.clone(), row.key().to_vec(), value));
        if self.batch.len() >= BATCH_ROWS || self.batch_bytes >= BATCH_BYTES { self.write() } else { Ok(()) }
    }

    /// What the row was; the version stands where the lock cannot be read.
    fn value(&mut self, column: Column, row: &RowKey) -> Result<Option<Vec<u8>>> {
        let view = Arc::clone(&self.view);
        let decided = view.view.lock(row).map_err(Error::from).and_then(|lock| match lock {
            Some(lock) if lock.intent != Intent::Hold && committed_by_primary(&view, &lock)?.is_some() => {
                match lock.intent {
                    Intent::Put(value) => fetch(&view, row, lock.txn, value).map(|value| Some(Some(value))),
                    Intent::Delete | Intent::Hold => Ok(Some(None)),
                }
            }
            _ => Ok(None),
        });
        match decided {
            Ok(Some(value)) => return Ok(value),
            Ok(None) => {}
            Err(why) => {
                self.lost(column, row, why)?;
                self.lose_row(Column::Lock, row, "was locked, so it may be older than it was".into());
            }
        }
        view.view.write(row)?.map_or(Ok(None), |newest| read_write(&view, row, newest))
    }

    fn lost(&mut self, column: Column, row: &RowKey, why: Error) -> Result<()> {
        match why.kind() {
            ErrorKind::Corruption(_) | ErrorKind::Io(_) => self.lose_row(column, row, why.to_string()),
            _ => return Err(why),
        }
        Ok(())
    }

    fn lose_row(&mut self, column: Column, row: &RowKey, what: String) {
        let keyspace =
            self.keyspaces.get(&row.keyspace()).and_then(|keyspace| Some(keyspace.as_ref()?.name().to_owned()));
        self.repaired.lose_of(column, Some(row.clone()), keyspace, what);
    }

    /// Counts what is left behind; what cannot be read of it is no loss.
    fn replaced(&mut self, key: &[u8], bytes: &[u8]) -> Result<()> {
        self.tell()?;
        let is_wanted = |row: &RowKey| row.keyspace() != CATALOG && !self.dropped.contains(&row.keyspace());
        if split_history_key(key).is_some_and(|(row, _)| is_wanted(&row))
            && matches!(History::decode(bytes), Ok(History::Version(_)))
        {
            self.repaired.versions_left += 1;
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
