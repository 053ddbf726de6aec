//! The slow transaction log: each entry with its time by phase and its conflicts.
//!
//! The latency statistics read the clock for every transaction. When a slow transaction ends, its
//! entry is built from these readings, so the log costs nothing while no transaction is slow.

use std::collections::VecDeque;
use std::fmt;
use std::time::{Duration, SystemTime};

use crate::contention::WaitTimes;
use crate::error::Conflict;
use crate::observe::TxnPhase;
use crate::owner_id::OwnerId;
use crate::row::TxnId;
use crate::store::introspect::active_readers::ActiveReader;
use crate::sync::Mutex;
use crate::timestamp::Timestamp;

/// The log keeps this many newest entries, and as many slowest ones.
const SLOW_LOG_ENTRIES: usize = 100;
/// An entry has at most this many conflicts: the last ones.
pub(in crate::store) const SLOW_LOG_CONFLICTS_MAX: usize = 8;

/// A transaction, or a whole call of `transact`, that took at least
/// [`Builder::slow_transaction_threshold`](crate::store::Builder::slow_transaction_threshold). Its
/// [`Display`](fmt::Display) describes it in one line.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SlowTransaction {
    /// See [`TxnOptions::label`](crate::store::TxnOptions::label).
    pub label: Option<&'static str>,
    /// The owner id, as in row locks and conflicts; of several attempts, that of the last one.
    pub owner_id: OwnerId,
    /// The start timestamp; of several attempts, that of the last one.
    pub start_ts: Timestamp,
    /// When the transaction began. A call of `transact` begins before the waits of its first
    /// attempt.
    pub started_at: SystemTime,
    /// How long it took, with all attempts and waits.
    pub duration: Duration,
    /// The duration by phase. The phases add up to `duration`.
    pub breakdown: TimeBreakdown,
    /// The number of attempts.
    pub attempts: u32,
    /// Its conflicts, oldest first; at most the last eight.
    pub conflicts: Vec<Conflict>,
    /// How it ended.
    pub outcome: TxnOutcome,
}

/// The duration of a transaction by phase.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TimeBreakdown {
    /// Waits in row queues, for other retries on the same rows.
    pub row_queue_wait: Duration,
    /// Waits for the release of a row lock; on a shared engine, pauses before retries instead.
    pub row_lock_wait: Duration,
    /// Waits for a permit: see
    /// [`Builder::admission_limit`](crate::store::Builder::admission_limit).
    pub admission_wait: Duration,
    /// Attempts of `transact` that ended in a conflict. The phases below do not include them.
    pub failed_attempts: Duration,
    /// Reads of rows, in the last attempt. `None` if
    /// [`Builder::track_read_timing`](crate::store::Builder::track_read_timing) is off; reads are
    /// then part of `user_code`.
    pub read: Option<Duration>,
    /// From the submission of the writes until they were applied, in the last attempt: the wait in
    /// the commit queue, the conflict check, the write to the log, and write stalls
    /// ([`Stats::write_stalls`](crate::store::Stats::write_stalls)).
    pub apply: Duration,
    /// Waits until what was applied or read was durable, in the last attempt.
    pub sync: Duration,
    /// The rest: the caller's code in the last attempt, and the time between a conflict and the
    /// next attempt.
    pub user_code: Duration,
}

/// How a transaction ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TxnOutcome {
    /// Committed at this timestamp; the read timestamp if it wrote nothing.
    Committed(Timestamp),
    /// Rolled back or dropped, or its closure returned an error.
    RolledBack,
    /// Failed with a conflict, and not retried again.
    Conflict,
    /// Failed with another error, which has this text.
    Failed(String),
}

/// When a finished attempt began and ended, by the monotonic clock, and the time that it spent in
/// each phase.
#[derive(Clone, Copy)]
pub(in crate::store) struct AttemptTiming {
    pub txn: TxnId,
    pub label: Option<&'static str>,
    pub began: Duration,
    pub ended: Duration,
    pub read: Duration,
    pub apply: Duration,
    pub sync: Duration,
}

impl AttemptTiming {
    pub fn new(txn: TxnId, reader: &ActiveReader, ended: Duration) -> Self {
        let on = |phase| reader.timer.on(phase);
        let (read, apply, sync) = (on(TxnPhase::Read), on(TxnPhase::Apply), on(TxnPhase::Sync));
        Self { txn, label: reader.label, began: reader.started_at, ended, read, apply, sync }
    }
}

/// The part of a log entry that is about all attempts, the last one included. [`AttemptTiming`] has
/// the part that is about the last attempt alone.
#[derive(Default)]
pub(in crate::store) struct PastAttempts {
    pub attempts: u32,
    pub waited: WaitTimes,
    /// Time spent on attempts that met a conflict.
    pub failed_time: Duration,
    pub conflicts: VecDeque<Conflict>,
}

