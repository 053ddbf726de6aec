//! The stores that are compared, behind one small trait.
//!
//! The trait asks for what all of them can do: a transaction that is repeated until it commits, a consistent view to read
//! from, a sorted load. It hands out bytes through callbacks, so a store that lends its pages need not copy, and one whose
//! interface answers owned values pays for them as its users do. Each file says where the store's own advice was taken from.

mod backoff;
mod fjall;
mod lmdb;
mod percolite;
mod proof;
mod redb;
mod rocks;
mod sqlite;
mod surrealkv;

use std::path::PathBuf;

use anyhow::Result;
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

pub use self::fjall::Fjall;
pub use self::lmdb::Lmdb;
pub use self::percolite::Percolite;
pub use self::proof::Proof;
pub use self::redb::Redb;
pub use self::rocks::{Optimistic, Pessimistic, Plain};
pub use self::sqlite::Sqlite;
pub use self::surrealkv::SurrealKv;

/// How many rows a load commits at a time, where a store has no other way to load.
pub const LOAD_ROWS: usize = 10_000;
/// How long a buffered commit may stay without a sync in the stores that leave that to their user.
pub const BUFFERED_FOR: std::time::Duration = std::time::Duration::from_millis(500);

/// Which store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ValueEnum)]
pub enum Kind {
    Percolite,
    PercoliteTwoPhase,
    /// The proof of percolite's next core.
    Proof,
    RocksOptimistic,
    RocksTransaction,
    /// RocksDB without transactions: reads and loads only.
    Rocks,
    Fjall,
    Redb,
    Lmdb,
    Sqlite,
    Surrealkv,
}

impl Kind {
    /// All that have transactions.
    pub const TRANSACTIONAL: [Self; 9] = [
        Self::Percolite,
        Self::PercoliteTwoPhase,
        Self::RocksOptimistic,
        Self::RocksTransaction,
        Self::Fjall,
        Self::Redb,
        Self::Lmdb,
        Self::Sqlite,
        Self::Surrealkv,
    ];

    /// As it is shown.
    pub fn name(self) -> &'static str {
        match self {
            Self::Percolite => "percolite",
            Self::PercoliteTwoPhase => "percolite, two-phase",
            Self::Proof => "proof of the core",
            Self::RocksOptimistic => "RocksDB Optimistic",
            Self::RocksTransaction => "RocksDB TransactionDB",
            Self::Rocks => "RocksDB",
            Self::Fjall => "fjall",
            Self::Redb => "redb",
            Self::Lmdb => "LMDB",
            Self::Sqlite => "SQLite",
            Self::Surrealkv => "surrealkv",
        }
    }

    /// Whether it can be asked what was.
    pub fn can_travel(self) -> bool {
        matches!(self, Self::Percolite | Self::PercoliteTwoPhase | Self::Surrealkv)
    }
}

/// What a store is opened with; the same for all.
pub struct Setup {
    pub folder: PathBuf,
    /// Whether a commit survives a power cut when it is acknowledged.
    pub durable: bool,
    /// For what is read, in bytes.
    pub cache_bytes: usize,
    /// For what is not yet written to its final place, in bytes.
    pub write_buffer_bytes: usize,
    pub clients: usize,
    /// Whether what is replaced is kept.
    pub history: bool,
}

/// A store that is open.
pub trait Peer: Sized + Sync {
    fn open(setup: &Setup) -> Result<Self>;

    /// One client's way in.
    fn session(&self) -> Result<impl Session>;

    fn close(self) -> Result<()>;
}

/// What one client does with the store.
pub trait Session {
    /// A consistent view of what is committed; or, where the store can, of what was at a moment.
    fn reader(&mut self, at: Option<Moment>) -> Result<impl Read>;

    /// Runs a transaction until it commits, with as many attempts as the store's own advice takes.
    fn transact(&mut self, work: &mut dyn FnMut(&mut dyn Write) -> Result<()>) -> Result<()>;

    /// Takes rows in the order of their keys, which lie above all others; they are durable when this returns.
    fn load(&mut self, rows: impl Iterator<Item = Row>) -> Result<()>;

    /// A moment at which everything committed so far is there.
    fn moment(&mut self) -> Result<Moment> {
        anyhow::bail!("cannot read the past")
    }
}

/// Key and value.
pub type Row = (Vec<u8>, Vec<u8>);
/// A moment of the past, in the store's own count.
pub type Moment = u64;

/// A view.
pub trait Read {
    /// Whether the row is there.
    fn get(&self, key: &[u8], see: impl FnOnce(&[u8])) -> Result<bool>;

    /// How many of the rows are there.
    fn multi_get(&self, keys: &[Vec<u8>], mut see: impl FnMut(&[u8])) -> Result<usize> {
        let mut found = 0;
        for key in keys {
            found += usize::from(self.get(key, &mut see)?);
        }
        Ok(found)
    }

    /// How many rows there were, from a key on, at most so many.
    fn scan(&self, from: &[u8], rows: usize, see: impl FnMut(&[u8], &[u8])) -> Result<usize>;
}

/// A transaction.
pub trait Write {
    /// A row that the transaction is going to write; rows are asked for in the order of their keys. Whether it is there.
    fn get_to_write(&mut self, key: &[u8], see: &mut dyn FnMut(&[u8])) -> Result<bool>;

    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()>;
}
