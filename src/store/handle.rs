//! The handle of a store, and the state that all its handles share.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::contention::AdmissionController;
use crate::coordinator::read_only::read_only_error;
use crate::coordinator::{Coordinator, LockAuthority};
use crate::engine::Engine;
use crate::env::Env;
use crate::error::{Error, Result};
use crate::observe::Metrics;
use crate::process::Process;
use crate::store::catalog::handles::Catalog;
use crate::store::introspect::monitor::TxnMonitor;
use crate::store::named_locks::errors::locks_unsupported_error;
use crate::store::named_locks::state::NamedLocks;
use crate::store::options::Options;
use crate::store::read::row_reader::RowReader;
use crate::timestamp::Timestamp;

/// The instance id of the next store that this process opens. Each opened store gets an id of its
/// own.
static NEXT_INSTANCE_ID: AtomicU64 = AtomicU64::new(0);

pub(in crate::store) fn next_instance_id() -> u64 {
    NEXT_INSTANCE_ID.fetch_add(1, Ordering::Relaxed)
}

/// A transactional key-value store with snapshot isolation. Cheap to clone; clones are the same
/// store.
///
/// The store closes when the last of its clones, transactions, snapshots and scans is dropped, or
/// by [`Store::close`]. Keyspace handles do not keep it open.
///
/// ```
/// # fn main() -> percolite::Result<()> {
/// let store = percolite::Store::in_memory()?;
/// let accounts = store.keyspace("accounts")?;
/// store.transact(|txn| {
///     txn.put(&accounts, b"alice", b"100")?;
///     txn.put(&accounts, b"bob", b"50")
/// })?;
/// assert_eq!(store.get(&accounts, b"alice")?.as_deref(), Some(&b"100"[..]));
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Store {
    pub(in crate::store) inner: Arc<Inner>,
    /// `None` in a handle that must not keep the store open, such as that of the background worker.
    _open: Option<Arc<CloseOnDrop>>,
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner { instance_id, options, .. } = &*self.inner;
        let mut store = f.debug_struct("Store");
        store.field("instance_id", instance_id).field("read_only", &options.read_only).finish_non_exhaustive()
    }
}

/// Closes the store when its last handle is dropped.
struct CloseOnDrop(Arc<Inner>);

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        if !self.0.process.is_surely_current() {
            // Nothing of the store is dropped in a child process.
            std::mem::forget(Arc::clone(&self.0));
            return;
        }
        // A drop cannot return an error; a user who needs it calls `Store::close`.
        let _ = self.0.close();
    }
}

/// The state that all handles of a store share.
pub(crate) struct Inner {
    pub(in crate::store) coordinator: Arc<dyn Coordinator>,
    pub(in crate::store) lock_authority: Option<Arc<dyn LockAuthority>>,
    pub(in crate::store) rows: RowReader,
    pub(in crate::store) engine: Arc<dyn Engine>,
    pub(in crate::store) env: Arc<dyn Env>,
    pub(in crate::store) options: Options,
    pub(in crate::store) metrics: Arc<Metrics>,
    pub(in crate::store) catalog: Arc<Catalog>,
    pub(in crate::store) monitor: TxnMonitor,
    pub(in crate::store) admission: Arc<AdmissionController>,
    pub(in crate::store) instance_id: u64,
    /// The process that opened the store.
    pub(in crate::store) process: Process,
    /// `None` if named locks are not supported.
    pub(in crate::store) locks: Option<Arc<NamedLocks>>,
    /// Releases the named locks when the store closes. Called while commits are still possible,
    /// because a lease is released by a commit.
    pub(in crate::store) before_close: fn(&Store),
    pub(in crate::store) closing: AtomicBool,
    /// Time of opening, by the monotonic clock.
    pub(in crate::store) opened_at: Duration,
    /// Time at which the status file was last written, by the monotonic clock.
    #[cfg(feature = "rocks")]
    pub(in crate::store) status_written_at: crate::sync::Mutex<Duration>,
}

impl Store {
    pub(in crate::store) fn from_inner(inner: Inner) -> Self {
        event!(INFO, store = inner.instance_id, read_only = inner.options.read_only, "store opened");
        #[cfg(feature = "tracing")]
        for lost in inner.engine.data_losses() {
            event!(WARN, store = inner.instance_id, loss = %lost, "data loss accepted");
        }
        let inner = Arc::new(inner);
        Self { _open: Some(Arc::new(CloseOnDrop(Arc::clone(&inner)))), inner }
    }

    /// A handle that does not keep the store open.
    pub(in crate::store) fn unowned(inner: Arc<Inner>) -> Self {
        Self { inner, _open: None }
    }

    /// A handle of this store that does not keep the store open.
    pub(crate) fn background_handle(&self) -> Self {
        Self::unowned(Arc::clone(&self.inner))
    }

    #[cfg(feature = "tokio")]
    pub(crate) fn check_open(&self) -> Result<()> {
        self.inner.check_open()
    }

    /// The time by the monotonic clock.
    #[cfg(feature = "tokio")]
    pub(crate) fn elapsed(&self) -> Duration {
        self.inner.env.elapsed()
    }

    /// The instance id of the store, unique in this process.
    pub(in crate::store) fn instance_id(&self) -> u64 {
        self.inner.instance_id
    }
}

impl Inner {
    pub(in crate::store) fn check_open(&self) -> Result<()> {
        self.rows.check_open()
    }

    pub(in crate::store) fn check_writable(&self) -> Result<()> {
        if self.options.read_only { Err(read_only_error()) } else { Ok(()) }
    }

    /// Fails if the store does not support named locks.
    pub(in crate::store) fn lock_authority(&self) -> Result<&dyn LockAuthority> {
        self.lock_authority.as_deref().ok_or_else(locks_unsupported_error)
    }

    /// The [store id](crate::store_id); `None` if none is assigned.
    pub(in crate::store) fn store_id(&self) -> Result<Option<u64>> {
        self.check_open()?;
        Ok(crate::store_id::load(&*self.engine)?)
    }

    /// Blocks until every visible commit at or below `ts` is durable. Does nothing on a shared
    /// engine.
    pub(in crate::store) fn wait_durable_up_to(&self, ts: Timestamp) -> Result<()> {
        if self.coordinator.is_exclusive() { self.coordinator.sync(Some(ts)) } else { Ok(()) }
    }

    pub(in crate::store) fn close(self: &Arc<Self>) -> Result<()> {
        if let Some(reason) = self.process.sure_refusal() {
            return Err(Error::closed(reason));
        }
        if self.closing.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        (self.before_close)(&Store::unowned(Arc::clone(self)));
        self.rows.close();
        let closed = self.shut_down();
        event!(INFO, store = self.instance_id, failed = closed.is_err(), "store closed");
        closed
    }

    fn shut_down(&self) -> Result<()> {
        self.coordinator.stop_background();
        if self.options.status_file_interval.is_some() {
            // `None` removes the file. An error is ignored: a file that remains does no harm.
            let _ = self.engine.write_status_file(None);
        }
        let closed = self.coordinator.close();
        crash_point!(CloseDone if self.coordinator.is_exclusive());
        closed
    }
}
