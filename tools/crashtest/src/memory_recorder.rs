//! A [`Recorder`] with a client log in the memory of this process.

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Mutex, MutexGuard};

use crate::client::Recorder;
use crate::client_log::{Answer, ClientLog, Entry};

/// How many ticks, the readings of [`Recorder::now`], one incarnation may use. The next incarnation
/// starts above them, however many were used.
const TICKS_PER_INCARNATION: u64 = 1 << 32;

/// The first tick of an incarnation.
pub fn first_tick(incarnation: u32) -> u64 {
    u64::from(incarnation) * TICKS_PER_INCARNATION
}

/// See the [module](self).
#[derive(Debug)]
pub struct MemoryRecorder {
    log: Mutex<ClientLog>,
    ticks: AtomicU64,
}

impl MemoryRecorder {
    /// A recorder into `log`, for this incarnation.
    pub fn new(log: ClientLog, incarnation: u32) -> Self {
        Self { log: Mutex::new(log), ticks: AtomicU64::new(first_tick(incarnation)) }
    }

    /// The client log.
    pub fn log(&self) -> MutexGuard<'_, ClientLog> {
        self.log.lock()
    }

    /// The client log, after all clients have ended.
    pub fn into_log(self) -> ClientLog {
        self.log.into_inner()
    }
}

impl Recorder for MemoryRecorder {
    fn now(&self) -> u64 {
        self.ticks.fetch_add(1, Ordering::SeqCst) + 1
    }

    fn number(&self) -> u64 {
        self.now()
    }

    fn record_commit(&self, number: u64, entry: Entry) {
        self.log().record_commit(number, entry);
    }

    fn record_answer(&self, number: u64, answer: Answer) {
        self.log().record_answer(number, answer);
    }
}
