//! Hops: work that may block, on a thread that may.

use std::sync::Arc;

use tokio::runtime::Handle;
use tokio::task::JoinError;

use crate::error::{Error, ErrorKind, Result};
use crate::sync::Mutex;

/// Runs `work` on one of the runtime's blocking threads. A future that is dropped before the work has begun takes it back, with
/// all that it owns; work that has begun goes on to its end. A panic of the work goes on in the caller.
pub(super) async fn run_blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T> {
    let runtime = current_runtime()?;
    let offered = Arc::new(Mutex::new(Some(work)));
    let taken = Arc::clone(&offered);
    // Aborting the task would do, too, but leave what it owns (a permit, say) in the runtime's queue for as long as all
    // its threads are busy.
    let _taken_back_if_dropped = CancelOnDrop(offered);
    let task = runtime.spawn_blocking(move || {
        let work = taken.lock().take();
        work.map(|work| work())
    });
    join_result(task.await)?.ok_or_else(runtime_shut_down)
}

struct CancelOnDrop<W>(Arc<Mutex<Option<W>>>);

impl<W> Drop for CancelOnDrop<W> {
    fn drop(&mut self) {
        // What the work owns is dropped after the lock is free.
        let work = self.0.lock().take();
        drop(work);
    }
}

/// The runtime that polls the caller.
pub(super) fn current_runtime() -> Result<Handle> {
    Handle::try_current().map_err(|_| Error::invalid("an asynchronous store is used outside of a tokio runtime"))
}

/// What a task on a blocking thread has answered.
pub(super) fn join_result<T>(outcome: Result<T, JoinError>) -> Result<T> {
    outcome.map_err(|why| match why.try_into_panic() {
        Ok(panic) => std::panic::resume_unwind(panic),
        Err(_) => runtime_shut_down(),
    })
}

fn runtime_shut_down() -> Error {
    let what = "the tokio runtime was shut down before the call had begun, so it did nothing; the store goes on";
    ErrorKind::Cancelled(what.into()).into()
}
