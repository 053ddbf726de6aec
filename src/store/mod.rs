//! The public API: stores, keyspaces, transactions, snapshots.

mod catalog;
mod introspect;
mod keyspace;
mod maintenance;
mod named_locks;
mod open;
mod options;
mod read;
mod txn;

pub use introspect::active::{ActiveKind, ActiveTransaction};
pub use introspect::keyspace_stats::{KeyspaceSize, KeyspaceStats};
pub use introspect::slow_log::{SlowTransaction, TimeBreakdown, TxnOutcome};
pub use introspect::stats::{RowLock, RowLocks, Stats, TxnStatus};
pub use introspect::status::{
    ActiveTransactionStatus, ConflictStatus, RowLockStatus, SlowTransactionStatus, StoreStatus,
};
pub use keyspace::Keyspace;
pub use maintenance::dump::{DumpBase, DumpHeader, DumpOptions, DumpStats, OnExisting};
pub use maintenance::progress::IntoControlFlow;
#[cfg(feature = "rocks")]
pub use maintenance::repair::RepairReport;
pub use maintenance::verify::{IntegrityIssue, VerifyReport};
pub use named_locks::{Fence, LockGuard, LockOptions, LockWaitPolicy, MAX_LOCK_REASON_BYTES};
#[cfg(feature = "tokio")]
pub(crate) use named_locks::{GrantPoll, RequestResult, check_no_lease};
pub use options::{
    Builder, Durability, MAX_KEY_BYTES, MAX_KEYSPACE_NAME_BYTES, MAX_VALUE_BYTES, Options, RetryPolicy, TxnOptions,
};
pub use read::key_range::KeyRange;
pub use read::scan::Scan;
pub use read::snapshot::Snapshot;
pub use read::versions::{Version, Versions};
#[cfg(feature = "tokio")]
pub(crate) use txn::retry::RetryLoop;
pub use txn::{Commit, Savepoint, Txn};

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::contention::AdmissionController;
use crate::coordinator::embedded::EmbeddedCoordinator;
use crate::coordinator::read_only::{self, ReadOnlyCoordinator};
use crate::coordinator::shared::{SharedConfig, SharedCoordinator};
use crate::coordinator::{BackgroundTask, Coordinator};
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::observe::Metrics;
use crate::runtime::Env;
use crate::store::catalog::Catalog;
use crate::store::introspect::active::ActiveReaders;
use crate::store::introspect::slow_log::SlowLog;
use crate::store::named_locks::NamedLocks;
use crate::timestamp::Timestamp;

/// Numbers the stores of this process.
static NEXT_INSTANCE_ID: AtomicU64 = AtomicU64::new(0);

/// A transactional key-value store with snapshot isolation. Cheap to clone; clones are the same store.
///
/// The store closes when the last clone, transaction, snapshot and scan is gone, or by [`Store::close`]. Keyspace handles
/// do not keep it open.
///
/// ```
/// # fn main() -> percolite::Result<()> {
/// let store = percolite::Store::in_memory()?;
/// let accounts = store.keyspace("accounts")?;
/// store.transact(|txn| {
///     txn.put(&accounts, b"alice", b"100")?;
///     txn.put(&accounts, b"bob", b"50")
/// })?;
/// assert_eq!(store.snapshot()?.get(&accounts, b"alice")?.as_deref(), Some(&b"100"[..]));
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Store {
    inner: Arc<Inner>,
    /// `None` for the background thread, which must not keep the store from closing.
    _open: Option<Arc<CloseOnDrop>>,
}

fn next_instance_id() -> u64 {
    NEXT_INSTANCE_ID.fetch_add(1, Ordering::Relaxed)
}

/// Closes the store with its last user.
struct CloseOnDrop(Arc<Inner>);

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        // Nobody is left to be told; `Store::close` is for those who want to know.
        let _ = self.0.close();
    }
}

/// What all handles of one store share.
pub(crate) struct Inner {
    coordinator: Arc<dyn Coordinator>,
    engine: Arc<dyn Engine>,
    runtime: Arc<dyn Env>,
    options: Options,
    metrics: Arc<Metrics>,
    catalog: Catalog,
    active: ActiveReaders,
    slow_log: SlowLog,
    admission: Arc<AdmissionController>,
    instance_id: u64,
    /// `None` where none can be taken.
    locks: Option<Arc<NamedLocks>>,
    closing: AtomicBool,
    closed: AtomicBool,
    /// By the runtime's clock.
    opened_at: Duration,
    /// When the status was last published, by the same clock.
    #[cfg(feature = "rocks")]
    status_written_at: crate::sync::Mutex<Duration>,
}

