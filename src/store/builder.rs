//! Setting the options of a store: see [`open`](super::open) for opening it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::coordinator::{CommitProtocol, HistoryRetention};
use crate::engine::Compression;
use crate::env::{Env, SystemEnv};
use crate::option_ranges;
use crate::store::options::{
    CONFLICT_SET_ROW_BYTES, CONFLICT_SET_ROWS, Durability, LARGE_TRANSACTION_BYTES, MAX_TRANSACTION_BYTES, Options,
    RetryPolicy,
};

/// Sets options and opens a store.
///
/// Options are checked when the store is opened, before anything is created. An option out of its
/// range returns [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) with the option,
/// the value and the range. The ranges do not depend on the machine's memory. In code they are in
/// [`option_ranges`].
///
#[doc = include_str!("../option_ranges.md")]
///
/// ```
/// # fn main() -> percolite::Result<()> {
/// use percolite::{Durability, Store};
/// let store = Store::builder().durability(Durability::Buffered).in_memory()?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
#[must_use]
pub struct Builder {
    pub(in crate::store) options: Options,
    pub(in crate::store) env: Arc<dyn Env>,
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder").field("options", &self.options).finish_non_exhaustive()
    }
}

impl Default for Builder {
    fn default() -> Self {
        Self { options: Options::default(), env: Arc::new(SystemEnv::default()) }
    }
}

impl Builder {
    /// When commits are acknowledged, unless a transaction has its own option. Default:
    /// [`Durability::Sync`]. In a store opened with [`Durability::Buffered`] snapshots also show
    /// commits that are not durable yet.
    pub fn durability(mut self, durability: Durability) -> Self {
        self.options.durability = durability;
        self
    }

    /// How rows are committed, unless a transaction has its own option. Default:
    /// [`CommitProtocol::Auto`].
    pub fn commit_protocol(mut self, protocol: CommitProtocol) -> Self {
        self.options.protocol = protocol;
        self
    }

    /// The limits of the retries of [`Store::transact`](crate::store::Store::transact): at least
    /// one attempt, any timeout. Default: 1000 attempts, 30 seconds.
    pub fn retry_policy(mut self, retry: RetryPolicy) -> Self {
        self.options.retry = retry;
        self
    }

    /// Whether the background worker resolves the orphan locks that a crash has left. Default: yes.
    /// Opening a store never waits for the worker.
    ///
    /// Without the worker, the first read or write that meets an orphan lock resolves it, and
    /// [`Store::resolve_orphan_locks`](crate::store::Store::resolve_orphan_locks) resolves all of
    /// them. Until that call, or the background worker of a later incarnation, has finished,
    /// [`Stats::may_have_orphan_locks`](crate::store::Stats::may_have_orphan_locks) stays true even
    /// if no lock is left. While it is true, every read checks for locks, commits read them from
    /// the engine, and a dropped keyspace keeps its space. A store that was opened without any lock
    /// has no such cost.
    pub fn background_resolve(mut self, enabled: bool) -> Self {
        self.options.background_resolve = enabled;
        self
    }

    /// The maximum size of a transaction in memory: its buffered writes, and what its savepoints
    /// need to undo writes. The size is that of the keys and values in bytes, plus 64 for each row.
    /// From 64 KiB to 1 GiB; default: 64 MiB.
    ///
    /// Each value counts in full, so a limit below 32 MiB, the maximum size of a value, also limits
    /// values. A write beyond the limit returns [`ErrorKind::TooLarge`](crate::ErrorKind::TooLarge)
    /// and leaves the transaction as it was.
    pub fn max_transaction_bytes(mut self, bytes: usize) -> Self {
        self.options.max_transaction_bytes = bytes;
        self
    }

    /// The size in memory, counted as in [`Builder::max_transaction_bytes`], at which a transaction
    /// becomes a large one and locks its rows in the store: see [`Txn`](crate::store::Txn). At
    /// least 1; with 1, every row is locked when it is written. If this size is above
    /// [`Builder::max_transaction_bytes`], there are no large transactions, and a transaction above
    /// that limit is refused. No effect on a shared engine. Default: 32 MiB.
    ///
    /// A transaction below this size is written in one batch. The batch needs memory of about four
    /// times the transaction's size, and all other commits wait for it: about 0.1 s for 32 MiB in
    /// rows of 100 bytes. To write the same rows as a large transaction takes about five times as
    /// long, but other commits can proceed after every 1,024 rows.
    pub fn large_transaction_bytes(mut self, bytes: usize) -> Self {
        self.options.large_transaction_bytes = bytes;
        self
    }

