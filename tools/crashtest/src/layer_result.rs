//! What a layer of the harness has to say when it is done.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::violation::Violation;

/// Counts by place and point.
pub type Counts = BTreeMap<String, BTreeMap<String, u64>>;

/// The result of one layer.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct LayerResult {
    /// The layer's name, which is also its command.
    pub layer: String,
    /// How many cases were run to their end.
    pub cases: u64,
    /// How many transactions they had.
    pub transactions: u64,
    /// How many commits were acknowledged.
    pub acknowledged: u64,
    /// How much that was not synced was really lost, in the layer's own unit; zero where the layer loses nothing.
    pub unsynced_lost: u64,
    /// How many commits nobody had been told of and that were there.
    pub unacknowledged_commits: u64,
    /// How often each point was visited, by place and point.
    pub visits: Counts,
    /// How often a case did what it was for, by way and point: a process died there, a call failed there.
    #[serde(default)]
    pub hits: Counts,
    /// How far it has come through all that its table expects; nothing if it was not to come through.
    #[serde(default)]
    pub progress: Option<TableProgress>,
    /// Why nothing was run, if so.
    pub skipped: Option<String>,
    /// Parts that were not run, and why.
    #[serde(default)]
    pub not_run: Vec<String>,
    /// What went wrong.
    pub failures: Vec<Failure>,
    /// Other figures, by name; lists are plotted.
    pub metrics: BTreeMap<String, Vec<f64>>,
    /// How long it took, in seconds.
    pub seconds: f64,
}

/// A way through all the cases that a table asks for, which may take longer than one run has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TableProgress {
    /// Cases run; more than there are if it has come round.
    pub done: u64,
    /// Cases.
    pub total: u64,
}

/// A case in which a promise was broken.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Failure {
    /// The command line that repeats it.
    pub replay: String,
    /// What was broken.
    pub violations: Vec<Violation>,
    /// Where the store, the history and the log are kept.
    pub saved_in: Option<PathBuf>,
}

impl LayerResult {
    /// Nothing yet.
    pub fn new(layer: &str) -> Self {
        Self { layer: layer.into(), ..Self::default() }
    }

    /// Whether it held, and something was there to hold.
    pub fn passed(&self) -> bool {
        self.failures.is_empty() && (self.skipped.is_some() || (self.cases > 0 && self.acknowledged > 0))
    }

    /// Whether it has come through everything that its table expects.
    pub fn is_complete(&self) -> bool {
        self.progress.is_some_and(|TableProgress { done, total: of }| done >= of)
    }

    /// What must be said beside the verdict: what was left out, and how much of its table a run had time for.
    pub fn caveats(&self) -> Vec<String> {
        let part = self.progress.filter(|_| !self.is_complete());
        let part = part.map(|TableProgress { done, total: of }| format!("rotation {} % done", 100 * done / of.max(1)));
        self.not_run.iter().cloned().chain(part).collect()
    }

    /// Counts a hit.
    pub fn count_hit(&mut self, kind: &str, point: &str) {
        *self.hits.entry(kind.into()).or_default().entry(point.into()).or_default() += 1;
    }

    /// How often a point was hit.
    pub fn hits_at(&self, kind: &str, point: &str) -> u64 {
        self.hits.get(kind).and_then(|points| points.get(point)).copied().unwrap_or_default()
    }

    /// Counts visits of a point.
    pub fn count_visits(&mut self, environment: &str, point: &str, visits: u64) {
        *self.visits.entry(environment.into()).or_default().entry(point.into()).or_default() += visits;
    }

    /// How many processes died where they were to.
    pub fn kills(&self) -> u64 {
        let deadly = |kind: &&String| kind.starts_with("kill") || kind.ends_with("KILL");
        self.hits.iter().filter(|(kind, _)| deadly(kind)).flat_map(|(_, points)| points.values()).sum()
    }

    /// Adds a figure.
    pub fn metric(&mut self, name: &str, value: f64) {
        self.metrics.entry(name.into()).or_default().push(value);
    }

    /// Adds a figure that is a count.
    pub fn count(&mut self, name: &str, value: u64) {
        self.metric(name, float(value));
    }

    /// Adds another's counts and failures, as of a further run of the same layer. What was skipped in one and run in the other
    /// was run.
    pub fn add(&mut self, other: Self) {
        self.skipped = self.skipped.take().filter(|_| other.skipped.is_some());
        self.cases += other.cases;
        self.transactions += other.transactions;
        self.acknowledged += other.acknowledged;
        self.unsynced_lost += other.unsynced_lost;
        self.unacknowledged_commits += other.unacknowledged_commits;
        for (environment, points) in other.visits {
            for (point, visits) in points {
                self.count_visits(&environment, &point, visits);
            }
        }
        for (kind, points) in other.hits {
            for (point, hits) in points {
                *self.hits.entry(kind.clone()).or_default().entry(point).or_default() += hits;
            }
        }
        self.progress = match (self.progress, other.progress) {
            (Some(one), Some(two)) => {
                Some(TableProgress { done: one.done + two.done, total: one.total.max(two.total) })
            }
            (one, two) => one.or(two),
        };
        for part in other.not_run {
            if !self.not_run.contains(&part) {
                self.not_run.push(part);
            }
        }
        self.failures.extend(other.failures);
        for (name, mut values) in other.metrics {
            self.metrics.entry(name).or_default().append(&mut values);
        }
        self.seconds += other.seconds;
    }
}

/// A count as a float, for averages and plots.
#[allow(clippy::cast_precision_loss, reason = "counts stay below 2^53")]
pub fn float(number: u64) -> f64 {
    number as f64
}
