//! Errors: one type with few kinds, one for each reaction that a caller can have.

use std::error::Error as StdError;
use std::fmt;

use crate::engine::EngineError;
use crate::lock_manager::{LockLost, LockNotAvailable};
use crate::option_ranges::OptionOutOfRange;
use crate::os_limits::with_advice;
use crate::owner_id::OwnerId;
use crate::row::RowKey;
use crate::timestamp::{Timestamp, UtcDateTime};

/// The result of every fallible call of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why an operation failed. Match on [`Error::kind`]; the text is for people and may change.
///
/// The text includes the cause, so [`source`](std::error::Error::source) returns `None`.
#[derive(Clone, Debug)]
pub struct Error {
    kind: ErrorKind,
}

/// What a caller can do about an error.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// Another transaction was first. This transaction has no effect; run it again from its
    /// beginning, as [`Store::transact`](crate::Store::transact) does.
    Conflict(Box<Conflict>),
    /// [`Store::transact`](crate::Store::transact) met a conflict at every attempt and stopped
    /// retrying. Try again later.
    RetriesExhausted {
        /// Number of attempts.
        attempts: u32,
        /// The last conflict.
        conflict: Box<Conflict>,
    },
    /// `insert` found that the row exists.
    AlreadyExists(RowKey),
    /// The snapshot exceeds the store's age limit, is from before the start of its history, or is
    /// from before the lock grant that is to [fence](crate::Txn::fence) the transaction. Take a new
    /// snapshot, or begin a new transaction.
    SnapshotTooOld(String),
    /// The transaction, key or value exceeds a limit; make it smaller.
    TooLarge {
        /// What is too large.
        what: &'static str,
        /// Its size, in bytes.
        bytes: usize,
        /// The greatest allowed size, in bytes.
        limit: usize,
    },
    /// The store failed or was closed during the commit, which may or may not have taken effect. A
    /// store on a shared engine ([`Builder::open_shared`](crate::Builder::open_shared)) stays
    /// usable. Any other store cannot be used any more: later calls that begin a transaction, take
    /// a snapshot or commit writes return [`Closed`](ErrorKind::Closed), and
    /// [`Store::close`](crate::Store::close) of a failed store returns this error.
    ///
    /// To find out whether the commit took effect, open the store again and, before the
    /// transaction's rows are written again, read them or call
    /// [`Store::txn_status`](crate::Store::txn_status). Or make the transaction idempotent.
    ///
    /// From calls that commit nothing, as [`Store::sync`](crate::Store::sync),
    /// [`Store::snapshot`](crate::Store::snapshot) and [`Store::close`](crate::Store::close), this
    /// error means that the visible commits may or may not be durable.
    Undetermined(String),
    /// An argument is invalid; nothing was changed.
    InvalidArgument(String),
    /// The keyspace does not exist, or was dropped.
    KeyspaceNotFound(String),
    /// The stored data is damaged. The call committed nothing. If a read met the damage, the store
    /// stays usable. If background work met it, for example a compaction, the store has failed: the
    /// text says so, all later calls return this error, and buffered commits may be lost. Restore a
    /// backup, or [repair](crate::Builder::repair) the store.
    Corruption(String),
    /// The directory is not a store, the input of a restore is not a dump, or either has a format
    /// that is unknown to this program. Nothing was changed.
    UnrecognizedFormat(String),
    /// The store is open in another process or handle; close it there.
    AlreadyOpen(String),
    /// A read, write or open failed below the store. The call committed nothing and may be
    /// repeated; a store that was open stays usable.
    Io(String),
    /// The store is closed, has failed through an error of this call or an earlier one, or was
    /// opened by the process from which this one was forked. The text says which. The call
    /// committed nothing. Open the store again; after a failure,
    /// [buffered](crate::Durability::Buffered) commits may be lost.
    Closed(String),
    /// The work was cancelled: by its progress callback
    /// ([`IntoControlFlow`](crate::IntoControlFlow)), by a [`CancelToken`](crate::CancelToken), or
    /// by the shutdown of the tokio runtime that was to run it. The text says what remains of the
    /// work. The store stays usable.
    Cancelled(String),
    /// A [lock](crate::Store::lock) was not granted in time. The request is withdrawn; try again,
    /// or proceed without the lock.
    LockNotAvailable(Box<LockNotAvailable>),
    /// The grant of a [lock](crate::Store::lock) has ended. The transaction that it
    /// [fenced](crate::Txn::fence) was not committed, or the guard has become invalid. Take the
    /// lock again and repeat the work under it.
    LockLost(Box<LockLost>),
    /// Two holders of a shared [lock](crate::Store::lock) [upgrade](crate::LockGuard::upgrade) it,
    /// so each would wait for the other. The holder that asked second gets this error and keeps its
    /// shared lock: release that lock, and try again.
    Deadlock(Box<LockNotAvailable>),
}

