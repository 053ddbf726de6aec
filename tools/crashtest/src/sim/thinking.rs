//! Clients that think before they commit, so that collection, recovery and others' commits come in between.

use std::sync::Arc;
use std::time::Duration;

use percolite::Error;

use super::scheduler::Scheduler;
use crate::recorder::Recorded;
use crate::workload::{State, Workload};

/// Longer than housekeeping takes to come round.
const MOST_MS: usize = 2500;

/// A workload whose transactions think now and then.
pub struct Thinking {
    pub workload: &'static dyn Workload,
    pub scheduler: Arc<Scheduler>,
    /// One transaction in so many; 0: none.
    pub every: usize,
}

impl Workload for Thinking {
    fn name(&self) -> &'static str {
        self.workload.name()
    }

    fn load(&self, txn: &mut Recorded<'_>) -> Result<(), Error> {
        self.workload.load(txn)
    }

    fn transaction(&self, txn: &mut Recorded<'_>) -> Result<(), Error> {
        self.workload.transaction(txn)?;
        if self.every > 0 && txn.dice().one_in(self.every) {
            self.scheduler.sleep(Duration::from_millis(txn.dice().below(MOST_MS) as u64));
        }
        Ok(())
    }

    fn judge(&self, state: &State) -> Result<(), String> {
        self.workload.judge(state)
    }
}
