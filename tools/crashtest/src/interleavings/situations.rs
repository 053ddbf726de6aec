//! The situations.

use std::sync::Arc;
use std::time::Duration;

use percolite::engine::storage::{Batch as _, CellReader, Column, Storage};
use percolite::engine::{EngineError, RowRange};
use percolite::{CancelToken, Durability, ErrorKind, LockOptions, LockWaitPolicy, TxnOptions};

use super::{Situation, World, harness, open};
use crate::violation::Violation;

/// The longest wait for an event. It is virtual time.
const WAIT_MAX: Duration = Duration::from_secs(100);
/// An event that has happened must end its wait within this time.
const LATE: Duration = Duration::from_secs(10);
/// No memtable is switched.
const ONE_MEMTABLE: usize = 1 << 20;
/// A memtable is switched after a commit or two.
const SMALL_MEMTABLE: usize = 300;

pub const SITUATIONS: &[Situation] = &[
    Situation { name: "cancel-beside-wait", memtable_bytes: ONE_MEMTABLE, run: cancel_beside_wait },
    Situation { name: "loss-beside-wait", memtable_bytes: ONE_MEMTABLE, run: loss_beside_wait },
    Situation { name: "release-beside-wait", memtable_bytes: ONE_MEMTABLE, run: release_beside_wait },
    Situation { name: "takeover-beside-fenced", memtable_bytes: ONE_MEMTABLE, run: takeover_beside_fenced },
    Situation { name: "increments", memtable_bytes: ONE_MEMTABLE, run: increments },
    Situation { name: "close-beside-commit", memtable_bytes: ONE_MEMTABLE, run: close_beside_commit },
    Situation { name: "snapshot-beside-write", memtable_bytes: ONE_MEMTABLE, run: snapshot_beside_write },
    Situation { name: "copy-beside-flush", memtable_bytes: SMALL_MEMTABLE, run: copy_beside_flush },
];

fn buffered() -> TxnOptions {
    TxnOptions::default().durability(Durability::Buffered)
}

fn durable() -> TxnOptions {
    TxnOptions::default().durability(Durability::Sync)
}

fn wait() -> LockOptions {
    LockOptions::exclusive().wait(LockWaitPolicy::Timeout(WAIT_MAX))
}

fn waits_end(details: String) -> Violation {
    Violation::new("lock: waits end", details)
}

/// A wait for a lock that does not become free ends when it is cancelled.
fn cancel_beside_wait(world: &World) -> Result<(), Violation> {
    let (store, cancel, now) = (world.store.clone(), CancelToken::default(), world.now());
    world.keep(world.store.lock("lock").map_err(harness)?);
    let options = wait().cancel_token(&cancel);
    world.spawn("waits", move || {
        let began = now();
        match store.lock_with("lock", options) {
            Err(error) if matches!(error.kind(), ErrorKind::Cancelled(_)) && now().saturating_sub(began) < LATE => {
                Ok(())
            }
            other => {
                Err(waits_end(format!("{other:?} after {:?} instead of a cancellation", now().saturating_sub(began))))
            }
        }
    });
    world.spawn("cancels", move || {
        cancel.cancel();
        Ok(())
    });
    world.join()
}

/// A wait for the loss of a lock ends when the lock is lost.
fn loss_beside_wait(world: &World) -> Result<(), Violation> {
    let (store, now) = (world.store.clone(), world.now());
    let guard = world.store.lock("lock").map_err(harness)?;
    let token = guard.token();
    world.spawn("waits", move || {
        let began = now();
        let is_lost = guard.wait_lost(WAIT_MAX);
        let took = now().saturating_sub(began);
        if is_lost && took < LATE { Ok(()) } else { Err(waits_end(format!("lost: {is_lost}, after {took:?}"))) }
    });
    world.spawn("ends", move || store.force_unlock("lock", token).map(drop).map_err(harness));
    world.join()
}

/// A wait for a lock ends when the lock is released.
fn release_beside_wait(world: &World) -> Result<(), Violation> {
    let (store, now) = (world.store.clone(), world.now());
    let guard = world.store.lock("lock").map_err(harness)?;
    world.spawn("waits", move || {
        let began = now();
        let granted = store.lock_with("lock", wait());
        let took = now().saturating_sub(began);
        if granted.is_ok() && took < LATE { Ok(()) } else { Err(waits_end(format!("{granted:?} after {took:?}"))) }
    });
    world.spawn("releases", move || {
        drop(guard);
        Ok(())
    });
    world.join()
}

