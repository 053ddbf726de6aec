//! Random histories of an LSM storage over a simulated disk and simulated tables, compared with a
//! model.
//!
//! Every batch writes its own number into a cell. After a crash this cell shows how many batches
//! are left, and the store must have the state that the model has after the last of these.
//! Histories that fail print their seed: `LSM_SEED` runs that history alone, and `LSM_HISTORIES`
//! sets how many run.

mod model;

use std::sync::atomic::Ordering;

use self::model::*;
use super::background::{Poll, run_once};
use super::*;
use crate::cell::Column;
use crate::disk::{Disk as _, SimDisk};
use crate::engine::EngineError;
use crate::engine::storage::{Batch, CellReader, Storage};

fn run(seed: u64) -> u64 {
    let mut model = Model::new(seed);
    for _ in 0..=model.choices.next_below(4) {
        let storage = model.open().unwrap();
        let fault = model.one_in(3).then(|| (1 + model.choices.next_below(60), model.choices.next()));
        match fault {
            Some((nth, seed)) if seed % 3 > 0 => model.disk.fail_nth(None, nth, seed),
            Some((nth, seed)) if seed % 2 > 0 => model.tables.fail_sync(1 + nth % 4),
            Some((nth, _)) => model.tables.fail_write(1 + nth % 6),
            None => {}
        }
        let mut has_failed = false;
        for _ in 0..model.choices.next_below(120) {
            if model.step(&storage).is_err() {
                assert!(storage.write(model.batch(&storage).0).is_err(), "nothing succeeds after a failure");
                assert!(storage.sync().is_err(), "nothing becomes durable after a failure");
                has_failed = true;
                break;
            }
        }
        model.disk.clear_fault();
        model.crash_and_check(storage, has_failed);
    }
    model.flushed
}

#[test]
fn an_idle_log_gets_a_sync_record_and_a_failed_one_none() {
    let mut model = Model::new(1);
    let storage = model.open().unwrap();
    let shared = &*storage.shared;
    let path = shared.write_path.as_ref().unwrap();
    let mut written = 0;
    let put = || {
        let mut batch = storage.new_batch(0);
        batch.put(Column::Data, b"a", b"b");
        storage.write(batch).and_then(|()| storage.sync())
    };
    // There is no flush thread here, so the test runs rounds of its work. The first one records the
    // new segment.
    assert_eq!(run_once(shared, path, &mut written), Poll::Park);
    put().unwrap();
    path.record_needed.store(true, Ordering::Release);
    // In the first round the log has grown; in the second it has not, so the record is written; the
    // third parks.
    let mut syncs = Vec::new();
    for expected in [Poll::AfterIdle, Poll::Again, Poll::Park] {
        let before = model.disk.call_count();
        assert_eq!(run_once(shared, path, &mut written), expected);
        syncs.push(model.disk.call_count() - before);
    }
    assert_eq!(syncs, [0, 2, 0], "a write and a sync of the record");
    // Another sync of the idle log leads to no second write.
    storage.sync().unwrap();
    path.record_needed.store(true, Ordering::Release);
    let before = model.disk.call_count();
    while storage.run_background_once(&mut written) {}
    assert_eq!(model.disk.call_count(), before);

    model.disk.fail_nth(None, 1, 1);
    put().unwrap_err();
    path.record_needed.store(true, Ordering::Release);
    let before = model.disk.call_count();
    assert_eq!(run_once(shared, path, &mut written), Poll::Park);
    assert_eq!(model.disk.call_count(), before);
}

