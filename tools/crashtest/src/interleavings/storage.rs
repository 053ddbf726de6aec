//! Situations of the storage: what background work does beside writes and syncs.

use std::num::NonZeroU32;
use std::sync::Arc;

use parking_lot::Mutex;
use percolite::CommitProtocol;
use percolite::engine::local::LocalEngine;
use percolite::engine::machine::{MachineFault, SimMachineStorage};
use percolite::engine::storage::{Batch as _, CellReader, Column, Storage};
use percolite::engine::{Engine as _, EngineError, RowRange};

use super::situations::{ONE_MEMTABLE, SMALL_MEMTABLE, buffered, durable};
use super::{World, harness, open};
use crate::violation::Violation;

/// The key of the flush target in the tables.
const FLUSH_TARGET: &[u8] = b"\0flush target";
/// The meta entry of a store that has had a value out of line.
const LONG_VALUES: &str = "long values";
/// Such a value.
const LONG_VALUE_BYTES: usize = 300;

/// A snapshot that background work opens at any time shows what was written before it, and always
/// the same. It is one of the storage, because those of transactions are opened between two writes.
pub fn snapshot_beside_write(world: &World) -> Result<(), Violation> {
    let write = |engine: &LocalEngine<SimMachineStorage>, value: &[u8]| {
        let storage = engine.storage();
        let mut batch = storage.new_batch(0);
        batch.put(Column::Data, b"cell", value);
        storage.write(batch).map_err(harness)
    };
    write(&world.engine, b"old")?;
    let engine = Arc::clone(&world.engine);
    world.spawn("writes", move || write(&engine, b"new"));
    let (engine, scheduler) = (Arc::clone(&world.engine), Arc::clone(&world.scheduler));
    world.spawn("reads", move || {
        let snapshot = engine.storage().snapshot().map_err(harness)?;
        let read = || snapshot.get(Column::Data, b"cell", <[u8]>::to_vec).map_err(harness);
        let first = read()?;
        scheduler.yield_point("second read");
        let second = read()?;
        let is_right = first == second && first.is_some();
        let what = || format!("a snapshot shows {first:?} and then {second:?}");
        if is_right { Ok(()) } else { Err(Violation::new("isolation", what())) }
    });
    world.join()
}

/// The tables do not change while a checkpoint copies them.
pub fn copy_beside_flush(world: &World) -> Result<(), Violation> {
    let (store, rows, engine) = (world.store.clone(), world.rows.clone(), Arc::clone(&world.engine));
    world.spawn("flushes", move || {
        for number in 0..3 {
            let put = store.begin_with(buffered()).and_then(|mut txn| {
                txn.put(&rows, number.to_string(), vec![b'x'; SMALL_MEMTABLE])?;
                txn.commit()
            });
            put.map_err(harness)?;
            engine.storage().run_background_once(&mut 0);
        }
        Ok(())
    });
    let (engine, scheduler) = (Arc::clone(&world.engine), Arc::clone(&world.scheduler));
    world.spawn("copies", move || {
        let mut is_same = false;
        let copied = engine.storage().with_flushed_tables(|tables, _| {
            let before = cells(tables)?;
            scheduler.yield_point("copy");
            is_same = before == cells(tables)?;
            Ok(())
        });
        copied.map_err(harness)?;
        if is_same { Ok(()) } else { Err(Violation::new("atomic checkpoint", "a flush has changed the copied tables")) }
    });
    world.join()
}

/// When the background work has nothing left to do, the sync record covers what a sync has made
/// durable meanwhile.
pub fn record_beside_sync(world: &World) -> Result<(), Violation> {
    let (store, rows) = (world.store.clone(), world.rows.clone());
    world.spawn("commits", move || {
        let committed = store.begin_with(durable()).and_then(|mut txn| {
            txn.put(&rows, "row", "1")?;
            txn.commit()
        });
        committed.map(drop).map_err(harness)
    });
    let engine = Arc::clone(&world.engine);
    world.spawn("records", move || {
        let mut written = 0;
        // The log counts as idle in the second round without a write.
        (0..3).for_each(|_| _ = engine.storage().run_background_once(&mut written));
        Ok(())
    });
    world.join()?;
    let mut written = 0;
    while world.engine.storage().run_background_once(&mut written) {}
    let unrecorded = world.machine.unrecorded_frames();
    let what = || format!("the log is idle, and the sync record does not cover {unrecorded} durable frames");
    if unrecorded == 0 { Ok(()) } else { Err(Violation::new("a damaged log is detected", what())) }
}

