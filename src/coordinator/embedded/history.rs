//! History: commits keep the versions that they replace, for the retention time, so that the store
//! can be read at any timestamp within this time. CockroachDB's `gc.ttl` is alike.
//!
//! The *floor* is the oldest timestamp that can be read. It is stored in the [retention
//! record](super::super::retention). An incarnation without history deletes the record before its
//! first commit, because its commits do not keep the versions that they replace.
//!
//! GC must not remove a version that a historical read may still need. So before GC removes
//! anything, the floor is raised, first in the store and then in memory. GC then removes only what
//! no read at or above the floor sees. A historical read holds the mutex of the floor while it
//! checks its timestamp and takes its engine snapshot, so the snapshot has every version that GC
//! removes later.
//!
//! The age of a replaced version counts from the commit timestamp of the version that replaced it.
//! So with history the oracle keeps timestamps close to the wall clock. The wall clock is trusted
//! only as far as the monotonic clock has advanced since the opening: a jump of the wall clock must
//! not remove history. If the wall clock is set back, history is kept longer.

use std::sync::Arc;
use std::time::Duration;

use super::super::HistoryRetention;
use super::super::retention::{Retention, check_within_retention, future_timestamp_error};
use crate::env::Env;
use crate::error::Result;
use crate::pipeline::Pipeline;
use crate::read_view::ReadView;
use crate::sync::Mutex;
use crate::timestamp::Timestamp;

/// The history of a store, and the GC horizon that follows from it.
pub struct History {
    pipeline: Arc<Pipeline>,
    /// `None` if replaced versions are not kept.
    kept: Option<KeptHistory>,
}

struct KeptHistory {
    retention: Mutex<Retention>,
    /// Both clocks at opening: the wall clock, in milliseconds since 1970, and the monotonic clock.
    clock_at_open: (u64, Duration),
}

impl History {
    /// Begins, continues or ends the history.
    pub fn open(pipeline: &Arc<Pipeline>, requested: HistoryRetention) -> Result<Self> {
        let (engine, env) = (pipeline.engine(), pipeline.env());
        let found = Retention::load(engine)?;
        let retention = match requested {
            HistoryRetention::Unchanged => found,
            HistoryRetention::Disabled => None,
            HistoryRetention::For(time) => Some(Retention {
                oldest_ts: found.map_or(pipeline.fates().first_ts(), |found| found.oldest_ts),
                window_ms: millis(time),
            }),
        };
        if retention != found {
            Retention::store(retention, engine)?;
            engine.sync()?;
        }
        let kept = retention.map(|retention| {
            pipeline.timestamps().track_wall_clock();
            KeptHistory { retention: Mutex::new(retention), clock_at_open: (env.unix_millis(), env.elapsed()) }
        });
        Ok(Self { pipeline: Arc::clone(pipeline), kept })
    }

    pub fn is_kept(&self) -> bool {
        self.kept.is_some()
    }

    /// The present retention; `None` without history.
    pub fn retention(&self) -> Option<Retention> {
        self.kept.as_ref().map(|kept| *kept.retention.lock())
    }

    /// The limit of the GC horizon at present: the oldest active `read_ts` or, if it is lower,
    /// `durable_ts`. With history the start of the retention window limits the horizon, too; but
    /// the limit is never below the floor.
    ///
    /// The durable view is in use, so `durable_ts` is mostly among the active `read_ts`; here it is
    /// named because that view may have expired. No crash needs it: what GC removes is in the log
    /// after the commits that replaced it, and a crash leaves a prefix.
    pub fn gc_horizon_max(&self) -> Timestamp {
        let read = self.pipeline.views().oldest_read_ts().min(self.pipeline.sync().durable_ts());
        let Some(kept) = &self.kept else { return read };
        let retention = *kept.retention.lock();
        read.min(kept.window_start(retention.window_ms, self.pipeline.env())).max(retention.oldest_ts)
    }

    /// Returns the GC horizon: versions that were replaced at or below it may be removed. With
    /// history the horizon is the floor, and this call raises the floor to
    /// [`History::gc_horizon_max`] if GC can then remove a version or a tombstone.
    pub fn advance_gc_horizon(&self) -> Result<Timestamp> {
        let Some(kept) = &self.kept else { return Ok(self.gc_horizon_max()) };
        // Only the background worker raises the floor, so the floor does not change until it is
        // written below.
        let retention = *kept.retention.lock();
        let next = Retention { oldest_ts: self.gc_horizon_max(), ..retention };
        let engine = self.pipeline.engine();
        if next.oldest_ts > retention.oldest_ts && !engine.gc_candidates(None, next.oldest_ts, 1)?.is_empty() {
            Retention::store(Some(next), engine).map_err(|error| self.pipeline.failure().poison(error.into()))?;
            crash_point!(HistoryFloorRaised);
            *kept.retention.lock() = next;
            return Ok(next.oldest_ts);
        }
        Ok(retention.oldest_ts)
    }

    /// A view of what was committed at or below `at`.
    pub fn view_at(&self, at: Timestamp) -> Result<Arc<ReadView>> {
        let pipeline = &self.pipeline;
        if self.kept.is_some() && at > pipeline.views().visible().read_ts {
            // After `next` no commit gets a new timestamp at or below `at`. After `drain` every
            // commit that already has such a timestamp is visible.
            if at > pipeline.timestamps().next()? {
                return Err(future_timestamp_error(at));
            }
            pipeline.drain()?;
        }
        let retention = self.kept.as_ref().map(|kept| kept.retention.lock());
        check_within_retention(at, retention.as_ref().map(|retention| retention.oldest_ts))?;
        let newest = pipeline.views().visible();
        drop(retention);
        let view = ReadView::new(at, Arc::clone(&newest.snapshot), newest.must_check_locks);
        pipeline.views().add_historical(&view);
        Ok(view)
    }
}

impl KeptHistory {
    /// The oldest timestamp inside the retention window.
    fn window_start(&self, window_ms: u64, env: &dyn Env) -> Timestamp {
        let (unix_millis, elapsed) = self.clock_at_open;
        let now = env.unix_millis().min(unix_millis.saturating_add(millis(env.elapsed().saturating_sub(elapsed))));
        Timestamp::from_millis(now.saturating_sub(window_ms))
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
