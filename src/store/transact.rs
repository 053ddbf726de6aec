//! `transact`: run a closure as a transaction until it commits.
//!
//! The transaction itself remembers that it met a conflict, so the closure may turn errors into its own type, wrap them
//! or swallow them. A retry first takes its turn for the rows of the attempt before; see [`crate::pipeline::Turns`].

use std::cell::Cell;
use std::time::Duration;

use super::locks::Under;
use super::slow::{Before, Last, Outcome};
use super::{RetryLimits, Store, Txn, TxnOptions};
use crate::error::{Conflict, Error, ErrorKind, Result};
use crate::pipeline::{Entrance, Held};
use crate::row::RowKey;
use crate::timestamp::Timestamp;

thread_local! {
    /// How many `transact` calls this thread is inside of. An inner one must not wait for what an outer one holds.
    static DEPTH: Cell<usize> = const { Cell::new(0) };
}

/// How long an inner call waits for locks to go, all its attempts together.
const INNER_WAIT_MAX: Duration = Duration::from_secs(1);

pub(super) struct Inside;

impl Inside {
    /// Enters; the answer tells whether this is the outermost call.
    pub(super) fn enter() -> (Self, bool) {
        let depth = DEPTH.get();
        DEPTH.set(depth + 1);
        (Self, depth == 0)
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        DEPTH.set(DEPTH.get() - 1);
    }
}

impl Store {
    /// Runs `work` as a transaction and commits it. On a conflict it runs again, with a new transaction, so it must not
    /// have effects that a second run would spoil.
    ///
    /// Whatever is returned, the closure's own error included, is returned only when all that the closure has read is
    /// durable (in a store opened [`Durability::Sync`](super::Durability::Sync)). A closure that fails rolls back.
    ///
    /// A `transact` inside the closure is a transaction of its own: it does not see the outer one's writes, and a row that
    /// both write makes the outer one conflict at every attempt, or, where the outer one is so large that it has locked the row
    /// already, the inner one, which gives up after a second. A closure that waits for a `transact` of another thread
    /// may have to wait a second longer, when there are conflicts and as many attempts run as
    /// [`Builder::admission`](super::Builder::admission) lets in.
    ///
    /// ```
    /// # fn main() -> percolite::Result<()> {
    /// # let store = percolite::Store::in_memory()?;
    /// # let counters = store.keyspace("counters")?;
    /// let visits = store.transact(|txn| {
    ///     let seen = txn.get(&counters, b"visits")?.map_or(0, |bytes| bytes[0]);
    ///     txn.put(&counters, b"visits", [seen + 1])?;
    ///     Ok::<_, percolite::Error>(seen + 1)
    /// })?;
    /// assert_eq!(visits, 1);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// The closure's, and [`ErrorKind::Exhausted`] with the last conflict when
    /// [`RetryLimits`](super::RetryLimits) are reached, and those of [`Txn::commit`] but conflicts.
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
        let (_inside, outermost) = Inside::enter();
        let mut attempts = Attempts::new(self, options);
        loop {
            let held = attempts.entrance(outermost).wait(&*self.inner.runtime);
            if let Some(answer) = attempts.run(held, &mut work) {
                return answer;
            }
        }
    }
}

/// The attempts of one `transact`. Waiting between them is its caller's business.
pub(crate) struct Attempts {
    store: Store,
    options: TxnOptions,
    limits: RetryLimits,
    /// For admission, even without conflicts.
    always_asks: bool,
    began: Duration,
    made: u32,
    history: Before,
    last: Option<Last>,
    /// What the last attempt wrote, and its conflict.
    before: Option<(Vec<RowKey>, Error)>,
    /// The lock that all of them are made under.
    under: Option<Under>,
}

impl Attempts {
    pub(crate) fn new(store: &Store, options: TxnOptions) -> Self {
        let limits = options.retry.unwrap_or(store.inner.options.retry);
        let began = store.inner.runtime.elapsed();
        Self {
            store: store.clone(),
            options,
            limits,
            always_asks: false,
            began,
            made: 0,
            history: Before::default(),
            last: None,
            before: None,
            under: None,
        }
    }

    /// All of them are fenced by a lock, which is released when one is committed.
    pub(crate) fn under(self, lock: Under) -> Self {
        Self { under: Some(lock), ..self }
    }

    /// Those of a task: each takes a thread of a pool, and all of them no more than they can use.
    #[cfg(feature = "tokio")]
    pub(crate) fn of_task(store: &Store, options: TxnOptions) -> Self {
        Self { always_asks: true, ..Self::new(store, options) }
    }

    /// What to wait for, within bounds, until the next attempt is worth making.
    pub(crate) fn entrance(&self, outermost: bool) -> Entrance {
        let inner = &self.store.inner;
        let mut entrance = Entrance::default();
        if let Some((rows, conflict)) = self.before.as_ref().and_then(|(rows, why)| Some((rows, why.conflict()?))) {
            // An inner call must not wait for turns, which the outer one may hold, and for a lock only so long: it may be one
            // that the outer one has streamed out. Clients of a shared engine hold nothing of that kind.
            let has_all_waits = outermost || inner.embedded.is_none();
            if has_all_waits || self.history.waited.locks < INNER_WAIT_MAX {
                let rows = if has_all_waits { rows.as_slice() } else { &[] };
                inner.coordinator.line_up(&mut entrance, rows, conflict, self.made + 1);
            }
        }
        if outermost && (self.always_asks || inner.admission.is_guarded()) {
            entrance.ask_permit(&inner.admission, self.began.saturating_add(self.limits.time));
        }
        entrance
    }

