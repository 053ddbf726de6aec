//! What is shown of locks: holders and waiters, in the lock table and in errors.

use std::borrow::Cow;
use std::fmt;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use super::grant::LockLostReason;
use super::mode::LockMode;
use crate::shown::{millis, seconds, seconds_or_none, text, text_or_none};
use crate::timestamp::Timestamp;

/// What a lock is taken on.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum LockTarget<'a> {
    /// A name, as a keyspace may have: 1 to 255 bytes, no control characters. Names of locks and of keyspaces have nothing to do
    /// with each other.
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
    /// The same, with a copy of the name.
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

/// Whether a request is granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum LockState {
    /// Granted.
    Held,
    /// In the queue.
    Waiting,
    /// A shared grant that waits to become exclusive, before everything in the queue.
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

/// The process and thread that asked for a lock.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub struct LockHolder {
    /// The process.
    pub pid: u32,
    /// What that process calls itself: [`Builder::application_name`](crate::Builder::application_name).
    pub application_name: Option<String>,
    /// The thread or task that asked: its name, or else its number. A guard may have been moved to another one since.
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

/// A lease that was over before the next grant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ExpiredLease {
    /// Its token.
    #[serde(with = "text")]
    pub token: Timestamp,
    /// Its holder.
    pub holder: LockHolder,
}

/// A request for a lock, granted or waiting.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct LockEntry {
    /// The request's number in this life of the store. Numbers grow in the order of asking.
    pub id: u64,
    /// What is locked.
    pub target: LockTarget<'static>,
    /// How.
    pub mode: LockMode,
    /// Whether it is granted.
    pub state: LockState,
    /// The grant's number; `None` for a request that waits, and for a moment after the grant.
    #[serde(with = "text_or_none")]
    pub token: Option<Timestamp>,
    /// The process and thread that asked.
    pub holder: LockHolder,
    /// [`LockOptions::reason`](crate::LockOptions::reason).
    pub reason: Option<String>,
    /// When it was asked for, or, of a lease, when that was granted or renewed; by the wall clock.
    #[serde(rename = "since_ms", with = "millis")]
    pub since: SystemTime,
    /// How much of the lease is left; `None` for a grant without one.
    #[serde(rename = "lease_left_s", with = "seconds_or_none")]
    pub lease_remaining: Option<Duration>,
    /// How many requests have this one among those that they are [blocked by](LockEntry::blocked_by).
    pub waiter_count: usize,
    /// The lease that was over before this grant.
    pub took_over: Option<ExpiredLease>,
    /// The requests that this one waits for: of those in the queue before it the last one that it cannot be granted beside, else the
    /// grants.
    pub blocked_by: Vec<u64>,
}

/// All requests for locks of a store: see [`Store::lock_table`](crate::Store::lock_table).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct LockTable {
    /// By target: first the grants in the order of asking, then the queue.
    pub entries: Vec<LockEntry>,
    /// How many requests are granted, without conversions that wait and leases that are over.
    pub held: usize,
    /// How many requests wait, conversions included.
    pub waiting: usize,
    /// How long the request that waits longest has waited.
    #[serde(rename = "longest_wait_s", with = "seconds")]
    pub longest_wait: Duration,
    /// Cycles of requests that wait for each other, by their numbers. A cycle that is listed has existed: two looks have seen its requests
    /// with the same waits. Not every cycle may be listed: the search follows each wait once, and of cycles that share requests it may find
    /// only some. A thread or task counts as one whatever it holds, so a guard that was moved to another thread can make a cycle appear that
    /// is none; and a cycle through a semaphore ends as soon as any of its holders leaves.
    pub wait_cycles: Vec<Vec<u64>>,
}

/// A wait for a lock that ended without a grant: [`ErrorKind::LockNotAvailable`](crate::ErrorKind::LockNotAvailable).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LockNotAvailable {
    /// What was asked for.
    pub target: LockTarget<'static>,
    /// How.
    pub mode: LockMode,
    /// Up to eight that held it when the wait was over.
    pub holders: Vec<LockEntry>,
    /// How many requests were before this one in the queue.
    pub queue_position: usize,
    /// How long it was waited for.
    pub waited: Duration,
}

impl fmt::Display for LockNotAvailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "lock {} is held", self.target)?;
        for (number, holder) in self.holders.iter().enumerate() {
            write!(f, "{}{}", if number == 0 { " by " } else { "; by " }, holder.holder)?;
            if let Some(why) = &holder.reason {
                write!(f, " ({})", why.escape_debug())?;
            }
            if let Some(token) = holder.token {
                write!(f, ", token {token}")?;
            }
            if let Some(left) = holder.lease_remaining {
                write!(f, ", lease of {:.1} s left", left.as_secs_f64())?;
            }
        }
        if self.queue_position > 0 {
            write!(f, "; {} more waited before this request", self.queue_position)?;
        }
        if !self.waited.is_zero() {
            write!(f, "; waited {:.3} s for {}", self.waited.as_secs_f64().max(0.001), self.mode)?;
        }
        Ok(())
    }
}

/// A grant that is over: [`ErrorKind::LockLost`](crate::ErrorKind::LockLost).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LockLost {
    /// What was locked.
    pub target: LockTarget<'static>,
    /// The number of the grant that is over.
    pub token: Timestamp,
    /// Why.
    pub reason: LockLostReason,
}

impl fmt::Display for LockLost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "lock {} with token {} is lost: ", self.target, self.token)?;
        f.write_str(match self.reason {
            LockLostReason::Released => "it was released",
            LockLostReason::Converted => "it was converted to another mode, and has another token",
            LockLostReason::Expired => "its lease is over",
            LockLostReason::Forced => "it was taken away by force_unlock",
            LockLostReason::Closed => "the store was closed or has failed",
            LockLostReason::UnknownToken => "no grant of it has this token",
        })
    }
}
