//! Each precondition, met and not met, and what a refusal returns.

use percolite::OwnerId;
use percolite::engine::ApplyResult;
use percolite::row::{CellChange, Lock, LockVersion, Precondition, RowChange, RowState, TxnId, TxnRecord, WriteRecord};

use crate::common::{
    Subject, change, deletion, group, is_allowed, lock, lock_only, make, put, put_lock, put_status, put_write, row, ts,
    txn,
};

pub fn lock_absent_is_met_by_unlocked_rows_only(engine: &Subject) {
    assert!(is_allowed(&**engine, "a", 10, &[Precondition::LockAbsent]), "an absent row");
    make(&**engine, [put_write("a", put(5)), put_lock("b", lock(10))]);
    assert!(is_allowed(&**engine, "a", 10, &[Precondition::LockAbsent]), "a written row");
    assert!(!is_allowed(&**engine, "b", 10, &[Precondition::LockAbsent]), "a locked row");
    assert!(!is_allowed(&**engine, "b", 11, &[Precondition::LockAbsent]), "a locked row and another transaction");
    make(&**engine, [RowChange { lock: CellChange::Delete, ..change("b", 10) }]);
    assert!(is_allowed(&**engine, "b", 10, &[Precondition::LockAbsent]), "an unlocked row");
}

pub fn lock_unchanged_is_met_by_that_version_only(engine: &Subject) {
    let stamp = lock(10).version();
    assert!(!is_allowed(&**engine, "a", 10, &[Precondition::LockUnchanged(stamp)]), "an absent row");
    make(&**engine, [put_lock("a", lock(10))]);
    assert!(is_allowed(&**engine, "a", 10, &[Precondition::LockUnchanged(stamp)]), "the lock itself");
    let mut others = vec![
        LockVersion { txn: TxnId { start_ts: ts(11), ..stamp.txn }, ..stamp },
        LockVersion { txn: TxnId { owner: OwnerId::from_u64(1), ..stamp.txn }, ..stamp },
    ];
    for (less, more) in [(0, 2), (0, u32::MAX)] {
        others.extend([LockVersion { write_seq: less, ..stamp }, LockVersion { write_seq: more, ..stamp }]);
    }
    for ttl_ms in [0, stamp.ttl_ms - 1, stamp.ttl_ms + 1] {
        others.push(LockVersion { ttl_ms, ..stamp });
    }
    for min_commit_ts in [10, 12] {
        others.push(LockVersion { min_commit_ts: ts(min_commit_ts), ..stamp });
    }
    for other in others {
        assert!(!is_allowed(&**engine, "a", 10, &[Precondition::LockUnchanged(other)]), "{other:?}");
    }
    // The owner changes its lock; the old version of the lock does not match from then on.
    let later = [
        Lock { write_seq: 2, ..lock(10) },
        Lock { ttl_ms: 3001, ..lock(10) },
        Lock { min_commit_ts: ts(50), ..lock(10) },
        lock(20),
    ];
    for later in later {
        make(&**engine, [put_lock("a", later.clone())]);
        assert!(!is_allowed(&**engine, "a", 10, &[Precondition::LockUnchanged(stamp)]), "{later:?}");
        assert!(is_allowed(&**engine, "a", 10, &[Precondition::LockUnchanged(later.version())]), "{later:?}");
    }
    make(&**engine, [RowChange { lock: CellChange::Delete, ..change("a", 20) }]);
    assert!(!is_allowed(&**engine, "a", 20, &[Precondition::LockUnchanged(lock(20).version())]), "an unlocked row");
}