    /// Makes an attempt with what [`Attempts::entrance`] led to; `None` when it met a conflict and may be repeated.
    pub(crate) fn run<T, E: From<Error>>(
        &mut self,
        held: Held,
        work: &mut impl FnMut(&mut Txn) -> Result<T, E>,
    ) -> Option<Result<T, E>> {
        let waited = held.waited();
        if !waited.whole().is_zero() {
            self.history.waited.add(waited);
            self.store.inner.counters.waiting.record(waited.whole());
        }
        if let Some((_, conflict)) = self.before.take_if(|_| self.store.since(self.began) >= self.limits.time) {
            return Some(Err(self.give_up(conflict).into()));
        }
        if held.was_turned_away() {
            self.store.inner.counters.unadmitted.add(1);
        }
        self.history.attempts += 1;
        match self.attempt(held, work) {
            Ok((answer, commit_ts)) => {
                self.store.inner.admission.note_commit();
                self.finish(Outcome::Committed(commit_ts));
                Some(Ok(answer))
            }
            Err(Failed::ForGood(why, outcome)) => {
                self.finish(outcome);
                Some(Err(why))
            }
            Err(Failed::Conflict(rows, conflict)) => {
                self.store.inner.admission.note_conflict();
                self.made += 1;
                if let (Some(last), Some(conflict)) = (&self.last, conflict.conflict()) {
                    self.history.met(conflict, last.ended.saturating_sub(last.began));
                }
                if self.made >= self.limits.attempts || self.store.since(self.began) >= self.limits.time {
                    return Some(Err(self.give_up(conflict).into()));
                }
                self.store.inner.counters.retries.add(1);
                event!(DEBUG, attempts = self.made, label = self.options.label, "retry");
                self.before = Some((rows, conflict));
                None
            }
        }
    }

    fn give_up(&mut self, conflict: Error) -> Error {
        self.store.inner.counters.exhausted.add(1);
        event!(WARN, attempts = self.made, label = self.options.label, "gave up");
        if let Some(last) = &mut self.last {
            last.ended = self.store.inner.runtime.elapsed();
        }
        self.finish(Outcome::Conflict);
        exhausted(self.made, conflict)
    }

    /// Looks back at the whole call.
    fn finish(&mut self, outcome: Outcome) {
        let Some(last) = self.last.take() else { return };
        let total = last.ended.saturating_sub(self.began);
        if matches!(outcome, Outcome::Committed(_)) {
            self.store.inner.counters.transact.record(total);
        }
        if self.store.is_slow(total) {
            self.store.log_slow(self.began, &mut self.history, &last, outcome);
        }
    }

    /// [`Attempts::run`] on a thread that is not inside of a `transact`.
    #[cfg(feature = "tokio")]
    pub(crate) fn run_outermost<T, E: From<Error>>(
        &mut self,
        held: Held,
        work: &mut impl FnMut(&mut Txn) -> Result<T, E>,
    ) -> Option<Result<T, E>> {
        let _inside = Inside::enter();
        self.run(held, work)
    }

    fn attempt<T, E: From<Error>>(
        &mut self,
        held: Held,
        work: &mut impl FnMut(&mut Txn) -> Result<T, E>,
    ) -> Result<(T, Timestamp), Failed<E>> {
        span!(DEBUG, "attempt", number = self.history.attempts, label = self.options.label);
        let mut txn = self.store.begin_with(self.options).map_err(for_good)?;
        txn.held = Some(held);
        txn.is_attempt = true;
        if let Some(under) = &self.under {
            under.fence(&mut txn).map_err(for_good)?;
        }
        let outcome = attempt_with(&mut txn, work);
        self.last = Some(txn.last());
        outcome
    }
}

fn attempt_with<T, E: From<Error>>(
    txn: &mut Txn,
    work: &mut impl FnMut(&mut Txn) -> Result<T, E>,
) -> Result<(T, Timestamp), Failed<E>> {
    let conflict = match work(txn) {
        Ok(answer) => match txn.commit_in_place() {
            Ok(commit) => return Ok((answer, commit.ts)),
            Err(why) if why.is_retryable() => why,
            Err(why) if may_be_committed(&why) => return Err(for_good(why)),
            Err(why) => {
                txn.answer_without_commit().map_err(for_good)?;
                return Err(for_good(why));
            }
        },
        Err(why) => {
            let Some(conflict) = txn.conflict_met() else {
                txn.held = None;
                txn.answer_without_commit().map_err(for_good)?;
                return Err(Failed::ForGood(why, Outcome::RolledBack));
            };
            conflict
        }
    };
    Err(Failed::Conflict(txn.rows(), conflict))
}

fn for_good<E: From<Error>>(why: Error) -> Failed<E> {
    let outcome = Outcome::Failed(why.to_string());
    Failed::ForGood(why.into(), outcome)
}

enum Failed<E> {
    /// And what is said of it.
    ForGood(E, Outcome),
    Conflict(Vec<RowKey>, Error),
}

impl Store {
    #[cfg(feature = "tokio")]
    pub(crate) fn elapsed(&self) -> Duration {
        self.inner.runtime.elapsed()
    }

    fn since(&self, began: Duration) -> Duration {
        self.inner.runtime.elapsed().saturating_sub(began)
    }
}

/// Whether the outcome is open, so that there is nothing to wait for.
fn may_be_committed(why: &Error) -> bool {
    matches!(why.kind(), ErrorKind::Undetermined(_) | ErrorKind::Closed(_))
}

fn exhausted(attempts: u32, last: Error) -> Error {
    match last.conflict() {
        Some(conflict) => {
            let conflict: Box<Conflict> = Box::new(conflict.clone());
            ErrorKind::Exhausted { attempts, conflict }.into()
        }
        None => last,
    }
}
