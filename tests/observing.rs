//! Introspection: active transactions, conflicts, statistics and the slow log.
//!
//! A test moves the clock to make a transaction slow, instead of waiting.

#![allow(missing_docs, clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use percolite::engine::sim::SimStorage;
use percolite::env::{Env, JoinHandle, Parker, SystemEnv};
use percolite::{
    ActiveKind, Builder, CommitProtocol, ConflictReason, Durability, Error, ErrorKind, Keyspace, RetryPolicy,
    SlowTransaction, Store, TimeBreakdown, Txn, TxnOptions, TxnOutcome,
};

/// The system's clock, which a test can move forward.
#[derive(Default)]
struct Clock {
    system: SystemEnv,
    ahead_ms: AtomicU64,
}

impl Clock {
    fn pass(&self, seconds: u64) {
        self.ahead_ms.fetch_add(seconds * 1000, Ordering::SeqCst);
    }
}

impl Env for Clock {
    fn unix_millis(&self) -> u64 {
        self.system.unix_millis() + self.ahead_ms.load(Ordering::SeqCst)
    }
    fn elapsed(&self) -> Duration {
        self.system.elapsed() + Duration::from_millis(self.ahead_ms.load(Ordering::SeqCst))
    }
    fn random(&self) -> u64 {
        self.system.random()
    }
    fn sleep(&self, duration: Duration) {
        self.system.sleep(duration);
    }
    fn parker(&self) -> Arc<dyn Parker> {
        self.system.parker()
    }
    fn spawn(&self, name: &str, work: Box<dyn FnOnce() + Send>) -> std::io::Result<Box<dyn JoinHandle>> {
        self.system.spawn(name, work)
    }
}

/// No transaction takes this long unless the test moves the clock.
const SLOW: Duration = Duration::from_secs(1000);

fn open(with: impl FnOnce(Builder) -> Builder) -> (Store, Keyspace, Arc<Clock>) {
    let clock = Arc::new(Clock::default());
    let builder = Store::builder().slow_transaction_threshold(SLOW).env(Arc::clone(&clock) as Arc<dyn Env>);
    let store = with(builder).in_memory().unwrap();
    let rows = store.keyspace("rows").unwrap();
    (store, rows, clock)
}

/// Waits until ended transactions and snapshots are no longer listed. They may stay listed for a
/// short while, because the background thread references all of them from time to time.
#[track_caller]
fn eventually(is_done: impl Fn() -> bool) {
    let since = std::time::Instant::now();
    while !is_done() {
        assert!(since.elapsed() < Duration::from_secs(60), "they are still listed");
        std::thread::yield_now();
    }
}

#[track_caller]
fn only_slow(store: &Store) -> SlowTransaction {
    let mut slow = store.slow_transactions();
    assert_eq!(slow.len(), 1, "{slow:?}");
    slow.remove(0)
}

fn total(spent: TimeBreakdown) -> Duration {
    let waiting = spent.row_queue_wait + spent.row_lock_wait + spent.admission_wait;
    waiting + spent.failed_attempts + spent.read.unwrap_or_default() + spent.apply + spent.sync + spent.user_code
}

#[test]
fn active_transactions_are_listed_oldest_first() {
    let (store, rows, clock) = open(|builder| builder);
    let report = store.snapshot().unwrap().with_label("report");
    clock.pass(7);
    store.transact(|txn| txn.put(&rows, "a", "1")).unwrap();
    let txn = store.begin_with(TxnOptions::with_label("transfer")).unwrap();
    let live: Vec<_> = store.active_transactions().into_iter().filter(|live| live.label.is_some()).collect();
    assert_eq!(live.iter().map(|live| live.label.unwrap()).collect::<Vec<_>>(), ["report", "transfer"]);
    assert_eq!([live[0].kind, live[1].kind], [ActiveKind::Snapshot, ActiveKind::Transaction]);
    assert!(live[0].age >= Duration::from_secs(7) && live[1].age < Duration::from_secs(7));
    assert_eq!((live[0].owner_id, live[0].read_ts), (None, report.read_ts()));
    assert_eq!((live[1].owner_id, live[1].start_ts), (Some(txn.owner_id()), Some(txn.start_ts())));
    drop((report, txn));
    eventually(|| store.active_transactions().iter().all(|live| live.label.is_none()));
}

