//! Slow transactions: what they were, where their time went, who was in the way.
//!
//! A transaction's clock readings are taken anyway, for the latencies. Here they are put together once it is over, and only if
//! it was slow; so the log costs nothing until there is something to log.

use std::collections::VecDeque;
use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::contention::WaitTimes;
use crate::error::Conflict;
use crate::observe::TxnPhase;
use crate::owner::OwnerId;
use crate::row::TxnId;
use crate::store::Store;
use crate::store::introspect::active::ActiveReader;
use crate::sync::Mutex;
use crate::timestamp::Timestamp;

/// So many slow transactions are kept, the newest and the slowest.
const SLOW_LOG_ENTRIES: usize = 100;
/// So many conflicts are kept of each, the last ones.
pub(in crate::store) const SLOW_LOG_CONFLICTS_MAX: usize = 8;

/// A transaction, or a whole call of `transact`, that took longer than
/// [`Builder::slow_transaction_threshold`](crate::store::Builder::slow_transaction_threshold) says. Its [`Display`](fmt::Display) says it in words.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SlowTransaction {
    /// See [`TxnOptions::label`](crate::store::TxnOptions::label).
    pub label: Option<&'static str>,
    /// Who it was in row locks and conflicts; of several attempts, the last one.
    pub owner_id: OwnerId,
    /// The timestamp that named it; of several attempts, the last one.
    pub start_ts: Timestamp,
    /// When it began, waiting included.
    pub started_at: SystemTime,
    /// How long it took.
    pub duration: Duration,
    /// On what; the parts make up the total.
    pub breakdown: TimeBreakdown,
    /// How often it was tried.
    pub attempts: u32,
    /// The conflicts that it met, oldest first; of many, the last eight.
    pub conflicts: Vec<Conflict>,
    /// How it ended.
    pub outcome: TxnOutcome,
}

/// What the time of a transaction was spent on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TimeBreakdown {
    /// Waiting until others that had met conflicts on the same rows were through.
    pub row_queue_wait: Duration,
    /// Waiting until a row lock was gone.
    pub row_lock_wait: Duration,
    /// Waiting to be let in: see [`Builder::admission_limit`](crate::store::Builder::admission_limit).
    pub admission_wait: Duration,
    /// Attempts of `transact` that ended in a conflict, with all that they did.
    pub failed_attempts: Duration,
    /// Reading rows, in the last attempt. `None` where reads are not [timed](crate::store::Builder::track_read_timing); then they are among `own`.
    pub read: Option<Duration>,
    /// Handing in what was written until it was applied, in the last attempt: waiting in the queue of commits (beside many others, a
    /// durable one also for the end of a sync), proving that there is no conflict, writing the log, waiting where hand-downs have fallen
    /// behind ([`Stats::write_stalls`](crate::store::Stats::write_stalls)).
    pub apply: Duration,
    /// Waiting for the disk to confirm what was applied or read, in the last attempt.
    pub sync: Duration,
    /// The rest: the caller's own code, in the last attempt, and between a conflict and the next attempt.
    pub user_code: Duration,
}

/// How a transaction ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TxnOutcome {
    /// Committed at this timestamp; if nothing was written, what it has seen.
    Committed(Timestamp),
    /// Rolled back or dropped, or its closure failed.
    RolledBack,
    /// Given up after a conflict.
    Conflict,
    /// Failed otherwise, in these words.
    Failed(String),
}

/// What is known of a transaction's last attempt once it is over.
#[derive(Clone, Copy)]
pub(in crate::store) struct AttemptTiming {
    txn: TxnId,
    label: Option<&'static str>,
    pub began: Duration,
    pub ended: Duration,
    reading: Duration,
    combining: Duration,
    syncing: Duration,
}

impl AttemptTiming {
    pub fn new(txn: TxnId, reader: &ActiveReader, ended: Duration) -> Self {
        let on = |part| reader.timer.on(part);
        let (reading, combining, syncing) = (on(TxnPhase::Read), on(TxnPhase::Apply), on(TxnPhase::Sync));
        Self { txn, label: reader.label, began: reader.started_at, ended, reading, combining, syncing }
    }
}

/// What came before the last attempt.
#[derive(Default)]
pub(in crate::store) struct PastAttempts {
    pub attempts: u32,
    pub waited: WaitTimes,
    /// Time spent on attempts that met a conflict.
    pub failed_time: Duration,
    pub conflicts: VecDeque<Conflict>,
}

impl PastAttempts {
    /// Notes a conflict, and how long the attempt took that met it.
    pub fn add_conflict(&mut self, conflict: &Conflict, took: Duration) {
        self.failed_time += took;
        if self.conflicts.len() == SLOW_LOG_CONFLICTS_MAX {
            self.conflicts.pop_front();
        }
        self.conflicts.push_back(conflict.clone());
    }
}

/// Slow transactions: those that are news, and those that someone looks for.
#[derive(Default)]
pub(in crate::store) struct SlowLog(Mutex<Logged>);

#[derive(Default)]
struct Logged {
    /// Oldest first.
    newest: VecDeque<SlowTransaction>,
    /// Slowest first; of equals the older one.
    slowest: Vec<SlowTransaction>,
}

impl SlowLog {
    fn add(&self, slow: SlowTransaction) {
        let Logged { newest, slowest } = &mut *self.0.lock();
        let place = slowest.partition_point(|kept| kept.duration >= slow.duration);
        if place < SLOW_LOG_ENTRIES {
            slowest.truncate(SLOW_LOG_ENTRIES - 1);
            slowest.insert(place, slow.clone());
        }
        if newest.len() == SLOW_LOG_ENTRIES {
            newest.pop_front();
        }
        newest.push_back(slow);
    }
}

