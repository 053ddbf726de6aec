//! Opening a store with the options of a [`Builder`].

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use crate::contention::AdmissionController;
use crate::coordinator::embedded::EmbeddedCoordinator;
use crate::coordinator::read_only::ReadOnlyCoordinator;
use crate::coordinator::shared::SharedCoordinator;
use crate::coordinator::shared_config::SharedConfig;
use crate::coordinator::{Coordinator, LockAuthority};
use crate::engine::Engine;
use crate::engine::sim::SimStorage;
use crate::env::Env;
use crate::error::{Error, Result};
use crate::observe::Metrics;
use crate::option_ranges;
use crate::process::Process;
use crate::store::background::{background_tasks, before_close};
use crate::store::builder::Builder;
use crate::store::catalog::handles::Catalog;
use crate::store::handle::{Inner, Store, next_instance_id};
use crate::store::introspect::monitor::TxnMonitor;
use crate::store::named_locks::load_leases::load_leases;
use crate::store::named_locks::state::NamedLocks;
use crate::store::options::Options;
use crate::store::read::row_reader::RowReader;

impl Builder {
    /// Opens the store in a directory. If the directory is missing or empty, a new store is
    /// created, unless the store is opened [read-only](Builder::read_only). A directory can be open
    /// in one `Store` that writes or in several [read-only](Builder::read_only) ones, counted over
    /// all processes.
    ///
    /// Opening reads the part of the write-ahead log that is not flushed to the tables;
    /// [`Builder::write_buffer_bytes`] bounds the size of that part. Opening does not resolve the
    /// row locks that a crash has left, so their number does not delay it. The [background
    /// worker](Builder::background_resolve) resolves them; a read or write that meets such a lock
    /// earlier resolves it itself. See [after a crash](crate::cookbook#after-a-crash) for what
    /// remains after a crash, what it costs, and how to observe it.
    ///
    /// A log end that is torn by a power cut is not a loss: nothing in it was acknowledged as
    /// durable. If acknowledged commits cannot be read, the store does not open, and the error has
    /// the fingerprint of the loss. Then restore a backup, [repair](Builder::repair) the store, or
    /// [accept the loss](Builder::accept_data_loss).
    ///
    /// One loss cannot be detected. Damage to the last group of synced commits looks like a torn
    /// end until a later frame of the log proves that the group was durable. An idle store writes
    /// that frame some 20 ms after its last sync, and a store that is closed writes it immediately.
    ///
    /// The path is used once. On Linux the open store then stays with its directory, whatever the
    /// path leads to later: another current directory, a switched symlink, a renamed or replaced
    /// directory, another mount. On other systems it stays with the absolute path. If the directory
    /// or a file in it is removed, commits fail. All cases are in
    /// [`docs/operations.md`](https://github.com/percolite/percolite/blob/main/docs/operations.md).
    ///
    /// Do not fork a process that has a store open, other than to start a new program. In the child
    /// every call that reads, writes, locks or closes returns
    /// [`ErrorKind::Closed`](crate::ErrorKind::Closed), dropping handles does nothing, and no store
    /// can be opened. The child must end by `_exit` or `exec`: RocksDB's destructors, which `exit`
    /// calls, fail there. As long as it lives it also keeps the store locked if the opener is
    /// killed. Calls without a result, as [`Store::stats`], show the child's copy of memory, and
    /// may wait forever for a mutex. A child that was made by a system call instead of the C
    /// library's `fork` is not noticed.
    ///
    /// # Errors
    /// - [`ErrorKind::AlreadyOpen`](crate::ErrorKind::AlreadyOpen): the store is open elsewhere.
    /// - [`ErrorKind::UnrecognizedFormat`](crate::ErrorKind::UnrecognizedFormat): the directory has
    ///   other content, another format, or a store of another development build. Nothing in it was
    ///   changed.
    /// - [`ErrorKind::Corruption`](crate::ErrorKind::Corruption): the store is damaged, its tables
    ///   are missing, or acknowledged commits are lost from its log.
    /// - [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument): the path is empty, or
    ///   an option is out of [range](crate::option_ranges).
    /// - [`ErrorKind::Io`](crate::ErrorKind::Io).
    #[cfg(feature = "rocks")]
    pub fn open(self, path: impl AsRef<std::path::Path>) -> Result<Store> {
        let engine = self.durable_engine(path)?;
        self.open_engine(engine)
    }

    /// The engine that [`Builder::open`] uses, for a caller that wraps this engine in another one
    /// and passes that to [`Builder::open_engine`].
    ///
    /// # Errors
    /// Those of [`Builder::open`].
    #[cfg(feature = "rocks")]
    pub fn durable_engine(&self, path: impl AsRef<std::path::Path>) -> Result<Arc<dyn Engine>> {
        use crate::engine::directory::{DirectoryEngine, DirectoryStorage};
        self.options.check()?;
        if path.as_ref().as_os_str().is_empty() {
            return Err(Error::invalid("the path of a store must not be empty"));
        }
        let open = if self.options.read_only { DirectoryStorage::open_read_only } else { DirectoryStorage::open };
        Ok(Arc::new(DirectoryEngine::new(open(path.as_ref(), self.directory_options())?, true)))
    }

