//! Limits and options.

use std::sync::Arc;
use std::time::Duration;

use crate::bounds::{self, Bounds, OutOfBounds};
use crate::coordinator::{CommitProtocol, KeepHistory};
use crate::engine::Compression;
use crate::runtime::{Runtime, System};

/// The longest key, in bytes. The shortest has one byte.
pub const KEY_MAX_BYTES: usize = 16 << 10;
/// The longest value, in bytes.
pub const VALUE_MAX_BYTES: usize = 32 << 20;
/// The longest name of a keyspace, in bytes.
pub const KEYSPACE_NAME_MAX_BYTES: usize = 255;

/// Room for any row, and more.
pub(super) const TRANSACTION_MAX_BYTES: usize = 64 << 20;
const STREAM_AT_BYTES: usize = 32 << 20;
const CONFLICT_SLOTS: usize = 1 << 16;
const CONFLICT_SLOT_BYTES: usize = 40;

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

/// How [`Store::transact`](super::Store::transact) retries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryLimits {
    /// The most attempts, the first one included; at least 1.
    pub attempts: u32,
    /// No new attempt begins when this much time has passed since the call, waiting included. The first attempt is always made.
    pub time: Duration,
}

impl RetryLimits {
    fn check(self) -> Result<(), OutOfBounds> {
        bounds::RETRY_ATTEMPTS.check(self.attempts.into())?;
        bounds::RETRY_TIME.check(self.time.as_nanos())
    }
}

impl Default for RetryLimits {
    fn default() -> Self {
        Self { attempts: 1000, time: Duration::from_secs(30) }
    }
}

/// Options of one transaction; what is `None` goes by the store's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TxnOptions {
    /// When the commit is acknowledged.
    pub durability: Option<Durability>,
    /// How the rows are committed.
    pub protocol: Option<CommitProtocol>,
    /// How retries are bounded. Out of [bounds](crate::bounds) every transaction with these options is refused, by
    /// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) and before it begins, also one that is never retried.
    pub retry: Option<RetryLimits>,
    /// What the transaction is called where it is met: in [`Store::live`](super::Store::live), in [`Store::slow_transactions`](super::Store::slow_transactions), in the conflicts of
    /// those that lose a row to it. Say what it is for, not which one it is. Any text of any length, which is nowhere copied.
    pub label: Option<&'static str>,
}

impl TxnOptions {
    /// Those of the store, with a [label](TxnOptions::label).
    pub const fn labelled(label: &'static str) -> Self {
        Self { durability: None, protocol: None, retry: None, label: Some(label) }
    }

    pub(super) fn check(&self) -> Result<(), OutOfBounds> {
        self.retry.map_or(Ok(()), RetryLimits::check)
    }
}

/// Options of a store.
#[derive(Clone, Debug)]
pub struct Options {
    /// See [`Builder::durability`].
    pub durability: Durability,
    /// See [`Builder::protocol`].
    pub protocol: CommitProtocol,
    /// See [`Builder::retry`].
    pub retry: RetryLimits,
    /// See [`Builder::sweep`].
    pub sweep: bool,
    /// See [`Builder::transaction_max_bytes`].
    pub transaction_max_bytes: usize,
    /// See [`Builder::stream_at_bytes`].
    pub stream_at_bytes: usize,
    /// See [`Builder::age_max`].
    pub age_max: Duration,
    /// See [`Builder::history`].
    pub history: KeepHistory,
    /// See [`Builder::admission`].
    pub admission: usize,
    /// See [`Builder::memory_limit`].
    pub memory_limit: Option<usize>,
    /// See [`Builder::cache_bytes`].
    pub cache_bytes: usize,
    /// See [`Builder::write_buffer_bytes`].
    pub write_buffer_bytes: usize,
    /// See [`Builder::compression`].
    pub compression: Compression,
    /// See [`Builder::conflict_slots`].
    pub conflict_slots: usize,
    /// See [`Builder::read_only`].
    pub read_only: bool,
    /// See [`Builder::accept_lost_commits`].
    pub accept_lost_commits: Option<u64>,
    /// See [`Builder::slow_transaction`].
    pub slow_transaction: Duration,
    /// See [`Builder::time_reads`].
    pub time_reads: bool,
    /// See [`Builder::publish_status`].
    pub publish_status: Option<Duration>,
    /// See [`Builder::label`].
    pub label: Option<String>,
}

