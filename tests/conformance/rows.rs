//! Rows: their cells in each column, their records and their old versions.

use percolite::engine::storage::Column;
use percolite::row::{CellChange, Lock, LockType, RowChange, RowState, StoredValue, TxnRecord, WriteRecord};
use percolite::{RowKey, Value};

use crate::common::{
    Subject, change, deletion, inline, lock, make, put, put_data, put_lock, put_status, put_version, put_write, row, ts,
};

pub fn absent_keys_have_no_cells(engine: &Subject) {
    let look = |key: &str| {
        let (view, row) = (engine.snapshot().unwrap(), row(key));
        assert_eq!(engine.read_row(&row, ts(10)).unwrap(), RowState::default());
        assert_eq!(view.lock(&row).unwrap(), None);
        assert_eq!(view.write(&row).unwrap(), None);
        assert_eq!(view.txn_record(&row, ts(10)).unwrap(), None);
        assert_eq!(view.data(&row, ts(10)).unwrap(), None);
        assert_eq!(view.version_at(&row, ts(u64::MAX)).unwrap(), None);
    };
    look("b");
    let neighbours = ["a", "c", "", "b\0"];
    make(
        &**engine,
        neighbours.map(|key| RowChange {
            write: CellChange::Put(put(20)),
            txn_record: CellChange::Put(TxnRecord::RolledBack),
            archived_version: Some(put(15)),
            data: vec![(ts(10), CellChange::Put(b"data".into()))],
            ..put_lock(key, lock(10))
        }),
    );
    look("b");
    assert_eq!(engine.get_meta("nothing").unwrap(), None);
}

pub fn columns_are_put_and_deleted_independently(engine: &Subject) {
    let row = row("a");
    let state = || {
        let view = engine.snapshot().unwrap();
        let found = engine.read_row(&row, ts(10)).unwrap();
        assert_eq!(found.lock, view.lock(&row).unwrap());
        assert_eq!(found.write, view.write(&row).unwrap());
        assert_eq!(found.txn_record, view.txn_record(&row, ts(10)).unwrap());
        (
            found.lock,
            found.write,
            found.txn_record,
            view.data(&row, ts(10)).unwrap(),
            view.version_at(&row, ts(99)).unwrap(),
        )
    };
    let rolled_back = Some(TxnRecord::RolledBack);
    let data = Some(Value::from("data"));
    make(&**engine, [put_lock("a", lock(10))]);
    assert_eq!(state(), (Some(lock(10)), None, None, None, None));
    make(&**engine, [put_write("a", put(20))]);
    assert_eq!(state(), (Some(lock(10)), Some(put(20)), None, None, None));
    make(&**engine, [put_status("a", 10, TxnRecord::RolledBack)]);
    make(&**engine, [put_data("a", 10, "data")]);
    make(&**engine, [put_version("a", put(15))]);
    assert_eq!(state(), (Some(lock(10)), Some(put(20)), rolled_back, data.clone(), Some(put(15))));
    make(&**engine, [RowChange { lock: CellChange::Delete, ..change("a", 10) }]);
    assert_eq!(state(), (None, Some(put(20)), rolled_back, data.clone(), Some(put(15))));
    make(&**engine, [RowChange { write: CellChange::Delete, ..change("a", 10) }]);
    assert_eq!(state(), (None, None, rolled_back, data.clone(), Some(put(15))));
    make(&**engine, [RowChange { txn_record: CellChange::Delete, ..change("a", 10) }]);
    assert_eq!(state(), (None, None, None, data, Some(put(15))));
    make(&**engine, [RowChange { data: vec![(ts(10), CellChange::Delete)], ..change("a", 10) }]);
    assert_eq!(state(), (None, None, None, None, Some(put(15))));
    // Changes of all columns at once: deletes of absent cells, and then puts that replace each
    // other.
    make(
        &**engine,
        [RowChange {
            lock: CellChange::Delete,
            write: CellChange::Delete,
            txn_record: CellChange::Delete,
            ..change("a", 10)
        }],
    );
    for at in [20, 30] {
        let all = RowChange {
            lock: CellChange::Put(lock(at)),
            write: CellChange::Put(deletion(at)),
            data: vec![(ts(10), CellChange::Put(vec![at as u8].into())), (ts(11), CellChange::Keep)],
            txn_record: CellChange::Put(TxnRecord::Committed(ts(at))),
            archived_version: Some(put(at + 50)),
            ..change("a", 10)
        };
        make(&**engine, [all]);
        let committed = Some(TxnRecord::Committed(ts(at)));
        assert_eq!(
            state(),
            (Some(lock(at)), Some(deletion(at)), committed, Some([at as u8].into()), Some(put(at + 50)))
        );
    }
    assert_eq!(engine.snapshot().unwrap().data(&row, ts(11)).unwrap(), None);
}

