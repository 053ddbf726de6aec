//! Writers of independent rows, and readers of two of them, in either order. Any pair of values is
//! legal for one reader. Two readers must not disagree on the order of the writes (long fork),
//! which the checker checks.

use percolite::Error;

use super::{State, Workload, describe_rows, with_prefix};
use crate::recorded_txn::RecordedTxn;

const PAIRS: usize = 2;
const SIDES: [&str; 2] = ["left", "right"];

pub struct Fork;

impl Workload for Fork {
    fn name(&self) -> &'static str {
        "fork"
    }

    fn load(&self, _txn: &mut RecordedTxn<'_>) -> Result<(), Error> {
        Ok(())
    }

    fn transaction(&self, txn: &mut RecordedTxn<'_>) -> Result<(), Error> {
        let pair = txn.rng().below(PAIRS);
        let first = txn.rng().below(SIDES.len());
        let key = |side: usize| format!("f/{pair}/{}", SIDES[side]);
        if txn.rng().one_in(2) {
            return txn.put(&key(first), SIDES[first]);
        }
        txn.get(&key(first))?;
        txn.get(&key(1 - first)).map(drop)
    }

    fn check(&self, state: &State) -> Result<(), String> {
        match with_prefix(state, "f/").find(|(key, body)| !key.ends_with(body)) {
            Some((key, _)) => Err(format!("a row has the value of another row: {}", describe_rows(state, [key]))),
            None => Ok(()),
        }
    }
}
