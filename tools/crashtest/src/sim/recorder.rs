//! The client log of a simulation. What the threads of a dead process record is ignored.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Mutex, MutexGuard};

use super::engine::ProcessDead;
use crate::client::Recorder;
use crate::client_log::{Answer, ClientLog, Entry};

/// The log that all processes share.
#[derive(Clone, Default)]
pub struct SimRecorder {
    log: Arc<Mutex<ClientLog>>,
    ticks: Arc<AtomicU64>,
    attempted: Arc<AtomicU64>,
}

impl SimRecorder {
    /// The client log.
    pub fn log(&self) -> MutexGuard<'_, ClientLog> {
        self.log.lock()
    }

    /// How many transactions were recorded.
    pub fn attempted(&self) -> u64 {
        self.attempted.load(Ordering::SeqCst)
    }

    /// Records that a process has died.
    pub fn record_crash(&self) {
        let now = self.tick();
        self.log().record_crash(now);
    }

    fn tick(&self) -> u64 {
        self.ticks.fetch_add(1, Ordering::SeqCst) + 1
    }

    /// The recorder of one process.
    pub fn for_process(&self, dead: &ProcessDead) -> ProcessRecorder {
        ProcessRecorder { shared: self.clone(), dead: Arc::clone(dead) }
    }
}

/// See [`SimRecorder::for_process`].
pub struct ProcessRecorder {
    shared: SimRecorder,
    dead: ProcessDead,
}

impl Recorder for ProcessRecorder {
    fn now(&self) -> u64 {
        self.shared.tick()
    }

    fn number(&self) -> u64 {
        self.now()
    }

    fn record_commit(&self, number: u64, entry: Entry) {
        if !self.dead.load(Ordering::SeqCst) {
            self.shared.attempted.fetch_add(1, Ordering::SeqCst);
            self.shared.log().record_commit(number, entry);
        }
    }

    fn record_answer(&self, number: u64, answer: Answer) {
        if !self.dead.load(Ordering::SeqCst) {
            self.shared.log().record_answer(number, answer);
        }
    }
}
