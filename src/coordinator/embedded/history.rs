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

use super::Embedded;
use crate::coordinator::KeepHistory;
use crate::coordinator::history::{Kept, check_moment, in_the_future};
use crate::error::Result;
use crate::pipeline::Pipeline;
use crate::runtime::Runtime;
use crate::sync::Mutex;
use crate::timestamp::Timestamp;
use crate::view::PinnedView;

/// See the [module](self).
pub(super) struct History {
    kept: Mutex<Kept>,
    /// The wall clock when the store was opened, and the monotonic one.
    opened: (u64, Duration),
}

impl History {
    /// Begins to keep history, goes on with it, or ends it.
    pub fn open(pipeline: &Pipeline, asked: KeepHistory) -> Result<Option<Self>> {
        let (engine, runtime) = (pipeline.engine(), pipeline.runtime());
        let found = Kept::read(engine)?;
        let kept = match asked {
            KeepHistory::AsBefore => found,
            KeepHistory::Never => None,
            KeepHistory::For(time) => {
                Some(Kept { from: found.map_or(pipeline.opened_at(), |found| found.from), for_ms: millis(time) })
            }
        };
        if kept != found {
            Kept::write(kept, engine)?;
            engine.sync()?;
        }
        let Some(kept) = kept else { return Ok(None) };
        pipeline.be_punctual();
        Ok(Some(Self { kept: Mutex::new(kept), opened: (runtime.unix_millis(), runtime.elapsed()) }))
    }

    /// What is kept at this moment.
    pub fn kept(&self) -> Kept {
        *self.kept.lock()
    }

    /// Nobody is promised anything that was replaced so long ago.
    fn promised(&self, for_ms: u64, runtime: &dyn Runtime) -> Timestamp {
        let (unix_millis, elapsed) = self.opened;
        let now =
            runtime.unix_millis().min(unix_millis.saturating_add(millis(runtime.elapsed().saturating_sub(elapsed))));
        Timestamp::from_millis(now.saturating_sub(for_ms))
    }
}

impl Embedded {
    /// How far [`collectable`](Self::collectable) could come now.
    pub fn collectable_at_most(&self) -> Timestamp {
        let read = self.pipeline.oldest_read().min(self.pipeline.durable_ts());
        let Some(history) = &self.history else { return read };
        let kept = *history.kept.lock();
        read.min(history.promised(kept.for_ms, self.pipeline.runtime())).max(kept.from)
    }

    /// What was superseded at or below this may be collected. If that is more than before, the floor rises first.
    pub fn collectable(&self) -> Result<Timestamp> {
        let Some(history) = &self.history else { return Ok(self.collectable_at_most()) };
        // It changes here alone, on the background thread.
        let kept = *history.kept.lock();
        let next = Kept { from: self.collectable_at_most(), ..kept };
        let engine = self.pipeline.engine();
        if next.from > kept.from && !engine.gc_candidates(None, next.from, 1)?.is_empty() {
            if !mutated!(FloorNotKept) {
                Kept::write(Some(next), engine).map_err(|why| self.pipeline.poison(why.into()))?;
            }
            crash_point!(HistoryFloor);
            *history.kept.lock() = next;
            return Ok(next.from);
        }
        Ok(kept.from)
    }

    /// A view of what was committed at or below `at`.
    pub(super) fn view_at(&self, at: Timestamp) -> Result<Arc<PinnedView>> {
        let pipeline = &self.pipeline;
        if self.history.is_some() && at > pipeline.current_view().read_ts {
            // From here on no commit can come in at or below `at`, and those that have are published.
            if at > pipeline.timestamp()? {
                return Err(in_the_future(at));
            }
            pipeline.pass()?;
        }
        let kept = self.history.as_ref().map(|history| history.kept.lock());
        check_moment(at, kept.as_ref().map(|kept| kept.from))?;
        let kept = kept.filter(|_| !mutated!(FloorReleasedEarly));
        let newest = pipeline.current_view();
        drop(kept);
        let view = PinnedView::new(at, Arc::clone(&newest.view), newest.check_locks);
        pipeline.keep_view(&view);
        if self.read_durable {
            pipeline.wait_durable(at.min(newest.read_ts))?;
        }
        Ok(view)
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
