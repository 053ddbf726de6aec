//! What a store tells about itself, from outside: who is live, what was counted, why a transaction was slow.
//!
//! The clock is the test's own where it matters, so that "slow" is a matter of moving it and not of waiting.

#![allow(missing_docs, clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use percolite::engine::sim::SimStorage;
use percolite::runtime::{Env, JoinHandle, Parker, SystemEnv};
use percolite::{
    ActiveKind, Builder, CommitProtocol, ConflictReason, Durability, Error, ErrorKind, Keyspace, RetryPolicy,
    SlowTransaction, Store, TimeBreakdown, TxnOptions, TxnOutcome,
};

/// The system's, moved forward as the test likes.
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

/// No transaction of a test comes near it without the clock being moved.
const SLOW: Duration = Duration::from_secs(1000);

fn open(with: impl FnOnce(Builder) -> Builder) -> (Store, Keyspace, Arc<Clock>) {
    let clock = Arc::new(Clock::default());
    let builder = Store::builder().slow_transaction_threshold(SLOW).runtime(Arc::clone(&clock) as Arc<dyn Env>);
    let store = with(builder).in_memory().unwrap();
    let rows = store.keyspace("rows").unwrap();
    (store, rows, clock)
}

/// Returns when readers that have ended are listed no more. The background thread holds references to all of them for a moment, now
/// and then.
#[track_caller]
fn soon(are_gone: impl Fn() -> bool) {
    let since = std::time::Instant::now();
    while !are_gone() {
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

fn whole(spent: TimeBreakdown) -> Duration {
    let waiting = spent.row_queue_wait + spent.row_lock_wait + spent.admission_wait;
    waiting + spent.failed_attempts + spent.read.unwrap_or_default() + spent.apply + spent.sync + spent.user_code
}

#[test]
fn the_live_are_listed_oldest_first_with_label_and_age() {
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
    soon(|| store.active_transactions().iter().all(|live| live.label.is_none()));
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
    soon(|| listed() == 0);
}

#[test]
fn a_hundred_thousand_live_snapshots_are_all_listed_and_all_go() {
    let (store, _, _) = open(|builder| builder);
    let snapshots: Vec<_> = (0..100_000).map(|_| store.snapshot().unwrap()).collect();
    assert!(store.active_transactions().len() >= snapshots.len());
    drop(snapshots);
    soon(|| store.active_transactions().len() < 10);
}

#[test]
fn what_a_transaction_has_written_is_listed() {
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
    let streamed = listed();
    assert!(streamed.buffered_rows == 0 && streamed.is_large, "{streamed:?}");
}

#[test]
fn a_conflict_with_a_commit_is_counted_and_names_keyspace_and_label() {
    let (store, rows, _) = open(|builder| builder);
    let mut late = store.begin_with(TxnOptions::with_label("late")).unwrap();
    late.put(&rows, "a", "late").unwrap();
    store.transact_with(TxnOptions::with_label("early"), |txn| txn.put(&rows, "a", "early")).unwrap();
    let before = store.stats();
    let why = late.commit().unwrap_err();
    let conflict = why.conflict().unwrap();
    assert!(matches!(conflict.reason, ConflictReason::NewerVersion(_)));
    assert_eq!((conflict.keyspace.as_deref(), conflict.conflicting_label), (Some("rows"), Some("early")));
    assert!(why.to_string().contains("row rows/a was committed") && why.to_string().contains("\"early\""), "{why}");
    let after = store.stats();
    assert_eq!(
        (after.conflicts, after.conflicts_newer_version),
        (before.conflicts + 1, before.conflicts_newer_version + 1)
    );
    assert_eq!((after.conflicts_locked, after.conflicts_rolled_back), (0, 0));
}

#[test]
fn a_conflict_with_a_lock_is_counted_once_although_it_is_heard_again() {
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
fn a_label_is_remembered_for_a_while_after_its_transaction() {
    let (store, rows, _) = open(|builder| builder);
    let mut late = store.begin().unwrap();
    late.put(&rows, "a", "late").unwrap();
    store.transact_with(TxnOptions::with_label("early"), |txn| txn.put(&rows, "a", "early")).unwrap();
    // So many that the list of the live is tidied many times.
    for _ in 0..5000 {
        drop(store.begin().unwrap());
    }
    assert_eq!(late.commit().unwrap_err().conflict().unwrap().conflicting_label, Some("early"));
}

#[test]
fn giving_up_is_counted() {
    let (store, rows, _) = open(|builder| builder);
    let retry = Some(RetryPolicy { max_attempts: 3, ..RetryPolicy::default() });
    let outer = store.transact_with(TxnOptions { retry_policy: retry, ..TxnOptions::default() }, |txn| {
        txn.put(&rows, "a", "outer")?;
        store.transact(|txn| txn.put(&rows, "a", "inner"))
    });
    assert!(matches!(outer.unwrap_err().kind(), ErrorKind::RetriesExhausted { attempts: 3, .. }));
    let stats = store.stats();
    assert_eq!((stats.retries_exhausted, stats.retries, stats.conflicts), (1, 2, 3));
}

#[test]
fn latencies_tell_durable_commits_from_buffered_ones_and_since_when() {
    let (store, rows, _) = open(|builder| builder);
    let before = store.latencies();
    let buffered = TxnOptions { durability: Some(Durability::Buffered), ..TxnOptions::default() };
    for number in 0..10 {
        store.transact_with(buffered, |txn| txn.put(&rows, "a", [number])).unwrap();
    }
    for protocol in [CommitProtocol::Auto, CommitProtocol::TwoPhase] {
        let options = TxnOptions { commit_protocol: Some(protocol), ..TxnOptions::default() };
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
fn a_slow_closure_is_told_as_own_code_and_its_reads_where_they_are_timed() {
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
        assert_eq!(whole(slow.breakdown), slow.duration);
        assert!(slow.to_string().starts_with("\"thinks\" (owner "), "{slow}");
    }
}

#[test]
fn a_slow_scan_is_told_as_reading() {
    let (store, rows, clock) = open(|builder| builder.track_read_timing(true));
    store.transact(|txn| (0..100_u8).try_for_each(|key| txn.put(&rows, [key], "v"))).unwrap();
    let txn = store.begin().unwrap();
    assert_eq!(txn.range(&rows, ..).count(), 100);
    clock.pass(2000);
    drop(txn);
    let slow = only_slow(&store);
    assert!(!slow.breakdown.read.unwrap().is_zero());
    assert_eq!((slow.outcome, whole(slow.breakdown)), (TxnOutcome::RolledBack, slow.duration));
}

#[test]
fn attempts_lost_to_a_conflict_are_told_with_the_row_and_who_was_in_the_way() {
    let retry = RetryPolicy { max_attempts: 10, timeout: Duration::MAX };
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
    assert_eq!(whole(slow.breakdown), slow.duration);
    let met: Vec<_> =
        slow.conflicts.iter().map(|met| (met.keyspace.as_deref(), met.row.user_key(), met.conflicting_label)).collect();
    assert_eq!(met, [(Some("rows"), &b"contested"[..], Some("winner")); 2]);
}

#[test]
fn what_is_given_up_is_told_with_its_last_conflicts() {
    let (store, rows, clock) = open(|builder| builder);
    let retry = Some(RetryPolicy { max_attempts: 20, timeout: Duration::MAX });
    let given_up = store.transact_with(TxnOptions { retry_policy: retry, ..TxnOptions::with_label("loser") }, |txn| {
        clock.pass(100);
        txn.put(&rows, "a", "outer")?;
        store.transact(|txn| txn.put(&rows, "a", "inner"))
    });
    assert!(given_up.is_err());
    let slow = only_slow(&store);
    assert_eq!((slow.outcome, slow.attempts, slow.conflicts.len()), (TxnOutcome::Conflict, 20, 8));
    assert!(slow.breakdown.failed_attempts >= Duration::from_secs(2000));
    assert_eq!(whole(slow.breakdown), slow.duration);
}

#[test]
fn waiting_for_admission_is_told_apart() {
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
                // Until the other one waits, which nothing but time can tell from outside.
                std::thread::sleep(Duration::from_millis(200));
                clock.pass(2000);
                txn.put(&rows, "a", "1")
            })
        });
        begun.recv().unwrap();
        store.transact_with(TxnOptions::with_label("waits"), |txn| txn.put(&rows, "b", "1")).unwrap();
    });
    let slow = store.slow_transactions();
    let waited = slow.iter().find(|slow| slow.label == Some("waits")).unwrap();
    assert!(waited.breakdown.admission_wait >= Duration::from_secs(2000), "{waited}");
    assert_eq!(whole(waited.breakdown), waited.duration);
    assert!(store.latencies().admission_wait.count() >= 1);
}