impl PastAttempts {
    /// Records a conflict, and how long its attempt took.
    pub fn add_conflict(&mut self, conflict: &Conflict, took: Duration) {
        self.failed_time += took;
        if self.conflicts.len() == SLOW_LOG_CONFLICTS_MAX {
            self.conflicts.pop_front();
        }
        self.conflicts.push_back(conflict.clone());
    }
}

/// The slow transaction log: the newest entries, and the slowest.
#[derive(Default)]
pub(in crate::store) struct SlowLog(Mutex<Logged>);

#[derive(Default)]
struct Logged {
    /// Oldest first.
    newest: VecDeque<SlowTransaction>,
    /// Slowest first; entries of equal duration oldest first.
    slowest: Vec<SlowTransaction>,
}

impl SlowLog {
    pub fn newest(&self) -> Vec<SlowTransaction> {
        self.0.lock().newest.iter().cloned().collect()
    }

    pub fn slowest(&self) -> Vec<SlowTransaction> {
        self.0.lock().slowest.clone()
    }

    pub fn add(&self, slow: SlowTransaction) {
        let Logged { newest, slowest } = &mut *self.0.lock();
        let position = slowest.partition_point(|entry| entry.duration >= slow.duration);
        if position < SLOW_LOG_ENTRIES {
            slowest.truncate(SLOW_LOG_ENTRIES - 1);
            slowest.insert(position, slow.clone());
        }
        if newest.len() == SLOW_LOG_ENTRIES {
            newest.pop_front();
        }
        newest.push_back(slow);
    }
}

impl TimeBreakdown {
    /// All phases, each with its name.
    pub fn parts(&self) -> Vec<(&'static str, Duration)> {
        let user_code = if self.read.is_some() { "user code" } else { "user code (reads included)" };
        vec![
            ("row queue wait", self.row_queue_wait),
            ("row lock wait", self.row_lock_wait),
            ("admission wait", self.admission_wait),
            ("failed attempts", self.failed_attempts),
            ("read", self.read.unwrap_or_default()),
            ("apply", self.apply),
            ("sync", self.sync),
            (user_code, self.user_code),
        ]
    }
}

impl fmt::Display for TimeBreakdown {
    /// The longest phase, and all others of at least 1 % of the total; longest first.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = self.parts();
        parts.sort_by_key(|(_, took)| std::cmp::Reverse(*took));
        let total: Duration = parts.iter().map(|(_, took)| *took).sum();
        let shown = parts.iter().enumerate().filter(|(index, (_, took))| *index == 0 || *took >= total / 100);
        for (index, (what, took)) in shown {
            write!(f, "{}{took:.1?} {what}", if index == 0 { "" } else { ", " })?;
        }
        Ok(())
    }
}

impl fmt::Display for SlowTransaction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.label {
            Some(label) => write!(f, "{label:?} (owner {})", self.owner_id)?,
            None => write!(f, "owner {}", self.owner_id)?,
        }
        write!(f, " took {:.1?}", self.duration)?;
        if self.attempts > 1 {
            write!(f, " in {} attempts", self.attempts)?;
        }
        match &self.outcome {
            TxnOutcome::Committed(_) => write!(f, " and was committed")?,
            TxnOutcome::RolledBack => write!(f, " and was rolled back")?,
            TxnOutcome::Conflict => write!(f, " and failed with a conflict")?,
            TxnOutcome::Failed(text) => write!(f, " and failed ({text})")?,
        }
        write!(f, ": {}", self.breakdown)?;
        for conflict in &self.conflicts {
            write!(f, "; conflict: {conflict}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::*;

    #[test]
    fn the_log_has_the_newest_and_the_slowest() {
        let log = SlowLog::default();
        let began = UNIX_EPOCH;
        // The durations in milliseconds: each number from 0 to 999 once, in mixed order (7 and 1000
        // have no common divisor), then 999, the slowest, again.
        let totals: Vec<u64> = (0..1000).map(|n| n * 7 % 1000).chain([999]).collect();
        for (n, total) in totals.iter().enumerate() {
            let total = Duration::from_millis(*total);
            let (owner, start_ts) = (OwnerId::from_u64(n as u64), Timestamp::ZERO);
            let (label, breakdown, outcome) = (None, TimeBreakdown::default(), TxnOutcome::RolledBack);
            log.add(SlowTransaction {
                label,
                owner_id: owner,
                start_ts,
                started_at: began,
                duration: total,
                breakdown,
                attempts: 1,
                conflicts: vec![],
                outcome,
            });
        }
        let log = log.0.lock();
        let taken = |slow: &SlowTransaction| u64::try_from(slow.duration.as_millis()).unwrap();
        assert_eq!(log.newest.iter().map(taken).collect::<Vec<_>>(), totals[totals.len() - SLOW_LOG_ENTRIES..]);
        let slowest: Vec<u64> = [999].into_iter().chain((901..1000).rev()).collect();
        assert_eq!(log.slowest.iter().map(taken).collect::<Vec<_>>(), slowest);
        assert!(log.slowest[0].owner_id < log.slowest[1].owner_id);
    }
}
