//! Whether a run passed, and if not, why not.
//!
//! [`RunReport::passed`] checks each part. A run without any part would pass every check, so
//! "nothing was run" is a reason of its own.

use crate::layer_result::LayerResult;
use crate::run_report::RunReport;

use super::format::plural;

/// The result of a run. See the [module](self).
pub struct RunResult {
    /// The reasons why it failed.
    pub reasons: Vec<String>,
    interrupted: bool,
    /// Layers that could not be run. This is no failure.
    skipped: Vec<String>,
    /// Parts of layers that were not run.
    caveats: Vec<String>,
}

impl RunResult {
    /// The result of a run.
    pub fn of(run: &RunReport) -> Self {
        let mut reasons = Vec::new();
        let failures = run.layers.iter().map(|layer| layer.failures.len()).sum();
        if failures > 0 {
            reasons.push(plural(failures, "failure"));
        }
        let interrupted = run.interrupted;
        for layer in run.layers.iter().filter(|layer| layer.failures.is_empty() && !layer.passed()) {
            reasons.push(format!("{} checked no commits", layer.layer));
        }
        if !run.coverage_gaps.is_empty() {
            reasons.push(plural(run.coverage_gaps.len(), "gap"));
        }
        let survivors = run.mutants.iter().filter(|mutant| mutant.found_by.is_none()).count();
        if survivors > 0 {
            reasons.push(plural(survivors, "surviving mutant"));
        }
        if !interrupted && run.mutants.is_empty() && run.layers.iter().all(has_not_run) {
            reasons.push("nothing was run".into());
        }
        let skipped = run.layers.iter().filter(|layer| layer.skipped.is_some() && has_not_run(layer));
        let caveats_of = |layer: &LayerResult| {
            let name = layer.layer.clone();
            layer.caveats().into_iter().map(move |what| format!("{name}: {what}"))
        };
        Self {
            reasons,
            interrupted,
            skipped: skipped.map(|layer| layer.layer.clone()).collect(),
            caveats: run.layers.iter().flat_map(caveats_of).collect(),
        }
    }

    /// Whether the run passed.
    pub fn passed(&self) -> bool {
        self.reasons.is_empty() && !self.interrupted
    }

    /// The result in a word.
    pub fn word(&self) -> &'static str {
        match (self.reasons.is_empty(), self.interrupted) {
            (true, false) => "PASSED",
            (true, true) => "INTERRUPTED",
            (false, _) => "FAILED",
        }
    }

    /// The result in a sentence.
    pub fn summary(&self) -> String {
        let mut text = match (self.reasons.is_empty(), self.interrupted) {
            (true, false) => "all invariants held".into(),
            (true, true) => "no violation before the interruption".into(),
            (false, _) => self.reasons.join(", "),
        };
        if self.interrupted && !self.reasons.is_empty() {
            text += ", and then it was interrupted";
        }
        let skipped = (!self.skipped.is_empty()).then(|| format!("skipped: {}", self.skipped.join(", ")));
        [text].into_iter().chain(skipped).chain(self.caveats.clone()).collect::<Vec<_>>().join("; ")
    }
}

/// The result of one layer, in a word.
pub fn layer_word(layer: &LayerResult) -> &'static str {
    match (layer.passed(), &layer.skipped) {
        (true, Some(_)) => "SKIPPED",
        (true, None) => "passed",
        (false, _) if layer.failures.is_empty() => "NO COMMITS CHECKED",
        (false, _) => "FAILED",
    }
}

fn has_not_run(layer: &LayerResult) -> bool {
    layer.cases == 0
}
