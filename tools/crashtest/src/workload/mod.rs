//! What clients do, and an invariant that must hold in every snapshot.
//!
//! The checker checks the reads and writes of all workloads. In addition each workload has an
//! invariant that users would rely on. The invariant is checked in every snapshot, and holds only
//! if transactions are atomic and isolated.

mod bank;
mod fork;
mod index;
mod large;
mod list;
mod register;
mod set;
mod skew;

use std::collections::BTreeMap;
use std::fmt;

use percolite::Error;

use crate::recorded_txn::RecordedTxn;

/// Rows by key, as a snapshot shows them.
pub type State = BTreeMap<String, String>;

/// See the [module](self).
pub trait Workload: Send + Sync {
    /// Its name, as the harness prints and reads it.
    fn name(&self) -> &'static str;

    /// Writes the initial rows if they are missing. Transactions may run before they are written.
    ///
    /// # Errors
    /// Errors of the store.
    fn load(&self, txn: &mut RecordedTxn<'_>) -> Result<(), Error>;

    /// Runs the operations of one transaction.
    ///
    /// # Errors
    /// Errors of the store.
    fn transaction(&self, txn: &mut RecordedTxn<'_>) -> Result<(), Error>;

    /// Checks the invariant in a state that a snapshot has shown.
    ///
    /// # Errors
    /// A description of the violation.
    fn check(&self, state: &State) -> Result<(), String>;
}

impl fmt::Debug for dyn Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

pub use register::COUNTER;
pub use skew::write_skews;

/// All workloads with small transactions.
pub const ALL: &[&dyn Workload] =
    &[&bank::Bank, &list::List, &register::Register, &index::Index, &set::Set, &skew::Skew, &fork::Fork];

/// The large workload: most of its transactions have more rows than one batch may have.
pub const LARGE: &dyn Workload = &large::Large { large_of_six: 4 };
/// As [`LARGE`], but most transactions are small, for tests with little time.
pub const RARELY_LARGE: &dyn Workload = &large::Large { large_of_six: 1 };

/// The workload with the most deletions.
pub const SET: &dyn Workload = &set::Set;

/// The workload of this name.
pub fn named(name: &str) -> Option<&'static dyn Workload> {
    ALL.iter().copied().chain([LARGE]).find(|workload| workload.name() == name)
}

/// The rows of a state whose keys begin with `prefix`.
fn with_prefix<'a>(state: &'a State, prefix: &'a str) -> impl Iterator<Item = (&'a str, &'a str)> {
    let rows = state.range(prefix.to_owned()..).take_while(move |(key, _)| key.starts_with(prefix));
    rows.map(|(key, value)| (key.as_str(), crate::value_encoding::body(value)))
}

/// Rows for a message, with their writers.
fn describe_rows<'a>(state: &State, keys: impl IntoIterator<Item = &'a str>) -> String {
    let row = |key: &str| match state.get(key) {
        Some(value) => {
            format!("{key} = {} ({})", crate::value_encoding::body(value), crate::value_encoding::writer(value))
        }
        None => format!("{key} is missing"),
    };
    keys.into_iter().map(row).collect::<Vec<_>>().join(", ")
}

fn number(body: &str) -> Result<i64, String> {
    body.parse().map_err(|_| format!("{body:?} is not a number"))
}

/// The number in a row that a transaction has read; 0 if the value is damaged, which the checker
/// reports.
fn number_in(shown: Option<&String>) -> i64 {
    shown.and_then(|shown| crate::value_encoding::body(shown).parse().ok()).unwrap_or_default()
}
