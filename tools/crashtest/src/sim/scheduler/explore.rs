//! The scheduler of an exploration, in which choices decide in place of the seed.

use std::sync::Arc;

use parking_lot::MutexGuard;

use super::threads::{Exploration, State};
use super::{Scheduler, ThreadId};
use crate::choices::Choices;

impl Scheduler {
    /// From here on these choices decide in place of the seed, and a thread of
    /// [`Self::spawn_explored`] that can continue is replaced by another one at most `switches`
    /// times.
    pub fn explore(&self, choices: Choices, switches: u32) {
        let (threads, background) = (Vec::new(), Vec::new());
        self.state.lock().exploration =
            Some(Exploration { choices, switches_left: switches, threads, background, others_first: false });
    }

    /// Lets threads that are not explored run first: where an explored thread waits for one of
    /// them, the other explored threads do not continue.
    pub fn run_others_first(&self) {
        if let Some(exploration) = &mut self.state.lock().exploration {
            exploration.others_first = true;
        }
    }

    /// Explores the interleavings of the store's own threads with this name, too.
    pub fn explore_background(&self, name: &str) {
        let mut state = self.state.lock();
        let named: Vec<ThreadId> = state.named(name).collect();
        if let Some(exploration) = &mut state.exploration {
            exploration.threads.extend(&named);
            exploration.background.extend(named);
        }
    }

    /// Schedules the threads with this name not at all, or again.
    pub fn hold(&self, name: &str, is_on_hold: bool) {
        let mut state = self.state.lock();
        let named: Vec<ThreadId> = state.named(name).collect();
        for thread in named {
            state.threads[thread].is_on_hold = is_on_hold;
        }
    }

    /// Starts a thread whose interleavings with others of its kind are explored.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn spawn_explored(self: &Arc<Self>, name: &str, work: Box<dyn FnOnce() + Send>) -> std::io::Result<ThreadId> {
        let thread = self.spawn(name, work)?;
        if let Some(exploration) = &mut self.state.lock().exploration {
            exploration.threads.push(thread);
        }
        Ok(thread)
    }

    /// The n-th thread of [`Self::spawn_explored`] in this exploration.
    pub fn explored_thread(&self, nth: usize) -> Option<ThreadId> {
        let state = self.state.lock();
        let Exploration { threads, background, .. } = state.exploration.as_ref()?;
        threads.iter().copied().filter(|thread| !background.contains(thread)).nth(nth)
    }

    /// Chooses one of some possibilities, all of which are explored.
    pub fn choose(&self, possible: usize) -> usize {
        self.state.lock().exploration.as_mut().map_or(0, |exploration| exploration.choices.choose(possible))
    }

    /// Ends the exploration; returns the choices that were made.
    pub fn end_exploration(&self) -> Choices {
        self.state.lock().exploration.take().map(|exploration| exploration.choices).unwrap_or_default()
    }

    pub(super) fn switch_if_chosen(&self, mut state: MutexGuard<'_, State>, own: ThreadId) {
        if let Some(next) = state.replacement(own) {
            state.record(next, "replaces another thread");
            self.switch_to(state, own, next);
        }
    }
}
