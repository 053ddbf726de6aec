//! The options of a store and of a transaction.
//!
//! [`option_ranges`] has their ranges.

use std::time::Duration;

use crate::coordinator::{CommitProtocol, HistoryRetention};
use crate::engine::Compression;
use crate::option_ranges::{self, OptionOutOfRange, OptionRange};

/// The default of `max_transaction_bytes`: twice the size of the largest value, so that every row
/// fits.
pub(in crate::store) const MAX_TRANSACTION_BYTES: usize = 64 << 20;
pub(super) const LARGE_TRANSACTION_BYTES: usize = 32 << 20;
pub(super) const CONFLICT_SET_ROWS: usize = 1 << 16;
/// The memory that [`Builder::memory_budget`](super::Builder::memory_budget) counts for each row of
/// the conflict set, in bytes: its slot, and its share of the map of lock-only commits.
pub(super) const CONFLICT_SET_ROW_BYTES: usize = 40;

/// When a commit is acknowledged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Durability {
    /// Once the commit survives a power cut: after a sync of the write-ahead log, which concurrent
    /// commits share (group commit).
    #[default]
    Sync,
    /// Once the commit is visible and survives the end of the process. A power cut may lose the
    /// commits of about the last half second, always the newest ones: if a commit is lost, all
    /// later commits are lost too.
    Buffered,
}

impl Durability {
    /// Whether a commit is acknowledged only after a sync. The layers below the store do not know
    /// `Durability`; they get this `bool`.
    pub(in crate::store) fn waits_for_sync(self) -> bool {
        match self {
            Self::Sync => true,
            Self::Buffered => false,
        }
    }
}

/// The limits of the retries of [`Store::transact`](crate::store::Store::transact), and of
/// [restarts](crate::Txn::restart). Default: 1000 attempts, 30 seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct RetryPolicy {
    pub(in crate::store) max_attempts: u32,
    pub(in crate::store) timeout: Duration,
}

impl RetryPolicy {
    /// The maximum number of attempts, the first included; at least 1.
    pub fn max_attempts(self, attempts: u32) -> Self {
        Self { max_attempts: attempts, ..self }
    }

    /// The time since the call of `transact`, or since the `begin` of the first of several
    /// restarted transactions, waits included, after which no new attempt begins. The first attempt
    /// is always made.
    pub fn timeout(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }

    fn check(self) -> Result<(), OptionOutOfRange> {
        option_ranges::RETRY_MAX_ATTEMPTS.check(self.max_attempts.into())?;
        option_ranges::RETRY_TIMEOUT.check(self.timeout.as_nanos())
    }
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self { max_attempts: 1000, timeout: Duration::from_secs(30) }
    }
}

/// The options of one transaction. An option that is not set, or is set to `None`, is that of the
/// store.
///
/// ```
/// use percolite::{Durability, TxnOptions};
/// let options = TxnOptions::with_label("import").durability(Durability::Buffered);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct TxnOptions {
    pub(in crate::store) durability: Option<Durability>,
    pub(in crate::store) commit_protocol: Option<CommitProtocol>,
    pub(in crate::store) retry_policy: Option<RetryPolicy>,
    pub(in crate::store) label: Option<&'static str>,
}

impl TxnOptions {
    /// The store's options, with a [label](TxnOptions::label).
    pub const fn with_label(label: &'static str) -> Self {
        Self { durability: None, commit_protocol: None, retry_policy: None, label: Some(label) }
    }

    /// When the commit is acknowledged.
    pub fn durability(self, durability: impl Into<Option<Durability>>) -> Self {
        Self { durability: durability.into(), ..self }
    }

    /// How the rows are committed.
    pub fn commit_protocol(self, protocol: impl Into<Option<CommitProtocol>>) -> Self {
        Self { commit_protocol: protocol.into(), ..self }
    }

