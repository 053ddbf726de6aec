//! Logging slow transactions, and reading the log.

use std::time::{Duration, UNIX_EPOCH};

use crate::contention::WaitTimes;
use crate::store::handle::Store;
use crate::store::introspect::slow_log::{AttemptTiming, PastAttempts, SlowTransaction, TimeBreakdown, TxnOutcome};

impl Store {
    /// The last hundred transactions that took at least
    /// [`Builder::slow_transaction_threshold`](crate::store::Builder::slow_transaction_threshold),
    /// oldest first, with their time by phase and their conflicts.
    ///
    /// ```
    /// # fn main() -> percolite::Result<()> {
    /// use percolite::{Store, TxnOptions};
    /// use std::time::Duration;
    /// let threshold = Duration::from_millis(20);
    /// let store = Store::builder().slow_transaction_threshold(threshold).in_memory()?;
    /// let rows = store.keyspace("rows")?;
    /// store.transact_with(TxnOptions::with_label("think first"), |txn| {
    ///     std::thread::sleep(Duration::from_millis(30));
    ///     txn.put(&rows, "key", "value")
    /// })?;
    /// let slow = store.slow_transactions().pop().unwrap();
    /// assert_eq!(slow.label, Some("think first"));
    /// // "think first" (owner …) took 30.2ms and was committed: 30.1ms user code …
    /// println!("{slow}");
    /// # assert!(slow.to_string().contains("user code"), "{slow}");
    /// # Ok(()) }
    /// ```
    pub fn slow_transactions(&self) -> Vec<SlowTransaction> {
        self.inner.slow_log.0.lock().newest.iter().cloned().collect()
    }

    /// The hundred slowest transactions since the store was opened, slowest first. Once there are a
    /// hundred, a later transaction displaces the fastest of them, if it is slower.
    pub fn slowest_transactions(&self) -> Vec<SlowTransaction> {
        self.inner.slow_log.0.lock().slowest.clone()
    }

    /// Whether a transaction of this duration is logged.
    pub(in crate::store) fn is_slow(&self, total: Duration) -> bool {
        let limit = self.inner.options.slow_transaction_threshold;
        total >= limit && limit < Duration::MAX
    }

    /// Logs a transaction or a call of `transact`, which began at `began`; a call may have waited
    /// before its first attempt.
    pub(in crate::store) fn log_slow(
        &self,
        began: Duration,
        before: &mut PastAttempts,
        last: &AttemptTiming,
        outcome: TxnOutcome,
    ) {
        let total = last.ended.saturating_sub(began);
        let AttemptTiming { txn, read, apply, sync, .. } = *last;
        let read = self.inner.options.track_read_timing.then_some(read);
        let WaitTimes { row_queue, row_lock, admission } = before.waited;
        // If a call of `transact` ended with a conflict, `failed_time` includes the whole last
        // attempt. So the phases of that attempt are set to zero here.
        let last_failed = outcome == TxnOutcome::Conflict && !before.failed_time.is_zero();
        let unless_failed = |phase: Duration| if last_failed { Duration::ZERO } else { phase };
        let breakdown = TimeBreakdown {
            row_queue_wait: row_queue,
            row_lock_wait: row_lock,
            admission_wait: admission,
            failed_attempts: before.failed_time,
            read: read.map(unless_failed),
            apply: unless_failed(apply),
            sync: unless_failed(sync),
            user_code: Duration::ZERO,
        };
        let user_code = total.saturating_sub(breakdown.parts().iter().map(|(_, took)| *took).sum());
        let ago = self.inner.env.unix_millis().saturating_sub(u64::try_from(total.as_millis()).unwrap_or(u64::MAX));
        let slow = SlowTransaction {
            label: last.label,
            owner_id: txn.owner,
            start_ts: txn.start_ts,
            started_at: UNIX_EPOCH + Duration::from_millis(ago),
            duration: total,
            breakdown: TimeBreakdown { user_code, ..breakdown },
            attempts: before.attempts,
            conflicts: std::mem::take(&mut before.conflicts).into(),
            outcome,
        };
        self.inner.metrics.slow_transactions.add(1);
        event!(WARN, report = %slow, label = slow.label, "slow transaction");
        self.inner.slow_log.add(slow);
    }
}
