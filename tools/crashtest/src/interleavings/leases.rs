//! Situations of leases and their rows.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use percolite::ErrorKind;

use super::situations::{ONE_MEMTABLE, WAIT_MAX, wait};
use super::{World, harness, open};
use crate::lock_workload::final_checks::check_no_lease_rows;
use crate::violation::Violation;

/// A lease that is renewed within the situation. The background worker has few rounds meanwhile.
const SHORT_LEASE: Duration = Duration::from_millis(200);
/// The threads of the store that renew leases, and that do the other work in the background.
const RENEWER: &str = "percolite-leases";
const BACKGROUND_WORKER: &str = "percolite-bg";
/// How long the threads of the store get to end their work. It is virtual time.
const REST: Duration = Duration::from_millis(20);

fn check_rows(world: &World) -> Result<(), Violation> {
    check_no_lease_rows(world.engine.storage()).map_err(harness)?.map_or(Ok(()), Err)
}

/// A lease that is ended by force while its row is being written does not come back with the next
/// incarnation.
pub fn force_beside_lease(world: &World) -> Result<(), Violation> {
    let store = world.store.clone();
    world.spawn("acquires", move || match store.lock_with("lock", wait().lease(WAIT_MAX)) {
        Ok(guard) => {
            // The lease outlasts its guard. If it has ended already, there is none to detach.
            let _ = guard.detach();
            Ok(())
        }
        Err(error) if matches!(error.kind(), ErrorKind::LockLost(_)) => Ok(()),
        Err(error) => Err(harness(error)),
    });
    let (store, was_forced) = (world.store.clone(), Arc::new(Mutex::new(false)));
    let forced = Arc::clone(&was_forced);
    world.spawn("ends", move || {
        let holders = store.lock_holders("lock").map_err(harness)?;
        for token in holders.into_iter().filter_map(|holder| holder.token) {
            *forced.lock() |= store.force_unlock("lock", token).map_err(harness)?;
        }
        Ok(())
    });
    world.join()?;
    world.machine.crash_with(&mut |_| 0);
    let (store, _engine) = open(&world.scheduler, &world.machine, ONE_MEMTABLE)?;
    if *was_forced.lock() && !store.is_free_lock("lock").map_err(harness)? {
        return Err(Violation::new(
            "lock: leases survive the process",
            "a lease that was ended by force is held again",
        ));
    }
    Ok(())
}

/// A lease that is ended by force while it is renewed, by its guard or by the store for a guard
/// that has attached it, leaves no row.
pub fn force_beside_renewal(world: &World) -> Result<(), Violation> {
    let is_explicit = world.scheduler.choose(2) == 0;
    let duration = if is_explicit { WAIT_MAX } else { SHORT_LEASE };
    let token = world.store.get_lock("lock", duration).map_err(harness)?;
    let token = token.ok_or_else(|| harness("a free lock was not granted"))?;
    let guard = world.store.attach_lock("lock", token).map_err(harness)?;
    let left = guard.entry().lease_remaining.unwrap_or_default();
    if is_explicit {
        let kept = Arc::new(Mutex::new(None));
        world.keep(Arc::clone(&kept));
        world.spawn("renews", move || {
            let renewed = guard.renew(WAIT_MAX);
            *kept.lock() = Some(guard);
            match renewed {
                Err(error) if !matches!(error.kind(), ErrorKind::LockLost(_)) => Err(harness(error)),
                _ => Ok(()),
            }
        });
    } else {
        world.keep(guard);
        world.scheduler.explore_background(RENEWER);
    }
    let (store, scheduler) = (world.store.clone(), Arc::clone(&world.scheduler));
    world.spawn("ends", move || {
        if !is_explicit {
            // The store renews a lease when half of its time has passed.
            scheduler.sleep(left.saturating_sub(duration / 2));
        }
        let was_held = store.force_unlock("lock", token).map_err(harness)?;
        if was_held { Ok(()) } else { Err(Violation::new("lock: ownership", "a lease has ended before its time")) }
    });
    world.join()?;
    world.scheduler.sleep(REST);
    check_rows(world)
}

/// The row of a lease is removed soon after its guard is dropped, not only in the next round of the
/// background worker.
pub fn lease_dropped(world: &World) -> Result<(), Violation> {
    let guard = world.store.lock_with("lock", wait().lease(WAIT_MAX)).map_err(harness)?;
    world.scheduler.hold(BACKGROUND_WORKER, true);
    world.spawn("drops", move || {
        drop(guard);
        Ok(())
    });
    let joined = world.join();
    world.scheduler.sleep(REST);
    world.scheduler.hold(BACKGROUND_WORKER, false);
    joined.and_then(|()| check_rows(world))
}

/// A lease that a guard has attached is renewed while the guard exists, and ends with it.
pub fn lease_attached(world: &World) -> Result<(), Violation> {
    let token = world.store.get_lock("lock", SHORT_LEASE).map_err(harness)?;
    let token = token.ok_or_else(|| harness("a free lock was not granted"))?;
    let (store, scheduler) = (world.store.clone(), Arc::clone(&world.scheduler));
    world.spawn("attaches", move || {
        let guard = store.attach_lock("lock", token).map_err(harness)?;
        scheduler.sleep(3 * SHORT_LEASE);
        if guard.is_held() && !store.is_free_lock("lock").map_err(harness)? {
            return Ok(());
        }
        Err(Violation::new("lock: ownership", "an attached lease is not renewed"))
    });
    world.join()?;
    world.scheduler.sleep(REST);
    check_rows(world)
}
