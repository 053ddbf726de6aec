//! The protocol's steps on an engine that loses replies: every step may be applied twice.

use percolite::Timestamp;
use percolite::engine::{ApplyResult, Engine, EngineError};
use percolite::internal::protocol::{
    CheckTxnStatus, CommitRow, GcRequest, Heartbeat, OldVersion, OnePhase, OwnerLiveness, Prewrite, PrewriteResult,
    Resolve, Rollback, Step, StepError, TxnStatus, check_txn_status, commit, delete_txn_record, gc_row, heartbeat,
    one_phase, prewrite, resolve, rollback,
};
use percolite::row::{Mutation, RowChange, RowKey, RowState, TxnId};

use crate::common::{Subject, deletion, group, make, put, put_write, row, ts, txn, until_answered};

const ROUNDS_MAX: usize = 1000;

/// Runs a step: decides on the row as read, applies the change, and reads again whenever the engine
/// refuses it or does not reply.
pub fn run<T>(
    engine: &dyn Engine,
    row: &RowKey,
    start_ts: Timestamp,
    step: &dyn Fn(&RowState) -> Result<Step<T>, StepError>,
) -> Result<T, StepError> {
    let read = || until_answered(|| engine.read_row(row, start_ts)).unwrap();
    let mut seen = read();
    for _ in 0..ROUNDS_MAX {
        let (change, answer) = match step(&seen)? {
            Step::Done(answer) => return Ok(answer),
            Step::Apply(change, answer) => (change, answer),
        };
        match engine.apply(&[group([change])]).as_deref() {
            Ok([ApplyResult::Applied]) => return Ok(answer),
            Ok([ApplyResult::PreconditionFailed { row, .. }]) => seen = RowState::clone(row),
            Err(EngineError::Undetermined(_)) => seen = read(),
            other => panic!("{other:?}"),
        }
    }
    panic!("a step was not applied in {ROUNDS_MAX} rounds");
}

/// Everything readable of a row and of the transactions in this file.
fn state(engine: &Subject, key: &RowKey) -> impl PartialEq + std::fmt::Debug + use<> {
    let view = engine.snapshot().unwrap();
    let each = [10, 20, 30].map(|at| (engine.read_row(key, ts(at)).unwrap(), view.data(key, ts(at)).unwrap()));
    (each, view.version_at(key, ts(99)).unwrap(), engine.gc_candidates(None, Timestamp::MAX, 99).unwrap())
}

/// Runs the step, then delivers its change again, as a network that duplicates requests would, and
/// runs the step again.
fn run_twice<T: Clone + PartialEq + std::fmt::Debug>(
    engine: &Subject,
    key: &str,
    start_ts: u64,
    expected: Result<T, StepError>,
    step: &dyn Fn(&RowState) -> Result<Step<T>, StepError>,
) {
    let key = row(key);
    let sent = match step(&engine.read_row(&key, ts(start_ts)).unwrap()) {
        Ok(Step::Apply(change, _)) => Some(group([change])),
        _ => None,
    };
    assert_eq!(run(&**engine, &key, ts(start_ts), step), expected, "the first time");
    let after = state(engine, &key);
    if let Some(sent) = sent {
        engine.apply(&[sent]).unwrap();
        assert_eq!(state(engine, &key), after, "a second delivery changed the row");
    }
    assert_eq!(run(&**engine, &key, ts(start_ts), step), expected, "the second time");
    assert_eq!(state(engine, &key), after, "the second run changed the row");
}

fn request(key: &str, txn: TxnId, value: &[u8]) -> Prewrite {
    Prewrite {
        row: row(key),
        txn,
        read_ts: ts(txn.start_ts.to_u64() - 1),
        primary: row("primary"),
        mutation: Mutation::Put(value.into()),
        write_seq: 1,
        ttl_ms: 3000,
        min_commit_ts: txn.start_ts.next(),
    }
}

fn commit_at(key: &str, txn: TxnId, commit_ts: u64, keep_status: bool) -> CommitRow {
    CommitRow {
        row: row(key),
        txn,
        commit_ts: ts(commit_ts),
        keep_txn_record: keep_status,
        keep_old_version: keep_status,
        on_shared_engine: true,
    }
}

