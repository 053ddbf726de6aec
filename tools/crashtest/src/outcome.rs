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
    /// How often a case did what it was for, by way and point: a process died there, a call failed there.
    #[serde(default)]
    pub hits: Counts,
    /// How far it has come through all that its table expects; nothing if it was not to come through.
    #[serde(default)]
    pub rotation: Option<Rotation>,
    /// Why nothing was run, if so.
    pub skipped: Option<String>,
    /// Parts that were not run, and why.
    #[serde(default)]
    pub left_out: Vec<String>,
    /// What went wrong.
    pub failures: Vec<Failure>,
    /// Other figures, by name; lists are plotted.
    pub figures: BTreeMap<String, Vec<f64>>,
    /// How long it took, in seconds.
    pub seconds: f64,
}

/// A way through all the cases that a table asks for, which may take longer than one run has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rotation {
    /// Cases run; more than there are if it has come round.
    pub done: u64,
    /// Cases.
    pub of: u64,
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

    /// Whether it has come through everything that its table expects.
    pub fn has_come_round(&self) -> bool {
        self.rotation.is_some_and(|Rotation { done, of }| done >= of)
    }

    /// What must be said beside the verdict: what was left out, and how much of its table a run had time for.
    pub fn reservations(&self) -> Vec<String> {
        let part = self.rotation.filter(|_| !self.has_come_round());
        let part = part.map(|Rotation { done, of }| format!("rotation {} % done", 100 * done / of.max(1)));
        self.left_out.iter().cloned().chain(part).collect()
    }

    /// Counts a hit.
    pub fn hit(&mut self, way: &str, point: &str) {
        *self.hits.entry(way.into()).or_default().entry(point.into()).or_default() += 1;
    }

    /// How often a point was hit.
    pub fn hits_at(&self, way: &str, point: &str) -> u64 {
        self.hits.get(way).and_then(|points| points.get(point)).copied().unwrap_or_default()
    }

    /// Counts visits of a point.
    pub fn visit(&mut self, place: &str, point: &str, visits: u64) {
        *self.visits.entry(place.into()).or_default().entry(point.into()).or_default() += visits;
    }

    /// How many processes died where they were to.
    pub fn died(&self) -> u64 {
        let deadly = |way: &&String| way.starts_with("kill") || way.ends_with("KILL");
        self.hits.iter().filter(|(way, _)| deadly(way)).flat_map(|(_, points)| points.values()).sum()
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
        for (way, points) in other.hits {
            for (point, hits) in points {
                *self.hits.entry(way.clone()).or_default().entry(point).or_default() += hits;
            }
        }
        self.rotation = match (self.rotation, other.rotation) {
            (Some(one), Some(two)) => Some(Rotation { done: one.done + two.done, of: one.of.max(two.of) }),
            (one, two) => one.or(two),
        };
        for part in other.left_out {
            if !self.left_out.contains(&part) {
                self.left_out.push(part);
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
#[allow(clippy::cast_precision_loss, reason = "counts stay below 2^53")]
pub fn float(number: u64) -> f64 {
    number as f64
}
