//! `transact`: runs a closure as a transaction until it commits.
//!
//! Whether an attempt is retried does not depend on the closure's error: the transaction itself
//! records that it met a conflict. So the closure may convert errors into its own type, wrap them
//! or ignore them. A retry waits first in the queues of the rows that the failed attempt wrote; see
//! [`crate::contention`].

use std::cell::Cell;
use std::time::Duration;

use crate::contention::{AdmissionWait, AttemptGuard, WaitTimes};
use crate::error::{Conflict, Error, ErrorKind, Result};
use crate::row::RowKey;
use crate::store::handle::Store;
use crate::store::introspect::retrying_calls::{ListedCall, RetryingRecord};
use crate::store::introspect::slow_log::{AttemptTiming, PastAttempts, TxnOutcome};
use crate::store::named_locks::txn_lock::TxnLock;
use crate::store::options::{RetryPolicy, TxnOptions};
use crate::store::txn::Txn;
use crate::store::txn::outcome::{Commit, Restarts};

thread_local! {
    /// The number of nested `transact` calls on this thread. An inner call must not wait for a
    /// ticket or permit that an outer call has: neither call could continue.
    static TRANSACT_DEPTH: Cell<usize> = const { Cell::new(0) };
}

/// How long an inner `transact` waits for row locks at most, over all its attempts.
const NESTED_WAIT_TIMEOUT: Duration = Duration::from_secs(1);

pub(in crate::store) struct NestingGuard;

impl NestingGuard {
    /// Enters a `transact` call; returns whether it is the outermost one on this thread.
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
    /// Runs `work` as a transaction and commits it. After a conflict it runs `work` again in a new
    /// transaction, so `work` must be safe to run more than once.
    ///
    /// With [`Durability::Sync`](crate::store::Durability::Sync) the call returns only when
    /// everything that the closure has read is durable, even if the closure returns an error. If
    /// the closure returns an error, its transaction is rolled back.
    ///
    /// A `transact` inside the closure is a transaction of its own, and does not see the writes of
    /// the outer transaction. If both transactions write the same row, the outer one conflicts at
    /// every attempt. But if the outer one is large and has already locked the row, the inner one
    /// conflicts instead, and fails after waiting for about a second.
    ///
    /// A closure that waits for a `transact` of another thread may wait up to a second longer:
    /// while there are conflicts, and
    /// [`Builder::admission_limit`](crate::store::Builder::admission_limit) attempts are running,
    /// the other `transact` waits for a permit.
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
    /// The closure's own; [`ErrorKind::RetriesExhausted`] with the last conflict, once the limits
    /// of the [`RetryPolicy`](crate::store::RetryPolicy) are reached; and those of [`Txn::commit`]
    /// except conflicts.
    pub fn transact<T, E: From<Error>>(&self, work: impl FnMut(&mut Txn) -> Result<T, E>) -> Result<T, E> {
        self.transact_with(TxnOptions::default(), work)
    }

    /// Like [`Store::transact_with`], but also returns the [`Commit`]: the commit timestamp, and
    /// whether the commit is durable.
    ///
    /// ```
    /// # fn main() -> percolite::Result<()> {
    /// # let store = percolite::Store::in_memory()?;
    /// # let accounts = store.keyspace("accounts")?;
    /// use percolite::TxnOptions;
    /// let write = |txn: &mut percolite::Txn| txn.put(&accounts, "alice", "100");
    /// let ((), commit) = store.transact_with_commit(TxnOptions::default(), write)?;
    /// assert!(commit.durable);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// Those of [`Store::transact_with`].
    pub fn transact_with_commit<T, E: From<Error>>(
        &self,
        options: TxnOptions,
        mut work: impl FnMut(&mut Txn) -> Result<T, E>,
    ) -> Result<(T, Commit), E> {
        self.inner.check_open()?;
        let (_inside, outermost) = NestingGuard::enter();
        let mut attempts = RetryLoop::new(self, options);
        loop {
            let guard = attempts.admission_wait(outermost).block(&*self.inner.env);
            if let Some(answer) = attempts.run_attempt(guard, &mut work) {
                return answer;
            }
        }
    }

    /// [`Store::transact`] with options for this transaction.
    ///
    /// # Errors
    /// Those of [`Store::transact`], and [`ErrorKind::InvalidArgument`] if an option is out of
    /// [range](crate::option_ranges).
    pub fn transact_with<T, E: From<Error>>(
        &self,
        options: TxnOptions,
        work: impl FnMut(&mut Txn) -> Result<T, E>,
    ) -> Result<T, E> {
        self.transact_with_commit(options, work).map(|(answer, _)| answer)
    }
}

