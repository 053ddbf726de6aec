//! How a process dies by its own hand: at a visit of a point that was chosen for it.
//!
//! Only the process itself knows where it is. Its last line says where that was, and nothing comes behind it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::Context as _;
use percolite::crashtest::{CrashPoint, set_crash_hook};
use serde::{Deserialize, Serialize};

use crate::life::Life;
use crate::pipe::{Event, PipeSink};

/// A visit of a point that is the last thing that a life does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fatal {
    /// The point, by name.
    pub point: String,
    /// Which of its visits.
    pub visit: u64,
}

/// How often each point was visited, by name.
pub type Visits = BTreeMap<String, u64>;

/// Watches the points of this process.
#[derive(Debug)]
pub struct Doom {
    sink: Arc<PipeSink>,
    fatal: Vec<(CrashPoint, u64)>,
    after: u64,
    /// All visits, and those that count, by point.
    visits: Vec<AtomicU64>,
    counted: Vec<AtomicU64>,
}

impl Doom {
    /// Has the process end where its life says.
    ///
    /// # Errors
    /// There is no such point.
    pub fn of(life: &Life, sink: &Arc<PipeSink>) -> anyhow::Result<Arc<Self>> {
        let point = |fatal: &Fatal| Some((CrashPoint::from_name(&fatal.point)?, fatal.visit));
        let zeros = || CrashPoint::ALL.iter().map(|_| AtomicU64::new(0)).collect();
        let doom = Arc::new(Self {
            sink: Arc::clone(sink),
            fatal: life.fatal.iter().map(point).collect::<Option<_>>().context("no such point")?,
            after: life.after,
            visits: zeros(),
            counted: zeros(),
        });
        let hears = Arc::clone(&doom);
        set_crash_hook(Box::new(move |point| hears.reached(point)));
        Ok(doom)
    }

    fn reached(&self, point: CrashPoint) {
        self.visits[point as usize].fetch_add(1, Ordering::SeqCst);
        if self.sink.acknowledged() < self.after {
            return;
        }
        let visit = 1 + self.counted[point as usize].fetch_add(1, Ordering::SeqCst);
        if self.fatal.contains(&(point, visit)) {
            self.sink.die(|| Event::Dying(Fatal { point: point.name().into(), visit }, self.visits()));
        }
    }

    /// What was visited so far.
    pub fn visits(&self) -> Visits {
        let visits = CrashPoint::ALL.iter().zip(&self.visits);
        let counts = visits.map(|(point, count)| (point.name().to_owned(), count.load(Ordering::SeqCst)));
        counts.filter(|(_, count)| *count > 0).collect()
    }
}
