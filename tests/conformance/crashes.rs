//! Crashes of the simulated machine: all synced batches stay, and a prefix of the others.

use percolite::engine::local::LocalEngine;
use percolite::engine::sim::{SimEngine, SimStorage};
use percolite::engine::{Engine, EngineError};
use percolite::row::{CellChange, KeyspaceId, Lock, Precondition, RowChange, RowKey, TxnRecord, WriteRecord};

use crate::common::{
    Context, Dice, all_writes, change, deletion, group, lock, make, put, put_data, put_lock, put_status, put_write,
    row, ts,
};

/// Batch `number` sets a cell of its own and a counter, in different columns.
fn batch(number: u64) -> [RowChange; 3] {
    [
        put_write(format!("cell {number:04}"), put(number + 10)),
        put_lock("counter", Lock { ttl_ms: number, ..lock(1) }),
        put_data("counter", 1, number.to_be_bytes()),
    ]
}

/// The number of batches in the engine. Fails if an earlier batch is missing or a batch is torn.
fn batches(engine: &dyn Engine) -> u64 {
    let cells = all_writes(engine);
    let count = cells.len() as u64;
    let expected: Vec<_> = (1..=count).map(|number| (row(format!("cell {number:04}")), put(number + 10))).collect();
    assert_eq!(cells, expected, "not a prefix of the written batches");
    let view = engine.snapshot().unwrap();
    let counter = view.lock(&row("counter")).unwrap().map_or(0, |lock| lock.ttl_ms);
    let data =
        view.data(&row("counter"), ts(1)).unwrap().map_or(0, |data| u64::from_be_bytes(data[..].try_into().unwrap()));
    assert_eq!((counter, data), (count, count), "a batch is torn, or a newer one survived an older one");
    count
}

#[test]
fn a_crash_keeps_a_prefix_with_all_synced_batches() {
    let (mut lost_some, mut lost_all, mut lost_none, mut twice) = (0, 0, 0, 0);
    for seed in 0..400 {
        let _context = Context(format!("seed {seed}"));
        let mut dice = Dice(seed);
        let storage = SimStorage::new();
        let (mut written, mut synced) = (0, 0);
        for crash_number in 0..3 {
            let engine = if seed % 2 == 0 { storage.exclusive_engine() } else { storage.shared_engine() };
            assert_eq!(batches(&engine), written);
            for _ in 0..dice.below(12) {
                written += 1;
                make(&engine, batch(written));
                if dice.one_in(4) {
                    engine.sync().unwrap();
                    synced = written;
                }
                // An engine snapshot that was opened and dropped must not change what a crash
                // restores.
                drop(engine.snapshot().unwrap());
            }
            let _snapshot = dice.one_in(2).then(|| engine.snapshot().unwrap());
            assert_eq!(storage.unsynced(), written - synced);
            let crash = storage.crash(dice.below(u64::MAX));
            assert_eq!(crash.unsynced, written - synced);
            let left = batches(&storage.shared_engine());
            assert!(synced <= left && left <= written, "{synced} synced, {written} written, {left} left");
            assert_eq!(crash.lost, written - left);
            assert_eq!(storage.unsynced(), 0, "what is left after a crash is durable");
            match (crash.unsynced, crash.lost) {
                (0, _) => {}
                (_, 0) => lost_none += 1,
                (unsynced, lost) if unsynced == lost => lost_all += 1,
                _ => lost_some += 1,
            }
            twice += u64::from(crash_number > 0 && crash.lost > 0);
            // An immediate second crash loses nothing.
            assert_eq!(storage.crash(dice.below(u64::MAX)).lost, 0);
            (written, synced) = (left, left);
            assert_eq!(batches(&storage.exclusive_engine()), left);
        }
    }
    for (what, count) in [("some", lost_some), ("all", lost_all), ("none", lost_none), ("a second time", twice)] {
        assert!(count > 50, "only {count} of the crashes lost {what} of the unsynced batches");
    }
}

