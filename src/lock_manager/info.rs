//! What users see of named locks: holders and waiters, in the lock table and in errors. Row locks
//! are not shown here.

use std::borrow::Cow;
use std::fmt;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use super::mode::LockMode;
use crate::json_forms::{millis, seconds, seconds_or_none, text, text_or_none};
use crate::timestamp::Timestamp;

/// What a named lock is on.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum LockTarget<'a> {
    /// A name, with the rules of keyspace names: 1 to 255 bytes, no control characters. Names of
    /// locks and of keyspaces are independent of each other.
    Name(Cow<'a, str>),
}

impl<'a> From<&'a str> for LockTarget<'a> {
    fn from(name: &'a str) -> Self {
        Self::Name(name.into())
    }
}

impl<'a> From<&'a String> for LockTarget<'a> {
    fn from(name: &'a String) -> Self {
        Self::Name(name.into())
    }
}

impl From<String> for LockTarget<'_> {
    fn from(name: String) -> Self {
        Self::Name(name.into())
    }
}

impl LockTarget<'_> {
    /// The same target with an owned name.
    pub fn into_owned(self) -> LockTarget<'static> {
        match self {
            Self::Name(name) => LockTarget::Name(Cow::Owned(name.into_owned())),
        }
    }
}

impl fmt::Display for LockTarget<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => write!(f, "{name:?}"),
        }
    }
}

/// The state of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum LockState {
    /// Granted.
    Held,
    /// In the queue.
    Waiting,
    /// A shared grant that waits to become exclusive, ahead of everything in the queue.
    Converting,
}

impl fmt::Display for LockState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Held => "held",
            Self::Waiting => "waiting",
            Self::Converting => "converting",
        })
    }
}

/// The process and thread that requested a lock.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub struct LockHolder {
    /// The process id.
    pub pid: u32,
    /// The name that the process gave itself:
    /// [`Builder::application_name`](crate::Builder::application_name).
    pub application_name: Option<String>,
    /// The thread or task that made the request: its name, or else its number. The guard may have
    /// been moved to another thread since.
    pub thread: String,
}

impl fmt::Display for LockHolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(label) = &self.application_name {
            write!(f, "{label:?}, ")?;
        }
        write!(f, "process {}, {}", self.pid, self.thread)
    }
}

/// A lease that expired, and was followed by another grant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ExpiredLease {
    /// The token of the expired lease.
    #[serde(with = "text")]
    pub token: Timestamp,
    /// The holder of the expired lease.
    pub holder: LockHolder,
}

/// A request for a named lock, granted or waiting.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct LockEntry {
    /// The request's number in this incarnation of the store. Numbers grow in the order of arrival.
    pub id: u64,
    /// The target of the request.
    pub target: LockTarget<'static>,
    /// The mode of the request.
    pub mode: LockMode,
    /// Whether the request is granted.
    pub state: LockState,
    /// The fencing token; `None` for a request that waits, and for a grant that has no token yet.
    #[serde(with = "text_or_none")]
    pub token: Option<Timestamp>,
    /// The process and thread that made the request.
    pub holder: LockHolder,
    /// [`LockOptions::reason`](crate::LockOptions::reason).
    pub reason: Option<String>,
    /// The time of the request or, for a lease, of its grant or last renewal; by the wall clock.
    #[serde(rename = "since_ms", with = "millis")]
    pub since: SystemTime,
    /// The time left of the lease; `None` for a grant without a lease.
    #[serde(rename = "lease_remaining_s", with = "seconds_or_none")]
    pub lease_remaining: Option<Duration>,
    /// Number of requests that have this one in [`blocked_by`](LockEntry::blocked_by).
    pub waiter_count: usize,
    /// The expired lease that this grant followed.
    pub took_over: Option<ExpiredLease>,
    /// The ids of the requests that this request waits for directly. A conversion waits for all
    /// other grants. In the queue, a shared request waits for the last exclusive request ahead of
    /// it, and a request of another mode for the last request ahead of it, of any mode. A request
    /// with no such request ahead of it waits for the grant that is to be converted or, without a
    /// conversion, for all grants. Expired leases are left out.
    pub blocked_by: Vec<u64>,
}

