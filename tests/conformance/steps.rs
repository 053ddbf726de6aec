//! The protocol's steps over an engine whose replies get lost: every step may be made twice.

use percolite::engine::{ApplyResult, Engine, EngineError};
use percolite::protocol::{
    CheckTxnStatus, CommitRow, GcRequest, Heartbeat, OldVersion, OnePhase, OwnerLiveness, Prewrite, PrewriteResult,
    Resolve, Rollback, Step, StepError, TransactionStatus, check_txn_status, commit, delete_txn_record, gc_row,
    heartbeat, one_phase, prewrite, resolve, rollback,
};
use percolite::row::{Mutation, Row, RowChange, RowKey, TxnId};
use percolite::timestamp::Timestamp;

use crate::common::{Subject, deletion, group, make, put, put_write, row, ts, txn, until_answered};

const ROUNDS_MAX: usize = 1000;

/// Makes a step: decides on the row as it is, applies, and looks again whenever the engine refuses or does not answer.
pub fn run<T>(
    engine: &dyn Engine,
    row: &RowKey,
    start_ts: Timestamp,
    step: &dyn Fn(&Row) -> Result<Step<T>, StepError>,
) -> Result<T, StepError> {
    let look = || until_answered(|| engine.read_row(row, start_ts)).unwrap();
    let mut seen = look();
    for _ in 0..ROUNDS_MAX {
        let (change, answer) = match step(&seen)? {
            Step::Done(answer) => return Ok(answer),
            Step::Apply(change, answer) => (change, answer),
        };
        match engine.apply(&[group([change])]).as_deref() {
            Ok([ApplyResult::Applied]) => return Ok(answer),
            Ok([ApplyResult::PreconditionFailed { row, .. }]) => seen = Row::clone(row),
            Err(EngineError::Undetermined(_)) => seen = look(),
            other => panic!("{other:?}"),
        }
    }
    panic!("a step was not made in {ROUNDS_MAX} rounds");
}

/// Everything there is to see of a row and of the transactions in this file.
fn state(engine: &Subject, key: &RowKey) -> impl PartialEq + std::fmt::Debug + use<> {
    let view = engine.snapshot().unwrap();
    let each = [10, 20, 30].map(|at| (engine.read_row(key, ts(at)).unwrap(), view.data(key, ts(at)).unwrap()));
    (each, view.version_at(key, ts(99)).unwrap(), engine.gc_candidates(None, Timestamp::MAX, 99).unwrap())
}

/// Makes the step; then delivers its change once more, as a network would, and makes the step again.
fn twice<T: Clone + PartialEq + std::fmt::Debug>(
    engine: &Subject,
    key: &str,
    start_ts: u64,
    expected: Result<T, StepError>,
    step: &dyn Fn(&Row) -> Result<Step<T>, StepError>,
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
    assert_eq!(state(engine, &key), after, "the second time changed the row");
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
        record_lock_only: true,
    }
}