#[test]
fn a_transaction_by_hand_is_told_however_it_ends() {
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
    assert!(slow.iter().all(|slow| whole(slow.breakdown) == slow.duration && slow.attempts == 1));
}

#[test]
fn the_log_is_bounded_and_can_be_switched_off() {
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
fn a_forgotten_snapshot_is_ended_counted_and_shown_as_such() {
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
    // Once each, also when another one ends while it is still kept.
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
fn a_store_that_others_share_tells_the_same() {
    let commons = percolite::SharedConfig {
        engine: Arc::new(SimStorage::new().shared_engine()),
        oracle: Arc::new(percolite::oracle::MemoryOracle::new(Arc::new(SystemEnv::default()))),
        waiter: Arc::new(percolite::SleepingLockWaiter(Arc::new(SystemEnv::default()))),
        ttl_ms: 10_000,
    };
    let clock = Arc::new(Clock::default());
    let store = Store::builder().slow_transaction_threshold(SLOW).runtime(Arc::clone(&clock) as Arc<dyn Env>);
    let store = store.open_shared(commons).unwrap();
    let rows = store.keyspace("rows").unwrap();
    store
        .transact_with(TxnOptions::with_label("shared"), |txn| {
            clock.pass(2000);
            assert_eq!(store.active_transactions().last().unwrap().label, Some("shared"));
            txn.put(&rows, "a", "1")
        })
        .unwrap();
    let slow = only_slow(&store);
    assert_eq!((slow.label, whole(slow.breakdown)), (Some("shared"), slow.duration));
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
    let why = late.commit().unwrap_err();
    let met = why.conflict().unwrap();
    assert_eq!((met.conflicting_owner, met.conflicting_label), (last.ok(), Some("last")));
    let newest = store.snapshot().unwrap().versions(&rows, "k").unwrap().next().unwrap().unwrap();
    assert!(matches!(met.reason, ConflictReason::NewerVersion(ts) if ts == newest.commit_ts), "{met:?}");
}

#[test]
fn looking_a_keyspace_up_is_no_transaction_of_the_callers() {
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
