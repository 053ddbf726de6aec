//! Gauges: metrics that are computed on request, not counted.

use std::time::Duration;

use crate::store::handle::Inner;
use crate::store::introspect::stats::update_write_stalls;

/// How often the gauges of the engine are set: reading them costs more than the others.
pub(in crate::store) const ENGINE_GAUGES_INTERVAL: Duration = Duration::from_secs(5);

/// Sets the gauges of disk space and of what open snapshots keep. An engine without statistics has
/// none of them.
#[allow(clippy::cast_precision_loss, reason = "values for a graph")]
pub(in crate::store) fn set_engine_gauges(inner: &Inner) {
    let Ok(stats) = inner.engine.stats() else { return };
    let set = |name, value: u64| crate::observe::gauge(inner.instance_id, name, value as f64);
    if let (Some(free), Some(total)) = (stats.disk_free_bytes, stats.disk_total_bytes) {
        set("percolite_disk_free_bytes", free);
        set("percolite_disk_total_bytes", total);
    }
    set("percolite_batches_since_oldest_snapshot", stats.batches_since_oldest_snapshot);
    set("percolite_snapshot_memtable_bytes", stats.snapshot_memtable_bytes);
    set("percolite_obsolete_table_bytes", stats.obsolete_table_bytes);
}

#[allow(clippy::cast_precision_loss, reason = "values for a graph")]
pub(in crate::store) fn set_gauges(inner: &Inner) {
    let readers = inner.monitor.active_readers();
    let transactions = readers.iter().filter(|reader| reader.txn.is_some()).count();
    let oldest = readers.iter().map(|reader| reader.started_at).min();
    let age = oldest.map_or(Duration::ZERO, |started_at| inner.env.elapsed().saturating_sub(started_at));
    let set = |name, value| crate::observe::gauge(inner.instance_id, name, value);
    set("percolite_active_transactions", transactions as f64);
    set("percolite_active_snapshots", (readers.len() - transactions) as f64);
    set("percolite_oldest_snapshot_age_seconds", age.as_secs_f64());
    let (retrying, retrying_age) = inner.monitor.retrying_count_and_age();
    set("percolite_retrying_calls", retrying as f64);
    set("percolite_oldest_retrying_call_seconds", retrying_age.as_secs_f64());
    set("percolite_current_write_stall_seconds", update_write_stalls(inner).current.unwrap_or_default().as_secs_f64());
    if let (Some(marks), Some(locks)) = (inner.coordinator.watermarks(), &inner.locks) {
        let durability_lag = marks.visible_ts.millis().saturating_sub(marks.durable_ts.millis());
        let totals = locks.totals();
        let set_locks = |name, value| crate::observe::lock_gauge(inner.instance_id, name, value);
        set_locks("percolite_named_locks_held", totals.held as f64);
        set_locks("percolite_named_lock_waiters", totals.waiting as f64);
        set_locks(
            "percolite_oldest_named_lock_wait_seconds",
            totals
                .oldest_request_at
                .map_or(Duration::ZERO, |requested_at| inner.env.elapsed().saturating_sub(requested_at))
                .as_secs_f64(),
        );
        set("percolite_open_views", marks.open_views as f64);
        set("percolite_cleanup_pending", marks.cleanup_pending as f64);
        let clock_behind = marks.visible_ts.millis().saturating_sub(inner.env.unix_millis());
        set("percolite_clock_behind_seconds", clock_behind as f64 / 1000.0);
        set("percolite_durability_lag_seconds", durability_lag as f64 / 1000.0);
    }
}
