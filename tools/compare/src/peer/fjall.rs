//! fjall's `OptimisticTxDatabase`.
//!
//! The settings follow fjall's README and the documentation of `OptimisticTxDatabase`,
//! `WriteTransaction::durability` and `Keyspace::start_ingestion`: a transaction with a conflict is
//! retried; `SyncData` is the `fdatasync` that RocksDB and percolite call; `Buffer` leaves a commit
//! in the page cache; sorted rows are ingested as tables. The memtable has its default of 64 MiB,
//! or half of `write_buffer_bytes` if that is less.

use anyhow::Result;
use fjall::{KeyspaceCreateOptions, OptimisticTxDatabase, OptimisticTxKeyspace, PersistMode, Readable, Snapshot};

use super::backoff::Backoff;
use super::{HistoryTs, Peer, Read, Row, Session, StoreConfig, Write};

const MEMTABLE_MAX: usize = 64 << 20;

pub struct Fjall {
    db: OptimisticTxDatabase,
    rows: OptimisticTxKeyspace,
    mode: PersistMode,
}

impl Peer for Fjall {
    fn open(config: &StoreConfig) -> Result<Self> {
        let db = OptimisticTxDatabase::builder(&config.dir).cache_size(config.cache_bytes as u64).open()?;
        let memtable = MEMTABLE_MAX.min(config.write_buffer_bytes / 2) as u64;
        let rows = db.keyspace("rows", || KeyspaceCreateOptions::default().max_memtable_size(memtable))?;
        Ok(Self { db, rows, mode: if config.durable { PersistMode::SyncData } else { PersistMode::Buffer } })
    }

    fn session(&self) -> Result<impl Session> {
        Ok(self)
    }

    fn close(self) -> Result<()> {
        Ok(self.db.persist(PersistMode::SyncAll)?)
    }
}

impl Session for &Fjall {
    fn reader(&mut self, _: Option<HistoryTs>) -> Result<impl Read> {
        Ok((self.db.read_tx(), &self.rows))
    }

    fn transact(&mut self, work: &mut dyn FnMut(&mut dyn Write) -> Result<()>) -> Result<()> {
        let mut backoff = Backoff::default();
        loop {
            let mut txn = (self.db.write_tx()?.durability(Some(self.mode)), &self.rows);
            work(&mut txn)?;
            if txn.0.commit()?.is_ok() {
                return Ok(());
            }
            backoff.wait();
        }
    }

    fn load(&mut self, rows: impl Iterator<Item = Row>) -> Result<()> {
        let mut ingestion = self.rows.inner().start_ingestion()?;
        for (key, value) in rows {
            ingestion.write(key, value)?;
        }
        Ok(ingestion.finish()?)
    }
}

impl Read for (Snapshot, &OptimisticTxKeyspace) {
    fn get(&self, key: &[u8], visit: impl FnOnce(&[u8])) -> Result<bool> {
        let found = self.0.get(self.1, key)?;
        Ok(found.map(|value| visit(&value)).is_some())
    }

    fn scan(&self, from: &[u8], rows: usize, mut visit: impl FnMut(&[u8], &[u8])) -> Result<usize> {
        let mut seen = 0;
        for row in self.0.range(self.1, from..).take(rows) {
            let (key, value) = row.into_inner()?;
            visit(&key, &value);
            seen += 1;
        }
        Ok(seen)
    }
}

impl Write for (fjall::OptimisticWriteTx, &OptimisticTxKeyspace) {
    fn get_for_update(&mut self, key: &[u8], visit: &mut dyn FnMut(&[u8])) -> Result<bool> {
        let found = self.0.get(self.1, key)?;
        Ok(found.map(|value| visit(&value)).is_some())
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.0.insert(self.1, key, value);
        Ok(())
    }
}
