//! `transact`, with a hop for each attempt and none for the waiting between them.

use std::sync::Arc;

use super::AsyncStore;
use super::hop::hop;
use crate::error::{Error, Result};
use crate::pipeline::{Entrance, Held, Step, Waiter};
use crate::store::{Attempts, Txn, TxnOptions};

impl AsyncStore {
    /// Runs `work` as a transaction and commits it, again and again until it commits, as [`Store::transact`] does and with
    /// the same isolation, durability and bounds. Each attempt, from its beginning until its commit is durable, runs on one of
    /// the runtime's blocking threads; for its rows' turn, for a row's lock to go and for its admission the task waits without
    /// one.
    ///
    /// **Cancellation.** A future that is dropped before an attempt has begun does nothing more; if an attempt runs, it is rolled
    /// back unless its commit has begun. A commit that has begun is not undone: it goes on to its end, and nobody is told how it
    /// ended. Either way no lock, permit or turn is left behind. To wait only so long, give
    /// [`RetryLimits`](crate::RetryLimits) rather than a timeout: then you are told.
    ///
    /// A panic of the closure rolls back and goes on in the task that awaits. The closure may call `transact` of the
    /// [`Store`] for a transaction of its own; it must not wait for the runtime to run something else, which may in turn wait
    /// for its permit (for a second at most).
    ///
    /// # Errors
    /// Those of [`Store::transact`]; and [`Closed`](crate::ErrorKind::Closed) when the runtime is shut down before an attempt has
    /// begun, [`InvalidArgument`](crate::ErrorKind::InvalidArgument) outside of a runtime.
    ///
    /// # Panics
    /// When the closure does, and in a runtime whose time is not enabled.
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
    pub async fn transact_with<T, E, F>(&self, options: TxnOptions, mut work: F) -> Result<T, E>
    where
        F: FnMut(&mut Txn) -> Result<T, E> + Send + 'static,
        T: Send + 'static,
        E: From<Error> + Send + 'static,
    {
        // Lives as long as this future.
        let awaited = Arc::new(());
        let mut attempts = Attempts::of_task(&self.store, options);
        loop {
            let held = self.enter(attempts.entrance(true)).await?;
            let awaited = Arc::downgrade(&awaited);
            let attempt = move || {
                let answer = attempts.run_outermost(held, &mut |txn: &mut Txn| {
                    let answer = work(txn)?;
                    if awaited.strong_count() == 0 {
                        return Err(Error::closed("nobody awaits the transaction any more").into());
                    }
                    Ok(answer)
                });
                (answer, attempts, work)
            };
            let answer;
            (answer, attempts, work) = hop(attempt).await?;
            if let Some(answer) = answer {
                return answer;
            }
        }
    }

    async fn enter(&self, mut entrance: Entrance) -> Result<Held> {
        while let Some(step) = entrance.step(self.store.elapsed(), &Waiter::of_task) {
            match step {
                // Whether it came in time is for the entrance to see.
                Step::Wait(waiter, at_most) => drop(tokio::time::timeout(at_most, waiter.notified()).await),
                Step::Do(job) => hop(job).await?,
            }
        }
        Ok(entrance.enter())
    }
}
