//! A client that takes named locks in random ways.

use std::time::Duration;

use percolite::engine::Engine;
use percolite::env::Env;
use percolite::{
    CancelToken, Error, ErrorKind, Keyspace, KeyspaceId, LockGuard, LockMode, LockOptions, LockWaitPolicy, Store,
    Timestamp,
};

use super::event::{EventRecorder, LeaseTerm, LockEvent, LogicalTime, nanos};
use super::waits::reason_of;
use super::{LEASE_MAX_MS, LOCK_NAMES, SEMAPHORE, SEMAPHORE_PERMITS, SharedLocks};
use crate::client::ClientId;
use crate::rng::SeededRng;

const CATALOG: KeyspaceId = KeyspaceId(0);
/// The shortest lease.
const LEASE_MIN: Duration = Duration::from_millis(100);

/// The environment of a lock client.
#[derive(Clone, Copy)]
pub struct LockEnv<'a> {
    /// The store.
    pub store: &'a Store,
    /// The engine, from which the commit timestamps of the client's transactions are read.
    pub engine: &'a dyn Engine,
    /// The keyspace of the client's rows.
    pub rows: &'a Keyspace,
    /// The runtime of the store, with its clocks.
    pub runtime: &'a dyn Env,
    /// Records the events.
    pub recorder: &'a dyn EventRecorder,
    /// What the clients share.
    pub shared: &'a SharedLocks,
    /// Whether time is virtual, so that long waits take none.
    pub is_simulated: bool,
}

/// Writes events with the time of this incarnation.
#[derive(Clone, Copy)]
pub struct EventWriter<'a> {
    /// The environment.
    pub env: LockEnv<'a>,
    /// The incarnation.
    pub incarnation: u32,
}

impl EventWriter<'_> {
    /// The current time.
    pub fn now(&self) -> LogicalTime {
        let time = nanos(self.env.runtime.elapsed());
        LogicalTime { incarnation: self.incarnation, time, tick: self.env.recorder.tick() }
    }

    /// Records an event.
    pub fn record(&self, event: LockEvent) {
        self.env.recorder.record(event);
    }

    /// Records that a grant is about to be ended; returns the number of the attempt.
    pub fn record_end_attempt(&self, name: &str, token: u64) -> u64 {
        let (at, shared) = (self.now(), self.env.shared);
        shared.held.lock().retain(|(_, other)| *other != token);
        shared.ended.lock().push((name.to_owned(), token));
        self.record(LockEvent::EndAttempt { name: name.into(), token, by: at.tick, at });
        at.tick
    }

    /// Records that a call found the grant lost. `by` is the number of the end attempt that the
    /// call was; 0 if it was no attempt to end the grant.
    pub fn record_not_held(&self, name: &str, token: u64, by: u64) {
        let at = self.now();
        self.record(LockEvent::NotHeld { name: name.into(), token, by, at });
    }
}

/// A client that takes locks at random and records the results of its calls.
pub struct LockClient<'a> {
    pub(super) env: LockEnv<'a>,
    pub(super) events: EventWriter<'a>,
    pub(super) id: ClientId,
    pub(super) rng: SeededRng,
    /// The longest pause, in milliseconds.
    pub(super) pause_max_ms: usize,
}

/// A held lock. Dropping it records an end attempt, and then drops the guard.
pub(super) struct HeldLock<'a> {
    pub events: EventWriter<'a>,
    pub name: String,
    pub mode: LockMode,
    pub token: u64,
    /// A lower bound of the lease's time to live; `None` without a lease.
    pub lease: Option<Duration>,
    guard: Option<LockGuard>,
}

impl HeldLock<'_> {
    pub fn is_held(&self) -> bool {
        self.guard.as_ref().is_some_and(LockGuard::is_held)
    }

    /// Shares the guard, so that any client may drop it.
    pub fn share_guard(&mut self) {
        let guard = self.guard.take();
        let shelved = guard.map(|guard| (self.name.clone(), self.token, guard));
        self.events.env.shared.shared_guards.lock().extend(shelved);
    }

    /// Reclaims the guard; false if another client has dropped it.
    pub fn reclaim_guard(&mut self) -> bool {
        self.guard = self.events.env.shared.reclaim_guard(self.token);
        self.guard.is_some()
    }

    pub fn guard(&mut self) -> Result<&mut LockGuard, Error> {
        self.guard.as_mut().ok_or_else(|| ErrorKind::Cancelled("the guard is shared".into()).into())
    }
}