pub fn no_commit_after_allows_a_commit_at_that_timestamp(engine: &Subject) {
    assert!(is_allowed(&**engine, "a", 30, &[Precondition::NoCommitAfter(ts(0))]), "an absent row");
    for (key, record) in [("a", put(20)), ("b", deletion(20))] {
        make(&**engine, [put_write(key, record)]);
        assert!(!is_allowed(&**engine, key, 30, &[Precondition::NoCommitAfter(ts(0))]));
        assert!(!is_allowed(&**engine, key, 30, &[Precondition::NoCommitAfter(ts(19))]));
        assert!(is_allowed(&**engine, key, 30, &[Precondition::NoCommitAfter(ts(20))]));
        assert!(is_allowed(&**engine, key, 30, &[Precondition::NoCommitAfter(ts(21))]));
        assert!(is_allowed(&**engine, key, 30, &[Precondition::NoCommitAfter(ts(u64::MAX))]));
    }
    make(&**engine, [put_write("a", put(40))]);
    assert!(!is_allowed(&**engine, "a", 30, &[Precondition::NoCommitAfter(ts(39))]), "the newest version counts");
    make(&**engine, [put_write("lock-only", lock_only(20, 30))]);
    for (at, allowed) in [(19, false), (20, false), (29, false), (30, true), (31, true)] {
        assert_eq!(
            is_allowed(&**engine, "lock-only", 30, &[Precondition::NoCommitAfter(ts(at))]),
            allowed,
            "lock-only at 30, checked at {at}"
        );
    }
    make(&**engine, [put_write("lock-only", lock_only(40, 30))]);
    assert!(
        !is_allowed(&**engine, "lock-only", 30, &[Precondition::NoCommitAfter(ts(39))]),
        "the later of the two counts"
    );
}

pub fn no_txn_record_sees_the_record(engine: &Subject) {
    for (key, status) in [("a", TxnRecord::RolledBack), ("b", TxnRecord::Committed(ts(20)))] {
        assert!(is_allowed(&**engine, key, 10, &[Precondition::NoTxnRecord(ts(10))]), "an absent row");
        make(&**engine, [put_status(key, 10, status)]);
        assert!(!is_allowed(&**engine, key, 10, &[Precondition::NoTxnRecord(ts(10))]), "{status:?}");
        assert!(is_allowed(&**engine, key, 9, &[Precondition::NoTxnRecord(ts(9))]), "another transaction");
        assert!(is_allowed(&**engine, key, 11, &[Precondition::NoTxnRecord(ts(11))]), "another transaction");
        make(&**engine, [RowChange { txn_record: CellChange::Delete, ..change(key, 10) }]);
        assert!(is_allowed(&**engine, key, 10, &[Precondition::NoTxnRecord(ts(10))]), "a deleted record");
    }
}

pub fn no_txn_record_sees_the_newest_version(engine: &Subject) {
    for (key, record) in [("a", put(20)), ("b", deletion(20))] {
        make(&**engine, [put_write(key, record)]);
        assert!(!is_allowed(&**engine, key, 19, &[Precondition::NoTxnRecord(ts(19))]));
        assert!(is_allowed(&**engine, key, 18, &[Precondition::NoTxnRecord(ts(18))]), "another transaction");
        assert!(is_allowed(&**engine, key, 20, &[Precondition::NoTxnRecord(ts(20))]), "a commit_ts is not a start_ts");
    }
}

pub fn safe_point_at_most_allows_that_timestamp(engine: &Subject) {
    assert!(is_allowed(&**engine, "a", 10, &[Precondition::SafePointAtMost(ts(0))]), "no safe point");
    engine.advance_safe_point(ts(20)).unwrap();
    assert!(!is_allowed(&**engine, "a", 10, &[Precondition::SafePointAtMost(ts(0))]));
    assert!(!is_allowed(&**engine, "a", 10, &[Precondition::SafePointAtMost(ts(19))]));
    assert!(
        is_allowed(&**engine, "a", 10, &[Precondition::SafePointAtMost(ts(20))]),
        "exactly the safe point survives"
    );
    assert!(is_allowed(&**engine, "a", 10, &[Precondition::SafePointAtMost(ts(21))]));
}