/// All requests for named locks of a store: see [`Store::lock_table`](crate::Store::lock_table).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct LockTable {
    /// Sorted by target. For each target first the grants, then the waiting requests, both in the
    /// order of arrival; leases that an earlier process has left are in any order.
    pub entries: Vec<LockEntry>,
    /// Number of grants. A grant that waits for its conversion counts as waiting instead, and one
    /// with an expired lease is left out.
    pub held: usize,
    /// Number of waiting requests, including conversions.
    pub waiting: usize,
    /// The longest time that a waiting request has waited so far.
    #[serde(rename = "longest_wait_s", with = "seconds")]
    pub longest_wait: Duration,
    /// Cycles of requests that wait for each other, by their ids. A cycle is listed only if a
    /// second snapshot of the table finds its requests with the same waits.
    ///
    /// The list may be incomplete: the search follows each wait once, so of cycles that share
    /// requests it may find only some. The list may also contain cycles that are no deadlock: a
    /// grant counts for the thread or task that requested it, even if the guard was moved to
    /// another thread, and a cycle through a semaphore ends as soon as any holder of the semaphore
    /// releases.
    pub wait_cycles: Vec<Vec<u64>>,
}

/// A request for a named lock that was not granted in time:
/// [`ErrorKind::LockNotAvailable`](crate::ErrorKind::LockNotAvailable).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LockNotAvailable {
    /// The requested lock.
    pub target: LockTarget<'static>,
    /// The requested mode.
    pub mode: LockMode,
    /// Up to eight holders at the end of the wait.
    pub holders: Vec<LockEntry>,
    /// Number of requests ahead of this one in the queue.
    pub queue_position: usize,
    /// How long the request has waited.
    pub waited: Duration,
}

impl fmt::Display for LockNotAvailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "lock {} is not available", self.target)?;
        for (number, holder) in self.holders.iter().enumerate() {
            write!(f, "{}{}", if number == 0 { ": held by " } else { "; by " }, holder.holder)?;
            if let Some(reason) = &holder.reason {
                write!(f, " ({})", reason.escape_debug())?;
            }
            if let Some(token) = holder.token {
                write!(f, ", token {token}")?;
            }
            if let Some(left) = holder.lease_remaining {
                write!(f, ", {:.1} s left of its lease", left.as_secs_f64())?;
            }
        }
        if self.queue_position > 0 {
            write!(f, "; requests ahead: {}", self.queue_position)?;
        }
        if !self.waited.is_zero() {
            write!(f, "; waited {:.3} s ({})", self.waited.as_secs_f64().max(0.001), self.mode)?;
        }
        Ok(())
    }
}

/// A grant of a named lock that has ended: [`ErrorKind::LockLost`](crate::ErrorKind::LockLost).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LockLost {
    /// The lock.
    pub target: LockTarget<'static>,
    /// The fencing token of the grant.
    pub token: Timestamp,
    /// Why the grant ended.
    pub reason: LockLostReason,
}

impl fmt::Display for LockLost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "lock {} with token {} is lost: ", self.target, self.token)?;
        f.write_str(match self.reason {
            LockLostReason::Released => "it was released, or its guard was dropped",
            LockLostReason::Converted => "it was converted to another mode, which changed the token",
            LockLostReason::Expired => "its lease has expired",
            LockLostReason::Forced => "it was released by force_unlock",
            LockLostReason::Closed => "the store was closed or has failed",
            LockLostReason::UnknownToken => "no grant of the lock has this token",
        })
    }
}

/// Why a grant has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum LockLostReason {
    /// Its guard was released or dropped, or [`Store::release_lock`](crate::Store::release_lock)
    /// ended it.
    Released,
    /// It was converted to another mode.
    Converted,
    /// Its lease expired.
    Expired,
    /// [`Store::force_unlock`](crate::Store::force_unlock) ended it.
    Forced,
    /// The store was closed or has failed.
    Closed,
    /// No grant of the name has the token.
    UnknownToken,
}