#[test]
fn clones_of_a_snapshot_are_one_and_a_scan_keeps_it_listed() {
    let (store, rows, _) = open(|builder| builder.background_resolve(false));
    let listed = || store.active_transactions().iter().filter(|live| live.label == Some("listed")).count();
    let snapshot = store.snapshot().unwrap().with_label("listed");
    let (clone, scan) = (snapshot.clone(), snapshot.range(&rows, ..));
    assert_eq!(listed(), 1);
    drop((snapshot, clone));
    assert_eq!(listed(), 1);
    drop(scan);
    eventually(|| listed() == 0);
}

#[test]
fn a_hundred_thousand_snapshots_are_listed_and_removed() {
    let (store, _, _) = open(|builder| builder);
    let snapshots: Vec<_> = (0..100_000).map(|_| store.snapshot().unwrap()).collect();
    assert!(store.active_transactions().len() >= snapshots.len());
    drop(snapshots);
    eventually(|| store.active_transactions().len() < 10);
}

#[test]
fn the_buffered_rows_of_a_transaction_are_listed() {
    let (store, rows, _) = open(|builder| builder.large_transaction_bytes(1000));
    let mut txn = store.begin_with(TxnOptions::with_label("writer")).unwrap();
    let listed = || store.active_transactions().into_iter().find(|live| live.label == Some("writer")).unwrap();
    txn.put(&rows, "a", [0; 100]).unwrap();
    let before = txn.savepoint();
    txn.put(&rows, "b", [0; 100]).unwrap();
    let two = listed();
    assert!(two.buffered_rows == 2 && two.buffered_bytes > 200 && !two.is_large, "{two:?}");
    txn.rollback_to(before).unwrap();
    assert_eq!(listed().buffered_rows, 1);
    txn.put(&rows, "c", [0; 1000]).unwrap();
    let large = listed();
    assert!(large.buffered_rows == 0 && large.is_large, "{large:?}");
}

#[test]
fn commit_conflicts_are_counted_with_keyspace_and_label() {
    let (store, rows, _) = open(|builder| builder);
    let mut late = store.begin_with(TxnOptions::with_label("late")).unwrap();
    late.put(&rows, "a", "late").unwrap();
    store.transact_with(TxnOptions::with_label("early"), |txn| txn.put(&rows, "a", "early")).unwrap();
    let before = store.stats();
    let error = late.commit().unwrap_err();
    let conflict = error.conflict().unwrap();
    assert!(matches!(conflict.reason, ConflictReason::NewerVersion(_)));
    assert_eq!((conflict.keyspace.as_deref(), conflict.conflicting_label), (Some("rows"), Some("early")));
    assert!(
        error.to_string().contains("row rows/a was committed") && error.to_string().contains("\"early\""),
        "{error}"
    );
    let after = store.stats();
    assert_eq!(
        (after.conflicts, after.conflicts_newer_version),
        (before.conflicts + 1, before.conflicts_newer_version + 1)
    );
    assert_eq!((after.conflicts_locked, after.conflicts_rolled_back), (0, 0));
}

#[test]
fn a_repeated_lock_conflict_is_counted_once() {
    let (store, rows, _) = open(|builder| builder.large_transaction_bytes(1));
    let mut holder = store.begin_with(TxnOptions::with_label("holder")).unwrap();
    holder.put(&rows, "a", "1").unwrap();
    let mut other = store.begin().unwrap();
    let first = other.put(&rows, "a", "2").unwrap_err();
    let again = other.commit().unwrap_err();
    assert_eq!(first.conflict(), again.conflict());
    assert_eq!(first.conflict().unwrap().conflicting_label, Some("holder"));
    let stats = store.stats();
    assert_eq!((stats.conflicts, stats.conflicts_locked), (1, 1));
}