pub fn every_step_made_twice_answers_the_same(engine: &Subject) {
    let long = vec![b'v'; 1000];
    let locked = |at: u64| Ok(PrewriteResult::Locked { min_commit_ts: ts(at) });
    let ten = txn(10);
    for (key, value) in [("primary", &b"short"[..]), ("second", &long), ("third", &long), ("fourth", b"4")] {
        let request = request(key, ten, value);
        twice(engine, key, 10, locked(11), &|row| prewrite(row, &request));
    }
    // The owner writes a row again: the higher sequence stands, the lower is told so.
    let again = Prewrite { write_seq: 2, mutation: Mutation::Put(b"again".into()), ..request("third", ten, b"") };
    twice(engine, "third", 10, locked(11), &|row| prewrite(row, &again));
    let first = request("third", ten, &long);
    twice(engine, "third", 10, Err(StepError::StaleRequest), &|row| prewrite(row, &first));

    let life = Heartbeat { row: row("primary"), txn: ten, ttl_ms: 9000 };
    twice(engine, "primary", 10, Ok(9000), &|row| heartbeat(row, &life));
    let asker = OwnerLiveness::ByTtl { current_ts: ts(16), push_above: Some(ts(15)) };
    let push = CheckTxnStatus { row: row("primary"), txn: ten, liveness: asker };
    twice(engine, "primary", 10, Ok(TransactionStatus::Pending), &|row| check_txn_status(row, &push));
    let early = commit_at("primary", ten, 15, true);
    twice(engine, "primary", 10, Err(StepError::CommitTsTooLow(ts(16))), &|row| commit(row, &early));

    let point = commit_at("primary", ten, 17, true);
    twice(engine, "primary", 10, Ok(ts(17)), &|row| commit(row, &point));
    let follow = commit_at("second", ten, 17, false);
    twice(engine, "second", 10, Ok(ts(17)), &|row| commit(row, &follow));
    let ask = CheckTxnStatus { row: row("primary"), txn: ten, liveness: OwnerLiveness::Dead };
    twice(engine, "primary", 10, Ok(TransactionStatus::Committed(ts(17))), &|row| check_txn_status(row, &ask));
    for key in ["third", "fourth"] {
        let verdict = TransactionStatus::Committed(ts(17));
        let forward =
            Resolve { row: row(key), txn: ten, status: verdict, keep_old_version: false, record_lock_only: false };
        twice(engine, key, 10, Ok(()), &|row| resolve(row, &forward));
    }
    for key in ["primary", "second", "third", "fourth"] {
        let late = request(key, ten, b"late");
        twice(engine, key, 10, Ok(PrewriteResult::Committed(ts(17))), &|row| prewrite(row, &late));
        let never = Rollback { row: row(key), txn: ten };
        twice(engine, key, 10, Err(StepError::AlreadyCommitted(ts(17))), &|row| rollback(row, &never));
        assert_eq!(engine.read_row(&row(key), ts(10)).unwrap().lock, None);
        assert_eq!(engine.read_row(&row(key), ts(10)).unwrap().write.unwrap().commit_ts, ts(17));
    }

    // Another transaction, rolled back by its owner on one row, by others on the rest.
    let twenty = txn(20);
    for key in ["primary", "second"] {
        let request = request(key, twenty, &long);
        twice(engine, key, 20, locked(21), &|row| prewrite(row, &request));
    }
    let ask = CheckTxnStatus { row: row("primary"), txn: twenty, liveness: OwnerLiveness::Dead };
    twice(engine, "primary", 20, Ok(TransactionStatus::RolledBack), &|row| check_txn_status(row, &ask));
    let back = Resolve {
        row: row("second"),
        txn: twenty,
        status: TransactionStatus::RolledBack,
        keep_old_version: false,
        record_lock_only: false,
    };
    twice(engine, "second", 20, Ok(()), &|row| resolve(row, &back));
    let unseen = Rollback { row: row("third"), txn: twenty };
    twice(engine, "third", 20, Ok(()), &|row| rollback(row, &unseen));
    for key in ["primary", "second", "third"] {
        let (late, point) = (request(key, twenty, b"late"), commit_at(key, twenty, 25, true));
        let life = Heartbeat { row: row(key), txn: twenty, ttl_ms: 9000 };
        twice(engine, key, 20, Err(StepError::AlreadyRolledBack), &|row| prewrite(row, &late));
        twice(engine, key, 20, Err(StepError::AlreadyRolledBack), &|row| commit(row, &point));
        twice(engine, key, 20, Err(StepError::AlreadyRolledBack), &|row| heartbeat(row, &life));
        assert_eq!(engine.read_row(&row(key), ts(20)).unwrap().write.unwrap().commit_ts, ts(17));
        assert_eq!(engine.snapshot().unwrap().data(&row(key), ts(20)).unwrap(), None);
    }

    // One phase, in its three kinds. A hold leaves no trace, so there its answer is the only thing to compare.
    let thirty = txn(30);
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
        twice(engine, key, 30, Ok(ts(31)), &|row| one_phase(row, &request));
    }
    // Clean-up: what is gone stays gone.
    let deleted = GcRequest { row: row("third"), superseded_at: vec![ts(31)], old_versions: Vec::new() };
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
        superseded_at: vec![ts(31)],
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

/// The change that a step asks for, on its way to the engine.
fn sent<T>(step: Result<Step<T>, StepError>) -> RowChange {
    match step {
        Ok(Step::Apply(change, _)) => change,
        _ => panic!("the step has nothing to send"),
    }
}

