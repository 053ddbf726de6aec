//! Transactions of more rows than one batch: every row is rewritten, and all rows have the same
//! revision.

use percolite::Error;

use super::{State, Workload, describe_rows, number_in, with_prefix};
use crate::recorded_txn::RecordedTxn;

/// More than the 1024 rows that a two-phase commit changes in one batch.
const ROWS: usize = 1500;
const FIRST: &str = "g/0000";

pub struct Large {
    /// Of six transactions, this many are large.
    pub large_of_six: usize,
}

impl Workload for Large {
    fn name(&self) -> &'static str {
        "large"
    }

    fn load(&self, _txn: &mut RecordedTxn<'_>) -> Result<(), Error> {
        Ok(())
    }

    fn transaction(&self, txn: &mut RecordedTxn<'_>) -> Result<(), Error> {
        if txn.rng().below(6) >= self.large_of_six {
            // A small transaction that conflicts with the large ones.
            let row = ROWS - 1 - txn.rng().below(8);
            return txn.get_for_update(&format!("g/{row:04}")).map(drop);
        }
        let revision = number_in(txn.get(FIRST)?.as_ref()) + 1;
        (0..ROWS).try_for_each(|row| txn.put(&format!("g/{row:04}"), &revision.to_string()))
    }

    fn check(&self, state: &State) -> Result<(), String> {
        let Some((first, revision)) = with_prefix(state, "g/").next() else { return Ok(()) };
        let count = with_prefix(state, "g/").count();
        let other = with_prefix(state, "g/").find(|(_, other)| *other != revision).map(|(key, _)| key);
        if count == ROWS && other.is_none() {
            return Ok(());
        }
        let rows = describe_rows(state, [first].into_iter().chain(other));
        Err(format!("{count} rows of {ROWS}, or rows of different revisions: {rows}"))
    }
}
