//! The thread that hands generations down, and makes the log's next segment ahead.
//!
//! It ends when the last handle to the storage goes. What is not handed down then is in the log, for the next opening.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use super::Shared;
use crate::disk::Disk;
use crate::engine::EngineError;
use crate::engine::storage::Storage;

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
            while !ends.load(Ordering::Acquire) {
                // A failure has ended this life of the storage, and its writers say so.
                if shared.hand_down().is_ok() {
                    let _ = shared.syncer.prepare();
                }
                std::thread::park();
            }
        };
        let started = std::thread::Builder::new().name("percolite-down".into()).spawn(work);
        let thread = started.map_err(|why| EngineError::Open(format!("cannot start a thread: {why}")))?;
        Ok(Self { thread: Some(thread), is_over })
    }

    /// There is something to hand down.
    pub(super) fn wake(&self) {
        if let Some(thread) = &self.thread {
            thread.thread().unpark();
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
