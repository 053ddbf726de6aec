//! RocksDB without transactions: the baseline of reads and loads.

use anyhow::{Result, bail};
use rocksdb::DB;

use super::reads;
use crate::peer::{HistoryTs, Peer, Read, Row, Session, StoreConfig, Write};

pub struct Plain(DB);

reads!(DB);

impl Peer for Plain {
    fn open(config: &StoreConfig) -> Result<Self> {
        Ok(Self(DB::open(&super::options(config), &config.dir)?))
    }

    fn session(&self) -> Result<impl Session> {
        Ok(self)
    }

    fn close(self) -> Result<()> {
        Ok(self.0.flush_wal(true)?)
    }
}

impl Session for &Plain {
    fn reader(&mut self, _: Option<HistoryTs>) -> Result<impl Read> {
        Ok(&self.0)
    }

    fn transact(&mut self, _: &mut dyn FnMut(&mut dyn Write) -> Result<()>) -> Result<()> {
        bail!("this store has no transactions")
    }

    fn load(&mut self, rows: impl Iterator<Item = Row>) -> Result<()> {
        super::load(rows, |batch| self.0.write(batch))?;
        Ok(self.0.flush_wal(true)?)
    }
}
