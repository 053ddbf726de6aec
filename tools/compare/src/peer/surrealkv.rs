//! surrealkv.
//!
//! After its README: a commit is a future, driven here by the client's own thread beside a tokio runtime for the store's
//! background work; `Durability::Immediate` waits for a sync of the log, `Eventual`, the default, for none;
//! `TransactionWriteConflict` and `TransactionRetry` begin again. Rows that are read to be written are in the write set and
//! so checked at the commit. Versions are kept with `with_versioning`. After its documentation of `with_wal_preallocation`, which
//! is off by default, that is what makes the sync of a small commit short.

use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Result;
use surrealkv::{Durability, Error, LSMIterator, Mode, Options, Transaction, Tree, TreeBuilder};
use tokio::runtime::Runtime;

use super::backoff::Backoff;
use super::{LOAD_ROWS, Moment, Peer, Read, Row, Session, Setup, Write};

const MEMTABLES: usize = 2;
/// Above all keys in use.
const END: [u8; 1] = [0xff];

pub struct SurrealKv {
    tree: Tree,
    durability: Durability,
    runtime: Runtime,
}

impl Peer for SurrealKv {
    fn open(setup: &Setup) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        let tree = {
            let _inside = runtime.enter();
            let builder = TreeBuilder::with_options(Options::default().with_wal_preallocation(true))
                .with_path(setup.folder.clone())
                .with_block_cache_capacity(setup.cache_bytes as u64)
                .with_max_memtable_size(setup.write_buffer_bytes / MEMTABLES);
            if setup.history { builder.with_versioning(true, 0) } else { builder }.build()?
        };
        Ok(Self { tree, durability: if setup.durable { Durability::Immediate } else { Durability::Eventual }, runtime })
    }

    fn session(&self) -> Result<impl Session> {
        Ok(self)
    }

    fn close(self) -> Result<()> {
        Ok(self.runtime.block_on(self.tree.close())?)
    }
}

impl SurrealKv {
    fn commit(&self, txn: &mut Transaction) -> Result<(), Error> {
        self.runtime.block_on(txn.commit())
    }
}

impl Session for &SurrealKv {
    fn reader(&mut self, at: Option<Moment>) -> Result<impl Read> {
        Ok((self.tree.begin_with_mode(Mode::ReadOnly)?, at))
    }

    fn transact(&mut self, work: &mut dyn FnMut(&mut dyn Write) -> Result<()>) -> Result<()> {
        let mut backoff = Backoff::default();
        loop {
            let mut txn = self.tree.begin()?;
            txn.set_durability(self.durability);
            work(&mut txn)?;
            match self.commit(&mut txn) {
                Err(Error::TransactionWriteConflict | Error::TransactionRetry) => backoff.wait(),
                done => return Ok(done?),
            }
        }
    }

    fn load(&mut self, rows: impl Iterator<Item = Row>) -> Result<()> {
        let mut rows = rows.peekable();
        while rows.peek().is_some() {
            let mut txn = self.tree.begin_with_mode(Mode::WriteOnly)?;
            for (key, value) in rows.by_ref().take(LOAD_ROWS) {
                txn.set(key, value)?;
            }
            if rows.peek().is_none() {
                txn.set_durability(Durability::Immediate);
            }
            self.commit(&mut txn)?;
        }
        Ok(())
    }

    /// Versions are known by the clock.
    fn moment(&mut self) -> Result<Moment> {
        Ok(u64::try_from(SystemTime::now().duration_since(UNIX_EPOCH)?.as_nanos())?)
    }
}

impl Read for (Transaction, Option<Moment>) {
    fn get(&self, key: &[u8], see: impl FnOnce(&[u8])) -> Result<bool> {
        let found = match self.1 {
            Some(moment) => self.0.get_at(key, moment)?,
            None => self.0.get(key)?,
        };
        Ok(found.map(|value| see(&value)).is_some())
    }

    fn scan(&self, from: &[u8], rows: usize, mut see: impl FnMut(&[u8], &[u8])) -> Result<usize> {
        let mut cursor = self.0.range(from, &END)?;
        let mut seen = 0;
        let mut is_there = cursor.seek_first()?;
        while is_there && seen < rows {
            see(cursor.key().user_key(), &cursor.value()?);
            seen += 1;
            is_there = seen < rows && cursor.next()?;
        }
        Ok(seen)
    }
}

impl Write for Transaction {
    fn get_to_write(&mut self, key: &[u8], see: &mut dyn FnMut(&[u8])) -> Result<bool> {
        let found = self.get(key)?;
        Ok(found.map(|value| see(&value)).is_some())
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        Ok(self.set(key, value)?)
    }
}
