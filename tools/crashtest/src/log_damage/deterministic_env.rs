//! A runtime environment in which nothing depends on time or chance, so that a store always writes
//! the same log.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use percolite::Store;
use percolite::env::{Env, JoinHandle, Parker, SystemEnv};

use crate::sim::BACKGROUND_THREAD;

/// An arbitrary time.
const NOW_MS: u64 = 1_800_000_000_000;
/// The only random number. Owner ids count up from it. Records encode an id without leading zeros;
/// from this number on all ids of a run, and so the records, have the same length.
const RANDOM: u64 = 1 << 21;
const POLL: Duration = Duration::from_micros(100);

/// A clock that does not advance and constant random numbers. No work starts because of time, and
/// the store's background thread waits at a gate before it cleans up large transactions.
#[derive(Default)]
pub struct DeterministicEnv {
    system: SystemEnv,
    gate: Arc<CleanupGate>,
}

impl DeterministicEnv {
    /// The gate of the background thread.
    pub fn gate(&self) -> Arc<CleanupGate> {
        Arc::clone(&self.gate)
    }
}

impl Env for DeterministicEnv {
    fn unix_millis(&self) -> u64 {
        NOW_MS
    }

    fn elapsed(&self) -> Duration {
        Duration::ZERO
    }

    fn random(&self) -> u64 {
        RANDOM
    }

    fn sleep(&self, duration: Duration) {
        self.system.sleep(duration);
    }

    fn parker(&self) -> Arc<dyn Parker> {
        let parker = self.system.parker();
        let is_background = std::thread::current().name() == Some(BACKGROUND_THREAD);
        if is_background {
            *self.gate.background_parker.lock() = Some(Arc::clone(&parker));
        }
        Arc::new(GatedParker { parker, gate: is_background.then(|| Arc::clone(&self.gate)) })
    }

    fn spawn(&self, name: &str, work: Box<dyn FnOnce() + Send>) -> std::io::Result<Box<dyn JoinHandle>> {
        self.system.spawn(name, work)
    }
}

struct GatedParker {
    parker: Arc<dyn Parker>,
    gate: Option<Arc<CleanupGate>>,
}

impl Parker for GatedParker {
    fn park(&self, _: Option<Duration>) {
        let Some(gate) = &self.gate else { return self.parker.park(None) };
        gate.state.lock().is_waiting = true;
        self.parker.park(None);
        while !gate.passes() {
            self.parker.park(None);
        }
    }

    fn unpark(&self) {
        self.parker.unpark();
    }
}

/// The gate of the background thread. See [`DeterministicEnv`].
#[derive(Default)]
pub struct CleanupGate {
    /// Both flags are under one mutex, so that the thread cannot pass while the gate is being
    /// closed.
    state: Mutex<GateState>,
    background_parker: Mutex<Option<Arc<dyn Parker>>>,
}

#[derive(Default)]
struct GateState {
    open: bool,
    is_waiting: bool,
}

impl CleanupGate {
    /// Lets the background thread clean up all finished large transactions, and waits for it.
    pub fn finish_large_transactions(&self, store: &Store) {
        if store.stats().cleanup_pending == 0 {
            return;
        }
        self.open();
        while store.stats().cleanup_pending > 0 {
            std::thread::sleep(POLL);
        }
        self.close_after_cleanup();
    }

    /// Waits until the background thread has finished its work, and closes the gate.
    pub fn close_after_cleanup(&self) {
        loop {
            let mut state = self.state.lock();
            if state.is_waiting {
                state.open = false;
                return;
            }
            drop(state);
            std::thread::sleep(POLL);
        }
    }

    fn passes(&self) -> bool {
        let mut state = self.state.lock();
        state.is_waiting = !state.open;
        state.open
    }

    fn open(&self) {
        self.state.lock().open = true;
        if let Some(parker) = &*self.background_parker.lock() {
            parker.unpark();
        }
    }
}

/// Opens the gate on drop: closing the store waits for the background thread, which must be able to
/// pass.
pub struct OpenOnDrop(pub Arc<CleanupGate>);

impl Drop for OpenOnDrop {
    fn drop(&mut self) {
        self.0.open();
    }
}
