//! The result of one layer.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::violation::Violation;

/// Counts by environment and crash point.
pub type Counts = BTreeMap<String, BTreeMap<String, u64>>;

/// The result of one layer.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct LayerResult {
    /// The layer's name, which is also its subcommand.
    pub layer: String,
    /// How many cases ran to their end.
    pub cases: u64,
    /// How many transactions they ran.
    pub transactions: u64,
    /// How many commits were acknowledged.
    pub acknowledged: u64,
    /// How much unsynced data crashes removed, in the layer's own unit; zero where a layer loses
    /// nothing.
    pub unsynced_lost: u64,
    /// How many commits were found whose client had no acknowledgement.
    pub unacknowledged_commits: u64,
    /// Visits by environment and crash point.
    pub visits: Counts,
    /// How often a process was killed at a crash point, by environment and point; and how often an
    /// error or a kill was injected at a fault site, by error and site.
    #[serde(default)]
    pub hits: Counts,
    /// How much of the case list was run, if the layer has one.
    #[serde(default)]
    pub progress: Option<TableProgress>,
    /// Why the layer was not run, if it was not.
    pub skipped: Option<String>,
    /// Parts that were not run, and why.
    #[serde(default)]
    pub not_run: Vec<String>,
    /// The failed cases.
    pub failures: Vec<Failure>,
    /// Other metrics by name; some lists are plotted.
    pub metrics: BTreeMap<String, Vec<f64>>,
    /// The time taken, in seconds.
    pub seconds: f64,
}

/// Progress through a case list that may be longer than one run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TableProgress {
    /// Cases run; above `total` if the list was run again from its beginning.
    pub done: u64,
    /// Cases in the list.
    pub total: u64,
}

/// A case that violated an invariant.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Failure {
    /// The command line that repeats it.
    pub replay: String,
    /// The violations.
    pub violations: Vec<Violation>,
    /// The directory with the store, the history and the log.
    pub saved_in: Option<PathBuf>,
}

impl LayerResult {
    /// An empty result of this layer.
    pub fn new(layer: &str) -> Self {
        Self { layer: layer.into(), ..Self::default() }
    }

    /// Whether nothing failed, and something was checked or the layer was skipped.
    pub fn passed(&self) -> bool {
        self.failures.is_empty() && (self.skipped.is_some() || (self.cases > 0 && self.acknowledged > 0))
    }

    /// Whether the whole case list was run.
    pub fn is_complete(&self) -> bool {
        self.progress.is_some_and(|TableProgress { done, total: of }| done >= of)
    }

    /// What the report must add to the result: parts not run, and an incomplete case list.
    pub fn caveats(&self) -> Vec<String> {
        let part = self.progress.filter(|_| !self.is_complete());
        let part =
            part.map(|TableProgress { done, total: of }| format!("{} % of the case list done", 100 * done / of.max(1)));
        self.not_run.iter().cloned().chain(part).collect()
    }

    /// Counts a hit. `kind` is the environment of a crash point, or the error at a fault site.
    pub fn count_hit(&mut self, kind: &str, point: &str) {
        *self.hits.entry(kind.into()).or_default().entry(point.into()).or_default() += 1;
    }

    /// How often a point was hit; `kind` as for [`Self::count_hit`].
    pub fn hits_at(&self, kind: &str, point: &str) -> u64 {
        self.hits.get(kind).and_then(|points| points.get(point)).copied().unwrap_or_default()
    }

    /// Counts visits of a point.
    pub fn count_visits(&mut self, environment: &str, point: &str, visits: u64) {
        *self.visits.entry(environment.into()).or_default().entry(point.into()).or_default() += visits;
    }

    /// How many processes were killed at the intended crash point or fault site.
    pub fn kills(&self) -> u64 {
        let deadly = |kind: &&String| kind.starts_with("kill") || kind.ends_with("KILL");
        self.hits.iter().filter(|(kind, _)| deadly(kind)).flat_map(|(_, points)| points.values()).sum()
    }

    /// Adds a value to a metric.
    pub fn metric(&mut self, name: &str, value: f64) {
        self.metrics.entry(name.into()).or_default().push(value);
    }

    /// Adds a count to a metric.
    pub fn count(&mut self, name: &str, value: u64) {
        self.metric(name, float(value));
    }

    /// Adds the result of another run of the same layer. The sum counts as skipped only if both
    /// runs were skipped.
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
