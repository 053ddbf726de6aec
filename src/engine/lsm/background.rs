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

use super::{Life, Shared, failed};
use crate::disk::Disk;
use crate::engine::EngineError;
use crate::engine::storage::Storage;

/// A log is idle when nothing was written to it for so long.
const IDLE: Duration = Duration::from_millis(20);

/// See the [module](self).
pub struct Worker {
    thread: Option<JoinHandle<()>>,
    is_over: Arc<AtomicBool>,
}

impl Worker {
    pub(super) fn start<D: Disk, T: Storage>(shared: &Arc<Shared<D, T>>) -> Result<Self, EngineError> {
        let (shared, is_over) = (Arc::clone(shared), Arc::new(AtomicBool::new(false)));
        let ends = Arc::clone(&is_over);
        let work = move || {
            let Some(life) = &shared.life else { return };
            let mut written = 0;
            while !ends.load(Ordering::Acquire) {
                match shared.work(life, &mut written) {
                    Next::Work => {}
                    Next::LookWhetherIdle => std::thread::park_timeout(IDLE),
                    Next::Wait => std::thread::park(),
                }
            }
        };
        let started = std::thread::Builder::new().name("percolite-down".into()).spawn(work);
        let thread = started.map_err(|why| EngineError::Open(format!("cannot start a thread: {why}")))?;
        Ok(Self { thread: Some(thread), is_over })
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
pub(super) enum Next {
    Work,
    LookWhetherIdle,
    Wait,
}

impl<D: Disk, T: Storage> Shared<D, T> {
    /// A round of the thread's work; `written` is up to where the log was written at the round before.
    pub(super) fn work(&self, life: &Life<D>, written: &mut u64) -> Next {
        let worked = self.hand_down(life).and_then(|()| {
            // What fails here ends this life, as any write that fails; the next call says so.
            let _ = life.syncer.prepare();
            if !life.unmarked.load(Ordering::Acquire) {
                return Ok(Next::Wait);
            }
            let before = std::mem::replace(written, life.syncer.written());
            if before < *written { Ok(Next::LookWhetherIdle) } else { self.mark(life).map(|()| Next::Work) }
        });
        // A failure has ended this life of the storage, and its writers return it.
        worked.unwrap_or(Next::Wait)
    }

    /// Writes a mark if everything is durable. Its own sync is no reason for another one.
    fn mark(&self, life: &Life<D>) -> Result<(), EngineError> {
        self.check()?;
        let mut leader = life.leader.lock();
        life.unmarked.store(false, Ordering::Release);
        if life.syncer.durable() < life.syncer.written() {
            // The next sync sets `unmarked` again.
            return Ok(());
        }
        let marked = leader.log.mark();
        drop(leader);
        match marked {
            Ok(None) => Ok(()),
            Ok(Some(_)) => self.sync(),
            Err(why) => Err(self.fail(failed(why))),
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Release);
        self.wake();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
