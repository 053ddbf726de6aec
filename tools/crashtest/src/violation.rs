//! A violated invariant.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::checker::Report;

/// The name of the invariant that the columns fit together: for example, every value has its
/// version.
pub const STRUCTURE: &str = "structure";

/// A violation of one invariant. See the [module](self).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Violation {
    /// The name of the invariant.
    pub invariant: String,
    /// What was found.
    pub details: String,
}

impl Violation {
    /// A violation of `invariant`.
    pub fn new(invariant: &str, details: impl Into<String>) -> Self {
        Self { invariant: invariant.into(), details: details.into() }
    }

    /// Sorts structural violations last, because they mostly follow from another violation.
    pub fn sort(violations: &mut [Self]) {
        violations.sort_by_key(|violations| violations.invariant == STRUCTURE);
    }

    /// The violations that the checker found.
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
    fn structural_violations_sort_last() {
        let named = |names: &[&str]| names.iter().map(|name| Violation::new(name, "")).collect::<Vec<_>>();
        let mut violations = named(&[STRUCTURE, "no locks left", STRUCTURE, "isolation"]);
        Violation::sort(&mut violations);
        assert_eq!(violations, named(&["no locks left", "isolation", STRUCTURE, STRUCTURE]));
    }
}
