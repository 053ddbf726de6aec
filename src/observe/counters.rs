//! The metrics of one store, and their names and descriptions for the `metrics` crate.

use std::sync::atomic::{AtomicU64, Ordering};

use super::Histogram;

/// A number that only increases, exported as a counter.
pub(crate) struct Counter {
    value: AtomicU64,
    #[cfg(feature = "metrics")]
    facade: metrics::Counter,
}

impl Counter {
    pub fn add(&self, more: u64) {
        self.value.fetch_add(more, Ordering::Relaxed);
        #[cfg(feature = "metrics")]
        self.facade.increment(more);
    }

    /// Raises the counter to `all`, a total that another component counts.
    pub fn set_at_least(&self, all: u64) {
        self.value.fetch_max(all, Ordering::Relaxed);
        #[cfg(feature = "metrics")]
        self.facade.absolute(all);
    }

    pub fn get(&self) -> u64 {
        self.value.load(Ordering::Relaxed)
    }
}

/// Generates the struct, the registration and the documentation from one line for each metric:
/// field, exported name, label and description.
macro_rules! metrics_table {
    (
        $($kind:ident $field:ident $name:literal [$($key:literal = $value:literal)?] $what:literal;)*
        $(@gauge $gauge:literal $shows:literal;)*
    ) => {
        /// [`Stats`](crate::Stats) and [`Latencies`](crate::Latencies) describe what each metric
        /// counts.
        pub(crate) struct Metrics {
            $(pub $field: $kind,)*
        }

        impl Metrics {
            /// The metrics of a store. `store` is their label: the number of the store in this
            /// process.
            #[cfg_attr(not(feature = "metrics"), allow(unused_variables, reason = "the facade's label"))]
            pub fn new(store: u64) -> Self {
                #[cfg(feature = "metrics")]
                {
                    $(metrics::describe_gauge!($gauge, $shows);)*
                }
                Self { $($field: new_metric!($kind, store, $name, $what $(, $key => $value)?),)* }
            }
        }

        /// The rows of the documentation's table.
        macro_rules! table {
            () => {
                concat!(
                    $("| `", $name, "` | ", $what, " | ", $("`", $key, "=", $value, "`",)? " |\n",)*
                    $("| `", $gauge, "` | ", $shows, " |  |\n",)*
                )
            };
        }
        pub(crate) use table;
    };
}

#[cfg(not(feature = "metrics"))]
macro_rules! new_metric {
    (Counter, $($described:tt)*) => {
        Counter { value: AtomicU64::new(0) }
    };
    (Histogram, $($described:tt)*) => {
        Histogram::new()
    };
}

#[cfg(feature = "metrics")]
macro_rules! new_metric {
    (Counter, $store:ident, $name:literal, $what:literal $(, $key:literal => $value:literal)?) => {{
        metrics::describe_counter!($name, $what);
        let facade = metrics::counter!($name, "store" => $store.to_string() $(, $key => $value)?);
        Counter { value: AtomicU64::new(0), facade }
    }};
    (Histogram, $store:ident, $name:literal, $what:literal $(, $key:literal => $value:literal)?) => {{
        metrics::describe_histogram!($name, metrics::Unit::Seconds, $what);
        Histogram::new(metrics::histogram!($name, "store" => $store.to_string() $(, $key => $value)?))
    }};
}