impl Store {
    /// Options for opening a store.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Opens the store in a folder with default options. See [`Builder::open`], also for what a crash
    /// has left.
    ///
    /// # Errors
    /// Those of [`Builder::open`].
    #[cfg(feature = "rocks")]
    pub fn open(path: impl AsRef<std::path::Path>) -> Result<Self> {
        Self::builder().open(path)
    }

    /// Opens a store in fresh memory with default options, for tests.
    ///
    /// # Errors
    /// None that a caller could do anything about.
    pub fn in_memory() -> Result<Self> {
        Self::builder().in_memory()
    }

    fn open_exclusive(engine: Arc<dyn Engine>, options: Options, runtime: Arc<dyn Env>) -> Result<Self> {
        if !engine.capabilities().exclusive {
            return Err(Error::invalid("the engine is shared with others: open it with open_shared"));
        }
        if engine.capabilities().batch_rows_max < 2 {
            return Err(Error::invalid("an engine of one process must be able to change two rows at once"));
        }
        let identity = next_instance_id();
        let metrics = Arc::new(Metrics::new(identity));
        let coordinator = EmbeddedCoordinator::open(
            Arc::clone(&engine),
            Arc::clone(&runtime),
            Arc::clone(&metrics),
            options.conflict_cache_rows,
            options.durability == Durability::Sync,
            options.history_retention,
        )?;
        let opened = runtime.elapsed();
        let locks = coordinator
            .lock_authority()
            .map(|authority| NamedLocks::new(authority, &runtime, options.application_name.as_deref(), identity));
        let store = Self::from_inner(Inner {
            opened_at: opened,
            locks,
            closing: AtomicBool::new(false),
            #[cfg(feature = "rocks")]
            status_written_at: crate::sync::Mutex::new(opened),
            coordinator,
            engine,
            runtime,
            admission: Arc::new(AdmissionController::new(options.admission_limit)),
            metrics,
            catalog: Catalog::default(),
            active: ActiveReaders::default(),
            slow_log: SlowLog::default(),
            instance_id: identity,
            closed: AtomicBool::new(false),
            options,
        });
        store.load_leases()?;
        let resolve = store.inner.options.background_resolve;
        store.inner.coordinator.start_background(resolve, store.background_tasks())?;
        Ok(store)
    }

    /// A handle that does not keep the store open.
    pub(crate) fn background_handle(&self) -> Self {
        Self { inner: Arc::clone(&self.inner), _open: None }
    }

    #[cfg(feature = "tokio")]
    pub(crate) fn check_open(&self) -> Result<()> {
        self.inner.check_open()
    }

    /// What the background does for the store, in this order.
    fn background_tasks(&self) -> Vec<BackgroundTask> {
        let task = |name, work: fn(&Self) -> Result<()>| -> BackgroundTask {
            let background = self.background_handle();
            (name, Box::new(move || work(&background)))
        };
        vec![
            task("expire_snapshots", |store| {
                store.inner.run_maintenance();
                Ok(())
            }),
            #[cfg(feature = "rocks")]
            task("status_file", Self::write_status_file),
            task("purge_keyspaces", Self::erase_dropped),
            task("leases", Self::prune_locks),
        ]
    }

    fn open_shared(commons: SharedConfig, options: Options, runtime: Arc<dyn Env>) -> Self {
        let identity = next_instance_id();
        let metrics = Arc::new(Metrics::new(identity));
        let engine = Arc::clone(&commons.engine);
        let coordinator = Arc::new(SharedCoordinator::new(commons, Arc::clone(&runtime), Arc::clone(&metrics)));
        Self::new_without_pipeline(coordinator, engine, (identity, metrics), options, runtime)
    }

    fn open_read_only(engine: Arc<dyn Engine>, options: Options, runtime: Arc<dyn Env>) -> Result<Self> {
        let coordinator = Arc::new(ReadOnlyCoordinator::open(&*engine, Arc::clone(&runtime))?);
        let identity = next_instance_id();
        let metrics = Arc::new(Metrics::new(identity));
        Ok(Self::new_without_pipeline(coordinator, engine, (identity, metrics), options, runtime))
    }

