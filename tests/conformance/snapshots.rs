//! Engine snapshots: consistent, and unchanged while they exist.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::ScopedJoinHandle;

use percolite::engine::{EngineSnapshot, PageRequest, RowRange};
use percolite::row::{CellChange, Lock, RowChange, RowKey, StoredValue, TxnRecord, Value, WriteRecord};

use crate::common::{KEYSPACE, Pace, Subject, change, inline, lock, make, put, row, ts};

const KEYS: [&str; 4] = ["a", "b", "c", "d"];

/// Sets every column of the row to a value that contains `at`.
fn everything(key: &str, at: u64) -> RowChange {
    RowChange {
        lock: CellChange::Put(lock(at)),
        write: CellChange::Put(put(at)),
        data: vec![(ts(1), CellChange::Put(at.to_be_bytes().into()))],
        txn_record: CellChange::Put(TxnRecord::Committed(ts(at))),
        archived_version: Some(WriteRecord { value: Some(inline(at.to_string())), ..put(3) }),
        ..change(key, 1)
    }
}

/// Everything that an engine snapshot shows of the rows.
fn dump(
    view: &dyn EngineSnapshot,
) -> Vec<(Option<Lock>, Option<WriteRecord>, Option<TxnRecord>, Option<Value>, Option<StoredValue>, bool)> {
    let range = RowRange::all();
    let mut seen = Vec::new();
    for backwards in [false, true] {
        let page = PageRequest { range: &range, backwards, limit: 100, cursor: None };
        let writes: Vec<(RowKey, WriteRecord)> = view.scan_writes(&page).unwrap();
        let locks: Vec<(RowKey, Lock)> = view.scan_locks(&page).unwrap();
        for key in KEYS.map(row) {
            let write = writes.iter().find(|(found, _)| *found == key).map(|(_, write)| write.clone());
            let lock = locks.iter().find(|(found, _)| *found == key).map(|(_, lock)| lock.clone());
            seen.push((lock, write, None, None, None, backwards));
        }
    }
    for key in KEYS.map(row) {
        let version = view.version_at(&key, ts(u64::MAX)).unwrap().and_then(|version| version.value);
        seen.push((
            view.lock(&key).unwrap(),
            view.write(&key).unwrap(),
            view.txn_record(&key, ts(1)).unwrap(),
            view.data(&key, ts(1)).unwrap(),
            version,
            false,
        ));
    }
    seen
}

pub fn a_snapshot_is_unchanged_by_later_writes(engine: &Subject) {
    let mut kept: Vec<(u64, Arc<dyn EngineSnapshot>, Vec<_>)> = Vec::new();
    let keep = |kept: &mut Vec<_>, at| {
        let view = engine.snapshot().unwrap();
        let now = dump(view.as_ref());
        kept.push((at, view, now));
    };
    keep(&mut kept, 0);
    for at in 10..40 {
        match at % 5 {
            0 => make(&**engine, [everything("a", at), everything("b", at)]),
            1 => make(&**engine, [everything("c", at)]),
            2 => make(
                &**engine,
                [RowChange {
                    lock: CellChange::Delete,
                    write: CellChange::Delete,
                    txn_record: CellChange::Delete,
                    data: vec![(ts(1), CellChange::Delete)],
                    ..change("a", 1)
                }],
            ),
            3 => make(&**engine, [everything("d", at), everything("c", at)]),
            _ if at == 34 => engine.delete_keyspace(KEYSPACE).unwrap(),
            _ => engine.sync().unwrap(),
        }
        keep(&mut kept, at);
        for (at, view, then) in &kept {
            assert!(dump(view.as_ref()) == *then, "the snapshot taken after change {at} has changed");
        }
        // Snapshots end in any order.
        if kept.len() > 6 {
            kept.remove((at as usize * 7) % kept.len());
        }
    }
    let different: Vec<_> = kept.windows(2).filter(|pair| pair[0].2 != pair[1].2).collect();
    assert!(!different.is_empty(), "no snapshot differs from the next, so the test shows nothing");
}

