//! The ledger of a simulation: what a dead process says is not entered.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Mutex, MutexGuard};

use super::engine::Dead;
use crate::client::Sink;
use crate::ledger::{Answer, Entry, Ledger};

/// What all processes share.
#[derive(Clone, Default)]
pub struct Book {
    ledger: Arc<Mutex<Ledger>>,
    ticks: Arc<AtomicU64>,
    tried: Arc<AtomicU64>,
}

impl Book {
    /// The ledger.
    pub fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock()
    }

    /// How many transactions were entered.
    pub fn tried(&self) -> u64 {
        self.tried.load(Ordering::SeqCst)
    }

    /// Enters that a process has died.
    pub fn crashed(&self) {
        let now = self.tick();
        self.ledger().crashed(now);
    }

    fn tick(&self) -> u64 {
        self.ticks.fetch_add(1, Ordering::SeqCst) + 1
    }

    /// The book as one process writes into it.
    pub fn of(&self, dead: &Dead) -> ProcessSink {
        ProcessSink { book: self.clone(), dead: Arc::clone(dead) }
    }
}

/// See [`Book::of`].
pub struct ProcessSink {
    book: Book,
    dead: Dead,
}

impl Sink for ProcessSink {
    fn now(&self) -> u64 {
        self.book.tick()
    }

    fn number(&self) -> u64 {
        self.now()
    }

    fn asked(&self, number: u64, entry: Entry) {
        if !self.dead.load(Ordering::SeqCst) {
            self.book.tried.fetch_add(1, Ordering::SeqCst);
            self.book.ledger().asked(number, entry);
        }
    }

    fn answered(&self, number: u64, answer: Answer) {
        if !self.dead.load(Ordering::SeqCst) {
            self.book.ledger().answered(number, answer);
        }
    }
}
