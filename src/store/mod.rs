//! The public API: stores, keyspaces, transactions, snapshots.
//!
//! | module | what |
//! |---|---|
//! | `open`, `options` | opening a store with the options of a [`Builder`] |
//! | `keyspace`, `catalog` | handles; creating, renaming and dropping keyspaces |
//! | `txn`, `read` | transactions, snapshots, scans |
//! | `named_locks` | locks on names, and fences |
//! | `maintenance` | dump, restore, verification, repair |
//! | `introspect` | statistics, row locks, active and slow transactions, the status file |
//!
//! The store uses the coordinator through its trait alone, so the same code runs on an exclusive
//! engine, on a shared one, and read-only.

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
pub use introspect::stats::{RowLock, RowLocks, Stats};
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
pub use read::scanned_row::Row;
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
use crate::coordinator::{BackgroundTask, Coordinator, LockAuthority};
use crate::engine::Engine;
use crate::env::Env;
use crate::error::{Error, Result};
use crate::observe::Metrics;
use crate::store::catalog::Catalog;
use crate::store::introspect::active::ActiveReaders;
use crate::store::introspect::slow_log::SlowLog;
use crate::store::named_locks::NamedLocks;
use crate::timestamp::Timestamp;

/// The next instance id: a number for each store that this process opens.
static NEXT_INSTANCE_ID: AtomicU64 = AtomicU64::new(0);

/// A transactional key-value store with snapshot isolation. Cheap to clone; clones are the same
/// store.
///
/// The store closes when its last clone, transaction, snapshot and scan is dropped, or by
/// [`Store::close`]. Keyspace handles do not keep it open.
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
    inner: Arc<Inner>,
    /// `None` in the background worker, which must not keep the store open.
    _open: Option<Arc<CloseOnDrop>>,
}

fn next_instance_id() -> u64 {
    NEXT_INSTANCE_ID.fetch_add(1, Ordering::Relaxed)
}

/// Closes the store when its last handle is dropped.
struct CloseOnDrop(Arc<Inner>);

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        // A drop cannot return an error; `Store::close` does.
        let _ = self.0.close();
    }
}

/// The state that all handles of a store share.
pub(crate) struct Inner {
    // Both before the engine: fields are dropped in this order, and its views must go first.
    coordinator: Arc<dyn Coordinator>,
    lock_authority: Option<Arc<dyn LockAuthority>>,
    engine: Arc<dyn Engine>,
    runtime: Arc<dyn Env>,
    options: Options,
    metrics: Arc<Metrics>,
    catalog: Catalog,
    active: ActiveReaders,
    slow_log: SlowLog,
    admission: Arc<AdmissionController>,
    instance_id: u64,
    /// `None` if named locks are not supported.
    locks: Option<Arc<NamedLocks>>,
    closing: AtomicBool,
    closed: AtomicBool,
    /// Time of opening, by the runtime's monotonic clock.
    opened_at: Duration,
    /// Time at which the status file was last written, by the same clock.
    #[cfg(feature = "rocks")]
    status_written_at: crate::sync::Mutex<Duration>,
}

impl Store {
    /// The options for opening a store, all at their defaults.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Opens the store in a directory with default options. See [`Builder::open`], also for
    /// recovery after a crash.
    ///
    /// # Errors
    /// Those of [`Builder::open`].
    #[cfg(feature = "rocks")]
    pub fn open(path: impl AsRef<std::path::Path>) -> Result<Self> {
        Self::builder().open(path)
    }

    /// Opens a new store in memory with default options, for tests. Its content ends with it.
    ///
    /// # Errors
    /// None in practice: the default options are valid, and memory has no I/O errors.
    pub fn in_memory() -> Result<Self> {
        Self::builder().in_memory()
    }