#[test]
fn a_label_is_kept_for_a_while_after_its_transaction() {
    let (store, rows, _) = open(|builder| builder);
    let mut late = store.begin().unwrap();
    late.put(&rows, "a", "late").unwrap();
    store.transact_with(TxnOptions::with_label("early"), |txn| txn.put(&rows, "a", "early")).unwrap();
    // New transactions cause cleanups of the list of active ones. The first cleanup removes the
    // ended `early`; its label must survive that cleanup and the later ones.
    for _ in 0..5000 {
        drop(store.begin().unwrap());
    }
    assert_eq!(late.commit().unwrap_err().conflict().unwrap().conflicting_label, Some("early"));
}

#[test]
fn exhausted_retries_are_counted() {
    let (store, rows, _) = open(|builder| builder);
    let retry = Some(RetryPolicy::default().max_attempts(3));
    let outer = store.transact_with(TxnOptions::default().retry_policy(retry), |txn| {
        txn.put(&rows, "a", "outer")?;
        store.transact(|txn| txn.put(&rows, "a", "inner"))
    });
    assert!(matches!(outer.unwrap_err().kind(), ErrorKind::RetriesExhausted { attempts: 3, .. }));
    let stats = store.stats();
    assert_eq!((stats.retries_exhausted, stats.retries, stats.conflicts), (1, 2, 3));
}

#[test]
fn latencies_separate_durable_and_buffered_commits() {
    let (store, rows, _) = open(|builder| builder);
    let before = store.latencies();
    let buffered = TxnOptions::default().durability(Durability::Buffered);
    for number in 0..10 {
        store.transact_with(buffered, |txn| txn.put(&rows, "a", [number])).unwrap();
    }
    for protocol in [CommitProtocol::Auto, CommitProtocol::TwoPhase] {
        let options = TxnOptions::default().commit_protocol(protocol);
        let both = |txn: &mut percolite::Txn| txn.put(&rows, "b", "1").and_then(|()| txn.put(&rows, "c", "1"));
        store.transact_with(options, both).unwrap();
    }
    store.transact(|txn| txn.get(&rows, "a")).unwrap();
    let since = store.latencies().since(&before);
    assert_eq!((since.commit_buffered.count(), since.commit_durable.count()), (10, 2));
    assert_eq!((since.commit_apply.count(), since.transact.count(), since.admission_wait.count()), (12, 13, 0));
    assert!(since.wal_sync.count() >= 1);
    let durable = &since.commit_durable;
    assert!(!durable.percentile(50.0).is_zero());
    assert!(durable.percentile(50.0) <= durable.percentile(99.9) && durable.percentile(99.9) <= durable.max());
    let none = store.latencies().since(&store.latencies());
    assert_eq!((none.transact.count(), none.transact.percentile(f64::NAN), none.transact.max()), Default::default());
}

#[test]
fn the_slow_log_separates_closure_and_read_time() {
    for timed in [false, true] {
        let (store, rows, clock) = open(|builder| builder.track_read_timing(timed));
        store
            .transact_with(TxnOptions::with_label("thinks"), |txn| {
                txn.get(&rows, "a")?;
                clock.pass(2000);
                txn.put(&rows, "a", "1")
            })
            .unwrap();
        let slow = only_slow(&store);
        assert_eq!((slow.label, slow.attempts, slow.conflicts.len()), (Some("thinks"), 1, 0));
        assert!(matches!(slow.outcome, TxnOutcome::Committed(_)));
        assert!(slow.breakdown.user_code >= Duration::from_secs(2000) && slow.duration >= slow.breakdown.user_code);
        assert_eq!(slow.breakdown.read.is_some(), timed);
        assert!(slow.breakdown.read.is_none_or(|reading| !reading.is_zero()));
        assert!(!slow.breakdown.apply.is_zero() && !slow.breakdown.sync.is_zero(), "{slow:?}");
        assert_eq!(total(slow.breakdown), slow.duration);
        assert!(slow.to_string().starts_with("\"thinks\" (owner "), "{slow}");
    }
}