/// A holder finds what was committed durably under the fence of the one before, and a power cut
/// does not take it back.
fn takeover_beside_fenced(world: &World) -> Result<(), Violation> {
    let guard = world.store.lock("lock").map_err(harness)?;
    let (fence, token) = (guard.fence(), guard.token());
    world.keep(guard);
    let (store, rows) = (world.store.clone(), world.rows.clone());
    world.spawn("commits", move || {
        // Either answer is right, and the power cut may come before it.
        let _ = store.begin_with(durable()).and_then(|mut txn| {
            txn.fence(&fence)?;
            txn.put(&rows, "row", "1")?;
            txn.commit()
        });
        Ok(())
    });
    let (store, rows, machine) = (world.store.clone(), world.rows.clone(), world.machine.clone());
    let seen = Arc::new(parking_lot::Mutex::new(false));
    let saw = Arc::clone(&seen);
    world.spawn("takes over", move || {
        store.force_unlock("lock", token).map_err(harness)?;
        let held = store.lock_with("lock", wait()).map_err(harness)?;
        let txn = store.begin_with(buffered()).map_err(harness)?;
        *saw.lock() = txn.get(&rows, "row").map_err(harness)?.is_some();
        machine.crash_with(&mut |_| 0);
        drop(held);
        Ok(())
    });
    world.join()?;
    if *seen.lock() && !has_row_after_recovery(world)? {
        return Err(Violation::new("lock: visibility", "a power cut took back what a holder of the lock had found"));
    }
    Ok(())
}

/// Opens what a power cut has left, and reads the row.
fn has_row_after_recovery(world: &World) -> Result<bool, Violation> {
    let (store, _engine) = open(&world.scheduler, &world.machine, ONE_MEMTABLE)?;
    let rows = store.keyspace("rows").map_err(harness)?;
    Ok(store.begin().and_then(|txn| txn.get(&rows, "row")).map_err(harness)?.is_some())
}

/// Of two increments at the same time each is counted, or refused.
fn increments(world: &World) -> Result<(), Violation> {
    let committed = Arc::new(parking_lot::Mutex::new(0_u32));
    for name in ["one", "two"] {
        let (store, rows, committed) = (world.store.clone(), world.rows.clone(), Arc::clone(&committed));
        world.spawn(name, move || {
            let mut txn = store.begin_with(buffered()).map_err(harness)?;
            let before = txn.get(&rows, "count").map_err(harness)?.map_or(0, |count| count.len());
            txn.put(&rows, "count", vec![b'x'; before + 1]).map_err(harness)?;
            match txn.commit() {
                Ok(_) => *committed.lock() += 1,
                Err(error) if error.is_retryable() => {}
                Err(error) => return Err(harness(error)),
            }
            Ok(())
        });
    }
    world.join()?;
    let txn = world.store.begin_with(buffered()).map_err(harness)?;
    let found = txn.get(&world.rows, "count").map_err(harness)?.map_or(0, |count| count.len());
    let committed = *committed.lock() as usize;
    if found == committed && committed > 0 {
        return Ok(());
    }
    Err(Violation::new("counter", format!("{committed} increments were committed, and {found} counted")))
}

/// What was acknowledged beside a close is there after a power cut.
fn close_beside_commit(world: &World) -> Result<(), Violation> {
    let acknowledged = Arc::new(parking_lot::Mutex::new(false));
    let (store, rows, answer) = (world.store.clone(), world.rows.clone(), Arc::clone(&acknowledged));
    world.spawn("commits", move || {
        let committed = store.begin_with(durable()).and_then(|mut txn| {
            txn.put(&rows, "row", "1")?;
            txn.commit()
        });
        *answer.lock() = committed.is_ok();
        Ok(())
    });
    let store = world.store.clone();
    world.spawn("closes", move || store.close().map_err(harness));
    world.join()?;
    world.machine.crash_with(&mut |_| 0);
    if *acknowledged.lock() && !has_row_after_recovery(world)? {
        return Err(Violation::new("durability", "an acknowledged commit is lost"));
    }
    Ok(())
}

/// A snapshot that background work opens at any time shows what was written before it, and always
/// the same. It is one of the storage, because those of transactions are opened between two writes.
fn snapshot_beside_write(world: &World) -> Result<(), Violation> {
    let write = |engine: &percolite::engine::local::LocalEngine<_>, value: &[u8]| {
        let storage: &percolite::engine::machine::SimMachineStorage = engine.storage();
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
fn copy_beside_flush(world: &World) -> Result<(), Violation> {
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