    /// How long a transaction or snapshot may read a state that is not the newest; after that its
    /// calls return [`ErrorKind::SnapshotTooOld`](crate::ErrorKind::SnapshotTooOld). The age is
    /// checked twice a second; the limit is at least a millisecond. With [`Duration::MAX`] no
    /// transaction or snapshot expires, and what they keep from GC grows without limit. Default:
    /// one hour.
    pub fn max_snapshot_age(mut self, age: Duration) -> Self {
        self.options.max_snapshot_age = age;
        self
    }

    /// Keeps replaced versions for this time, so that
    /// [`Store::snapshot_at`](crate::store::Store::snapshot_at) and
    /// [`Snapshot::versions`](crate::store::Snapshot::versions) can read what was valid at any
    /// timestamp in that time. Default: the retention with which the store was last opened; a new
    /// store keeps none.
    ///
    /// The history begins when a store is first opened with this option. It continues with the last
    /// retention whenever the store is opened without this option; [`Builder::disable_history`]
    /// ends it. With history a commit reads the rows that it writes, and writes about twice as
    /// much. GC removes older versions in the background. A dropped keyspace keeps its space for
    /// the same time.
    ///
    /// Any duration, counted in whole milliseconds. With [`Duration::ZERO`] GC removes a replaced
    /// version as soon as no transaction or snapshot can read it, with [`Duration::MAX`] never.
    ///
    /// ```
    /// # fn main() -> percolite::Result<()> {
    /// use std::time::Duration;
    /// let store = percolite::Store::builder()
    ///     .history_retention(Duration::from_secs(24 * 3600))
    ///     .in_memory()?;
    /// let accounts = store.keyspace("accounts")?;
    /// let mut txn = store.begin()?;
    /// txn.put(&accounts, "alice", "100")?;
    /// let first = txn.commit()?.commit_ts;
    /// store.transact(|txn| txn.put(&accounts, "alice", "70"))?;
    /// assert_eq!(store.get(&accounts, "alice")?, Some("70".into()));
    /// assert_eq!(store.snapshot_at(first)?.get(&accounts, "alice")?, Some("100".into()));
    /// # Ok(()) }
    /// ```
    pub fn history_retention(mut self, time: Duration) -> Self {
        self.options.history_retention = HistoryRetention::For(time);
        self
    }

    /// Ends the history of the store, if it has one. GC removes the existing replaced versions in
    /// the background.
    pub fn disable_history(mut self) -> Self {
        self.options.history_retention = HistoryRetention::Disabled;
        self
    }

    /// The maximum number of attempts of [`Store::transact`](crate::store::Store::transact) that
    /// run at once while there are conflicts. The others wait for a permit, first come, first
    /// served, retries before first attempts. An attempt that has waited for one second runs
    /// without a permit, because the closure of a running attempt may in turn be waiting for this
    /// attempt. After sixteen commits in a row without a conflict no permit is needed, except by
    /// attempts of an `AsyncStore`, which always need one. At least 1; with [`usize::MAX`] no
    /// attempt ever waits for one. Default: three times the number of cores.
    pub fn admission_limit(mut self, attempts: usize) -> Self {
        self.options.admission_limit = attempts;
        self
    }

    /// The size of the block cache, in bytes: memory for blocks read from files, with their indexes
    /// and filters. From 1 MiB to 1 TiB; default: 128 MiB.
    ///
    /// Memory is allocated as blocks are read, but address space for about a fifth of this size is
    /// reserved at opening. If the process may not reserve that much (strict overcommit), or if its
    /// limits of memory (`ulimit -v`, `ulimit -d`) have less than what an opening can take, opening
    /// returns [`ErrorKind::Io`](crate::ErrorKind::Io).
    pub fn block_cache_bytes(mut self, bytes: usize) -> Self {
        self.options.block_cache_bytes = bytes;
        self
    }

    /// Memory for all writes that are not yet in the tables, in bytes, like RocksDB's
    /// `db_write_buffer_size`. From 256 KiB to 16 GiB; default: 128 MiB.
    ///
    /// Two thirds are for two memtables: one takes writes while the other, immutable one is flushed
    /// to the tables. A memtable is full at a sixth of this size, but grows further, to twice that
    /// plus one batch at most, while the other is still being flushed. The last third is for
    /// RocksDB's write buffers during a flush.
    ///
    /// Opening reads the part of the write-ahead log that was not flushed. After a kill, that part
    /// is at most about two thirds of this size. After several kills in a row, it is at most this
    /// size or the size with which the store was opened before, whichever is larger.
    ///
    /// A commit waits only if the memtable has grown to a third of this size and the immutable one
    /// is still being flushed: see [`Stats::write_stalls`](crate::store::Stats::write_stalls). The
    /// smaller this size, the more flushes.
    pub fn write_buffer_bytes(mut self, bytes: usize) -> Self {
        self.options.write_buffer_bytes = bytes;
        self
    }

