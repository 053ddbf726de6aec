//! The keeper: the thread that renews leases while their guards live, and removes the rows of those that were dropped.
//!
//! It starts with the first guard of a lease. A guard that is dropped hands its lock on in memory and leaves its row to this thread,
//! so dropping never waits; whoever takes the lock next removes the row as well, and does not wait for this. When the store closes it
//! removes the rows that are left to it, and then ends.

use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, ErrorKind, Result};
use crate::locking::Grant;
use crate::runtime::{Joined, Parker};
use crate::store::Store;
use crate::sync::Mutex;

/// After a failure that is not the store's end.
const PAUSE: Duration = Duration::from_millis(500);

/// See the [module](self).
#[derive(Default)]
pub(super) struct Keeper(Mutex<State>);

#[derive(Default)]
struct State {
    thread: Option<Box<dyn Joined>>,
    parker: Option<Arc<dyn Parker>>,
    stopping: bool,
    /// Leases that are over, with rows.
    over: Vec<Arc<Grant>>,
    /// Leases with guards, and when each is looked at next.
    kept: Vec<(Arc<Grant>, Duration)>,
}

impl Keeper {
    /// Starts the thread, unless it runs.
    pub fn start(&self, store: &Store) -> Result<()> {
        let mut state = self.0.lock();
        if state.stopping {
            return Err(Error::closed(crate::pipeline::CLOSED));
        }
        if state.thread.is_none() {
            let background = store.background();
            let thread = store.inner.runtime.spawn("percolite-leases", Box::new(move || run(&background)));
            state.thread = Some(thread.map_err(|why| ErrorKind::Io(format!("cannot start a thread: {why}")))?);
        }
        Ok(())
    }

    /// Takes charge of a lease that has a guard.
    pub fn keep(&self, store: &Store, grant: &Arc<Grant>) -> Result<()> {
        self.start(store)?;
        if !self.look_again(grant) {
            let mut state = self.0.lock();
            state.kept.push((Arc::clone(grant), Duration::ZERO));
            state.wake();
        }
        Ok(())
    }

    /// Has a lease looked at now, which may have another time than it had. The answer is whether it is kept.
    pub fn look_again(&self, grant: &Arc<Grant>) -> bool {
        let mut state = self.0.lock();
        let is_kept = state.next_look(grant).map(|at| *at = Duration::ZERO).is_some();
        if is_kept {
            state.wake();
        }
        is_kept
    }

    /// Has the row of a lease that is over removed.
    pub fn remove(&self, grant: &Arc<Grant>) {
        let mut state = self.0.lock();
        state.over.push(Arc::clone(grant));
        state.wake();
    }

    /// Has the rows of these removed, and of those that were left before, and ends.
    pub fn finish(&self, over: Vec<Arc<Grant>>) {
        let thread = {
            let mut state = self.0.lock();
            state.over.extend(over);
            state.stopping = true;
            state.wake();
            state.thread.take()
        };
        if let Some(thread) = thread {
            thread.join();
        }
    }
}

impl State {
    /// The leases that are to be looked at now. Those that nobody renews any more are forgotten.
    fn due(&mut self, now: Duration) -> Vec<Arc<Grant>> {
        self.kept.retain(|(grant, _)| {
            !grant.has_ended() && grant.with_lease(|lease| lease.has_guard && lease.renews).unwrap_or(false)
        });
        let due = self.kept.iter_mut().filter(|(_, at)| *at <= now);
        due.map(|(grant, at)| {
            *at = Duration::MAX;
            Arc::clone(grant)
        })
        .collect()
    }

    fn next_look(&mut self, grant: &Arc<Grant>) -> Option<&mut Duration> {
        self.kept.iter_mut().find(|(kept, _)| Arc::ptr_eq(kept, grant)).map(|(_, at)| at)
    }

    fn wake(&self) {
        if let Some(parker) = &self.parker {
            parker.unpark();
        }
    }
}

fn run(store: &Store) {
    let Some(locks) = &store.inner.locks else { return };
    let runtime = &store.inner.runtime;
    let parker = runtime.parker();
    locks.keeper.0.lock().parker = Some(Arc::clone(&parker));
    loop {
        let now = runtime.elapsed();
        let (over, due, stopping) = {
            let mut state = locks.keeper.0.lock();
            (std::mem::take(&mut state.over), state.due(now), state.stopping)
        };
        let mut failed = false;
        if let Err(why) = store.remove_leases(&over) {
            failed = !ends(store, "leases", &why);
            if failed {
                locks.keeper.0.lock().over.extend(over.into_iter().filter(|grant| grant.has_row()));
            }
        } else {
            let durable_ts = store.stats().durable_ts;
            over.iter().for_each(|grant| locks.heads.tidy(&grant.name, durable_ts));
        }
        if stopping {
            return;
        }
        for grant in due {
            let next = look_at(store, &grant);
            let mut state = locks.keeper.0.lock();
            if let Some(at) = state.next_look(&grant) {
                // It may be asked for meanwhile.
                *at = next.min(*at);
            }
        }
        let now = runtime.elapsed();
        let next = {
            let state = locks.keeper.0.lock();
            let is_idle = state.over.is_empty() || failed;
            let next = state.kept.iter().map(|(_, at)| at.saturating_sub(now)).min();
            if is_idle && !state.stopping {
                next.into_iter().chain(failed.then_some(PAUSE)).min()
            } else {
                Some(Duration::ZERO)
            }
        };
        if next != Some(Duration::ZERO) {
            parker.park(next);
        }
    }
}

/// Renews a lease that is half over; the answer is when to look at it again.
fn look_at(store: &Store, grant: &Arc<Grant>) -> Duration {
    let now = store.inner.runtime.elapsed();
    let (Some(lease), Some(locks)) = (grant.lease(), &store.inner.locks) else { return Duration::MAX };
    if lease.writing > 0 {
        // Whoever writes it has it looked at again.
        return Duration::MAX;
    }
    let due = lease.ends.saturating_sub(lease.time / 2);
    if now < due {
        return due;
    }
    match store.prolong(locks, grant, None) {
        Ok(()) => now.saturating_add(lease.time / 2),
        Err(why) if ends(store, "leases", &why) => Duration::MAX,
        Err(_) => now.saturating_add((lease.time / 8).min(PAUSE)),
    }
}

/// Whether there is nothing left to try. Anything else is reported.
#[cfg_attr(not(feature = "tracing"), allow(unused_variables, reason = "for the event alone"))]
fn ends(store: &Store, what: &str, why: &Error) -> bool {
    let ends = matches!(why.kind(), ErrorKind::Closed(_) | ErrorKind::Undetermined(_) | ErrorKind::LockLost(_));
    if !ends {
        event!(WARN, what, %why, "background work failed");
    }
    ends
}
