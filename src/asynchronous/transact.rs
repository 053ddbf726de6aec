//! `transact` for tasks: each attempt runs on a blocking thread, and the waits between them need no
//! thread.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use futures_timer::Delay;

use super::AsyncStore;
use super::blocking::run_blocking;
use crate::contention::{AdmissionWait, AttemptGuard, WaitAction};
use crate::error::{Error, ErrorKind, Result};
use crate::store::{Commit, RetryLoop, Txn, TxnOptions};
use crate::waiter::Waiter;

impl AsyncStore {
    /// Runs `work` as a transaction and commits it. Like [`Store::transact`], the call repeats the
    /// transaction after a conflict, with the same isolation, durability and limits.
    ///
    /// Each attempt runs on one of the runtime's blocking threads, from its begin until its commit
    /// is durable. A wait for the row queue, for the release of a row lock or for admission needs
    /// no thread.
    ///
    /// **Cancellation.** If the future is dropped before an attempt has begun, nothing more
    /// happens. If an attempt is running, it is rolled back unless its commit has begun. A commit
    /// that has begun is not undone: it completes, and its result is not reported. In each case no
    /// row lock, permit or row-queue ticket is left.
    ///
    /// To limit the time, use a [`RetryPolicy`](crate::RetryPolicy): when its time is over, the
    /// call still returns a result. A timeout around the future drops the future, and with it the
    /// result, even that of a commit that has begun.
    ///
    /// A panic of the closure rolls the transaction back, and is resumed in the task that awaits.
    /// The closure may call `transact` of the [`Store`] for another transaction. The closure must
    /// not wait for other work of the runtime: that work may wait, for a second at most, for the
    /// permit that this attempt has.
    ///
    /// # Errors
    /// Those of [`Store::transact`]. [`Cancelled`](crate::ErrorKind::Cancelled) if the runtime is
    /// shut down before an attempt has begun.
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument) outside of a runtime.
    ///
    /// # Panics
    /// If the closure does.
    ///
    /// [`Store`]: crate::Store
    /// [`Store::transact`]: crate::Store::transact
    pub async fn transact<T, E, F>(&self, work: F) -> Result<T, E>
    where
        F: FnMut(&mut Txn) -> Result<T, E> + Send + 'static,
        T: Send + 'static,
        E: From<Error> + Send + 'static,
    {
        self.transact_with(TxnOptions::default(), work).await
    }

    /// [`AsyncStore::transact`] with options.
    ///
    /// # Errors
    /// Those of [`AsyncStore::transact`].
    ///
    /// # Panics
    /// If the closure does.
    pub async fn transact_with<T, E, F>(&self, options: TxnOptions, work: F) -> Result<T, E>
    where
        F: FnMut(&mut Txn) -> Result<T, E> + Send + 'static,
        T: Send + 'static,
        E: From<Error> + Send + 'static,
    {
        self.transact_with_commit(options, work).await.map(|(answer, _)| answer)
    }

    /// [`Store::transact_with_commit`](crate::Store::transact_with_commit): as
    /// [`AsyncStore::transact_with`], and also returns the commit.
    ///
    /// # Errors
    /// Those of [`AsyncStore::transact`].
    ///
    /// # Panics
    /// If the closure does.
    pub async fn transact_with_commit<T, E, F>(&self, options: TxnOptions, work: F) -> Result<(T, Commit), E>
    where
        F: FnMut(&mut Txn) -> Result<T, E> + Send + 'static,
        T: Send + 'static,
        E: From<Error> + Send + 'static,
    {
        self.run_attempts(RetryLoop::for_task(&self.store, options), work).await
    }

    pub(super) async fn run_attempts<T, E, F>(&self, mut attempts: RetryLoop, mut work: F) -> Result<(T, Commit), E>
    where
        F: FnMut(&mut Txn) -> Result<T, E> + Send + 'static,
        T: Send + 'static,
        E: From<Error> + Send + 'static,
    {
        // This reference is dropped with the future. A running attempt has only a weak one; if this
        // one is gone when the closure returns, the attempt rolls back.
        let awaited = Arc::new(());
        loop {
            let held = self.wait_admission(attempts.admission_wait(true)).await?;
            let awaited = Arc::downgrade(&awaited);
            let attempt = move || {
                let answer = attempts.run_outermost(held, &mut |txn: &mut Txn| {
                    let answer = work(txn)?;
                    if awaited.strong_count() == 0 {
                        let what = "the future of the transaction was dropped, so the transaction was rolled back";
                        return Err(Error::from(ErrorKind::Cancelled(what.into())).into());
                    }
                    Ok(answer)
                });
                (answer, attempts, work)
            };
            let answer;
            (answer, attempts, work) = run_blocking(attempt).await?;
            if let Some(answer) = answer {
                return answer;
            }
        }
    }

    async fn wait_admission(&self, mut wait: AdmissionWait) -> Result<AttemptGuard> {
        while let Some(step) = wait.poll(self.store.elapsed(), &Waiter::of_task) {
            match step {
                // The next poll checks whether the notification came in time.
                WaitAction::Wait(waiter, at_most) => notified_timeout(&waiter, Some(at_most)).await,
                WaitAction::Run(job) => run_blocking(job).await?,
            }
        }
        Ok(wait.finish())
    }
}

/// Waits until the waiter is notified or `at_most` has passed. The timer is not one of tokio: that
/// would panic in a runtime without a time driver, and there is no way to check for the driver.
pub(super) async fn notified_timeout(waiter: &Waiter, at_most: Option<Duration>) {
    let Some(at_most) = at_most else { return waiter.notified().await };
    let (mut notified, mut too_late) = (pin!(waiter.notified()), pin!(Delay::new(at_most)));
    poll_fn(|context| {
        let is_over = notified.as_mut().poll(context).is_ready() || too_late.as_mut().poll(context).is_ready();
        if is_over { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}