    /// The memory that the store is to use in total, in bytes. It sets the following options; each
    /// can be changed after this call. From 8 MiB to 1 TiB.
    ///
    /// | | share | at least | at most |
    /// |---|---|---|---|
    /// | [`Builder::block_cache_bytes`] | 1/2 | | |
    /// | [`Builder::write_buffer_bytes`] | 1/4 | | 16 GiB |
    /// | [`Builder::max_transaction_bytes`], of each transaction | 1/16 | 1 MiB | 64 MiB |
    /// | [`Builder::large_transaction_bytes`], of each transaction | 1/64 | 256 KiB | 32 MiB |
    /// | [`Builder::conflict_set_rows`] | 1/64 | | 65,536 rows |
    ///
    /// The rest is for several concurrent transactions, for RocksDB's metadata of open files (a few
    /// KiB for each table of 64 MiB), and for the allocator. This size is a budget, not a hard
    /// limit: a row's value, up to 32 MiB, is in memory as a whole while it is read or written. A
    /// transaction above [`Builder::max_transaction_bytes`] is refused. Open snapshots take about
    /// 1 KiB for each distinct state that they show. For the actual use see
    /// [`Store::engine_stats`](crate::store::Store::engine_stats).
    pub fn memory_budget(mut self, bytes: usize) -> Self {
        let write_buffers_most = option_ranges::WRITE_BUFFER_BYTES.max.and_then(|most| usize::try_from(most).ok());
        self.options.memory_budget = Some(bytes);
        self.block_cache_bytes(bytes / 2)
            .write_buffer_bytes((bytes / 4).min(write_buffers_most.unwrap_or(usize::MAX)))
            .max_transaction_bytes((bytes / 16).clamp(1 << 20, MAX_TRANSACTION_BYTES))
            .large_transaction_bytes((bytes / 64).clamp(256 << 10, LARGE_TRANSACTION_BYTES))
            .conflict_set_rows((bytes / 64 / CONFLICT_SET_ROW_BYTES).min(CONFLICT_SET_ROWS))
    }

    /// The compression of new tables. Default: [`Compression::Lz4`]. A store may have compressed
    /// and uncompressed tables, and can be opened with either option.
    pub fn compression(mut self, compression: Compression) -> Self {
        self.options.compression = compression;
        self
    }

    /// The number of rows in the conflict set: rows whose last commit timestamp is in memory, so
    /// that checking for a conflict need not read them. Each takes 32 bytes. A row with a lock-only
    /// commit ([`Txn::get_for_update`](crate::store::Txn::get_for_update) without a write) takes 20
    /// to 40 bytes more. If more than about half this number of rows get a lock-only commit while a
    /// transaction runs, the transaction may see a spurious conflict. From 1 to 4,194,304, rounded
    /// up to a power of two; default: 65,536.
    pub fn conflict_set_rows(mut self, rows: usize) -> Self {
        self.options.conflict_set_rows = rows;
        self
    }

    /// Opens the store read-only. Nothing in its directory is changed, so the directory may be on a
    /// read-only file system, and no row lock is resolved. The part of the write-ahead log that is
    /// not in the tables is read into memory. Writes return
    /// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument). Default: no.
    ///
    /// The store shows everything that was committed when it was opened. If a transaction had
    /// passed its commit point when its process ended, the rows that it still locks show their
    /// committed values. Other locks are ignored.
    ///
    /// After a power cut the store may have to be opened for writing first, to repair a RocksDB
    /// manifest that the power cut has torn. Until then, a read-only open returns an
    /// [`ErrorKind::Io`](crate::ErrorKind::Io) that says so.
    ///
    /// Several read-only stores may have a directory open, but not together with a writable one:
    /// whichever is opened later gets [`ErrorKind::AlreadyOpen`](crate::ErrorKind::AlreadyOpen). To
    /// observe a store that is in use, let its process write its status
    /// ([`Builder::status_file_interval`]). To read its rows, open a
    /// [`Store::checkpoint`](crate::store::Store::checkpoint).
    ///
    /// ```
    /// # fn main() -> percolite::Result<()> {
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let path = directory.path().join("bank");
    /// # #[cfg(feature = "rocks")]
    /// # {
    /// # percolite::Store::open(&path)?.close()?;
    /// let store = percolite::Store::builder().read_only(true).open(&path)?;
    /// println!("{:?}", store.keyspace_names()?);
    /// # }
    /// # Ok(()) }
    /// ```
    pub fn read_only(mut self, read_only: bool) -> Self {
        self.options.read_only = read_only;
        self
    }