#[test]
fn the_slow_log_counts_a_scan_as_read_time() {
    let (store, rows, clock) = open(|builder| builder.track_read_timing(true));
    store.transact(|txn| (0..100_u8).try_for_each(|key| txn.put(&rows, [key], "v"))).unwrap();
    let txn = store.begin().unwrap();
    assert_eq!(txn.range(&rows, ..).count(), 100);
    clock.pass(2000);
    drop(txn);
    let slow = only_slow(&store);
    assert!(!slow.breakdown.read.unwrap().is_zero());
    assert_eq!((slow.outcome, total(slow.breakdown)), (TxnOutcome::RolledBack, slow.duration));
}

#[test]
fn the_slow_log_names_conflicting_rows_and_labels() {
    let retry = RetryPolicy::default().max_attempts(10).timeout(Duration::MAX);
    let (store, rows, clock) = open(|builder| builder.retry_policy(retry));
    let mut attempts = 0;
    store
        .transact_with(TxnOptions::with_label("loser"), |txn| {
            attempts += 1;
            txn.put(&rows, "contested", "loser")?;
            if attempts < 3 {
                clock.pass(1000);
                store.transact_with(TxnOptions::with_label("winner"), |txn| txn.put(&rows, "contested", "winner"))?;
            }
            Ok::<_, Error>(())
        })
        .unwrap();
    let slow = only_slow(&store);
    assert_eq!((slow.label, slow.attempts), (Some("loser"), 3));
    assert!(
        slow.breakdown.failed_attempts >= Duration::from_secs(2000)
            && slow.breakdown.user_code < Duration::from_secs(1000)
    );
    assert_eq!(total(slow.breakdown), slow.duration);
    let met: Vec<_> =
        slow.conflicts.iter().map(|met| (met.keyspace.as_deref(), met.row.user_key(), met.conflicting_label)).collect();
    assert_eq!(met, [(Some("rows"), &b"contested"[..], Some("winner")); 2]);
}

#[test]
fn the_slow_log_has_the_last_conflicts_of_a_failure() {
    let (store, rows, clock) = open(|builder| builder);
    let retry = Some(RetryPolicy::default().max_attempts(20).timeout(Duration::MAX));
    let failed = store.transact_with(TxnOptions::with_label("loser").retry_policy(retry), |txn| {
        clock.pass(100);
        txn.put(&rows, "a", "outer")?;
        store.transact(|txn| txn.put(&rows, "a", "inner"))
    });
    assert!(failed.is_err());
    let slow = only_slow(&store);
    assert_eq!((slow.outcome, slow.attempts, slow.conflicts.len()), (TxnOutcome::Conflict, 20, 8));
    assert!(slow.breakdown.failed_attempts >= Duration::from_secs(2000));
    assert_eq!(total(slow.breakdown), slow.duration);
}

/// A transaction that ended without a commit keeps the conflict that it met, also after a restart.
#[test]
fn the_slow_log_has_the_conflict_of_a_rolled_back_transaction() {
    let options = TxnOptions::with_label("loser").retry_policy(RetryPolicy::default().timeout(Duration::MAX));
    let ends: [fn(Txn); 3] = [drop, |txn| txn.rollback().unwrap(), |txn| txn.restart().unwrap().rollback().unwrap()];
    for end in ends {
        let (store, rows, clock) = open(|builder| builder.large_transaction_bytes(4 << 10));
        let mut txn = store.begin_with(options).unwrap();
        store.transact_with(TxnOptions::with_label("winner"), |txn| txn.put(&rows, [0], "first")).unwrap();
        clock.pass(2000);
        // A large transaction locks its rows, and so meets the conflict before its commit.
        let met = (0..100_u8).try_for_each(|row| txn.put(&rows, [row], vec![row; 100]));
        assert!(met.unwrap_err().is_retryable());
        end(txn);
        let slow = only_slow(&store);
        assert_eq!((slow.label, &slow.outcome), (Some("loser"), &TxnOutcome::RolledBack));
        let rows_met: Vec<_> = slow.conflicts.iter().map(|met| met.row.clone()).collect();
        assert_eq!(rows_met, [rows.row_key([0])], "{slow}");
    }
}

