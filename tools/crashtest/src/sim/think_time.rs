//! A workload with think time before commits, so that GC, recovery and other commits come in
//! between.

use std::sync::Arc;
use std::time::Duration;

use percolite::Error;

use super::scheduler::Scheduler;
use crate::recorded_txn::RecordedTxn;
use crate::workload::{State, Workload};

/// Longer than a round of the background work.
const THINK_MAX_MS: usize = 2500;

/// A workload with think time in some transactions.
pub struct ThinkTime {
    pub workload: &'static dyn Workload,
    pub scheduler: Arc<Scheduler>,
    /// One transaction in this many; 0: none.
    pub think_every: usize,
}

impl Workload for ThinkTime {
    fn name(&self) -> &'static str {
        self.workload.name()
    }

    fn load(&self, txn: &mut RecordedTxn<'_>) -> Result<(), Error> {
        self.workload.load(txn)
    }

    fn transaction(&self, txn: &mut RecordedTxn<'_>) -> Result<(), Error> {
        self.workload.transaction(txn)?;
        if self.think_every > 0 && txn.rng().one_in(self.think_every) {
            self.scheduler.sleep(Duration::from_millis(txn.rng().below(THINK_MAX_MS) as u64));
        }
        Ok(())
    }

    fn check(&self, state: &State) -> Result<(), String> {
        self.workload.check(state)
    }
}
