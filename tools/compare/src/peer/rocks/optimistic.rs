//! RocksDB's `OptimisticTransactionDB`: conflicts are detected at the commit, and of two writers of
//! a row, the second to commit retries.

use anyhow::Result;
use rocksdb::{OptimisticTransactionDB, OptimisticTransactionOptions, WriteOptions};

use super::{is_conflict, reads, writes};
use crate::peer::backoff::Backoff;
use crate::peer::{HistoryTs, Peer, Read, Row, Session, StoreConfig, Write};

pub struct Optimistic {
    db: OptimisticTransactionDB,
    write_options: WriteOptions,
}

reads!(OptimisticTransactionDB);
writes!(OptimisticTransactionDB);

impl Peer for Optimistic {
    fn open(config: &StoreConfig) -> Result<Self> {
        let db = OptimisticTransactionDB::open(&super::options(config), &config.dir)?;
        Ok(Self { db, write_options: super::write_options(config) })
    }

    fn session(&self) -> Result<impl Session> {
        Ok(self)
    }

    fn close(self) -> Result<()> {
        Ok(self.db.flush_wal(true)?)
    }
}

impl Session for &Optimistic {
    fn reader(&mut self, _: Option<HistoryTs>) -> Result<impl Read> {
        Ok(&self.db)
    }

    fn transact(&mut self, work: &mut dyn FnMut(&mut dyn Write) -> Result<()>) -> Result<()> {
        let mut backoff = Backoff::default();
        loop {
            let mut txn = self.db.transaction_opt(&self.write_options, &OptimisticTransactionOptions::default());
            match work(&mut txn).and_then(|()| Ok(txn.commit()?)) {
                Err(error) if is_conflict(&error) => backoff.wait(),
                done => return done,
            }
        }
    }

    fn load(&mut self, rows: impl Iterator<Item = Row>) -> Result<()> {
        super::load(rows, |batch| self.db.write(batch))?;
        Ok(self.db.flush_wal(true)?)
    }
}
