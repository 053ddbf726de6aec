//! What a layer of the harness has to say when it is done.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::violation::Broken;

/// Counts by place and point.
pub type Counts = BTreeMap<String, BTreeMap<String, u64>>;

/// The result of one layer.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Outcome {
    /// The layer's name, which is also its command.
    pub layer: String,
    /// How many cases were run to their end.
    pub cases: u64,
    /// How many transactions they had.
    pub transactions: u64,
    /// How many commits were acknowledged.
    pub acknowledged: u64,
    /// How much that was not synced was really lost, in the layer's own unit; zero where the layer loses nothing.
    pub lost: u64,
    /// How many commits nobody had been told of and that were there.
    pub unanswered: u64,
    /// How often each point was visited, by place and point.
    pub visits: Counts,
    /// How often a process was killed there, and that counted.
    #[serde(default)]
    pub deaths: Counts,
    /// Why nothing was run, if so.
    pub skipped: Option<String>,
    /// What went wrong.
    pub failures: Vec<Failure>,
    /// Other figures, by name; lists are plotted.
    pub figures: BTreeMap<String, Vec<f64>>,
    /// How long it took, in seconds.
    pub seconds: f64,
}

/// A case in which a promise was broken.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Failure {
    /// The command line that repeats it.
    pub replay: String,
    /// What was broken.
    pub broken: Vec<Broken>,
    /// Where the store, the history and the log are kept.
    pub kept: Option<PathBuf>,
}

impl Outcome {
    /// Nothing yet.
    pub fn of(layer: &str) -> Self {
        Self { layer: layer.into(), ..Self::default() }
    }

    /// Whether it held, and something was there to hold.
    pub fn is_good(&self) -> bool {
        self.failures.is_empty() && (self.skipped.is_some() || (self.cases > 0 && self.acknowledged > 0))
    }

    /// Counts visits of a point.
    pub fn visit(&mut self, place: &str, point: &str, visits: u64) {
        *self.visits.entry(place.into()).or_default().entry(point.into()).or_default() += visits;
    }

    /// How many deaths counted.
    pub fn died(&self) -> u64 {
        self.deaths.values().flat_map(BTreeMap::values).sum()
    }

    /// Counts deaths at a point.
    pub fn death(&mut self, place: &str, point: &str, deaths: u64) {
        *self.deaths.entry(place.into()).or_default().entry(point.into()).or_default() += deaths;
    }

    /// Adds a figure.
    pub fn figure(&mut self, name: &str, value: f64) {
        self.figures.entry(name.into()).or_default().push(value);
    }

    /// Adds a figure that is a count.
    pub fn count(&mut self, name: &str, value: u64) {
        self.figure(name, float(value));
    }

    /// Adds another's counts and failures, as of a further run of the same layer. What was skipped in one and run in the other
    /// was run.
    pub fn add(&mut self, other: Self) {
        self.skipped = self.skipped.take().filter(|_| other.skipped.is_some());
        self.cases += other.cases;
        self.transactions += other.transactions;
        self.acknowledged += other.acknowledged;
        self.lost += other.lost;
        self.unanswered += other.unanswered;
        for (place, points) in other.visits {
            for (point, visits) in points {
                self.visit(&place, &point, visits);
            }
        }
        for (place, points) in other.deaths {
            for (point, deaths) in points {
                self.death(&place, &point, deaths);
            }
        }
        self.failures.extend(other.failures);
        for (name, mut figures) in other.figures {
            self.figures.entry(name).or_default().append(&mut figures);
        }
        self.seconds += other.seconds;
    }
}

/// A count as a float, for averages and plots.
#[allow(clippy::cast_precision_loss)] // Nobody looks at the last digits of a count beyond 2^53.
pub fn float(number: u64) -> f64 {
    number as f64
}
