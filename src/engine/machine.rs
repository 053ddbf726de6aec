//! A machine in memory: the storage in [layers](super::lsm) over a simulated disk and simulated tables, and a power cut is an
//! operation.
//!
//! It is what a folder is to a process, and the harness's simulation runs on it: the same log, window, hand-down and recovery,
//! a disk that tears and reorders what was not synced, and tables that lose what was not flushed or flush it by themselves.
//! Where a test wants to choose exactly which batches a crash takes, [`sim`](super::sim) alone is simpler.

use std::sync::Arc;

use parking_lot::Mutex;

use super::EngineError;
use super::lsm::{LsmOptions, LsmStorage};
use super::sim::SimStorage;
use crate::disk::{CallKind, SimDisk, SplitMix64};
use crate::wal::WalHandle;

/// What a process on a machine keeps its rows in.
pub type SimMachineStorage = LsmStorage<SimDisk, SimStorage>;

const IDENTITY: u64 = 7;

/// What outlives a process; clones share it.
#[derive(Clone, Default)]
pub struct SimMachine {
    disk: SimDisk,
    tables: SimStorage,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    /// What a marker says in a folder.
    is_created: bool,
    /// The log of the life that is now.
    log: Option<WalHandle<SimDisk>>,
    /// Frames that were written, and were not there any more when it was opened again.
    lost_frames: u64,
}

/// What fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MachineFault {
    /// A write to the log; a part of it may have been made.
    WalWrite,
    /// A sync of the log.
    WalSync,
    /// Any call to the log's disk.
    AnyCall,
    /// A batch for the tables, which is made all the same.
    TableWriteApplied,
    /// A batch for the tables, which is not made.
    TableWriteRejected,
    /// A flush of the tables.
    TableSync,
}

impl MachineFault {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::WalWrite,
        Self::WalSync,
        Self::AnyCall,
        Self::TableWriteApplied,
        Self::TableWriteRejected,
        Self::TableSync,
    ];
}

impl SimMachine {
    /// With an empty disk.
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether it was ever opened to the end, and so has a store.
    pub fn is_created(&self) -> bool {
        self.state.lock().is_created
    }

    /// Opens the store, and creates it if there is none. A generation is frozen once it has `memory_limit` bytes. `seed`
    /// is that of the log's salts and the window's hash. [`LsmStorage::work`] hands generations down.
    pub fn open(&self, memtable_bytes: usize, seed: u64) -> Result<SimMachineStorage, EngineError> {
        let mut choices = SplitMix64::new(seed);
        let setup = LsmOptions {
            wal_id: IDENTITY,
            is_new: !self.is_created(),
            random: Box::new(move || choices.next()),
            memtable_bytes,
            accept_data_loss: None,
            background_flush: false,
        };
        let layers = LsmStorage::open(self.disk.handle(), self.tables.handle(), setup)?;
        let mut state = self.state.lock();
        state.is_created = true;
        let log = layers.wal();
        if let (Some(before), Some(log)) = (&state.log, &log) {
            state.lost_frames += before.written_sequence().saturating_sub(log.written_sequence());
        }
        state.log = log;
        drop(state);
        Ok(layers)
    }

    /// Opens what is there to be read; nothing is written.
    pub fn open_read_only(&self) -> Result<SimMachineStorage, EngineError> {
        LsmStorage::open_read_only(self.disk.handle(), self.tables.handle(), IDENTITY, 0)
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
    pub fn fail(&self, fault: MachineFault, nth: u64, seed: u64) {
        match fault {
            MachineFault::WalWrite => self.disk.fail_nth(Some(CallKind::Write), nth, seed),
            MachineFault::WalSync => self.disk.fail_nth(Some(CallKind::Sync), nth, seed),
            MachineFault::AnyCall => self.disk.fail_nth(None, nth, seed),
            MachineFault::TableWriteApplied => self.tables.fail_write(nth),
            MachineFault::TableWriteRejected => self.tables.reject_write(nth),
            MachineFault::TableSync => self.tables.fail_sync(nth),
        }
    }

    /// The `nth` call to the log's disk from now fails, and all after it, until a crash.
    pub fn fail_from(&self, nth: u64, seed: u64) {
        self.disk.fail_from(nth, seed);
    }

    /// Whether a call has failed since the last crash.
    pub fn has_failed(&self) -> bool {
        self.disk.has_failed() || self.tables.has_failed()
    }

    /// How many frames of the log crashes have taken, as far as it was opened since.
    pub fn lost_frames(&self) -> u64 {
        self.state.lock().lost_frames
    }
}