/// A value that is too long for a lock.
const LONG: &[u8] = &[b'v'; 1000];

fn locked(min_commit_ts: u64) -> Result<PrewriteResult, StepError> {
    Ok(PrewriteResult::Locked { min_commit_ts: ts(min_commit_ts) })
}

/// The order of these calls matters: each begins with the rows as the previous ones left them.
pub fn every_step_is_idempotent(engine: &Subject) {
    lock_rows_and_push(engine, txn(10));
    commit_at_17(engine, txn(10));
    roll_back(engine, txn(20));
    commit_in_one_phase_at_31(engine, txn(30));
    collect_garbage(engine);
}

fn lock_rows_and_push(engine: &Subject, ten: TxnId) {
    for (key, value) in [("primary", &b"short"[..]), ("second", LONG), ("third", LONG), ("fourth", b"4")] {
        let request = request(key, ten, value);
        run_twice(engine, key, 10, locked(11), &|row| prewrite(row, &request));
    }
    // The owner writes a row again: the prewrite with the higher write_seq wins, and a late one
    // with the lower write_seq is stale.
    let again = Prewrite { write_seq: 2, mutation: Mutation::Put(b"again".into()), ..request("third", ten, b"") };
    run_twice(engine, "third", 10, locked(11), &|row| prewrite(row, &again));
    let first = request("third", ten, LONG);
    run_twice(engine, "third", 10, Err(StepError::StaleRequest), &|row| prewrite(row, &first));

    let heartbeat_request = Heartbeat { row: row("primary"), txn: ten, ttl_ms: 9000 };
    run_twice(engine, "primary", 10, Ok(9000), &|row| heartbeat(row, &heartbeat_request));
    let liveness = OwnerLiveness::ByTtl { current_ts: ts(16), push_above: Some(ts(15)) };
    let push = CheckTxnStatus { row: row("primary"), txn: ten, liveness };
    run_twice(engine, "primary", 10, Ok(TxnStatus::Pending), &|row| check_txn_status(row, &push));
    let early = commit_at("primary", ten, 15, true);
    run_twice(engine, "primary", 10, Err(StepError::CommitTsTooLow(ts(16))), &|row| commit(row, &early));
}

fn commit_at_17(engine: &Subject, ten: TxnId) {
    let point = commit_at("primary", ten, 17, true);
    run_twice(engine, "primary", 10, Ok(ts(17)), &|row| commit(row, &point));
    let follow = commit_at("second", ten, 17, false);
    run_twice(engine, "second", 10, Ok(ts(17)), &|row| commit(row, &follow));
    let check = CheckTxnStatus { row: row("primary"), txn: ten, liveness: OwnerLiveness::Ended };
    run_twice(engine, "primary", 10, Ok(TxnStatus::Committed(ts(17))), &|row| check_txn_status(row, &check));
    for key in ["third", "fourth"] {
        let status = TxnStatus::Committed(ts(17));
        let forward = Resolve { row: row(key), txn: ten, status, keep_old_version: false, on_shared_engine: false };
        run_twice(engine, key, 10, Ok(()), &|row| resolve(row, &forward));
    }
    for key in ["primary", "second", "third", "fourth"] {
        let late = request(key, ten, b"late");
        run_twice(engine, key, 10, Ok(PrewriteResult::Committed(ts(17))), &|row| prewrite(row, &late));
        let never = Rollback { row: row(key), txn: ten };
        run_twice(engine, key, 10, Err(StepError::AlreadyCommitted(ts(17))), &|row| rollback(row, &never));
        assert_eq!(engine.read_row(&row(key), ts(10)).unwrap().lock, None);
        assert_eq!(engine.read_row(&row(key), ts(10)).unwrap().write.unwrap().commit_ts, ts(17));
    }
}

