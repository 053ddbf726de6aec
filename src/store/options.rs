//! Limits and options.

use std::sync::Arc;
use std::time::Duration;

use crate::bounds::{self, OptionOutOfRange, OptionRange};
use crate::coordinator::{CommitProtocol, HistoryRetention};
use crate::engine::Compression;
use crate::runtime::{Env, SystemEnv};

/// The longest key, in bytes. The shortest has one byte.
pub const MAX_KEY_BYTES: usize = 16 << 10;
/// The longest value, in bytes.
pub const MAX_VALUE_BYTES: usize = 32 << 20;
/// The longest name of a keyspace, in bytes.
pub const MAX_KEYSPACE_NAME_BYTES: usize = 255;

/// Room for any row, and more.
pub(in crate::store) const MAX_TRANSACTION_BYTES: usize = 64 << 20;
const LARGE_TRANSACTION_BYTES: usize = 32 << 20;
const CONFLICT_CACHE_ROWS: usize = 1 << 16;
const CONFLICT_CACHE_ROW_BYTES: usize = 40;

/// When a commit is acknowledged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// When it would survive a power cut.
    #[default]
    Sync,
    /// When it would survive the end of the process. A power cut may cost the commits of about the last second, in the order
    /// of their timestamps: never one without all after it.
    Buffered,
}

/// How [`Store::transact`](crate::store::Store::transact) retries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryPolicy {
    /// The most attempts, the first one included; at least 1.
    pub max_attempts: u32,
    /// No new attempt begins when this much time has passed since the call, waiting included. The first attempt is always made.
    pub timeout: Duration,
}

impl RetryPolicy {
    fn check(self) -> Result<(), OptionOutOfRange> {
        bounds::RETRY_MAX_ATTEMPTS.check(self.max_attempts.into())?;
        bounds::RETRY_TIMEOUT.check(self.timeout.as_nanos())
    }
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self { max_attempts: 1000, timeout: Duration::from_secs(30) }
    }
}

/// Options of one transaction; what is `None` goes by the store's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TxnOptions {
    /// When the commit is acknowledged.
    pub durability: Option<Durability>,
    /// How the rows are committed.
    pub commit_protocol: Option<CommitProtocol>,
    /// How retries are bounded. Out of [bounds](crate::bounds) every transaction with these options is refused, by
    /// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) and before it begins, also one that is never retried.
    pub retry_policy: Option<RetryPolicy>,
    /// What the transaction is called where it is met: in [`Store::active_transactions`](crate::store::Store::active_transactions), in [`Store::slow_transactions`](crate::store::Store::slow_transactions), in the conflicts of
    /// those that lose a row to it. Say what it is for, not which one it is. Any text of any length, which is nowhere copied.
    pub label: Option<&'static str>,
}

impl TxnOptions {
    /// Those of the store, with a [label](TxnOptions::label).
    pub const fn with_label(label: &'static str) -> Self {
        Self { durability: None, commit_protocol: None, retry_policy: None, label: Some(label) }
    }

    pub(in crate::store) fn check(&self) -> Result<(), OptionOutOfRange> {
        self.retry_policy.map_or(Ok(()), RetryPolicy::check)
    }
}

