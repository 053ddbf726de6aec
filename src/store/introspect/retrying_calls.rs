//! Calls of `transact` that have met a conflict and try again.
//!
//! The list of active transactions has attempts: an attempt is young even if its call fails again
//! and again, and between two attempts, while the call waits for its turn, there is none. This list
//! has the whole calls. A call is listed from its first conflict until it returns, so a call
//! without a conflict costs nothing.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::error::Conflict;
use crate::sync::Mutex;

/// A call of `transact` that has met a conflict and has not returned: see
/// [`Store::retrying_calls`](crate::Store::retrying_calls).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RetryingCall {
    /// See [`TxnOptions::label`](crate::store::TxnOptions::label).
    pub label: Option<&'static str>,
    /// The time since the call began.
    pub age: Duration,
    /// The attempts that have failed. Another one may be running, or waiting for its turn.
    pub failed_attempts: u32,
    /// The conflict of the last one.
    pub last_conflict: Conflict,
}

/// The calls that retry.
#[derive(Default)]
pub(in crate::store) struct RetryingCalls(Mutex<CallTable>);

#[derive(Default)]
struct CallTable {
    next_number: u64,
    calls: BTreeMap<u64, RetryingRecord>,
}

/// What the list records of a call.
pub(in crate::store) struct RetryingRecord {
    pub label: Option<&'static str>,
    /// When the call began, by the monotonic clock.
    pub began: Duration,
    pub failed_attempts: u32,
    pub last_conflict: Conflict,
}

/// A listed call, which dropping this removes from the list.
pub(in crate::store) struct ListedCall {
    list: Arc<RetryingCalls>,
    number: u64,
}

impl RetryingCalls {
    /// The calls in the list, oldest first.
    pub fn all(&self, now: Duration) -> Vec<RetryingCall> {
        let describe = |call: &RetryingRecord| RetryingCall {
            label: call.label,
            age: now.saturating_sub(call.began),
            failed_attempts: call.failed_attempts,
            last_conflict: call.last_conflict.clone(),
        };
        let mut calls: Vec<_> = self.0.lock().calls.values().map(describe).collect();
        calls.sort_by_key(|call| std::cmp::Reverse(call.age));
        calls
    }

    /// The number of calls in the list, and when the oldest of them began.
    #[cfg(feature = "metrics")]
    pub fn count_and_oldest(&self) -> (usize, Option<Duration>) {
        let table = self.0.lock();
        (table.calls.len(), table.calls.values().map(|call| call.began).min())
    }
}

impl ListedCall {
    pub fn new(list: &Arc<RetryingCalls>, call: RetryingRecord) -> Self {
        let mut table = list.0.lock();
        let number = table.next_number;
        table.next_number += 1;
        table.calls.insert(number, call);
        Self { list: Arc::clone(list), number }
    }

    /// Records another failed attempt.
    pub fn update(&self, call: RetryingRecord) {
        let replaced = self.list.0.lock().calls.insert(self.number, call);
        assert!(replaced.is_some(), "invariant: a retrying call is listed until it ends");
    }
}

impl Drop for ListedCall {
    fn drop(&mut self) {
        let ended = self.list.0.lock().calls.remove(&self.number);
        let is_unwinding = std::thread::panicking();
        assert!(ended.is_some() || is_unwinding, "invariant: a retrying call is listed until it ends");
    }
}
