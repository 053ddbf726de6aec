//! A simulated machine whose power a test can cut: the [LSM storage](super::lsm) over a simulated
//! disk and simulated tables.
//!
//! The crash harness runs its simulation on such a machine in place of a directory. The write-ahead
//! log, memtables, flush and recovery are the real ones. At a power cut the disk tears and reorders
//! unsynced writes. The tables keep a prefix of the batches that were not synced, as if RocksDB had
//! flushed these on its own.
//!
//! A test that chooses exactly which batches a crash loses can use [`sim`](super::sim) alone, which
//! is simpler.

use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;

use super::EngineError;
use super::lsm::{LsmOptions, LsmStorage};
use super::sim::SimStorage;
use crate::disk::{CallKind, Disk as _, SimDisk};
use crate::split_mix64::SplitMix64;
use crate::wal::WalHandle;

/// The storage of a process on a [`SimMachine`].
pub type SimMachineStorage = LsmStorage<SimDisk, SimStorage>;

const IDENTITY: u64 = 7;

/// The disk and the tables, which outlive a process; clones share them.
#[derive(Clone, Default)]
pub struct SimMachine {
    disk: SimDisk,
    tables: SimStorage,
    state: Arc<Mutex<State>>,
}

impl fmt::Debug for SimMachine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimMachine").field("tables", &self.tables).finish_non_exhaustive()
    }
}

#[derive(Default)]
struct State {
    /// Whether the store has been created. In a real directory the marker shows this.
    is_created: bool,
    /// The write-ahead log of the current incarnation.
    log: Option<WalHandle<SimDisk>>,
    /// The number of written frames that crashes have lost, over all openings: each opening adds
    /// those lost since the previous one.
    lost_frames: u64,
}

/// A fault to inject.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MachineFault {
    /// A write to the log fails; a part of it may have been written.
    WalWrite,
    /// A sync of the log fails.
    WalSync,
    /// Any call to the log's disk fails.
    AnyCall,
    /// A write to the tables returns an error although it is applied.
    TableWriteApplied,
    /// A write to the tables returns an error and is not applied.
    TableWriteRejected,
    /// A table sync fails.
    TableSync,
}

impl MachineFault {
    /// All faults.
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
    /// A machine with an empty disk.
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether an opening has ever completed, so that there is a store.
    pub fn is_created(&self) -> bool {
        self.state.lock().is_created
    }

    /// Opens the store, and creates it if it is missing.
    ///
    /// A memtable is switched when it has `memtable_bytes` bytes. `seed` is the seed of the log's
    /// salts and of the memtables' hash. There is no flush thread: each call of
    /// [`LsmStorage::run_background_once`] does one round of that thread's work.
    pub fn open(&self, memtable_bytes: usize, seed: u64) -> Result<SimMachineStorage, EngineError> {
        let mut rng = SplitMix64::new(seed);
        let options = LsmOptions {
            wal_id: IDENTITY,
            is_new: !self.is_created(),
            random: Box::new(move || rng.next()),
            memtable_bytes,
            accept_data_loss: None,
            background_flush: false,
            is_disk_full: Arc::default(),
        };
        let storage = LsmStorage::open(self.disk.handle(), self.tables.handle(), options)?;
        let mut state = self.state.lock();
        state.is_created = true;
        let wal = storage.wal();
        if let (Some(before), Some(wal)) = (&state.log, &wal) {
            state.lost_frames += before.written_sequence().saturating_sub(wal.written_sequence());
        }
        state.log = wal;
        drop(state);
        Ok(storage)
    }

    /// Opens the store for reading only; nothing is written.
    pub fn open_read_only(&self) -> Result<SimMachineStorage, EngineError> {
        LsmStorage::open_read_only(self.disk.handle(), self.tables.handle(), IDENTITY, 0)
    }

    /// Cuts the power. The seed decides how much of what was not durable survives.
    pub fn crash(&self, seed: u64) {
        self.disk.crash(seed);
        self.tables.crash(seed >> 8);
    }

    /// Kills the process. The log keeps everything that was written. The tables keep the batches
    /// that were synced and the oldest of the others, as many as the seed decides, as if RocksDB
    /// had flushed these on its own. The newer batches were only in the memory of the process.
    pub fn kill(&self, seed: u64) {
        self.disk.kill();
        self.tables.crash(seed);
    }

    /// [`SimMachine::crash`] with each choice made by the caller: `choose` gets the number of
    /// possibilities and returns the index of one. The first keeps the least, the last the most.
    pub fn crash_with(&self, choose: &mut dyn FnMut(usize) -> usize) {
        self.disk.crash_with(choose);
        self.tables.crash(Self::choose_tables(&self.tables, choose));
    }

    /// [`SimMachine::kill`] with the choice made by the caller.
    pub fn kill_with(&self, choose: &mut dyn FnMut(usize) -> usize) {
        self.disk.kill();
        self.tables.crash(Self::choose_tables(&self.tables, choose));
    }

    fn choose_tables(tables: &SimStorage, choose: &mut dyn FnMut(usize) -> usize) -> u64 {
        let possible = usize::try_from(tables.unsynced() + 1).unwrap_or(usize::MAX);
        choose(possible) as u64
    }

    /// Makes the `nth` matching call from here fail; 1 is the next. On the log's disk, `seed`
    /// decides how much of the failing call is applied.
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

    /// Makes the `nth` call to the log's disk from here fail, and all later calls until a crash or
    /// a kill.
    pub fn fail_from(&self, nth: u64, seed: u64) {
        self.disk.fail_from(nth, seed);
    }

    /// Whether a call has failed since the last crash or kill.
    pub fn has_failed(&self) -> bool {
        self.disk.has_failed() || self.tables.has_failed()
    }

    /// The names of the log's files.
    pub fn log_files(&self) -> Result<Vec<String>, EngineError> {
        self.disk.handle().list().map_err(|error| EngineError::Io(error.to_string()))
    }

    /// The number of durable log frames that the sync record does not cover.
    pub fn unrecorded_frames(&self) -> u64 {
        self.state.lock().log.as_ref().map_or(0, WalHandle::unrecorded_frames)
    }

    /// The number of log frames that crashes have lost, counted at each opening.
    pub fn lost_frames(&self) -> u64 {
        self.state.lock().lost_frames
    }
}
