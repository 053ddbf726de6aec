//! A system that does nothing by itself, so that a store always writes the same log.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use percolite::Store;
use percolite::runtime::{Env, JoinHandle, Parker, SystemEnv};

/// Any moment will do.
const NOW_MS: u64 = 1_800_000_000_000;
/// Owner ids count up from here. In records they come without the zeros in front, and are all of one length this far from the next.
const RANDOM: u64 = 1 << 21;
const POLL: Duration = Duration::from_micros(100);
/// What the thread that keeps house is called.
const BACKGROUND_THREAD: &str = "percolite-sweep";

/// The system with a clock that stands still and dice that always fall the same. Nothing happens in the background because
/// some time has passed; and the store's housekeeper, whom large transactions leave work to, waits to be let in.
#[derive(Default)]
pub struct DeterministicEnv {
    system: SystemEnv,
    gate: Arc<CleanupGate>,
}

impl DeterministicEnv {
    /// Where the housekeeper waits.
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

/// See [`Frozen`].
#[derive(Default)]
pub struct CleanupGate {
    /// One state, so that nobody passes while it is being closed.
    state: Mutex<GateState>,
    background_parker: Mutex<Option<Arc<dyn Parker>>>,
}

#[derive(Default)]
struct GateState {
    open: bool,
    is_waiting: bool,
}

impl CleanupGate {
    /// Has the housekeeper end the large transactions that are over, and waits until that is done.
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

    /// Waits until the housekeeper has done what it had to do, and keeps it from doing more.
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

/// Lets the housekeeper out in the end, however that comes about: the store waits for it.
pub struct OpenOnDrop(pub Arc<CleanupGate>);

impl Drop for OpenOnDrop {
    fn drop(&mut self) {
        self.0.open();
    }
}
