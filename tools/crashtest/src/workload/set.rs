//! Things put in and taken out again, so that there is always something to collect. A row is inserted only where none is.

use percolite::Error;

use super::{State, Workload, told, under};
use crate::recorder::Recorded;

const THINGS: usize = 6;

pub struct Set;

impl Workload for Set {
    fn name(&self) -> &'static str {
        "set"
    }

    fn load(&self, _txn: &mut Recorded<'_>) -> Result<(), Error> {
        Ok(())
    }

    /// Each thing has a twin that is there when it is.
    fn transaction(&self, txn: &mut Recorded<'_>) -> Result<(), Error> {
        if txn.dice().one_in(6) {
            return txn.scan("s/").map(drop);
        }
        let thing = txn.dice().below(THINGS);
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

    fn judge(&self, state: &State) -> Result<(), String> {
        for (key, _) in under(state, "s/") {
            let twin = match key.strip_suffix('a') {
                Some(thing) => format!("{thing}b"),
                None => format!("{}a", key.trim_end_matches('b')),
            };
            if !state.contains_key(&twin) {
                return Err(format!("a thing without its twin: {}", told(state, [key, &twin])));
            }
        }
        Ok(())
    }
}