impl Drop for HeldLock<'_> {
    fn drop(&mut self) {
        if let Some(guard) = self.guard.take() {
            self.events.record_end_attempt(&self.name, self.token);
            drop(guard);
        }
    }
}

/// A lock request.
pub(super) struct LockRequest {
    pub name: String,
    pub mode: LockMode,
    pub wait: LockWaitPolicy,
    /// Of a lease: its time to live, and true if the store must not renew it.
    pub lease: Option<(Duration, bool)>,
}

impl<'a> LockClient<'a> {
    /// A lock client with pauses up to this many milliseconds.
    pub fn new(env: LockEnv<'a>, id: ClientId, rng: SeededRng, pause_max_ms: usize) -> Self {
        Self { env, events: EventWriter { env, incarnation: id.incarnation }, id, rng, pause_max_ms }
    }

    /// Takes one random step.
    ///
    /// # Errors
    /// Errors that a correct store does not return here.
    pub fn step(&mut self) -> Result<(), Error> {
        let done = match self.rng.below(20) {
            0..=8 => self.hold_lock(),
            9..=11 => self.transact(),
            12 | 13 => self.force_unlock(),
            14 => self.use_stale_token(),
            15 => self.get_lock(),
            16 => self.resume_lease(),
            17 => {
                self.drop_shared_guard();
                Ok(())
            }
            18 => self.cancel_a_wait(None),
            _ => self.begin_before_lock(),
        };
        done.or_else(tolerate)
    }

    /// Drops a guard that another client shares while it commits.
    fn drop_shared_guard(&mut self) {
        if let Some((name, token, guard)) = self.env.shared.take_guard(self.rng.below(8)) {
            self.events.record_end_attempt(&name, token);
            drop(guard);
        }
    }

    pub(super) fn random_request(&mut self) -> LockRequest {
        let is_permit = self.rng.one_in(5);
        let name = if is_permit { SEMAPHORE } else { self.rng.pick(&LOCK_NAMES).copied().unwrap_or(SEMAPHORE) };
        let mode = match (is_permit, self.rng.below(5)) {
            (_, 0 | 1) => LockMode::Exclusive,
            (false, 2) => LockMode::Exclusive,
            (true, _) => LockMode::Semaphore(SEMAPHORE_PERMITS),
            (false, _) => LockMode::Shared,
        };
        let lease = (!is_permit && self.rng.one_in(3)).then(|| {
            let time = Duration::from_millis([100, 150, 300, LEASE_MAX_MS][self.rng.below(4)]);
            (time, self.rng.one_in(2))
        });
        LockRequest { name: name.into(), mode, wait: self.random_wait(), lease }
    }

    pub(super) fn random_wait(&mut self) -> LockWaitPolicy {
        match self.rng.below(4) {
            0 => LockWaitPolicy::NoWait,
            1 => LockWaitPolicy::Forever,
            _ => LockWaitPolicy::Timeout(Duration::from_millis(self.rng.below(600) as u64)),
        }
    }

    pub(super) fn options(&mut self, request: &LockRequest, requested: LogicalTime) -> LockOptions {
        let options = match request.mode {
            LockMode::Shared => LockOptions::shared(),
            LockMode::Semaphore(most) => LockOptions::semaphore(most),
            _ => LockOptions::exclusive(),
        };
        let mut options = options.wait(request.wait).reason(reason_of(requested));
        if let Some((time, no_renewal)) = request.lease {
            options = options.lease(time);
            options = if no_renewal { options.auto_renew(false) } else { options };
        }
        if self.rng.one_in(3) {
            let cancel = CancelToken::default();
            options = options.cancel_token(&cancel);
            self.env.shared.cancels.lock().push((request.name.clone(), reason_of(requested), cancel));
        }
        options
    }

