//! What is noted of locks: asked, returned, released, lost. Kept outside of the store's reach, as the ledger is.
//!
//! The end of a grant is noted before it is asked for, and a grant after it was returned. So between the two notes the grant is sure to
//! have been held, whatever the threads did in between.

use std::time::Duration;

use percolite::LockMode;
use serde::{Deserialize, Serialize};

/// A moment: of a life of the store, by its clock that does not go back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct LogicalTime {
    /// Which life.
    pub incarnation: u32,
    /// In nanoseconds.
    pub time: u64,
    /// Tells moments of the same time apart.
    pub tick: u64,
}

impl LogicalTime {
    /// So much later, and before everything else of that time.
    #[must_use]
    pub fn after(self, time: Duration) -> Self {
        Self { time: self.time.saturating_add(nanos(time)), tick: 0, ..self }
    }
}

/// A time as moments have it.
pub fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// What a lease was given: at the grant or a renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseTerm {
    /// Before it was asked for.
    pub from: LogicalTime,
    /// The wall clock before it was asked for, and when it was answered; in milliseconds.
    pub wall: (u64, u64),
    /// In milliseconds.
    pub time_ms: u64,
    /// Whether the store renews it.
    pub renews: bool,
}

impl LeaseTerm {
    /// Until when the lease is held at least, in the life that gave it.
    pub fn ends(&self) -> LogicalTime {
        self.from.after(Duration::from_millis(self.time_ms))
    }
}

/// Something that happened to a lock.
#[allow(missing_docs, reason = "fields are what they are called everywhere here")]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LockEvent {
    /// The store is open: between these moments, and at these times of the wall clock.
    StoreOpened(LogicalTime, LogicalTime, (u64, u64)),
    /// The store is gone: closed, killed, or without power.
    StoreGone(LogicalTime),
    /// About to be asked for; `at_once` says that it is not waited for.
    Requested { request: u64, name: String, mode: LockMode, no_wait: bool, at: LogicalTime },
    /// In hand. `id` is the request's number in the queue; `None` where the grant took the place of another.
    Granted { request: u64, token: u64, id: Option<u64>, at: LogicalTime, term: Option<LeaseTerm> },
    /// Renewed.
    Renewed { name: String, token: u64, term: LeaseTerm },
    /// An attempt to end it, by number, is about to be made.
    EndAttempt { name: String, token: u64, by: u64, at: LogicalTime },
    /// That attempt, a conversion, has failed. The grant is as it was.
    EndFailed { name: String, token: u64, by: u64, at: LogicalTime },
    /// A lease of before has a guard again, which may renew it.
    Resumed { name: String, token: u64 },
    /// Its guard was released. It is over durably, if it had not been lost before.
    Released { name: String, token: u64, by: u64, at: LogicalTime },
    /// It was said to be over, durably.
    EndedDurably { name: String, token: u64 },
    /// It was not there any more, as the attempt `by` found, which may have been about to end it.
    NotHeld { name: String, token: u64, by: u64, at: LogicalTime },
    /// A transaction is about to be committed.
    Commit(Box<LockCommit>),
    /// It is committed.
    Committed { number: u64, ts: u64 },
    /// It is not.
    NotCommitted { number: u64 },
    /// The holder of the lock has looked.
    Read(LockRead),
}

/// A transaction under a lock.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LockCommit {
    /// The only one of this number.
    pub number: u64,
    /// The lock.
    pub name: String,
    /// Its grant.
    pub token: u64,
    /// Whether it commits only while the grant stands.
    pub fenced: bool,
    /// What it sees.
    pub read_ts: u64,
    /// The transaction of its writes.
    pub start_ts: u64,
    /// The row that no other transaction writes.
    pub marker: String,
    /// Whether it is answered when it is durable.
    pub durable: bool,
    /// Whether it appends the token.
    pub appends: bool,
}

/// A look under a lock.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LockRead {
    /// The lock.
    pub name: String,
    /// Its grant.
    pub token: u64,
    /// What it sees.
    pub read_ts: u64,
    /// Whether only of what is durable.
    pub durable: bool,
    /// The number of the commit that was the last to append something.
    pub seen: u64,
}

/// Where lockers note what happens. It must not depend on the store.
pub trait EventRecorder: Send + Sync {
    /// A number that comes after every other.
    fn tick(&self) -> u64;
    /// Enters it.
    fn record(&self, note: LockEvent);
}