/// Options of a store.
#[derive(Clone, Debug)]
pub struct Options {
    /// See [`Builder::durability`].
    pub durability: Durability,
    /// See [`Builder::commit_protocol`].
    pub protocol: CommitProtocol,
    /// See [`Builder::retry_policy`].
    pub retry: RetryPolicy,
    /// See [`Builder::background_resolve`].
    pub background_resolve: bool,
    /// See [`Builder::max_transaction_bytes`].
    pub max_transaction_bytes: usize,
    /// See [`Builder::large_transaction_bytes`].
    pub large_transaction_bytes: usize,
    /// See [`Builder::max_snapshot_age`].
    pub max_snapshot_age: Duration,
    /// See [`Builder::history_retention`].
    pub history_retention: HistoryRetention,
    /// See [`Builder::admission_limit`].
    pub admission_limit: usize,
    /// See [`Builder::memory_budget`].
    pub memory_budget: Option<usize>,
    /// See [`Builder::block_cache_bytes`].
    pub block_cache_bytes: usize,
    /// See [`Builder::write_buffer_bytes`].
    pub write_buffer_bytes: usize,
    /// See [`Builder::compression`].
    pub compression: Compression,
    /// See [`Builder::conflict_cache_rows`].
    pub conflict_cache_rows: usize,
    /// See [`Builder::read_only`].
    pub read_only: bool,
    /// See [`Builder::accept_data_loss`].
    pub accept_data_loss: Option<u64>,
    /// See [`Builder::slow_transaction_threshold`].
    pub slow_transaction_threshold: Duration,
    /// See [`Builder::track_read_timing`].
    pub track_read_timing: bool,
    /// See [`Builder::status_file_interval`].
    pub status_file_interval: Option<Duration>,
    /// See [`Builder::application_name`].
    pub application_name: Option<String>,
}

impl Options {
    /// Refuses what is out of bounds.
    pub(in crate::store) fn check(&self) -> Result<(), OptionOutOfRange> {
        let history = match self.history_retention {
            HistoryRetention::For(time) => Some(time),
            HistoryRetention::Unchanged | HistoryRetention::Disabled => None,
        };
        let time = |bounds: OptionRange, time: Duration| bounds.check(time.as_nanos());
        // What is derived of it would be refused in its stead.
        self.memory_budget.map_or(Ok(()), |bytes| bounds::MEMORY_BUDGET.check(bytes as u128))?;
        bounds::BLOCK_CACHE_BYTES.check(self.block_cache_bytes as u128)?;
        bounds::WRITE_BUFFER_BYTES.check(self.write_buffer_bytes as u128)?;
        bounds::MAX_TRANSACTION_BYTES.check(self.max_transaction_bytes as u128)?;
        bounds::LARGE_TRANSACTION_BYTES.check(self.large_transaction_bytes as u128)?;
        bounds::CONFLICT_CACHE_ROWS.check(self.conflict_cache_rows as u128)?;
        bounds::ADMISSION_LIMIT.check(self.admission_limit as u128)?;
        self.retry.check()?;
        time(bounds::MAX_SNAPSHOT_AGE, self.max_snapshot_age)?;
        history.map_or(Ok(()), |kept| time(bounds::HISTORY_RETENTION, kept))?;
        self.application_name
            .as_ref()
            .map_or(Ok(()), |label| bounds::APPLICATION_NAME_BYTES.check(label.len() as u128))?;
        time(bounds::SLOW_TRANSACTION_THRESHOLD, self.slow_transaction_threshold)?;
        self.status_file_interval.map_or(Ok(()), |every| time(bounds::STATUS_FILE_INTERVAL, every))
    }
}

impl Default for Options {
    fn default() -> Self {
        let cores = std::thread::available_parallelism().map_or(2, usize::from);
        Self {
            durability: Durability::Sync,
            protocol: CommitProtocol::Auto,
            retry: RetryPolicy::default(),
            background_resolve: true,
            max_transaction_bytes: MAX_TRANSACTION_BYTES,
            large_transaction_bytes: LARGE_TRANSACTION_BYTES,
            max_snapshot_age: Duration::from_secs(3600),
            history_retention: HistoryRetention::Unchanged,
            admission_limit: cores.saturating_mul(3),
            memory_budget: None,
            block_cache_bytes: 128 << 20,
            write_buffer_bytes: 128 << 20,
            compression: Compression::Lz4,
            conflict_cache_rows: CONFLICT_CACHE_ROWS,
            read_only: false,
            accept_data_loss: None,
            slow_transaction_threshold: Duration::from_secs(1),
            track_read_timing: false,
            status_file_interval: None,
            application_name: None,
        }
    }
}