/// The details of a conflict: the row, and the transaction that was first.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Conflict {
    /// The row that both transactions write or lock.
    pub row: RowKey,
    /// The name of its keyspace, if this process has it open.
    pub keyspace: Option<String>,
    /// The reason for the conflict.
    pub reason: ConflictReason,
    /// The owner id of the transaction that was first, if it is still recorded.
    pub conflicting_owner: Option<OwnerId>,
    /// The [label](crate::TxnOptions::label) of that transaction, if it has one and ran recently in
    /// this process.
    pub conflicting_label: Option<&'static str>,
    /// The start timestamp of that transaction, if it is still recorded.
    pub conflicting_start_ts: Option<Timestamp>,
    /// The read timestamp of the transaction that failed.
    pub read_ts: Timestamp,
}

/// Why a write of a row is a conflict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConflictReason {
    /// The row was committed at this timestamp, after the snapshot.
    NewerVersion(Timestamp),
    /// The row is locked by a transaction that has not ended.
    Locked,
    /// Another process rolled this transaction back, because the time to live of a lock had
    /// expired.
    RolledBackByOther,
}

/// The text of [`ErrorKind::Closed`] after an orderly close.
pub(crate) const CLOSED_BY_USER: &str = "the store is closed";

impl Error {
    /// The kind of error, which says what the caller can do.
    pub fn kind(&self) -> &ErrorKind {
        &self.kind
    }

    /// Whether the transaction may succeed if it is run again from its beginning.
    pub fn is_retryable(&self) -> bool {
        matches!(self.kind, ErrorKind::Conflict(_))
    }

    /// The conflict of this error, also if retries are exhausted.
    pub fn conflict(&self) -> Option<&Conflict> {
        match &self.kind {
            ErrorKind::Conflict(conflict) | ErrorKind::RetriesExhausted { conflict, .. } => Some(conflict),
            _ => None,
        }
    }

    pub(crate) fn conflict_mut(&mut self) -> Option<&mut Conflict> {
        match &mut self.kind {
            ErrorKind::Conflict(conflict) | ErrorKind::RetriesExhausted { conflict, .. } => Some(conflict),
            _ => None,
        }
    }

    pub(crate) fn invalid(what: impl Into<String>) -> Self {
        ErrorKind::InvalidArgument(what.into()).into()
    }

    /// Something that a full disk has no space for, and what can be written instead.
    pub(crate) fn full_disk(what: &str) -> Self {
        let text = format!("the disk was full when the store was opened: {what}, or free space on the disk");
        ErrorKind::Io(text).into()
    }

    pub(crate) fn closed(reason: impl Into<String>) -> Self {
        ErrorKind::Closed(reason.into()).into()
    }

    pub(crate) fn closed_by_user() -> Self {
        Self::closed(CLOSED_BY_USER)
    }
}

impl From<ErrorKind> for Error {
    fn from(kind: ErrorKind) -> Self {
        Self { kind }
    }
}