impl Options {
    /// Refuses what is out of bounds.
    pub(super) fn check(&self) -> Result<(), OutOfBounds> {
        let history = match self.history {
            KeepHistory::For(time) => Some(time),
            KeepHistory::AsBefore | KeepHistory::Never => None,
        };
        let time = |bounds: Bounds, time: Duration| bounds.check(time.as_nanos());
        // What is derived of it would be refused in its stead.
        self.memory_limit.map_or(Ok(()), |bytes| bounds::MEMORY_LIMIT.check(bytes as u128))?;
        bounds::CACHE_BYTES.check(self.cache_bytes as u128)?;
        bounds::WRITE_BUFFER_BYTES.check(self.write_buffer_bytes as u128)?;
        bounds::TRANSACTION_MAX_BYTES.check(self.transaction_max_bytes as u128)?;
        bounds::STREAM_AT_BYTES.check(self.stream_at_bytes as u128)?;
        bounds::CONFLICT_SLOTS.check(self.conflict_slots as u128)?;
        bounds::ADMISSION.check(self.admission as u128)?;
        self.retry.check()?;
        time(bounds::AGE_MAX, self.age_max)?;
        history.map_or(Ok(()), |kept| time(bounds::HISTORY, kept))?;
        self.label.as_ref().map_or(Ok(()), |label| bounds::LABEL_BYTES.check(label.len() as u128))?;
        time(bounds::SLOW_TRANSACTION, self.slow_transaction)?;
        self.publish_status.map_or(Ok(()), |every| time(bounds::PUBLISH_STATUS, every))
    }
}

