//! Errors: one type, few kinds, each made for something a caller would do differently.

use std::error::Error as StdError;
use std::fmt;

use crate::bounds::OptionOutOfRange;
use crate::engine::EngineError;
use crate::locking::{LockLost, LockNotAvailable};
use crate::owner::OwnerId;
use crate::row::RowKey;
use crate::timestamp::{Timestamp, UtcDateTime};

/// The result of everything that can fail here.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why an operation failed. Decide on [`Error::kind`]; the text is for people and may change.
///
/// The text holds what is known of the cause, so there is no [`source`](std::error::Error::source) that would say it again.
#[derive(Debug)]
pub struct Error {
    kind: ErrorKind,
}

/// What a caller can do about an error.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// Another transaction came first. Nothing of this one remains; run it again from its beginning, which
    /// [`Store::transact`](crate::Store::transact) does by itself.
    Conflict(Box<Conflict>),
    /// [`Store::transact`](crate::Store::transact) met a conflict at every attempt and gives up. Try again later.
    RetriesExhausted {
        /// How often it was tried.
        attempts: u32,
        /// The last conflict.
        conflict: Box<Conflict>,
    },
    /// `insert` found the row already there.
    AlreadyExists(RowKey),
    /// The snapshot is older than what the store keeps or allows, or than the grant of a lock that is to
    /// [fence](crate::Txn::fence) it; begin a new one.
    SnapshotTooOld(String),
    /// The transaction, key or value exceeds a limit; make it smaller.
    TooLarge {
        /// What is too large.
        what: &'static str,
        /// How large it is, in bytes.
        bytes: usize,
        /// How large it may be, in bytes.
        limit: usize,
    },
    /// The store failed, or was closed, at a moment when the transaction may or may not have been committed, and answers
    /// [`Closed`](ErrorKind::Closed) to all later calls. Open the store again and
    /// look: at what the transaction wrote, or by [`Store::txn_status`](crate::Store::txn_status) before others write there.
    /// Or make the transaction safe to repeat. Where no transaction is committed, as by [`Store::sync`](crate::Store::sync),
    /// [`Store::snapshot`](crate::Store::snapshot) and [`Store::close`](crate::Store::close), it is open whether what is visible
    /// is durable. Only a store whose engine others share ([`Builder::open_shared`](crate::Builder::open_shared)) goes on after it.
    Undetermined(String),
    /// The call makes no sense; it changed nothing.
    InvalidArgument(String),
    /// The keyspace does not exist, or no longer.
    KeyspaceNotFound(String),
    /// What is stored is not what was written. Restore from a copy.
    Corruption(String),
    /// The folder holds no store, or what was to be restored is no dump; or it is of a format that this program does not know. Nothing
    /// was changed.
    UnrecognizedFormat(String),
    /// The store is open elsewhere; close it there.
    AlreadyOpen(String),
    /// Reading, writing or opening failed below the store. The call committed nothing, and the store, if it was open, goes on: the
    /// call may be repeated.
    Io(String),
    /// The store takes no calls any more: it was closed, or an error, of this call or an earlier one, has made it fail. The text
    /// says which. The call committed nothing. Open the store again; where it failed, what was committed
    /// [buffered](crate::Durability::Buffered) may be lost.
    Closed(String),
    /// The work was stopped from outside: by its own progress callback ([`IntoControlFlow`](crate::IntoControlFlow)), by a
    /// [`CancelToken`](crate::CancelToken), or by the end of the tokio runtime that was to run it. The text says what is left of it. The store
    /// goes on.
    Cancelled(String),
    /// A [lock](crate::Store::lock) was not granted in time. Nothing of the request is left; ask again, or do without.
    LockNotAvailable(Box<LockNotAvailable>),
    /// The grant of a [lock](crate::Store::lock) is over, so the transaction that was [fenced](crate::Txn::fence) by it was not committed,
    /// or the guard can do no more. What was to be done under the lock has to begin anew, with a new one.
    LockLost(Box<LockLost>),
    /// Two holders of a shared [lock](crate::Store::lock) want to [upgrade](crate::LockGuard::upgrade) it, and each would wait for the
    /// other. This is the second, and keeps its shared lock; release it, and ask again.
    Deadlock(Box<LockNotAvailable>),
}

