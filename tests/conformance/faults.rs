//! The faulty engine itself: each fault has its effect, and is counted.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use percolite::Timestamp;
use percolite::engine::TxnRecordPage;
use percolite::engine::sim::{SimEngine, SimStorage};
use percolite::engine::unreliable::{FaultCounts, Faults, FaultyEngine, MAX_LATE_COPIES};
use percolite::engine::{ApplyResult, Capabilities, Engine, EngineError, EngineSnapshot, GcEntry, RowBatch};
use percolite::row::{CellChange, KeyspaceId, Precondition, Preconditions, RowChange, RowKey, RowState, TxnRecord};

use crate::common::{
    Answered, Subject, all_writes, change, check, group, lock, put, put_lock, put_status, put_write, row, ts,
};

fn network(faults: Faults, seed: u64) -> FaultyEngine<SimEngine> {
    FaultyEngine::new(SimStorage::new().shared_engine(), faults, seed)
}

fn locked() -> RowBatch {
    group([RowChange { preconditions: [Precondition::LockAbsent].into(), ..put_lock("a", lock(10)) }])
}

fn is_lost<T>(answer: Result<T, EngineError>) -> bool {
    matches!(answer, Err(EngineError::Undetermined(_)))
}

#[test]
fn without_faults_nothing_changes() {
    let engine = network(Faults::default(), 1);
    assert_eq!(engine.apply(&[locked()]).unwrap(), [ApplyResult::Applied]);
    assert!(matches!(engine.apply(&[locked()]).unwrap()[..], [ApplyResult::PreconditionFailed { .. }]));
    engine.write_meta(&[("m".into(), Some(vec![1]))]).unwrap();
    assert_eq!(engine.get_meta("m").unwrap(), Some(vec![1]));
    assert_eq!(engine.capabilities(), engine.engine().capabilities());
    assert_eq!((engine.injected(), engine.deliver_delayed()), (FaultCounts::default(), 0));
}

#[test]
fn a_lost_request_changes_nothing() {
    let engine = network(Faults { lost_requests: 1000, ..Faults::default() }, 1);
    assert!(is_lost(engine.apply(&[locked()])));
    assert!(is_lost(engine.write_meta(&[("m".into(), Some(vec![1]))])));
    assert!(is_lost(engine.advance_safe_point(ts(9))));
    assert!(is_lost(engine.sync()) && is_lost(engine.snapshot()) && is_lost(engine.read_row(&row("a"), ts(1))));
    assert!(is_lost(engine.get_meta("m")) && is_lost(engine.scan_meta("")) && is_lost(engine.safe_point()));
    assert!(is_lost(engine.gc_candidates(None, ts(9), 9)));
    assert_eq!(engine.injected(), FaultCounts { lost_requests: 10, ..FaultCounts::default() });
    let inner = engine.engine();
    assert_eq!(inner.read_row(&row("a"), ts(10)).unwrap().lock, None);
    assert_eq!((inner.get_meta("m").unwrap(), inner.safe_point().unwrap()), (None, ts(0)));
    inner.apply(&[locked()]).unwrap();
    assert!(is_lost(engine.delete_keyspace(KeyspaceId(7))));
    assert!(inner.read_row(&row("a"), ts(10)).unwrap().lock.is_some());
}

#[test]
fn a_request_with_a_lost_reply_takes_effect() {
    let engine = network(Faults { lost_replies: 1000, ..Faults::default() }, 1);
    assert!(is_lost(engine.apply(&[locked()])));
    assert!(is_lost(engine.write_meta(&[("m".into(), Some(vec![1]))])));
    assert!(is_lost(engine.advance_safe_point(ts(9))));
    assert_eq!(engine.injected(), FaultCounts { lost_replies: 3, ..FaultCounts::default() });
    assert_eq!(engine.read_row(&row("a"), ts(10)).unwrap().lock, Some(lock(10)));
    assert_eq!((engine.get_meta("m").unwrap(), engine.safe_point().unwrap()), (Some(vec![1]), ts(9)));
    assert!(is_lost(engine.delete_keyspace(KeyspaceId(7))));
    assert_eq!(engine.read_row(&row("a"), ts(10)).unwrap().lock, None);
}

#[test]
fn a_truncated_request_applies_its_first_batches() {
    let (mut least, mut most) = (usize::MAX, 0);
    for seed in 0..50 {
        let engine = network(Faults { truncated_requests: 1000, ..Faults::default() }, seed);
        assert_eq!(engine.apply(&[locked()]).unwrap(), [ApplyResult::Applied], "a single batch cannot be truncated");
        let groups =
            [1, 2, 3, 4].map(|number: u64| group(["x", "y"].map(|key| put_write(format!("{number}{key}"), put(9)))));
        assert!(is_lost(engine.apply(&groups)));
        let written = all_writes(&engine).len();
        assert!(written.is_multiple_of(2) && (2..8).contains(&written), "{written}");
        (least, most) = (least.min(written), most.max(written));
        assert_eq!(engine.injected().truncated_requests, 1);
    }
    assert_eq!((least, most), (2, 6), "from one batch applied to all but one");
}

