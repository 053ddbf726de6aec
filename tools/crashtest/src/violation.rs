//! A broken promise.

use std::fmt;

use serde::Serialize;

use crate::checker::Report;

/// See the [module](self).
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Broken {
    /// Which promise, by its number in DESIGN.md.
    pub promise: &'static str,
    /// How it shows.
    pub how: String,
}

impl Broken {
    /// A broken promise.
    pub fn new(promise: &'static str, how: impl Into<String>) -> Self {
        Self { promise, how: how.into() }
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