/// At the primary the transaction is rolled back by a status check, on the second row by a
/// resolver, and on the third, which it has not locked, by its owner.
fn roll_back(engine: &Subject, twenty: TxnId) {
    for key in ["primary", "second"] {
        let request = request(key, twenty, LONG);
        run_twice(engine, key, 20, locked(21), &|row| prewrite(row, &request));
    }
    let check = CheckTxnStatus { row: row("primary"), txn: twenty, liveness: OwnerLiveness::Ended };
    run_twice(engine, "primary", 20, Ok(TxnStatus::RolledBack), &|row| check_txn_status(row, &check));
    let back = Resolve {
        row: row("second"),
        txn: twenty,
        status: TxnStatus::RolledBack,
        keep_old_version: false,
        on_shared_engine: false,
    };
    run_twice(engine, "second", 20, Ok(()), &|row| resolve(row, &back));
    let unseen = Rollback { row: row("third"), txn: twenty };
    run_twice(engine, "third", 20, Ok(()), &|row| rollback(row, &unseen));
    for key in ["primary", "second", "third"] {
        let (late, point) = (request(key, twenty, b"late"), commit_at(key, twenty, 25, true));
        let heartbeat_request = Heartbeat { row: row(key), txn: twenty, ttl_ms: 9000 };
        run_twice(engine, key, 20, Err(StepError::AlreadyRolledBack), &|row| prewrite(row, &late));
        run_twice(engine, key, 20, Err(StepError::AlreadyRolledBack), &|row| commit(row, &point));
        run_twice(engine, key, 20, Err(StepError::AlreadyRolledBack), &|row| heartbeat(row, &heartbeat_request));
        assert_eq!(engine.read_row(&row(key), ts(20)).unwrap().write.unwrap().commit_ts, ts(17));
        assert_eq!(engine.snapshot().unwrap().data(&row(key), ts(20)).unwrap(), None);
    }
}

/// Commits one row of each kind. The lock-only one stores nothing, so for it only the result is
/// checked.
fn commit_in_one_phase_at_31(engine: &Subject, thirty: TxnId) {
    for (key, mutation) in
        [("second", Mutation::Put(b"one".into())), ("third", Mutation::Delete), ("fourth", Mutation::LockOnly)]
    {
        let key_row = row(key);
        let request = OnePhase {
            row: &key_row,
            txn: thirty,
            read_ts: ts(29),
            commit_ts: ts(31),
            mutation: &mutation,
            keep_old_version: true,
        };
        run_twice(engine, key, 30, Ok(ts(31)), &|row| one_phase(row, &request));
    }
}

fn collect_garbage(engine: &Subject) {
    let deleted = GcRequest { row: row("third"), replaced_at: vec![ts(31)], old_versions: Vec::new() };
    let clean = |change: &dyn Fn() -> RowChange| {
        let all = || ["second", "third"].map(|key| state(engine, &row(key)));
        make(&**engine, [change()]);
        let after = all();
        make(&**engine, [change()]);
        assert_eq!(all(), after);
    };
    clean(&|| gc_row(&engine.read_row(&row("third"), ts(0)).unwrap(), &deleted));
    assert_eq!(engine.read_row(&row("third"), ts(30)).unwrap().write, None);
    let replaced = engine.snapshot().unwrap().version_at(&row("second"), ts(30)).unwrap();
    let kept = GcRequest {
        row: row("second"),
        replaced_at: vec![ts(31)],
        old_versions: replaced.iter().map(OldVersion::from).collect(),
    };
    assert_eq!(kept.old_versions.len(), 1);
    clean(&|| gc_row(&engine.read_row(&row("second"), ts(0)).unwrap(), &kept));
    let newest = engine.read_row(&row("second"), ts(30)).unwrap().write;
    assert_eq!(newest.map(|version| version.commit_ts), Some(ts(31)));
    assert_eq!(engine.snapshot().unwrap().version_at(&row("second"), ts(99)).unwrap(), None);
    assert_eq!(engine.gc_candidates(None, Timestamp::MAX, 9).unwrap(), []);
    clean(&|| delete_txn_record(row("primary"), ts(10)));
    assert_eq!(engine.read_row(&row("primary"), ts(10)).unwrap().txn_record, None);
}

