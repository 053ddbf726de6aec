//! What a store observes of its transactions and snapshots: the list of active ones, their
//! conflicts, and the slow log.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, UNIX_EPOCH};

use crate::contention::WaitTimes;
use crate::env::Env;
use crate::error::{Conflict, ConflictReason, Error, Result};
use crate::observe::{Metrics, TxnPhase};
use crate::read_view::ReadView;
use crate::row::TxnId;
use crate::store::catalog::handles::Catalog;
use crate::store::introspect::active_readers::{ActiveReader, ActiveReaders, ActiveTransaction};
use crate::store::introspect::retrying_calls::{ListedCall, RetryingCall, RetryingCalls, RetryingRecord};
use crate::store::introspect::slow_log::{
    AttemptTiming, PastAttempts, SlowLog, SlowTransaction, TimeBreakdown, TxnOutcome,
};
use crate::store::options::Options;

/// See the [module](self).
pub(in crate::store) struct TxnMonitor {
    env: Arc<dyn Env>,
    metrics: Arc<Metrics>,
    /// Has the names of keyspaces, for conflicts.
    catalog: Arc<Catalog>,
    active: ActiveReaders,
    retrying: Arc<RetryingCalls>,
    slow_log: SlowLog,
    /// The option `slow_transaction_threshold`; `None` if that is [`Duration::MAX`], so that no
    /// transaction is slow.
    slow_threshold: Option<Duration>,
    track_read_timing: bool,
}

impl TxnMonitor {
    pub fn new(env: &Arc<dyn Env>, metrics: &Arc<Metrics>, catalog: &Arc<Catalog>, options: &Options) -> Self {
        Self {
            env: Arc::clone(env),
            metrics: Arc::clone(metrics),
            catalog: Arc::clone(catalog),
            active: ActiveReaders::default(),
            retrying: Arc::default(),
            slow_log: SlowLog::default(),
            slow_threshold: Some(options.slow_transaction_threshold).filter(|limit| *limit < Duration::MAX),
            track_read_timing: options.track_read_timing,
        }
    }

    /// Registers a transaction that begins now.
    pub fn register_txn(&self, view: Arc<ReadView>, id: TxnId, label: Option<&'static str>) -> Arc<ActiveReader> {
        self.active.add(view, Some(id), label, self.env.elapsed())
    }

    /// Registers a snapshot that begins now.
    pub fn register_snapshot(&self, view: Arc<ReadView>, label: Option<&'static str>) -> Arc<ActiveReader> {
        self.active.add(view, None, label, self.env.elapsed())
    }

    /// Registers a second reader of the snapshot's view, with this label.
    pub fn register_labelled(&self, snapshot: &ActiveReader, label: &'static str) -> Arc<ActiveReader> {
        self.active.add(Arc::clone(&snapshot.view), None, Some(label), snapshot.started_at)
    }

    /// A reader for a short internal read. It is not among the active transactions.
    pub fn unregistered_reader(&self, view: Arc<ReadView>) -> Arc<ActiveReader> {
        ActiveReader::new(view, None, None, self.env.elapsed())
    }

    /// All active readers, in no order.
    #[cfg(feature = "metrics")]
    pub fn active_readers(&self) -> Vec<Arc<ActiveReader>> {
        self.active.all()
    }

    /// The active transactions and snapshots, by ascending read timestamp.
    pub fn active_transactions(&self) -> Vec<ActiveTransaction> {
        let now = self.env.elapsed();
        let mut active: Vec<_> = self.active.all().iter().map(|reader| reader.describe(now)).collect();
        active.sort_by_key(|entry| (entry.read_ts, std::cmp::Reverse(entry.age)));
        active
    }

    /// Lists a call of `transact` at its first conflict, and updates its entry at later ones.
    pub fn note_retrying(&self, listed: &mut Option<ListedCall>, call: RetryingRecord) {
        match listed {
            Some(listed) => listed.update(call),
            None => *listed = Some(ListedCall::new(&self.retrying, call)),
        }
    }

    /// The calls of `transact` that retry, oldest first.
    pub fn retrying_calls(&self) -> Vec<RetryingCall> {
        self.retrying.all(self.env.elapsed())
    }

    /// How many calls of `transact` retry, and the age of the oldest one.
    #[cfg(feature = "metrics")]
    pub fn retrying_count_and_age(&self) -> (usize, Duration) {
        let (count, began) = self.retrying.count_and_oldest();
        (count, began.map_or(Duration::ZERO, |began| self.env.elapsed().saturating_sub(began)))
    }

    /// Runs a read; with `track_read_timing`, adds its time to the transaction's timer.
    pub fn time_read<T>(&self, reader: &ActiveReader, read: impl FnOnce() -> T) -> T {
        if !self.track_read_timing || reader.txn.is_none() {
            return read();
        }
        let started_at = self.env.elapsed();
        let result = read();
        reader.timer.add(TxnPhase::Read, self.env.elapsed().saturating_sub(started_at));
        result
    }

