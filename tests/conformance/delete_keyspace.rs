//! Deleting a keyspace: all of its cells, and no cell of another one.

use percolite::engine::{PageRequest, RowRange};
use percolite::row::{CellChange, KeyspaceId, RowChange, RowKey, TxnRecord};

use crate::common::{Subject, lock, make, put, ts};

const KEYS: [&[u8]; 6] = [b"", b"\0", b"a", b"a\0\xff", b"\xfe\xff\xff\xff\xff\xff", b"\xff\xff\xff\xff\xff"];

fn fill(engine: &Subject, keyspace: u32, keys: &[&[u8]]) {
    for key in keys {
        make(
            &**engine,
            [RowChange {
                lock: CellChange::Put(lock(10)),
                write: CellChange::Put(put(20)),
                data: vec![(ts(0), CellChange::Put(vec![1].into())), (ts(u64::MAX), CellChange::Put(vec![2].into()))],
                txn_record: CellChange::Put(TxnRecord::RolledBack),
                archived_version: Some(put(15)),
                ..RowChange::new(RowKey::new(KeyspaceId(keyspace), key), ts(10))
            }],
        );
    }
}

/// Seven counts of a keyspace: the rows with a lock, with a newest version, with a record, with an
/// old version and with a data cell; then the locks and the versions that scans return.
fn cells(engine: &Subject, keyspace: u32, keys: &[&[u8]]) -> [usize; 7] {
    let view = engine.snapshot().unwrap();
    let rows: Vec<RowKey> = keys.iter().map(|key| RowKey::new(KeyspaceId(keyspace), key)).collect();
    let count = |is_there: &dyn Fn(&RowKey) -> bool| rows.iter().filter(|row| is_there(row)).count();
    let range = RowRange::all();
    let page = PageRequest { range: &range, backwards: false, limit: usize::MAX, cursor: None };
    let own = |row: &RowKey| row.keyspace_id().0 == keyspace;
    [
        count(&|row| view.lock(row).unwrap().is_some()),
        count(&|row| view.write(row).unwrap().is_some()),
        count(&|row| view.txn_record(row, ts(10)).unwrap().is_some()),
        count(&|row| view.version_at(row, ts(99)).unwrap().is_some()),
        count(&|row| view.data(row, ts(0)).unwrap().is_some() || view.data(row, ts(u64::MAX)).unwrap().is_some()),
        view.scan_locks(&page).unwrap().iter().filter(|(row, _)| own(row)).count(),
        view.scan_writes(&page).unwrap().iter().filter(|(row, _)| own(row)).count(),
    ]
}

fn deleting_one_leaves_the_others(engine: &Subject, all: &[u32], deleted: u32, keys: &[&[u8]]) {
    for keyspace in all {
        fill(engine, *keyspace, keys);
        assert_eq!(cells(engine, *keyspace, keys), [keys.len(); 7]);
    }
    engine.write_meta(&[("kept".into(), Some(vec![1]))]).unwrap();
    engine.advance_safe_point(ts(3)).unwrap();
    engine.delete_keyspace(KeyspaceId(deleted)).unwrap();
    for keyspace in all {
        let left = if *keyspace == deleted { 0 } else { keys.len() };
        assert_eq!(cells(engine, *keyspace, keys), [left; 7], "keyspace {keyspace} after {deleted} was deleted");
    }
    assert_eq!(engine.get_meta("kept").unwrap(), Some(vec![1]));
    assert_eq!(engine.safe_point().unwrap(), ts(3));
    // Rows written after the deletion stay.
    fill(engine, deleted, keys);
    assert_eq!(cells(engine, deleted, keys), [keys.len(); 7]);
}

pub fn deleting_a_keyspace_leaves_its_neighbours(engine: &Subject) {
    for deleted in [2, 0, 255, 256, u32::MAX - 1] {
        deleting_one_leaves_the_others(
            engine,
            &[0, 1, 2, 3, 254, 255, 256, 257, u32::MAX - 1, u32::MAX],
            deleted,
            &KEYS,
        );
    }
    engine.delete_keyspace(KeyspaceId(77)).unwrap();
}

pub fn the_last_keyspace_is_deleted(engine: &Subject) {
    // All of these keys are below `ff`. The next case tests the highest keys.
    deleting_one_leaves_the_others(engine, &[0, 1, u32::MAX - 1, u32::MAX], u32::MAX, &KEYS[..5]);
}

pub fn the_last_keyspace_is_deleted_up_to_its_highest_key(engine: &Subject) {
    deleting_one_leaves_the_others(engine, &[0, u32::MAX - 1, u32::MAX], u32::MAX, &KEYS);
}