    fn new_without_pipeline(
        coordinator: Arc<dyn Coordinator>,
        engine: Arc<dyn Engine>,
        (identity, metrics): (u64, Arc<Metrics>),
        options: Options,
        runtime: Arc<dyn Env>,
    ) -> Self {
        let opened = runtime.elapsed();
        Self::from_inner(Inner {
            opened_at: opened,
            locks: None,
            closing: AtomicBool::new(false),
            #[cfg(feature = "rocks")]
            status_written_at: crate::sync::Mutex::new(opened),
            coordinator,
            engine,
            runtime,
            admission: Arc::new(AdmissionController::new(options.admission_limit)),
            metrics,
            catalog: Catalog::default(),
            active: ActiveReaders::default(),
            slow_log: SlowLog::default(),
            instance_id: identity,
            closed: AtomicBool::new(false),
            options,
        })
    }

    fn from_inner(inner: Inner) -> Self {
        event!(INFO, store = inner.instance_id, read_only = inner.options.read_only, "store opened");
        #[cfg(feature = "tracing")]
        for lost in inner.engine.data_losses() {
            event!(WARN, store = inner.instance_id, what = %lost, "data loss accepted");
        }
        let inner = Arc::new(inner);
        Self { _open: Some(Arc::new(CloseOnDrop(Arc::clone(&inner)))), inner }
    }

    /// Begins a transaction that reads the newest visible state.
    ///
    /// What it reads may not be durable yet: until [`Txn::commit`] or [`Txn::wait_reads_durable`] has answered, values read are
    /// provisional, and a power cut may take them back. [`Store::transact`] sees to that by itself.
    ///
    /// # Errors
    /// [`ErrorKind::Closed`](crate::ErrorKind::Closed).
    pub fn begin(&self) -> Result<Txn> {
        self.begin_with(TxnOptions::default())
    }

    /// [`Store::begin`] with options of its own.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] when an option is out of [bounds](crate::bounds), [`ErrorKind::Closed`](crate::ErrorKind::Closed).
    pub fn begin_with(&self, options: TxnOptions) -> Result<Txn> {
        let txn = Txn::begin(self, options)?;
        self.inner.metrics.transactions_started.add(1);
        Ok(txn)
    }

    /// A consistent, repeatable view of everything acknowledged before this call, all of it durable. Waits for a sync only
    /// after buffered commits. A store opened [`Durability::Buffered`] shows everything visible instead.
    ///
    /// # Errors
    /// [`ErrorKind::Closed`](crate::ErrorKind::Closed), [`ErrorKind::Undetermined`](crate::ErrorKind::Undetermined) when the sync
    /// fails.
    pub fn snapshot(&self) -> Result<Snapshot> {
        self.inner.check_open()?;
        Ok(Snapshot::new(self, self.inner.coordinator.snapshot()?))
    }

    /// A view of what was committed at or below a moment of the past: a [`Timestamp`], such as a commit's or another snapshot's,
    /// or a [`SystemTime`](std::time::SystemTime), which stands for the first timestamp of its millisecond. It shows what a
    /// snapshot showed then, and keeps it from being reclaimed until [`Builder::max_snapshot_age`] after this call.
    ///
    /// Timestamps follow the clock of the machine, as far as [`Timestamp::millis`] says; exact to the commit is only a timestamp.
    ///
    /// # Errors
    /// [`ErrorKind::SnapshotTooOld`] for a moment before the history that is kept, [`ErrorKind::InvalidArgument`] when the store
    /// keeps none ([`Builder::history_retention`]), for a moment that lies in the future, and always where others share the engine
    /// ([`Builder::open_shared`]);
    /// [`ErrorKind::Closed`], [`ErrorKind::Undetermined`] when a sync fails.
    pub fn snapshot_at(&self, at: impl Into<Timestamp>) -> Result<Snapshot> {
        self.inner.check_open()?;
        Ok(Snapshot::new(self, self.inner.coordinator.snapshot_at(at.into())?))
    }

    /// Returns once everything committed before this call is durable, buffered commits included.
    ///
    /// # Errors
    /// [`ErrorKind::Closed`](crate::ErrorKind::Closed), [`ErrorKind::Undetermined`](crate::ErrorKind::Undetermined) when the sync
    /// fails.
    pub fn sync(&self) -> Result<()> {
        self.inner.check_open()?;
        // A store that has failed returns its failure, even where nothing is left to sync.
        self.inner.coordinator.check_open()?;
        self.inner.coordinator.sync(None)
    }