/// Sets options and opens a store.
///
/// Setting an option checks nothing. Opening does, whichever way and before anything is created: an option out of its bounds answers
/// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) with the option, the value and the bounds. What lies within is not compared with
/// the memory of the machine. The table is in code, too: [`bounds`].
///
#[doc = include_str!("../bounds.md")]
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
    pub(in crate::store) runtime: Arc<dyn Env>,
}

impl Default for Builder {
    fn default() -> Self {
        Self { options: Options::default(), runtime: Arc::new(SystemEnv::default()) }
    }
}

impl Builder {
    /// When commits are acknowledged, unless a transaction says otherwise. Default: [`Durability::Sync`]. A store opened
    /// [`Durability::Buffered`] also reads what is not durable yet.
    pub fn durability(mut self, durability: Durability) -> Self {
        self.options.durability = durability;
        self
    }

    /// How rows are committed, unless a transaction says otherwise. Default: [`CommitProtocol::Auto`].
    pub fn commit_protocol(mut self, protocol: CommitProtocol) -> Self {
        self.options.protocol = protocol;
        self
    }

    /// Bounds the retries of [`Store::transact`](crate::store::Store::transact). At least one attempt, any time; default: 1000 attempts, 30 seconds.
    pub fn retry_policy(mut self, retry: RetryPolicy) -> Self {
        self.options.retry = retry;
        self
    }

    /// Whether a background thread resolves the row locks that a crash left behind. Default: yes. Opening waits for it in neither case.
    ///
    /// Without it a lock is resolved by the first reader or writer that meets it, and all by
    /// [`Store::resolve_orphan_locks`](crate::store::Store::resolve_orphan_locks). Until that was called, or a sweep in
    /// a later life has come to its end, [`Stats::may_have_orphan_locks`](crate::store::Stats::may_have_orphan_locks)
    /// stays true even if none is left: every read looks for locks, commits ask the engine for them,
    /// and a dropped keyspace keeps its space. A store that was opened without any lock pays nothing.
    pub fn background_resolve(mut self, sweep: bool) -> Self {
        self.options.background_resolve = sweep;
        self
    }

    /// The most bytes of keys and values that one transaction may keep in memory: what it has written and not yet streamed,
    /// and what its savepoints need to go back. Each row counts 64 bytes more. From 64 KiB to 1 GiB; default: 64 MiB.
    ///
    /// A row counts as a whole, so a limit below 32 MiB is one for values, too. A write beyond the limit answers
    /// [`ErrorKind::TooLarge`](crate::ErrorKind::TooLarge), and the transaction stays as it was.
    pub fn max_transaction_bytes(mut self, bytes: usize) -> Self {
        self.options.max_transaction_bytes = bytes;
        self
    }

    /// How much a transaction keeps in memory, counted as in [`Builder::max_transaction_bytes`], before it streams its writes
    /// into the store: see [`Txn`](crate::store::Txn). Where others share the engine nothing is streamed. At least 1, which streams every row;
    /// from [`Builder::max_transaction_bytes`] on none is, and a transaction of more than that is refused. Default: 32 MiB.
    ///
    /// What is not streamed is written at once, takes about four times its bytes of memory meanwhile, and all other commits wait as long:
    /// for 32 MiB in rows of 100 bytes about 0.1 s.
    /// What is streamed takes about five times as long, and others get their turn after 1,024 rows.
    pub fn large_transaction_bytes(mut self, bytes: usize) -> Self {
        self.options.large_transaction_bytes = bytes;
        self
    }

    /// How long a transaction or snapshot may read a state that is no longer the newest; afterwards it is told
    /// [`ErrorKind::SnapshotTooOld`](crate::ErrorKind::SnapshotTooOld). Looked at twice a second. At least a millisecond; with
    /// [`Duration::MAX`] it never ends, and what it keeps from being collected grows for as long. Default: one hour.
    pub fn max_snapshot_age(mut self, age: Duration) -> Self {
        self.options.max_snapshot_age = age;
        self
    }

