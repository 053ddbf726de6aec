//! The stores, behind one small trait.
//!
//! [`Peer`] has what all of them support: a transaction that is repeated until it commits, a
//! consistent view for reads, and a sorted load. Rows are passed to callbacks. So a store that
//! lends its pages copies nothing, and a store that returns owned values has the cost that its
//! users have.
//!
//! Each file names the documentation that its settings follow.

mod backoff;
mod fjall;
mod lmdb;
mod percolite;
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
pub use self::redb::Redb;
pub use self::rocks::{Optimistic, Pessimistic, Plain};
pub use self::sqlite::Sqlite;
pub use self::surrealkv::SurrealKv;

/// The number of rows per transaction of a load, in stores without a bulk load.
pub const LOAD_BATCH_ROWS: usize = 10_000;
/// How long a buffered commit may stay unsynced, in stores that leave this to their user.
pub const BUFFERED_SYNC_INTERVAL: std::time::Duration = std::time::Duration::from_millis(500);

/// The stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ValueEnum)]
pub enum StoreKind {
    Percolite,
    PercoliteTwoPhase,
    RocksOptimistic,
    RocksTransaction,
    /// RocksDB without transactions: reads and loads only
    Rocks,
    Fjall,
    Redb,
    Lmdb,
    Sqlite,
    Surrealkv,
}

impl StoreKind {
    /// All stores with transactions.
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

    /// The name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Percolite => "percolite",
            Self::PercoliteTwoPhase => "percolite, two-phase",
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

    /// Whether the store can read at an earlier timestamp.
    pub fn has_history(self) -> bool {
        matches!(self, Self::Percolite | Self::PercoliteTwoPhase | Self::Surrealkv)
    }
}

/// The configuration of a store, the same for all.
pub struct StoreConfig {
    pub dir: PathBuf,
    /// Whether an acknowledged commit survives a power cut.
    pub durable: bool,
    /// The cache for reads, in bytes.
    pub cache_bytes: usize,
    /// The write buffers, in bytes.
    pub write_buffer_bytes: usize,
    pub clients: usize,
    /// Whether replaced versions are kept.
    pub history: bool,
}

/// An open store.
pub trait Peer: Sized + Sync {
    fn open(config: &StoreConfig) -> Result<Self>;

    /// A session of one client.
    fn session(&self) -> Result<impl Session>;

    fn close(self) -> Result<()>;
}

/// The operations of one client.
pub trait Session {
    /// A consistent view of the committed rows. In a store with history, `at` may select those of
    /// an earlier timestamp.
    fn reader(&mut self, at: Option<HistoryTs>) -> Result<impl Read>;

    /// Runs a transaction until it commits, and retries as the store's documentation advises.
    fn transact(&mut self, work: &mut dyn FnMut(&mut dyn Write) -> Result<()>) -> Result<()>;

    /// Loads rows. Their keys must be in order, and above all existing keys. The rows are durable
    /// when this returns.
    fn load(&mut self, rows: impl Iterator<Item = Row>) -> Result<()>;

    /// A timestamp that covers all commits so far.
    fn current_ts(&mut self) -> Result<HistoryTs> {
        anyhow::bail!("this store has no reads at earlier timestamps")
    }
}

/// Key and value.
pub type Row = (Vec<u8>, Vec<u8>);
/// An earlier timestamp, in the store's own unit.
pub type HistoryTs = u64;

/// A consistent view. RocksDB is an exception: each read sees the newest rows.
pub trait Read {
    /// Calls `visit` with the value of the row. Returns whether the row exists.
    fn get(&self, key: &[u8], visit: impl FnOnce(&[u8])) -> Result<bool>;

    /// Calls `visit` with the value of each row that exists. Returns their number.
    fn multi_get(&self, keys: &[Vec<u8>], mut visit: impl FnMut(&[u8])) -> Result<usize> {
        let mut found = 0;
        for key in keys {
            found += usize::from(self.get(key, &mut visit)?);
        }
        Ok(found)
    }

    /// Reads at most `rows` rows from a key on. Returns their number.
    fn scan(&self, from: &[u8], rows: usize, visit: impl FnMut(&[u8], &[u8])) -> Result<usize>;
}

/// A transaction.
pub trait Write {
    /// Reads a row that the transaction will write. Rows must be requested in the order of their
    /// keys, so that stores that lock rows have no deadlocks. Returns whether the row exists.
    fn get_for_update(&mut self, key: &[u8], visit: &mut dyn FnMut(&[u8])) -> Result<bool>;

    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()>;
}
