//! Runs work that may block, on the blocking threads of tokio.

use std::sync::Arc;

use tokio::task::JoinError;

#[cfg(feature = "crashtest")]
pub(super) use scheduled::{JoinHandle, spawn_blocking};
#[cfg(not(feature = "crashtest"))]
pub(super) use tokio::task::JoinHandle;

use crate::error::{Error, ErrorKind, Result};
use crate::sync::Mutex;

/// Runs `work` on one of the runtime's blocking threads. If the future is dropped before the work
/// has started, the work is dropped with all that it owns. Work that has started runs to its end.
/// A panic of the work is resumed in the caller.
pub(super) async fn run_blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T> {
    let offered = Arc::new(Mutex::new(Some(work)));
    let taken = Arc::clone(&offered);
    // If this future is dropped before the work has started, the work is dropped here. Aborting the
    // task instead would keep what the work owns, for example a permit, in the runtime's queue
    // until one of its threads is free.
    let _taken_back_if_dropped = CancelOnDrop(offered);
    let task = spawn_blocking(move || {
        let work = taken.lock().take();
        work.map(|work| work())
    })?;
    join_result(task.await)?.ok_or_else(runtime_shut_down)
}

struct CancelOnDrop<W>(Arc<Mutex<Option<W>>>);

impl<W> Drop for CancelOnDrop<W> {
    fn drop(&mut self) {
        // The mutex is unlocked first: dropping the work runs the destructors of what it owns,
        // which may be any code.
        let work = self.0.lock().take();
        drop(work);
    }
}

/// Starts work on one of the blocking threads of the runtime that polls the caller.
#[cfg(not(feature = "crashtest"))]
pub(super) fn spawn_blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<JoinHandle<T>> {
    let runtime = tokio::runtime::Handle::try_current();
    let runtime = runtime.map_err(|_| Error::invalid("AsyncStore requires a tokio runtime"))?;
    Ok(runtime.spawn_blocking(work))
}

/// In crash tests the harness's scheduler runs the work in place of tokio, so that a seed, or a
/// choice, decides when.
#[cfg(feature = "crashtest")]
mod scheduled {
    use std::pin::{Pin, pin};
    use std::sync::Arc;
    use std::task::{Context, Poll, ready};

    use tokio::task::JoinError;

    use crate::error::Result;
    use crate::sync::Mutex;
    use crate::waiter::Waiter;

    pub struct JoinHandle<T> {
        answer: Arc<Mutex<Option<T>>>,
        ended: Arc<Waiter>,
    }

    #[allow(clippy::unnecessary_wraps, reason = "as with tokio")]
    pub fn spawn_blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<JoinHandle<T>> {
        let (answer, ended) = (Arc::new(Mutex::new(None)), Waiter::of_task());
        let task = JoinHandle { answer: Arc::clone(&answer), ended: Arc::clone(&ended) };
        crate::crashtest::run_blocking(Box::new(move || {
            let found = work();
            *answer.lock() = Some(found);
            ended.notify();
        }));
        Ok(task)
    }

    impl<T> Future for JoinHandle<T> {
        type Output = std::result::Result<T, JoinError>;

        fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
            ready!(pin!(self.ended.notified()).poll(context));
            let answer = self.answer.lock().take();
            answer.map_or(Poll::Pending, |answer| Poll::Ready(Ok(answer)))
        }
    }
}

/// The result of a task that `spawn_blocking` has started. A panic of the task is resumed here. A
/// task that never ran, because the runtime was shut down, is an error.
pub(super) fn join_result<T>(outcome: Result<T, JoinError>) -> Result<T> {
    outcome.map_err(|error| match error.try_into_panic() {
        Ok(panic) => std::panic::resume_unwind(panic),
        Err(_) => runtime_shut_down(),
    })
}

fn runtime_shut_down() -> Error {
    let what = "the tokio runtime was shut down before the call started, so it had no effect; the store is still open";
    ErrorKind::Cancelled(what.into()).into()
}