    /// Has every commit keep the version that it replaces, so that any moment of the last `time` can be read:
    /// [`Store::snapshot_at`](crate::store::Store::snapshot_at), [`Snapshot::versions`](crate::store::Snapshot::versions).
    ///
    /// History begins when a store is first opened so, and goes on, for as long as was asked for last, whenever it is opened
    /// without a word about it: [`Builder::disable_history`] ends it. A commit then reads the rows that it writes, and writes about
    /// twice as much. What is older goes in the background. A keyspace that is dropped keeps its space for as long.
    ///
    /// Any time, of which whole milliseconds count: with [`Duration::ZERO`] what is replaced goes as soon as nobody reads it, with
    /// [`Duration::MAX`] never.
    ///
    /// ```
    /// # fn main() -> percolite::Result<()> {
    /// use std::time::Duration;
    /// let store = percolite::Store::builder().history_retention(Duration::from_secs(24 * 3600)).in_memory()?;
    /// let accounts = store.keyspace("accounts")?;
    /// let mut txn = store.begin()?;
    /// txn.put(&accounts, "alice", "100")?;
    /// let first = txn.commit()?.ts;
    /// store.transact(|txn| txn.put(&accounts, "alice", "70"))?;
    /// assert_eq!(store.snapshot()?.get(&accounts, "alice")?, Some(b"70".to_vec()));
    /// assert_eq!(store.snapshot_at(first)?.get(&accounts, "alice")?, Some(b"100".to_vec()));
    /// # Ok(()) }
    /// ```
    pub fn history_retention(mut self, time: Duration) -> Self {
        self.options.history_retention = HistoryRetention::For(time);
        self
    }

    /// Keeps no replaced versions, even if the store did when it was open last. Those that it has go in the background.
    pub fn disable_history(mut self) -> Self {
        self.options.history_retention = HistoryRetention::Disabled;
        self
    }

    /// How many attempts of [`Store::transact`](crate::store::Store::transact) run at a time while there are conflicts; others wait outside, first come, first
    /// served. One that has waited for a second runs all the same, because those inside may be waiting for it. After sixteen
    /// commits without a conflict everybody is let in. At least 1; with [`usize::MAX`] none ever waits. Default: three times the cores.
    pub fn admission_limit(mut self, attempts: usize) -> Self {
        self.options.admission_limit = attempts;
        self
    }

    /// Memory for blocks read from files, their indexes and filters, in bytes. From 1 MiB to 1 TiB; default: 128 MiB.
    ///
    /// Memory is taken as blocks are read, but addresses for about a fifth of this at once. Where the process may not have so many
    /// (`ulimit -v`, strict overcommit), opening answers [`ErrorKind::Io`](crate::ErrorKind::Io).
    pub fn block_cache_bytes(mut self, bytes: usize) -> Self {
        self.options.block_cache_bytes = bytes;
        self
    }

    /// Memory for writes that are not yet in tables, in bytes. From 256 KiB to 16 GiB; default: 128 MiB.
    ///
    /// Two thirds are for the window, which has what is in the log and not yet in tables, in two generations: one is written, the other is
    /// handed down into the tables. A generation is full at a sixth and may get twice full while the other is still going down; what is
    /// written at once may add to either. The last third is for RocksDB's write buffers during a hand-down. An opening reads what was
    /// not handed down: after a kill about two thirds of this value at most, after several kills in a row as much as this value, or as
    /// a larger one that the store was opened with before.
    ///
    /// A commit waits only when the next generation is twice full and the last one is still being handed down: see
    /// [`Stats::write_stalls`](crate::store::Stats::write_stalls). The smaller this value, the more hand-downs there are.
    pub fn write_buffer_bytes(mut self, bytes: usize) -> Self {
        self.options.write_buffer_bytes = bytes;
        self
    }