pub fn data_cells_are_put_and_deleted_by_start_ts(engine: &Subject) {
    let row = row("a");
    let present = || -> Vec<u64> {
        let view = engine.snapshot().unwrap();
        (0..40).filter(|at| view.data(&row, ts(*at)).unwrap().is_some()).collect()
    };
    make(&**engine, [put_data("a", 10, "ten")]);
    make(&**engine, [put_data("a", 20, "twenty"), put_data("b", 20, "other row")]);
    make(&**engine, [put_data("a", 30, "thirty")]);
    assert_eq!(present(), [10, 20, 30]);
    assert_eq!(engine.snapshot().unwrap().data(&row, ts(20)).unwrap(), Some("twenty".into()));
    // One change may have data cells of several transactions: a one-phase commit puts the data cell
    // of its own value, and deletes the data cell of the version that it replaces.
    let data = vec![(ts(20), CellChange::Delete), (ts(35), CellChange::Put(b"new".into())), (ts(30), CellChange::Keep)];
    make(&**engine, [RowChange { data, ..change("a", 35) }]);
    assert_eq!(present(), [10, 30, 35]);
    assert_eq!(engine.snapshot().unwrap().data(&crate::common::row("b"), ts(20)).unwrap(), Some("other row".into()));
    make(&**engine, [put_data("a", 30, "")]);
    assert_eq!(engine.snapshot().unwrap().data(&row, ts(30)).unwrap(), Some("".into()), "an empty value is a value");
    make(
        &**engine,
        [RowChange { data: [10, 30, 35].map(|at| (ts(at), CellChange::Delete)).to_vec(), ..change("a", 35) }],
    );
    assert_eq!(present(), [0; 0]);
}

pub fn records_and_versions_are_independent(engine: &Subject) {
    let row = row("a");
    let versions = [11, 21, 31];
    let records = [
        (10, TxnRecord::Committed(ts(11))),
        (16, TxnRecord::RolledBack),
        (20, TxnRecord::RolledBack),
        (30, TxnRecord::RolledBack),
    ];
    for at in versions {
        make(&**engine, [put_version("a", put(at))]);
    }
    for (at, status) in records {
        make(&**engine, [put_status("a", at, status)]);
    }
    let view = engine.snapshot().unwrap();
    let newest = |upto: u64| versions.into_iter().filter(|at| *at <= upto).max().map(put);
    for upto in (0..50).chain([u64::MAX - 1, u64::MAX]) {
        assert_eq!(view.version_at(&row, ts(upto)).unwrap(), newest(upto), "at or below {upto}");
    }
    for (at, status) in records {
        assert_eq!(view.txn_record(&row, ts(at)).unwrap(), Some(status));
        assert_eq!(view.txn_record(&row, ts(at + 2)).unwrap(), None);
    }
    assert_eq!(view.write(&row).unwrap(), None, "history is not the newest version");
    // Deleting a record leaves the versions and the other records.
    make(&**engine, [RowChange { txn_record: CellChange::Delete, ..change("a", 20) }]);
    let view = engine.snapshot().unwrap();
    assert_eq!(view.version_at(&row, ts(25)).unwrap(), Some(put(21)));
    assert_eq!(view.txn_record(&row, ts(20)).unwrap(), None);
    assert_eq!(view.txn_record(&row, ts(16)).unwrap(), Some(TxnRecord::RolledBack));
    // A version at the highest timestamp, and a record at the lowest one.
    let last = WriteRecord { commit_ts: ts(u64::MAX), ..put(41) };
    make(&**engine, [put_version("z", last.clone()), put_status("y", 0, TxnRecord::RolledBack)]);
    let view = engine.snapshot().unwrap();
    assert_eq!(view.version_at(&crate::common::row("z"), ts(u64::MAX)).unwrap(), Some(last));
    assert_eq!(view.version_at(&crate::common::row("z"), ts(u64::MAX - 1)).unwrap(), None);
    assert_eq!(view.txn_record(&crate::common::row("y"), ts(0)).unwrap(), Some(TxnRecord::RolledBack));
}

