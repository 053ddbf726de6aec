//! What clients did to a store and what they were told, as a record that a checker can judge.
//!
//! A history is a list of [`Line`]s, one JSON object each; `HISTORY.md` describes the format. [`Transaction`] and [`Op`] are
//! the lines as a recorder builds them, and as they are parsed, which is why their strings are generic: owned in the one case,
//! borrowed from the input in the other. [`History`] is the same in a compact form, with numbers for keys and values, and is
//! what the checker works on.

mod interned;
mod json;

pub use interned::{History, InternedOp, InternedTransaction, Key, ScanRange, TxnIndex, Value};
pub use json::{Error, Problem};

/// One line of a history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Line<S = String> {
    /// The rows that were there before the first transaction.
    Initial(Vec<(S, S)>),
    /// The store, or all its clients, died here.
    Crash,
    /// A transaction, with all that it did.
    Transaction(Transaction<S>),
}

/// What one transaction did and heard.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Transaction<S = String> {
    /// Its name in reports. Without one it is called by the number of its line.
    #[serde(rename = "txn", skip_serializing_if = "Option::is_none")]
    pub id: Option<u64>,
    /// The client that ran it; a client runs one transaction after another.
    pub session: u64,
    /// The timestamp that identifies it in the store, if it has one beside `read_ts`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_ts: Option<u64>,
    /// The snapshot that it read.
    pub read_ts: u64,
    /// When its writes became part of the store.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub commit_ts: Option<u64>,
    /// How it ended, as far as its client knows.
    pub outcome: Outcome,
    /// When its client began it, on a clock that all clients share.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub began: Option<u64>,
    /// When its client was told the outcome; absent if it never was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended: Option<u64>,
    /// What it did, in order.
    pub ops: Vec<Op<S>>,
}

/// How a transaction ended, as far as its client knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// The client was told that it is committed.
    Committed,
    /// The client was told that it is not, or never asked for it.
    Aborted,
    /// The client asked for it and was not told.
    Unknown,
}

/// One step of a transaction. A value of `None` is no value: the row is not there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op<S = String> {
    /// It read a row.
    Read(S, Option<S>),
    /// It read a row and claimed it: nobody else may write it meanwhile.
    ReadForUpdate(S, Option<S>),
    /// It wrote or deleted a row.
    Write(S, Option<S>),
    /// It read all rows of a range.
    Scan {
        /// The first key of the range.
        from: S,
        /// The first key behind the range; without one the range has no end.
        to: Option<S>,
        /// The rows that it was shown, in any order.
        rows: Vec<(S, S)>,
    },
}
