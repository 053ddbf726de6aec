//! The thread that hands generations down, makes the log's next segment ahead, and writes the mark of an idle log.
//!
//! The last frames before a sync have no later frame that witnesses them as durable. When nothing is written for a while, an empty
//! frame does it, so damage to an idle log never passes for a torn tail.
//!
//! The thread ends when the last handle to the storage goes. What is not handed down then is in the log, for the next opening.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use super::{Shared, WritePath, wal_error};
use crate::disk::Disk;
use crate::engine::EngineError;
use crate::engine::storage::Storage;

/// A log is idle when nothing was written to it for so long.
const IDLE_BEFORE_NOOP: Duration = Duration::from_millis(20);

/// See the [module](self).
pub struct FlushThread {
    thread: Option<JoinHandle<()>>,
    stopped: Arc<AtomicBool>,
}

impl FlushThread {
    pub(super) fn start<D: Disk, T: Storage>(shared: &Arc<Shared<D, T>>) -> Result<Self, EngineError> {
        let (shared, is_over) = (Arc::clone(shared), Arc::new(AtomicBool::new(false)));
        let ends = Arc::clone(&is_over);
        let work = move || {
            let Some(life) = &shared.write_path else { return };
            let mut written = 0;
            while !ends.load(Ordering::Acquire) {
                match shared.run_once(life, &mut written) {
                    Poll::Again => {}
                    Poll::AfterIdle => std::thread::park_timeout(IDLE_BEFORE_NOOP),
                    Poll::Park => std::thread::park(),
                }
            }
        };
        let started = std::thread::Builder::new().name("percolite-down".into()).spawn(work);
        let thread = started.map_err(|why| EngineError::Io(format!("cannot start a thread: {why}")))?;
        Ok(Self { thread: Some(thread), stopped: is_over })
    }

    /// There is something to do.
    pub(super) fn wake(&self) {
        if let Some(thread) = &self.thread {
            thread.thread().unpark();
        }
    }
}

/// What the thread does after a round of work.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Poll {
    Again,
    AfterIdle,
    Park,
}

impl<D: Disk, T: Storage> Shared<D, T> {
    /// A round of the thread's work; `written` is up to where the log was written at the round before.
    pub(super) fn run_once(&self, path: &WritePath<D>, written: &mut u64) -> Poll {
        let worked = self.flush(path).and_then(|()| {
            // What fails here ends this life, as any write that fails; the next call says so.
            let _ = path.wal.preallocate_segment();
            if !path.noop_needed.load(Ordering::Acquire) {
                return Ok(Poll::Park);
            }
            let before = std::mem::replace(written, path.wal.written_sequence());
            if before < *written { Ok(Poll::AfterIdle) } else { self.write_noop(path).map(|()| Poll::Again) }
        });
        // A failure has ended this life of the storage, and its writers return it.
        worked.unwrap_or(Poll::Park)
    }

    /// Writes a mark if everything is durable. Its own sync is no reason for another one.
    fn write_noop(&self, path: &WritePath<D>) -> Result<(), EngineError> {
        self.ensure_ok()?;
        let mut leader = path.writer.lock();
        path.noop_needed.store(false, Ordering::Release);
        if path.wal.durable_sequence() < path.wal.written_sequence() {
            // The next sync sets `unmarked` again.
            return Ok(());
        }
        let marked = leader.wal.append_noop();
        drop(leader);
        match marked {
            Ok(None) => Ok(()),
            Ok(Some(_)) => self.sync(),
            Err(why) => Err(self.record_failure(wal_error(why))),
        }
    }
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