/// A checkpoint does not copy tables in which a flush that failed has left a part of a memtable.
pub fn copy_beside_failing_flush(world: &World) -> Result<(), Violation> {
    let (store, rows, engine) = (world.store.clone(), world.rows.clone(), Arc::clone(&world.engine));
    let machine = world.machine.clone();
    world.spawn("flushes", move || {
        // Each call may fail once a flush has failed.
        for number in 0..3 {
            let _ = store.begin_with(buffered()).and_then(|mut txn| {
                txn.put(&rows, number.to_string(), vec![b'x'; SMALL_MEMTABLE])?;
                txn.commit()
            });
        }
        machine.fail(MachineFault::TableWriteRejected, 2, 0);
        engine.storage().run_background_once(&mut 0);
        Ok(())
    });
    let engine = Arc::clone(&world.engine);
    world.spawn("copies", move || {
        let mut found = None;
        let _ = engine.storage().with_flushed_tables(|tables, flushed| {
            let target = tables.get(Column::Meta, FLUSH_TARGET, <[u8]>::to_vec)?;
            found = target.filter(|target| *target != flushed.to_be_bytes()).map(|target| (target, flushed));
            Ok(())
        });
        let what = |(target, flushed)| format!("a part of the flush up to {target:?} is copied, after frame {flushed}");
        found.map_or(Ok(()), |found| Err(Violation::new("atomic checkpoint", what(found))))
    });
    world.join()
}

/// A store that has a value out of line knows it, also after a power cut: otherwise such values
/// would never be deleted.
pub fn long_values(world: &World) -> Result<(), Violation> {
    // In one phase no value is out of line.
    let options = durable().commit_protocol(CommitProtocol::TwoPhase);
    for name in ["one", "two"] {
        let (store, rows, machine) = (world.store.clone(), world.rows.clone(), world.machine.clone());
        world.spawn(name, move || {
            let committed = store.begin_with(options).and_then(|mut txn| {
                txn.put(&rows, name, vec![b'x'; LONG_VALUE_BYTES])?;
                txn.commit()
            });
            if committed.is_ok() && name == "two" {
                machine.crash_with(&mut |_| 0);
            }
            Ok(())
        });
    }
    world.join()?;
    let (store, engine) = open(&world.scheduler, &world.machine, ONE_MEMTABLE)?;
    let rows = store.keyspace("rows").map_err(harness)?;
    let has_long = store.begin().and_then(|txn| txn.get(&rows, "two")).map_err(harness)?.is_some();
    if has_long && engine.get_meta(LONG_VALUES).map_err(harness)?.is_none() {
        return Err(Violation::new("structure", "a store with a value out of line does not know of any"));
    }
    Ok(())
}

/// A sequence hands out no number twice, to two threads at once or after a power cut.
pub fn sequence_beside_loss(world: &World) -> Result<(), Violation> {
    let numbers = Arc::new(Mutex::new(Vec::new()));
    // Each number is a range of its own.
    let size = NonZeroU32::MIN;
    let sequence = world.store.sequence(&world.rows, "numbers").map_err(harness)?.range_size(size);
    for name in ["one", "two"] {
        let (sequence, numbers) = (sequence.clone(), Arc::clone(&numbers));
        world.spawn(name, move || {
            let number = sequence.next().map_err(harness)?;
            numbers.lock().push(number);
            Ok(())
        });
    }
    world.join()?;
    world.machine.crash_with(&mut |_| 0);
    let (store, _engine) = open(&world.scheduler, &world.machine, ONE_MEMTABLE)?;
    let rows = store.keyspace("rows").map_err(harness)?;
    numbers.lock().push(store.sequence(&rows, "numbers").and_then(|again| again.next()).map_err(harness)?);
    let mut numbers = numbers.lock().clone();
    numbers.sort_unstable();
    let is_unique = numbers.windows(2).all(|two| two[0] < two[1]);
    let what = || format!("a sequence has handed out {numbers:?}");
    if is_unique { Ok(()) } else { Err(Violation::new("durability", what())) }
}

fn cells(tables: &impl Storage) -> Result<Vec<[Vec<u8>; 2]>, EngineError> {
    let (snapshot, mut found) = (tables.snapshot()?, Vec::new());
    for column in Column::ALL {
        snapshot.scan(column, &RowRange::all(), false, |key, value| {
            found.push([key.to_vec(), value.to_vec()]);
            true
        })?;
    }
    Ok(found)
}