    pub(super) fn record_request(&self, request: &LockRequest) -> LogicalTime {
        let at = self.events.now();
        let (name, no_wait) = (request.name.clone(), request.wait == LockWaitPolicy::NoWait);
        self.events.record(LockEvent::Requested { request: at.tick, name, mode: request.mode, no_wait, at });
        at
    }

    /// The term of a lease. `from` and `wall` are the times before the request, by the monotonic
    /// and by the wall clock.
    pub(super) fn term(&self, (from, wall): (LogicalTime, u64), time: Duration, renews: bool) -> LeaseTerm {
        let time_ms = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        LeaseTerm { from, wall: (wall, self.env.runtime.unix_millis()), time_ms, renews }
    }

    /// Requests a lock; `None` if it was not granted.
    pub(super) fn acquire(&mut self, request: LockRequest) -> Result<Option<HeldLock<'a>>, Error> {
        let wall = self.env.runtime.unix_millis();
        let requested = self.record_request(&request);
        let options = self.options(&request, requested);
        match self.env.store.lock_with(&request.name, options) {
            Ok(guard) => {
                let at = self.events.now();
                let token = guard.token().to_u64();
                let term = request.lease.map(|(time, no_renewal)| self.term((requested, wall), time, !no_renewal));
                self.events.record(LockEvent::Granted {
                    request: requested.tick,
                    token,
                    id: Some(guard.entry().id),
                    at,
                    term,
                });
                self.env.shared.held.lock().push((request.name.clone(), token));
                let lease = request.lease.map(|(time, _)| time);
                Ok(Some(HeldLock {
                    events: self.events,
                    name: request.name,
                    mode: request.mode,
                    token,
                    lease,
                    guard: Some(guard),
                }))
            }
            Err(error) => self.check_refusal(&request, requested, error).map(|()| None),
        }
    }

    fn hold_lock(&mut self) -> Result<(), Error> {
        let request = self.random_request();
        let Some(mut held) = self.acquire(request)? else { return Ok(()) };
        for _ in 0..=self.rng.below(3) {
            match self.while_held(held) {
                Ok(Some(still)) => held = still,
                ended => return ended.map(drop),
            }
        }
        self.release(held)
    }

    /// Gives a held lock up, in a random way: detaches its lease, drops the guard, or releases it.
    pub(super) fn release(&mut self, mut held: HeldLock<'_>) -> Result<(), Error> {
        let (name, token) = (held.name.clone(), held.token);
        let Some(guard) = held.guard.take() else { return Ok(()) };
        if held.lease.is_some() && self.rng.one_in(3) {
            match guard.detach() {
                Ok(kept) => self.env.shared.add_detached(&name, kept),
                Err(guard) => {
                    self.events.record_not_held(&name, token, 0);
                    held.guard = Some(guard);
                }
            }
            return Ok(());
        }
        let by = self.events.record_end_attempt(&name, token);
        if self.rng.one_in(2) {
            drop(guard);
            return Ok(());
        }
        guard.release()?;
        let at = self.events.now();
        self.events.record(LockEvent::Released { name, token, by, at });
        Ok(())
    }

    /// Ends the grant of another client, by force or by its token.
    fn force_unlock(&mut self) -> Result<(), Error> {
        let candidates = self.env.shared.held.lock().clone();
        let Some((name, token)) = candidates.get(self.rng.below(candidates.len().max(1))).cloned() else {
            return Ok(());
        };
        self.end_by_token(&name, token)
    }

    fn end_by_token(&mut self, name: &str, token: u64) -> Result<(), Error> {
        let by = self.events.record_end_attempt(name, token);
        let at = Timestamp::from_u64(token);
        let ended = if self.rng.one_in(2) {
            self.env.store.force_unlock(name, at)?
        } else {
            self.env.store.release_lock(name, at)?
        };
        if ended {
            self.env.shared.end_times.lock().insert(token, self.events.now().time);
            self.events.record(LockEvent::EndedDurably { name: name.into(), token });
        } else {
            self.events.record_not_held(name, token, by);
        }
        Ok(())
    }

    /// Releases a lock with the token of an ended grant, which must have no effect.
    fn use_stale_token(&mut self) -> Result<(), Error> {
        let candidates = self.env.shared.ended.lock().clone();
        let Some((name, token)) = candidates.get(self.rng.below(candidates.len().max(1))).cloned() else {
            return Ok(());
        };
        let free = self.env.store.is_free_lock(&name)?;
        let before = self.env.store.lock_holders(&name)?;
        let is_held = before.iter().any(|holder| holder.token == Some(Timestamp::from_u64(token)));
        // A grant enters `ended` before it ends. If it is still held, as after a failed conversion,
        // its token is not stale. If the lock is free, there is no later grant to end by mistake.
        if is_held || free {
            return Ok(());
        }
        if self.env.store.release_lock(&name, Timestamp::from_u64(token))? {
            let what = format!("lock: ownership: the ended grant {token} of {name:?} has ended {before:?}");
            return Err(ErrorKind::Corruption(what).into());
        }
        Ok(())
    }

    /// Takes a lease without a guard, by [`Store::get_lock`].
    fn get_lock(&mut self) -> Result<(), Error> {
        let (name, time) =
            (LOCK_NAMES[self.rng.below(LOCK_NAMES.len())], Duration::from_millis(100 * (1 + self.rng.below(8)) as u64));
        let request = LockRequest {
            name: name.into(),
            mode: LockMode::Exclusive,
            wait: LockWaitPolicy::NoWait,
            lease: Some((time, true)),
        };
        let wall = self.env.runtime.unix_millis();
        let requested = self.record_request(&request);
        let Some(token) = self.env.store.get_lock(name, time)? else { return Ok(()) };
        let at = self.events.now();
        let term = Some(self.term((requested, wall), time, false));
        self.events.record(LockEvent::Granted { request: requested.tick, token: token.to_u64(), id: None, at, term });
        self.env.shared.held.lock().push((name.into(), token.to_u64()));
        self.env.shared.add_detached(name, token);
        Ok(())
    }

    /// Attaches a detached lease, or ends it.
    fn resume_lease(&mut self) -> Result<(), Error> {
        let Some((name, token)) = self.env.shared.detached.lock().pop() else { return Ok(()) };
        if self.rng.one_in(2) {
            return self.end_by_token(&name, token);
        }
        self.events.record(LockEvent::Resumed { name: name.clone(), token });
        match self.env.store.attach_lock(&name, Timestamp::from_u64(token)) {
            Ok(guard) => {
                let (mode, lease) = (guard.entry().mode, Some(LEASE_MIN));
                let held = HeldLock { events: self.events, name, mode, token, lease, guard: Some(guard) };
                match self.while_held(held)? {
                    Some(held) => self.release(held),
                    None => Ok(()),
                }
            }
            Err(error) if matches!(error.kind(), ErrorKind::LockLost(_)) => {
                self.events.record_not_held(&name, token, 0);
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    pub(super) fn pause(&mut self) {
        let time = Duration::from_millis(self.rng.below(self.pause_max_ms.max(1)) as u64);
        self.env.runtime.sleep(time);
    }
}

/// Ignores errors that any lock client may get, and returns all others. A conflict on a row of the
/// catalog, which has the leases, is a bug: the store retries those itself.
fn tolerate(error: Error) -> Result<(), Error> {
    match error.kind() {
        ErrorKind::Conflict(conflict) if conflict.row.keyspace_id() == CATALOG => Err(error),
        ErrorKind::LockNotAvailable(_)
        | ErrorKind::LockLost(_)
        | ErrorKind::Deadlock(_)
        | ErrorKind::Cancelled(_)
        | ErrorKind::Conflict(_)
        | ErrorKind::RetriesExhausted { .. }
        | ErrorKind::SnapshotTooOld(_) => Ok(()),
        _ => Err(error),
    }
}
