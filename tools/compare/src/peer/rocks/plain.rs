//! RocksDB without transactions: what reads and loads are measured against.

use anyhow::{Result, bail};
use rocksdb::DB;

use super::reads;
use crate::peer::{Moment, Peer, Read, Row, Session, Setup, Write};

pub struct Plain(DB);

reads!(DB);

impl Peer for Plain {
    fn open(setup: &Setup) -> Result<Self> {
        Ok(Self(DB::open(&super::options(setup), &setup.folder)?))
    }

    fn session(&self) -> Result<impl Session> {
        Ok(self)
    }

    fn close(self) -> Result<()> {
        Ok(self.0.flush_wal(true)?)
    }
}

impl Session for &Plain {
    fn reader(&mut self, _: Option<Moment>) -> Result<impl Read> {
        Ok(&self.0)
    }

    fn transact(&mut self, _: &mut dyn FnMut(&mut dyn Write) -> Result<()>) -> Result<()> {
        bail!("has no transactions")
    }

    fn load(&mut self, rows: impl Iterator<Item = Row>) -> Result<()> {
        super::load(rows, |batch| self.0.write(batch))?;
        Ok(self.0.flush_wal(true)?)
    }
}