/// Each request was right when it was sent. It arrives when the transaction is over.
pub fn requests_that_arrive_after_the_end_change_nothing(engine: &Subject) {
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
        for hold in [false, true] {
            let key = format!("row {number} {hold}");
            let mutation = if hold { Mutation::LockOnly } else { Mutation::Put(vec![1; 1000].into()) };
            let locking = Prewrite { mutation, primary: row(&key), ..request(&key, ten, b"") };
            let mut late = vec![sent(prewrite(&Row::default(), &locking))];
            if *name == "rolled back unseen" {
                let request = Rollback { row: row(&key), txn: ten };
                run(&**engine, &row(&key), ts(10), &|row| rollback(row, &request)).unwrap();
            } else {
                run(&**engine, &row(&key), ts(10), &|row| prewrite(row, &locking)).unwrap();
                let locked = engine.read_row(&row(&key), ts(10)).unwrap();
                let asker = OwnerLiveness::ByTtl { current_ts: ts(16), push_above: Some(ts(15)) };
                let again = Prewrite { write_seq: 2, mutation: Mutation::Delete, ..locking.clone() };
                let back = Rollback { row: row(&key), txn: ten };
                late.extend([
                    sent(commit(&locked, &commit_at(&key, ten, 19, true))),
                    sent(heartbeat(&locked, &Heartbeat { row: row(&key), txn: ten, ttl_ms: 9999 })),
                    sent(check_txn_status(&locked, &CheckTxnStatus { row: row(&key), txn: ten, liveness: asker })),
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
    // The record of the roll-back is collected, below a safe point that has passed.
    let late = sent(prewrite(&Row::default(), &request("row 0 false", ten, b"late")));
    make(&**engine, [delete_txn_record(row("row 0 false"), ts(10))]);
    engine.advance_safe_point(ts(11)).unwrap();
    assert!(matches!(engine.apply(&[group([late])]).unwrap()[..], [ApplyResult::PreconditionFailed { .. }]));
    assert_eq!(engine.read_row(&row("row 0 false"), ts(10)).unwrap().lock, None);
}

/// The reply to the first commit was lost; the owner asks again.
pub fn a_held_row_committed_twice_answers_the_same(engine: &Subject) {
    let ten = txn(10);
    make(&**engine, [put_write("written", put(5))]);
    for key in ["written", "absent"] {
        let hold = Prewrite { mutation: Mutation::LockOnly, ..request(key, ten, b"") };
        twice(engine, key, 10, Ok(PrewriteResult::Locked { min_commit_ts: ts(11) }), &|row| prewrite(row, &hold));
        let follow = commit_at(key, ten, 17, false);
        twice(engine, key, 10, Ok(ts(17)), &|row| commit(row, &follow));
        let late = run(&**engine, &row(key), ts(10), &|row| prewrite(row, &hold));
        assert!(!matches!(late, Ok(PrewriteResult::Locked { .. })), "a late prewrite locked the row anew");
        assert_eq!(engine.read_row(&row(key), ts(10)).unwrap().lock, None);
    }
}

/// As above, and another transaction has overwritten the row meanwhile. Whatever is answered, it must not be that the
/// transaction is rolled back: it is not.
pub fn a_repeated_commit_is_told_so_though_the_row_has_moved_on(engine: &Subject) {
    let ten = txn(10);
    let locked = request("second", ten, b"ten");
    run(&**engine, &row("second"), ts(10), &|row| prewrite(row, &locked)).unwrap();
    let follow = commit_at("second", ten, 17, false);
    assert_eq!(run(&**engine, &row("second"), ts(10), &|row| commit(row, &follow)), Ok(ts(17)));
    make(&**engine, [put_write("second", put(25))]);
    let again = run(&**engine, &row("second"), ts(10), &|row| commit(row, &follow));
    assert_ne!(again, Err(StepError::AlreadyRolledBack), "a committed transaction is told that it is rolled back");
}

/// Two parties carry out the same verdict; the slower one has read the lock in its view and comes last.
pub fn a_resolver_that_comes_late_has_nothing_to_do(engine: &Subject) {
    let ten = txn(10);
    for (key, mutation) in [("put", Mutation::Put(b"ten".into())), ("hold", Mutation::LockOnly)] {
        let locked = Prewrite { mutation, ..request(key, ten, b"") };
        run(&**engine, &row(key), ts(10), &|row| prewrite(row, &locked)).unwrap();
        let verdict = TransactionStatus::Committed(ts(17));
        let forward =
            Resolve { row: row(key), txn: ten, status: verdict, keep_old_version: true, record_lock_only: true };
        assert_eq!(run(&**engine, &row(key), ts(10), &|row| resolve(row, &forward)), Ok(()));
        make(&**engine, [put_write(key, put(25))]);
        assert_eq!(run(&**engine, &row(key), ts(10), &|row| resolve(row, &forward)), Ok(()), "{key}");
        assert_eq!(engine.read_row(&row(key), ts(10)).unwrap().write, Some(put(25)));
    }
}

pub fn a_deleted_row_that_was_held_since_can_be_collected(engine: &Subject) {
    let ten = txn(10);
    make(&**engine, [put_write("a", deletion(5))]);
    let hold = Prewrite { mutation: Mutation::LockOnly, ..request("a", ten, b"") };
    run(&**engine, &row("a"), ts(10), &|row| prewrite(row, &hold)).unwrap();
    let follow = commit_at("a", ten, 17, false);
    assert_eq!(run(&**engine, &row("a"), ts(10), &|row| commit(row, &follow)), Ok(ts(17)));
    // Every transaction is newer than all of this by now.
    for (deleted_at, row) in engine.gc_candidates(None, Timestamp::MAX, 9).unwrap() {
        let request = GcRequest { row: row.clone(), superseded_at: vec![deleted_at], old_versions: Vec::new() };
        let change = gc_row(&engine.read_row(&row, ts(0)).unwrap(), &request);
        let outcomes = engine.apply(&[group([change])]).unwrap();
        assert_eq!(outcomes, [ApplyResult::Applied], "on a row that nobody else touches");
    }
    assert_eq!(engine.gc_candidates(None, Timestamp::MAX, 9).unwrap(), [], "the collector will meet it for ever");
    assert_eq!(engine.read_row(&row("a"), ts(0)).unwrap().write, None);
}
