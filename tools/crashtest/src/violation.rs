//! A broken promise.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::checker::Report;

/// Every version has its value, and every value a version.
pub const STRUCTURE: &str = "I7 structure";

/// See the [module](self).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Broken {
    /// Which promise, by its number in DESIGN.md.
    pub promise: String,
    /// How it shows.
    pub how: String,
}

impl Broken {
    /// A broken promise.
    pub fn new(promise: &str, how: impl Into<String>) -> Self {
        Self { promise: promise.into(), how: how.into() }
    }

    /// Puts what clients were promised first, and what is wrong below the store, which mostly follows from it, last.
    pub fn sort(broken: &mut [Self]) {
        broken.sort_by_key(|broken| broken.promise == STRUCTURE);
    }

    /// Those that the checker found.
    pub fn found_by_checker(report: &Report) -> Vec<Self> {
        report.violations.iter().map(|violation| Self::new("I5 isolation", violation.to_string())).collect()
    }
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.promise, self.how)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_update_is_named_before_the_value_that_it_left_without_a_version() {
        let named = |names: &[&str]| names.iter().map(|name| Broken::new(name, "")).collect::<Vec<_>>();
        let mut broken = named(&[STRUCTURE, "I6 no lock left", STRUCTURE, "I5 isolation"]);
        Broken::sort(&mut broken);
        assert_eq!(broken, named(&["I6 no lock left", "I5 isolation", STRUCTURE, STRUCTURE]));
    }
}
