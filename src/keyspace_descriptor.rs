//! What transactions share about a keyspace: its name and whether it was dropped.
//!
//! The commit leader rejects changes to a dropped keyspace. A drop marks the descriptor before it
//! commits, so no commit to the keyspace can follow the commit of the drop.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::sync::Mutex;

/// The name of a keyspace and whether it was dropped, shared by its handles and by the commits that
/// write to it.
pub struct KeyspaceDescriptor {
    /// The current name.
    name: Mutex<Arc<str>>,
    dropped: AtomicBool,
}

impl KeyspaceDescriptor {
    pub fn new(name: &str) -> Arc<Self> {
        Arc::new(Self { name: Mutex::new(name.into()), dropped: AtomicBool::new(false) })
    }

    pub fn name(&self) -> Arc<str> {
        Arc::clone(&self.name.lock())
    }

    pub fn rename(&self, name: &str) {
        *self.name.lock() = name.into();
    }

    pub fn is_dropped(&self) -> bool {
        self.dropped.load(Ordering::Acquire)
    }

    /// Marks the keyspace as dropped. Returns `false` if it was marked already.
    pub fn mark_dropped(&self) -> bool {
        !self.dropped.swap(true, Ordering::AcqRel)
    }

    /// Undoes [`Self::mark_dropped`] after a drop that did not commit.
    pub fn undrop(&self) {
        self.dropped.store(false, Ordering::Release);
    }
}
