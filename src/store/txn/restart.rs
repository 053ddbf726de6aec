//! Restarts: what `transact` does between two attempts, for callers that begin and commit
//! themselves.
//!
//! A transaction that conflicts leaves the rows that it wrote, the conflict, and how often and how
//! long its work has been tried. The transaction itself has ended before anything is waited for, so
//! a restart holds nothing that others wait for, and each of its waits has a limit.

use std::error::Error as StdError;
use std::fmt;

use crate::contention::WaitTimes;
use crate::error::{Error, Result};
use crate::row::RowKey;
use crate::store::handle::Store;
use crate::store::options::TxnOptions;
use crate::store::txn::Txn;
use crate::store::txn::outcome::{Commit, Restarts};
use crate::store::txn::retry::RetryLoop;

impl Txn {
    /// [`Txn::commit`], whose failure can be [restarted](FailedCommit::restart). The failure
    /// converts into the error of `commit`, so `?` works as there.
    ///
    /// For engines that drive `begin` and `commit` themselves; others use
    /// [`Store::transact`](crate::Store::transact).
    ///
    /// ```
    /// # fn main() -> percolite::Result<()> {
    /// # let store = percolite::Store::in_memory()?;
    /// # let visits = store.keyspace("visits")?;
    /// let mut txn = store.begin()?;
    /// let commit = loop {
    ///     let seen = txn.get(&visits, "home")?.map_or(0, |value| value[0]);
    ///     txn.put(&visits, "home", [seen + 1])?;
    ///     # if seen == 0 { store.transact(|other| other.put(&visits, "home", [7]))?; }
    ///     match txn.try_commit() {
    ///         Ok(commit) => break commit,
    ///         // Returns every error but a conflict.
    ///         Err(failed) => txn = failed.restart()?,
    ///     }
    /// };
    /// assert!(commit.durable);
    /// # assert_eq!(store.get(&visits, "home")?.as_deref(), Some(&[8][..]));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// Those of [`Txn::commit`].
    pub fn try_commit(mut self) -> Result<Commit, FailedCommit> {
        self.commit_in_place().map_err(|error| FailedCommit(Box::new(Failed { error, ended: self.end() })))
    }

    /// Rolls the transaction back, waits for what it has conflicted on, and begins it again, with
    /// the same options. For a conflict of a read or write, or at any other time before the commit;
    /// after a failed commit use [`FailedCommit::restart`]. A transaction that has met no conflict
    /// waits at most for a permit, and its restart does not count as an attempt.
    ///
    /// The new transaction sees the newest state, and none of the writes,
    /// [savepoints](Txn::savepoint) and [fences](Txn::fence) of the old one: run the whole work
    /// again. What the old one has read stays provisional: the call waits for no sync.
    ///
    /// **Waits** are those of [`Store::transact`](crate::Store::transact) between two attempts: a
    /// second at most for the front of the queues of the rows that were written, 100 ms for the
    /// release of a row lock, a second for a permit while there are conflicts. When its time is
    /// over, a wait is given up and the transaction begins in any case. The
    /// [`RetryPolicy`](crate::RetryPolicy) limits the attempts, and the time since the first
    /// `begin`.
    ///
    /// **Fairness.** The new transaction keeps its places in the row queues, and its permit, until
    /// its commit is visible or it ends. Others that retry on these rows wait for it, a second at
    /// most each. So call this when the work can run, not while a client thinks. Do not restart a
    /// transaction, or call `transact`, for the same rows on the thread that has to end this one:
    /// that call waits for a second, and then goes on. Inside of `transact` a restart waits for row
    /// locks only. [`Store::begin`](crate::Store::begin) waits for nothing.
    ///
    /// # Errors
    /// [`ErrorKind::RetriesExhausted`](crate::ErrorKind::RetriesExhausted), with the last conflict,
    /// once the limits of the retry policy are reached; those of
    /// [`Store::begin_with`](crate::Store::begin_with). The transaction is rolled back either way.
    pub fn restart(self) -> Result<Txn> {
        let conflict = self.conflict_met();
        self.end().begin_again(conflict)
    }

    /// Ends the transaction; if it is not committed, it is rolled back.
    fn end(self) -> EndedTxn {
        let first = Restarts { began: self.reader.started_at, made: 0, waited: WaitTimes::default() };
        EndedTxn {
            store: self.store.clone(),
            options: self.options,
            rows: self.written_rows(),
            before: self.restarts.unwrap_or(first),
        }
    }
}

/// A commit that failed, and what is needed to begin its transaction again (FoundationDB:
/// `on_error`): from [`Txn::try_commit`]. The transaction has ended; of it remain the keys that it
/// wrote, in memory, and a handle that keeps the store open. It may be kept until the client asks
/// for the next attempt, sent to other threads, and dropped at any time.
pub struct FailedCommit(Box<Failed>);

struct Failed {
    error: Error,
    ended: EndedTxn,
}

/// What is needed to begin a transaction again.
struct EndedTxn {
    store: Store,
    options: TxnOptions,
    /// The rows that the transaction wrote.
    rows: Vec<RowKey>,
    before: Restarts,
}

impl EndedTxn {
    fn begin_again(self, conflict: Option<Error>) -> Result<Txn> {
        let mut attempts = RetryLoop::after(&self.store, self.options, self.before);
        if let Some(conflict) = conflict {
            attempts.plan_retry(self.rows, conflict)?;
        }
        attempts.begin_again()
    }
}

impl FailedCommit {
    /// Why the commit failed: see [`Txn::commit`].
    pub fn error(&self) -> &Error {
        &self.0.error
    }

    /// After a conflict: waits for what the transaction conflicted on, and begins it again. Waits,
    /// limits and consequences are those of [`Txn::restart`].
    ///
    /// The call blocks. In asynchronous code use it inside of `AsyncStore::run_blocking`.
    ///
    /// # Errors
    /// The error of the commit, unless it is a conflict; those of [`Txn::restart`].
    pub fn restart(self) -> Result<Txn> {
        let Failed { error, ended } = *self.0;
        if error.is_retryable() { ended.begin_again(Some(error)) } else { Err(error) }
    }
}

impl From<FailedCommit> for Error {
    fn from(failed: FailedCommit) -> Self {
        failed.0.error
    }
}

impl fmt::Debug for FailedCommit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FailedCommit").field("error", &self.0.error).finish_non_exhaustive()
    }
}

impl fmt::Display for FailedCommit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.error.fmt(f)
    }
}

impl StdError for FailedCommit {}