/// The attempts of one `transact`. The waits between the attempts are left to the caller, because a
/// thread may block, and an async task must not.
pub(crate) struct RetryLoop {
    store: Store,
    options: TxnOptions,
    limits: RetryPolicy,
    /// Whether each attempt requests a permit, even without conflicts.
    always_asks: bool,
    began: Duration,
    made: u32,
    history: PastAttempts,
    /// The call's entry in the list of retrying calls, from its first conflict on.
    listed: Option<ListedCall>,
    last: Option<AttemptTiming>,
    /// The rows that the last attempt wrote, and its conflict.
    before: Option<(Vec<RowKey>, Error)>,
    /// The named lock that fences every attempt.
    under: Option<TxnLock>,
}

impl RetryLoop {
    pub(crate) fn new(store: &Store, options: TxnOptions) -> Self {
        let first = Restarts { began: store.inner.env.elapsed(), made: 0, waited: WaitTimes::default() };
        Self::after(store, options, first)
    }

    /// The further attempts of a caller that commits them itself.
    pub(super) fn after(store: &Store, options: TxnOptions, Restarts { began, made, waited }: Restarts) -> Self {
        let limits = options.retry_policy.unwrap_or(store.inner.options.retry);
        Self {
            store: store.clone(),
            options,
            limits,
            always_asks: false,
            began,
            made,
            history: PastAttempts { waited, ..PastAttempts::default() },
            listed: None,
            last: None,
            before: None,
            under: None,
        }
    }

    /// Fences every attempt by a lock. A commit releases the lock; if no attempt commits, the
    /// caller must release it.
    pub(crate) fn with_lock(self, lock: TxnLock) -> Self {
        Self { under: Some(lock), ..self }
    }

    /// The attempts of an async task. Each attempt occupies a thread of a pool, so permits limit
    /// the number of running attempts even without conflicts.
    #[cfg(feature = "tokio")]
    pub(crate) fn for_task(store: &Store, options: TxnOptions) -> Self {
        Self { always_asks: true, ..Self::new(store, options) }
    }

    /// The waits before the next attempt, each with a time limit. After a conflict: in row queues,
    /// and for the release of the lock that was met; on a shared engine a pause instead of both.
    /// Last: for a permit, if one is needed.
    pub(crate) fn admission_wait(&self, outermost: bool) -> AdmissionWait {
        let inner = &self.store.inner;
        let mut wait = AdmissionWait::default();
        if let Some((rows, conflict)) = self.before.as_ref().and_then(|(rows, error)| Some((rows, error.conflict()?))) {
            // An inner call must not wait in row queues, because the outer call may have a ticket
            // there. It waits for row locks for `NESTED_WAIT_TIMEOUT` at most, because a lock may
            // belong to the outer call, if the outer transaction is large. A shared engine has no
            // row queues and no large transactions, so there an inner call pauses as an outermost
            // one does.
            let has_all_waits = outermost || !inner.coordinator.is_exclusive();
            if has_all_waits || self.history.waited.row_lock < NESTED_WAIT_TIMEOUT {
                let rows = if has_all_waits { rows.as_slice() } else { &[] };
                inner.coordinator.plan_retry_wait(&mut wait, rows, conflict, self.made + 1);
            }
        }
        if outermost && (self.always_asks || inner.admission.is_contended()) {
            wait.queue_for_permit(&inner.admission, self.began.saturating_add(self.limits.timeout));
        }
        wait
    }

    /// Runs one attempt, after the waits of [`RetryLoop::admission_wait`]; `None` if the attempt
    /// met a conflict and may be retried.
    pub(crate) fn run_attempt<T, E: From<Error>>(
        &mut self,
        guard: AttemptGuard,
        work: &mut impl FnMut(&mut Txn) -> Result<T, E>,
    ) -> Option<Result<(T, Commit), E>> {
        if let Err(exhausted) = self.end_wait(&guard) {
            return Some(Err(exhausted.into()));
        }
        self.history.attempts += 1;
        match self.attempt(guard, work) {
            Ok((answer, commit)) => {
                self.store.inner.admission.note_commit();
                self.record_result(TxnOutcome::Committed(commit.commit_ts));
                Some(Ok((answer, commit)))
            }
            Err(AttemptError::Permanent(error, outcome)) => {
                self.record_result(outcome);
                Some(Err(error))
            }
            Err(AttemptError::Conflict(rows, conflict)) => {
                if let (Some(last), Some(conflict)) = (&self.last, conflict.conflict()) {
                    self.history.add_conflict(conflict, last.ended.saturating_sub(last.began));
                    let call = RetryingRecord {
                        label: self.options.label,
                        began: self.began,
                        failed_attempts: self.made + 1,
                        last_conflict: conflict.clone(),
                    };
                    self.store.inner.monitor.note_retrying(&mut self.listed, call);
                }
                self.plan_retry(rows, conflict).err().map(|exhausted| Err(exhausted.into()))
            }
        }
    }

