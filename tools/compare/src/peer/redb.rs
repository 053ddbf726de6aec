//! redb.
//!
//! After its README and the documentation of `Durability`, `WriteTransaction` and `Builder::set_cache_size`: one writer at a
//! time, nobody begins again; a commit is `Immediate` (the default) or `None`. `None` keeps a commit in memory until the
//! next `Immediate` one, so a buffered commit survives less than those of the others, not even the end of the process; one
//! commit in half a second is `Immediate`, which the documentation asks for, since no space is used again in between. A load
//! is one transaction.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use anyhow::Result;
use redb::{Database, Durability, ReadOnlyTable, ReadableDatabase, ReadableTable, Table, TableDefinition};

use super::{BUFFERED_FOR, Moment, Peer, Read, Row, Session, Setup, Write};

const ROWS: TableDefinition<&[u8], &[u8]> = TableDefinition::new("rows");

pub struct Redb {
    db: Database,
    durable: bool,
    began: Instant,
    /// When the last commit was made durable, in milliseconds.
    synced: AtomicU64,
}

impl Peer for Redb {
    fn open(setup: &Setup) -> Result<Self> {
        std::fs::create_dir_all(&setup.folder)?;
        let file: &Path = &setup.folder.join("rows.redb");
        let db = Database::builder().set_cache_size(setup.cache_bytes + setup.write_buffer_bytes).create(file)?;
        let txn = db.begin_write()?;
        txn.open_table(ROWS)?;
        txn.commit()?;
        Ok(Self { db, durable: setup.durable, began: Instant::now(), synced: AtomicU64::new(0) })
    }

    fn session(&self) -> Result<impl Session> {
        Ok(self)
    }

    fn close(self) -> Result<()> {
        Ok(self.db.begin_write()?.commit()?)
    }
}

impl Redb {
    /// How the next commit is to be made; it is asked by one writer at a time.
    fn durability(&self) -> Durability {
        if self.durable {
            return Durability::Immediate;
        }
        let now = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX);
        let is_due = u128::from(now - self.synced.load(Ordering::Relaxed)) >= BUFFERED_FOR.as_millis();
        if !is_due {
            return Durability::None;
        }
        self.synced.store(now, Ordering::Relaxed);
        Durability::Immediate
    }
}

impl Session for &Redb {
    fn reader(&mut self, _: Option<Moment>) -> Result<impl Read> {
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
    fn get(&self, key: &[u8], see: impl FnOnce(&[u8])) -> Result<bool> {
        let found = ReadableTable::get(self, key)?;
        Ok(found.map(|value| see(value.value())).is_some())
    }

    fn scan(&self, from: &[u8], rows: usize, mut see: impl FnMut(&[u8], &[u8])) -> Result<usize> {
        let mut seen = 0;
        for row in self.range(from..)?.take(rows) {
            let (key, value) = row?;
            see(key.value(), value.value());
            seen += 1;
        }
        Ok(seen)
    }
}

impl Write for Table<'_, &'static [u8], &'static [u8]> {
    fn get_to_write(&mut self, key: &[u8], see: &mut dyn FnMut(&[u8])) -> Result<bool> {
        let found = ReadableTable::get(self, key)?;
        Ok(found.map(|value| see(value.value())).is_some())
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.insert(key, value)?;
        Ok(())
    }
}
