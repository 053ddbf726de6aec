//! surrealkv.
//!
//! The settings follow surrealkv's README. A commit is a future, which the client's thread polls. A
//! tokio runtime runs the store's background work. `Durability::Immediate` waits for a sync of the
//! log; `Eventual`, the default, does not. `TransactionWriteConflict` and `TransactionRetry` are
//! retried. Rows that are read and then written are in the write set, so the commit checks them.
//!
//! Versions are kept with `with_versioning`. `with_wal_preallocation` is off by default; its
//! documentation recommends it for short syncs of small commits.

use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Result;
use surrealkv::{Durability, Error, LSMIterator, Mode, Options, Transaction, Tree, TreeBuilder};
use tokio::runtime::Runtime;

use super::backoff::Backoff;
use super::{HistoryTs, LOAD_BATCH_ROWS, Peer, Read, Row, Session, StoreConfig, Write};

const MEMTABLES: usize = 2;
/// A key above all other keys.
const END: [u8; 1] = [0xff];

pub struct SurrealKv {
    tree: Tree,
    durability: Durability,
    runtime: Runtime,
}

impl Peer for SurrealKv {
    fn open(config: &StoreConfig) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        let tree = {
            let _inside = runtime.enter();
            let builder = TreeBuilder::with_options(Options::default().with_wal_preallocation(true))
                .with_path(config.dir.clone())
                .with_block_cache_capacity(config.cache_bytes as u64)
                .with_max_memtable_size(config.write_buffer_bytes / MEMTABLES);
            if config.history { builder.with_versioning(true, 0) } else { builder }.build()?
        };
        Ok(Self {
            tree,
            durability: if config.durable { Durability::Immediate } else { Durability::Eventual },
            runtime,
        })
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
    fn reader(&mut self, at: Option<HistoryTs>) -> Result<impl Read> {
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
            for (key, value) in rows.by_ref().take(LOAD_BATCH_ROWS) {
                txn.set(key, value)?;
            }
            if rows.peek().is_none() {
                txn.set_durability(Durability::Immediate);
            }
            self.commit(&mut txn)?;
        }
        Ok(())
    }

    /// The timestamps of versions are wall-clock times.
    fn current_ts(&mut self) -> Result<HistoryTs> {
        Ok(u64::try_from(SystemTime::now().duration_since(UNIX_EPOCH)?.as_nanos())?)
    }
}

impl Read for (Transaction, Option<HistoryTs>) {
    fn get(&self, key: &[u8], visit: impl FnOnce(&[u8])) -> Result<bool> {
        let found = match self.1 {
            Some(current_ts) => self.0.get_at(key, current_ts)?,
            None => self.0.get(key)?,
        };
        Ok(found.map(|value| visit(&value)).is_some())
    }

    fn scan(&self, from: &[u8], rows: usize, mut visit: impl FnMut(&[u8], &[u8])) -> Result<usize> {
        let mut cursor = self.0.range(from, &END)?;
        let mut seen = 0;
        let mut is_there = cursor.seek_first()?;
        while is_there && seen < rows {
            visit(cursor.key().user_key(), &cursor.value()?);
            seen += 1;
            is_there = seen < rows && cursor.next()?;
        }
        Ok(seen)
    }
}

impl Write for Transaction {
    fn get_for_update(&mut self, key: &[u8], visit: &mut dyn FnMut(&[u8])) -> Result<bool> {
        let found = self.get(key)?;
        Ok(found.map(|value| visit(&value)).is_some())
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        Ok(self.set(key, value)?)
    }
}
