//! What the background worker does for the store in each round.

use crate::coordinator::BackgroundTask;
use crate::error::Result;
#[cfg(feature = "rocks")]
use crate::error::{Error, ErrorKind};
use crate::store::catalog::drop::purge_dropped;
use crate::store::handle::Store;
#[cfg(feature = "metrics")]
use crate::store::introspect::gauges::{ENGINE_GAUGES_INTERVAL, set_engine_gauges, set_gauges};
use crate::store::named_locks::background::prune_locks;

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
        #[cfg(feature = "metrics")]
        ("engine_gauges", engine_gauges(store)),
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

/// Sets the gauges of the engine, if their interval has passed.
#[cfg(feature = "metrics")]
fn engine_gauges(store: &Store) -> Box<dyn Fn() -> Result<()> + Send> {
    let (store, next) = (store.background_handle(), std::cell::Cell::new(std::time::Duration::ZERO));
    Box::new(move || {
        let now = store.inner.env.elapsed();
        if now >= next.get() {
            set_engine_gauges(&store.inner);
            next.set(now + ENGINE_GAUGES_INTERVAL);
        }
        Ok(())
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