#[test]
fn incarnations_killed_before_a_flush_do_not_grow_the_log() {
    // The memtable limit is 3,000 bytes. Each incarnation writes 4,000 or 10 bytes, less than twice
    // the limit, so no write has to flush.
    for bytes in [4_000, 10] {
        let mut model = Model::new(5);
        let mut segments_most = 0;
        for number in 0..60_u8 {
            // There is no flush thread, so only the opening can flush.
            let storage = model.open().unwrap();
            let mut batch = storage.new_batch(0);
            batch.put(Column::Write, b"a", &vec![number; bytes]);
            storage.write(batch).unwrap();
            drop(storage);
            model.disk.kill();
            model.tables.crash(u64::from(number));
            let names = model.disk.handle().list().unwrap();
            segments_most = segments_most.max(names.iter().filter(|name| name.ends_with(".segment")).count());
        }
        let at_most = if bytes == 10 { 18 } else { 5 };
        assert!(segments_most <= at_most, "{segments_most} segments, of incarnations that write {bytes} bytes");
        let storage = model.open().unwrap();
        assert_eq!(storage.get(Column::Write, b"a", |content| content[0]).unwrap(), Some(59));
    }
}

/// Two batches, each of which sets the same two cells to its number. The first batch is flushed.
/// The flush of the second batch was interrupted, and the tables durably have only one of its two
/// cells. Also returns the offset of the second batch's frame.
fn with_a_part_in_the_tables() -> (Model, usize) {
    let mut model = Model::new(6);
    let storage = model.open().unwrap();
    let put = |number| {
        let mut batch = storage.new_batch(0);
        batch.put(Column::Data, b"x", &[number; 400]);
        batch.put(Column::History, b"y", &[number; 400]);
        storage.write(batch).and_then(|()| storage.sync())
    };
    put(1).unwrap();
    storage.flush_all().unwrap();
    let offset = storage.shared.write_path.as_ref().unwrap().writer.lock().wal.segment_bytes() as usize;
    put(2).unwrap();
    model.tables.reject_write(2);
    storage.flush_all().unwrap_err();
    drop(storage);
    model.disk.kill();
    model.tables.crash(1);
    let x = model.tables.exclusive_engine().storage().get(Column::Data, b"x", |content| content[0]);
    assert_eq!(x.unwrap(), Some(2), "the tables have a part");
    (model, offset)
}

#[test]
fn a_loss_that_is_partly_in_the_tables_is_always_refused() {
    let (mut model, _) = with_a_part_in_the_tables();
    assert_eq!(model.open().unwrap().get(Column::History, b"y", |content| content[0]).unwrap(), Some(2));
    let (mut model, offset) = with_a_part_in_the_tables();
    model.disk.flip_bits("0000000002.segment", offset + 100, 1);
    let refused = |opened: Result<Store, EngineError>| match opened.map(drop) {
        Err(EngineError::Corruption(text)) => {
            // The error must have no fingerprint, or the command line would offer to accept this
            // loss.
            assert!(text.contains("interrupted flush") && !text.contains("(loss "), "{text}");
        }
        other => panic!("{other:?}"),
    };
    refused(model.open());
    let tables = || model.tables.exclusive_engine().storage().clone();
    refused(LsmStorage::open_read_only(model.disk.handle(), tables(), 7, 1));
    let is_noted = |disk: SimDisk| {
        let mut notes = Vec::new();
        Store::open_for_salvage(disk, tables(), 1, &mut notes).unwrap();
        assert!(notes.iter().any(|note| note.contains("an interrupted flush")), "{notes:?}");
    };
    is_noted(model.disk.handle());
    let disk = model.disk.handle();
    disk.list().unwrap().iter().for_each(|name| disk.remove(name).unwrap());
    is_noted(disk);
}

#[test]
fn a_read_error_of_the_log_does_not_stop_salvage() {
    let mut model = Model::new(7);
    let storage = model.open().unwrap();
    drop(snapshots_of(&storage, 0..3));
    storage.sync().unwrap();
    drop(storage);
    model.disk.kill();
    let mut incomplete = 0;
    for nth in 1..40 {
        let (disk, tables) = (model.disk.handle(), model.tables.exclusive_engine().storage().clone());
        disk.fail_nth(Some(crate::disk::CallKind::Read), nth, 1);
        let mut notes = Vec::new();
        let storage = Store::open_for_salvage(disk.clone(), tables, 1, &mut notes).unwrap();
        let found = storage.get(Column::Write, b"a", |content| content[0]).unwrap();
        assert!(found == Some(2) || !notes.is_empty(), "{found:?} without a note");
        incomplete += u64::from(!notes.is_empty());
        disk.clear_fault();
    }
    assert!(incomplete > 3, "{incomplete} read errors were noted");
}

