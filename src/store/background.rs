//! What the background worker does for the store in each round.

use std::cell::Cell;
use std::time::Duration;

use crate::coordinator::BackgroundTask;
use crate::engine::SpaceLeft;
use crate::error::Result;
#[cfg(feature = "rocks")]
use crate::error::{Error, ErrorKind};
use crate::store::catalog::drop::purge_dropped;
use crate::store::handle::Store;
#[cfg(feature = "metrics")]
use crate::store::introspect::gauges::{ENGINE_GAUGES_INTERVAL, set_engine_gauges, set_gauges};
use crate::store::named_locks::background::{close_locks, prune_locks};
use crate::timestamp::Timestamp;

/// The space of what was deleted on a full disk is given back once in this time.
const RECLAIM_INTERVAL: Duration = Duration::from_millis(500);
/// How long the close of a store on a full disk waits for GC, and how often it looks.
const GC_WAIT: Duration = Duration::from_secs(10);
const GC_POLL: Duration = Duration::from_millis(10);

/// The tasks, in the order in which they run.
pub(in crate::store) fn background_tasks(store: &Store) -> Vec<BackgroundTask> {
    let task = |name, work: fn(&Store) -> Result<()>| -> BackgroundTask {
        let background = store.background_handle();
        (name, Box::new(move || work(&background)))
    };
    vec![
        task("maintain", |store| {
            maintain(store);
            Ok(())
        }),
        #[cfg(feature = "rocks")]
        task("status_file", write_status_file),
        task("purge_keyspaces", purge_dropped),
        task("leases", prune_locks),
        ("reclaim_space", at_intervals(store, RECLAIM_INTERVAL, reclaim_space)),
        #[cfg(feature = "metrics")]
        (
            "engine_gauges",
            at_intervals(store, ENGINE_GAUGES_INTERVAL, |store| {
                set_engine_gauges(&store.inner);
                Ok(())
            }),
        ),
    ]
}

/// Expires old snapshots, so that a leaked one does not block GC forever, and requests a sync, so
/// that a power cut loses few buffered commits.
fn maintain(store: &Store) {
    let inner = &store.inner;
    if inner.coordinator.maintain(inner.options.max_snapshot_age) > 0 {
        inner.monitor.report_expired();
    }
    #[cfg(feature = "metrics")]
    set_gauges(inner);
}

/// Gives the space of what was deleted back to a full disk.
fn reclaim_space(store: &Store) -> Result<()> {
    Ok(store.inner.engine.reclaim_space()?)
}

/// The last work before a store closes. On a full disk the space of what was deleted is given back,
/// so that a process that only deletes gains that space.
pub(in crate::store) fn before_close(store: &Store) {
    if store.inner.engine.space_left() != SpaceLeft::Enough {
        // An error is ignored: the next opening tries again.
        let _ = wait_for_gc(store).and_then(|()| purge_dropped(store)).and_then(|()| reclaim_space(store));
    }
    close_locks(store);
}

/// Waits until the background worker has removed the tombstones that it can remove now, for at most
/// [`GC_WAIT`].
fn wait_for_gc(store: &Store) -> Result<()> {
    let inner = &store.inner;
    let end = inner.env.elapsed() + GC_WAIT;
    while inner.env.elapsed() < end && inner.engine.space_left() == SpaceLeft::ForDeletions {
        let queued = inner.engine.gc_candidates(None, Timestamp::MAX, 1)?;
        let Some((replaced_at, _)) = queued.first() else { break };
        if !inner.coordinator.is_below_gc_horizon(*replaced_at)? {
            break;
        }
        inner.env.sleep(GC_POLL);
    }
    Ok(())
}

/// A task that runs at most once in an interval.
fn at_intervals(
    store: &Store,
    interval: Duration,
    work: fn(&Store) -> Result<()>,
) -> Box<dyn Fn() -> Result<()> + Send> {
    let (store, next) = (store.background_handle(), Cell::new(Duration::ZERO));
    Box::new(move || {
        let now = store.inner.env.elapsed();
        if now < next.get() {
            return Ok(());
        }
        next.set(now + interval);
        work(&store)
    })
}

/// Writes the status file, if its interval has passed.
#[cfg(feature = "rocks")]
fn write_status_file(store: &Store) -> Result<()> {
    let inner = &store.inner;
    let Some(every) = inner.options.status_file_interval else { return Ok(()) };
    let now = inner.env.elapsed();
    {
        let mut written_at = inner.status_written_at.lock();
        if now.saturating_sub(*written_at) < every {
            return Ok(());
        }
        *written_at = now;
    }
    let document = serde_json::to_vec(&store.status())
        .map_err(|error| Error::from(ErrorKind::Io(format!("cannot write the status file: {error}"))))?;
    Ok(inner.engine.write_status_file(Some(&document))?)
}
