//! `transact`: run a closure as a transaction until it commits.
//!
//! The transaction itself remembers that it met a conflict, so the closure may turn errors into its own type, wrap them
//! or swallow them. A retry first takes its turn for the rows of the attempt before; see [`crate::pipeline::Turns`].

use std::cell::Cell;
use std::time::Duration;

use super::{Store, Txn, TxnOptions};
use crate::error::{Conflict, Error, ErrorKind, Result};
use crate::pipeline::Held;
use crate::row::RowKey;

thread_local! {
    /// How many `transact` calls this thread is inside of. An inner one must not wait for what an outer one holds.
    static DEPTH: Cell<usize> = const { Cell::new(0) };
}

struct Inside;

impl Inside {
    /// Enters; the answer tells whether this is the outermost call.
    fn enter() -> (Self, bool) {
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
    /// both write makes the outer one conflict at every attempt. A closure that waits for a `transact` of another thread
    /// may have to wait a second longer, when as many attempts run as [`Builder::admission`](super::Builder::admission)
    /// lets in.
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
        let limits = options.retry.unwrap_or(self.inner.options.retry);
        let began = self.inner.runtime.elapsed();
        let mut before: Option<(Vec<RowKey>, Error)> = None;
        for attempt in 1.. {
            let held = self.admit(before.as_ref(), attempt, outermost, limits.time.saturating_sub(self.since(began)));
            if let Some((_, conflict)) = before.take_if(|_| self.since(began) >= limits.time) {
                return Err(exhausted(attempt - 1, conflict).into());
            }
            let mut txn = self.begin_with(options)?;
            txn.held = held;
            let worked = work(&mut txn);
            let conflict = match worked {
                Ok(answer) => match txn.commit_in_place() {
                    Ok(_) => return Ok(answer),
                    Err(why) if why.is_retryable() => why,
                    Err(why) if may_be_committed(&why) => return Err(why.into()),
                    Err(why) => {
                        txn.answer_without_commit()?;
                        return Err(why.into());
                    }
                },
                Err(why) => {
                    let Some(conflict) = txn.conflict_met() else {
                        txn.held = None;
                        txn.answer_without_commit()?;
                        return Err(why);
                    };
                    conflict
                }
            };
            let rows = txn.rows();
            drop(txn);
            if attempt >= limits.attempts || self.since(began) >= limits.time {
                return Err(exhausted(attempt, conflict).into());
            }
            self.inner.counters.retries.add(1);
            before = Some((rows, conflict));
        }
        Err(Error::invalid("there are no attempts left").into())
    }

    fn since(&self, began: Duration) -> Duration {
        self.inner.runtime.elapsed().saturating_sub(began)
    }

    /// Waits, within bounds, until an attempt is worth making; what it answers is held meanwhile.
    fn admit(
        &self,
        before: Option<&(Vec<RowKey>, Error)>,
        attempt: u32,
        outermost: bool,
        patience: Duration,
    ) -> Option<Held> {
        // Clients of a shared engine hold nothing that an inner call could wait for.
        if !outermost && self.inner.embedded.is_some() {
            return None;
        }
        let turns = match before.and_then(|(rows, why)| Some((rows, why.conflict()?))) {
            Some((rows, conflict)) => self.inner.coordinator.wait_turn(rows, conflict, attempt),
            None => Vec::new(),
        };
        let permit = if outermost { self.inner.admission.enter(&*self.inner.runtime, patience) } else { None };
        if outermost && permit.is_none() {
            self.inner.counters.unadmitted.add(1);
        }
        Some(Held::new(turns, permit))
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
