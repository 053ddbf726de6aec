//! Histories of transactions, and a checker of snapshot isolation for them.
//!
//! A [`history::History`] says what clients did to a store and what they heard; [`checker::check`] says whether a store with
//! snapshot isolation can have answered so, and if not, which anomaly it is and which few transactions show it.
//!
//! ```
//! use percolite_crashtest::checker::check;
//! use percolite_crashtest::history::History;
//!
//! let text = r#"
//!     {"session": 1, "read_ts": 1, "commit_ts": 2, "outcome": "committed", "ops": [["w", "a", "1"]]}
//!     {"session": 2, "read_ts": 3, "outcome": "committed", "ops": [["r", "a", null]]}
//! "#;
//! let report = check(&History::read(text.as_bytes())?);
//! assert_eq!(report.violations[0].anomaly.name(), "stale-read");
//! # Ok::<_, percolite_crashtest::history::Error>(())
//! ```

pub mod checker;
pub mod client;
#[cfg(feature = "rocks")]
pub mod copies;
pub mod counter;
#[cfg(feature = "rocks")]
pub mod desk;
pub mod dice;
#[cfg(feature = "rocks")]
pub mod disk;
#[cfg(feature = "rocks")]
pub mod doom;
pub mod evidence;
#[cfg(feature = "rocks")]
pub mod examine;
#[cfg(feature = "rocks")]
pub mod fast;
pub mod fenced;
pub mod history;
pub mod interrupt;
pub mod invariants;
#[cfg(feature = "rocks")]
pub mod ioerr;
mod keys;
#[cfg(feature = "rocks")]
pub mod kill;
pub mod layers;
pub mod ledger;
#[cfg(feature = "rocks")]
pub mod life;
pub mod mutants;
pub mod mutex;
pub mod order;
pub mod outcome;
#[cfg(feature = "rocks")]
pub mod pipe;
pub mod points;
#[cfg(feature = "rocks")]
pub mod powercut;
pub mod quick;
pub mod recorder;
pub mod report;
pub mod restores;
pub mod screen;
#[cfg(feature = "rocks")]
pub mod segments;
pub mod sim;
pub mod value;
pub mod violation;
#[cfg(feature = "rocks")]
pub mod walsweep;
pub mod workload;
