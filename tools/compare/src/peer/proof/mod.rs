//! The proof of a core of our own: a log and a window in memory, with RocksDB for the tables below, and no protocol.
//!
//! It has what decides how fast such a core is: one write of the log for each batch, with a checksum; versions of rows by sequence
//! in a window that is read without waiting for its writer; generations of the window that are handed down into RocksDB, whose log is
//! off; readers that are registered, so that versions can go. It lacks what a store has beside: locks, a status of transactions,
//! deletions, history, and an answer to a disk that fails.
//!
//! ```text
//!   commit     decide → stamp → one write of the log → window → visible          (the leader, for all that wait)
//!   durable    fdatasync for what was written before → wake                      (the syncing thread)
//!   hand down  freeze the window → its rows into RocksDB, sorted → flush → log   (the thread below)
//! ```

mod below;
mod commit;
mod layers;
mod log;
mod readers;
// The window that is measured is the library's own.
#[path = "../../../../../src/memtable/mod.rs"]
#[allow(dead_code, unused_imports, clippy::cast_possible_truncation, reason = "each test takes what it needs")]
mod memtable;

use std::sync::Arc;

use anyhow::Result;

use self::commit::{Pending, Shared};
use self::layers::Layers;
use self::readers::Slot;
use super::backoff::Backoff;
use super::{LOAD_ROWS, Moment, Peer, Read, Row, Session, Setup, Write};

/// See the [module](self).
pub struct Proof(commit::Core);

impl Peer for Proof {
    fn open(setup: &Setup) -> Result<Self> {
        Ok(Self(commit::Core::open(setup)?))
    }

    fn session(&self) -> Result<impl Session> {
        let shared = &self.0.shared;
        Ok(Client { shared, reads: shared.readers.slot()?, writes: shared.writers.slot()? })
    }

    fn close(self) -> Result<()> {
        self.0.close()
    }
}

struct Client<'a> {
    shared: &'a Arc<Shared>,
    reads: Slot<'a>,
    writes: Slot<'a>,
}

/// A view: what is visible at a sequence.
struct View<'a> {
    layers: Arc<Layers>,
    sequence: u64,
    _slot: readers::Entered<'a>,
}

impl Session for Client<'_> {
    fn reader(&mut self, _: Option<Moment>) -> Result<impl Read> {
        Ok(self.shared.view(&self.reads))
    }

    fn transact(&mut self, work: &mut dyn FnMut(&mut dyn Write) -> Result<()>) -> Result<()> {
        let mut backoff = Backoff::default();
        loop {
            let mut txn = Transaction { view: self.shared.view(&self.writes), rows: Vec::new() };
            work(&mut txn)?;
            let pending = Pending::new(txn.view.sequence, txn.rows, self.shared.durable_commits);
            if self.shared.commit(&pending)? {
                return Ok(());
            }
            drop(txn.view);
            backoff.wait();
        }
    }

    fn load(&mut self, rows: impl Iterator<Item = Row>) -> Result<()> {
        let mut rows = rows.peekable();
        while rows.peek().is_some() {
            let view = self.shared.view(&self.writes);
            let pending = Pending::new(view.sequence, rows.by_ref().take(LOAD_ROWS).collect(), rows.peek().is_none());
            anyhow::ensure!(self.shared.commit(&pending)?, "a load met a conflict");
        }
        Ok(())
    }
}

struct Transaction<'a> {
    view: View<'a>,
    rows: Vec<Row>,
}

impl Write for Transaction<'_> {
    fn get_to_write(&mut self, key: &[u8], see: &mut dyn FnMut(&[u8])) -> Result<bool> {
        self.view.get(key, see)
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.rows.push((key.to_vec(), value.to_vec()));
        Ok(())
    }
}

impl Read for View<'_> {
    fn get(&self, key: &[u8], see: impl FnOnce(&[u8])) -> Result<bool> {
        self.layers.get(key, self.sequence, see)
    }

    fn scan(&self, from: &[u8], rows: usize, see: impl FnMut(&[u8], &[u8])) -> Result<usize> {
        self.layers.scan(from, rows, self.sequence, see)
    }
}