    /// Returns the outcome of a read or write. A conflict gets the keyspace's name and the other
    /// transaction's label. If it is the first one of the reader, it is also counted, and recorded
    /// in the reader.
    pub fn record_conflict<T>(&self, reader: &ActiveReader, outcome: Result<T>) -> Result<T> {
        outcome.map_err(|mut error| {
            if error.is_retryable()
                && let Some(conflict) = error.conflict_mut()
            {
                self.complete_conflict(reader, conflict);
                let mut first = reader.first_conflict.lock();
                if first.is_none() {
                    self.count_conflict(reader, conflict);
                    *first = Some(Box::new(conflict.clone()));
                }
            }
            error
        })
    }

    /// Adds the keyspace's name and the other transaction's label to the conflict of a commit, and
    /// counts the conflict.
    pub fn record_commit_conflict(&self, reader: &ActiveReader, conflict: &mut Conflict) {
        self.complete_conflict(reader, conflict);
        self.count_conflict(reader, conflict);
    }

    /// Adds the keyspace's name and the other transaction's label if the error is a conflict. Does
    /// not count the conflict.
    pub fn with_conflict_names(&self, mut error: Error) -> Error {
        if let Some(conflict) = error.conflict_mut() {
            self.add_names(conflict);
        }
        error
    }

    fn complete_conflict(&self, reader: &ActiveReader, conflict: &mut Conflict) {
        self.add_names(conflict);
        // After `skip_conflict_check` a conflict has `Timestamp::MAX` as its `read_ts`, although
        // the transaction reads at the timestamp of its view.
        conflict.read_ts = reader.view.read_ts;
    }

    /// Adds the name of the keyspace and the label of the conflicting transaction.
    fn add_names(&self, conflict: &mut Conflict) {
        if conflict.keyspace.is_some() {
            return;
        }
        conflict.keyspace = self.catalog.name_by_handle(conflict.row.keyspace_id());
        conflict.conflicting_label = conflict.conflicting_owner.and_then(|owner| self.active.label_of(owner));
    }

    #[cfg_attr(not(feature = "tracing"), allow(unused_variables, reason = "for the event alone"))]
    fn count_conflict(&self, reader: &ActiveReader, conflict: &Conflict) {
        let Metrics { conflicts_newer_version, conflicts_locked, conflicts_rolled_back, .. } = &*self.metrics;
        match conflict.reason {
            ConflictReason::NewerVersion(_) => conflicts_newer_version.add(1),
            ConflictReason::Locked => conflicts_locked.add(1),
            ConflictReason::RolledBackByOther => conflicts_rolled_back.add(1),
        }
        event!(
            DEBUG,
            owner = reader.txn.map(|txn| ::tracing::field::display(txn.owner)),
            label = reader.label,
            with = %conflict,
            "conflict"
        );
    }

    /// Counts and logs the readers whose views have expired at the age limit, each once.
    pub fn report_expired(&self) {
        for reader in self.active.all() {
            if reader.view.expired.load(Ordering::Acquire) && !reader.reported.swap(true, Ordering::Relaxed) {
                self.metrics.snapshots_expired.add(1);
                event!(
                    WARN,
                    owner = reader.txn.map(|txn| ::tracing::field::display(txn.owner)),
                    read_ts = %reader.view.read_ts,
                    age_ms = u64::try_from(self.env.elapsed().saturating_sub(reader.started_at).as_millis()).ok(),
                    label = reader.label,
                    "snapshot expired"
                );
            }
        }
    }

    /// Whether slow transactions are logged at all.
    pub fn has_slow_log(&self) -> bool {
        self.slow_threshold.is_some()
    }

    /// Whether a transaction of this duration is logged.
    pub fn is_slow(&self, total: Duration) -> bool {
        self.slow_threshold.is_some_and(|limit| total >= limit)
    }

    /// The newest slow transactions, oldest first.
    pub fn slow_transactions(&self) -> Vec<SlowTransaction> {
        self.slow_log.newest()
    }

    /// The slowest transactions, slowest first.
    pub fn slowest_transactions(&self) -> Vec<SlowTransaction> {
        self.slow_log.slowest()
    }

    /// Logs a transaction, or a whole call of `transact`. `began` is when the transaction or the
    /// call began: `last.began` would be the beginning of the last attempt.
    pub fn log_slow(&self, began: Duration, before: &mut PastAttempts, last: &AttemptTiming, outcome: TxnOutcome) {
        let total = last.ended.saturating_sub(began);
        let AttemptTiming { txn, read, apply, sync, .. } = *last;
        let read = self.track_read_timing.then_some(read);
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
        let ago = self.env.unix_millis().saturating_sub(u64::try_from(total.as_millis()).unwrap_or(u64::MAX));
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
        self.metrics.slow_transactions.add(1);
        event!(WARN, report = %slow, label = slow.label, "slow transaction");
        self.slow_log.add(slow);
    }
}
