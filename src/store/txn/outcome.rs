//! How a transaction ends.

use std::time::Duration;

use crate::contention::WaitTimes;
use crate::error::Conflict;
use crate::store::introspect::slow_log::TxnOutcome;
use crate::timestamp::Timestamp;

/// The result of a successful commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Commit {
    /// The commit timestamp. For a transaction without writes it is the read timestamp.
    pub commit_ts: Timestamp,
    /// Whether the commit, and everything that the transaction has read, was durable when the call
    /// returned. `false` with [`Durability::Buffered`](crate::Durability::Buffered):
    /// [`Store::sync`](crate::Store::sync) then makes the commit durable; without that call the
    /// background worker does, within about half a second.
    pub durable: bool,
}

/// When and how a transaction ended, for its entry in the slow log. An attempt of `transact` has no
/// entry of its own, so of an attempt only `at` is used.
pub(in crate::store) struct TxnEnd {
    pub at: Duration,
    pub outcome: TxnOutcome,
    pub conflict: Option<Box<Conflict>>,
}

/// The attempts of a caller that commits them itself: when the first one began, how many have met a
/// conflict, and how long they waited.
#[derive(Clone, Copy)]
pub(in crate::store) struct Restarts {
    pub began: Duration,
    pub made: u32,
    pub waited: WaitTimes,
}
