//! A workload in which some transactions wait between their last operation and the commit. During
//! this think time GC, recovery and other commits may come.

use std::time::Duration;

use percolite::Error;

use crate::recorded_txn::RecordedTxn;
use crate::workload::{State, Workload};

/// A workload with think time in some transactions.
pub struct ThinkTime<S> {
    pub workload: &'static dyn Workload,
    /// One transaction in this many has think time; 0: none.
    pub every: usize,
    /// The think time is below this, in milliseconds.
    pub most_ms: usize,
    pub sleep: S,
}

impl<S: Fn(Duration) + Send + Sync> Workload for ThinkTime<S> {
    fn name(&self) -> &'static str {
        self.workload.name()
    }

    fn load(&self, txn: &mut RecordedTxn<'_>) -> Result<(), Error> {
        self.workload.load(txn)
    }

    fn transaction(&self, txn: &mut RecordedTxn<'_>) -> Result<(), Error> {
        self.workload.transaction(txn)?;
        if self.every > 0 && txn.rng().one_in(self.every) {
            (self.sleep)(Duration::from_millis(txn.rng().below(self.most_ms) as u64));
        }
        Ok(())
    }

    fn check(&self, state: &State) -> Result<(), String> {
        self.workload.check(state)
    }
}
