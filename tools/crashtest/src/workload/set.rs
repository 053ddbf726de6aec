//! Pairs of rows that are inserted and deleted together, so that there is always something for GC.
//! A pair is inserted only if it is missing.

use percolite::Error;

use super::{State, Workload, describe_rows, with_prefix};
use crate::recorded_txn::RecordedTxn;

const THINGS: usize = 6;

pub struct Set;

impl Workload for Set {
    fn name(&self) -> &'static str {
        "set"
    }

    fn load(&self, _txn: &mut RecordedTxn<'_>) -> Result<(), Error> {
        Ok(())
    }

    /// Inserts or deletes a pair.
    fn transaction(&self, txn: &mut RecordedTxn<'_>) -> Result<(), Error> {
        if txn.rng().one_in(6) {
            return txn.scan("s/").map(drop);
        }
        let thing = txn.rng().below(THINGS);
        let (one, other) = (format!("s/{thing}/a"), format!("s/{thing}/b"));
        let is_there = txn.get(&one)?.is_some();
        for key in [&one, &other] {
            if is_there {
                txn.delete(key)?;
            } else {
                txn.put(key, "in")?;
            }
        }
        Ok(())
    }

    fn check(&self, state: &State) -> Result<(), String> {
        for (key, _) in with_prefix(state, "s/") {
            let twin = match key.strip_suffix('a') {
                Some(thing) => format!("{thing}b"),
                None => format!("{}a", key.trim_end_matches('b')),
            };
            if !state.contains_key(&twin) {
                return Err(format!("half of a pair is missing: {}", describe_rows(state, [key, &twin])));
            }
        }
        Ok(())
    }
}
