//! Append-only lists: each transaction appends to one or two of them, and a list shows the order of
//! its appends.

use percolite::Error;

use super::{State, Workload, describe_rows, with_prefix};
use crate::recorded_txn::RecordedTxn;
use crate::value_encoding::body;

const LISTS: usize = 5;

pub struct List;

impl Workload for List {
    fn name(&self) -> &'static str {
        "list"
    }

    fn load(&self, _txn: &mut RecordedTxn<'_>) -> Result<(), Error> {
        Ok(())
    }

    fn transaction(&self, txn: &mut RecordedTxn<'_>) -> Result<(), Error> {
        let first = txn.rng().below(LISTS);
        for list in [first, (first + 1) % LISTS] {
            let key = format!("l/{list}");
            let before = if txn.rng().one_in(3) { txn.get_for_update(&key)? } else { txn.get(&key)? };
            let length = before.as_deref().map_or(0, |shown| body(shown).split(',').count());
            let next = match before.as_deref().map(body) {
                // Restart a list before it becomes too long for people to read.
                Some(items) if length < 12 => format!("{items},{length}"),
                _ => "0".to_owned(),
            };
            txn.put(&key, &next)?;
            if txn.rng().one_in(2) {
                break;
            }
        }
        Ok(())
    }

    fn check(&self, state: &State) -> Result<(), String> {
        for (key, items) in with_prefix(state, "l/") {
            let counts = items.split(',').enumerate().all(|(at, item)| item == at.to_string());
            if !counts {
                return Err(format!("a list has a lost or repeated item: {}", describe_rows(state, [key])));
            }
        }
        Ok(())
    }
}
