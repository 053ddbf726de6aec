//! Shared by the test targets: storage that a store can be opened on, and random numbers.

#![allow(dead_code, reason = "each test takes what it needs")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use percolite::engine::Engine;
use percolite::engine::sim::SimStorage;
use percolite::engine::unreliable::{Faults, FaultyEngine};
use percolite::env::{Env, SystemEnv};
use percolite::oracle::{MemoryOracle, Oracle};
use percolite::{Builder, CommitProtocol, SharedConfig, SleepingRowLockWaiter, Store};

/// Time to live of a row lock on a shared engine, in milliseconds. Heartbeats extend it.
pub const TTL_MS: u64 = 3000;

/// The storage of a store, which outlives the open store.
pub enum Home {
    /// Memory with an exclusive engine.
    Embedded(SimStorage),
    /// Memory with an exclusive engine and two-phase commits, and with one row of a transaction in
    /// each batch, so that rows are still locked after the commit point.
    RowByRow(SimStorage),
    /// Memory that several clients share. Each open store is a client.
    Shared(Server),
    /// A directory.
    #[cfg(feature = "rocks")]
    Rocks(tempfile::TempDir),
}

/// An engine that several clients share, and the network to it.
pub struct Server {
    pub memory: SimStorage,
    oracle: Arc<dyn Oracle>,
    runtime: Arc<dyn Env>,
    /// The faults of the network, and their seed.
    faults: Option<(Faults, u64)>,
    ttl_ms: u64,
    clients: AtomicU64,
}

impl Home {
    pub fn embedded() -> Self {
        Self::Embedded(SimStorage::new())
    }

    pub fn row_by_row() -> Self {
        Self::RowByRow(SimStorage::new())
    }

    pub fn shared() -> Self {
        Self::Shared(Server::new(None, TTL_MS))
    }

    /// Memory that several clients share, each through a faulty network of its own.
    pub fn unreliable(seed: u64, ttl_ms: u64) -> Self {
        Self::Shared(Server::new(Some((Faults::bad_network(), seed)), ttl_ms))
    }

    #[cfg(feature = "rocks")]
    pub fn rocks() -> Self {
        Self::Rocks(tempfile::tempdir().unwrap())
    }

    /// Opens the store, or one more client of the shared engine.
    pub fn open(&self, builder: Builder) -> Store {
        match self {
            Self::Embedded(memory) => builder.open_in_memory(memory).unwrap(),
            Self::RowByRow(memory) => {
                let engine = memory.exclusive_engine().with_batch_rows_max(2);
                builder.commit_protocol(CommitProtocol::TwoPhase).open_engine(Arc::new(engine)).unwrap()
            }
            Self::Shared(server) => server.open(builder),
            #[cfg(feature = "rocks")]
            Self::Rocks(directory) => {
                builder.block_cache_bytes(4 << 20).write_buffer_bytes(4 << 20).open(directory.path()).unwrap()
            }
        }
    }

    /// A handle for each of `count` sessions: separate clients where the storage is shared.
    pub fn open_sessions(&self, count: usize) -> Vec<Store> {
        match self {
            Self::Shared(_) => (0..count).map(|_| self.open(Store::builder())).collect(),
            _ => vec![self.open(Store::builder()); count],
        }
    }

    pub fn is_shared(&self) -> bool {
        matches!(self, Self::Shared(_))
    }
}

impl Server {
    fn new(faults: Option<(Faults, u64)>, ttl_ms: u64) -> Self {
        let runtime: Arc<dyn Env> = Arc::new(SystemEnv::default());
        Self {
            memory: SimStorage::new(),
            oracle: Arc::new(MemoryOracle::new(Arc::clone(&runtime))),
            runtime,
            faults,
            ttl_ms,
            clients: AtomicU64::new(0),
        }
    }

    fn open(&self, builder: Builder) -> Store {
        let client = self.clients.fetch_add(1, Ordering::Relaxed);
        let engine: Arc<dyn Engine> = match self.faults {
            Some((faults, seed)) => Arc::new(FaultyEngine::new(self.memory.shared_engine(), faults, seed ^ client)),
            None => Arc::new(self.memory.shared_engine()),
        };
        let config = SharedConfig {
            engine,
            oracle: Arc::clone(&self.oracle),
            waiter: Arc::new(SleepingRowLockWaiter(Arc::clone(&self.runtime))),
            ttl_ms: self.ttl_ms,
        };
        builder.open_shared(config).unwrap()
    }
}

/// Random numbers by splitmix64. Each thread has its own seed.
pub struct Dice(pub u64);

impl Dice {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }

    /// True in one of `times` draws, on average.
    pub fn one_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }
}
