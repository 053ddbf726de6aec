//! Pairs of doctors on call: one of a pair may leave while the other stays. Snapshot isolation
//! permits write skew: both may leave concurrently. `get_for_update` on the row of the other doctor
//! prevents that. Some pairs lock in this way, and the invariant must hold for them. Other pairs do
//! not, and their write skews are counted: a long run without any has tested nothing.

use percolite::Error;

use super::{State, Workload, describe_rows, with_prefix};
use crate::recorded_txn::RecordedTxn;
use crate::value_encoding::body;

const PAIRS: usize = 2;
/// The kinds of pairs, in their keys: those that lock what they read, and those that do not.
const LOCKING: &str = "safe";
const UNLOCKED: &str = "skew";

pub struct Skew;

impl Workload for Skew {
    fn name(&self) -> &'static str {
        "skew"
    }

    fn load(&self, txn: &mut RecordedTxn<'_>) -> Result<(), Error> {
        if txn.get(&format!("w/{LOCKING}/0/a"))?.is_some() {
            return Ok(());
        }
        for kind in [LOCKING, UNLOCKED] {
            for pair in 0..PAIRS {
                txn.put(&format!("w/{kind}/{pair}/a"), "here")?;
                txn.put(&format!("w/{kind}/{pair}/b"), "here")?;
            }
        }
        Ok(())
    }

    fn transaction(&self, txn: &mut RecordedTxn<'_>) -> Result<(), Error> {
        let kind = if txn.rng().one_in(2) { LOCKING } else { UNLOCKED };
        let pair = txn.rng().below(PAIRS);
        let (own, other) = if txn.rng().one_in(2) { ("a", "b") } else { ("b", "a") };
        let (own, other) = (format!("w/{kind}/{pair}/{own}"), format!("w/{kind}/{pair}/{other}"));
        let seen = if kind == LOCKING { txn.get_for_update(&other)? } else { txn.get(&other)? };
        let stays = seen.as_deref().map(body) == Some("here");
        let comes = txn.get(&own)?.as_deref().map(body) == Some("gone");
        if comes {
            txn.put(&own, "here")
        } else if stays {
            txn.put(&own, "gone")
        } else {
            Ok(())
        }
    }

    fn check(&self, state: &State) -> Result<(), String> {
        for pair in 0..PAIRS {
            let prefix = format!("w/{LOCKING}/{pair}/");
            let gone = with_prefix(state, &prefix).filter(|(_, body)| *body == "gone").count();
            if gone == 2 {
                let rows = describe_rows(state, with_prefix(state, &prefix).map(|(key, _)| key));
                return Err(format!("write skew although both rows were locked: {rows}"));
            }
        }
        Ok(())
    }
}

/// How many pairs without locks show write skew in this state.
pub fn write_skews(state: &State) -> usize {
    let both_gone = |pair: &usize| {
        let prefix = format!("w/{UNLOCKED}/{pair}/");
        with_prefix(state, &prefix).filter(|(_, body)| *body == "gone").count() == 2
    };
    (0..PAIRS).filter(both_gone).count()
}