pub fn every_precondition_of_a_change_must_be_met(engine: &Subject) {
    make(&**engine, [put_write("a", put(20))]);
    engine.advance_safe_point(ts(5)).unwrap();
    let holds = [
        Precondition::LockAbsent,
        Precondition::NoCommitAfter(ts(20)),
        Precondition::NoTxnRecord(ts(30)),
        Precondition::SafePointAtMost(ts(5)),
    ];
    assert!(is_allowed(&**engine, "a", 30, &holds));
    let fails = [
        Precondition::LockUnchanged(lock(10).version()),
        Precondition::NoCommitAfter(ts(19)),
        Precondition::NoTxnRecord(ts(19)),
        Precondition::SafePointAtMost(ts(4)),
    ];
    for fails in fails {
        for place in 0..=holds.len() {
            let mut preconditions = holds.to_vec();
            preconditions.insert(place, fails);
            assert!(!is_allowed(&**engine, "a", 30, &preconditions), "{preconditions:?}");
        }
    }
}

pub fn a_refusal_returns_the_row_as_found(engine: &Subject) {
    let locked = Lock { write_seq: 4, ttl_ms: 77, min_commit_ts: ts(44), ..lock(40) };
    make(&**engine, [RowChange { write: CellChange::Put(put(20)), ..put_lock("a", locked.clone()) }]);
    make(&**engine, [put_status("a", 30, TxnRecord::RolledBack)]);
    engine.advance_safe_point(ts(3)).unwrap();
    let found = RowState {
        lock: Some(locked),
        write: Some(put(20)),
        txn_record: Some(TxnRecord::RolledBack),
        safe_point: ts(3),
    };
    let preconditions = [
        Precondition::LockAbsent,
        Precondition::NoCommitAfter(ts(19)),
        Precondition::NoTxnRecord(ts(30)),
        Precondition::SafePointAtMost(ts(2)),
    ];
    for guard in preconditions {
        let request = RowChange { preconditions: [guard].into(), txn_record: CellChange::Delete, ..change("a", 30) };
        let refused = ApplyResult::PreconditionFailed { index: 0, row: Box::new(found.clone()) };
        assert_eq!(engine.apply(&[group([request])]).unwrap(), [refused], "{guard:?}");
    }
    // A refusal returns the transaction record of the change's own transaction.
    let request = RowChange {
        preconditions: [Precondition::LockAbsent].into(),
        lock: CellChange::Put(lock(31)),
        ..change("a", 31)
    };
    let refused =
        ApplyResult::PreconditionFailed { index: 0, row: Box::new(RowState { txn_record: None, ..found.clone() }) };
    assert_eq!(engine.apply(&[group([request])]).unwrap(), [refused]);
    assert_eq!(engine.read_row(&row("a"), ts(30)).unwrap(), found, "a plain read returns the same row");
    let absent = RowState { safe_point: ts(3), ..RowState::default() };
    let request = RowChange {
        preconditions: [Precondition::LockUnchanged(lock(31).version())].into(),
        lock: CellChange::Put(lock(32)),
        ..change("b", 32)
    };
    assert_eq!(
        engine.apply(&[group([request])]).unwrap(),
        [ApplyResult::PreconditionFailed { index: 0, row: Box::new(absent) }]
    );
}

pub fn a_refusal_names_the_first_change_that_failed(engine: &Subject) {
    make(&**engine, [put_lock("b", lock(10)), put_lock("c", lock(11)), put_write("d", put(90))]);
    let conditional = |key: &str, preconditions: &[Precondition]| RowChange {
        preconditions: preconditions.into(),
        write: CellChange::Put(WriteRecord { txn: txn(20), ..put(30) }),
        ..change(key, 20)
    };
    let absent = [Precondition::LockAbsent];
    let not_newer = [Precondition::NoCommitAfter(ts(25))];
    let cases = [
        (vec![conditional("a", &absent), conditional("b", &absent), conditional("c", &absent)], 1, Some(lock(10))),
        (vec![conditional("c", &absent), conditional("b", &absent), conditional("a", &absent)], 0, Some(lock(11))),
        (
            vec![
                conditional("a", &absent),
                conditional("b", &[]),
                conditional("e", &absent),
                conditional("d", &not_newer),
            ],
            3,
            None,
        ),
    ];
    for (changes, first, found) in cases {
        let outcomes = engine.apply(&[group(changes)]).unwrap();
        let [ApplyResult::PreconditionFailed { index, row }] = outcomes.as_slice() else { panic!("{outcomes:?}") };
        assert_eq!((*index, &row.lock), (first, &found));
    }
}