    /// Opens a store whose write-ahead log has lost acknowledged commits, and gives these commits
    /// up. Without this option, opening such a store returns an
    /// [`ErrorKind::Corruption`](crate::ErrorKind::Corruption) with the fingerprint of the loss, a
    /// number. Only the loss with this fingerprint is accepted; if there is no loss, or another
    /// loss, the option has no effect. Default: no loss is accepted.
    ///
    /// The store continues with the commits from before the damage. All later commits are lost,
    /// though some may still be intact in the log. The damaged segment and all later segments are
    /// quarantined as `wal/lost-…` in the directory.
    /// [`Store::data_losses`](crate::store::Store::data_losses) lists the loss until its text file,
    /// `wal/lost-….txt`, is deleted and the store reopened. A backup or [`Builder::repair`] may be
    /// the better choice. A [read-only](Builder::read_only) open changes nothing, so it accepts no
    /// loss.
    pub fn accept_data_loss(mut self, fingerprint: u64) -> Self {
        self.options.accept_data_loss = Some(fingerprint);
        self
    }

    /// The duration from which a transaction, or a whole call of
    /// [`Store::transact`](crate::store::Store::transact) with its waits and attempts, is recorded
    /// in [`Store::slow_transactions`](crate::store::Store::slow_transactions). The recording is on
    /// by default, because a slow transaction cannot be recorded afterwards; it costs nothing while
    /// no transaction is slow. Any duration: [`Duration::ZERO`] records every transaction,
    /// [`Duration::MAX`] none. Default: one second.
    pub fn slow_transaction_threshold(mut self, threshold: Duration) -> Self {
        self.options.slow_transaction_threshold = threshold;
        self
    }

    /// Whether transactions measure the time of their reads, so that
    /// [`TimeBreakdown::read`](crate::store::TimeBreakdown::read) separates this time from that of
    /// the caller's own code. Each read of a transaction then reads the clock twice, some 50 ns.
    /// Reads of snapshots are not measured. Default: no.
    pub fn track_read_timing(mut self, enabled: bool) -> Self {
        self.options.track_read_timing = enabled;
        self
    }

    /// Writes the store's [`Store::status`](crate::store::Store::status) to a file in its
    /// directory, about at this interval but at most twice a second. Other processes read the file:
    /// `percolite top`, `stats`, `locks` and `txn`, or
    /// [`StoreStatus::read_from`](crate::store::StoreStatus::read_from). The interval is at most a
    /// day. Default: no file.
    ///
    /// The file `STATUS` is JSON. The background worker writes some KiB, at most 200, without a
    /// sync and mostly without disk I/O; transactions do not wait for it. Every user who may read
    /// the directory can read the file: it shows labels, names of keyspaces, and keys of rows that
    /// were locked or in conflict.
    ///
    /// Closing the store removes the file. If a process was killed, the file stays until a process
    /// opens the store for writing. A checkpoint does not contain it. No effect on a
    /// [read-only](Builder::read_only) store or in memory.
    ///
    /// ```
    /// # #[cfg(feature = "rocks")]
    /// # fn main() -> percolite::Result<()> {
    /// use percolite::{Store, StoreStatus};
    /// use std::time::Duration;
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let path = directory.path().join("bank");
    /// let store = Store::builder().status_file_interval(Duration::from_secs(1)).open(&path)?;
    /// // In another process, some time later:
    /// if let Some(status) = StoreStatus::read_from(&path)? {
    ///     println!("process {} has committed {} times", status.pid, status.stats.commits());
    /// }
    /// # Ok(()) }
    /// # #[cfg(not(feature = "rocks"))]
    /// # fn main() {}
    /// ```
    pub fn status_file_interval(mut self, interval: Duration) -> Self {
        self.options.status_file_interval = Some(interval);
        self
    }

    /// A name for this process, shown with the named locks that it holds: see
    /// [`LockEntry::holder`](crate::LockEntry::holder). The store keeps the name with each lease,
    /// because a lease may outlive the process. At most 255 bytes. Default: no name, only the
    /// process id.
    pub fn application_name(mut self, name: &str) -> Self {
        self.options.application_name = Some(name.into());
        self
    }

    /// Replaces clock, randomness and threads, for simulations: see [`Env`].
    pub fn env(mut self, env: Arc<dyn Env>) -> Self {
        self.env = env;
        self
    }
}