    /// Records that an attempt that wrote `rows` met a conflict. Fails if it was the last attempt.
    pub(super) fn plan_retry(&mut self, rows: Vec<RowKey>, conflict: Error) -> Result<()> {
        self.store.inner.admission.note_conflict();
        self.made += 1;
        if self.made >= self.limits.max_attempts || self.is_timed_out() {
            return Err(self.give_up(conflict));
        }
        self.store.inner.metrics.retries.add(1);
        event!(DEBUG, attempts = self.made, label = self.options.label, "retry");
        self.before = Some((rows, conflict));
        Ok(())
    }

    /// Records the waits before an attempt. Fails if an attempt has conflicted and there is no time
    /// for another one.
    fn end_wait(&mut self, guard: &AttemptGuard) -> Result<()> {
        let waited = guard.wait_times();
        if !waited.total().is_zero() {
            self.history.waited.add(waited);
            self.store.inner.metrics.admission_wait.record(waited.total());
        }
        if self.before.is_some()
            && self.is_timed_out()
            && let Some((_, conflict)) = self.before.take()
        {
            return Err(self.give_up(conflict));
        }
        if guard.admission_timed_out() {
            self.store.inner.metrics.admission_timeouts.add(1);
        }
        Ok(())
    }

    /// Waits, and begins the next attempt for a caller that commits it itself.
    pub(super) fn begin_again(mut self) -> Result<Txn> {
        let (_inside, outermost) = NestingGuard::enter();
        let guard = self.admission_wait(outermost).block(&*self.store.inner.env);
        self.end_wait(&guard)?;
        let mut txn = self.store.begin_with(self.options)?;
        txn.attempt = Some(guard);
        txn.restarts = Some(Restarts { began: self.began, made: self.made, waited: self.history.waited });
        Ok(txn)
    }

    fn is_timed_out(&self) -> bool {
        self.store.inner.env.elapsed().saturating_sub(self.began) >= self.limits.timeout
    }

    fn give_up(&mut self, conflict: Error) -> Error {
        self.store.inner.metrics.retries_exhausted.add(1);
        event!(WARN, attempts = self.made, label = self.options.label, "retries exhausted");
        if let Some(last) = &mut self.last {
            last.ended = self.store.inner.env.elapsed();
        }
        self.record_result(TxnOutcome::Conflict);
        retries_exhausted(self.made, conflict)
    }

    /// Records the whole call in metrics and slow log.
    fn record_result(&mut self, outcome: TxnOutcome) {
        let Some(last) = self.last.take() else { return };
        let total = last.ended.saturating_sub(self.began);
        if matches!(outcome, TxnOutcome::Committed(_)) {
            self.store.inner.metrics.transact.record(total);
        }
        if self.store.inner.monitor.is_slow(total) {
            self.store.inner.monitor.log_slow(self.began, &mut self.history, &last, outcome);
        }
    }

    /// [`RetryLoop::run_attempt`] on a thread that is in no other `transact`.
    #[cfg(feature = "tokio")]
    pub(crate) fn run_outermost<T, E: From<Error>>(
        &mut self,
        guard: AttemptGuard,
        work: &mut impl FnMut(&mut Txn) -> Result<T, E>,
    ) -> Option<Result<(T, Commit), E>> {
        let _inside = NestingGuard::enter();
        self.run_attempt(guard, work)
    }

    fn attempt<T, E: From<Error>>(
        &mut self,
        guard: AttemptGuard,
        work: &mut impl FnMut(&mut Txn) -> Result<T, E>,
    ) -> Result<(T, Commit), AttemptError<E>> {
        span!(DEBUG, "attempt", number = self.history.attempts, label = self.options.label);
        let mut txn = self.store.begin_with(self.options).map_err(permanent)?;
        txn.attempt = Some(guard);
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
) -> Result<(T, Commit), AttemptError<E>> {
    let conflict = match work(txn) {
        Ok(answer) => match txn.commit_in_place() {
            Ok(commit) => return Ok((answer, commit)),
            Err(error) if error.is_retryable() => error,
            Err(error) if is_undetermined(&error) => return Err(permanent(error)),
            Err(error) => {
                txn.answer_without_commit().map_err(permanent)?;
                return Err(permanent(error));
            }
        },
        Err(error) => {
            let Some(conflict) = txn.conflict_met() else {
                txn.attempt = None;
                txn.answer_without_commit().map_err(permanent)?;
                return Err(AttemptError::Permanent(error, TxnOutcome::RolledBack));
            };
            conflict
        }
    };
    Err(AttemptError::Conflict(txn.written_rows(), conflict))
}

fn permanent<E: From<Error>>(error: Error) -> AttemptError<E> {
    let outcome = TxnOutcome::Failed(error.to_string());
    AttemptError::Permanent(error.into(), outcome)
}

enum AttemptError<E> {
    /// The error, and the outcome for the slow log.
    Permanent(E, TxnOutcome),
    Conflict(Vec<RowKey>, Error),
}

/// Whether the store has failed or is closed, so that a wait for durable reads would fail as well.
fn is_undetermined(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Undetermined(_) | ErrorKind::Closed(_))
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
