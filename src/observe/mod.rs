//! What a store tells about itself: metrics, latencies, where a transaction's time goes, events.
//!
//! Three ways lead to it. [`Store::stats`](crate::Store::stats), [`Store::latencies`](crate::Store::latencies),
//! [`Store::active_transactions`](crate::Store::active_transactions) and [`Store::slow_transactions`](crate::Store::slow_transactions) answer whoever has the
//! store open, and are always there. The feature `metrics` hands the same numbers to whatever recorder the program has installed
//! for the crate of that name, and the feature `tracing` tells its subscriber what happens as it happens. Without a feature
//! nothing of it is compiled in.
//!
//! # Metrics
//!
//! With the feature `metrics`. Each has the label `store`, the number of the store in this process, counted from 0 as they are
//! opened. The recorder must be installed before a store is opened. Metrics and histograms are recorded as things happen; gauges, and
//! the metrics of writes that had to wait, are set twice a second by the background thread, where there is one. Durations are in
//! seconds where the name does not say otherwise. `examples/metrics` in the repository has a Grafana
//! dashboard that shows all of them, and Prometheus alerts, and says what each means.
//!
//! | name | what | labels |
//! |---|---|---|
#![doc = counters::table!()]
//!
//! # Events
//!
//! With the feature `tracing`, all with the target `percolite`. Timestamps and owners are shown as everywhere else; `label` is there
//! where the transaction or snapshot has one.
//!
//! | level | message | fields |
//! |---|---|---|
//! | info | `store opened`, `store closed` | `store`; `read_only`; `failed` |
//! | warn | `log damaged` | `store`, `what` (the damage in words; at opening, once for each) |
//! | error | `store failed` | `why` |
//! | trace | `transaction begun` | `owner`, `start_ts`, `read_ts`, `label` |
//! | debug | `transaction committed` | `owner`, `commit_ts`, `rows`, `label` |
//! | debug | `conflict` | `owner`, `label`, `with` (the conflict in words) |
//! | debug | `retry` | `attempts`, `label` |
//! | warn | `gave up` | `attempts`, `label` |
//! | warn | `slow transaction` | `what` (the report in words), `label` |
//! | warn | `reader expired` | `owner` of a transaction, `read_ts`, `age_ms`, `label` |
//! | trace | `synced` | `durable_ts`, `took_us` |
//! | debug | `lock waited`; warn where it was longer than a second | `lock`, `mode`, `waited_ms` |
//! | info | `lock taken over` (of a lease that was over) | `lock`, `from` |
//! | warn | `lock lost` | `lock`, `token` |
//! | warn | `lock forced` | `lock`, `token` |
//! | warn | `deadlock` (a second upgrader) | `lock` |
//! | debug | `orphans resolved`, `large transaction ended`, `collected` | `locks`; `start_ts`; `entries`, `versions` |
//! | warn | `background work failed` | `what` (`sweep`, `endings`, `collection`, `status`, `keyspaces`, `leases`), `why` |
//!
//! `attempt` is a span (debug) around each attempt of [`Store::transact`](crate::Store::transact), with its `number` and the `label`;
//! `commit` is one (debug) around a commit.

pub(crate) mod counters;
mod latency;
mod spent;

pub(crate) use counters::Metrics;
#[cfg(feature = "metrics")]
pub(crate) use counters::{gauge, lock_gauge};
pub(crate) use latency::Histogram;
pub use latency::{Latencies, LatencyHistogram};
pub(crate) use spent::{TxnPhase, TxnTimer};

/// Tells a subscriber what has happened. The arguments are not even looked at without the feature.
#[cfg(feature = "tracing")]
macro_rules! event {
    ($level:ident, $($what:tt)+) => {
        ::tracing::event!(target: "percolite", ::tracing::Level::$level, $($what)+)
    };
}
#[cfg(not(feature = "tracing"))]
macro_rules! event {
    ($($what:tt)*) => {};
}

/// Opens a span up to the end of the block.
#[cfg(feature = "tracing")]
macro_rules! span {
    ($level:ident, $($what:tt)+) => {
        let _span = ::tracing::span!(target: "percolite", ::tracing::Level::$level, $($what)+).entered();
    };
}
#[cfg(not(feature = "tracing"))]
macro_rules! span {
    ($($what:tt)*) => {};
}