    fn open_exclusive(engine: Arc<dyn Engine>, options: Options, runtime: Arc<dyn Env>) -> Result<Self> {
        if !engine.capabilities().exclusive {
            return Err(Error::invalid("the engine is shared: open it with open_shared"));
        }
        if engine.capabilities().batch_rows_max < 2 {
            return Err(Error::invalid("an exclusive engine must support batches of at least two rows"));
        }
        let instance_id = next_instance_id();
        let metrics = Arc::new(Metrics::new(instance_id));
        let coordinator = EmbeddedCoordinator::open(
            Arc::clone(&engine),
            Arc::clone(&runtime),
            Arc::clone(&metrics),
            options.conflict_cache_rows,
            options.durability == Durability::Sync,
            options.history_retention,
        )?;
        let opened = runtime.elapsed();
        let lock_authority = coordinator.lock_authority();
        let locks = lock_authority
            .as_deref()
            .map(|authority| NamedLocks::new(authority, &runtime, options.application_name.as_deref(), instance_id));
        let store = Self::from_inner(Inner {
            opened_at: opened,
            locks,
            lock_authority,
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
            instance_id,
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

    /// The store's tasks in the background worker, in the order of a round.
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
            task("purge_keyspaces", Self::purge_dropped),
            task("leases", Self::prune_locks),
        ]
    }

    fn open_shared(config: SharedConfig, options: Options, runtime: Arc<dyn Env>) -> Self {
        let instance_id = next_instance_id();
        let metrics = Arc::new(Metrics::new(instance_id));
        let engine = Arc::clone(&config.engine);
        let coordinator = Arc::new(SharedCoordinator::new(config, Arc::clone(&runtime), Arc::clone(&metrics)));
        Self::new_without_pipeline(coordinator, engine, (instance_id, metrics), options, runtime)
    }

    fn open_read_only(engine: Arc<dyn Engine>, options: Options, runtime: Arc<dyn Env>) -> Result<Self> {
        let coordinator = Arc::new(ReadOnlyCoordinator::open(&*engine, Arc::clone(&runtime))?);
        let instance_id = next_instance_id();
        let metrics = Arc::new(Metrics::new(instance_id));
        Ok(Self::new_without_pipeline(coordinator, engine, (instance_id, metrics), options, runtime))
    }

    fn new_without_pipeline(
        coordinator: Arc<dyn Coordinator>,
        engine: Arc<dyn Engine>,
        (instance_id, metrics): (u64, Arc<Metrics>),
        options: Options,
        runtime: Arc<dyn Env>,
    ) -> Self {
        let opened = runtime.elapsed();
        Self::from_inner(Inner {
            opened_at: opened,
            locks: None,
            lock_authority: None,
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
            instance_id,
            closed: AtomicBool::new(false),
            options,
        })
    }

    fn from_inner(inner: Inner) -> Self {
        event!(INFO, store = inner.instance_id, read_only = inner.options.read_only, "store opened");
        #[cfg(feature = "tracing")]
        for lost in inner.engine.data_losses() {
            event!(WARN, store = inner.instance_id, loss = %lost, "data loss accepted");
        }
        let inner = Arc::new(inner);
        Self { _open: Some(Arc::new(CloseOnDrop(Arc::clone(&inner)))), inner }
    }

    /// Begins a transaction that reads the newest visible state.
    ///
    /// What it reads may not be durable yet. Until [`Txn::commit`], [`Txn::rollback`] or
    /// [`Txn::wait_reads_durable`] returns, a power cut may undo the commits that it has read.
    /// [`Store::transact`] waits for that itself.
    ///
    /// # Errors
    /// [`ErrorKind::Closed`](crate::ErrorKind::Closed).
    pub fn begin(&self) -> Result<Txn> {
        self.begin_with(TxnOptions::default())
    }

    /// [`Store::begin`] with options for this transaction.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) if an option is out of
    /// [range](crate::option_ranges); those of [`Store::begin`].
    pub fn begin_with(&self, options: TxnOptions) -> Result<Txn> {
        let txn = Txn::begin(self, options)?;
        self.inner.metrics.transactions_started.add(1);
        Ok(txn)
    }

    /// A consistent view of everything acknowledged before this call, all of it durable. The call
    /// waits for a sync only after buffered commits. In a store opened with
    /// [`Durability::Buffered`] the snapshot shows everything visible, durable or not, without
    /// waiting.
    ///
    /// # Errors
    /// [`ErrorKind::Closed`](crate::ErrorKind::Closed);
    /// [`ErrorKind::Undetermined`](crate::ErrorKind::Undetermined) if the sync fails.
    pub fn snapshot(&self) -> Result<Snapshot> {
        self.inner.check_open()?;
        Ok(Snapshot::new(self, self.inner.coordinator.snapshot()?))
    }

    /// A snapshot of everything committed at or below a timestamp in the history. The argument is a
    /// [`Timestamp`], such as a commit's or another snapshot's, or a
    /// [`SystemTime`](std::time::SystemTime), which means the first timestamp of its millisecond.
    ///
    /// It shows what a snapshot showed at that timestamp. It expires [`Builder::max_snapshot_age`]
    /// after this call; until then GC keeps what it shows.
    ///
    /// Timestamps follow the machine's clock within the limits described at [`Timestamp::millis`].
    /// To select an exact commit, use its timestamp and not a time.
    ///
    /// # Errors
    /// - [`ErrorKind::SnapshotTooOld`](crate::ErrorKind::SnapshotTooOld): the timestamp is before
    ///   the start of the history.
    /// - [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument): the store keeps no
    ///   history ([`Builder::history_retention`]), the timestamp is in the future, or the engine is
    ///   shared ([`Builder::open_shared`]).
    /// - [`ErrorKind::Closed`](crate::ErrorKind::Closed),
    ///   [`ErrorKind::Undetermined`](crate::ErrorKind::Undetermined) if a sync fails.
    pub fn snapshot_at(&self, at: impl Into<Timestamp>) -> Result<Snapshot> {
        self.inner.check_open()?;
        Ok(Snapshot::new(self, self.inner.coordinator.snapshot_at(at.into())?))
    }

    /// Blocks until everything committed before this call is durable, buffered commits included.
    ///
    /// # Errors
    /// [`ErrorKind::Closed`](crate::ErrorKind::Closed);
    /// [`ErrorKind::Undetermined`](crate::ErrorKind::Undetermined) if the sync fails.
    pub fn sync(&self) -> Result<()> {
        self.inner.check_open()?;
        // A store that has failed returns its failure even if nothing is left to sync.
        self.inner.coordinator.check_open()?;
        self.inner.coordinator.sync(None)
    }

    /// The [store id](crate::store_id); `None` if none is assigned.
    fn store_id(&self) -> Result<Option<u64>> {
        self.inner.check_open()?;
        Ok(crate::store_id::load(&*self.inner.engine)?)
    }

    /// Blocks until every visible commit at or below `ts` is durable. Does nothing on a shared
    /// engine.
    fn wait_durable_up_to(&self, ts: Timestamp) -> Result<()> {
        if self.inner.coordinator.is_exclusive() { self.inner.coordinator.sync(Some(ts)) } else { Ok(()) }
    }

    /// Makes a copy of the store in a new directory, which can be opened as a store of its own.
    /// Transactions continue meanwhile. The copy is a consistent state of the store during this
    /// call, with everything acknowledged before it. On the same file system most of it is hard
    /// links, so it is quick and takes little space until the two stores diverge.
    ///
    /// The memtables are flushed first. The tables are then linked, and the copy gets an empty
    /// write-ahead log with an id of its own. The marker file is written last: a copy that was
    /// interrupted is not a store, and opening it returns an error. Accepted data losses
    /// ([`Store::data_losses`]) are not copied. The copy holds no [named lock](Store::lock):
    /// opening it for writing removes the leases. Its fencing tokens may repeat those of this
    /// store.
    ///
    /// # Errors
    /// - [`ErrorKind::Io`](crate::ErrorKind::Io): the directory exists or cannot be created, or the
    ///   copy fails.
    /// - [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument): the path is empty, or
    ///   the store is in memory or open read-only. The directory of a read-only store can be copied
    ///   as it is.
    /// - [`ErrorKind::Closed`](crate::ErrorKind::Closed).
    pub fn checkpoint(&self, directory: impl AsRef<std::path::Path>) -> Result<()> {
        self.inner.check_open()?;
        if self.inner.options.read_only {
            return Err(Error::invalid("a read-only store cannot be checkpointed; copy its directory"));
        }
        if directory.as_ref().as_os_str().is_empty() {
            return Err(Error::invalid("the path of a checkpoint must not be empty"));
        }
        self.inner.coordinator.check_open()?;
        Ok(self.inner.engine.checkpoint(directory.as_ref())?)
    }

    /// Makes everything durable and stops the background worker. Every later call on this store,
    /// its transactions and snapshots returns [`ErrorKind::Closed`](crate::ErrorKind::Closed). The
    /// directory can be opened again once all handles are dropped. If `close` is called several
    /// times, only the first call reports errors.
    ///
    /// Waits for [named locks](Store::lock) end with
    /// [`ErrorKind::Closed`](crate::ErrorKind::Closed), and lock guards become invalid. Leases that
    /// have a guard are released, durably. Leases without one ([`LockGuard::detach`]) stay.
    ///
    /// # Errors
    /// [`ErrorKind::Undetermined`](crate::ErrorKind::Undetermined), with the cause, if the sync
    /// fails or the store had failed earlier: buffered commits may be lost.
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
        // Before the store is closed: leases are released by commits.
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
            // A stale status file does no harm.
            let _ = self.engine.write_status_file(None);
        }
        let closed = self.coordinator.close();
        crash_point!(CloseDone if self.coordinator.is_exclusive());
        closed
    }

    /// Expires old snapshots, so that a leaked one does not block GC forever, and requests a sync,
    /// so that a power cut loses few buffered commits.
    fn run_maintenance(&self) {
        if self.coordinator.maintain(self.options.max_snapshot_age) > 0 {
            self.report_expired();
        }
        #[cfg(feature = "metrics")]
        self.set_gauges();
    }
}
