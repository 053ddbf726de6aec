//! The situations.

use std::sync::Arc;
use std::time::Duration;

use percolite::{CancelToken, Durability, ErrorKind, LockLostReason, LockOptions, LockWaitPolicy, TxnOptions};

use super::{Situation, World, harness, leader, leases, open, storage, tasks};
use crate::violation::Violation;

/// The longest wait for an event. It is virtual time.
pub const WAIT_MAX: Duration = Duration::from_secs(100);
/// An event that has happened must end its wait within this time.
const LATE: Duration = Duration::from_secs(10);
/// No memtable is switched.
pub const ONE_MEMTABLE: usize = 1 << 20;
/// More rows than the conflict set has one by one.
const MANY: u32 = 6;
/// A memtable is switched after a commit or two.
pub const SMALL_MEMTABLE: usize = 300;

pub const SITUATIONS: &[Situation] = &[
    Situation::new("cancel-beside-wait", cancel_beside_wait),
    Situation::new("loss-beside-wait", loss_beside_wait),
    Situation::new("release-beside-wait", release_beside_wait),
    Situation::new("takeover-beside-fenced", takeover_beside_fenced),
    Situation::new("increments", increments),
    Situation::new("lock-beside-write", lock_beside_write),
    Situation::new("close-beside-commit", close_beside_commit),
    Situation::new("commit-ends-within-close", commit_ends_within_close).with_two_switches(),
    Situation::new("close-beside-detach", close_beside_detach),
    Situation::new("snapshot-beside-write", storage::snapshot_beside_write),
    Situation::new("copy-beside-flush", storage::copy_beside_flush).with_small_memtables(),
    Situation::new("copy-beside-failing-flush", storage::copy_beside_failing_flush).with_small_memtables(),
    Situation::new("long-values", storage::long_values),
    Situation::new("record-beside-sync", storage::record_beside_sync),
    Situation::new("force-beside-lease", leases::force_beside_lease),
    Situation::new("drop-beside-release", tasks::drop_beside_release),
    Situation::new("cancel-beside-grant", tasks::cancel_beside_grant),
    Situation::new("upgrade-dropped", tasks::upgrade_dropped),
    Situation::new("loss-beside-task", tasks::loss_beside_task),
    Situation::new("transaction-dropped", tasks::transaction_dropped),
    Situation::new("leadership-passed-on", leader::leadership_passed_on).with_two_switches(),
    Situation::new("leader-panics", leader::leader_panics).with_two_switches(),
    Situation::new("force-beside-renewal", leases::force_beside_renewal),
    Situation::new("lease-dropped", leases::lease_dropped),
    Situation::new("lease-attached", leases::lease_attached),
    Situation::new("sequence-beside-loss", storage::sequence_beside_loss),
];

pub fn buffered() -> TxnOptions {
    TxnOptions::default().durability(Durability::Buffered)
}

pub fn durable() -> TxnOptions {
    TxnOptions::default().durability(Durability::Sync)
}

