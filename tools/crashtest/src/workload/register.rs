//! Registers that are read, written blindly, deleted, locked and rolled back, in random order:
//! every operation on a row. One register is a counter.

use percolite::Error;

use super::{State, Workload, describe_rows, number, number_in, with_prefix};
use crate::recorded_txn::RecordedTxn;

const REGISTERS: usize = 6;
/// The row of the counter; checked by [`crate::counter_check`].
pub const COUNTER: &str = "c";

pub struct Register;

impl Register {
    fn step(txn: &mut RecordedTxn<'_>) -> Result<(), Error> {
        let key = format!("r/{}", txn.rng().below(REGISTERS));
        match txn.rng().below(10) {
            0 | 1 => txn.get(&key).map(drop),
            8 => txn.multi_get(&(0..REGISTERS).map(|number| format!("r/{number}")).collect::<Vec<_>>()).map(drop),
            9 => {
                // Both bounds are registers, which the transaction itself may have written.
                let other = format!("r/{}", txn.rng().below(REGISTERS));
                txn.between((&key).min(&other), (&key).max(&other)).map(drop)
            }
            2 => txn.get_for_update(&key).map(drop),
            3 => txn.delete(&key),
            4 => txn.scan("r/").map(drop),
            5 => txn.rolled_back(|txn| {
                txn.put(&key, "rolled back")?;
                txn.delete(&format!("r/{}", REGISTERS - 1))
            }),
            _ => txn.put(&key, "set"),
        }
    }
}

impl Workload for Register {
    fn name(&self) -> &'static str {
        "register"
    }

    fn load(&self, txn: &mut RecordedTxn<'_>) -> Result<(), Error> {
        if txn.get(COUNTER)?.is_some() { Ok(()) } else { txn.put(COUNTER, "0") }
    }

    fn transaction(&self, txn: &mut RecordedTxn<'_>) -> Result<(), Error> {
        if txn.rng().one_in(4) {
            let count = number_in(txn.get(COUNTER)?.as_ref());
            txn.put(COUNTER, &(count + 1).to_string())?;
        }
        for _ in 0..=txn.rng().below(5) {
            Self::step(txn)?;
        }
        Ok(())
    }

    fn check(&self, state: &State) -> Result<(), String> {
        if let Some((key, _)) = with_prefix(state, "r/").find(|(_, body)| *body != "set") {
            return Err(format!("a register has a value that was rolled back: {}", describe_rows(state, [key])));
        }
        with_prefix(state, COUNTER).try_for_each(|(key, body)| {
            number(body).map(drop).map_err(|error| format!("{error}: {}", describe_rows(state, [key])))
        })
    }
}