impl Store {
    /// The last hundred transactions that took longer than [`Builder::slow_transaction_threshold`](crate::store::Builder::slow_transaction_threshold) says,
    /// oldest first: how long, on what, and after which conflicts with whom.
    ///
    /// ```
    /// # fn main() -> percolite::Result<()> {
    /// use percolite::{Store, TxnOptions};
    /// use std::time::Duration;
    /// let store = Store::builder().slow_transaction_threshold(Duration::from_millis(20)).in_memory()?;
    /// let rows = store.keyspace("rows")?;
    /// store.transact_with(TxnOptions::with_label("think first"), |txn| {
    ///     std::thread::sleep(Duration::from_millis(30));
    ///     txn.put(&rows, "key", "value")
    /// })?;
    /// let slow = store.slow_transactions().pop().unwrap();
    /// assert_eq!(slow.label, Some("think first"));
    /// println!("{slow}"); // "think first" took 30.2 ms and was committed: 30.1 ms its own code (reading included), …
    /// # assert!(slow.to_string().contains("its own code"), "{slow}");
    /// # Ok(()) }
    /// ```
    pub fn slow_transactions(&self) -> Vec<SlowTransaction> {
        self.inner.slow_log.0.lock().newest.iter().cloned().collect()
    }

    /// The hundred transactions that took longest since the store was opened, the slowest first. They stay in it however many that were
    /// less slow came behind them.
    pub fn slowest_transactions(&self) -> Vec<SlowTransaction> {
        self.inner.slow_log.0.lock().slowest.clone()
    }

    /// Whether a transaction that has taken so long is to be logged.
    pub(in crate::store) fn is_slow(&self, total: Duration) -> bool {
        let limit = self.inner.options.slow_transaction_threshold;
        total >= limit && limit < Duration::MAX
    }

    /// Logs a transaction that began, with its first attempt or the wait for it, at `began`.
    pub(in crate::store) fn log_slow(
        &self,
        began: Duration,
        before: &mut PastAttempts,
        last: &AttemptTiming,
        outcome: TxnOutcome,
    ) {
        let total = last.ended.saturating_sub(began);
        let AttemptTiming { txn, reading, combining, syncing, .. } = *last;
        let reading = self.inner.options.track_read_timing.then_some(reading);
        let WaitTimes { row_queue: turns, row_lock: locks, admission: permit } = before.waited;
        // An attempt that was lost is counted as that; its parts must not be counted twice.
        let lost = outcome == TxnOutcome::Conflict && !before.failed_time.is_zero();
        let part = |part: Duration| if lost { Duration::ZERO } else { part };
        let spent = TimeBreakdown {
            row_queue_wait: turns,
            row_lock_wait: locks,
            admission_wait: permit,
            failed_attempts: before.failed_time,
            read: reading.map(part),
            apply: part(combining),
            sync: part(syncing),
            user_code: Duration::ZERO,
        };
        let own = total.saturating_sub(spent.parts().iter().map(|(_, took)| *took).sum());
        let ago = self.inner.runtime.unix_millis().saturating_sub(u64::try_from(total.as_millis()).unwrap_or(u64::MAX));
        let slow = SlowTransaction {
            label: last.label,
            owner_id: txn.owner,
            start_ts: txn.start_ts,
            started_at: UNIX_EPOCH + Duration::from_millis(ago),
            duration: total,
            breakdown: TimeBreakdown { user_code: own, ..spent },
            attempts: before.attempts,
            conflicts: std::mem::take(&mut before.conflicts).into(),
            outcome,
        };
        self.inner.metrics.slow_transactions.add(1);
        event!(WARN, what = %slow, label = slow.label, "slow transaction");
        self.inner.slow_log.add(slow);
    }
}

impl TimeBreakdown {
    /// All parts, each with a few words that say what it is.
    pub fn parts(&self) -> Vec<(&'static str, Duration)> {
        let own = if self.read.is_some() { "its own code" } else { "its own code (reading included)" };
        vec![
            ("waiting for its turn", self.row_queue_wait),
            ("waiting for a lock to go", self.row_lock_wait),
            ("waiting for admission", self.admission_wait),
            ("lost to conflicts", self.failed_attempts),
            ("reading", self.read.unwrap_or_default()),
            ("combining", self.apply),
            ("syncing", self.sync),
            (own, self.user_code),
        ]
    }
}

impl fmt::Display for TimeBreakdown {
    /// The parts that took any time to speak of, the longest first.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = self.parts();
        parts.sort_by_key(|(_, took)| std::cmp::Reverse(*took));
        let total: Duration = parts.iter().map(|(_, took)| *took).sum();
        let told = parts.iter().enumerate().filter(|(index, (_, took))| *index == 0 || *took >= total / 100);
        for (index, (what, took)) in told {
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
            TxnOutcome::Conflict => write!(f, " and was given up")?,
            TxnOutcome::Failed(why) => write!(f, " and failed ({why})")?,
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
    use super::*;

    #[test]
    fn the_newest_and_the_slowest_are_kept_and_no_more() {
        let log = SlowLog::default();
        let began = UNIX_EPOCH;
        // 0, 7, 14, … modulo 1000: each number of milliseconds once, in no order; and the slowest once more at the end.
        let totals: Vec<u64> = (0..1000).map(|n| n * 7 % 1000).chain([999]).collect();
        for (n, total) in totals.iter().enumerate() {
            let total = Duration::from_millis(*total);
            let (owner, start_ts) = (OwnerId::from_u64(n as u64), Timestamp::ZERO);
            let (label, spent, outcome) = (None, TimeBreakdown::default(), TxnOutcome::RolledBack);
            log.add(SlowTransaction {
                label,
                owner_id: owner,
                start_ts,
                started_at: began,
                duration: total,
                breakdown: spent,
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
