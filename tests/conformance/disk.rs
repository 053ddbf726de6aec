//! Reopening: tests that need an engine on a disk.

use std::fs;
use std::path::Path;

use percolite::Timestamp;
use percolite::engine::directory::{DirectoryEngine, DirectoryStorage};
use percolite::engine::local::LocalEngine;
use percolite::engine::{Engine, EngineError};
use percolite::row::{CellChange, KeyspaceId, RowChange, RowKey, TxnRecord};

use crate::common::{Dice, MEMORY, all_writes, change, deletion, lock, make, put, put_status, put_write, row, ts};

fn open(path: &Path) -> Result<DirectoryEngine, EngineError> {
    Ok(LocalEngine::new(DirectoryStorage::open(path, MEMORY)?, true))
}

#[test]
fn reopening_keeps_everything() {
    let directory = tempfile::tempdir().unwrap();
    for round in 0..4u64 {
        let engine = open(directory.path()).unwrap();
        // First the rows of earlier rounds are checked, then new ones are written.
        for key in (0..round).map(|earlier| format!("row {earlier}")) {
            let found = engine.read_row(&row(&key), ts(10)).unwrap();
            assert_eq!((found.lock, found.write), (Some(lock(10)), Some(put(20))));
            assert_eq!((found.txn_record, found.safe_point), (Some(TxnRecord::RolledBack), ts(round)));
            let view = engine.snapshot().unwrap();
            assert_eq!(view.data(&row(&key), ts(10)).unwrap(), Some(vec![7; 5000].into()));
            assert_eq!(view.version_at(&row(&key), ts(99)).unwrap(), Some(put(15)));
        }
        let deleted_row = RowKey::new(KeyspaceId(99), b"deleted_row");
        assert_eq!(engine.read_row(&deleted_row, ts(10)).unwrap().write, None);
        assert_eq!(engine.scan_meta("round/").unwrap().len() as u64, round);
        assert_eq!(engine.gc_candidates(None, Timestamp::MAX, 100).unwrap().len() as u64, 2 * round);

        make(
            &engine,
            [RowChange {
                lock: CellChange::Put(lock(10)),
                write: CellChange::Put(put(20)),
                data: vec![(ts(10), CellChange::Put(vec![7; 5000].into()))],
                txn_record: CellChange::Put(TxnRecord::RolledBack),
                archived_version: Some(put(15)),
                ..change(format!("row {round}"), 10)
            }],
        );
        make(
            &engine,
            [put_write("deleted", deletion(100 + round)), RowChange { row: deleted_row, ..put_write("", put(20)) }],
        );
        engine.delete_keyspace(KeyspaceId(99)).unwrap();
        engine.write_meta(&[(format!("round/{round}"), Some(vec![]))]).unwrap();
        engine.advance_safe_point(ts(round + 1)).unwrap();
        // A process that ends without a sync loses nothing; only a power cut could lose something.
        if round % 2 == 0 {
            engine.sync().unwrap();
        }
    }
}

#[test]
fn reopening_keeps_rows_in_many_files() {
    let directory = tempfile::tempdir().unwrap();
    let mut dice = Dice(1);
    let mut expected = std::collections::BTreeMap::new();
    for _ in 0..3 {
        let engine = open(directory.path()).unwrap();
        for at in 0..4000 {
            let key = format!("{:03}", dice.below(900));
            let write = put(at + 1);
            let data = vec![(ts(1), CellChange::Put(vec![dice.below(256) as u8; 2000].into()))];
            make(&engine, [RowChange { data: data.clone(), ..put_write(&key, write.clone()) }]);
            expected.insert(row(&key), (write, data));
        }
        for (key, (write, data)) in &expected {
            assert_eq!(engine.read_row(key, ts(0)).unwrap().write.as_ref(), Some(write));
            let found = engine.snapshot().unwrap().data(key, ts(1)).unwrap().map(CellChange::Put);
            assert!(found.as_ref() == Some(&data[0].1), "{key:?}");
        }
        assert_eq!(all_writes(&engine).len(), expected.len());
    }
}

#[test]
fn a_store_that_is_open_is_busy() {
    let directory = tempfile::tempdir().unwrap();
    let engine = open(directory.path()).unwrap();
    assert!(matches!(open(directory.path()), Err(EngineError::AlreadyOpen(_))));
    make(&engine, [put_write("a", put(20))]);
    drop(engine);
    assert_eq!(all_writes(&open(directory.path()).unwrap()).len(), 1);
}

#[test]
fn a_store_with_an_open_snapshot_is_busy() {
    let directory = tempfile::tempdir().unwrap();
    let engine = open(directory.path()).unwrap();
    make(&engine, [put_write("a", put(20)), put_status("a", 5, TxnRecord::RolledBack)]);
    let view = engine.snapshot().unwrap();
    drop(engine);
    assert_eq!(view.write(&row("a")).unwrap(), Some(put(20)), "a snapshot keeps the database open");
    match open(directory.path()) {
        Err(EngineError::AlreadyOpen(_)) => {}
        Err(other) => panic!("not AlreadyOpen: {other:?}"),
        Ok(_) => panic!("the store was opened twice"),
    }
    drop(view);
    assert_eq!(all_writes(&open(directory.path()).unwrap()).len(), 1);
}

#[test]
fn a_foreign_or_newer_directory_is_refused_unchanged() {
    let listing = |path: &Path| {
        let mut files: Vec<_> = fs::read_dir(path)
            .unwrap()
            .map(|entry| entry.unwrap())
            .map(|entry| (entry.file_name(), fs::read(entry.path()).unwrap()))
            .collect();
        files.sort();
        files
    };
    let cases: [&[(&str, &str)]; 6] = [
        &[("diary", "dear diary")],
        &[("CURRENT", "MANIFEST-000001\n")],
        &[("PERCOLITE", "percolite store, format 2, build 0.1.0-dev.1, wal 0123456789abcdef\n")],
        &[("PERCOLITE", "percolite store, format 1, log 0123456789abcdef\n")],
        &[("PERCOLITE", "")],
        &[("PERCOLITE", "something else"), ("diary", "x")],
    ];
    for files in cases {
        let directory = tempfile::tempdir().unwrap();
        for (name, text) in files {
            fs::write(directory.path().join(name), text).unwrap();
        }
        let before = listing(directory.path());
        assert!(matches!(open(directory.path()), Err(EngineError::NotAStore(_))), "{files:?}");
        assert_eq!(listing(directory.path()), before, "{files:?}");
    }
}
