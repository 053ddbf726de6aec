//! Everything that a run of the harness has shown, in a form that can be kept and drawn.

use serde::{Deserialize, Serialize};

use crate::layer_result::LayerResult;

/// What every command that runs something writes and `report` reads.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct RunReport {
    /// The version of the program.
    pub version: String,
    /// When it began, as RFC 3339.
    pub started: String,
    /// The command that was run.
    pub command: String,
    /// How long it took, in seconds.
    pub seconds: f64,
    /// Whether somebody ended it before it was done.
    #[serde(default)]
    pub interrupted: bool,
    /// One for each layer.
    pub layers: Vec<LayerResult>,
    /// One for each mutant that was tried.
    pub mutants: Vec<MutantResult>,
    /// Points that should have been hit and were not, or the other way round.
    pub coverage_gaps: Vec<String>,
}

/// What became of a mutant.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MutantResult {
    /// Its name.
    pub mutant: String,
    /// What it does wrong.
    pub description: String,
    /// The layer that found it; none has, if it survived.
    pub found_by: Option<String>,
    /// The promise that it broke.
    pub invariant: Option<String>,
    /// How long it lived, in seconds.
    pub seconds: f64,
    /// The command line that shows it.
    pub replay: Option<String>,
    /// What every layer made of it that it went through.
    #[serde(default)]
    pub trials: Vec<MutantTrial>,
}

/// A mutant in one layer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MutantTrial {
    /// The layer.
    pub layer: String,
    /// In how many cases it was found.
    pub found: u64,
    /// Of how many.
    pub cases: u64,
    /// How long it took to the first of them, or in vain, in seconds.
    pub seconds: f64,
    /// The command line of the first.
    pub replay: Option<String>,
}

impl RunReport {
    /// Nothing yet, of a command that begins now.
    pub fn start(command: &str) -> Self {
        let started = jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        Self { version: env!("CARGO_PKG_VERSION").into(), started, command: command.into(), ..Self::default() }
    }

    /// Says that it was ended before it was done. A layer that had not come to its first case has nothing to say.
    pub fn mark_interrupted(&mut self) {
        self.interrupted = true;
        self.layers.retain(|layer| layer.cases > 0 || layer.skipped.is_some() || !layer.failures.is_empty());
    }

    /// Adds what a layer has to say, to what it has said before if it has.
    pub fn add(&mut self, outcome: LayerResult) {
        match self.layers.iter_mut().find(|existing| existing.layer == outcome.layer) {
            Some(existing) => existing.add(outcome),
            None => self.layers.push(outcome),
        }
    }

    /// Whether everything held and every mutant was found. Where nothing was run nothing held, nor where not all was.
    pub fn passed(&self) -> bool {
        let something_ran = !self.mutants.is_empty() || self.layers.iter().any(|layer| layer.cases > 0);
        something_ran
            && !self.interrupted
            && self.layers.iter().all(LayerResult::passed)
            && self.coverage_gaps.is_empty()
            && self.mutants.iter().all(|mutant| mutant.found_by.is_some())
    }
}
