//! The flush thread. In the background it flushes memtables, preallocates the log's next segment,
//! and writes the log's sync record.
//!
//! The last frames before a sync have no later frame as their durability proof, and nothing in the
//! newest segment proves that the segment exists. So the sync record is written when a segment has
//! become the newest, and when nothing was written for a while. Without it, damage to the end of an
//! idle log would pass for a torn tail.
//!
//! The thread ends when the storage is dropped. What it has not flushed stays in the log, and the
//! next opening replays it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use super::flush::flush;
use super::shared::{Shared, WritePath, wal_error};
use crate::disk::Disk;
use crate::engine::EngineError;
use crate::engine::storage::Storage;
use crate::panic_guard::PanicGuard;

/// The log is idle when nothing was written to it for this time.
const IDLE_BEFORE_RECORD: Duration = Duration::from_millis(20);

/// The flush thread. Dropping this stops the thread.
pub struct FlushThread {
    thread: Option<JoinHandle<()>>,
    stopped: Arc<AtomicBool>,
}

impl FlushThread {
    pub fn start<D: Disk, T: Storage>(shared: &Arc<Shared<D, T>>) -> Result<Self, EngineError> {
        let (shared, stopped) = (Arc::clone(shared), Arc::new(AtomicBool::new(false)));
        let stop = Arc::clone(&stopped);
        let work = move || {
            let Some(path) = &shared.write_path else { return };
            // The log would only grow, and no failure of a flush would be found.
            let panicked = || EngineError::Undetermined("the flush thread panicked".into());
            let _guard = PanicGuard::new(|| _ = shared.record_failure(panicked()));
            let mut written = 0;
            while !stop.load(Ordering::Acquire) {
                match run_once(&shared, path, &mut written) {
                    Poll::Again => {}
                    Poll::AfterIdle => std::thread::park_timeout(IDLE_BEFORE_RECORD),
                    Poll::Park => std::thread::park(),
                }
            }
        };
        let started = std::thread::Builder::new().name("percolite-flush".into()).spawn(work);
        let thread = started.map_err(|error| EngineError::Io(format!("cannot start a thread: {error}")))?;
        Ok(Self { thread: Some(thread), stopped })
    }

    pub fn wake(&self) {
        if let Some(thread) = &self.thread {
            thread.thread().unpark();
        }
    }
}

/// What the thread does after a round of work.
#[derive(Debug, PartialEq, Eq)]
pub enum Poll {
    Again,
    AfterIdle,
    Park,
}

/// One round of the thread's work. `written` keeps the log's written sequence from one round to the
/// next: the log is idle if this sequence has not grown.
pub fn run_once<D: Disk, T: Storage>(shared: &Shared<D, T>, path: &WritePath<D>, written: &mut u64) -> Poll {
    let worked = flush(shared, path).and_then(|flushed| {
        if flushed {
            shared.tables.after_flush();
        }
        // A failure needs no handling here: the log keeps it, and returns it from all later calls.
        let _ = path.wal.preallocate_segment();
        let is_needed = path.record_needed.load(Ordering::Acquire);
        let is_idle = is_needed && std::mem::replace(written, path.wal.written_sequence()) == *written;
        if is_idle {
            // A later sync sets this again.
            path.record_needed.store(false, Ordering::Release);
        }
        path.wal.write_sync_record(is_idle).map_err(|error| shared.record_failure(wal_error(error)))?;
        yield_point!();
        Ok(match (is_needed, is_idle) {
            (false, _) => Poll::Park,
            (true, false) => Poll::AfterIdle,
            (true, true) => Poll::Again,
        })
    });
    // The failure is recorded, and writers return it.
    worked.unwrap_or(Poll::Park)
}

impl Drop for FlushThread {
    fn drop(&mut self) {
        self.stopped.store(true, Ordering::Release);
        self.wake();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
