//! A machine in memory: the storage in [layers](super::lsm) over a simulated disk and simulated tables, and a power cut is an
//! operation.
//!
//! It is what a folder is to a process, and the harness's simulation runs on it: the same log, window, hand-down and recovery,
//! a disk that tears and reorders what was not synced, and tables that lose what was not flushed or flush it by themselves.
//! Where a test wants to choose exactly which batches a crash takes, [`sim`](super::sim) alone is simpler.

use std::sync::Arc;

use parking_lot::Mutex;

use super::EngineError;
use super::lsm::{Layered, Setup};
use super::sim::SimStorage;
use crate::disk::{Call, Choices, SimDisk};
use crate::wal::Syncer;

/// What a process on a machine keeps its rows in.
pub type MachineStorage = Layered<SimDisk, SimStorage>;

const IDENTITY: u64 = 7;

/// What outlives a process; clones share it.
#[derive(Clone, Default)]
pub struct Machine {
    disk: SimDisk,
    tables: SimStorage,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    /// What a marker says in a folder.
    is_created: bool,
    /// The log of the life that is now.
    log: Option<Syncer<SimDisk>>,
    /// Frames that were written, and were not there any more when it was opened again.
    lost: u64,
}

/// What fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A write to the log; a part of it may have been made.
    Write,
    /// A sync of the log.
    Sync,
    /// Any call to the log's disk.
    Call,
    /// A batch for the tables, which is made all the same.
    TablesMade,
    /// A batch for the tables, which is not made.
    TablesRefused,
    /// A flush of the tables.
    TablesFlush,
}

impl Fault {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Write, Self::Sync, Self::Call, Self::TablesMade, Self::TablesRefused, Self::TablesFlush];
}

impl Machine {
    /// With an empty disk.
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether it was ever opened to the end, and so has a store.
    pub fn is_created(&self) -> bool {
        self.state.lock().is_created
    }

    /// Opens the store, and creates it if there is none. A generation is frozen once it has `memory_limit` bytes. `seed`
    /// is that of the log's salts and the window's hash. [`Layered::work`] hands generations down.
    pub fn open(&self, memory_limit: usize, seed: u64) -> Result<MachineStorage, EngineError> {
        let mut choices = Choices::new(seed);
        let setup = Setup {
            identity: IDENTITY,
            is_new: !self.is_created(),
            random: Box::new(move || choices.next()),
            memory_limit,
            accepted_loss: None,
            has_worker: false,
        };
        let layers = Layered::open(self.disk.revive(), self.tables.process(), setup)?;
        let mut state = self.state.lock();
        state.is_created = true;
        let log = layers.log();
        if let (Some(before), Some(log)) = (&state.log, &log) {
            state.lost += before.written().saturating_sub(log.written());
        }
        state.log = log;
        drop(state);
        Ok(layers)
    }

    /// Opens what is there to be read; nothing is written.
    pub fn open_read_only(&self) -> Result<MachineStorage, EngineError> {
        Layered::open_read_only(self.disk.revive(), self.tables.process(), IDENTITY, 0)
    }

    /// Pulls the plug. The seed decides what is left of what was not durable.
    pub fn crash(&self, seed: u64) {
        self.disk.crash(seed);
        self.tables.crash(seed >> 8);
    }

    /// The process dies: the log keeps everything that was written, and the tables what they have flushed.
    pub fn kill(&self, seed: u64) {
        self.disk.kill();
        self.tables.crash(seed);
    }

    /// The `nth` of these calls from now fails; 1 is the next.
    pub fn fail(&self, fault: Fault, nth: u64, seed: u64) {
        match fault {
            Fault::Write => self.disk.fail(Some(Call::Write), nth, seed),
            Fault::Sync => self.disk.fail(Some(Call::Sync), nth, seed),
            Fault::Call => self.disk.fail(None, nth, seed),
            Fault::TablesMade => self.tables.fail_write(nth),
            Fault::TablesRefused => self.tables.refuse_write(nth),
            Fault::TablesFlush => self.tables.fail_sync(nth),
        }
    }

    /// The `nth` call to the log's disk from now fails, and all after it, until a crash.
    pub fn stop(&self, nth: u64, seed: u64) {
        self.disk.stop(nth, seed);
    }

    /// Whether a call has failed since the last crash.
    pub fn has_failed(&self) -> bool {
        self.disk.has_failed() || self.tables.has_failed()
    }

    /// How many frames of the log crashes have taken, as far as it was opened since.
    pub fn lost(&self) -> u64 {
        self.state.lock().lost
    }
}
