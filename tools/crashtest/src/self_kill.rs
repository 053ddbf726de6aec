//! How a process dies by its own hand: at a visit of a point that was chosen for it.
//!
//! Only the process itself knows where it is. Its last line says where that was, and nothing comes behind it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::Context as _;
use percolite::crashtest::{CrashPoint, set_crash_hook};
use serde::{Deserialize, Serialize};

use crate::child::ChildConfig;
use crate::event_pipe::{Event, PipeRecorder};

/// A visit of a point that is the last thing that a life does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KillAt {
    /// The point, by name.
    pub point: String,
    /// Which of its visits.
    pub visit: u64,
}

/// How often each point was visited, by name.
pub type Visits = BTreeMap<String, u64>;

/// Watches the points of this process.
#[derive(Debug)]
pub struct SelfKill {
    recorder: Arc<PipeRecorder>,
    kill_at: Vec<(CrashPoint, u64)>,
    after_acks: u64,
    /// All visits, and those that count, by point.
    visits: Vec<AtomicU64>,
    visits_after_acks: Vec<AtomicU64>,
}

impl SelfKill {
    /// Has the process end where its life says.
    ///
    /// # Errors
    /// There is no such point.
    pub fn install(config: &ChildConfig, recorder: &Arc<PipeRecorder>) -> anyhow::Result<Arc<Self>> {
        let point = |kill_at: &KillAt| Some((CrashPoint::from_name(&kill_at.point)?, kill_at.visit));
        let zeros = || CrashPoint::ALL.iter().map(|_| AtomicU64::new(0)).collect();
        let self_kill = Arc::new(Self {
            recorder: Arc::clone(recorder),
            kill_at: config.kill_at.iter().map(point).collect::<Option<_>>().context("no such point")?,
            after_acks: config.after_acks,
            visits: zeros(),
            visits_after_acks: zeros(),
        });
        let hook = Arc::clone(&self_kill);
        set_crash_hook(Box::new(move |point| hook.on_point(point)));
        Ok(self_kill)
    }

    fn on_point(&self, point: CrashPoint) {
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

    /// What was visited so far.
    pub fn visits(&self) -> Visits {
        let visits = CrashPoint::ALL.iter().zip(&self.visits);
        let counts = visits.map(|(point, count)| (point.name().to_owned(), count.load(Ordering::SeqCst)));
        counts.filter(|(_, count)| *count > 0).collect()
    }
}