/// For each number, writes a batch that sets the cell `a` to the number, and then opens a snapshot.
/// Returns each snapshot with its number.
fn snapshots_of(storage: &Store, numbers: std::ops::Range<u8>) -> Vec<(Snapshot, u8)> {
    let write = |number| {
        let mut batch = storage.new_batch(0);
        batch.put(Column::Write, b"a", &[number]);
        storage.write(batch).unwrap();
        (storage.snapshot().unwrap(), number)
    };
    numbers.map(write).collect()
}

/// How many memtables the snapshots keep in memory.
fn pinned_memtables(snapshots: &[(Snapshot, u8)]) -> usize {
    let mut pinned: Vec<_> = snapshots.iter().flat_map(|(snapshot, _)| snapshot.pinned_memtables()).collect();
    pinned.sort_unstable();
    pinned.dedup();
    pinned.len()
}

#[test]
fn a_snapshot_pins_no_flushed_memtable() {
    let mut model = Model::new(2);
    let storage = model.open().unwrap();
    let mut snapshots = vec![(storage.snapshot().unwrap(), 0)];
    for round in 1..4 {
        snapshots.extend(snapshots_of(&storage, round * 10..round * 10 + 2));
        assert_eq!(pinned_memtables(&snapshots), 1);
        storage.flush_all().unwrap();
        assert_eq!(pinned_memtables(&snapshots), 0);
    }
    for (snapshot, number) in &snapshots[1..] {
        assert_eq!(snapshot.get(Column::Write, b"a", <[u8]>::to_vec).unwrap(), Some(vec![*number]));
    }
    assert_eq!(snapshots[0].0.get(Column::Write, b"a", <[u8]>::to_vec).unwrap(), None);
}

#[test]
fn snapshots_without_a_stripe_pin_their_memtable() {
    let mut model = Model::new(3);
    let storage = model.open().unwrap();
    let mut snapshots = snapshots_of(&storage, 0..10);
    storage.flush_all().unwrap();
    assert_eq!(pinned_memtables(&snapshots), 1);
    for (snapshot, number) in &snapshots {
        assert_eq!(snapshot.get(Column::Write, b"a", <[u8]>::to_vec).unwrap(), Some(vec![*number]));
    }
    snapshots.truncate(3);
    assert_eq!(pinned_memtables(&snapshots), 0);
}

#[test]
fn every_crash_leaves_a_prefix_with_all_acknowledged() {
    let number_from = |variable: &str| std::env::var(variable).ok()?.parse::<u64>().ok();
    let seeds = match number_from("LSM_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number_from("LSM_HISTORIES").unwrap_or(3000),
    };
    let mut flushed = 0;
    for seed in seeds.clone() {
        let history = std::panic::AssertUnwindSafe(|| run(seed));
        match std::panic::catch_unwind(history) {
            Ok(sequence) => flushed += u64::from(sequence > 0),
            Err(error) => {
                eprintln!("failed with LSM_SEED={seed}");
                std::panic::resume_unwind(error);
            }
        }
    }
    assert!(seeds.count() < 100 || flushed > 100, "{flushed} histories flushed a memtable");
}

#[test]
#[should_panic(expected = "invariant: an open snapshot is listed under its sequence")]
fn a_snapshot_that_is_not_listed_breaks_an_invariant() {
    let mut model = Model::new(1);
    let storage = model.open().unwrap();
    let snapshot = storage.snapshot().unwrap();
    storage.shared.state.lock().snapshots.clear();
    drop(snapshot);
}
