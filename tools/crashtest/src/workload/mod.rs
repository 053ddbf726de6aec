//! What clients do, and what must be true of it at every moment.
//!
//! The checker judges what every workload's transactions read and wrote. A workload's own promise comes on top: something that
//! its users would count on, judged at every snapshot, and true only if transactions are whole and isolated.

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

    /// Writes the rows that everything begins with, if they are not there. Transactions may run before it.
    ///
    /// # Errors
    /// Those of the store.
    fn load(&self, txn: &mut RecordedTxn<'_>) -> Result<(), Error>;

    /// Does one transaction's work.
    ///
    /// # Errors
    /// Those of the store.
    fn transaction(&self, txn: &mut RecordedTxn<'_>) -> Result<(), Error>;

    /// Says what is wrong with a state that a snapshot has shown.
    ///
    /// # Errors
    /// What is wrong.
    fn check(&self, state: &State) -> Result<(), String>;
}

impl fmt::Debug for dyn Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

pub use register::COUNTER;
pub use skew::write_skews;

/// All workloads of ordinary size.
pub const ALL: &[&dyn Workload] =
    &[&bank::Bank, &list::List, &register::Register, &index::Index, &set::Set, &skew::Skew, &fork::Fork];

/// Transactions of more rows than fit into one request.
pub const LARGE: &dyn Workload = &large::Large { large_of_six: 4 };
/// The same, but most are small: for who has no time for many.
pub const RARELY_LARGE: &dyn Workload = &large::Large { large_of_six: 1 };

/// The one that deletes most.
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

/// Rows as a message shows them, with who wrote them.
fn describe_rows<'a>(state: &State, keys: impl IntoIterator<Item = &'a str>) -> String {
    let row = |key: &str| match state.get(key) {
        Some(value) => {
            format!("{key} = {} ({})", crate::value_encoding::body(value), crate::value_encoding::writer(value))
        }
        None => format!("{key} is not there"),
    };
    keys.into_iter().map(row).collect::<Vec<_>>().join(", ")
}

fn number(body: &str) -> Result<i64, String> {
    body.parse().map_err(|_| format!("{body:?} is no number"))
}

/// The number in a row that a transaction has read; a damaged one is the checker's to report.
fn number_in(shown: Option<&String>) -> i64 {
    shown.and_then(|shown| crate::value_encoding::body(shown).parse().ok()).unwrap_or_default()
}
