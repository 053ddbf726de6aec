//! The background worker: one thread for the sweep, lock cleanup, garbage collection and tasks of
//! the store.
//!
//! The thread works in rounds. Each round does a page of the sweep, some pages of lock cleanup, a
//! page of garbage collection and every task, so that none of them delays the others for long. If
//! no page is left to do, the thread parks until it is woken or the idle interval ends. Garbage
//! collection begins a new pass at most once per idle interval.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::super::BackgroundTask;
use super::cleanup::Cleanup;
use super::gc::Gc;
use super::history::History;
use super::rows::Rows;
use super::sweep::Sweep;
use super::waker::BackgroundWaker;
use crate::env::JoinHandle;
use crate::error::{Error, ErrorKind, Result};
use crate::panic_guard::PanicGuard;
use crate::sync::Mutex;
use crate::tunables::CLEANUP_PAGES_PER_ROUND;

/// The pause between two rounds. Buffered commits are synced once in a round, and so may be lost
/// for about this long.
const IDLE_INTERVAL: Duration = Duration::from_millis(500);

/// What the thread needs for its work.
pub struct BackgroundWork {
    pub rows: Arc<Rows>,
    pub history: Arc<History>,
    pub cleanup: Arc<Cleanup>,
    pub waker: Arc<BackgroundWaker>,
    /// Whether to run the sweep of orphan locks.
    pub resolve: bool,
    /// Tasks of the store, run in each round.
    pub tasks: Vec<BackgroundTask>,
}

/// The running thread.
pub struct BackgroundWorker {
    waker: Arc<BackgroundWaker>,
    stopping: Arc<AtomicBool>,
    thread: Mutex<Option<Box<dyn JoinHandle>>>,
}

impl BackgroundWorker {
    pub fn start(work: BackgroundWork) -> Result<Self> {
        let (waker, stopping) = (Arc::clone(&work.waker), Arc::new(AtomicBool::new(false)));
        let rows = Arc::clone(&work.rows);
        let own_stopping = Arc::clone(&stopping);
        let run = move || work.run(&own_stopping);
        let thread = rows
            .pipeline
            .env()
            .spawn("percolite-bg", Box::new(run))
            .map_err(|error| Error::from(ErrorKind::Io(format!("cannot start a thread: {error}"))))?;
        Ok(Self { waker, stopping, thread: Mutex::new(Some(thread)) })
    }

    /// Stops the thread after its current round, in which at most one more page of lock cleanup
    /// begins. Joins the thread.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
        self.waker.wake();
        let thread = self.thread.lock().take();
        if let Some(thread) = thread {
            thread.join();
        }
    }
}

impl BackgroundWork {
    fn run(self, stopping: &AtomicBool) {
        // Buffered commits would never become durable, and large transactions would keep locks.
        let failure = self.rows.pipeline.failure();
        let _guard =
            PanicGuard::new(|| _ = failure.poison(ErrorKind::Io("the background worker panicked".into()).into()));
        let env = self.rows.pipeline.env();
        let parker = env.parker();
        self.waker.set(Arc::clone(&parker));
        let (mut sweep, mut gc) = (self.resolve.then(Sweep::default), Gc::default());
        let mut next_gc = Duration::ZERO;
        while !stopping.load(Ordering::Acquire) {
            // An error of one kind of work does not stop the others. Either the store has failed
            // anyway, or a row or an entry is damaged, which `Store::verify` reports.
            let mut more = self.sweep(&mut sweep);
            more |= self.clean_up(stopping);
            if gc.is_running() || env.elapsed() >= next_gc {
                let collected = gc.page(&self.rows, &self.history);
                more |= collected.inspect_err(|error| self.log_failure("gc", error)).is_ok() && gc.is_running();
                // Passes are spaced, because every new pass scans the RocksDB tombstones at the
                // beginning of the GC queue.
                next_gc = env.elapsed() + IDLE_INTERVAL;
            }
            for (name, task) in &self.tasks {
                let _ = task().inspect_err(|error| self.log_failure(name, error));
            }
            // The flag is checked again: `stop` sets it and then wakes the thread, but a task may
            // have consumed that wake-up.
            if !more && !stopping.load(Ordering::Acquire) {
                parker.park(Some(IDLE_INTERVAL));
            }
        }
    }

    /// Runs a page of the sweep; returns whether there is more.
    fn sweep(&self, sweep: &mut Option<Sweep>) -> bool {
        let Some(current) = sweep else { return false };
        match current.page(&self.rows) {
            Ok(page) => {
                if page.is_last {
                    *sweep = None;
                }
                !page.is_last
            }
            Err(error) => {
                self.log_failure("resolve_orphans", &error);
                false
            }
        }
    }

    /// Runs some pages of lock cleanup; returns whether there may be more.
    fn clean_up(&self, stopping: &AtomicBool) -> bool {
        let mut more = false;
        for _ in 0..CLEANUP_PAGES_PER_ROUND {
            // After an error, cleanup goes on in the next round.
            let page = self.cleanup.page(&self.rows).inspect_err(|error| self.log_failure("cleanup", error));
            if !page.unwrap_or(false) || stopping.load(Ordering::Acquire) {
                break;
            }
            more = true;
        }
        more
    }

    /// Reports an error, since there is no caller to return it to. Once the store is closed or has
    /// failed, nothing is reported.
    #[cfg_attr(not(feature = "tracing"), allow(unused_variables, reason = "for the event alone"))]
    fn log_failure(&self, task: &str, error: &Error) {
        if self.rows.pipeline.failure().reason().is_none() && !matches!(error.kind(), ErrorKind::Closed(_)) {
            event!(WARN, task, error = %error, "background work failed");
        }
    }
}
