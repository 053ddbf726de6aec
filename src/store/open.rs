//! How a store is opened with the options of a [`Builder`].

use std::sync::Arc;
use std::time::Duration;

use crate::bounds;
use crate::coordinator::shared::SharedConfig;
use crate::engine::Engine;
use crate::engine::sim::SimStorage;
use crate::error::Result;
use crate::store::{Builder, Store};

impl Builder {
    /// Opens the store in a folder, which is created if it is missing or empty (but not [read-only](Builder::read_only)). One process, and one `Store` in it, can
    /// have a folder open at a time.
    ///
    /// Opening first reads what the log has and the tables have not: how much at most is said at
    /// [`Builder::write_buffer_bytes`]. Row locks that a crash left are not resolved here, however
    /// many: the [sweep](Builder::background_resolve) does it in the background; a read or write that meets one first resolves it itself.
    /// See [after a crash](crate::cookbook#after-a-crash) for what is left, what it costs and how to
    /// see it.
    ///
    /// The end of a log that a power cut has torn is no loss: nothing in it was acknowledged as durable. Where commits that were cannot be
    /// read any more, the store is not opened, and the error has the fingerprint of the loss. The ways on are a backup, a
    /// [repair](Builder::repair), or to [go on without them](Builder::accept_data_loss).
    ///
    /// What cannot be known: damage to the last group of synced commits looks like a torn end until a later frame of the log
    /// witnesses the group as durable. An idle store writes such a frame some 20 ms after its last sync, and a store that is closed at once.
    ///
    /// # Errors
    /// [`ErrorKind::AlreadyOpen`](crate::ErrorKind::AlreadyOpen) when it is open elsewhere,
    /// [`ErrorKind::UnrecognizedFormat`](crate::ErrorKind::UnrecognizedFormat) when the folder holds something else, another format or a store of a
    /// development version (nothing in it is changed), [`ErrorKind::Corruption`](crate::ErrorKind::Corruption) when what is there is
    /// damaged, the tables of a store are missing, or acknowledged commits are lost from its log,
    /// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) when the path is empty or an option out
    /// of [bounds](crate::bounds), and [`ErrorKind::Io`](crate::ErrorKind::Io).
    #[cfg(feature = "rocks")]
    pub fn open(self, path: impl AsRef<std::path::Path>) -> Result<Store> {
        let engine = self.durable_engine(path)?;
        self.open_engine(engine)
    }

    /// The engine that [`Builder::open`] uses, for a caller that wants to put something in between and hand it to
    /// [`Builder::open_engine`].
    ///
    /// # Errors
    /// Those of [`Builder::open`].
    #[cfg(feature = "rocks")]
    pub fn durable_engine(&self, path: impl AsRef<std::path::Path>) -> Result<Arc<dyn Engine>> {
        use crate::engine::folder::{FolderEngine, FolderStorage};
        self.options.check()?;
        if path.as_ref().as_os_str().is_empty() {
            return Err(crate::error::Error::invalid("a store's path must not be empty"));
        }
        let open = if self.options.read_only { FolderStorage::open_read_only } else { FolderStorage::open };
        Ok(Arc::new(FolderEngine::new(open(path.as_ref(), self.folder_options())?, true)))
    }

    #[cfg(feature = "rocks")]
    pub(in crate::store) fn folder_options(&self) -> crate::engine::folder::FolderOptions {
        crate::engine::folder::FolderOptions {
            block_cache_bytes: self.options.block_cache_bytes,
            write_buffer_bytes: self.options.write_buffer_bytes,
            compression: self.options.compression,
            accept_data_loss: self.options.accept_data_loss,
        }
    }

    /// Opens a store in fresh memory.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) when an option is out of [bounds](crate::bounds), also one that
    /// is of no use in memory.
    pub fn in_memory(self) -> Result<Store> {
        self.open_in_memory(&SimStorage::new())
    }

    /// Opens a store in memory that survives it, and can be crashed: see [`SimStorage`].
    ///
    /// # Errors
    /// Those of [`Builder::in_memory`].
    pub fn open_in_memory(self, memory: &SimStorage) -> Result<Store> {
        self.open_engine(Arc::new(memory.exclusive_engine()))
    }

    /// Opens a store on an engine that this process has for itself.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) when the engine is not exclusive or an option out of
    /// [bounds](crate::bounds), and what the engine answers.
    pub fn open_engine(self, engine: Arc<dyn Engine>) -> Result<Store> {
        self.options.check()?;
        if self.options.read_only {
            return Store::open_read_only(engine, self.options, self.runtime);
        }
        Store::open_exclusive(engine, self.options, self.runtime)
    }

    /// Opens a store as one client of an engine that others use too. Commits always take two phases, and keyspaces
    /// cannot be dropped.
    ///
    /// Every commit keeps what it replaces here, for readers that are behind, but the past cannot be asked for, whatever
    /// [`Builder::history_retention`] says: [`Store::snapshot_at`] answers [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument), and
    /// [`Snapshot::versions`](crate::store::Snapshot::versions) is sure of the newest version only. No client keeps note of the moment from which
    /// on all that was replaced is there, and none collects it.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) when an option, or [`SharedConfig::ttl_ms`], is out of
    /// [bounds](crate::bounds).
    pub fn open_shared(self, commons: SharedConfig) -> Result<Store> {
        self.options.check()?;
        bounds::LOCK_TTL.check(Duration::from_millis(commons.ttl_ms).as_nanos())?;
        Ok(Store::open_shared(commons, self.options, self.runtime))
    }
}
