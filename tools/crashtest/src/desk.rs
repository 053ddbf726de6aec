//! A ledger that clients of this process write into.

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Mutex, MutexGuard};

use crate::client::Sink;
use crate::ledger::{Answer, Entry, Ledger};

/// Room for what one life can number: a later life begins above it, however little of an earlier one was heard.
const TICKS_OF_A_LIFE: u64 = 1 << 32;

/// The first moment of a life.
pub fn first_tick(life: u32) -> u64 {
    u64::from(life) * TICKS_OF_A_LIFE
}

/// See the [module](self).
#[derive(Debug)]
pub struct Desk {
    ledger: Mutex<Ledger>,
    ticks: AtomicU64,
}

impl Desk {
    /// A desk with a ledger on it, in this life.
    pub fn new(ledger: Ledger, life: u32) -> Self {
        Self { ledger: Mutex::new(ledger), ticks: AtomicU64::new(first_tick(life)) }
    }

    /// The ledger.
    pub fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock()
    }

    /// The ledger, when the clients are gone.
    pub fn into_ledger(self) -> Ledger {
        self.ledger.into_inner()
    }
}

impl Sink for Desk {
    fn now(&self) -> u64 {
        self.ticks.fetch_add(1, Ordering::SeqCst) + 1
    }

    fn number(&self) -> u64 {
        self.now()
    }

    fn asked(&self, number: u64, entry: Entry) {
        self.ledger().asked(number, entry);
    }

    fn answered(&self, number: u64, answer: Answer) {
        self.ledger().answered(number, answer);
    }
}
