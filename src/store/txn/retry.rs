//! `transact`: run a closure as a transaction until it commits.
//!
//! The transaction itself remembers that it met a conflict, so the closure may turn errors into its own type, wrap them
//! or swallow them. A retry first takes its turn for the rows of the attempt before; see [`crate::contention`].

use std::cell::Cell;
use std::time::Duration;

use crate::contention::{AdmissionWait, AttemptGuard};
use crate::error::{Conflict, Error, ErrorKind, Result};
use crate::row::RowKey;
use crate::store::introspect::slow_log::{AttemptTiming, PastAttempts, TxnOutcome};
use crate::store::named_locks::TxnLock;
use crate::store::{RetryPolicy, Store, Txn, TxnOptions};
use crate::timestamp::Timestamp;

thread_local! {
    /// How many `transact` calls this thread is inside of. An inner one must not wait for what an outer one holds.
    static TRANSACT_DEPTH: Cell<usize> = const { Cell::new(0) };
}

/// How long an inner call waits for locks to go, all its attempts together.
const NESTED_WAIT_TIMEOUT: Duration = Duration::from_secs(1);

pub(in crate::store) struct NestingGuard;

impl NestingGuard {
    /// Enters; the answer tells whether this is the outermost call.
    pub(in crate::store) fn enter() -> (Self, bool) {
        let depth = TRANSACT_DEPTH.get();
        TRANSACT_DEPTH.set(depth + 1);
        (Self, depth == 0)
    }
}

impl Drop for NestingGuard {
    fn drop(&mut self) {
        TRANSACT_DEPTH.set(TRANSACT_DEPTH.get() - 1);
    }
}

impl Store {
    /// Runs `work` as a transaction and commits it. On a conflict it runs again, with a new transaction, so it must not
    /// have effects that a second run would spoil.
    ///
    /// Whatever is returned, the closure's own error included, is returned only when all that the closure has read is
    /// durable (in a store opened [`Durability::Sync`](crate::store::Durability::Sync)). A closure that fails rolls back.
    ///
    /// A `transact` inside the closure is a transaction of its own: it does not see the outer one's writes, and a row that
    /// both write makes the outer one conflict at every attempt, or, where the outer one is so large that it has locked the row
    /// already, the inner one, which gives up after a second. A closure that waits for a `transact` of another thread
    /// may have to wait a second longer, when there are conflicts and as many attempts run as
    /// [`Builder::admission_limit`](crate::store::Builder::admission_limit) lets in.
    ///
    /// ```
    /// # fn main() -> percolite::Result<()> {
    /// # let store = percolite::Store::in_memory()?;
    /// # let metrics = store.keyspace("metrics")?;
    /// let visits = store.transact(|txn| {
    ///     let seen = txn.get(&metrics, b"visits")?.map_or(0, |bytes| bytes[0]);
    ///     txn.put(&metrics, b"visits", [seen + 1])?;
    ///     Ok::<_, percolite::Error>(seen + 1)
    /// })?;
    /// assert_eq!(visits, 1);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// The closure's, and [`ErrorKind::RetriesExhausted`] with the last conflict when
    /// [`RetryPolicy`](crate::store::RetryPolicy) are reached, and those of [`Txn::commit`] but conflicts.
    pub fn transact<T, E: From<Error>>(&self, work: impl FnMut(&mut Txn) -> Result<T, E>) -> Result<T, E> {
        self.transact_with(TxnOptions::default(), work)
    }

    /// [`Store::transact`] with options of its own.
    ///
    /// # Errors
    /// Those of [`Store::transact`].
    pub fn transact_with<T, E: From<Error>>(
        &self,
        options: TxnOptions,
        mut work: impl FnMut(&mut Txn) -> Result<T, E>,
    ) -> Result<T, E> {
        let (_inside, outermost) = NestingGuard::enter();
        let mut attempts = RetryLoop::new(self, options);
        loop {
            let held = attempts.admission_wait(outermost).block(&*self.inner.runtime);
            if let Some(answer) = attempts.run_attempt(held, &mut work) {
                return answer;
            }
        }
    }
}

