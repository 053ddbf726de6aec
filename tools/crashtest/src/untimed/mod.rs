//! Histories without timestamps, as Jepsen and Elle record them: list-append and read-write
//! registers, as JSON or EDN.
//!
//! The checker needs a snapshot and a commit timestamp of each transaction. Here they are inferred:
//! a history obeys snapshot isolation if and only if there are timestamps with which the checker
//! accepts it. So the inferred ones are a *witness*, and the checker stays the judge. If they are
//! wrong, the verdict can only be too hard, never too mild.
//!
//! A transaction has two events: its snapshot `s` and its commit `c`. Where the order of a row's
//! versions is known, the timestamps must satisfy these constraints, and any order of events that
//! does is accepted:
//!
//! | constraint | reason |
//! |---|---|
//! | `s(T) < c(T)` | a snapshot is taken before the commit |
//! | `c(U) < s(T)`, T read a version of U | it was visible |
//! | `s(T) < c(W)`, W wrote the next version of what T read | it was not visible yet |
//! | `c(U) < s(W)`, W wrote the next version of U's | first committer wins |
//! | `c(T) < s(U)`, T was acknowledged before U began | a snapshot shows what was acknowledged |
//! | `c(T) < s(U)`, U follows T in its process | a session sees its own commits |
//! | `s(T) < s(U)`, T does not write | snapshots of a session do not go back |
//!
//! Proof. Versions of a row are written in the order of their commits. With the third and the
//! second constraint the last commit at or below `s(T)` is that of the version which T read; with
//! the fourth the writers of a row do not overlap. Conversely each constraint is a rule of the
//! checker. So there are such timestamps if and only if the constraints have no cycle, and a
//! topological order is one assignment.
//!
//! `lists` has the order of versions in what was read. `registers` must search for it.

mod constraints;
mod edn;
mod lists;
mod operations;
mod registers;

pub use operations::is_elle;

use std::io::{self, Read};

use crate::history::{History, Line, Op, Outcome, Problem, Transaction};

use constraints::{Constraints, Times};
use operations::{Recorded, Workload};

/// A history that cannot be judged.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A read error.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// Neither JSON nor EDN. The text names the line.
    #[error("{0}")]
    Syntax(String),
    /// Not an operation of a history.
    #[error("operation {operation}: {problem}")]
    Malformed {
        /// The number of the operation, counted from 1.
        operation: u64,
        /// What is wrong.
        problem: String,
    },
    /// What the checker itself refuses.
    #[error("{0}")]
    Refused(#[from] Problem),
    /// Blind writes of registers leave too many orders.
    #[error("undecided: the writes of the registers have too many possible orders; append to lists instead")]
    Undecided,
}

/// Reads a history and infers its timestamps.
pub fn read(mut input: impl Read) -> Result<History, Error> {
    let mut text = String::new();
    input.read_to_string(&mut text)?;
    let recorded = operations::parse(&text)?;
    let lines = match recorded.workload {
        Workload::Lists => lists::infer(recorded),
        Workload::Registers => registers::infer(recorded)?,
    };
    let mut history = History::default();
    for line in &lines {
        history.push(line)?;
    }
    Ok(history)
}

/// A transaction for the checker: reads, and the whole values that it wrote.
struct Converted {
    recorded: Recorded,
    ops: Vec<Op>,
    /// Whether it must have committed, by its answer or because its writes were read.
    is_committed: bool,
}

impl Converted {
    fn writes(&self) -> bool {
        self.is_committed && self.ops.iter().any(|op| matches!(op, Op::Write(..) | Op::ReadForUpdate(..)))
    }
}

/// The lines for the checker, with the timestamps of the constraints.
fn with_timestamps(txns: Vec<Converted>, constraints: Constraints) -> Vec<Line> {
    let times = constraints.times();
    let lines = txns.into_iter().zip(times).map(|(txn, Times { read_ts, commit_ts })| {
        Line::Transaction(Transaction {
            id: Some(txn.recorded.id),
            session: txn.recorded.process,
            start_ts: None,
            read_ts,
            commit_ts: txn.writes().then_some(commit_ts),
            outcome: txn.recorded.outcome,
            began: Some(txn.recorded.began),
            ended: txn.recorded.ended.filter(|_| txn.recorded.outcome == Outcome::Committed),
            ops: txn.ops,
        })
    });
    lines.collect()
}