/// The methods that the wrappers of this file pass on unchanged.
macro_rules! pass_on {
    () => {
        fn snapshot(&self) -> Result<Arc<dyn EngineSnapshot>, EngineError> {
            self.0.snapshot()
        }
        fn read_row(&self, row: &RowKey, start_ts: Timestamp) -> Result<RowState, EngineError> {
            self.0.read_row(row, start_ts)
        }
        fn sync(&self) -> Result<(), EngineError> {
            self.0.sync()
        }
        fn get_meta(&self, name: &str) -> Result<Option<Vec<u8>>, EngineError> {
            self.0.get_meta(name)
        }
        fn scan_meta(&self, prefix: &str) -> Result<Vec<(String, Vec<u8>)>, EngineError> {
            self.0.scan_meta(prefix)
        }
        fn safe_point(&self) -> Result<Timestamp, EngineError> {
            self.0.safe_point()
        }
        fn advance_safe_point(&self, to: Timestamp) -> Result<(), EngineError> {
            self.0.advance_safe_point(to)
        }
        fn gc_candidates(
            &self,
            after: Option<&GcEntry>,
            upto: Timestamp,
            limit: usize,
        ) -> Result<Vec<GcEntry>, EngineError> {
            self.0.gc_candidates(after, upto, limit)
        }
        fn txn_records(
            &self,
            before: Timestamp,
            after: Option<&(RowKey, Timestamp)>,
            limit: usize,
        ) -> Result<TxnRecordPage, EngineError> {
            self.0.txn_records(before, after, limit)
        }
        fn delete_keyspace(&self, keyspace: KeyspaceId) -> Result<(), EngineError> {
            self.0.delete_keyspace(keyspace)
        }
    };
}

/// Counts deliveries of `apply` and `write_meta`.
struct Counting(SimEngine, AtomicU64);

impl Engine for Counting {
    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }
    fn apply(&self, groups: &[RowBatch]) -> Result<Vec<ApplyResult>, EngineError> {
        self.1.fetch_add(1, Ordering::Relaxed);
        self.0.apply(groups)
    }
    fn write_meta(&self, entries: &[(String, Option<Vec<u8>>)]) -> Result<(), EngineError> {
        self.1.fetch_add(1, Ordering::Relaxed);
        self.0.write_meta(entries)
    }
    pass_on!();
}

fn counting(faults: Faults, seed: u64) -> FaultyEngine<Counting> {
    FaultyEngine::new(Counting(SimStorage::new().shared_engine(), AtomicU64::new(0)), faults, seed)
}

#[test]
fn a_duplicate_returns_either_of_its_replies() {
    let (mut first, mut second) = (0, 0);
    for seed in 0..100 {
        let engine = counting(Faults { duplicates: 1000, ..Faults::default() }, seed);
        match engine.apply(&[locked()]).unwrap().as_slice() {
            [ApplyResult::Applied] => first += 1,
            // The second delivery finds the lock that the first one has put.
            [ApplyResult::PreconditionFailed { index: 0, row }] if row.lock == Some(lock(10)) => second += 1,
            other => panic!("{other:?}"),
        }
        engine.write_meta(&[("m".into(), Some(vec![1]))]).unwrap();
        engine.read_row(&row("a"), ts(1)).unwrap();
        assert_eq!(engine.engine().1.load(Ordering::Relaxed), 4);
        assert_eq!(engine.injected().duplicates, 2);
    }
    assert!(first > 20 && second > 20, "{first} first, {second} second replies");
}

#[test]
fn a_late_copy_is_applied_and_its_reply_dropped() {
    let (mut applied, mut refused) = (0, 0);
    for seed in 0..100 {
        let engine = counting(Faults { late_duplicates: 1000, late_calls_max: 10, ..Faults::default() }, seed);
        let deliveries = || engine.engine().1.load(Ordering::Relaxed);
        assert_eq!(engine.apply(&[locked()]).unwrap(), [ApplyResult::Applied]);
        assert_eq!(deliveries(), 1);
        engine.set_faults(Faults::default());
        // Once the lock is deleted, the precondition of the late copy holds again, and the copy
        // restores the lock. In the protocol a rollback leaves a record, so that such a copy is
        // refused.
        engine.apply(&[group([RowChange { lock: CellChange::Delete, ..change("a", 10) }])]).unwrap();
        for _ in 0..10 {
            engine.read_row(&row("a"), ts(10)).unwrap();
        }
        assert_eq!(deliveries(), 3, "the late copy did not arrive");
        let injected = engine.injected();
        assert_eq!((injected.late_copies, injected.late_deliveries), (1, 1));
        assert_eq!(engine.read_row(&row("a"), ts(10)).unwrap().lock.is_some(), injected.late_applied == 1);
        // A copy that arrived after the deletion of the lock was applied. A copy that arrived just
        // before the deletion was refused, because the lock was still there.
        applied += injected.late_applied;
        refused += 1 - injected.late_applied;
    }
    assert!(applied > 70 && refused > 2, "{applied} applied, {refused} refused");
}