/// The attempts of one `transact`. Waiting between them is its caller's business.
pub(crate) struct RetryLoop {
    store: Store,
    options: TxnOptions,
    limits: RetryPolicy,
    /// For admission, even without conflicts.
    always_asks: bool,
    began: Duration,
    made: u32,
    history: PastAttempts,
    last: Option<AttemptTiming>,
    /// What the last attempt wrote, and its conflict.
    before: Option<(Vec<RowKey>, Error)>,
    /// The lock that all of them are made under.
    under: Option<TxnLock>,
}

impl RetryLoop {
    pub(crate) fn new(store: &Store, options: TxnOptions) -> Self {
        let limits = options.retry_policy.unwrap_or(store.inner.options.retry);
        let began = store.inner.runtime.elapsed();
        Self {
            store: store.clone(),
            options,
            limits,
            always_asks: false,
            began,
            made: 0,
            history: PastAttempts::default(),
            last: None,
            before: None,
            under: None,
        }
    }

    /// All of them are fenced by a lock, which is released when one is committed.
    pub(crate) fn with_lock(self, lock: TxnLock) -> Self {
        Self { under: Some(lock), ..self }
    }

    /// Those of a task: each takes a thread of a pool, and all of them no more than they can use.
    #[cfg(feature = "tokio")]
    pub(crate) fn for_task(store: &Store, options: TxnOptions) -> Self {
        Self { always_asks: true, ..Self::new(store, options) }
    }

    /// What to wait for, within bounds, until the next attempt is worth making.
    pub(crate) fn admission_wait(&self, outermost: bool) -> AdmissionWait {
        let inner = &self.store.inner;
        let mut entrance = AdmissionWait::default();
        if let Some((rows, conflict)) = self.before.as_ref().and_then(|(rows, why)| Some((rows, why.conflict()?))) {
            // An inner call must not wait for turns, which the outer one may hold, and for a lock only so long: it may be one
            // that the outer one has streamed out. Clients of a shared engine hold nothing of that kind.
            let has_all_waits = outermost || !inner.coordinator.is_exclusive();
            if has_all_waits || self.history.waited.row_lock < NESTED_WAIT_TIMEOUT {
                let rows = if has_all_waits { rows.as_slice() } else { &[] };
                inner.coordinator.plan_retry_wait(&mut entrance, rows, conflict, self.made + 1);
            }
        }
        if outermost && (self.always_asks || inner.admission.is_contended()) {
            entrance.queue_for_permit(&inner.admission, self.began.saturating_add(self.limits.timeout));
        }
        entrance
    }

    /// Makes an attempt with what [`RetryLoop::admission_wait`] led to; `None` when it met a conflict and may be repeated.
    pub(crate) fn run_attempt<T, E: From<Error>>(
        &mut self,
        held: AttemptGuard,
        work: &mut impl FnMut(&mut Txn) -> Result<T, E>,
    ) -> Option<Result<T, E>> {
        let waited = held.wait_times();
        if !waited.total().is_zero() {
            self.history.waited.add(waited);
            self.store.inner.metrics.admission_wait.record(waited.total());
        }
        if let Some((_, conflict)) =
            self.before.take_if(|_| self.store.elapsed_since(self.began) >= self.limits.timeout)
        {
            return Some(Err(self.give_up(conflict).into()));
        }
        if held.admission_timed_out() {
            self.store.inner.metrics.admission_timeouts.add(1);
        }
        self.history.attempts += 1;
        match self.attempt(held, work) {
            Ok((answer, commit_ts)) => {
                self.store.inner.admission.note_commit();
                self.record_result(TxnOutcome::Committed(commit_ts));
                Some(Ok(answer))
            }
            Err(AttemptError::Permanent(why, outcome)) => {
                self.record_result(outcome);
                Some(Err(why))
            }
            Err(AttemptError::Conflict(rows, conflict)) => {
                self.store.inner.admission.note_conflict();
                self.made += 1;
                if let (Some(last), Some(conflict)) = (&self.last, conflict.conflict()) {
                    self.history.add_conflict(conflict, last.ended.saturating_sub(last.began));
                }
                if self.made >= self.limits.max_attempts || self.store.elapsed_since(self.began) >= self.limits.timeout
                {
                    return Some(Err(self.give_up(conflict).into()));
                }
                self.store.inner.metrics.retries.add(1);
                event!(DEBUG, attempts = self.made, label = self.options.label, "retry");
                self.before = Some((rows, conflict));
                None
            }
        }
    }

