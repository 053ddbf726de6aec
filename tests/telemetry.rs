//! The features `metrics` and `tracing`, with a recorder and a subscriber.
//!
//! A process has only one recorder and one subscriber, so this is one test.

#![allow(missing_docs, clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails")]

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use metrics::{Counter, Gauge, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder, SharedString, Unit};
use percolite::engine::sim::SimStorage;
use percolite::{Durability, ErrorKind, LockOptions, LockWaitPolicy, Store, TxnOptions};
use tracing::field::{Field, Visit};
use tracing::span;

/// Records metrics and events. A gauge is recorded as the bits of its `f64`, a histogram as the
/// number of its values.
#[derive(Clone, Default)]
struct Recorded {
    values: Arc<Mutex<BTreeMap<String, Arc<AtomicU64>>>>,
    described: Arc<Mutex<BTreeSet<String>>>,
    histograms: Arc<Mutex<BTreeSet<String>>>,
    events: Arc<Mutex<Vec<String>>>,
}

impl Recorded {
    fn value(&self, key: &Key) -> Arc<AtomicU64> {
        let mut labels: Vec<_> = key.labels().filter(|label| label.key() != "store").collect();
        labels.sort();
        let labels: Vec<_> = labels.iter().map(|label| format!("{}={}", label.key(), label.value())).collect();
        let name = format!("{}{{{}}}", key.name(), labels.join(","));
        Arc::clone(self.values.lock().unwrap().entry(name).or_default())
    }

    fn counted(&self, name: &str) -> u64 {
        self.values.lock().unwrap().get(name).unwrap_or_else(|| panic!("no {name}")).load(Ordering::Relaxed)
    }

    /// Checks that for each start there is an event that begins with it and has all the parts.
    #[track_caller]
    fn has_events(&self, expected: &[(&str, &[&str])]) {
        let events = self.events.lock().unwrap();
        for (start, parts) in expected {
            let is_it = |event: &&String| event.starts_with(start) && parts.iter().all(|part| event.contains(part));
            assert!(events.iter().any(|event| is_it(&event)), "{start} {parts:?} in {events:#?}");
        }
    }

    fn describe(&self, name: &KeyName) {
        self.described.lock().unwrap().insert(name.as_str().to_owned());
    }
}

struct CountOnly(Arc<AtomicU64>);

impl HistogramFn for CountOnly {
    fn record(&self, _value: f64) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

impl Recorder for Recorded {
    fn describe_counter(&self, key: KeyName, _unit: Option<Unit>, _what: SharedString) {
        self.describe(&key);
    }
    fn describe_gauge(&self, key: KeyName, _unit: Option<Unit>, _what: SharedString) {
        self.describe(&key);
    }
    fn describe_histogram(&self, key: KeyName, _unit: Option<Unit>, _what: SharedString) {
        self.describe(&key);
        self.histograms.lock().unwrap().insert(key.as_str().to_owned());
    }
    fn register_counter(&self, key: &Key, _metadata: &Metadata<'_>) -> Counter {
        Counter::from_arc(self.value(key))
    }
    fn register_gauge(&self, key: &Key, _metadata: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(self.value(key))
    }
    fn register_histogram(&self, key: &Key, _metadata: &Metadata<'_>) -> Histogram {
        Histogram::from_arc(Arc::new(CountOnly(self.value(key))))
    }
}

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        let _ = write!(self.0, " {}={value:?}", field.name());
    }
}

impl tracing::Subscriber for Recorded {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.target() == "percolite"
    }
    fn new_span(&self, span: &span::Attributes<'_>) -> span::Id {
        let mut line = Line(format!("span {}", span.metadata().name()));
        span.record(&mut line);
        self.events.lock().unwrap().push(line.0);
        span::Id::from_u64(1)
    }
    fn record(&self, _span: &span::Id, _values: &span::Record<'_>) {}
    fn record_follows_from(&self, _span: &span::Id, _follows: &span::Id) {}
    fn event(&self, event: &tracing::Event<'_>) {
        let mut line = Line(event.metadata().level().to_string());
        event.record(&mut line);
        self.events.lock().unwrap().push(line.0);
    }
    fn enter(&self, _span: &span::Id) {}
    fn exit(&self, _span: &span::Id) {}
}

