//! Everything that a run of the harness has shown, in a form that can be kept and drawn.

use serde::{Deserialize, Serialize};

use crate::outcome::Outcome;

/// What every command that runs something writes and `report` reads.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Evidence {
    /// The version of the program.
    pub version: String,
    /// When it began, as RFC 3339.
    pub began: String,
    /// The command that was run.
    pub command: String,
    /// How long it took, in seconds.
    pub seconds: f64,
    /// Whether somebody ended it before it was done.
    #[serde(default)]
    pub interrupted: bool,
    /// One for each layer.
    pub layers: Vec<Outcome>,
    /// One for each mutant that was tried.
    pub mutants: Vec<MutantResult>,
    /// Points that should have been hit and were not, or the other way round.
    pub gaps: Vec<String>,
}

/// What became of a mutant.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MutantResult {
    /// Its name.
    pub mutant: String,
    /// What it does wrong.
    pub text: String,
    /// The layer that found it; none has, if it survived.
    pub layer: Option<String>,
    /// The promise that it broke.
    pub promise: Option<String>,
    /// How long it lived, in seconds.
    pub seconds: f64,
    /// The command line that shows it.
    pub replay: Option<String>,
    /// What every layer made of it that it went through.
    #[serde(default)]
    pub tried: Vec<Tried>,
}

/// A mutant in one layer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Tried {
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

impl Evidence {
    /// Nothing yet, of a command that begins now.
    pub fn begin(command: &str) -> Self {
        let began = jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        Self { version: env!("CARGO_PKG_VERSION").into(), began, command: command.into(), ..Self::default() }
    }

    /// Says that it was ended before it was done. A layer that had not come to its first case has nothing to say.
    pub fn cut_short(&mut self) {
        self.interrupted = true;
        self.layers.retain(|layer| layer.cases > 0 || layer.skipped.is_some() || !layer.failures.is_empty());
    }

    /// Adds what a layer has to say, to what it has said before if it has.
    pub fn add(&mut self, outcome: Outcome) {
        match self.layers.iter_mut().find(|known| known.layer == outcome.layer) {
            Some(known) => known.add(outcome),
            None => self.layers.push(outcome),
        }
    }

    /// Whether everything held and every mutant was found. Where nothing was run nothing held, nor where not all was.
    pub fn is_good(&self) -> bool {
        let something_ran = !self.mutants.is_empty() || self.layers.iter().any(|layer| layer.cases > 0);
        something_ran
            && !self.interrupted
            && self.layers.iter().all(Outcome::is_good)
            && self.gaps.is_empty()
            && self.mutants.iter().all(|mutant| mutant.layer.is_some())
    }
}
