//! Events of named locks: requests, grants, releases, losses. They are kept outside the store.
//!
//! A grant is recorded after the call that requested it has returned, and the end of a grant before
//! the call that ends it. So between the two events the grant was certainly held, however the
//! threads were scheduled.

use std::time::Duration;

use percolite::LockMode;
use serde::{Deserialize, Serialize};

/// A time of one incarnation, by the store's monotonic clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct LogicalTime {
    /// The incarnation.
    pub incarnation: u32,
    /// Nanoseconds.
    pub time: u64,
    /// Orders events with the same time.
    pub tick: u64,
}

impl LogicalTime {
    /// The logical time that is `time` later, ordered before all events of that moment.
    #[must_use]
    pub fn after(self, time: Duration) -> Self {
        Self { time: self.time.saturating_add(nanos(time)), tick: 0, ..self }
    }
}

/// A duration in nanoseconds.
pub fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// The term of a lease, from its grant or a renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseTerm {
    /// A time before the request.
    pub from: LogicalTime,
    /// The wall clock before the request and after the answer, in milliseconds.
    pub wall: (u64, u64),
    /// The time to live in milliseconds.
    pub time_ms: u64,
    /// Whether the store renews the lease.
    pub renews: bool,
}

impl LeaseTerm {
    /// The lease cannot expire before this, unless the store is opened again, which measures the
    /// rest of the lease anew.
    pub fn ends(&self) -> LogicalTime {
        self.from.after(Duration::from_millis(self.time_ms))
    }
}

/// An event of a named lock.
#[allow(missing_docs, reason = "fields are what they are called everywhere here")]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LockEvent {
    /// The store was opened between these times and these readings of the wall clock.
    StoreOpened(LogicalTime, LogicalTime, (u64, u64)),
    /// The store was closed or killed, or lost its power.
    StoreGone(LogicalTime),
    /// A request is about to be made; `no_wait` if it must not wait.
    Requested { request: u64, name: String, mode: LockMode, no_wait: bool, at: LogicalTime },
    /// A grant was returned. `id` is the request's number in its incarnation; `None` after a
    /// conversion, and if the client got no guard.
    Granted { request: u64, token: u64, id: Option<u64>, at: LogicalTime, term: Option<LeaseTerm> },
    /// A call has renewed a lease, which is held at this time.
    Renewed { name: String, token: u64, term: LeaseTerm, at: LogicalTime },
    /// An attempt to end the grant, numbered `by`, is about to be made.
    EndAttempt { name: String, token: u64, by: u64, at: LogicalTime },
    /// The end attempt `by`, which was a conversion, has failed. The grant is unchanged.
    EndFailed { name: String, token: u64, by: u64, at: LogicalTime },
    /// A call is about to attach a guard to the lease, or to renew it. Both may extend the lease,
    /// so from here on it has no known latest end.
    Resumed { name: String, token: u64 },
    /// The guard was released. The grant has ended durably, unless it was lost before.
    Released { name: String, token: u64, by: u64, at: LogicalTime },
    /// A call of the store has ended the grant durably.
    EndedDurably { name: String, token: u64 },
    /// A call found the grant lost. `by` is the number of the end attempt that the call was; 0 if
    /// it was no attempt to end the grant. The checker requires that the end of the lease or
    /// another end attempt explains the loss.
    NotHeld { name: String, token: u64, by: u64, at: LogicalTime },
    /// A transaction is about to commit.
    Commit(Box<LockCommit>),
    /// The transaction is committed.
    Committed { number: u64, ts: u64 },
    /// The transaction is not committed.
    NotCommitted { number: u64 },
    /// The holder of the lock has read.
    Read(LockRead),
}

/// A commit under a lock.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LockCommit {
    /// The unique number of the commit.
    pub number: u64,
    /// The name of the lock.
    pub name: String,
    /// The token of the grant.
    pub token: u64,
    /// Whether the transaction is fenced by the grant.
    pub fenced: bool,
    /// The read timestamp.
    pub read_ts: u64,
    /// The start timestamp.
    pub start_ts: u64,
    /// The row that only this transaction writes.
    pub marker: String,
    /// Whether the commit is acknowledged only when it is durable.
    pub durable: bool,
    /// Whether the transaction writes the row of the lock.
    pub appends: bool,
}

/// A read under a lock.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LockRead {
    /// The name of the lock.
    pub name: String,
    /// The token of the grant.
    pub token: u64,
    /// The read timestamp.
    pub read_ts: u64,
    /// Whether the read is a snapshot, which shows only durable data.
    pub durable: bool,
    /// The number that was read from the row of the lock: that of the last commit that wrote it.
    pub seen: u64,
}

/// Where lock clients record events. A recorder must not depend on the store.
pub trait EventRecorder: Send + Sync {
    /// A number above all earlier ones.
    fn tick(&self) -> u64;
    /// Records an event.
    fn record(&self, event: LockEvent);
}
