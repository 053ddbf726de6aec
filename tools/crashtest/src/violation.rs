//! A broken promise.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::checker::Report;

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