#[test]
fn the_slow_log_separates_the_admission_wait() {
    let (store, rows, clock) = open(|builder| builder.admission_limit(1));
    let mut first = true;
    let contended = store.transact(|txn| {
        if std::mem::take(&mut first) {
            let mut rival = store.begin()?;
            rival.put(&rows, "a", "0")?;
            rival.commit()?;
        }
        txn.put(&rows, "a", "0")
    });
    contended.unwrap();
    let (inside, begun) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            store.transact(|txn| {
                inside.send(()).unwrap();
                // Time for the other call to begin its wait, which cannot be observed from outside.
                std::thread::sleep(Duration::from_millis(200));
                clock.pass(2000);
                txn.put(&rows, "a", "1")
            })
        });
        begun.recv_timeout(Duration::from_secs(30)).expect("the first call does not begin");
        store.transact_with(TxnOptions::with_label("waits"), |txn| txn.put(&rows, "b", "1")).unwrap();
    });
    let slow = store.slow_transactions();
    let waited = slow.iter().find(|slow| slow.label == Some("waits")).unwrap();
    assert!(waited.breakdown.admission_wait >= Duration::from_secs(2000), "{waited}");
    assert_eq!(total(waited.breakdown), waited.duration);
    assert!(store.latencies().admission_wait.count() >= 1);
}

#[test]
fn the_slow_log_has_every_outcome_of_a_transaction() {
    let (store, rows, clock) = open(|builder| builder);
    let begin = |label| {
        let mut txn = store.begin_with(TxnOptions::with_label(label)).unwrap();
        txn.put(&rows, "a", label).unwrap();
        txn
    };
    let (committed, loses, rolled_back, dropped) =
        (begin("committed"), begin("loses"), begin("rolled back"), begin("dropped"));
    clock.pass(2000);
    let ts = committed.commit().unwrap().commit_ts;
    loses.commit().unwrap_err();
    rolled_back.rollback().unwrap();
    drop(dropped);
    let slow = store.slow_transactions();
    let outcomes: Vec<_> = slow.iter().map(|slow| (slow.label.unwrap(), slow.outcome.clone())).collect();
    let rolled_back = ["rolled back", "dropped"].map(|label| (label, TxnOutcome::RolledBack));
    let expected =
        [("committed", TxnOutcome::Committed(ts)), ("loses", TxnOutcome::Conflict)].into_iter().chain(rolled_back);
    assert_eq!(outcomes, expected.collect::<Vec<_>>());
    assert_eq!(slow[1].conflicts[0].conflicting_label, Some("committed"));
    assert!(slow.iter().all(|slow| total(slow.breakdown) == slow.duration && slow.attempts == 1));
}

#[test]
fn the_slow_log_is_bounded_and_can_be_disabled() {
    let (store, rows, clock) = open(|builder| builder);
    for number in 0..150_u64 {
        let txn = store.begin().unwrap();
        clock.pass(1000 + number);
        drop(txn);
    }
    let slow = store.slow_transactions();
    assert_eq!((slow.len(), store.stats().slow_transactions), (100, 150));
    assert!(slow[0].duration < slow[99].duration);

    let (store, _, clock) = open(|builder| builder.slow_transaction_threshold(Duration::MAX));
    let txn = store.begin().unwrap();
    clock.pass(1_000_000);
    drop(txn);
    assert_eq!((store.slow_transactions().len(), store.stats().slow_transactions), (0, 0));
    drop(rows);
}

