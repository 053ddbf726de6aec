//! The end of an incarnation without a crash: the store is closed, or its last handle is dropped,
//! while clients continue.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use percolite::{Error, ErrorKind, Store};

use super::super::engine::{ProcessDead, is_dead};
use super::super::scheduler::ThreadId;
use super::{Embedded, Process};
use crate::client::{Client, ClientId, ROWS};
use crate::violation::Violation;

/// How many clients continue while the store is closed.
const LATE_CLIENTS: usize = 4;
/// A late client ends after this many transactions, or at the first that the closed store refuses.
const TRANSACTIONS: usize = 20;
/// One transaction in this many commits; the others only begin.
const COMMITS_EVERY: usize = 8;
/// The closing thread yields fewer times than this before it closes the store. Meanwhile the late
/// clients run.
const STEPS_BEFORE_MAX: usize = 60;
/// How long a late client is stalled, in steps of others and in time: longer than closing takes.
const STALLED_STEPS: u64 = 2000;
const STALLED_FOR: Duration = Duration::from_secs(10);

impl Embedded<'_> {
    /// Closes the store and returns the result, or drops its last handle, which has no result.
    pub(super) fn close(
        &mut self,
        store: Store,
        engine: &Process,
        dead: &ProcessDead,
        (incarnation, disk_fails): (u32, bool),
    ) -> Result<(), Error> {
        let mut late = Vec::new();
        if self.plan.closes_while_busy && !disk_fails && !is_dead(dead) {
            self.scheduler.yield_at_locks();
            for _ in 0..LATE_CLIENTS {
                late.extend(self.late_client(&store, engine, dead, incarnation));
            }
            // While this thread yields, each late client gets to a random step. Most are then
            // stalled there until the store is closed.
            for _ in 0..self.rng.below(STEPS_BEFORE_MAX) {
                self.scheduler.yield_point("about to close");
            }
            for thread in &late {
                if !self.rng.one_in(4) {
                    self.scheduler.stall(*thread, STALLED_STEPS, STALLED_FOR);
                }
            }
        }
        let closed = if late.is_empty() && self.rng.one_in(4) {
            drop(store);
            Ok(())
        } else {
            store.close()
        };
        for thread in late {
            self.scheduler.join(thread);
        }
        closed
    }

    fn late_client(
        &mut self,
        store: &Store,
        engine: &Process,
        dead: &ProcessDead,
        incarnation: u32,
    ) -> Option<ThreadId> {
        let rows = store.keyspace(ROWS).ok()?;
        self.sessions += 1;
        let client_id = ClientId { session: self.sessions, incarnation, config: self.plan.client_config() };
        let (store, engine, recorder) = (store.clone(), Arc::clone(engine), self.recorder.for_process(dead));
        let (workload, mut rng, violations) = (self.plan.workload, self.rng.split(), Arc::clone(&self.violations));
        let (dead, handed_out) = (Arc::clone(dead), Arc::clone(&self.handed_out));
        let work = move || {
            let mut choices = rng.split();
            let mut client = Client::new((&store, &*engine), (rows, None), &recorder, client_id, rng);
            let ended = (0..TRANSACTIONS).try_for_each(|_| {
                if choices.one_in(COMMITS_EVERY) {
                    return client.attempt(|txn| workload.transaction(txn)).map(drop);
                }
                let start_ts = store.begin()?.start_ts();
                handed_out.fetch_max(start_ts.to_u64(), Ordering::SeqCst);
                Ok(())
            });
            if let Err(error) = ended
                && !matches!(error.kind(), ErrorKind::Closed(_) | ErrorKind::Undetermined(_))
                && !is_dead(&dead)
            {
                violations.lock().push(Violation::new("the store closes", format!("a concurrent client: {error}")));
            }
        };
        self.scheduler.spawn("late client", Box::new(work)).ok()
    }
}