    /// How much memory the store is to use altogether, in bytes, instead of saying it part by part: it sets these options, and each
    /// can be set otherwise after it. From 8 MiB to 1 TiB.
    ///
    /// | | share | at least | at most |
    /// |---|---|---|---|
    /// | [`Builder::block_cache_bytes`] | 1/2 | | |
    /// | [`Builder::write_buffer_bytes`] | 1/4 | | 16 GiB |
    /// | [`Builder::max_transaction_bytes`], of each transaction | 1/16 | 1 MiB | 64 MiB |
    /// | [`Builder::large_transaction_bytes`], of each transaction | 1/64 | 256 KiB | 32 MiB |
    /// | [`Builder::conflict_cache_rows`] | 1/64 | | 65,536 |
    ///
    /// The rest is for several transactions at a time, for what RocksDB knows of open files (a few KiB for each table of 64 MiB),
    /// and for the allocator. It is a plan and not a wall: the greatest value, 32 MiB, is kept whole by who reads or writes it, a
    /// transaction that is greater than its share is refused, and each snapshot of another state takes about 1 KiB.
    /// What is really taken: [`Store::engine_stats`](crate::store::Store::engine_stats).
    pub fn memory_budget(mut self, bytes: usize) -> Self {
        let write_buffers_most = bounds::WRITE_BUFFER_BYTES.max.and_then(|most| usize::try_from(most).ok());
        self.options.memory_budget = Some(bytes);
        self.block_cache_bytes(bytes / 2)
            .write_buffer_bytes((bytes / 4).min(write_buffers_most.unwrap_or(usize::MAX)))
            .max_transaction_bytes((bytes / 16).clamp(1 << 20, MAX_TRANSACTION_BYTES))
            .large_transaction_bytes((bytes / 64).clamp(256 << 10, LARGE_TRANSACTION_BYTES))
            .conflict_cache_rows((bytes / 64 / CONFLICT_CACHE_ROW_BYTES).min(CONFLICT_CACHE_ROWS))
    }

    /// How tables are compressed that are written from now on. Default: [`Compression::Lz4`]. A store may have tables of both sorts,
    /// and can be opened with either.
    pub fn compression(mut self, compression: Compression) -> Self {
        self.options.compression = compression;
        self
    }

    /// How many rows' last commits are remembered, so that they need not be read to find a conflict: 32 bytes each, and
    /// 20 to 40 more for each row that was held ([`Txn::get_for_update`](crate::store::Txn::get_for_update)) without being written. A
    /// transaction that goes on while more such holds than this are committed may meet a conflict that is none.
    /// From 1 to 4,194,304, rounded up to a power of two; default: 65,536.
    pub fn conflict_cache_rows(mut self, slots: usize) -> Self {
        self.options.conflict_cache_rows = slots;
        self
    }

    /// Whether the store is only to be looked at: nothing in its folder is changed, so it may lie on a read-only file system, and
    /// no row lock is resolved. What is in the log and not in tables is read into memory. What it shows is everything committed when it
    /// was opened; the locks of a transaction that died after its commit point read as committed, those of any other as if they were
    /// not there. Writing answers [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument). Default: no.
    ///
    /// After a power cut an opening to write may have to come first: it mends a manifest of RocksDB's of which the cut has left a part,
    /// and an [`ErrorKind::Io`](crate::ErrorKind::Io) says so here.
    ///
    /// Any number of readers may have a folder open, but not beside a writer: whoever comes second is told
    /// [`ErrorKind::AlreadyOpen`](crate::ErrorKind::AlreadyOpen). What a store does that is in use, its process tells by [`Builder::status_file_interval`]; to look at its rows, look at
    /// a [`Store::checkpoint`](crate::store::Store::checkpoint).
    ///
    /// ```
    /// # fn main() -> percolite::Result<()> {
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let path = folder.path().join("bank");
    /// # #[cfg(feature = "rocks")]
    /// # {
    /// # percolite::Store::open(&path)?.close()?;
    /// let store = percolite::Store::builder().read_only(true).open(&path)?;
    /// println!("{:?}", store.keyspaces()?);
    /// # }
    /// # Ok(()) }
    /// ```
    pub fn read_only(mut self, read_only: bool) -> Self {
        self.options.read_only = read_only;
        self
    }

