//! RocksDB's `TransactionDB`: `get_for_update` locks the rows, in the order of their keys, so that
//! no deadlock is possible.

use anyhow::Result;
use rocksdb::{TransactionDB, TransactionDBOptions, TransactionOptions, WriteOptions};

use super::{is_conflict, reads, writes};
use crate::peer::{HistoryTs, Peer, Read, Row, Session, StoreConfig, Write};

pub struct Pessimistic {
    db: TransactionDB,
    write_options: WriteOptions,
}

reads!(TransactionDB);
writes!(TransactionDB);

impl Peer for Pessimistic {
    fn open(config: &StoreConfig) -> Result<Self> {
        let db = TransactionDB::open(&super::options(config), &TransactionDBOptions::default(), &config.dir)?;
        Ok(Self { db, write_options: super::write_options(config) })
    }

    fn session(&self) -> Result<impl Session> {
        Ok(self)
    }

    fn close(self) -> Result<()> {
        Ok(self.db.flush_wal(true)?)
    }
}

impl Session for &Pessimistic {
    fn reader(&mut self, _: Option<HistoryTs>) -> Result<impl Read> {
        Ok(&self.db)
    }

    fn transact(&mut self, work: &mut dyn FnMut(&mut dyn Write) -> Result<()>) -> Result<()> {
        loop {
            let mut txn = self.db.transaction_opt(&self.write_options, &TransactionOptions::default());
            match work(&mut txn).and_then(|()| Ok(txn.commit()?)) {
                Err(error) if is_conflict(&error) => {}
                done => return done,
            }
        }
    }

    fn load(&mut self, rows: impl Iterator<Item = Row>) -> Result<()> {
        super::load(rows, |batch| self.db.write(batch))?;
        Ok(self.db.flush_wal(true)?)
    }
}