impl Default for Options {
    fn default() -> Self {
        let cores = std::thread::available_parallelism().map_or(2, usize::from);
        Self {
            durability: Durability::Sync,
            protocol: CommitProtocol::Auto,
            retry: RetryLimits::default(),
            sweep: true,
            transaction_max_bytes: TRANSACTION_MAX_BYTES,
            stream_at_bytes: STREAM_AT_BYTES,
            age_max: Duration::from_secs(3600),
            history: KeepHistory::AsBefore,
            admission: cores.saturating_mul(3),
            memory_limit: None,
            cache_bytes: 128 << 20,
            write_buffer_bytes: 128 << 20,
            compression: Compression::Lz4,
            conflict_slots: CONFLICT_SLOTS,
            read_only: false,
            accept_lost_commits: None,
            slow_transaction: Duration::from_secs(1),
            time_reads: false,
            publish_status: None,
            label: None,
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
    pub(super) options: Options,
    pub(super) runtime: Arc<dyn Runtime>,
}

impl Default for Builder {
    fn default() -> Self {
        Self { options: Options::default(), runtime: Arc::new(System::default()) }
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
    pub fn protocol(mut self, protocol: CommitProtocol) -> Self {
        self.options.protocol = protocol;
        self
    }

    /// Bounds the retries of [`Store::transact`](super::Store::transact). At least one attempt, any time; default: 1000 attempts, 30 seconds.
    pub fn retry(mut self, retry: RetryLimits) -> Self {
        self.options.retry = retry;
        self
    }

    /// Whether a background thread resolves the row locks that a crash left behind. Default: yes. Opening waits for it in neither case.
    ///
    /// Without it a lock is resolved by the first reader or writer that meets it, and all by
    /// [`Store::resolve_orphans`](super::Store::resolve_orphans). Until that was called, or a sweep in
    /// a later life has come to its end, [`Stats::may_have_orphans`](super::Stats::may_have_orphans)
    /// stays true even if none is left: every read looks for locks, commits ask the engine for them,
    /// and a dropped keyspace keeps its space. A store that was opened without any lock pays nothing.
    pub fn sweep(mut self, sweep: bool) -> Self {
        self.options.sweep = sweep;
        self
    }

    /// The most bytes of keys and values that one transaction may keep in memory: what it has written and not yet streamed,
    /// and what its savepoints need to go back. Each row counts 64 bytes more. From 64 KiB to 1 GiB; default: 64 MiB.
    ///
    /// A row counts as a whole, so a limit below 32 MiB is one for values, too. A write beyond the limit answers
    /// [`ErrorKind::TooLarge`](crate::ErrorKind::TooLarge), and the transaction stays as it was.
    pub fn transaction_max_bytes(mut self, bytes: usize) -> Self {
        self.options.transaction_max_bytes = bytes;
        self
    }

    /// How much a transaction keeps in memory, counted as in [`Builder::transaction_max_bytes`], before it streams its writes
    /// into the store: see [`Txn`](super::Txn). Where others share the engine nothing is streamed. At least 1, which streams every row;
    /// from [`Builder::transaction_max_bytes`] on none is, and a transaction of more than that is refused. Default: 32 MiB.
    ///
    /// What is not streamed is written at once, takes about four times its bytes of memory meanwhile, and all other commits wait as long:
    /// for 32 MiB in rows of 100 bytes about 0.1 s.
    /// What is streamed takes about five times as long, and others get their turn after 1,024 rows.
    pub fn stream_at_bytes(mut self, bytes: usize) -> Self {
        self.options.stream_at_bytes = bytes;
        self
    }

    /// How long a transaction or snapshot may read a state that is no longer the newest; afterwards it is told
    /// [`ErrorKind::SnapshotTooOld`](crate::ErrorKind::SnapshotTooOld). Looked at twice a second. At least a millisecond; with
    /// [`Duration::MAX`] it never ends, and what it keeps from being collected grows for as long. Default: one hour.
    pub fn age_max(mut self, age: Duration) -> Self {
        self.options.age_max = age;
        self
    }

    /// Has every commit keep the version that it replaces, so that any moment of the last `time` can be read:
    /// [`Store::snapshot_at`](super::Store::snapshot_at), [`Snapshot::versions`](super::Snapshot::versions).
    ///
    /// History begins when a store is first opened so, and goes on, for as long as was asked for last, whenever it is opened
    /// without a word about it: [`Builder::no_history`] ends it. A commit then reads the rows that it writes, and writes about
    /// twice as much. What is older goes in the background. A keyspace that is dropped keeps its space for as long.
    ///
    /// Any time, of which whole milliseconds count: with [`Duration::ZERO`] what is replaced goes as soon as nobody reads it, with
    /// [`Duration::MAX`] never.
    ///
    /// ```
    /// # fn main() -> percolite::Result<()> {
    /// use std::time::Duration;
    /// let store = percolite::Store::builder().history(Duration::from_secs(24 * 3600)).in_memory()?;
    /// let accounts = store.keyspace("accounts")?;
    /// let mut txn = store.begin()?;
    /// txn.put(&accounts, "alice", "100")?;
    /// let first = txn.commit()?.ts;
    /// store.transact(|txn| txn.put(&accounts, "alice", "70"))?;
    /// assert_eq!(store.snapshot()?.get(&accounts, "alice")?, Some(b"70".to_vec()));
    /// assert_eq!(store.snapshot_at(first)?.get(&accounts, "alice")?, Some(b"100".to_vec()));
    /// # Ok(()) }
    /// ```
    pub fn history(mut self, time: Duration) -> Self {
        self.options.history = KeepHistory::For(time);
        self
    }

    /// Keeps no replaced versions, even if the store did when it was open last. Those that it has go in the background.
    pub fn no_history(mut self) -> Self {
        self.options.history = KeepHistory::Never;
        self
    }

    /// How many attempts of [`Store::transact`](super::Store::transact) run at a time while there are conflicts; others wait outside, first come, first
    /// served. One that has waited for a second runs all the same, because those inside may be waiting for it. After sixteen
    /// commits without a conflict everybody is let in. At least 1; with [`usize::MAX`] none ever waits. Default: three times the cores.
    pub fn admission(mut self, attempts: usize) -> Self {
        self.options.admission = attempts;
        self
    }

    /// Memory for blocks read from files, their indexes and filters, in bytes. From 1 MiB to 1 TiB; default: 128 MiB.
    ///
    /// Memory is taken as blocks are read, but addresses for about a fifth of this at once. Where the process may not have so many
    /// (`ulimit -v`, strict overcommit), opening answers [`ErrorKind::Io`](crate::ErrorKind::Io).
    pub fn cache_bytes(mut self, bytes: usize) -> Self {
        self.options.cache_bytes = bytes;
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
    /// [`Stats::write_stalls`](super::Stats::write_stalls). The smaller this value, the more hand-downs there are.
    pub fn write_buffer_bytes(mut self, bytes: usize) -> Self {
        self.options.write_buffer_bytes = bytes;
        self
    }

    /// How much memory the store is to use altogether, in bytes, instead of saying it part by part: it sets these options, and each
    /// can be set otherwise after it. From 8 MiB to 1 TiB.
    ///
    /// | | share | at least | at most |
    /// |---|---|---|---|
    /// | [`Builder::cache_bytes`] | 1/2 | | |
    /// | [`Builder::write_buffer_bytes`] | 1/4 | | 16 GiB |
    /// | [`Builder::transaction_max_bytes`], of each transaction | 1/16 | 1 MiB | 64 MiB |
    /// | [`Builder::stream_at_bytes`], of each transaction | 1/64 | 256 KiB | 32 MiB |
    /// | [`Builder::conflict_slots`] | 1/64 | | 65,536 |
    ///
    /// The rest is for several transactions at a time, for what RocksDB knows of open files (a few KiB for each table of 64 MiB),
    /// and for the allocator. It is a plan and not a wall: the greatest value, 32 MiB, is kept whole by who reads or writes it, a
    /// transaction that is greater than its share is refused, and each snapshot of another state takes about 1 KiB.
    /// What is really taken: [`Store::engine_figures`](super::Store::engine_figures).
    pub fn memory_limit(mut self, bytes: usize) -> Self {
        let write_buffers_most = bounds::WRITE_BUFFER_BYTES.most.and_then(|most| usize::try_from(most).ok());
        self.options.memory_limit = Some(bytes);
        self.cache_bytes(bytes / 2)
            .write_buffer_bytes((bytes / 4).min(write_buffers_most.unwrap_or(usize::MAX)))
            .transaction_max_bytes((bytes / 16).clamp(1 << 20, TRANSACTION_MAX_BYTES))
            .stream_at_bytes((bytes / 64).clamp(256 << 10, STREAM_AT_BYTES))
            .conflict_slots((bytes / 64 / CONFLICT_SLOT_BYTES).min(CONFLICT_SLOTS))
    }

    /// How tables are compressed that are written from now on. Default: [`Compression::Lz4`]. A store may have tables of both sorts,
    /// and can be opened with either.
    pub fn compression(mut self, compression: Compression) -> Self {
        self.options.compression = compression;
        self
    }

    /// How many rows' last commits are remembered, so that they need not be read to find a conflict: 32 bytes each, and
    /// 20 to 40 more for each row that was held ([`Txn::get_for_update`](super::Txn::get_for_update)) without being written. A
    /// transaction that goes on while more such holds than this are committed may meet a conflict that is none.
    /// From 1 to 4,194,304, rounded up to a power of two; default: 65,536.
    pub fn conflict_slots(mut self, slots: usize) -> Self {
        self.options.conflict_slots = slots;
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
    /// [`ErrorKind::Busy`](crate::ErrorKind::Busy). What a store does that is in use, its process tells by [`Builder::publish_status`]; to look at its rows, look at
    /// a [`Store::checkpoint`](super::Store::checkpoint).
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
    /// damaged segment and later ones are kept in the folder, in `log/lost-…`, and [`Store::lost_logs`](super::Store::lost_logs)
    /// returns the loss as long as its record is there. A backup, or [`Builder::repair`], may be the better way. An opening
    /// [to read only](Builder::read_only) changes nothing, so it accepts no loss either.
    pub fn accept_lost_commits(mut self, fingerprint: u64) -> Self {
        self.options.accept_lost_commits = Some(fingerprint);
        self
    }

    /// From how long on a transaction, or a call of [`Store::transact`](super::Store::transact) with its waiting and all its attempts, is noted in
    /// [`Store::slow_transactions`](super::Store::slow_transactions). Default: one second, since trouble does not wait until somebody asks for a log, and the log costs
    /// nothing while nothing is slow. Any time: [`Duration::ZERO`] notes every transaction, [`Duration::MAX`] switches it off.
    pub fn slow_transaction(mut self, from: Duration) -> Self {
        self.options.slow_transaction = from;
        self
    }

    /// Whether transactions measure how long they read, so that [`TimeSpent::reading`](super::TimeSpent::reading) can tell reading
    /// from the caller's own code. Costs each read of a transaction two looks at the clock, some 50 ns; reads of snapshots are
    /// not measured. Default: no.
    pub fn time_reads(mut self, time: bool) -> Self {
        self.options.time_reads = time;
        self
    }

    /// Writes what the store does ([`Store::status`](super::Store::status)) into its folder, about as often as this but not oftener than twice a second, for
    /// whoever looks at it from another process: `percolite top`, `stats`, `locks` and `txn`, or
    /// [`Status::read`](super::Status::read). At most a day. Default: not at all.
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
    /// let store = Store::builder().publish_status(Duration::from_secs(1)).open(&path)?;
    /// // In another process, some time later:
    /// if let Some(status) = Status::read(&path)? {
    ///     println!("process {} has committed {} times", status.pid, status.stats.commits());
    /// }
    /// # Ok(()) }
    /// # #[cfg(not(feature = "rocks"))]
    /// # fn main() {}
    /// ```
    pub fn publish_status(mut self, every: Duration) -> Self {
        self.options.publish_status = Some(every);
        self
    }

    /// What this process calls itself where others find a lock held by it: in [`LockEntry::holder`](crate::LockHolder), and in the rows of
    /// leases, which outlive it. At most 255 bytes. Default: nothing, the process's number alone.
    pub fn label(mut self, label: &str) -> Self {
        self.options.label = Some(label.into());
        self
    }

    /// Replaces clock, randomness and threads, for simulations.
    pub fn runtime(mut self, runtime: Arc<dyn Runtime>) -> Self {
        self.runtime = runtime;
        self
    }
}