#[test]
fn a_lost_request_can_still_arrive_late() {
    let faults = Faults { lost_requests: 1000, late_duplicates: 1000, late_calls_max: u64::MAX, ..Faults::default() };
    let engine = network(faults, 3);
    assert!(is_lost(engine.apply(&[locked()])));
    assert_eq!(engine.engine().read_row(&row("a"), ts(10)).unwrap().lock, None);
    assert_eq!(engine.deliver_delayed(), 1);
    assert_eq!(engine.engine().read_row(&row("a"), ts(10)).unwrap().lock, Some(lock(10)));
    assert_eq!(engine.deliver_delayed(), 0);
}

#[test]
fn late_copies_are_bounded() {
    let engine = counting(Faults { late_duplicates: 1000, late_calls_max: u64::MAX, ..Faults::default() }, 5);
    for number in 0..500 {
        engine.apply(&[group([put_status("a", number, TxnRecord::RolledBack)])]).unwrap();
    }
    let waiting = MAX_LATE_COPIES as u64;
    assert_eq!(engine.injected().late_copies, 500);
    assert_eq!(engine.injected().late_deliveries, 500 - waiting);
    assert_eq!(engine.deliver_delayed() as u64, waiting);
    assert_eq!(engine.engine().1.load(Ordering::Relaxed), 1000);
}

#[test]
fn delays_call_the_hook_for_request_and_reply() {
    let paused = Arc::new((AtomicU64::new(0), AtomicU64::new(0)));
    let seen = Arc::clone(&paused);
    let pause = Arc::new(move |millis| {
        assert!((1..=20).contains(&millis));
        seen.0.fetch_add(1, Ordering::Relaxed);
        seen.1.fetch_max(millis, Ordering::Relaxed);
    });
    let faults = Faults { delays: 1000, delay_max_ms: 20, ..Faults::default() };
    let engine = FaultyEngine::with_pause(SimStorage::new().exclusive_engine(), faults, 1, pause);
    for _ in 0..100 {
        engine.apply(&[group([put_lock("a", lock(10))])]).unwrap();
        engine.snapshot().unwrap().lock(&row("a")).unwrap();
    }
    assert_eq!(engine.injected(), FaultCounts { delays: 600, ..FaultCounts::default() });
    assert_eq!((paused.0.load(Ordering::Relaxed), paused.1.load(Ordering::Relaxed)), (600, 20));
}

#[test]
fn faults_are_deterministic() {
    let run = |seed| {
        let engine = network(Faults::bad_network(), seed);
        let answers: Vec<String> = (0..300)
            .map(|number| {
                let preconditions: Preconditions = [Precondition::NoCommitAfter(ts(number + 10))].into();
                let write =
                    |key: &str| RowChange { preconditions: preconditions.clone(), ..put_write(key, put(number + 10)) };
                let answer = engine.apply(&[group([write("a")]), group([write("b")])]);
                format!("{answer:?} {:?}", engine.read_row(&row("a"), ts(1)))
            })
            .collect();
        (answers, engine.injected(), all_writes(engine.engine()))
    };
    let (answers, injected, writes) = run(1);
    assert!(run(1) == (answers.clone(), injected, writes), "the same seed ran in two ways");
    assert!(run(2).0 != answers);
    let FaultCounts { lost_requests, lost_replies, truncated_requests, duplicates, late_deliveries, delays, .. } =
        injected;
    for count in [lost_requests, lost_replies, truncated_requests, duplicates, late_deliveries, delays] {
        assert!(count > 5, "{injected:?}");
    }
}

/// An engine with a low limit of rows in a batch, for the case that tests the limit.
struct Small(SimEngine);

const SMALL: usize = 3;

impl Engine for Small {
    fn capabilities(&self) -> Capabilities {
        Capabilities { batch_rows_max: SMALL, ..self.0.capabilities() }
    }
    fn apply(&self, groups: &[RowBatch]) -> Result<Vec<ApplyResult>, EngineError> {
        match groups.iter().map(|group| group.row_count()).find(|rows| *rows > SMALL) {
            Some(requested) => Err(EngineError::Limit { what: "a batch's row count", requested, limit: SMALL }),
            None => self.0.apply(groups),
        }
    }
    fn write_meta(&self, entries: &[(String, Option<Vec<u8>>)]) -> Result<(), EngineError> {
        self.0.write_meta(entries)
    }
    pass_on!();
}

#[test]
fn an_engine_with_a_limit_allows_it_and_refuses_one_more() {
    let bare: fn(u64) -> Subject = |seed| Subject::new(Small(SimStorage::new().shared_engine()), seed);
    check("small", 0..1, bare, crate::batches::a_batch_above_the_limit_is_refused_before_it_begins);
    let behind_a_network: fn(u64) -> Subject = |seed| {
        let faults = Faults { late_duplicates: 0, ..Faults::bad_network() };
        Subject::new(Answered(FaultyEngine::new(Small(SimStorage::new().shared_engine()), faults, seed)), seed)
    };
    let case = crate::batches::a_batch_above_the_limit_is_refused_before_it_begins;
    check("small behind a bad network", 0..20, behind_a_network, case);
}
