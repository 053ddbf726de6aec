//! The crash harness of percolite: transaction histories, a checker of snapshot isolation, and the
//! layers that crash a store.
//!
//! A [`history::History`] records what clients did to a store and which answers they got.
//! [`checker::check`] decides whether a store with snapshot isolation could have given these
//! answers. If not, it names the anomaly and a minimal set of transactions that shows it.
//!
//! ```
//! use percolite_crashtest::checker::check;
//! use percolite_crashtest::history::History;
//!
//! let text = r#"
//! {"session": 1, "read_ts": 1, "commit_ts": 2, "outcome": "committed", "ops": [["w", "a", "1"]]}
//! {"session": 2, "read_ts": 3, "outcome": "committed", "ops": [["r", "a", null]]}
//! "#;
//! let report = check(&History::read(text.as_bytes())?);
//! assert_eq!(report.violations[0].anomaly.name(), "stale-read");
//! # Ok::<_, percolite_crashtest::history::Error>(())
//! ```

pub mod checker;
#[cfg(feature = "rocks")]
pub mod checkpoints;
#[cfg(feature = "rocks")]
pub mod child;
pub mod choices;
pub mod client;
pub mod client_log;
pub mod counter_check;
#[cfg(feature = "rocks")]
pub mod disk;
#[cfg(feature = "rocks")]
pub mod event_pipe;
#[cfg(feature = "rocks")]
pub mod fast_env;
pub mod history;
pub mod interleavings;
pub mod interrupt;
pub mod invariants;
#[cfg(feature = "rocks")]
pub mod io_errors;
mod key_encoding;
#[cfg(feature = "rocks")]
pub mod kill;
pub mod layer_args;
pub mod layer_result;
pub mod layers;
#[cfg(feature = "rocks")]
pub mod left_files;
pub mod lock_checker;
pub mod lock_workload;
#[cfg(feature = "rocks")]
pub mod log_damage;
#[cfg(feature = "rocks")]
pub mod log_parser;
#[cfg(feature = "rocks")]
pub mod memory_recorder;
pub mod mutants;
pub mod points;
#[cfg(feature = "rocks")]
pub mod powercut;
pub mod recorded_txn;
pub mod report;
pub mod restores;
pub mod rng;
pub mod run_report;
pub mod runs;
#[cfg(feature = "rocks")]
pub mod self_kill;
pub mod sequences;
pub mod sim;
pub mod terminal_table;
mod think_time;
pub mod untimed;
pub mod value_encoding;
#[cfg(feature = "rocks")]
pub mod verify_store;
pub mod violation;
pub mod workload;