#[test]
fn a_crash_can_keep_any_prefix() {
    for choice in 0..=10 {
        let storage = SimStorage::new();
        let engine = storage.shared_engine();
        for number in 1..=15 {
            make(&engine, batch(number));
            if number == 5 {
                engine.sync().unwrap();
            }
        }
        assert_eq!(storage.crash(choice).unsynced, 10);
        assert_eq!(batches(&engine), 5 + choice);
    }
}

#[test]
fn a_crash_undoes_unsynced_replacements_and_deletions() {
    let storage = SimStorage::new();
    let engine = storage.shared_engine();
    let before = |engine: &SimEngine| {
        let view = engine.snapshot().unwrap();
        assert_eq!(engine.read_row(&row("a"), ts(5)).unwrap().write, Some(put(20)));
        assert_eq!(engine.read_row(&row("b"), ts(5)).unwrap().lock, Some(lock(10)));
        assert_eq!(view.txn_record(&row("c"), ts(5)).unwrap(), Some(TxnRecord::RolledBack));
        assert_eq!(view.data(&row("d"), ts(5)).unwrap(), Some("d".into()));
        assert_eq!(view.write(&row("new")).unwrap(), None);
        assert_eq!(engine.get_meta("m").unwrap(), Some(vec![1]));
        assert_eq!(engine.safe_point().unwrap(), ts(3));
        assert_eq!(engine.gc_candidates(None, ts(99), 9).unwrap(), []);
    };
    make(&engine, [put_write("a", put(20)), put_lock("b", lock(10)), put_status("c", 5, TxnRecord::RolledBack)]);
    make(&engine, [put_data("d", 5, "d")]);
    engine.write_meta(&[("m".into(), Some(vec![1]))]).unwrap();
    engine.advance_safe_point(ts(3)).unwrap();
    engine.sync().unwrap();
    before(&engine);
    for round in 0..3 {
        make(&engine, [put_write("a", deletion(30 + round)), put_write("new", put(40))]);
        make(&engine, [RowChange { lock: CellChange::Delete, ..change("b", 10) }]);
        make(&engine, [RowChange { txn_record: CellChange::Delete, ..change("c", 5) }]);
        make(&engine, [RowChange { data: vec![(ts(5), CellChange::Delete)], ..change("d", 5) }]);
        engine.write_meta(&[("m".into(), None), ("n".into(), Some(vec![]))]).unwrap();
        engine.advance_safe_point(ts(50)).unwrap();
        engine.delete_keyspace(KeyspaceId(7)).unwrap();
        make(&engine, [put_write("a", put(60)), put_write("new", put(60))]);
        drop(engine.snapshot().unwrap());
        assert_eq!(storage.crash(0).lost, 8, "each of these is one batch");
        before(&engine);
    }
}

fn assert_undetermined<T: std::fmt::Debug>(answer: Result<T, EngineError>) {
    assert!(matches!(answer, Err(EngineError::Undetermined(_))), "{answer:?}");
}

