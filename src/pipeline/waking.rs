//! The waker thread: it wakes those whose commits a sync has made durable, while the syncer thread begins the next sync. Waking many
//! takes as long as a sync: a call for each, and whoever is woken may take the processor from the thread that wakes.

use std::sync::Arc;

use super::Pipeline;
use super::reply::Slot;
use crate::runtime::Parker;
use crate::sync::Mutex;

/// Fewer are woken by the syncer thread itself, which takes as long as waking the waker thread.
// Tests of crashes have few clients, and are to meet the waker.
const HANDED_OVER_MIN: usize = if cfg!(feature = "crashtest") { 1 } else { 2 };

/// See the [module](self).
pub struct Waking {
    /// Who is to be woken. `None` when the thread has ended.
    durable: Mutex<Option<Vec<Arc<Slot>>>>,
    parker: Mutex<Option<Arc<dyn Parker>>>,
}

impl Default for Waking {
    fn default() -> Self {
        Self { durable: Mutex::new(Some(Vec::new())), parker: Mutex::default() }
    }
}

impl Waking {
    /// Wakes them `at_once`, for who has nothing else to do, or has the thread do it.
    pub fn wake(&self, mut slots: Vec<Arc<Slot>>, at_once: bool) {
        if !at_once
            && slots.len() >= HANDED_OVER_MIN
            && let Some(durable) = &mut *self.durable.lock()
        {
            durable.append(&mut slots);
            self.wake_thread();
        }
        for slot in slots {
            slot.wake();
        }
    }

    /// Has the thread look whether there is anything to do.
    pub fn wake_thread(&self) {
        if let Some(parker) = &*self.parker.lock() {
            parker.unpark();
        }
    }

    /// Those who are to be woken now. `None` when there are none and there will be none, because the store is `stopping`.
    fn take(&self, stopping: bool) -> Option<Vec<Arc<Slot>>> {
        let mut durable = self.durable.lock();
        let slots = durable.as_mut().map(std::mem::take).unwrap_or_default();
        if slots.is_empty() && stopping {
            *durable = None;
        }
        durable.is_some().then_some(slots)
    }
}

impl Pipeline {
    /// The waker thread's work.
    pub(super) fn run_waker(&self) {
        let (waking, parker) = (self.durability.waking(), self.runtime().parker());
        *waking.parker.lock() = Some(Arc::clone(&parker));
        while let Some(durable) = waking.take(self.durability.is_stopping()) {
            if durable.is_empty() {
                parker.park(None);
                continue;
            }
            crash_point!(WakeBefore);
            for slot in durable {
                slot.wake();
            }
            if mutated!(WakerWakesAll) {
                self.durability.give_up().iter().for_each(|slot| slot.wake());
            }
        }
    }
}
