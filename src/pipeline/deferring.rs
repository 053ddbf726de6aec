//! Who sees to what is deferred.
//!
//! Durable commits that lie in the [queue](super::queue) must not lie there for ever. As long as anything may be deferred a sync is
//! running, and whoever makes it comes here afterwards, or many wait for one that is wanted. What lies there when it has ended is
//! written, whoever leads. And where no sync will end any more, because the store has failed, both who notes the failure and who comes
//! here after it stop deferring.

use super::Pipeline;
use super::queue::DEFERRING_MIN;

impl Pipeline {
    /// Has what was deferred until the end of a sync written, and decides whether deferring goes on.
    pub(super) fn after_sync(&self) {
        self.write_deferred();
        let (another_began, waiting) = self.durability.syncing_and_waiting();
        let many_wait = waiting >= DEFERRING_MIN;
        // After a failure one may be marked as begun that nobody makes.
        if self.failure().is_some() || !(another_began || many_wait || mutated!(SyncsWithoutEnd)) {
            self.stop_deferring();
        } else if !another_began {
            // Without holding it back: whoever comes now is deferred, and would be awaited in vain.
            self.durability.want();
        }
    }

    pub(super) fn write_deferred(&self) {
        if self.queue.lock().end_sync() {
            self.lead_for_deferred();
        }
    }

    /// [`Pipeline::write_deferred`] where no sync follows, or the store has failed.
    pub(super) fn stop_deferring(&self) {
        if self.queue.lock().stop_deferring() {
            self.lead_for_deferred();
        }
    }

    fn lead_for_deferred(&self) {
        // One round: the next sync is not to wait for what comes meanwhile.
        self.lead(None, 1);
        // Not everybody who makes a sync goes on to the next.
        self.durability.kick();
    }
}
