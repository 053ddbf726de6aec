//! redb.
//!
//! The settings follow redb's README and the documentation of `Durability`, `WriteTransaction` and
//! `Builder::set_cache_size`. redb has one writer at a time, so there are no retries. A durable
//! commit is `Immediate` (the default). A buffered commit is mostly `None`.
//!
//! `None` keeps a commit in memory until the next `Immediate` commit. So a buffered commit does not
//! survive the end of the process, unlike that of other stores. One commit per half second is
//! `Immediate`, as the documentation requires, because redb reuses no space between two such
//! commits. A load is one transaction.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use anyhow::Result;
use redb::{Database, Durability, ReadOnlyTable, ReadableDatabase, ReadableTable, Table, TableDefinition};

use super::{BUFFERED_SYNC_INTERVAL, HistoryTs, Peer, Read, Row, Session, StoreConfig, Write};

const ROWS: TableDefinition<&[u8], &[u8]> = TableDefinition::new("rows");

pub struct Redb {
    db: Database,
    durable: bool,
    started: Instant,
    /// The time of the last durable commit, in milliseconds since `started`.
    synced: AtomicU64,
}

impl Peer for Redb {
    fn open(config: &StoreConfig) -> Result<Self> {
        std::fs::create_dir_all(&config.dir)?;
        let file: &Path = &config.dir.join("rows.redb");
        let db = Database::builder().set_cache_size(config.cache_bytes + config.write_buffer_bytes).create(file)?;
        let txn = db.begin_write()?;
        txn.open_table(ROWS)?;
        txn.commit()?;
        Ok(Self { db, durable: config.durable, started: Instant::now(), synced: AtomicU64::new(0) })
    }

    fn session(&self) -> Result<impl Session> {
        Ok(self)
    }

    fn close(self) -> Result<()> {
        Ok(self.db.begin_write()?.commit()?)
    }
}

impl Redb {
    /// The durability of the next commit. Must be called while a write transaction is open: redb
    /// has one writer at a time, so no other thread changes `synced` meanwhile.
    fn durability(&self) -> Durability {
        if self.durable {
            return Durability::Immediate;
        }
        let now = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        let is_due = u128::from(now - self.synced.load(Ordering::Relaxed)) >= BUFFERED_SYNC_INTERVAL.as_millis();
        if !is_due {
            return Durability::None;
        }
        self.synced.store(now, Ordering::Relaxed);
        Durability::Immediate
    }
}

impl Session for &Redb {
    fn reader(&mut self, _: Option<HistoryTs>) -> Result<impl Read> {
        Ok(self.db.begin_read()?.open_table(ROWS)?)
    }

    fn transact(&mut self, work: &mut dyn FnMut(&mut dyn Write) -> Result<()>) -> Result<()> {
        let mut txn = self.db.begin_write()?;
        txn.set_durability(self.durability())?;
        {
            let mut table = txn.open_table(ROWS)?;
            work(&mut table)?;
        }
        Ok(txn.commit()?)
    }

    fn load(&mut self, rows: impl Iterator<Item = Row>) -> Result<()> {
        let txn = self.db.begin_write()?;
        {
            let mut table = txn.open_table(ROWS)?;
            for (key, value) in rows {
                table.insert(&key[..], &value[..])?;
            }
        }
        Ok(txn.commit()?)
    }
}

impl Read for ReadOnlyTable<&'static [u8], &'static [u8]> {
    fn get(&self, key: &[u8], visit: impl FnOnce(&[u8])) -> Result<bool> {
        let found = ReadableTable::get(self, key)?;
        Ok(found.map(|value| visit(value.value())).is_some())
    }

    fn scan(&self, from: &[u8], rows: usize, mut visit: impl FnMut(&[u8], &[u8])) -> Result<usize> {
        let mut seen = 0;
        for row in self.range(from..)?.take(rows) {
            let (key, value) = row?;
            visit(key.value(), value.value());
            seen += 1;
        }
        Ok(seen)
    }
}

impl Write for Table<'_, &'static [u8], &'static [u8]> {
    fn get_for_update(&mut self, key: &[u8], visit: &mut dyn FnMut(&[u8])) -> Result<bool> {
        let found = ReadableTable::get(self, key)?;
        Ok(found.map(|value| visit(value.value())).is_some())
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.insert(key, value)?;
        Ok(())
    }
}
