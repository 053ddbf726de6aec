//! Whether it all held, and if not, why not.
//!
//! [`Evidence::is_good`] asks each part; a run without any part would pass, which is the one thing that a report must never
//! say. So there are reasons, and "nothing was run" is one of them.

use crate::layer_result::LayerResult;
use crate::run_report::RunReport;

use super::format::plural;

/// See the [module](self).
pub struct RunVerdict {
    /// Every reason why it did not hold.
    pub reasons: Vec<String>,
    interrupted: bool,
    /// What could not be run, which is no reason, and must be said.
    skipped: Vec<String>,
    /// What there was no time or no means for, of what was run.
    caveats: Vec<String>,
}

impl RunVerdict {
    /// Of what was shown.
    pub fn of(run: &RunReport) -> Self {
        let mut why_not = Vec::new();
        let failures = run.layers.iter().map(|layer| layer.failures.len()).sum();
        if failures > 0 {
            why_not.push(plural(failures, "failure"));
        }
        let interrupted = run.interrupted;
        for layer in run.layers.iter().filter(|layer| layer.failures.is_empty() && !layer.passed()) {
            why_not.push(format!("{} verified no commit", layer.layer));
        }
        if !run.coverage_gaps.is_empty() {
            why_not.push(plural(run.coverage_gaps.len(), "gap"));
        }
        let survivors = run.mutants.iter().filter(|mutant| mutant.found_by.is_none()).count();
        if survivors > 0 {
            why_not.push(plural(survivors, "surviving mutant"));
        }
        if !interrupted && run.mutants.is_empty() && run.layers.iter().all(has_not_run) {
            why_not.push("nothing was run".into());
        }
        let skipped = run.layers.iter().filter(|layer| layer.skipped.is_some() && has_not_run(layer));
        let caveats_of = |layer: &LayerResult| {
            let name = layer.layer.clone();
            layer.caveats().into_iter().map(move |what| format!("{name}: {what}"))
        };
        Self {
            reasons: why_not,
            interrupted,
            skipped: skipped.map(|layer| layer.layer.clone()).collect(),
            caveats: run.layers.iter().flat_map(caveats_of).collect(),
        }
    }

    /// Whether it all held, and something was there to hold.
    pub fn passed(&self) -> bool {
        self.reasons.is_empty() && !self.interrupted
    }

    /// In a word.
    pub fn word(&self) -> &'static str {
        match (self.reasons.is_empty(), self.interrupted) {
            (true, false) => "HELD",
            (true, true) => "INTERRUPTED",
            (false, _) => "FAILED",
        }
    }

    /// In a sentence.
    pub fn summary(&self) -> String {
        let mut text = match (self.reasons.is_empty(), self.interrupted) {
            (true, false) => "every promise held".into(),
            (true, true) => "nothing was broken until then".into(),
            (false, _) => self.reasons.join(", "),
        };
        if self.interrupted && !self.reasons.is_empty() {
            text += ", and then it was interrupted";
        }
        let skipped = (!self.skipped.is_empty()).then(|| format!("skipped: {}", self.skipped.join(", ")));
        [text].into_iter().chain(skipped).chain(self.caveats.clone()).collect::<Vec<_>>().join("; ")
    }
}

/// What became of one layer, in a word.
pub fn layer_verdict(layer: &LayerResult) -> &'static str {
    match (layer.passed(), &layer.skipped) {
        (true, Some(_)) => "SKIPPED",
        (true, None) => "held",
        (false, _) if layer.failures.is_empty() => "NOTHING VERIFIED",
        (false, _) => "BROKEN",
    }
}

fn has_not_run(layer: &LayerResult) -> bool {
    layer.cases == 0
}
