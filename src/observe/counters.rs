//! Counters and timers of one store, and the names of all its figures outside.

use std::sync::atomic::{AtomicU64, Ordering};

use super::Timer;

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
    pub fn raise_to(&self, all: u64) {
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
macro_rules! meters {
    (
        $($kind:ident $field:ident $name:literal [$($key:literal = $value:literal)?] $what:literal;)*
        $(@gauge $gauge:literal $shows:literal;)*
    ) => {
        /// See [`Stats`](crate::Stats) and [`Latencies`](crate::Latencies) for what each counts.
        pub(crate) struct Counters {
            $(pub $field: $kind,)*
        }

        impl Counters {
            /// Those of the store of this number.
            #[cfg_attr(not(feature = "metrics"), allow(unused_variables, reason = "the facade's label"))]
            pub fn new(store: u64) -> Self {
                #[cfg(feature = "metrics")]
                {
                    $(metrics::describe_gauge!($gauge, $shows);)*
                }
                Self { $($field: new_meter!($kind, store, $name, $what $(, $key => $value)?),)* }
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
macro_rules! new_meter {
    (Counter, $($described:tt)*) => {
        Counter { value: AtomicU64::new(0) }
    };
    (Timer, $($described:tt)*) => {
        Timer::new()
    };
}

#[cfg(feature = "metrics")]
macro_rules! new_meter {
    (Counter, $store:ident, $name:literal, $what:literal $(, $key:literal => $value:literal)?) => {{
        metrics::describe_counter!($name, $what);
        let facade = metrics::counter!($name, "store" => $store.to_string() $(, $key => $value)?);
        Counter { value: AtomicU64::new(0), facade }
    }};
    (Timer, $store:ident, $name:literal, $what:literal $(, $key:literal => $value:literal)?) => {{
        metrics::describe_histogram!($name, metrics::Unit::Seconds, $what);
        Timer::new(metrics::histogram!($name, "store" => $store.to_string() $(, $key => $value)?))
    }};
}

meters! {
    Counter begun "percolite_transactions_begun_total" [] "transactions begun, each attempt of `transact` one";
    Counter commits_one_phase "percolite_commits_total" ["phases" = "one"] "transactions committed that wrote something";
    Counter commits_two_phase "percolite_commits_total" ["phases" = "two"] "transactions committed that wrote something";
    Counter commits_streamed "percolite_commits_total" ["phases" = "streamed"] "transactions committed that wrote something";
    Counter rows_streamed "percolite_large_rows_locked_total" [] "rows that large transactions have locked";
    Counter rows_ended "percolite_large_rows_ended_total" [] "of these, rows whose lock is gone since";
    Counter conflicts_committed "percolite_conflicts_total" ["reason" = "committed"] "transactions that met a conflict";
    Counter conflicts_locked "percolite_conflicts_total" ["reason" = "locked"] "transactions that met a conflict";
    Counter conflicts_rolled_back "percolite_conflicts_total" ["reason" = "rolled_back"] "transactions that met a conflict";
    Counter retries "percolite_retries_total" [] "attempts of `transact` after the first";
    Counter exhausted "percolite_exhausted_total" [] "calls of `transact` that gave up after conflicts";
    Counter unadmitted "percolite_unadmitted_total" [] "attempts that ran without admission, having waited long enough";
    Counter slow "percolite_slow_transactions_total" [] "transactions that took longer than `slow_transaction`";
    Counter expired "percolite_readers_expired_total" [] "transactions and snapshots ended at the age limit";
    Counter rolled_forward "percolite_rolled_forward_total" [] "row locks of other transactions that were rolled forward";
    Counter rolled_back "percolite_rolled_back_total" [] "row locks of others, and own transactions, that were rolled back";
    Counter swept "percolite_swept_total" [] "orphan row locks resolved by the sweep";
    Counter collected "percolite_collected_total" [] "records of deleted rows that were collected";
    Counter versions_collected "percolite_versions_collected_total" [] "replaced versions that were collected";
    Counter syncs "percolite_syncs_total" [] "syncs of the log";
    Counter write_stalls "percolite_write_stalls_total" [] "writes that waited because the tables had fallen behind";
    Counter write_stalled_millis "percolite_write_stalled_milliseconds_total" [] "how long there was a write that waited for that";
    Counter locks_acquired "percolite_locks_acquired_total" ["kind" = "name"] "locks taken by hand";
    Counter locks_waited "percolite_locks_waited_total" ["kind" = "name"] "requests for such locks that had to wait";
    Counter locks_timed_out "percolite_locks_timed_out_total" ["kind" = "name"] "requests whose patience was over, or that were not to wait";
    Counter locks_lost "percolite_locks_lost_total" ["kind" = "name"] "grants that ended before they were released, by the end of a lease or by force";
    Timer lock_waiting "percolite_lock_waiting_seconds" ["kind" = "name"] "from asking for such a lock to its grant, where it had to wait";
    Timer commit_durable "percolite_commit_seconds" ["durability" = "sync"] "from a commit's call to its answer";
    Timer commit_buffered "percolite_commit_seconds" ["durability" = "buffered"] "from a commit's call to its answer";
    Timer waiting "percolite_waiting_seconds" [] "waiting of attempts for turns, row locks and admission, where they had to";
    Timer combining "percolite_combining_seconds" [] "from handing in a commit until it is applied";
    Timer syncing "percolite_sync_seconds" [] "syncs of the log";
    Timer transact "percolite_transact_seconds" [] "calls of `transact` that succeeded, retries included";
    @gauge "percolite_live_transactions" "gauge: transactions that are not over";
    @gauge "percolite_live_snapshots" "gauge: snapshots that are not over";
    @gauge "percolite_oldest_reader_seconds" "gauge: age of the oldest of them";
    @gauge "percolite_locks_held" "gauge: locks that are held, with the label `kind`";
    @gauge "percolite_locks_waiting" "gauge: requests for locks that wait, with the label `kind`";
    @gauge "percolite_oldest_lock_wait_seconds" "gauge: how long the first of them has waited, with the label `kind`";
    @gauge "percolite_live_views" "gauge: different states of the store that are read";
    @gauge "percolite_large_unfinished" "gauge: large transactions that are over with rows still locked";
    @gauge "percolite_write_stalled_seconds" "gauge: for how long there has been such a write at this moment";
    @gauge "percolite_not_durable_seconds" "gauge: how far what is durable is behind what is visible";
}

impl Counters {
    /// Transactions that met a conflict, for whatever reason.
    pub fn conflicts(&self) -> u64 {
        self.conflicts_committed.get() + self.conflicts_locked.get() + self.conflicts_rolled_back.get()
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
