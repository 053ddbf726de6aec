//! `transact`, with a hop for each attempt and none for the waiting between them.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use futures_timer::Delay;

use super::AsyncStore;
use super::hop::run_blocking;
use crate::error::{Error, ErrorKind, Result};
use crate::pipeline::{AdmissionWait, AttemptGuard, WaitAction};
use crate::store::{RetryLoop, Txn, TxnOptions};
use crate::waiter::Waiter;

impl AsyncStore {
    /// Runs `work` as a transaction and commits it, again and again until it commits, as [`Store::transact`] does and with
    /// the same isolation, durability and bounds. Each attempt, from its beginning until its commit is durable, runs on one of
    /// the runtime's blocking threads; for its rows' turn, for a row lock to go and for its admission the task waits without
    /// one.
    ///
    /// **Cancellation.** A future that is dropped before an attempt has begun does nothing more; if an attempt runs, it is rolled
    /// back unless its commit has begun. A commit that has begun is not undone: it goes on to its end, and nobody is told how it
    /// ended. Either way no row lock, permit or turn is left behind. To wait only so long, give
    /// [`RetryPolicy`](crate::RetryPolicy) rather than a timeout: then you are told.
    ///
    /// A panic of the closure rolls back and goes on in the task that awaits. The closure may call `transact` of the
    /// [`Store`] for a transaction of its own; it must not wait for the runtime to run something else, which may in turn wait
    /// for its permit (for a second at most).
    ///
    /// # Errors
    /// Those of [`Store::transact`]; and [`Stopped`](crate::ErrorKind::Cancelled) when the runtime is shut down before an attempt has
    /// begun, [`InvalidArgument`](crate::ErrorKind::InvalidArgument) outside of a runtime.
    ///
    /// # Panics
    /// When the closure does.
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

    /// [`AsyncStore::transact`] with options of its own.
    ///
    /// # Errors
    /// Those of [`AsyncStore::transact`].
    ///
    /// # Panics
    /// As [`AsyncStore::transact`] does.
    pub async fn transact_with<T, E, F>(&self, options: TxnOptions, work: F) -> Result<T, E>
    where
        F: FnMut(&mut Txn) -> Result<T, E> + Send + 'static,
        T: Send + 'static,
        E: From<Error> + Send + 'static,
    {
        self.run_attempts(RetryLoop::for_task(&self.store, options), work).await
    }

    pub(super) async fn run_attempts<T, E, F>(&self, mut attempts: RetryLoop, mut work: F) -> Result<T, E>
    where
        F: FnMut(&mut Txn) -> Result<T, E> + Send + 'static,
        T: Send + 'static,
        E: From<Error> + Send + 'static,
    {
        // Lives as long as this future.
        let awaited = Arc::new(());
        loop {
            let held = self.wait_admission(attempts.admission_wait(true)).await?;
            let awaited = Arc::downgrade(&awaited);
            let attempt = move || {
                let answer = attempts.run_outermost(held, &mut |txn: &mut Txn| {
                    let answer = work(txn)?;
                    if awaited.strong_count() == 0 {
                        let what = "the transaction's future was dropped, so it was rolled back";
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

    async fn wait_admission(&self, mut entrance: AdmissionWait) -> Result<AttemptGuard> {
        while let Some(step) = entrance.poll(self.store.elapsed(), &Waiter::of_task) {
            match step {
                // Whether it came in time is for the entrance to see.
                WaitAction::Wait(waiter, at_most) => notified_timeout(&waiter, Some(at_most)).await,
                WaitAction::Run(job) => run_blocking(job).await?,
            }
        }
        Ok(entrance.finish())
    }
}

/// Waits for the event, but only so long. The timer is no runtime's: that of tokio panics in one whose time is not enabled, and cannot
/// be asked for it.
pub(super) async fn notified_timeout(waiter: &Waiter, at_most: Option<Duration>) {
    let Some(at_most) = at_most else { return waiter.notified().await };
    let (mut notified, mut too_late) = (pin!(waiter.notified()), pin!(Delay::new(at_most)));
    poll_fn(|context| {
        let is_over = notified.as_mut().poll(context).is_ready() || too_late.as_mut().poll(context).is_ready();
        if is_over { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}