impl From<EngineError> for Error {
    fn from(error: EngineError) -> Self {
        // `Undetermined` has advice of the engine already, since commits map it themselves.
        let text = error.to_string();
        let kind = match &error {
            // `Io` is right only for calls that commit nothing. A commit maps this error to
            // `ErrorKind::Undetermined` itself.
            EngineError::Undetermined(text) => ErrorKind::Io(format!("the engine failed: {text}")),
            EngineError::Io(_) => ErrorKind::Io(with_advice(text)),
            EngineError::Limit { what, requested, limit } => {
                ErrorKind::TooLarge { what, bytes: *requested, limit: *limit }
            }
            EngineError::Corruption(_) => ErrorKind::Corruption(text),
            EngineError::NotAStore(_) => ErrorKind::UnrecognizedFormat(text),
            EngineError::AlreadyOpen(_) => ErrorKind::AlreadyOpen(text),
            EngineError::Unsupported(_) | EngineError::InvalidOption(_) => ErrorKind::InvalidArgument(text),
        };
        Self { kind }
    }
}

impl From<OptionOutOfRange> for Error {
    fn from(error: OptionOutOfRange) -> Self {
        Self::invalid(error.to_string())
    }
}

impl StdError for Error {}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.kind {
            ErrorKind::Conflict(conflict) => write!(f, "conflict: {conflict}"),
            ErrorKind::RetriesExhausted { attempts, conflict } => {
                write!(f, "gave up after {attempts} attempts; last conflict: {conflict}")
            }
            ErrorKind::AlreadyExists(row) => write!(f, "row {row:?} already exists"),
            ErrorKind::TooLarge { what, bytes, limit } => {
                write!(f, "{what} of {bytes} bytes exceeds the limit of {limit} bytes")
            }
            ErrorKind::Undetermined(text) => {
                write!(f, "undetermined: the operation may or may not have taken effect: {text}")
            }
            ErrorKind::KeyspaceNotFound(name) => write!(f, "keyspace {name:?} not found"),
            ErrorKind::Corruption(text) => write!(f, "corruption: {text}"),
            ErrorKind::LockNotAvailable(held) => write!(f, "{held}"),
            ErrorKind::LockLost(lost) => write!(f, "{lost}"),
            ErrorKind::Deadlock(held) => {
                write!(
                    f,
                    "deadlock: another holder of lock {} is waiting to upgrade it; release the shared lock and try again; {held}",
                    held.target
                )
            }
            ErrorKind::SnapshotTooOld(text)
            | ErrorKind::InvalidArgument(text)
            | ErrorKind::UnrecognizedFormat(text)
            | ErrorKind::AlreadyOpen(text)
            | ErrorKind::Io(text)
            | ErrorKind::Closed(text)
            | ErrorKind::Cancelled(text) => f.write_str(text),
        }
    }
}

impl fmt::Display for Conflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.keyspace {
            Some(keyspace) => write!(f, "row {keyspace}/{} ", self.row.user_key().escape_ascii())?,
            None => write!(f, "row {:?} ", self.row)?,
        }
        match self.reason {
            ConflictReason::NewerVersion(ts) => write!(f, "was committed at {ts:#}")?,
            ConflictReason::Locked => write!(f, "is locked")?,
            ConflictReason::RolledBackByOther => write!(f, "was rolled back")?,
        }
        if let Some(owner) = self.conflicting_owner {
            write!(f, " by ")?;
            if let Some(label) = self.conflicting_label {
                write!(f, "transaction {label:?}, ")?;
            }
            write!(f, "owner {owner} (created {})", UtcDateTime(owner.created_at_millis()))?;
        }
        if let Some(start_ts) = self.conflicting_start_ts {
            write!(f, ", start_ts {start_ts}")?;
        }
        write!(f, "; this transaction reads at {:#}", self.read_ts)
    }
}
