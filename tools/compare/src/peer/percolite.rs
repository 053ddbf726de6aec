//! percolite, with its defaults.
//!
//! Rows that will be written are read by `Txn::get`, not by `get_for_update`: two transactions that
//! write one row conflict anyway. Scans lend their rows (`Scan::visit`), as the scans of other
//! stores do.
//!
//! A load consists of buffered transactions of 10,000 rows and one sync at the end. No other client
//! writes these rows, so the transactions are not retried.

use std::ops::ControlFlow;
use std::time::Duration;

use anyhow::Result;
use percolite::{CommitProtocol, Durability, Keyspace, Snapshot, Store, Timestamp, Txn, TxnOptions};

use super::{HistoryTs, LOAD_BATCH_ROWS, Peer, Read, Row, Session, StoreConfig, Write};

const HISTORY: Duration = Duration::from_secs(24 * 3600);

/// percolite. `TWO_PHASE` selects two phases for every commit, instead of the default protocol,
/// which commits in one phase where possible.
pub struct Percolite<const TWO_PHASE: bool> {
    store: Store,
    rows: Keyspace,
}

impl<const TWO_PHASE: bool> Peer for Percolite<TWO_PHASE> {
    fn open(config: &StoreConfig) -> Result<Self> {
        let mut builder = Store::builder()
            .durability(if config.durable { Durability::Sync } else { Durability::Buffered })
            .commit_protocol(if TWO_PHASE { CommitProtocol::TwoPhase } else { CommitProtocol::Auto })
            .block_cache_bytes(config.cache_bytes)
            .write_buffer_bytes(config.write_buffer_bytes);
        if config.history {
            builder = builder.history_retention(HISTORY);
        }
        let store = builder.open(&config.dir)?;
        let rows = store.keyspace("rows")?;
        Ok(Self { store, rows })
    }

    fn session(&self) -> Result<impl Session> {
        Ok(self)
    }

    fn close(self) -> Result<()> {
        Ok(self.store.close()?)
    }
}

impl<const TWO_PHASE: bool> Session for &Percolite<TWO_PHASE> {
    fn reader(&mut self, at: Option<HistoryTs>) -> Result<impl Read> {
        let snapshot = match at {
            Some(current_ts) => self.store.snapshot_at(Timestamp::from_u64(current_ts))?,
            None => self.store.snapshot()?,
        };
        Ok((snapshot, &self.rows))
    }

    fn transact(&mut self, work: &mut dyn FnMut(&mut dyn Write) -> Result<()>) -> Result<()> {
        self.store.transact(|txn| work(&mut (txn, &self.rows)))
    }

    fn load(&mut self, rows: impl Iterator<Item = Row>) -> Result<()> {
        let options = TxnOptions::default().durability(Durability::Buffered);
        let mut rows = rows.peekable();
        while rows.peek().is_some() {
            let mut txn = self.store.begin_with(options)?;
            rows.by_ref().take(LOAD_BATCH_ROWS).try_for_each(|(key, value)| txn.put(&self.rows, key, value))?;
            txn.commit()?;
        }
        Ok(self.store.sync()?)
    }

    fn current_ts(&mut self) -> Result<HistoryTs> {
        Ok(self.store.snapshot()?.read_ts().to_u64())
    }
}

impl Read for (Snapshot, &Keyspace) {
    fn get(&self, key: &[u8], visit: impl FnOnce(&[u8])) -> Result<bool> {
        let found = self.0.get(self.1, key)?;
        Ok(found.map(|value| visit(&value)).is_some())
    }

    fn multi_get(&self, keys: &[Vec<u8>], mut visit: impl FnMut(&[u8])) -> Result<usize> {
        let found = self.0.multi_get(self.1, keys)?;
        Ok(found.iter().flatten().map(|value| visit(value)).count())
    }

    fn scan(&self, from: &[u8], rows: usize, mut visit: impl FnMut(&[u8], &[u8])) -> Result<usize> {
        let mut seen = 0;
        let _ = self.0.range(self.1, from..).visit(|key, value| {
            visit(key, value);
            seen += 1;
            if seen < rows { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })?;
        Ok(seen)
    }
}

impl Write for (&mut Txn, &Keyspace) {
    fn get_for_update(&mut self, key: &[u8], visit: &mut dyn FnMut(&[u8])) -> Result<bool> {
        let found = self.0.get(self.1, key)?;
        Ok(found.map(|value| visit(&value)).is_some())
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        Ok(self.0.put(self.1, key, value)?)
    }
}
