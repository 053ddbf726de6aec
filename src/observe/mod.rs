//! Observability of a store: metrics, latencies, the time of transactions by phase, events.
//!
//! [`Store::stats`](crate::Store::stats), [`Store::latencies`](crate::Store::latencies),
//! [`Store::active_transactions`](crate::Store::active_transactions) and
//! [`Store::slow_transactions`](crate::Store::slow_transactions) are always available. The feature
//! `metrics` exports the same numbers to the recorder that the program has installed for the
//! `metrics` crate. The feature `tracing` emits events and spans. Without a feature, its code is
//! not compiled in.
//!
//! # Metrics
//!
//! The feature `metrics` exports the metrics of the table below. Each one has the label `store`:
//! the number of the store in this process, counted from 0 in the order of opening. Install the
//! recorder before a store is opened.
//!
//! Counters and histograms are updated immediately. Gauges, and the counters of write stalls, are
//! set twice a second by the background thread, if there is one. Durations are in seconds unless
//! the name has another unit.
//!
//! `examples/metrics` in the repository explains each metric. It has a Grafana dashboard with all
//! metrics, and Prometheus alerts.
//!
//! | name | what | labels |
//! |---|---|---|
#![doc = counters::table!()]
//!
//! # Events
//!
//! The feature `tracing` emits the events of the table below, all with the target `percolite`.
//! Timestamps and owner ids have their usual text form. `label` is present if the transaction or
//! snapshot has one.
//!
//! | level | message | fields |
//! |---|---|---|
//! | info | `store opened`, `store closed` | `store`; `read_only`; `failed` |
//! | warn | `data loss accepted` | `store`, `loss` (in words; at opening, once for each) |
//! | error | `store failed` | `error` |
//! | trace | `transaction started` | `owner`, `start_ts`, `read_ts`, `label` |
//! | debug | `transaction committed` | `owner`, `commit_ts`, `rows`, `label` |
//! | debug | `conflict` | `owner`, `label`, `with` (the conflict in words) |
//! | debug | `retry` | `attempts`, `label` |
//! | warn | `retries exhausted` | `attempts`, `label` |
//! | warn | `slow transaction` | `report`, `label` |
//! | warn | `snapshot expired` | `owner` of a transaction, `read_ts`, `age_ms`, `label` |
//! | trace | `synced` | `durable_ts`, `took_us` |
//! | debug, warn above a second | `lock acquired after wait` | `lock`, `mode`, `waited_ms` |
//! | info | `lock taken over` (from an expired lease) | `lock`, `from` |
//! | warn | `lock lost` | `lock`, `token` |
//! | warn | `lock forced` | `lock`, `token` |
//! | warn | `deadlock` (a second upgrader) | `lock` |
//! | debug | `orphan locks resolved` | `locks` |
//! | debug | `large transaction cleaned up` | `start_ts` |
//! | debug | `garbage collected` | `entries`, `versions` |
//! | warn | `background work failed` | `task`, `error` |
//!
//! The tasks are `resolve_orphans`, `cleanup`, `gc`, `maintain`, `status_file`,
//! `purge_keyspaces` and `leases`.
//!
//! The span `attempt` (debug) is around each attempt of
//! [`Store::transact`](crate::Store::transact), with its `number` and `label`; the span `commit`
//! (debug) is around a commit.

pub(crate) mod counters;
mod histogram;
mod txn_timer;

pub(crate) use counters::Metrics;
#[cfg(feature = "metrics")]
pub(crate) use counters::{gauge, lock_gauge};
pub(crate) use histogram::Histogram;
pub use histogram::{Latencies, LatencyHistogram};
pub(crate) use txn_timer::{TxnPhase, TxnTimer};

/// Emits an event. Without the feature `tracing` the arguments are not evaluated.
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

/// Enters a span until the end of the block.
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
