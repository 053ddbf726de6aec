//! A broken promise.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::checker::Report;

/// Every version has its value, and every value a version.
pub const STRUCTURE: &str = "structure";

/// See the [module](self).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Violation {
    /// Which promise, by its number in DESIGN.md.
    pub invariant: String,
    /// How it shows.
    pub details: String,
}

impl Violation {
    /// A broken promise.
    pub fn new(invariant: &str, details: impl Into<String>) -> Self {
        Self { invariant: invariant.into(), details: details.into() }
    }

    /// Puts what clients were promised first, and what is wrong below the store, which mostly follows from it, last.
    pub fn sort(violations: &mut [Self]) {
        violations.sort_by_key(|violations| violations.invariant == STRUCTURE);
    }

    /// Those that the checker found.
    pub fn found_by_checker(report: &Report) -> Vec<Self> {
        report.violations.iter().map(|violation| Self::new("isolation", violation.to_string())).collect()
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.invariant, self.details)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_update_is_named_before_the_value_that_it_left_without_a_version() {
        let named = |names: &[&str]| names.iter().map(|name| Violation::new(name, "")).collect::<Vec<_>>();
        let mut violations = named(&[STRUCTURE, "no locks left", STRUCTURE, "isolation"]);
        Violation::sort(&mut violations);
        assert_eq!(violations, named(&["no locks left", "isolation", STRUCTURE, STRUCTURE]));
    }
}