    /// The limits of retries. If they are out of [range](crate::option_ranges), a transaction with
    /// these options fails with [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument)
    /// before it begins, even if it is never retried.
    pub fn retry_policy(self, retry: impl Into<Option<RetryPolicy>>) -> Self {
        Self { retry_policy: retry.into(), ..self }
    }

    /// A name for the kind of transaction, such as `"transfer"`, not for a single transaction. It
    /// is shown by [`Store::active_transactions`](crate::store::Store::active_transactions) and
    /// [`Store::slow_transactions`](crate::store::Store::slow_transactions), and in the conflict
    /// errors of transactions that lose a row to this transaction. Any length: the label is never
    /// copied.
    pub fn label(self, label: impl Into<Option<&'static str>>) -> Self {
        Self { label: label.into(), ..self }
    }

    pub(in crate::store) fn check(&self) -> Result<(), OptionOutOfRange> {
        self.retry_policy.map_or(Ok(()), RetryPolicy::check)
    }
}

/// The options of a store: `Builder` has a documented method for each.
#[derive(Clone, Debug)]
pub struct Options {
    pub durability: Durability,
    pub protocol: CommitProtocol,
    pub retry: RetryPolicy,
    pub background_resolve: bool,
    pub max_transaction_bytes: usize,
    pub large_transaction_bytes: usize,
    pub max_snapshot_age: Duration,
    pub history_retention: HistoryRetention,
    pub admission_limit: usize,
    pub memory_budget: Option<usize>,
    pub block_cache_bytes: usize,
    pub write_buffer_bytes: usize,
    pub compression: Compression,
    pub conflict_set_rows: usize,
    pub read_only: bool,
    pub accept_data_loss: Option<u64>,
    pub slow_transaction_threshold: Duration,
    pub track_read_timing: bool,
    pub status_file_interval: Option<Duration>,
    pub application_name: Option<String>,
}

impl Options {
    /// Checks that every option is in its range.
    pub(in crate::store) fn check(&self) -> Result<(), OptionOutOfRange> {
        let history = match self.history_retention {
            HistoryRetention::For(time) => Some(time),
            HistoryRetention::Unchanged | HistoryRetention::Disabled => None,
        };
        let time = |bounds: OptionRange, time: Duration| bounds.check(time.as_nanos());
        // Checked first: a budget out of range puts the options that are derived from it out of
        // range as well, and the error must name the budget.
        self.memory_budget.map_or(Ok(()), |bytes| option_ranges::MEMORY_BUDGET.check(bytes as u128))?;
        option_ranges::BLOCK_CACHE_BYTES.check(self.block_cache_bytes as u128)?;
        option_ranges::WRITE_BUFFER_BYTES.check(self.write_buffer_bytes as u128)?;
        option_ranges::MAX_TRANSACTION_BYTES.check(self.max_transaction_bytes as u128)?;
        option_ranges::LARGE_TRANSACTION_BYTES.check(self.large_transaction_bytes as u128)?;
        option_ranges::CONFLICT_SET_ROWS.check(self.conflict_set_rows as u128)?;
        option_ranges::ADMISSION_LIMIT.check(self.admission_limit as u128)?;
        self.retry.check()?;
        time(option_ranges::MAX_SNAPSHOT_AGE, self.max_snapshot_age)?;
        history.map_or(Ok(()), |kept| time(option_ranges::HISTORY_RETENTION, kept))?;
        self.application_name
            .as_ref()
            .map_or(Ok(()), |label| option_ranges::APPLICATION_NAME_BYTES.check(label.len() as u128))?;
        time(option_ranges::SLOW_TRANSACTION_THRESHOLD, self.slow_transaction_threshold)?;
        self.status_file_interval.map_or(Ok(()), |every| time(option_ranges::STATUS_FILE_INTERVAL, every))
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
            conflict_set_rows: CONFLICT_SET_ROWS,
            read_only: false,
            accept_data_loss: None,
            slow_transaction_threshold: Duration::from_secs(1),
            track_read_timing: false,
            status_file_interval: None,
            application_name: None,
        }
    }
}
