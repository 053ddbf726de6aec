//! Keeping history: each commit keeps the version that it replaces, for a while, and any moment of that while can be read.
//!
//! The *floor* is the oldest moment that can be read. It is on the disk as long as every commit keeps what it replaces, so a
//! life of the store without history takes it away before its first commit. It rises, on the disk first, before anything is
//! collected that a reader at the old floor would need. A reader takes its view of the engine while the floor stands still;
//! what is collected afterwards is gone from the engine and not from that view.
//!
//! A version's age is the time since the timestamp that replaced it, so timestamps must not lag behind the clock here: the
//! oracle is asked to be punctual. And the clock counts as long as it does not run faster than the monotonic clock of this
//! life: one that jumps ahead must not cost history. One that is set back makes it last longer.

use std::sync::Arc;
use std::time::Duration;

use super::EmbeddedCoordinator;
use crate::coordinator::HistoryRetention;
use crate::coordinator::history::{Retention, check_within_retention, future_timestamp_error};
use crate::error::Result;
use crate::pipeline::Pipeline;
use crate::runtime::Env;
use crate::sync::Mutex;
use crate::timestamp::Timestamp;
use crate::view::ReadView;

/// See the [module](self).
pub(super) struct HistoryKeeper {
    retention: Mutex<Retention>,
    /// The wall clock when the store was opened, and the monotonic one.
    clock_at_open: (u64, Duration),
}

impl HistoryKeeper {
    /// Begins to keep history, goes on with it, or ends it.
    pub fn open(pipeline: &Pipeline, asked: HistoryRetention) -> Result<Option<Self>> {
        let (engine, runtime) = (pipeline.engine(), pipeline.runtime());
        let found = Retention::load(engine)?;
        let kept = match asked {
            HistoryRetention::Unchanged => found,
            HistoryRetention::Disabled => None,
            HistoryRetention::For(time) => Some(Retention {
                oldest_ts: found.map_or(pipeline.first_ts(), |found| found.oldest_ts),
                window_ms: millis(time),
            }),
        };
        if kept != found {
            Retention::store(kept, engine)?;
            engine.sync()?;
        }
        let Some(kept) = kept else { return Ok(None) };
        pipeline.track_wall_clock();
        Ok(Some(Self { retention: Mutex::new(kept), clock_at_open: (runtime.unix_millis(), runtime.elapsed()) }))
    }

    /// What is kept at this moment.
    pub fn retention(&self) -> Retention {
        *self.retention.lock()
    }

    /// Nobody is promised anything that was replaced so long ago.
    fn window_start(&self, for_ms: u64, runtime: &dyn Env) -> Timestamp {
        let (unix_millis, elapsed) = self.clock_at_open;
        let now =
            runtime.unix_millis().min(unix_millis.saturating_add(millis(runtime.elapsed().saturating_sub(elapsed))));
        Timestamp::from_millis(now.saturating_sub(for_ms))
    }
}

impl EmbeddedCoordinator {
    /// How far [`advance_gc_horizon`](Self::advance_gc_horizon) could come now.
    pub fn gc_horizon_max(&self) -> Timestamp {
        let read = self.pipeline.oldest_read_ts().min(self.pipeline.durable_ts());
        let Some(history) = &self.history else { return read };
        let kept = *history.retention.lock();
        read.min(history.window_start(kept.window_ms, self.pipeline.runtime())).max(kept.oldest_ts)
    }

    /// What was superseded at or below this may be collected. If that is more than before, the floor rises first.
    pub fn advance_gc_horizon(&self) -> Result<Timestamp> {
        let Some(history) = &self.history else { return Ok(self.gc_horizon_max()) };
        // It changes here alone, on the background thread.
        let kept = *history.retention.lock();
        let next = Retention { oldest_ts: self.gc_horizon_max(), ..kept };
        let engine = self.pipeline.engine();
        if next.oldest_ts > kept.oldest_ts && !engine.gc_candidates(None, next.oldest_ts, 1)?.is_empty() {
            if !mutated!(HistoryFloorNotPersisted) {
                Retention::store(Some(next), engine).map_err(|why| self.pipeline.poison(why.into()))?;
            }
            crash_point!(HistoryFloorRaised);
            *history.retention.lock() = next;
            return Ok(next.oldest_ts);
        }
        Ok(kept.oldest_ts)
    }

    /// A view of what was committed at or below `at`.
    pub(super) fn view_at(&self, at: Timestamp) -> Result<Arc<ReadView>> {
        let pipeline = &self.pipeline;
        if self.history.is_some() && at > pipeline.visible_view().read_ts {
            // From here on no commit can come in at or below `at`, and those that have are published.
            if at > pipeline.next_timestamp()? {
                return Err(future_timestamp_error(at));
            }
            pipeline.drain()?;
        }
        let kept = self.history.as_ref().map(|history| history.retention.lock());
        check_within_retention(at, kept.as_ref().map(|kept| kept.oldest_ts))?;
        let kept = kept.filter(|_| !mutated!(HistoryFloorRaisedEarly));
        let newest = pipeline.visible_view();
        drop(kept);
        let view = ReadView::new(at, Arc::clone(&newest.snapshot), newest.must_check_locks);
        pipeline.add_historical_view(&view);
        if self.durable_snapshots {
            pipeline.wait_durable(at.min(newest.read_ts))?;
        }
        Ok(view)
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