    #[cfg(feature = "rocks")]
    pub(in crate::store) fn directory_options(&self) -> crate::engine::directory::DirectoryOptions {
        crate::engine::directory::DirectoryOptions {
            block_cache_bytes: self.options.block_cache_bytes,
            write_buffer_bytes: self.options.write_buffer_bytes,
            compression: self.options.compression,
            accept_data_loss: self.options.accept_data_loss,
        }
    }

    /// Opens a new store in memory. Its content is lost when the store closes.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) if an option is out of
    /// [range](crate::option_ranges), even one that has no effect in memory.
    pub fn in_memory(self) -> Result<Store> {
        self.open_in_memory(&SimStorage::new())
    }

    /// Opens a store on a [`SimStorage`]: memory that outlives the store, and that can simulate a
    /// crash.
    ///
    /// # Errors
    /// Those of [`Builder::in_memory`].
    pub fn open_in_memory(self, memory: &SimStorage) -> Result<Store> {
        self.open_engine(Arc::new(memory.exclusive_engine()))
    }

    /// Opens a store on an engine that only this process uses.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) if the engine is not
    /// exclusive or an option is out of [range](crate::option_ranges); the engine's own errors.
    pub fn open_engine(self, engine: Arc<dyn Engine>) -> Result<Store> {
        self.options.check()?;
        if self.options.read_only {
            return open_read_only(engine, self.options, self.env);
        }
        open_exclusive(engine, self.options, self.env)
    }

    /// Opens a store as one of several clients of a shared engine. All commits have two phases.
    /// Dropping keyspaces, restoring, large transactions and named locks are not supported.
    ///
    /// Every commit keeps the versions that it replaces, for clients that read at older timestamps.
    /// But historical reads are not supported, whatever [`Builder::history_retention`] is:
    /// [`Store::snapshot_at`] returns
    /// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument), and
    /// [`Snapshot::versions`](crate::store::Snapshot::versions) returns only the newest version.
    /// The reason is that no client records the timestamp from which on the history is complete. No
    /// client removes old versions either.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) if an option, or
    /// [`SharedConfig::ttl_ms`], is out of [range](crate::option_ranges).
    pub fn open_shared(self, config: SharedConfig) -> Result<Store> {
        self.options.check()?;
        option_ranges::ROW_LOCK_TTL.check(Duration::from_millis(config.ttl_ms).as_nanos())?;
        Ok(open_shared(config, self.options, self.env))
    }
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

    /// Opens a new store in memory with default options, for tests. Its content is lost when the
    /// store closes.
    ///
    /// # Errors
    /// None in practice: the default options are valid, and memory has no I/O errors.
    pub fn in_memory() -> Result<Self> {
        Self::builder().in_memory()
    }
}

fn open_exclusive(engine: Arc<dyn Engine>, options: Options, env: Arc<dyn Env>) -> Result<Store> {
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
        Arc::clone(&env),
        Arc::clone(&metrics),
        options.conflict_set_rows,
        options.durability.waits_for_sync(),
        options.history_retention,
    )?;
    let lock_authority = coordinator.lock_authority();
    let locks = lock_authority
        .as_deref()
        .map(|authority| NamedLocks::new(authority, &env, options.application_name.as_deref(), instance_id));
    let store = from_parts(coordinator, engine, (instance_id, metrics), options, env, (lock_authority, locks));
    load_leases(&store)?;
    let resolve = store.inner.options.background_resolve;
    store.inner.coordinator.start_background(resolve, background_tasks(&store))?;
    Ok(store)
}

fn open_shared(config: SharedConfig, options: Options, env: Arc<dyn Env>) -> Store {
    let instance_id = next_instance_id();
    let metrics = Arc::new(Metrics::new(instance_id));
    let engine = Arc::clone(&config.engine);
    let coordinator = Arc::new(SharedCoordinator::new(config, Arc::clone(&env), Arc::clone(&metrics)));
    from_parts(coordinator, engine, (instance_id, metrics), options, env, (None, None))
}

fn open_read_only(engine: Arc<dyn Engine>, options: Options, env: Arc<dyn Env>) -> Result<Store> {
    let coordinator = Arc::new(ReadOnlyCoordinator::open(&*engine, Arc::clone(&env))?);
    let instance_id = next_instance_id();
    let metrics = Arc::new(Metrics::new(instance_id));
    Ok(from_parts(coordinator, engine, (instance_id, metrics), options, env, (None, None)))
}

fn from_parts(
    coordinator: Arc<dyn Coordinator>,
    engine: Arc<dyn Engine>,
    (instance_id, metrics): (u64, Arc<Metrics>),
    options: Options,
    env: Arc<dyn Env>,
    (lock_authority, locks): (Option<Arc<dyn LockAuthority>>, Option<Arc<NamedLocks>>),
) -> Store {
    let opened = env.elapsed();
    let catalog = Arc::new(Catalog::new(instance_id));
    Store::from_inner(Inner {
        opened_at: opened,
        locks,
        lock_authority,
        process: Process::current(),
        before_close,
        closing: AtomicBool::new(false),
        #[cfg(feature = "rocks")]
        status_written_at: crate::sync::Mutex::new(opened),
        rows: RowReader::new(&coordinator, options.max_snapshot_age),
        coordinator,
        engine,
        admission: Arc::new(AdmissionController::new(options.admission_limit)),
        monitor: TxnMonitor::new(&env, &metrics, &catalog, &options),
        env,
        metrics,
        catalog,
        instance_id,
        options,
    })
}
