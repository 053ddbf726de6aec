//! Who reads at which sequence, so that the writer knows which versions may go.
//!
//! Each client has a slot of its own. It registers a sequence before it relies on it, and looks once more whether that is still
//! the visible one: the writer either sees the slot, or has not published anything newer.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use anyhow::{Result, ensure};
use crossbeam_utils::CachePadded;

const SLOTS: usize = 2048;
const FREE: u64 = u64::MAX;

/// See the [module](self).
pub struct Readers {
    slots: Box<[CachePadded<AtomicU64>]>,
    used: AtomicUsize,
}

/// A client's.
pub struct Slot<'a>(&'a AtomicU64);

/// Reads until it is dropped.
pub struct Entered<'a>(&'a AtomicU64);

impl Readers {
    pub fn new() -> Self {
        Self { slots: (0..SLOTS).map(|_| CachePadded::new(AtomicU64::new(FREE))).collect(), used: AtomicUsize::new(0) }
    }

    /// Slots are not used again: a process has few sessions.
    pub fn slot(&self) -> Result<Slot<'_>> {
        let place = self.used.fetch_add(1, Ordering::Relaxed);
        ensure!(place < SLOTS, "too many sessions");
        Ok(Slot(&self.slots[place]))
    }

    /// All sequences that are read at.
    pub fn all(&self) -> Vec<u64> {
        let used = self.used.load(Ordering::Acquire).min(SLOTS);
        self.slots[..used].iter().map(|slot| slot.load(Ordering::SeqCst)).filter(|slot| *slot != FREE).collect()
    }

    /// The oldest sequence that is read at, or `visible`.
    pub fn oldest(&self, visible: u64) -> u64 {
        let used = self.used.load(Ordering::Acquire).min(SLOTS);
        self.slots[..used].iter().map(|slot| slot.load(Ordering::SeqCst)).fold(visible, u64::min)
    }
}

impl<'a> Slot<'a> {
    /// Registers what is visible.
    pub fn enter(&self, visible: &AtomicU64) -> (u64, Entered<'a>) {
        let mut sequence = visible.load(Ordering::SeqCst);
        loop {
            self.0.store(sequence, Ordering::SeqCst);
            let now = visible.load(Ordering::SeqCst);
            if now == sequence {
                return (sequence, Entered(self.0));
            }
            sequence = now;
        }
    }
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        self.0.store(FREE, Ordering::Release);
    }
}
