//! Metrics and timers of one store, and the names of all its figures outside.

use std::sync::atomic::{AtomicU64, Ordering};

use super::Histogram;

/// A number that only grows.
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

    /// Of what is counted elsewhere: there are so many by now.
    pub fn set_at_least(&self, all: u64) {
        self.value.fetch_max(all, Ordering::Relaxed);
        #[cfg(feature = "metrics")]
        self.facade.absolute(all);
    }

    pub fn get(&self) -> u64 {
        self.value.load(Ordering::Relaxed)
    }
}

/// One line for each: its field, its name for `metrics`, the label that tells it from others of the name, what it is. The struct, the
/// registration and the documentation are made of the same lines.
macro_rules! metrics_table {
    (
        $($kind:ident $field:ident $name:literal [$($key:literal = $value:literal)?] $what:literal;)*
        $(@gauge $gauge:literal $shows:literal;)*
    ) => {
        /// See [`Stats`](crate::Stats) and [`Latencies`](crate::Latencies) for what each counts.
        pub(crate) struct Metrics {
            $(pub $field: $kind,)*
        }

        impl Metrics {
            /// Those of the store of this number.
            #[cfg_attr(not(feature = "metrics"), allow(unused_variables, reason = "the facade's label"))]
            pub fn new(store: u64) -> Self {
                #[cfg(feature = "metrics")]
                {
                    $(metrics::describe_gauge!($gauge, $shows);)*
                }
                Self { $($field: new_metric!($kind, store, $name, $what $(, $key => $value)?),)* }
            }
        }

        /// Of the documentation.
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
    Counter transactions_started "percolite_transactions_started_total" [] "transactions begun, each attempt of `transact` one";
    Counter commits_one_phase "percolite_commits_total" ["protocol" = "one_phase"] "transactions committed that wrote something";
    Counter commits_two_phase "percolite_commits_total" ["protocol" = "two_phase"] "transactions committed that wrote something";
    Counter commits_large "percolite_commits_total" ["protocol" = "large"] "transactions committed that wrote something";
    Counter large_rows_locked "percolite_large_rows_locked_total" [] "rows that large transactions have locked";
    Counter cleanup_rows "percolite_cleanup_rows_total" [] "of these, rows whose lock is gone since";
    Counter conflicts_newer_version "percolite_conflicts_total" ["reason" = "newer_version"] "transactions that met a conflict";
    Counter conflicts_locked "percolite_conflicts_total" ["reason" = "locked"] "transactions that met a conflict";
    Counter conflicts_rolled_back "percolite_conflicts_total" ["reason" = "rolled_back"] "transactions that met a conflict";
    Counter retries "percolite_retries_total" [] "attempts of `transact` after the first";
    Counter retries_exhausted "percolite_retries_exhausted_total" [] "calls of `transact` that gave up after conflicts";
    Counter admission_timeouts "percolite_admission_timeouts_total" [] "attempts that ran without admission, having waited long enough";
    Counter slow_transactions "percolite_slow_transactions_total" [] "transactions that took longer than `slow_transaction`";
    Counter snapshots_expired "percolite_snapshots_expired_total" [] "transactions and snapshots ended at the age limit";
    Counter locks_rolled_forward "percolite_row_locks_rolled_forward_total" [] "row locks of other transactions that were rolled forward";
    Counter locks_rolled_back "percolite_row_locks_rolled_back_total" [] "row locks of others, and own transactions, that were rolled back";
    Counter orphan_locks_resolved "percolite_orphan_locks_resolved_total" [] "orphan row locks resolved by the sweep";
    Counter gc_tombstones "percolite_gc_tombstones_total" [] "records of deleted rows that were collected";
    Counter gc_versions "percolite_gc_versions_total" [] "replaced versions that were collected";
    Counter wal_syncs "percolite_wal_syncs_total" [] "syncs of the log";
    Counter write_stalls "percolite_write_stalls_total" [] "writes that waited because the tables had fallen behind";
    Counter write_stall_millis "percolite_write_stall_milliseconds_total" [] "how long there was a write that waited for that";
    Counter locks_acquired "percolite_named_locks_acquired_total" [] "locks taken by hand";
    Counter lock_waits "percolite_named_lock_waits_total" [] "requests for such locks that had to wait";
    Counter lock_timeouts "percolite_named_lock_timeouts_total" [] "requests whose patience was over, or that were not to wait";
    Counter locks_lost "percolite_named_locks_lost_total" [] "grants that ended before they were released, by the end of a lease or by force";
    Histogram lock_wait "percolite_named_lock_wait_seconds" [] "from asking for such a lock to its grant, where it had to wait";
    Histogram commit_durable "percolite_commit_seconds" ["durability" = "sync"] "from a commit's call to its answer";
    Histogram commit_buffered "percolite_commit_seconds" ["durability" = "buffered"] "from a commit's call to its answer";
    Histogram admission_wait "percolite_admission_wait_seconds" [] "waiting of attempts for turns, row locks and admission, where they had to";
    Histogram commit_apply "percolite_commit_apply_seconds" [] "from handing in a commit until it is applied";
    Histogram wal_sync "percolite_wal_sync_seconds" [] "syncs of the log";
    Histogram transact "percolite_transact_seconds" [] "calls of `transact` that succeeded, retries included";
    @gauge "percolite_active_transactions" "gauge: transactions that are not over";
    @gauge "percolite_active_snapshots" "gauge: snapshots that are not over";
    @gauge "percolite_oldest_snapshot_age_seconds" "gauge: age of the oldest of them";
    @gauge "percolite_named_locks_held" "gauge: locks that are held, with the label `kind`";
    @gauge "percolite_named_lock_waiters" "gauge: requests for locks that wait, with the label `kind`";
    @gauge "percolite_oldest_named_lock_wait_seconds" "gauge: how long the first of them has waited, with the label `kind`";
    @gauge "percolite_open_views" "gauge: different states of the store that are read";
    @gauge "percolite_cleanup_pending" "gauge: large transactions that are over with rows still locked";
    @gauge "percolite_current_write_stall_seconds" "gauge: for how long there has been such a write at this moment";
    @gauge "percolite_durability_lag_seconds" "gauge: how far what is durable is behind what is visible";
}

impl Metrics {
    /// Transactions that met a conflict, for whatever reason.
    pub fn conflicts(&self) -> u64 {
        self.conflicts_newer_version.get() + self.conflicts_locked.get() + self.conflicts_rolled_back.get()
    }
}

/// [`gauge`] for locks by name.
#[cfg(feature = "metrics")]
pub(crate) fn lock_gauge(store: u64, name: &'static str, value: f64) {
    metrics::gauge!(name, "store" => store.to_string(), "kind" => "name").set(value);
}

/// Sets what is no counter.
#[cfg(feature = "metrics")]
pub(crate) fn gauge(store: u64, name: &'static str, value: f64) {
    metrics::gauge!(name, "store" => store.to_string()).set(value);
}