/// The change that a step sends to the engine.
fn sent<T>(step: Result<Step<T>, StepError>) -> RowChange {
    match step {
        Ok(Step::Apply(change, _)) => change,
        _ => panic!("the step sends no change"),
    }
}

/// Each request is valid when it is sent and arrives after the end of its transaction.
pub fn late_requests_change_nothing(engine: &Subject) {
    let ten = txn(10);
    let end: [(&str, &dyn Fn(&RowKey)); 4] = [
        ("rolled back unseen", &|_| {}),
        ("rolled back", &|key| {
            let request = Rollback { row: key.clone(), txn: ten };
            run(&**engine, key, ts(10), &|row| rollback(row, &request)).unwrap();
        }),
        ("committed", &|key| {
            let request = CommitRow { row: key.clone(), ..commit_at("", ten, 17, false) };
            run(&**engine, key, ts(10), &|row| commit(row, &request)).unwrap();
        }),
        ("committed and overwritten", &|key| {
            let request = CommitRow { row: key.clone(), ..commit_at("", ten, 17, false) };
            run(&**engine, key, ts(10), &|row| commit(row, &request)).unwrap();
            make(&**engine, [RowChange { row: key.clone(), ..put_write("", put(25)) }]);
        }),
    ];
    for (number, (name, end)) in end.iter().enumerate() {
        for lock_only in [false, true] {
            let key = format!("row {number} {lock_only}");
            let mutation = if lock_only { Mutation::LockOnly } else { Mutation::Put(vec![1; 1000].into()) };
            let locking = Prewrite { mutation, primary: row(&key), ..request(&key, ten, b"") };
            let mut late = vec![sent(prewrite(&RowState::default(), &locking))];
            if *name == "rolled back unseen" {
                let request = Rollback { row: row(&key), txn: ten };
                run(&**engine, &row(&key), ts(10), &|row| rollback(row, &request)).unwrap();
            } else {
                run(&**engine, &row(&key), ts(10), &|row| prewrite(row, &locking)).unwrap();
                let locked = engine.read_row(&row(&key), ts(10)).unwrap();
                let liveness = OwnerLiveness::ByTtl { current_ts: ts(16), push_above: Some(ts(15)) };
                let again = Prewrite { write_seq: 2, mutation: Mutation::Delete, ..locking.clone() };
                let back = Rollback { row: row(&key), txn: ten };
                late.extend([
                    sent(commit(&locked, &commit_at(&key, ten, 19, true))),
                    sent(heartbeat(&locked, &Heartbeat { row: row(&key), txn: ten, ttl_ms: 9999 })),
                    sent(check_txn_status(&locked, &CheckTxnStatus { row: row(&key), txn: ten, liveness })),
                    sent(prewrite(&locked, &again)),
                    sent(rollback(&locked, &back)),
                ]);
            }
            end(&row(&key));
            let after = state(engine, &row(&key));
            for change in late {
                engine.apply(&[group([change.clone()])]).unwrap();
                assert_eq!(state(engine, &row(&key)), after, "{name}, then arrives {change:?}");
            }
        }
    }
    // After the rollback record is deleted, the safe point refuses late prewrites.
    let late = sent(prewrite(&RowState::default(), &request("row 0 false", ten, b"late")));
    make(&**engine, [delete_txn_record(row("row 0 false"), ts(10))]);
    engine.advance_safe_point(ts(11)).unwrap();
    assert!(matches!(engine.apply(&[group([late])]).unwrap()[..], [ApplyResult::PreconditionFailed { .. }]));
    assert_eq!(engine.read_row(&row("row 0 false"), ts(10)).unwrap().lock, None);
}

