//! What a parent tells a child, and what it hears from it.
//!
//! A child is told everything in one argument, a [`Life`] as JSON. It answers with [`Event`]s, one JSON line each, through a
//! pipe: what has been written into a pipe is the kernel's, and stays there however the writer ends.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::case::{Durability, Protocol};
use crate::ledger::{Answer, Entry};

/// One life of a store: how it is used, and where it ends.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Life {
    /// The store's folder.
    pub folder: PathBuf,
    /// Which life it is.
    pub number: u32,
    /// The seed of its choices.
    pub seed: u64,
    /// How transactions commit.
    pub protocol: Protocol,
    /// When they are acknowledged.
    pub durability: Durability,
    /// What the clients do, by name.
    pub workload: String,
    /// How many there are.
    pub clients: u64,
    /// How many transactions each of them runs.
    pub transactions: u64,
    /// Where it dies: at the first of these that comes. Nowhere: it is closed.
    pub fatal: Vec<Fatal>,
    /// How many acknowledged commits come first; visits before do not count.
    pub after: u64,
    /// One step in so many drops and creates the keyspace beside; 0: none does.
    pub drops: usize,
    /// How many times faster than the world's its clock runs.
    pub speed: u32,
    /// Whether it sweeps in the background.
    pub sweep: bool,
    /// A small buffer, so that RocksDB writes files all the time.
    pub write_buffer_bytes: Option<usize>,
    /// One value in so many is long; 0: none is.
    pub long_values: usize,
    /// How many rows' last commits are remembered.
    pub conflict_slots: usize,
    /// A mistake that is switched on, by name.
    pub mutant: Option<String>,
}

/// A visit of a point that is the last thing that a life does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fatal {
    /// The point, by name.
    pub point: String,
    /// Which of its visits.
    pub visit: u64,
}

/// How often each point was visited, by name.
pub type Visits = BTreeMap<String, u64>;

/// What a child tells.
#[derive(Debug, Serialize, Deserialize)]
pub enum Event {
    /// A commit is about to be asked for.
    Asked {
        /// The transaction.
        number: u64,
        /// What it did.
        entry: Entry,
    },
    /// An answer came.
    Answered {
        /// The transaction.
        number: u64,
        /// The answer.
        answer: Answer,
    },
    /// A client was told an error that nothing explains, or found something wrong.
    Broken(String),
    /// The last words.
    Dying {
        /// Where.
        at: Fatal,
        /// What it has seen.
        visits: Visits,
    },
    /// It came to its end and closed the store.
    Closed {
        /// What it has seen.
        visits: Visits,
    },
}
