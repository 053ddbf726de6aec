//! Kills this process at the n-th visit of a crash point.
//!
//! Only the process itself knows which point it is visiting. Its last event names the point.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Context as _;
use percolite::crashtest::{CrashPoint, set_crash_hook};
use serde::{Deserialize, Serialize};

use crate::child::ChildConfig;
use crate::event_pipe::{Event, PipeRecorder};

/// A checkpoint waits for this time before it copies the tables, so that a flush which wrongly runs
/// meanwhile gets a part of its rows into the copy.
const BEFORE_COPY: Duration = Duration::from_millis(60);

/// A crash point and a visit of it, counted from 1.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KillAt {
    /// The name of the crash point.
    pub point: String,
    /// The number of the visit.
    pub visit: u64,
}

/// Visits by crash point.
pub type Visits = BTreeMap<String, u64>;

/// Counts visits of crash points and kills the process at the configured ones.
#[derive(Debug)]
pub struct SelfKill {
    recorder: Arc<PipeRecorder>,
    kill_at: Vec<(CrashPoint, u64)>,
    after_acks: u64,
    /// All visits, by crash point.
    visits: Vec<AtomicU64>,
    /// The visits that count for `kill_at`: those after `after_acks` acknowledged commits.
    visits_after_acks: Vec<AtomicU64>,
}

impl SelfKill {
    /// Installs the crash hook of this process.
    ///
    /// # Errors
    /// An unknown crash point.
    pub fn install(config: &ChildConfig, recorder: &Arc<PipeRecorder>) -> anyhow::Result<Arc<Self>> {
        let point = |kill_at: &KillAt| Some((CrashPoint::from_name(&kill_at.point)?, kill_at.visit));
        let zeros = || CrashPoint::ALL.iter().map(|_| AtomicU64::new(0)).collect();
        let self_kill = Arc::new(Self {
            recorder: Arc::clone(recorder),
            kill_at: config.kill_at.iter().map(point).collect::<Option<_>>().context("unknown crash point")?,
            after_acks: config.after_acks,
            visits: zeros(),
            visits_after_acks: zeros(),
        });
        let hook = Arc::clone(&self_kill);
        set_crash_hook(Box::new(move |point| hook.on_point(point)));
        Ok(self_kill)
    }

    fn on_point(&self, point: CrashPoint) {
        if point == CrashPoint::CheckpointFlushed {
            std::thread::sleep(BEFORE_COPY);
        }
        self.visits[point as usize].fetch_add(1, Ordering::SeqCst);
        if self.recorder.acknowledged() < self.after_acks {
            return;
        }
        let visit = 1 + self.visits_after_acks[point as usize].fetch_add(1, Ordering::SeqCst);
        if self.kill_at.contains(&(point, visit)) {
            self.recorder
                .send_and_exit(|| Event::SelfKill(KillAt { point: point.name().into(), visit }, self.visits()));
        }
    }

    /// The visits so far.
    pub fn visits(&self) -> Visits {
        let visits = CrashPoint::ALL.iter().zip(&self.visits);
        let counts = visits.map(|(point, count)| (point.name().to_owned(), count.load(Ordering::SeqCst)));
        counts.filter(|(_, count)| *count > 0).collect()
    }
}