    /// Opens a store whose log has lost acknowledged commits, without them. Opening returns an
    /// [`ErrorKind::Corruption`](crate::ErrorKind::Corruption) that names such a loss by its fingerprint, a number; only the loss with this
    /// number is accepted, and on a store without a loss, or with another one, this has no effect. Default: none is.
    ///
    /// The store goes on with the commits from before the damage; all later ones are gone, though some may still be whole in the log. The
    /// damaged segment and later ones are kept in the folder, in `log/lost-…`, and [`Store::data_losses`](crate::store::Store::data_losses)
    /// returns the loss as long as its record is there. A backup, or [`Builder::repair`], may be the better way. An opening
    /// [to read only](Builder::read_only) changes nothing, so it accepts no loss either.
    pub fn accept_data_loss(mut self, fingerprint: u64) -> Self {
        self.options.accept_data_loss = Some(fingerprint);
        self
    }

    /// From how long on a transaction, or a call of [`Store::transact`](crate::store::Store::transact) with its waiting and all its attempts, is noted in
    /// [`Store::slow_transactions`](crate::store::Store::slow_transactions). Default: one second, since trouble does not wait until somebody asks for a log, and the log costs
    /// nothing while nothing is slow. Any time: [`Duration::ZERO`] notes every transaction, [`Duration::MAX`] switches it off.
    pub fn slow_transaction_threshold(mut self, from: Duration) -> Self {
        self.options.slow_transaction_threshold = from;
        self
    }

    /// Whether transactions measure how long they read, so that [`TimeBreakdown::read`](crate::store::TimeBreakdown::read) can tell reading
    /// from the caller's own code. Costs each read of a transaction two looks at the clock, some 50 ns; reads of snapshots are
    /// not measured. Default: no.
    pub fn track_read_timing(mut self, time: bool) -> Self {
        self.options.track_read_timing = time;
        self
    }

    /// Writes what the store does ([`Store::status`](crate::store::Store::status)) into its folder, about as often as this but not oftener than twice a second, for
    /// whoever looks at it from another process: `percolite top`, `stats`, `locks` and `txn`, or
    /// [`StoreStatus::read_from`](crate::store::StoreStatus::read_from). At most a day. Default: not at all.
    ///
    /// The file is called `STATUS` and is JSON. A background thread writes it, some KiB, at most 200 and mostly without a disk taking
    /// note, as nothing is synced; transactions are not held up. It tells labels, names of keyspaces and the keys of rows that were
    /// locked or in conflict, to everybody who may read the folder. It goes when the store is closed. A process that was killed leaves it, and
    /// the next writer takes it away. It is no part of a checkpoint. Has no effect [read-only](Builder::read_only) or in memory.
    ///
    /// ```
    /// # #[cfg(feature = "rocks")]
    /// # fn main() -> percolite::Result<()> {
    /// use percolite::{Status, Store};
    /// use std::time::Duration;
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let path = folder.path().join("bank");
    /// let store = Store::builder().status_file_interval(Duration::from_secs(1)).open(&path)?;
    /// // In another process, some time later:
    /// if let Some(status) = StoreStatus::read_from(&path)? {
    ///     println!("process {} has committed {} times", status.pid, status.stats.commits());
    /// }
    /// # Ok(()) }
    /// # #[cfg(not(feature = "rocks"))]
    /// # fn main() {}
    /// ```
    pub fn status_file_interval(mut self, every: Duration) -> Self {
        self.options.status_file_interval = Some(every);
        self
    }

    /// What this process calls itself where others find a lock held by it: in [`LockEntry::holder`](crate::LockHolder), and in the rows of
    /// leases, which outlive it. At most 255 bytes. Default: nothing, the process's number alone.
    pub fn application_name(mut self, label: &str) -> Self {
        self.options.application_name = Some(label.into());
        self
    }

    /// Replaces clock, randomness and threads, for simulations.
    pub fn runtime(mut self, runtime: Arc<dyn Env>) -> Self {
        self.runtime = runtime;
        self
    }
}
