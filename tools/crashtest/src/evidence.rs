//! Everything that a run of the harness has shown, in a form that can be kept and drawn.

use serde::{Deserialize, Serialize};

use crate::outcome::Outcome;

/// What `quick`, `soak` and `mutants` write and `report` reads.
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
    /// In how many cases of each layer tried it was found, and of how many.
    pub found: Vec<(String, u64, u64)>,
    /// The command line that shows it.
    pub replay: Option<String>,
}

impl Evidence {
    /// Nothing yet, of a command that begins now.
    pub fn begin(command: &str) -> Self {
        let began = jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        Self { version: env!("CARGO_PKG_VERSION").into(), began, command: command.into(), ..Self::default() }
    }

    /// Whether everything held and every mutant was found. Where nothing was run nothing held.
    pub fn is_good(&self) -> bool {
        let something_ran = !self.mutants.is_empty() || self.layers.iter().any(|layer| layer.cases > 0);
        something_ran
            && self.layers.iter().all(Outcome::is_good)
            && self.gaps.is_empty()
            && self.mutants.iter().all(|mutant| mutant.layer.is_some())
    }
}
