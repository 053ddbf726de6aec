//! The report on a history: counts and a list of violations.

use std::fmt;

use serde::Serialize;

use crate::history::{History, InternedTransaction, Line, Outcome};

use super::anomaly::Anomaly;
use super::finding::Symptom;
use super::unknown::Resolved;
use super::writers::Writers;

/// The report of the checker.
#[derive(Debug, Serialize)]
pub struct Report {
    /// The result.
    pub result: CheckResult,
    /// The number of transactions.
    pub transactions: usize,
    /// How many were acknowledged as committed.
    pub committed: usize,
    /// How many were aborted.
    pub aborted: usize,
    /// How many have an unknown outcome.
    pub unknown: usize,
    /// How many transactions of unknown outcome, without a recorded commit timestamp, were inferred
    /// to be committed, because a reader saw their values.
    pub inferred_committed: usize,
    /// How many writes repeat the value of another transaction for the same row. The checker cannot
    /// distinguish equal values, so it may miss a wrong read.
    pub duplicate_values: usize,
    /// The first violations of each kind of check.
    pub violations: Vec<IsolationViolation>,
    /// How many violations were found besides those in the list.
    pub more_violations: usize,
}

/// The result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum CheckResult {
    /// A store with snapshot isolation can have produced the history.
    Consistent,
    /// No store with snapshot isolation can have produced it.
    Violated,
    /// No transaction was acknowledged as committed, so nothing was checked.
    NothingChecked,
}

impl CheckResult {
    pub(super) fn of(history: &History, clean: bool) -> Self {
        if !clean {
            Self::Violated
        } else if history.transactions().iter().any(InternedTransaction::is_acknowledged) {
            Self::Consistent
        } else {
            Self::NothingChecked
        }
    }
}

/// A violation of snapshot isolation.
#[derive(Debug, Serialize)]
pub struct IsolationViolation {
    /// The anomaly.
    pub anomaly: Anomaly,
    /// The transaction in which it shows.
    pub transaction: u64,
    /// The row in which the anomaly shows, if it is an anomaly of a row.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// What was expected: a JSON value for reads, a sentence otherwise.
    pub expected: String,
    /// What was found.
    pub found: String,
    /// A minimal set of transactions that shows the violation.
    pub transactions: Vec<u64>,
    /// The minimal set as a history with only the operations that matter. Empty if no small set
    /// shows the violation.
    pub history: Vec<Line>,
}

impl Report {
    pub(super) fn new(
        history: &History,
        writers: &Writers,
        resolved: &Resolved,
        violations: Vec<IsolationViolation>,
        more_violations: usize,
    ) -> Self {
        let count = |outcome| history.transactions().iter().filter(|txn| txn.outcome == outcome).count();
        Self {
            result: CheckResult::of(history, violations.is_empty()),
            transactions: history.transactions().len(),
            committed: count(Outcome::Committed),
            aborted: count(Outcome::Aborted),
            unknown: count(Outcome::Unknown),
            inferred_committed: resolved.inferred.len(),
            duplicate_values: writers.duplicates(),
            more_violations,
            violations,
        }
    }
}

impl IsolationViolation {
    pub(super) fn new(symptom: Symptom, involved: Vec<u64>, history: Vec<Line>) -> Self {
        let Symptom { anomaly, transaction, key, expected, found } = symptom;
        let ids = history.iter().filter_map(|line| match line {
            Line::Transaction(txn) => txn.id,
            _ => None,
        });
        let transactions = if history.is_empty() { involved } else { ids.collect() };
        Self { anomaly, transaction, key, expected, found, transactions, history }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        for violation in &self.violations {
            writeln!(f, "{violation}")?;
        }
        if self.more_violations > 0 {
            writeln!(f, "… and {} more", self.more_violations)?;
        }
        if self.duplicate_values > 0 {
            let count = self.duplicate_values;
            writeln!(
                f,
                "note: {count} writes repeat another transaction's value for the row; the check is weaker for it"
            )?;
        }
        let Self { transactions, committed, aborted, unknown, inferred_committed, .. } = self;
        write!(f, "{transactions} transactions: {committed} committed, {aborted} aborted, {unknown} unknown")?;
        if *inferred_committed > 0 {
            write!(f, " ({inferred_committed} of them inferred to be committed)")?;
        }
        match self.result {
            CheckResult::Consistent => write!(f, "; consistent with snapshot isolation"),
            CheckResult::Violated => match self.violations.len() + self.more_violations {
                1 => write!(f, "; 1 violation"),
                count => write!(f, "; {count} violations"),
            },
            CheckResult::NothingChecked => write!(f, "; nothing was checked"),
        }
    }
}

impl fmt::Display for IsolationViolation {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{} in transaction {}", self.anomaly.name(), self.transaction)?;
        if let Some(key) = &self.key {
            write!(f, ", key {key:?}")?;
        }
        writeln!(f, ": expected {}, found {}", self.expected, self.found)?;
        for line in &self.history {
            writeln!(f, "  {}", serde_json::to_string(line).map_err(|_| fmt::Error)?)?;
        }
        if self.history.is_empty() {
            let names: Vec<_> = self.transactions.iter().map(u64::to_string).collect();
            writeln!(f, "  transactions {}", names.join(", "))?;
        }
        Ok(())
    }
}