/// Which transaction came first, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Conflict {
    /// The row that both wanted to write.
    pub row: RowKey,
    /// The name of its keyspace, where this process has it open.
    pub keyspace: Option<String>,
    /// Why that is a conflict.
    pub reason: ConflictReason,
    /// The owner of the transaction that came first, where a record still names it.
    pub conflicting_owner: Option<OwnerId>,
    /// What that transaction was called, if it has a [label](crate::TxnOptions::label) and ran in this process not long ago.
    pub conflicting_label: Option<&'static str>,
    /// When that transaction started, where a record still says so.
    pub conflicting_start_ts: Option<Timestamp>,
    /// What the transaction that lost had seen.
    pub read_ts: Timestamp,
}

/// Why a row could not be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConflictReason {
    /// The row was committed at this timestamp, after the loser's snapshot.
    NewerVersion(Timestamp),
    /// A transaction that has not ended holds the row's lock.
    Locked,
    /// Somebody took the transaction for dead and rolled it back.
    RolledBackByOther,
}

impl Error {
    /// What the caller can do about it.
    pub fn kind(&self) -> &ErrorKind {
        &self.kind
    }

    /// Whether running the transaction again from its beginning may succeed.
    pub fn is_retryable(&self) -> bool {
        matches!(self.kind, ErrorKind::Conflict(_))
    }

    /// The conflict that this error is about, also when retrying was given up.
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

    pub(crate) fn closed(why: impl Into<String>) -> Self {
        ErrorKind::Closed(why.into()).into()
    }
}

impl From<ErrorKind> for Error {
    fn from(kind: ErrorKind) -> Self {
        Self { kind }
    }
}

impl From<EngineError> for Error {
    fn from(why: EngineError) -> Self {
        let text = why.to_string();
        let kind = match &why {
            // That it may have happened all the same is for the kind to say, where it matters.
            EngineError::Undetermined(why) => ErrorKind::Io(format!("the engine failed: {why}")),
            EngineError::Io(_) => ErrorKind::Io(text),
            EngineError::Limit { what, asked, limit } => ErrorKind::TooLarge { what, bytes: *asked, limit: *limit },
            EngineError::Corruption(_) => ErrorKind::Corruption(text),
            EngineError::NotAStore(_) => ErrorKind::UnrecognizedFormat(text),
            EngineError::AlreadyOpen(_) => ErrorKind::AlreadyOpen(text),
            EngineError::Unsupported(_) | EngineError::InvalidOption(_) => ErrorKind::InvalidArgument(text),
        };
        Self { kind }
    }
}

impl From<OptionOutOfRange> for Error {
    fn from(why: OptionOutOfRange) -> Self {
        Self::invalid(why.to_string())
    }
}

impl StdError for Error {}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.kind {
            ErrorKind::Conflict(conflict) => write!(f, "conflict: {conflict}"),
            ErrorKind::RetriesExhausted { attempts, conflict } => {
                write!(f, "given up after {attempts} attempts; the last conflict: {conflict}")
            }
            ErrorKind::AlreadyExists(row) => write!(f, "row {row:?} already exists"),
            ErrorKind::TooLarge { what, bytes, limit } => {
                write!(f, "{what} of {bytes} bytes exceeds the limit of {limit} bytes")
            }
            ErrorKind::Undetermined(why) => {
                write!(f, "undetermined, what was asked for may or may not have taken effect: {why}")
            }
            ErrorKind::KeyspaceNotFound(name) => write!(f, "there is no keyspace {name:?}"),
            ErrorKind::Corruption(why) => write!(f, "corruption: {why}"),
            ErrorKind::LockNotAvailable(held) => write!(f, "{held}"),
            ErrorKind::LockLost(lost) => write!(f, "{lost}"),
            ErrorKind::Deadlock(held) => {
                write!(
                    f,
                    "deadlock: another holder of lock {} waits to upgrade it, too; this one keeps its shared lock, and should release it; {held}",
                    held.target
                )
            }
            ErrorKind::SnapshotTooOld(why)
            | ErrorKind::InvalidArgument(why)
            | ErrorKind::UnrecognizedFormat(why)
            | ErrorKind::AlreadyOpen(why)
            | ErrorKind::Io(why)
            | ErrorKind::Closed(why)
            | ErrorKind::Cancelled(why) => f.write_str(why),
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
                write!(f, "{label:?}, ")?;
            }
            write!(f, "owner {owner}, who began at {}", UtcDateTime(owner.created_at_millis()))?;
        }
        if let Some(start_ts) = self.conflicting_start_ts {
            write!(f, ", start_ts {start_ts}")?;
        }
        write!(f, "; this transaction reads at {:#}", self.read_ts)
    }
}
