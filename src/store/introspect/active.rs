//! The active transactions of a store, and the conflicts that they meet.

use std::sync::Arc;
use std::sync::atomic::Ordering;
#[cfg(feature = "metrics")]
use std::time::Duration;

use crate::error::{Conflict, ConflictReason, Error, Result};
use crate::observe::{Metrics, TxnPhase};
use crate::read_view::ReadView;
use crate::store::handle::{Inner, Store};
use crate::store::introspect::active_readers::{ActiveReader, ActiveTransaction};

impl Store {
    /// The active transactions and snapshots, ordered by the age of the state that they read,
    /// oldest first. GC removes nothing that an entry may read, unless the entry has expired. A
    /// transaction or snapshot stays in this list as long as one of its scans exists.
    ///
    /// Takes a short lock for each shard of the list and a reference to each entry; does not block.
    ///
    /// ```
    /// # fn main() -> percolite::Result<()> {
    /// use percolite::{Store, TxnOptions};
    /// let store = Store::in_memory()?;
    /// let report = store.snapshot()?.with_label("monthly report");
    /// let txn = store.begin_with(TxnOptions::with_label("transfer"))?;
    /// for active in store.active_transactions() {
    ///     println!("{:?} {:?} for {:?}", active.kind, active.label, active.age);
    /// }
    /// assert_eq!(store.active_transactions().len(), 2);
    /// # Ok(()) }
    /// ```
    pub fn active_transactions(&self) -> Vec<ActiveTransaction> {
        let now = self.inner.env.elapsed();
        let mut active: Vec<ActiveTransaction> =
            self.inner.active.all().iter().map(|reader| reader.describe(now)).collect();
        active.sort_by_key(|entry| (entry.read_ts, std::cmp::Reverse(entry.age)));
        active
    }

    /// Registers a reader that is not a transaction.
    pub(in crate::store) fn register_reader(
        &self,
        view: Arc<ReadView>,
        label: Option<&'static str>,
    ) -> Arc<ActiveReader> {
        self.inner.active.add(view, None, label, self.inner.env.elapsed())
    }

    /// A reader for a short internal read. It is not among the active transactions.
    pub(in crate::store) fn unregistered_reader(&self, view: Arc<ReadView>) -> Arc<ActiveReader> {
        ActiveReader::new(view, None, None, self.inner.env.elapsed())
    }

    /// Runs a read; with `track_read_timing`, adds its time to the transaction's timer.
    pub(in crate::store) fn time_read<T>(&self, reader: &ActiveReader, read: impl FnOnce() -> T) -> T {
        if !self.inner.options.track_read_timing || reader.txn.is_none() {
            return read();
        }
        let started_at = self.inner.env.elapsed();
        let result = read();
        reader.timer.add(TxnPhase::Read, self.inner.env.elapsed().saturating_sub(started_at));
        result
    }

    /// Adds the keyspace's name and the other transaction's label to a conflict, and counts and
    /// records the reader's first conflict. Returns any other outcome as it is.
    pub(in crate::store) fn record_conflict<T>(&self, reader: &ActiveReader, outcome: Result<T>) -> Result<T> {
        outcome.map_err(|mut why| {
            if why.is_retryable()
                && let Some(conflict) = why.conflict_mut()
            {
                self.fill_conflict_names(conflict);
                // After `skip_conflict_check` the conflict has `Timestamp::MAX` here, which is not
                // what the transaction reads at.
                conflict.read_ts = reader.view.read_ts;
                let mut first = reader.first_conflict.lock();
                if first.is_none() {
                    self.count_conflict(reader, conflict);
                    *first = Some(Box::new(conflict.clone()));
                }
            }
            why
        })
    }

    /// The error, with the names of keyspace and transaction if it is a conflict.
    pub(in crate::store) fn with_conflict_names(&self, mut why: Error) -> Error {
        if let Some(conflict) = why.conflict_mut() {
            self.fill_conflict_names(conflict);
        }
        why
    }

    /// Adds the name of the keyspace and the label of the conflicting transaction.
    pub(in crate::store) fn fill_conflict_names(&self, conflict: &mut Conflict) {
        if conflict.keyspace.is_some() {
            return;
        }
        conflict.keyspace = self.inner.catalog.name_by_handle(conflict.row.keyspace_id());
        conflict.conflicting_label = conflict.conflicting_owner.and_then(|owner| self.inner.active.label_of(owner));
    }

    #[cfg_attr(not(feature = "tracing"), allow(unused_variables, reason = "for the event alone"))]
    pub(in crate::store) fn count_conflict(&self, reader: &ActiveReader, conflict: &Conflict) {
        let Metrics { conflicts_newer_version, conflicts_locked, conflicts_rolled_back, .. } = &*self.inner.metrics;
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
}

impl Store {
    /// Expires old snapshots, so that a leaked one does not block GC forever, and requests a sync,
    /// so that a power cut loses few buffered commits.
    pub(in crate::store) fn maintain(&self) {
        if self.inner.coordinator.maintain(self.inner.options.max_snapshot_age) > 0 {
            self.inner.report_expired();
        }
        #[cfg(feature = "metrics")]
        self.inner.set_gauges();
    }
}

impl Inner {
    /// Counts and logs the readers whose views have expired at the age limit, each once.
    pub(in crate::store) fn report_expired(&self) {
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

    /// Sets the gauges: values that are computed on request, not counted.
    #[cfg(feature = "metrics")]
    #[allow(clippy::cast_precision_loss, reason = "values for a graph")]
    pub(in crate::store) fn set_gauges(&self) {
        let readers = self.active.all();
        let transactions = readers.iter().filter(|reader| reader.txn.is_some()).count();
        let oldest = readers.iter().map(|reader| reader.started_at).min();
        let age = oldest.map_or(Duration::ZERO, |started_at| self.env.elapsed().saturating_sub(started_at));
        let set = |name, value| crate::observe::gauge(self.instance_id, name, value);
        set("percolite_active_transactions", transactions as f64);
        set("percolite_active_snapshots", (readers.len() - transactions) as f64);
        set("percolite_oldest_snapshot_age_seconds", age.as_secs_f64());
        set(
            "percolite_current_write_stall_seconds",
            self.update_write_stalls().current.unwrap_or_default().as_secs_f64(),
        );
        if let (Some(marks), Some(locks)) = (self.coordinator.watermarks(), &self.locks) {
            let durability_lag = marks.visible_ts.millis().saturating_sub(marks.durable_ts.millis());
            let totals = locks.totals();
            let set_locks = |name, value| crate::observe::lock_gauge(self.instance_id, name, value);
            set_locks("percolite_named_locks_held", totals.held as f64);
            set_locks("percolite_named_lock_waiters", totals.waiting as f64);
            set_locks(
                "percolite_oldest_named_lock_wait_seconds",
                totals
                    .oldest_request_at
                    .map_or(Duration::ZERO, |requested_at| self.env.elapsed().saturating_sub(requested_at))
                    .as_secs_f64(),
            );
            set("percolite_open_views", marks.open_views as f64);
            set("percolite_cleanup_pending", marks.cleanup_pending as f64);
            set("percolite_durability_lag_seconds", durability_lag as f64 / 1000.0);
        }
    }
}