    fn give_up(&mut self, conflict: Error) -> Error {
        self.store.inner.metrics.retries_exhausted.add(1);
        event!(WARN, attempts = self.made, label = self.options.label, "retries exhausted");
        if let Some(last) = &mut self.last {
            last.ended = self.store.inner.runtime.elapsed();
        }
        self.record_result(TxnOutcome::Conflict);
        retries_exhausted(self.made, conflict)
    }

    /// Looks back at the whole call.
    fn record_result(&mut self, outcome: TxnOutcome) {
        let Some(last) = self.last.take() else { return };
        let total = last.ended.saturating_sub(self.began);
        if matches!(outcome, TxnOutcome::Committed(_)) {
            self.store.inner.metrics.transact.record(total);
        }
        if self.store.is_slow(total) {
            self.store.log_slow(self.began, &mut self.history, &last, outcome);
        }
    }

    /// [`RetryLoop::run_attempt`] on a thread that is not inside of a `transact`.
    #[cfg(feature = "tokio")]
    pub(crate) fn run_outermost<T, E: From<Error>>(
        &mut self,
        held: AttemptGuard,
        work: &mut impl FnMut(&mut Txn) -> Result<T, E>,
    ) -> Option<Result<T, E>> {
        let _inside = NestingGuard::enter();
        self.run_attempt(held, work)
    }

    fn attempt<T, E: From<Error>>(
        &mut self,
        held: AttemptGuard,
        work: &mut impl FnMut(&mut Txn) -> Result<T, E>,
    ) -> Result<(T, Timestamp), AttemptError<E>> {
        span!(DEBUG, "attempt", number = self.history.attempts, label = self.options.label);
        let mut txn = self.store.begin_with(self.options).map_err(permanent)?;
        txn.attempt = Some(held);
        txn.is_attempt = true;
        if let Some(under) = &self.under {
            under.fence(&mut txn).map_err(permanent)?;
        }
        let outcome = attempt_with(&mut txn, work);
        self.last = Some(txn.last());
        outcome
    }
}

fn attempt_with<T, E: From<Error>>(
    txn: &mut Txn,
    work: &mut impl FnMut(&mut Txn) -> Result<T, E>,
) -> Result<(T, Timestamp), AttemptError<E>> {
    let conflict = match work(txn) {
        Ok(answer) => match txn.commit_in_place() {
            Ok(commit) => return Ok((answer, commit.commit_ts)),
            Err(why) if why.is_retryable() => why,
            Err(why) if is_undetermined(&why) => return Err(permanent(why)),
            Err(why) => {
                txn.answer_without_commit().map_err(permanent)?;
                return Err(permanent(why));
            }
        },
        Err(why) => {
            let Some(conflict) = txn.conflict_met() else {
                txn.attempt = None;
                txn.answer_without_commit().map_err(permanent)?;
                return Err(AttemptError::Permanent(why, TxnOutcome::RolledBack));
            };
            conflict
        }
    };
    Err(AttemptError::Conflict(txn.written_rows(), conflict))
}

fn permanent<E: From<Error>>(why: Error) -> AttemptError<E> {
    let outcome = TxnOutcome::Failed(why.to_string());
    AttemptError::Permanent(why.into(), outcome)
}

enum AttemptError<E> {
    /// And what is said of it.
    Permanent(E, TxnOutcome),
    Conflict(Vec<RowKey>, Error),
}

impl Store {
    #[cfg(feature = "tokio")]
    pub(crate) fn elapsed(&self) -> Duration {
        self.inner.runtime.elapsed()
    }

    fn elapsed_since(&self, began: Duration) -> Duration {
        self.inner.runtime.elapsed().saturating_sub(began)
    }
}

/// Whether the outcome is open, so that there is nothing to wait for.
fn is_undetermined(why: &Error) -> bool {
    matches!(why.kind(), ErrorKind::Undetermined(_) | ErrorKind::Closed(_))
}

fn retries_exhausted(attempts: u32, last: Error) -> Error {
    match last.conflict() {
        Some(conflict) => {
            let conflict: Box<Conflict> = Box::new(conflict.clone());
            ErrorKind::RetriesExhausted { attempts, conflict }.into()
        }
        None => last,
    }
}
