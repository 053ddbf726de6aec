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
const HOUSEKEEPER: &str = "percolite-sweep";

/// The system with a clock that stands still and dice that always fall the same. Nothing happens in the background because
/// some time has passed; and the store's housekeeper, whom large transactions leave work to, waits to be let in.
#[derive(Default)]
pub struct Frozen {
    system: SystemEnv,
    door: Arc<Door>,
}

impl Frozen {
    /// Where the housekeeper waits.
    pub fn door(&self) -> Arc<Door> {
        Arc::clone(&self.door)
    }
}

impl Env for Frozen {
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
        let waits = std::thread::current().name() == Some(HOUSEKEEPER);
        if waits {
            *self.door.housekeeper.lock() = Some(Arc::clone(&parker));
        }
        Arc::new(Patient { parker, door: waits.then(|| Arc::clone(&self.door)) })
    }

    fn spawn(&self, name: &str, work: Box<dyn FnOnce() + Send>) -> std::io::Result<Box<dyn JoinHandle>> {
        self.system.spawn(name, work)
    }
}

struct Patient {
    parker: Arc<dyn Parker>,
    door: Option<Arc<Door>>,
}

impl Parker for Patient {
    fn park(&self, _: Option<Duration>) {
        let Some(door) = &self.door else { return self.parker.park(None) };
        door.state.lock().waits = true;
        self.parker.park(None);
        while !door.passes() {
            self.parker.park(None);
        }
    }

    fn unpark(&self) {
        self.parker.unpark();
    }
}

/// See [`Frozen`].
#[derive(Default)]
pub struct Door {
    /// One state, so that nobody passes while it is being closed.
    state: Mutex<DoorState>,
    housekeeper: Mutex<Option<Arc<dyn Parker>>>,
}

#[derive(Default)]
struct DoorState {
    open: bool,
    waits: bool,
}

impl Door {
    /// Has the housekeeper end the large transactions that are over, and waits until that is done.
    pub fn end_large_transactions(&self, store: &Store) {
        if store.stats().cleanup_pending == 0 {
            return;
        }
        self.open();
        while store.stats().cleanup_pending > 0 {
            std::thread::sleep(POLL);
        }
        self.close_behind_housekeeper();
    }

    /// Waits until the housekeeper has done what it had to do, and keeps it from doing more.
    pub fn close_behind_housekeeper(&self) {
        loop {
            let mut state = self.state.lock();
            if state.waits {
                state.open = false;
                return;
            }
            drop(state);
            std::thread::sleep(POLL);
        }
    }

    fn passes(&self) -> bool {
        let mut state = self.state.lock();
        state.waits = !state.open;
        state.open
    }

    fn open(&self) {
        self.state.lock().open = true;
        if let Some(parker) = &*self.housekeeper.lock() {
            parker.unpark();
        }
    }
}

/// Lets the housekeeper out in the end, however that comes about: the store waits for it.
pub struct OpenInTheEnd(pub Arc<Door>);

impl Drop for OpenInTheEnd {
    fn drop(&mut self) {
        self.0.open();
    }
}