pub fn rows_that_are_prefixes_of_each_other_never_mix(engine: &Subject) {
    let keys: [&[u8]; 9] = [b"", b"a", b"a\0", b"a\0\0", b"a\0\x01", b"a\0\xff", b"a\x01", b"a\xff", b"\xff"];
    for (number, key) in (0u64..).zip(keys) {
        let at = 1000 * (number + 1);
        make(&**engine, [put_data(key, at, at.to_be_bytes()), put_version(format!("unrelated {number}"), put(at))]);
        make(&**engine, [put_version(key, put(at + 1))]);
        make(&**engine, [put_status(key, at, TxnRecord::RolledBack)]);
        make(&**engine, [put_lock(key, lock(at))]);
        make(&**engine, [put_write(key, put(at + 1))]);
    }
    let view = engine.snapshot().unwrap();
    for (number, key) in (0u64..).zip(keys) {
        let own = 1000 * (number + 1);
        for other in (0u64..).zip(keys).map(|(number, _)| 1000 * (number + 1)) {
            let is_own = own == other;
            assert_eq!(view.data(&row(key), ts(other)).unwrap().is_some(), is_own, "{key:?} {other}");
            assert_eq!(view.txn_record(&row(key), ts(other)).unwrap().is_some(), is_own, "{key:?} {other}");
        }
        assert_eq!(view.version_at(&row(key), ts(u64::MAX)).unwrap(), Some(put(own + 1)), "{key:?}");
        assert_eq!(view.version_at(&row(key), ts(own)).unwrap(), None, "{key:?}");
        assert_eq!(view.lock(&row(key)).unwrap(), Some(lock(own)));
        assert_eq!(view.write(&row(key)).unwrap(), Some(put(own + 1)));
    }
}

pub fn keys_and_values_of_any_bytes_and_size_are_read_back(engine: &Subject) {
    let every_byte: Vec<u8> = (0..=255).collect();
    let long = vec![0; 20_000];
    for key in [&b""[..], b"\0", b"\xff\xff\xff\xff\xff", &every_byte, &long] {
        for value in [&b""[..], b"\0", &every_byte, &vec![0xff; 300_000]] {
            let written = WriteRecord { value: Some(inline(value)), ..put(20) };
            let intent = LockType::Put(inline(value));
            let locked = Lock { primary: row(key), lock_type: intent, ..lock(30) };
            make(&**engine, [RowChange { write: CellChange::Put(written.clone()), ..put_lock(key, locked.clone()) }]);
            make(&**engine, [put_data(key, 30, value)]);
            let found = engine.read_row(&row(key), ts(30)).unwrap();
            assert!(found.lock == Some(locked) && found.write == Some(written), "{} bytes", value.len());
            assert_eq!(engine.snapshot().unwrap().data(&row(key), ts(30)).unwrap().as_deref(), Some(value));
        }
    }
    for intent in [LockType::LockOnly, LockType::Delete, LockType::Put(StoredValue::OutOfLine)] {
        let locked =
            Lock { lock_type: intent, write_seq: u32::MAX, ttl_ms: u64::MAX, min_commit_ts: ts(u64::MAX), ..lock(50) };
        make(&**engine, [put_lock("k", locked.clone())]);
        assert_eq!(engine.read_row(&row("k"), ts(50)).unwrap().lock, Some(locked));
    }
}

pub fn multi_get_matches_single_gets(engine: &Subject) {
    const ROWS: usize = 700;
    let key = |number: usize| format!("{:03}", number % ROWS);
    make(&**engine, (0..ROWS).step_by(2).map(|number| put_write(key(number), put(20 + number as u64))));
    make(&**engine, (0..ROWS).step_by(3).map(|number| put_lock(key(number), lock(10 + number as u64))));
    let view = engine.snapshot().unwrap();
    make(&**engine, (0..ROWS).step_by(4).map(|number| put_write(key(number), put(9000))));
    // The rows are unordered; some are repeated and some are absent.
    let rows: Vec<RowKey> = (0..2 * ROWS).map(|number| row(key(number * 331))).collect();
    for column in [Column::Write, Column::Lock] {
        let alone: Vec<Option<Vec<u8>>> = rows
            .iter()
            .map(|row| {
                let mut found = None;
                view.get_cell(column, row, &mut |content| found = Some(content.to_vec())).unwrap();
                found
            })
            .collect();
        for count in [0, 1, 7, 8, 32, 256, 257, rows.len()] {
            let requested: Vec<&RowKey> = rows[..count].iter().collect();
            let mut found = vec![None; count];
            let on_cell = &mut |number: usize, content: &[u8]| found[number] = Some(content.to_vec());
            view.multi_get_cell(column, &requested, on_cell).unwrap();
            assert_eq!(found, alone[..count], "{count} of {column:?}");
        }
    }
}
