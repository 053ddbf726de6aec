//! The report of a run, as JSON: what every command writes and `report` reads.

use serde::{Deserialize, Serialize};

use crate::layer_result::LayerResult;

/// The report of a run. See the [module](self).
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct RunReport {
    /// The version of the program.
    pub version: String,
    /// When the run started, as RFC 3339.
    pub started: String,
    /// The command that was run.
    pub command: String,
    /// The time taken, in seconds.
    pub seconds: f64,
    /// Whether the run was interrupted.
    #[serde(default)]
    pub interrupted: bool,
    /// The result of each layer.
    pub layers: Vec<LayerResult>,
    /// The result of each mutant.
    pub mutants: Vec<MutantResult>,
    /// Crash points that were expected and not hit, or hit and not expected.
    pub coverage_gaps: Vec<String>,
}

/// The result of one mutant.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MutantResult {
    /// The mutant's name.
    pub mutant: String,
    /// What the mutant does wrong.
    pub description: String,
    /// The layer that found the mutant; `None` if it survived.
    pub found_by: Option<String>,
    /// The invariant that it violated.
    pub invariant: Option<String>,
    /// The time of all layers up to the one that found the mutant, or of all if none did; in
    /// seconds.
    pub seconds: f64,
    /// The command line that reproduces the failure.
    pub replay: Option<String>,
    /// The trial in each layer.
    #[serde(default)]
    pub trials: Vec<MutantTrial>,
}

/// A mutant in one layer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MutantTrial {
    /// The layer.
    pub layer: String,
    /// How many cases found the mutant.
    pub found: u64,
    /// How many cases were run.
    pub cases: u64,
    /// The time to the first finding, or of the whole trial if there is none; in seconds.
    pub seconds: f64,
    /// The command line that reproduces the first finding.
    pub replay: Option<String>,
}

impl RunReport {
    /// An empty report of a command that starts now.
    pub fn start(command: &str) -> Self {
        let started = jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        Self { version: env!("CARGO_PKG_VERSION").into(), started, command: command.into(), ..Self::default() }
    }

    /// Marks the report as interrupted and drops layers without a case.
    pub fn mark_interrupted(&mut self) {
        self.interrupted = true;
        self.layers.retain(|layer| layer.cases > 0 || layer.skipped.is_some() || !layer.failures.is_empty());
    }

    /// Adds a layer's result, or merges it with an earlier result of the same layer.
    pub fn add(&mut self, outcome: LayerResult) {
        match self.layers.iter_mut().find(|existing| existing.layer == outcome.layer) {
            Some(existing) => existing.add(outcome),
            None => self.layers.push(outcome),
        }
    }

    /// Whether the run passed: something ran, nothing was interrupted, every layer passed, and
    /// every mutant was found.
    pub fn passed(&self) -> bool {
        let something_ran = !self.mutants.is_empty() || self.layers.iter().any(|layer| layer.cases > 0);
        something_ran
            && !self.interrupted
            && self.layers.iter().all(LayerResult::passed)
            && self.coverage_gaps.is_empty()
            && self.mutants.iter().all(|mutant| mutant.found_by.is_some())
    }
}