metrics_table! {
    Counter transactions_started "percolite_transactions_started_total" [] "transactions started; each attempt of `transact` is one";
    Counter commits_one_phase "percolite_commits_total" ["protocol" = "one_phase"] "transactions committed that wrote something";
    Counter commits_two_phase "percolite_commits_total" ["protocol" = "two_phase"] "transactions committed that wrote something";
    Counter commits_large "percolite_commits_total" ["protocol" = "large"] "transactions committed that wrote something";
    Counter large_rows_locked "percolite_large_rows_locked_total" [] "rows that large transactions have locked";
    Counter cleanup_rows "percolite_cleanup_rows_total" [] "row locks of large transactions removed by cleanup";
    Counter conflicts_newer_version "percolite_conflicts_total" ["reason" = "newer_version"] "conflicts, by reason";
    Counter conflicts_locked "percolite_conflicts_total" ["reason" = "locked"] "conflicts, by reason";
    Counter conflicts_rolled_back "percolite_conflicts_total" ["reason" = "rolled_back"] "conflicts, by reason";
    Counter retries "percolite_retries_total" [] "attempts of `transact` after the first";
    Counter retries_exhausted "percolite_retries_exhausted_total" [] "calls of `transact` that exhausted their retries";
    Counter admission_timeouts "percolite_admission_timeouts_total" [] "attempts that ran without admission after their wait timed out";
    Counter slow_transactions "percolite_slow_transactions_total" [] "transactions that took longer than `slow_transaction_threshold`";
    Counter snapshots_expired "percolite_snapshots_expired_total" [] "transactions and snapshots expired at `max_snapshot_age`";
    Counter locks_rolled_forward "percolite_row_locks_rolled_forward_total" [] "row locks of other transactions that were rolled forward";
    Counter locks_rolled_back "percolite_row_locks_rolled_back_total" [] "row locks of other transactions, and own transactions, that were rolled back";
    Counter orphan_locks_resolved "percolite_orphan_locks_resolved_total" [] "orphan row locks resolved in the background";
    Counter orphan_locks_found "percolite_orphan_locks_found_total" [] "orphan row locks that the background has counted since opening";
    Counter gc_tombstones "percolite_gc_tombstones_total" [] "tombstones removed by garbage collection";
    Counter gc_versions "percolite_gc_versions_total" [] "replaced versions removed by garbage collection";
    Counter wal_syncs "percolite_wal_syncs_total" [] "syncs of the write-ahead log for commits, without those of flushes";
    Counter write_stalls "percolite_write_stalls_total" [] "writes stalled by a slow flush into the tables";
    Counter write_stall_millis "percolite_write_stall_milliseconds_total" [] "time during which a write was stalled, in milliseconds";
    Counter locks_acquired "percolite_named_locks_acquired_total" [] "named locks acquired";
    Counter lock_waits "percolite_named_lock_waits_total" [] "requests for named locks that had to wait";
    Counter lock_timeouts "percolite_named_lock_timeouts_total" [] "requests for named locks that timed out, or failed as no-wait";
    Counter locks_lost "percolite_named_locks_lost_total" [] "grants of named locks that ended before their release: lease expired, or `force_unlock`";
    Histogram lock_wait "percolite_named_lock_wait_seconds" [] "from the request for a named lock to its grant, if it had to wait";
    Histogram commit_durable "percolite_commit_seconds" ["durability" = "sync"] "duration of a commit, from call to return";
    Histogram commit_buffered "percolite_commit_seconds" ["durability" = "buffered"] "duration of a commit, from call to return";
    Histogram admission_wait "percolite_admission_wait_seconds" [] "waits of attempts for the row queue, row locks and admission, if they had to wait";
    Histogram commit_apply "percolite_commit_apply_seconds" [] "from the submission of a commit until it is applied";
    Histogram wal_sync "percolite_wal_sync_seconds" [] "syncs of the write-ahead log";
    Histogram transact "percolite_transact_seconds" [] "successful calls of `transact`, retries included";
    @gauge "percolite_active_transactions" "gauge: active transactions";
    @gauge "percolite_active_snapshots" "gauge: active snapshots";
    @gauge "percolite_oldest_snapshot_age_seconds" "gauge: age of the oldest active transaction or snapshot";
    @gauge "percolite_retrying_calls" "gauge: calls of `transact` that have met a conflict and try again";
    @gauge "percolite_oldest_retrying_call_seconds" "gauge: age of the oldest of these calls, 0 without one";
    @gauge "percolite_batches_since_oldest_snapshot" "gauge: batches written since the oldest open snapshot, whose old versions it keeps";
    @gauge "percolite_snapshot_memtable_bytes" "gauge: memory of memtables that only open snapshots keep";
    @gauge "percolite_obsolete_table_bytes" "gauge: disk space of replaced tables that a running scan keeps";
    @gauge "percolite_disk_free_bytes" "gauge: free space of the store's file system, for this user";
    @gauge "percolite_disk_total_bytes" "gauge: size of the store's file system";
    @gauge "percolite_named_locks_held" "gauge: named locks held, with the label `kind`";
    @gauge "percolite_named_lock_waiters" "gauge: requests that wait for named locks, with the label `kind`";
    @gauge "percolite_oldest_named_lock_wait_seconds" "gauge: longest current wait for a named lock, with the label `kind`";
    @gauge "percolite_open_views" "gauge: distinct read views in use";
    @gauge "percolite_cleanup_pending" "gauge: finished large transactions with row locks left";
    @gauge "percolite_clock_behind_seconds" "gauge: lag of the clock behind the newest visible commit, 0 if it is ahead";
    @gauge "percolite_current_write_stall_seconds" "gauge: duration of the current write stall, 0 without one";
    @gauge "percolite_durability_lag_seconds" "gauge: lag of the newest durable commit behind the newest visible one";
}

impl Metrics {
    /// Number of conflicts, all reasons together.
    pub fn conflicts(&self) -> u64 {
        self.conflicts_newer_version.get() + self.conflicts_locked.get() + self.conflicts_rolled_back.get()
    }
}

/// Sets a gauge of named locks. Besides `store` it has the label `kind`, which is always `name`.
#[cfg(feature = "metrics")]
pub(crate) fn lock_gauge(store: u64, name: &'static str, value: f64) {
    metrics::gauge!(name, "store" => store.to_string(), "kind" => "name").set(value);
}

/// Sets a gauge.
#[cfg(feature = "metrics")]
pub(crate) fn gauge(store: u64, name: &'static str, value: f64) {
    metrics::gauge!(name, "store" => store.to_string()).set(value);
}
