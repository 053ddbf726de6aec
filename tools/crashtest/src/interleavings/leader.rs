//! Situations of the commit leader.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

use parking_lot::Mutex;
use percolite::crashtest::{CrashPoint, set_leader_rounds_max};
use percolite::{Commit, ErrorKind, Keyspace, Store, TxnOptions};

use super::situations::{ONE_MEMTABLE, buffered, durable};
use super::{World, harness, open};
use crate::sim::Trigger;
use crate::violation::Violation;

/// The rows of the committers, and their names.
const COMMITTERS: [&str; 2] = ["one", "two"];

/// While this exists, a leader transfers the leadership after one round. Holds the usual number.
struct OneRound(usize);

impl OneRound {
    fn begin() -> Self {
        Self(set_leader_rounds_max(1))
    }
}

impl Drop for OneRound {
    fn drop(&mut self) {
        set_leader_rounds_max(self.0);
    }
}

fn put(store: &Store, rows: &Keyspace, row: &str, options: TxnOptions) -> percolite::Result<Commit> {
    let mut txn = store.begin_with(options)?;
    txn.put(rows, row, "1")?;
    txn.commit()
}

/// A committer to which the leadership is transferred is woken, leads, and gets its own reply.
pub fn leadership_passed_on(world: &World) -> Result<(), Violation> {
    let _rounds = OneRound::begin();
    for name in COMMITTERS {
        let (store, rows) = (world.store.clone(), world.rows.clone());
        world.spawn(name, move || put(&store, &rows, name, buffered()).map(drop).map_err(harness));
    }
    world.join()?;
    let txn = world.store.begin_with(buffered()).map_err(harness)?;
    for name in COMMITTERS {
        if txn.get(&world.rows, name).map_err(harness)?.is_none() {
            return Err(Violation::new("durability", format!("the acknowledged commit of {name} is missing")));
        }
    }
    Ok(())
}

/// If the engine panics under a leader, every committer gets an answer, nothing commits any more,
/// and what was acknowledged survives.
pub fn leader_panics(world: &World) -> Result<(), Violation> {
    let trigger = Trigger::CrashPoint(CrashPoint::GroupWritten, 1, 0);
    // This panics as `panic!` does, and prints nothing.
    world.scheduler.set_trigger(trigger, Arc::new(|_| resume_unwind(Box::new("the engine panics"))));
    let acknowledged = Arc::new(Mutex::new(Vec::new()));
    for name in COMMITTERS {
        let (store, rows, acknowledged) = (world.store.clone(), world.rows.clone(), Arc::clone(&acknowledged));
        world.spawn(name, move || match catch_unwind(AssertUnwindSafe(|| put(&store, &rows, name, durable()))) {
            Ok(Ok(_)) => {
                acknowledged.lock().push(name);
                Ok(())
            }
            Ok(Err(error)) if !matches!(error.kind(), ErrorKind::Undetermined(_) | ErrorKind::Closed(_)) => {
                Err(harness(error))
            }
            _ => Ok(()),
        });
    }
    world.join()?;
    if world.scheduler.cancel_trigger() {
        return Err(Violation::new("harness", "no leader has panicked"));
    }
    if let Ok(commit) = put(&world.store, &world.rows, "later", buffered()) {
        return Err(Violation::new("fail-stop", format!("{commit:?} came after a panic of the leader")));
    }
    world.machine.crash_with(&mut |_| 0);
    let (store, _engine) = open(&world.scheduler, &world.machine, ONE_MEMTABLE)?;
    let rows = store.keyspace("rows").map_err(harness)?;
    for name in &*acknowledged.lock() {
        if store.get(&rows, name).map_err(harness)?.is_none() {
            return Err(Violation::new("durability", format!("the acknowledged commit of {name} is lost")));
        }
    }
    Ok(())
}