/// The reply to the first commit was lost, and the owner repeats the commit.
pub fn a_lock_only_commit_is_idempotent(engine: &Subject) {
    let ten = txn(10);
    make(&**engine, [put_write("written", put(5))]);
    for key in ["written", "absent"] {
        let locking = Prewrite { mutation: Mutation::LockOnly, ..request(key, ten, b"") };
        run_twice(engine, key, 10, Ok(PrewriteResult::Locked { min_commit_ts: ts(11) }), &|row| {
            prewrite(row, &locking)
        });
        let follow = commit_at(key, ten, 17, false);
        run_twice(engine, key, 10, Ok(ts(17)), &|row| commit(row, &follow));
        let late = run(&**engine, &row(key), ts(10), &|row| prewrite(row, &locking));
        assert!(!matches!(late, Ok(PrewriteResult::Locked { .. })), "a late prewrite locked the row again");
        assert_eq!(engine.read_row(&row(key), ts(10)).unwrap().lock, None);
    }
}

/// The owner repeats a commit whose reply was lost, and meanwhile another transaction has
/// overwritten the row. Any result but `AlreadyRolledBack` is allowed, because the transaction is
/// committed.
pub fn a_repeated_commit_of_an_overwritten_row_is_no_rollback(engine: &Subject) {
    let ten = txn(10);
    let locked = request("second", ten, b"ten");
    run(&**engine, &row("second"), ts(10), &|row| prewrite(row, &locked)).unwrap();
    let follow = commit_at("second", ten, 17, false);
    assert_eq!(run(&**engine, &row("second"), ts(10), &|row| commit(row, &follow)), Ok(ts(17)));
    make(&**engine, [put_write("second", put(25))]);
    let again = run(&**engine, &row("second"), ts(10), &|row| commit(row, &follow));
    assert_ne!(again, Err(StepError::AlreadyRolledBack), "a committed transaction returned AlreadyRolledBack");
}

/// Two resolvers apply the same status. The slower one has read the lock in its snapshot and comes
/// last.
pub fn a_late_resolver_changes_nothing(engine: &Subject) {
    let ten = txn(10);
    for (key, mutation) in [("put", Mutation::Put(b"ten".into())), ("lock-only", Mutation::LockOnly)] {
        let locked = Prewrite { mutation, ..request(key, ten, b"") };
        run(&**engine, &row(key), ts(10), &|row| prewrite(row, &locked)).unwrap();
        let status = TxnStatus::Committed(ts(17));
        let forward = Resolve { row: row(key), txn: ten, status, keep_old_version: true, on_shared_engine: true };
        assert_eq!(run(&**engine, &row(key), ts(10), &|row| resolve(row, &forward)), Ok(()));
        make(&**engine, [put_write(key, put(25))]);
        assert_eq!(run(&**engine, &row(key), ts(10), &|row| resolve(row, &forward)), Ok(()), "{key}");
        assert_eq!(engine.read_row(&row(key), ts(10)).unwrap().write, Some(put(25)));
    }
}

pub fn gc_removes_a_deleted_row_after_a_lock_only(engine: &Subject) {
    let ten = txn(10);
    make(&**engine, [put_write("a", deletion(5))]);
    let locking = Prewrite { mutation: Mutation::LockOnly, ..request("a", ten, b"") };
    run(&**engine, &row("a"), ts(10), &|row| prewrite(row, &locking)).unwrap();
    let follow = commit_at("a", ten, 17, false);
    assert_eq!(run(&**engine, &row("a"), ts(10), &|row| commit(row, &follow)), Ok(ts(17)));
    // No transaction is older than the deletion, so GC may remove the row.
    for (deleted_at, row) in engine.gc_candidates(None, Timestamp::MAX, 9).unwrap() {
        let request = GcRequest { row: row.clone(), replaced_at: vec![deleted_at], old_versions: Vec::new() };
        let change = gc_row(&engine.read_row(&row, ts(0)).unwrap(), &request);
        let outcomes = engine.apply(&[group([change])]).unwrap();
        assert_eq!(outcomes, [ApplyResult::Applied], "no other transaction uses the row");
    }
    assert_eq!(
        engine.gc_candidates(None, Timestamp::MAX, 9).unwrap(),
        [],
        "the entry would stay in the GC queue forever"
    );
    assert_eq!(engine.read_row(&row("a"), ts(0)).unwrap().write, None);
}