#[test]
fn an_expired_snapshot_is_counted_and_listed_as_expired() {
    let (store, rows, clock) = open(|builder| builder.max_snapshot_age(Duration::from_secs(100)));
    let forgotten = store.snapshot().unwrap().with_label("forgotten");
    store.transact(|txn| txn.put(&rows, "a", "1")).unwrap();
    clock.pass(200);
    while store.stats().snapshots_expired == 0 {
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(matches!(forgotten.get(&rows, "a").unwrap_err().kind(), ErrorKind::SnapshotTooOld(_)));
    let live = store.active_transactions();
    assert!(live.iter().any(|live| live.label == Some("forgotten") && live.is_expired), "{live:?}");
    // Each snapshot is counted once, even if it is still open when another one expires.
    let second = store.snapshot().unwrap();
    store.transact(|txn| txn.put(&rows, "a", "2")).unwrap();
    clock.pass(200);
    while store.stats().snapshots_expired < 2 {
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(store.stats().snapshots_expired, 2);
    drop((forgotten, second));
}

#[test]
fn a_shared_store_has_the_same_slow_log() {
    let config = percolite::SharedConfig {
        engine: Arc::new(SimStorage::new().shared_engine()),
        oracle: Arc::new(percolite::oracle::MemoryOracle::new(Arc::new(SystemEnv::default()))),
        waiter: Arc::new(percolite::SleepingRowLockWaiter(Arc::new(SystemEnv::default()))),
        ttl_ms: 10_000,
    };
    let clock = Arc::new(Clock::default());
    let store = Store::builder().slow_transaction_threshold(SLOW).env(Arc::clone(&clock) as Arc<dyn Env>);
    let store = store.open_shared(config).unwrap();
    let rows = store.keyspace("rows").unwrap();
    store
        .transact_with(TxnOptions::with_label("shared"), |txn| {
            clock.pass(2000);
            assert_eq!(store.active_transactions().last().unwrap().label, Some("shared"));
            txn.put(&rows, "a", "1")
        })
        .unwrap();
    let slow = only_slow(&store);
    assert_eq!((slow.label, total(slow.breakdown)), (Some("shared"), slow.duration));
    assert!(!slow.breakdown.apply.is_zero());
}

#[test]
fn a_conflict_names_the_owner_of_the_rows_newest_commit() {
    let store = Store::in_memory().unwrap();
    let rows = store.keyspace("rows").unwrap();
    let mut late = store.begin().unwrap();
    late.put(&rows, "k", "late").unwrap();
    store.transact(|txn| txn.put(&rows, "k", "first")).unwrap();
    let last = store.transact_with(TxnOptions::with_label("last"), |txn| {
        txn.put(&rows, "k", "last")?;
        Ok::<_, Error>(txn.owner_id())
    });
    let error = late.commit().unwrap_err();
    let met = error.conflict().unwrap();
    assert_eq!((met.conflicting_owner, met.conflicting_label), (last.ok(), Some("last")));
    let newest = store.snapshot().unwrap().versions(&rows, "k").unwrap().next().unwrap().unwrap();
    assert!(matches!(met.reason, ConflictReason::NewerVersion(ts) if ts == newest.commit_ts), "{met:?}");
}

#[test]
fn opening_a_keyspace_is_not_counted_as_a_transaction() {
    let store = Store::in_memory().unwrap();
    let rows = store.keyspace("rows").unwrap();
    let before = store.stats().transactions_started;
    store.existing_keyspace("rows").unwrap();
    store.keyspace("rows").unwrap();
    assert_eq!(store.stats().transactions_started, before);
    store.transact(|txn| txn.put(&rows, "k", "v")).unwrap();
    store.begin().unwrap().rollback().unwrap();
    assert_eq!(store.stats().transactions_started, before + 2);
}