    /// The store's own random number; `None` where it has none.
    fn store_id(&self) -> Result<Option<u64>> {
        self.inner.check_open()?;
        Ok(crate::store_id::load(&*self.inner.engine)?)
    }

    /// Returns once everything at or below `ts` that there is is durable.
    fn wait_durable_up_to(&self, ts: Timestamp) -> Result<()> {
        if self.inner.coordinator.is_exclusive() { self.inner.coordinator.sync(Some(ts)) } else { Ok(()) }
    }

    /// Makes a copy of the store in a new folder, which can be opened as a store of its own. Transactions go on meanwhile; the copy
    /// is what the store was at one moment of this call: everything acknowledged before is in it. On the same file system the
    /// greater part is not copied but linked, so it is quick and costs little space until the two grow apart.
    ///
    /// What is in the log is handed down into the tables first. The tables are linked, and the copy gets an empty log with an identity
    /// of its own. The marker comes last, so a copy that was cut short is a folder that is no store, and opening it says so. Accepted losses
    /// ([`Store::data_losses`]) are not copied. Nor does the copy
    /// hold any [lock](Store::lock): opening it for writing removes the leases. Its tokens may repeat those of this store.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] when the folder exists or cannot be made; [`ErrorKind::InvalidArgument`] when the path is empty and when
    /// the store is in memory or was opened read-only (its folder can be copied as it is); [`ErrorKind::Closed`].
    pub fn checkpoint(&self, folder: impl AsRef<std::path::Path>) -> Result<()> {
        self.inner.check_open()?;
        if self.inner.options.read_only {
            return Err(Error::invalid("a store that is open read-only does not change: copy its folder"));
        }
        if folder.as_ref().as_os_str().is_empty() {
            return Err(Error::invalid("a checkpoint's path must not be empty"));
        }
        self.inner.coordinator.check_open()?;
        Ok(self.inner.engine.checkpoint(folder.as_ref())?)
    }

    /// Makes everything durable and ends the background work. Every later call on this store, its transactions and
    /// snapshots answers [`ErrorKind::Closed`](crate::ErrorKind::Closed). The folder can be opened again once all handles are
    /// dropped. Of several calls the first one is told how it went.
    ///
    /// Waits for [locks](Store::lock) end with [`ErrorKind::Closed`](crate::ErrorKind::Closed), and their guards are lost. Leases that have
    /// a guard are released, durably; those without one ([`LockGuard::detach`]) stay.
    ///
    /// # Errors
    /// [`ErrorKind::Undetermined`](crate::ErrorKind::Undetermined), with the cause, when the sync fails or the store had failed
    /// before: what was acknowledged as buffered may be lost.
    pub fn close(self) -> Result<()> {
        self.inner.close()
    }
}

impl Inner {
    fn check_open(&self) -> Result<()> {
        if self.closed.load(Ordering::Acquire) { Err(Error::closed_by_user()) } else { Ok(()) }
    }

    fn check_writable(&self) -> Result<()> {
        if self.options.read_only { Err(read_only::read_only_error()) } else { Ok(()) }
    }

    fn close(self: &Arc<Self>) -> Result<()> {
        if self.closing.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        // Leases are released by commits, which a closed store does not take.
        if let Some(locks) = &self.locks {
            locks.close(&Store { inner: Arc::clone(self), _open: None });
        }
        self.closed.store(true, Ordering::Release);
        let closed = self.shut_down();
        event!(INFO, store = self.instance_id, failed = closed.is_err(), "store closed");
        closed
    }

    fn shut_down(&self) -> Result<()> {
        self.coordinator.stop_background();
        if self.options.status_file_interval.is_some() {
            // A status file that is left does no harm.
            let _ = self.engine.write_status_file(None);
        }
        let closed = self.coordinator.close();
        crash_point!(CloseDone if self.coordinator.is_exclusive());
        closed
    }

    /// Bounds what a forgotten snapshot keeps from being collected, and how much a power cut can take of buffered commits.
    fn run_maintenance(&self) {
        if self.coordinator.maintain(self.options.max_snapshot_age) > 0 {
            self.report_expired();
        }
        #[cfg(feature = "metrics")]
        self.set_gauges();
    }
}