pub fn wait() -> LockOptions {
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
    let waiting = |options: LockOptions| options.wait(LockWaitPolicy::Timeout(WAIT_MAX));
    // Each pair excludes each other.
    let [first, next] = match world.scheduler.choose(4) {
        0 => [LockOptions::exclusive(), LockOptions::exclusive()],
        1 => [LockOptions::shared(), LockOptions::exclusive()],
        2 => [LockOptions::semaphore(2), LockOptions::shared()],
        _ => [LockOptions::semaphore(2), LockOptions::semaphore(3)],
    }
    .map(waiting);
    let guard = world.store.lock_with("lock", first).map_err(harness)?;
    let (fence, token) = (guard.fence(), guard.token());
    world.keep(guard);
    let (store, rows) = (world.store.clone(), world.rows.clone());
    world.spawn("commits", move || {
        // Either answer is right, and the power cut may come before it.
        let committed = store.begin_with(durable()).and_then(|mut txn| {
            txn.fence(&fence)?;
            txn.put(&rows, "row", "1")?;
            txn.commit()
        });
        match committed.as_ref().map_err(percolite::Error::kind) {
            Err(ErrorKind::LockLost(lost)) if lost.reason != LockLostReason::Forced => {
                Err(Violation::new("lock: unexpected error", format!("{lost:?}, and it was ended by force")))
            }
            _ => Ok(()),
        }
    });
    let (store, rows, machine) = (world.store.clone(), world.rows.clone(), world.machine.clone());
    let seen = Arc::new(parking_lot::Mutex::new(false));
    let saw = Arc::clone(&seen);
    world.spawn("takes over", move || {
        store.force_unlock("lock", token).map_err(harness)?;
        let held = store.lock_with("lock", next).map_err(harness)?;
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

/// What was acknowledged beside a close is there after the close and a power cut, durable or not.
fn close_beside_commit(world: &World) -> Result<(), Violation> {
    let options = [durable(), buffered()][world.scheduler.choose(2)];
    // A transaction that has begun may commit until the close is almost over. The close comes
    // within the commit, or the commit within the close.
    let is_begun = world.scheduler.choose(2) == 0;
    close_and_commit(world, options, (is_begun, is_begun))
}

/// The close is done but for its end when the commit, which has begun before, is acknowledged. It
/// does not continue where the close waits for the store's threads.
fn commit_ends_within_close(world: &World) -> Result<(), Violation> {
    world.scheduler.run_others_first();
    close_and_commit(world, buffered(), (true, false))
}

fn close_and_commit(
    world: &World,
    options: TxnOptions,
    (is_begun, closes_first): (bool, bool),
) -> Result<(), Violation> {
    let acknowledged = Arc::new(parking_lot::Mutex::new(false));
    let (store, rows, answer) = (world.store.clone(), world.rows.clone(), Arc::clone(&acknowledged));
    let began = is_begun.then(|| store.begin_with(options)).transpose().map_err(harness)?;
    let commits = move || {
        let committed = began.map_or_else(|| store.begin_with(options), Ok).and_then(|mut txn| {
            txn.put(&rows, "row", "1")?;
            txn.commit()
        });
        *answer.lock() = committed.is_ok();
        Ok(())
    };
    let store = world.store.clone();
    let closes = move || store.close().map_err(harness);
    if closes_first {
        world.spawn("closes", closes);
        world.spawn("commits", commits);
    } else {
        world.spawn("commits", commits);
        world.spawn("closes", closes);
    }
    world.join()?;
    world.machine.crash_with(&mut |_| 0);
    if *acknowledged.lock() && !has_row_after_recovery(world)? {
        return Err(Violation::new("durability", "an acknowledged commit is lost"));
    }
    Ok(())
}

/// A detached lease outlasts its store, also if the store closes meanwhile.
fn close_beside_detach(world: &World) -> Result<(), Violation> {
    let guard = world.store.lock_with("lock", wait().lease(WAIT_MAX)).map_err(harness)?;
    let detached = Arc::new(parking_lot::Mutex::new(false));
    let was_detached = Arc::clone(&detached);
    world.spawn("detaches", move || {
        *was_detached.lock() = guard.detach().is_ok();
        Ok(())
    });
    let store = world.store.clone();
    world.spawn("closes", move || store.close().map_err(harness));
    world.join()?;
    world.machine.crash_with(&mut |_| 0);
    let (store, _engine) = open(&world.scheduler, &world.machine, ONE_MEMTABLE)?;
    if *detached.lock() && store.is_free_lock("lock").map_err(harness)? {
        return Err(Violation::new("lock: leases survive the process", "a detached lease is gone"));
    }
    Ok(())
}

/// A commit of many rows that has only locked a row conflicts with a write of that row.
fn lock_beside_write(world: &World) -> Result<(), Violation> {
    let spans = Arc::new(parking_lot::Mutex::new(Vec::new()));
    for name in ["locks", "writes"] {
        let (store, rows, spans) = (world.store.clone(), world.rows.clone(), Arc::clone(&spans));
        world.spawn(name, move || {
            let mut txn = store.begin_with(buffered()).map_err(harness)?;
            if name == "locks" {
                txn.get_for_update(&rows, "row").map_err(harness)?;
                (0..MANY).try_for_each(|number| txn.put(&rows, number.to_string(), "1")).map_err(harness)?;
            } else {
                txn.put(&rows, "row", "1").map_err(harness)?;
            }
            let read_ts = txn.read_ts();
            match txn.commit() {
                Ok(commit) => spans.lock().push((read_ts, commit.commit_ts)),
                Err(error) if error.is_retryable() => {}
                Err(error) => return Err(harness(error)),
            }
            Ok(())
        });
    }
    world.join()?;
    match spans.lock()[..] {
        [one, other] if one.0 < other.1 && other.0 < one.1 => Err(Violation::new(
            "isolation",
            "a row was locked by one transaction and written by another, both committed",
        )),
        _ => Ok(()),
    }
}