#[test]
fn metrics_and_traces_agree_with_stats_and_logs() {
    let recorded = Recorded::default();
    metrics::set_global_recorder(recorded.clone()).unwrap();
    tracing::subscriber::set_global_default(recorded.clone()).unwrap();

    metrics_agree_with_stats(&recorded);
    write_stalls_are_counted(&recorded);
    failed_background_work_is_logged(&recorded);
    lock_metrics_and_events_agree_with_lock_stats(&recorded);
    an_orderly_close_warns_of_nothing(&recorded);
    every_metric_is_documented(&recorded);
    recorded.has_events(&[
        ("INFO", &["store opened", "read_only=false"]),
        ("TRACE", &["transaction started", "label=\"winner\""]),
        ("span attempt", &["number=2", "label=\"loser\""]),
        ("span commit", &["label=\"winner\""]),
        ("DEBUG", &["transaction committed", "label=\"winner\""]),
        ("DEBUG", &["conflict", "label=\"loser\"", "row rows/a was committed", "\"winner\", owner"]),
        ("DEBUG", &["retry", "attempts=1"]),
        ("TRACE", &["synced", "took_us="]),
        ("WARN", &["slow transaction", "in 2 attempts", "failed attempts"]),
        ("WARN", &["snapshot expired", "label=\"forgotten\""]),
        ("INFO", &["store closed", "failed=false"]),
    ]);
}

