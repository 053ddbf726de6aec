//! Whether it all held, and if not, why not.
//!
//! [`Evidence::is_good`] asks each part; a run without any part would pass, which is the one thing that a report must never
//! say. So there are reasons, and "nothing was run" is one of them.

use crate::evidence::Evidence;
use crate::outcome::Outcome;

use super::words::some;

/// See the [module](self).
pub struct Verdict {
    /// Every reason why it did not hold.
    pub why_not: Vec<String>,
    interrupted: bool,
    /// What could not be run, which is no reason, and must be said.
    skipped: Vec<String>,
    /// What there was no time or no means for, of what was run.
    reservations: Vec<String>,
}

impl Verdict {
    /// Of what was shown.
    pub fn of(evidence: &Evidence) -> Self {
        let mut why_not = Vec::new();
        let failures = evidence.layers.iter().map(|layer| layer.failures.len()).sum();
        if failures > 0 {
            why_not.push(some(failures, "failure"));
        }
        let interrupted = evidence.interrupted;
        for layer in evidence.layers.iter().filter(|layer| layer.failures.is_empty() && !layer.is_good()) {
            why_not.push(format!("{} verified no commit", layer.layer));
        }
        if !evidence.gaps.is_empty() {
            why_not.push(some(evidence.gaps.len(), "gap"));
        }
        let survivors = evidence.mutants.iter().filter(|mutant| mutant.layer.is_none()).count();
        if survivors > 0 {
            why_not.push(some(survivors, "surviving mutant"));
        }
        if !interrupted && evidence.mutants.is_empty() && evidence.layers.iter().all(has_not_run) {
            why_not.push("nothing was run".into());
        }
        let skipped = evidence.layers.iter().filter(|layer| layer.skipped.is_some() && has_not_run(layer));
        let reserved = |layer: &Outcome| {
            let name = layer.layer.clone();
            layer.reservations().into_iter().map(move |what| format!("{name}: {what}"))
        };
        Self {
            why_not,
            interrupted,
            skipped: skipped.map(|layer| layer.layer.clone()).collect(),
            reservations: evidence.layers.iter().flat_map(reserved).collect(),
        }
    }

    /// Whether it all held, and something was there to hold.
    pub fn held(&self) -> bool {
        self.why_not.is_empty() && !self.interrupted
    }

    /// In a word.
    pub fn word(&self) -> &'static str {
        match (self.why_not.is_empty(), self.interrupted) {
            (true, false) => "HELD",
            (true, true) => "INTERRUPTED",
            (false, _) => "FAILED",
        }
    }

    /// In a sentence.
    pub fn sentence(&self) -> String {
        let mut told = match (self.why_not.is_empty(), self.interrupted) {
            (true, false) => "every promise held".into(),
            (true, true) => "nothing was broken until then".into(),
            (false, _) => self.why_not.join(", "),
        };
        if self.interrupted && !self.why_not.is_empty() {
            told += ", and then it was interrupted";
        }
        let skipped = (!self.skipped.is_empty()).then(|| format!("skipped: {}", self.skipped.join(", ")));
        [told].into_iter().chain(skipped).chain(self.reservations.clone()).collect::<Vec<_>>().join("; ")
    }
}

/// What became of one layer, in a word.
pub fn word_of(layer: &Outcome) -> &'static str {
    match (layer.is_good(), &layer.skipped) {
        (true, Some(_)) => "SKIPPED",
        (true, None) => "held",
        (false, _) if layer.failures.is_empty() => "NOTHING VERIFIED",
        (false, _) => "BROKEN",
    }
}

fn has_not_run(layer: &Outcome) -> bool {
    layer.cases == 0
}
