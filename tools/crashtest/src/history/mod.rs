//! Histories: what clients did to a store and which answers they got.
//!
//! A history is a list of [`Line`]s, one JSON object each; `HISTORY_FORMAT.md` describes the
//! format. [`Transaction`] and [`Op`] are the lines as recorders build them and as they are parsed.
//! Their strings are generic: owned when recorded, borrowed from the input when parsed. [`History`]
//! is the compact form for the checker, with numbers for keys and values.

mod interned;
mod json;

pub use interned::{History, InternedOp, InternedTransaction, Key, ScanRange, TxnIndex, Value};
pub use json::{Error, Problem};

/// One line of a history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Line<S = String> {
    /// The initial rows.
    Initial(Vec<(S, S)>),
    /// The store or some of its clients crashed here.
    Crash,
    /// A transaction with all its operations.
    Transaction(Transaction<S>),
}

/// A transaction as its client saw it.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Transaction<S = String> {
    /// Its id in reports; by default the number of its line.
    #[serde(rename = "txn", skip_serializing_if = "Option::is_none")]
    pub id: Option<u64>,
    /// The client that ran it; a client runs one transaction after another.
    pub session: u64,
    /// The start timestamp that identifies it in the store, if it is not `read_ts`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_ts: Option<u64>,
    /// The timestamp of its snapshot.
    pub read_ts: u64,
    /// The commit timestamp.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub commit_ts: Option<u64>,
    /// The outcome that the client got.
    pub outcome: Outcome,
    /// When the client began it, on a clock that all clients share.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub began: Option<u64>,
    /// When the client got the answer; absent if it got none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended: Option<u64>,
    /// The operations, in order.
    pub ops: Vec<Op<S>>,
}

/// The outcome of a transaction for its client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// The client got the answer that it is committed.
    Committed,
    /// The client got the answer that it is not committed, or never requested the commit.
    Aborted,
    /// The client requested the commit and got no answer.
    Unknown,
}

/// An operation of a transaction. The value `None` means that the row is missing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op<S = String> {
    /// A read of a row.
    Read(S, Option<S>),
    /// A read of a row for update, which conflicts with concurrent writers.
    ReadForUpdate(S, Option<S>),
    /// A write or a deletion of a row.
    Write(S, Option<S>),
    /// A scan of a range.
    Scan {
        /// The first key of the range.
        from: S,
        /// The first key after the range; `None` for a range without end.
        to: Option<S>,
        /// The rows that were shown, in any order.
        rows: Vec<(S, S)>,
    },
}