/// A transaction conflicts with another one and is retried; a snapshot expires.
fn metrics_agree_with_stats(recorded: &Recorded) {
    let store = Store::builder()
        .slow_transaction_threshold(Duration::ZERO)
        .max_snapshot_age(Duration::from_millis(1))
        .in_memory()
        .unwrap();
    let rows = store.keyspace("rows").unwrap();
    let forgotten = store.snapshot().unwrap().with_label("forgotten");
    let mut first = true;
    store
        .transact_with(TxnOptions::with_label("loser"), |txn| {
            txn.put(&rows, "a", "loser")?;
            if std::mem::take(&mut first) {
                store.transact_with(TxnOptions::with_label("winner"), |txn| txn.put(&rows, "a", "winner"))?;
            }
            Ok::<_, percolite::Error>(())
        })
        .unwrap();
    let gauge = |name: &str| f64::from_bits(recorded.counted(name));
    let snapshots = "percolite_active_snapshots{}";
    while store.stats().snapshots_expired == 0
        || !recorded.values.lock().unwrap().contains_key(snapshots)
        || gauge(snapshots) < 1.0
    {
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(gauge("percolite_oldest_snapshot_age_seconds{}") > 0.0);
    drop(forgotten);
    let (stats, latencies) = (store.stats(), store.latencies());
    store.close().unwrap();

    assert_eq!(recorded.counted("percolite_commits_total{protocol=one_phase}"), stats.commits_one_phase);
    assert_eq!(recorded.counted("percolite_conflicts_total{reason=newer_version}"), 1);
    assert_eq!(recorded.counted("percolite_retries_total{}"), 1);
    assert_eq!(recorded.counted("percolite_snapshots_expired_total{}"), 1);
    assert_eq!(recorded.counted("percolite_transact_seconds{}"), latencies.transact.count());
    assert_eq!(recorded.counted("percolite_commit_seconds{durability=sync}"), latencies.commit_durable.count());
}

fn write_stalls_are_counted(recorded: &Recorded) {
    assert_eq!(recorded.counted("percolite_write_stalls_total{}"), 0);
    let directory = tempfile::tempdir().unwrap();
    let builder = Store::builder().durability(Durability::Buffered).write_buffer_bytes(1 << 20);
    let store = builder.open(directory.path()).unwrap();
    let rows = store.keyspace("rows").unwrap();
    let value = vec![b'x'; 256 << 10];
    let stalled = (0..4000_u32).any(|row| {
        store.transact(|txn| txn.put(&rows, [row.to_le_bytes()[0]], &value)).unwrap();
        store.stats().write_stalls > 0
    });
    let stats = store.stats();
    store.close().unwrap();
    assert!(stalled, "no write stalled");
    // The background may have published a later value.
    assert!(stats.write_stalls > 0 && recorded.counted("percolite_write_stalls_total{}") >= stats.write_stalls);
    let millis = u64::try_from(stats.write_stall_time.as_millis()).unwrap();
    assert!(recorded.counted("percolite_write_stall_milliseconds_total{}") >= millis);
}

fn failed_background_work_is_logged(recorded: &Recorded) {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::builder().status_file_interval(Duration::from_millis(1)).open(directory.path()).unwrap();
    // A directory of the name `STATUS.new` makes the writes of the status file fail. The store
    // itself may have a file of this name for a short time, so the test tries repeatedly to create
    // the directory.
    while std::fs::create_dir(directory.path().join("STATUS.new")).is_err() {
        std::thread::yield_now();
    }
    let is_failure =
        |event: &String| event.contains("background work failed") && event.contains("task=\"status_file\"");
    while !recorded.events.lock().unwrap().iter().any(is_failure) {
        std::thread::sleep(Duration::from_millis(10));
    }
    store.close().unwrap();
}

/// Every registered metric has a description, and every described metric is in the documentation.
fn every_metric_is_documented(recorded: &Recorded) {
    let values = recorded.values.lock().unwrap();
    let names: BTreeSet<String> = values.keys().map(|name| name.split('{').next().unwrap().to_owned()).collect();
    assert_eq!(names, *recorded.described.lock().unwrap());
    let documentation = include_str!("../src/observe/counters.rs");
    for name in &names {
        assert!(documentation.contains(&format!("\"{name}\"")), "{name}");
    }
    the_dashboard_and_the_alerts_use_existing_metrics(&names, &recorded.histograms.lock().unwrap());
}

fn until(is_so: impl Fn() -> bool) {
    let began = std::time::Instant::now();
    while !is_so() {
        assert!(began.elapsed() < Duration::from_secs(60), "the condition is still false after a minute");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn lock_metrics_and_events_agree_with_lock_stats(recorded: &Recorded) {
    let store = Store::builder().application_name("teller").in_memory().unwrap();
    use_locks_in_every_way(&store, recorded);
    lock_metrics_agree_with_lock_stats(&store, recorded);
    recorded.has_events(&[
        ("DEBUG", &["lock acquired after wait", "lock=short", "mode=exclusive", "waited_ms="]),
        ("WARN", &["lock acquired after wait", "lock=long"]),
        ("WARN", &["lock lost", "lock=leased", "token="]),
        ("INFO", &["lock taken over", "lock=leased", "from=\"teller\", process"]),
        ("WARN", &["lock forced", "forced", "token="]),
        ("WARN", &["lock lost", "lock=forced"]),
        ("WARN", &["deadlock", "lock=both"]),
    ]);
    store.close().unwrap();
}

/// Acquires, waits for and loses locks.
fn use_locks_in_every_way(store: &Store, recorded: &Recorded) {
    let are_waiting = |by: usize| store.lock_table().unwrap().waiting >= by;
    let gauge =
        |name: &str| recorded.values.lock().unwrap().get(name).map(|bits| f64::from_bits(bits.load(Ordering::Relaxed)));
    std::thread::scope(|scope| {
        let held = store.lock("short").unwrap();
        assert!(store.try_lock("short").unwrap().is_none());
        let waiting = scope.spawn(|| store.lock("short").unwrap().release().unwrap());
        until(|| are_waiting(1));
        drop(held);
        waiting.join().unwrap();

        let held = store.lock("long").unwrap();
        let waiting = scope.spawn(|| store.lock("long").unwrap().release().unwrap());
        until(|| are_waiting(1));
        std::thread::sleep(Duration::from_millis(1100));
        for name in ["percolite_named_locks_held{kind=name}", "percolite_named_lock_waiters{kind=name}"] {
            until(|| gauge(name) == Some(1.0));
        }
        assert!(gauge("percolite_oldest_named_lock_wait_seconds{kind=name}").unwrap() > 0.5);
        drop(held);
        waiting.join().unwrap();
    });
    let lease = LockOptions::exclusive().lease(Duration::from_millis(500)).auto_renew(false);
    let late = store.lock_with("leased", lease).unwrap();
    drop(store.lock("leased").unwrap());
    drop(late);
    let stuck = store.lock("forced").unwrap();
    assert!(store.force_unlock("forced", stuck.token()).unwrap());
    std::thread::scope(|scope| {
        let [mut one, mut other] = [(); 2].map(|()| store.lock_with("both", LockOptions::shared()).unwrap());
        let first = scope.spawn(move || one.upgrade(LockWaitPolicy::Forever).unwrap());
        until(|| are_waiting(1));
        assert!(matches!(other.upgrade(LockWaitPolicy::Forever).unwrap_err().kind(), ErrorKind::Deadlock(_)));
        drop(other);
        first.join().unwrap();
    });
}

fn lock_metrics_agree_with_lock_stats(store: &Store, recorded: &Recorded) {
    let stats = store.lock_stats();
    let modes = [&stats.exclusive, &stats.shared, &stats.semaphore];
    let of_all = |figure: fn(&&percolite::LockModeStats) -> u64| modes.iter().map(figure).sum::<u64>();
    for (name, counted) in [
        ("locks_acquired_total", stats.acquired()),
        ("lock_waits_total", of_all(|mode| mode.waits)),
        ("lock_timeouts_total", of_all(|mode| mode.timeouts)),
        ("locks_lost_total", stats.lost),
    ] {
        assert_eq!(recorded.counted(&format!("percolite_named_{name}{{}}")), counted, "{name}");
    }
    assert_eq!(recorded.counted("percolite_named_lock_wait_seconds{}"), of_all(|mode| mode.wait_time.count()));
    // The numbers of acquisitions, waits and timeouts follow from the calls above.
    assert_eq!((stats.acquired(), of_all(|mode| mode.waits), of_all(|mode| mode.timeouts)), (10, 4, 1));
    assert_eq!(
        (stats.lost, stats.leases_expired, stats.leases_taken_over, stats.force_unlocked, stats.deadlocks),
        (2, 1, 1, 1, 1)
    );
}

/// Stores are closed while the background works and while they are read and written.
fn an_orderly_close_warns_of_nothing(recorded: &Recorded) {
    let from = recorded.events.lock().unwrap().len();
    for round in 0..20_u64 {
        let memory = SimStorage::new();
        let builder = || Store::builder().history_retention(Duration::from_millis(1)).large_transaction_bytes(10_000);
        let store = builder().open_in_memory(&memory).unwrap();
        let reader = store.snapshot().unwrap();
        for number in 0..50 {
            store.keyspace(&number.to_string()).unwrap();
            store.drop_keyspace(&number.to_string()).unwrap();
        }
        drop(reader);
        store.close().unwrap();
        // The background of this incarnation has the rows of the dropped keyspaces to delete.
        let store = builder().open_in_memory(&memory).unwrap();
        let rows = store.keyspace("rows").unwrap();
        store.transact(|txn| (0..100_u8).try_for_each(|key| txn.put(&rows, [key], [7; 500]))).unwrap();
        let (snapshot, mut large) = (store.snapshot().unwrap(), store.begin().unwrap());
        let mut scan = snapshot.range(&rows, ..);
        scan.next().unwrap().unwrap();
        (0..100_u8).for_each(|key| large.put(&rows, [key], [8; 500]).unwrap());
        std::thread::sleep(Duration::from_micros(round * 100));
        store.close().unwrap();
        assert!(scan.next().unwrap().is_err() && large.commit().is_err());
    }
    let directory = tempfile::tempdir().unwrap();
    Store::builder().status_file_interval(Duration::from_millis(1)).open(directory.path()).unwrap().close().unwrap();
    let warned = |event: &&String| event.starts_with("WARN") || event.starts_with("ERROR");
    let events = recorded.events.lock().unwrap();
    assert_eq!(events.iter().skip(from).find(warned), None);
}

const DASHBOARD: &str = include_str!("../examples/metrics/dashboard.json");
const ALERTS: &str = include_str!("../examples/metrics/alerts.yml");
const PAGE: &str = include_str!("../examples/metrics/README.md");

/// `names` are the metrics that the stores of this process have registered.
fn the_dashboard_and_the_alerts_use_existing_metrics(names: &BTreeSet<String>, histograms: &BTreeSet<String>) {
    // In Prometheus a histogram exists only as its parts, such as `_bucket`.
    let metrics_in = |text: &str| -> BTreeSet<String> {
        let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        let series = words.filter(|word| word.starts_with("percolite_")).map(|series| {
            let histogram = ["_bucket", "_sum", "_count"].iter().find_map(|part| series.strip_suffix(part));
            let name = histogram.filter(|name| histograms.contains(*name)).unwrap_or(series);
            assert!(names.contains(name), "there is no {series}");
            assert_eq!(histograms.contains(name), name != series, "{series} is not a series of Prometheus");
            name.to_owned()
        });
        series.collect()
    };
    assert_eq!(metrics_in(DASHBOARD), *names);
    assert!(!metrics_in(ALERTS).is_empty());

    let alerts = ALERTS.lines().filter_map(|line| line.trim().strip_prefix("- alert: "));
    let explained: Vec<_> =
        PAGE.lines().filter_map(|line| line.strip_prefix("| `Percolite")?.split('`').next()).collect();
    assert_eq!(alerts.map(|alert| alert.strip_prefix("Percolite").unwrap()).collect::<Vec<_>>(), explained);

    let dashboard: serde_json::Value = serde_json::from_str(DASHBOARD).unwrap();
    let panels = dashboard["panels"].as_array().unwrap().iter().filter(|panel| panel["type"] != "row");
    let titles: Vec<_> = panels.map(|panel| panel["title"].as_str().unwrap()).collect();
    let (_, panels) = PAGE.split_once("## Panels").unwrap();
    let rows = panels.lines().filter_map(|line| line.strip_prefix("| ")?.split(" |").next());
    assert_eq!(titles, rows.skip(1).collect::<Vec<_>>());
}