#[test]
fn only_a_shared_engine_survives_a_crash() {
    let storage = SimStorage::new();
    let (embedded, shared) = (storage.exclusive_engine(), storage.shared_engine());
    make(&embedded, batch(1));
    make(&shared, batch(2));
    assert!(embedded.capabilities().exclusive && !shared.capabilities().exclusive);
    let view = embedded.snapshot().unwrap();
    embedded.sync().unwrap();
    storage.crash(0);
    let conditional = RowChange { preconditions: [Precondition::LockAbsent].into(), ..put_write("a", put(99)) };
    assert_undetermined(embedded.apply(&[group(batch(3))]));
    assert_undetermined(embedded.apply(&[group([conditional])]));
    assert_undetermined(embedded.snapshot().map(drop));
    assert_undetermined(embedded.read_row(&row("counter"), ts(1)));
    assert_undetermined(embedded.sync());
    assert_undetermined(embedded.get_meta("m"));
    assert_undetermined(embedded.scan_meta(""));
    assert_undetermined(embedded.write_meta(&[("m".into(), Some(vec![]))]));
    assert_undetermined(embedded.safe_point());
    assert_undetermined(embedded.advance_safe_point(ts(5)));
    assert_undetermined(embedded.gc_candidates(None, ts(5), 5));
    assert_undetermined(embedded.delete_keyspace(KeyspaceId(7)));
    assert_undetermined(view.lock(&row("counter")));
    assert_undetermined(view.data(&row("counter"), ts(1)));
    assert_eq!(batches(&shared), 2, "calls of the crashed engine must have no effect");
    assert_eq!(shared.safe_point().unwrap(), ts(0));
    make(&shared, batch(3));
    let reopened = storage.exclusive_engine();
    assert_eq!(batches(&reopened), 3);
    make(&reopened, batch(4));
    assert_undetermined(embedded.sync());
    assert_eq!(batches(&shared), 4);
    drop(view);
    assert_eq!(batches(&reopened), 4);
}

/// After a crash a snapshot of a shared engine fails or shows the same rows as before, never
/// others.
#[test]
fn a_pre_crash_snapshot_never_shows_later_writes() {
    let storage = SimStorage::new();
    let engine = storage.shared_engine();
    make(&engine, [put_write("a", put(10))]);
    engine.sync().unwrap();
    for at in 11..=15 {
        make(&engine, [put_write("a", put(at))]);
    }
    let view = engine.snapshot().unwrap();
    assert_eq!(view.write(&row("a")).unwrap(), Some(put(15)));
    storage.crash(0);
    for at in 21..=30 {
        make(&engine, [put_write("a", put(at)), put_write("b", put(at))]);
        if let Ok(seen) = view.write(&row("a")) {
            assert!(seen == Some(put(15)) || seen == Some(put(10)), "a snapshot from before the crash shows {seen:?}");
        }
        if let Ok(seen) = view.write(&row("b")) {
            assert_eq!(seen, None, "a snapshot from before the crash shows a row written after it");
        }
    }
}

#[test]
fn cells_are_freed_only_when_unreachable() {
    for seed in 0..200 {
        let _context = Context(format!("seed {seed}"));
        let mut dice = Dice(seed);
        let storage = SimStorage::new();
        let engine: SimEngine = LocalEngine::new(SimStorage::clone(&storage), false);
        let mut views = Vec::new();
        // The state of the two rows after each batch, by the batch's number.
        let mut past: Vec<[Option<WriteRecord>; 2]> = vec![[None, None]];
        let keys: [RowKey; 2] = [row("a"), row("b")];
        for number in 1..60 {
            let which = dice.index(2);
            let edit = if dice.one_in(3) { CellChange::Delete } else { CellChange::Put(put(number + 5)) };
            let mut now = past.last().unwrap().clone();
            now[which] = if let CellChange::Put(write) = &edit { Some(write.clone()) } else { None };
            past.push(now.clone());
            make(&engine, [RowChange { write: edit, ..RowChange::new(keys[which].clone(), ts(1)) }]);
            if dice.one_in(3) {
                views.push((now, engine.snapshot().unwrap()));
            }
            if dice.one_in(5) {
                engine.sync().unwrap();
            }
            if dice.one_in(4) && !views.is_empty() {
                views.swap_remove(dice.index(views.len()));
            }
            for (then, view) in &views {
                for (key, write) in keys.iter().zip(then) {
                    assert_eq!(view.write(key).unwrap(), *write);
                }
            }
        }
        views.clear();
        let crash = storage.crash(dice.below(u64::MAX));
        let left = &past[past.len() - 1 - crash.lost as usize];
        for (key, write) in keys.iter().zip(left) {
            assert_eq!(engine.snapshot().unwrap().write(key).unwrap(), *write);
        }
    }
}
