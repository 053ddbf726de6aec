//! RocksDB's `OptimisticTransactionDB`: rows are checked at the commit, and who comes second begins again.

use anyhow::Result;
use rocksdb::{OptimisticTransactionDB, OptimisticTransactionOptions, WriteOptions};

use super::{is_conflict, reads, writes};
use crate::peer::backoff::Backoff;
use crate::peer::{Moment, Peer, Read, Row, Session, Setup, Write};

pub struct Optimistic {
    db: OptimisticTransactionDB,
    write_options: WriteOptions,
}

reads!(OptimisticTransactionDB);
writes!(OptimisticTransactionDB);

impl Peer for Optimistic {
    fn open(setup: &Setup) -> Result<Self> {
        let db = OptimisticTransactionDB::open(&super::options(setup), &setup.folder)?;
        Ok(Self { db, write_options: super::write_options(setup) })
    }

    fn session(&self) -> Result<impl Session> {
        Ok(self)
    }

    fn close(self) -> Result<()> {
        Ok(self.db.flush_wal(true)?)
    }
}

impl Session for &Optimistic {
    fn reader(&mut self, _: Option<Moment>) -> Result<impl Read> {
        Ok(&self.db)
    }

    fn transact(&mut self, work: &mut dyn FnMut(&mut dyn Write) -> Result<()>) -> Result<()> {
        let mut backoff = Backoff::default();
        loop {
            let mut txn = self.db.transaction_opt(&self.write_options, &OptimisticTransactionOptions::default());
            match work(&mut txn).and_then(|()| Ok(txn.commit()?)) {
                Err(why) if is_conflict(&why) => backoff.wait(),
                done => return done,
            }
        }
    }

    fn load(&mut self, rows: impl Iterator<Item = Row>) -> Result<()> {
        super::load(rows, |batch| self.db.write(batch))?;
        Ok(self.db.flush_wal(true)?)
    }
}