pub fn a_snapshot_shows_everything_applied_before_it(engine: &Subject) {
    for at in 10..60 {
        make(&**engine, [everything("a", at)]);
        let view = engine.snapshot().unwrap();
        let row = row("a");
        assert_eq!(view.lock(&row).unwrap(), Some(lock(at)));
        assert_eq!(view.write(&row).unwrap(), Some(put(at)));
        assert_eq!(view.txn_record(&row, ts(1)).unwrap(), Some(TxnRecord::Committed(ts(at))));
        assert_eq!(view.data(&row, ts(1)).unwrap(), Some(at.to_be_bytes().into()));
        assert_eq!(view.version_at(&row, ts(5)).unwrap().unwrap().value, Some(inline(at.to_string())));
    }
}

pub fn a_snapshot_is_consistent_across_columns_and_rows(engine: &Subject) {
    const ROUNDS_MAX: u64 = 1_000_000;
    const ROUNDS: u64 = 15;
    let done = AtomicBool::new(false);
    let check = |view: &dyn EngineSnapshot| {
        let mut rounds = Vec::new();
        for key in KEYS.map(row) {
            rounds.push(view.write(&key).unwrap().map(|write| write.commit_ts.to_u64()));
            rounds.push(view.lock(&key).unwrap().map(|lock| lock.txn.start_ts.to_u64()));
            rounds.push(view.data(&key, ts(1)).unwrap().map(|data| u64::from_be_bytes(data[..].try_into().unwrap())));
            rounds.push(view.txn_record(&key, ts(1)).unwrap().map(|status| match status {
                TxnRecord::Committed(at) => at.to_u64(),
                TxnRecord::RolledBack => 0,
            }));
            rounds.push(view.version_at(&key, ts(5)).unwrap().map(|version| match version.value {
                Some(StoredValue::Inline(bytes)) => String::from_utf8(bytes.to_vec()).unwrap().parse().unwrap(),
                _ => 0,
            }));
        }
        let page = PageRequest { range: &RowRange::all(), backwards: false, limit: 100, cursor: None };
        rounds.extend(view.scan_writes(&page).unwrap().iter().map(|(_, write)| Some(write.commit_ts.to_u64())));
        rounds.extend(view.scan_locks(&page).unwrap().iter().map(|(_, lock)| Some(lock.txn.start_ts.to_u64())));
        rounds.dedup();
        assert_eq!(rounds.len(), 1, "one snapshot shows several rounds: {rounds:?}");
        rounds[0].unwrap()
    };
    make(&**engine, KEYS.map(|key| everything(key, 9)));
    let mut last = 9;
    let pace = Pace::default();
    std::thread::scope(|scope| {
        let reader = || {
            let (mut seen, mut last) = (0, 0);
            while seen < ROUNDS && !done.load(Ordering::Relaxed) {
                let round = check(engine.snapshot().unwrap().as_ref());
                pace.looked();
                assert!(round >= last, "a later snapshot shows an earlier round: {round} after {last}");
                seen += u64::from(round != last);
                last = round;
            }
            seen
        };
        let readers = [scope.spawn(reader), scope.spawn(reader)];
        while last < ROUNDS_MAX && !readers.iter().all(ScopedJoinHandle::is_finished) {
            last += 1;
            make(&**engine, KEYS.map(|key| everything(key, last)));
            if last % 8 == 0 {
                pace.wait(|| readers.iter().any(ScopedJoinHandle::is_finished));
            }
        }
        done.store(true, Ordering::Relaxed);
        for reader in readers {
            assert_eq!(reader.join().unwrap(), ROUNDS, "the reader saw too few rounds");
        }
    });
    assert_eq!(check(engine.snapshot().unwrap().as_ref()), last);
}
