//! The log of client transactions, kept outside the store.
//!
//! A client records a transaction before it requests the commit, and the answer when the call has
//! returned. If the store crashes in between, the outcome is unknown. After the next opening
//! [`ClientLog::resolve_unknown`] reads each such transaction's *marker*: a row that only this
//! transaction writes. So the log gets the timestamp of a commit even if its client got no answer.
//!
//! A crash that loses unsynced data may undo acknowledged buffered commits. It may also undo what a
//! transaction has read, unless the transaction was acknowledged as durable.
//! After [`ClientLog::allow_loss`] the checker requires neither of the two.

use std::collections::BTreeMap;

use percolite::engine::{Engine, EngineError};
use percolite::{Keyspace, Timestamp};
use serde::{Deserialize, Serialize};

use crate::history::{History, Line, Op, Outcome, Problem, Transaction};
use crate::key_encoding::encode_key;
use crate::violation::Violation;

/// The key prefix of the marker rows.
pub const MARKER_PREFIX: &str = "m/";

/// A transaction as its client recorded it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Entry {
    /// The transaction as the history will show it.
    pub txn: Transaction,
    /// The incarnation of the store.
    pub incarnation: u32,
    /// Whether the client requested a durable commit.
    pub durable: bool,
    /// The row that only this transaction writes, if it has one.
    pub marker: Option<String>,
}

impl Entry {
    fn writes(&self) -> impl Iterator<Item = &String> {
        self.txn.ops.iter().filter_map(|op| if let Op::Write(key, _) = op { Some(key) } else { None })
    }

    fn is_undecided(&self) -> bool {
        self.txn.commit_ts.is_none() && self.txn.outcome != Outcome::Aborted && self.writes().next().is_some()
    }

    /// Removes all operations but writes: a crash may have lost what the transaction has read. So
    /// later snapshots need not show it.
    fn drop_reads(&mut self) {
        self.txn.ops.retain(|op| matches!(op, Op::Write(..)));
        if self.writes().next().is_none() {
            self.txn.ended = None;
        }
    }
}

/// The end of a transaction.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Answer {
    /// How the transaction ended.
    pub outcome: Outcome,
    /// The commit timestamp, if the client got it.
    pub commit_ts: Option<u64>,
    /// When the client got the answer.
    pub ended: u64,
}

/// The result of [`ClientLog::resolve_unknown`].
#[derive(Debug, Default)]
pub struct Resolved {
    /// How many transactions without an answer are committed.
    pub committed: usize,
    /// Acknowledged commits that are missing.
    pub violations: Vec<Violation>,
}

/// See the [module](self).
#[derive(Clone, Debug, Default)]
pub struct ClientLog {
    entries: BTreeMap<u64, Entry>,
    last_incarnation: u32,
    crashes: Vec<u64>,
}

impl ClientLog {
    /// Records a transaction, under a unique number, before its commit is requested.
    pub fn record_commit(&mut self, number: u64, entry: Entry) {
        self.last_incarnation = self.last_incarnation.max(entry.incarnation);
        self.entries.insert(number, entry);
    }

    /// Records the answer.
    pub fn record_answer(&mut self, number: u64, answer: Answer) {
        if let Some(entry) = self.entries.get_mut(&number) {
            entry.txn.outcome = answer.outcome;
            // A transaction that neither wrote nor locked a row has no commit timestamp of its own.
            let changes = entry.txn.ops.iter().any(|op| matches!(op, Op::Write(..) | Op::ReadForUpdate(..)));
            entry.txn.commit_ts = answer.commit_ts.filter(|_| changes);
            entry.txn.ended = Some(answer.ended);
        }
    }

    /// Records a crash. In the history it precedes the transactions with a higher number.
    pub fn record_crash(&mut self, number: u64) {
        self.crashes.push(number);
    }

    /// Removes the transactions that began above `ts`. A store that is opened from a checkpoint
    /// gives the timestamps above `ts` to other transactions.
    pub fn truncate_above(&mut self, ts: Timestamp) {
        self.entries.retain(|_, entry| entry.txn.start_ts.unwrap_or(entry.txn.read_ts) <= ts.to_u64());
    }

    /// How many commits were acknowledged.
    pub fn acknowledged(&self) -> usize {
        self.entries.values().filter(|entry| entry.txn.outcome == Outcome::Committed).count()
    }

    /// All transactions.
    pub fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.entries.values()
    }

    /// Makes the log allow for a crash of `incarnation`. Of the transactions that were not
    /// acknowledged as durable, commits above `durable_ts` become unknown, and reads at timestamps
    /// above it are removed.
    pub fn allow_loss(&mut self, incarnation: u32, durable_ts: Timestamp) {
        let durable_ts = durable_ts.to_u64();
        for entry in self.entries.values_mut().filter(|entry| entry.incarnation == incarnation) {
            let answered = entry.txn.outcome == Outcome::Committed && entry.durable;
            if answered {
                continue;
            }
            let writes = entry.writes().next().is_some();
            // An acknowledged commit has no timestamp if the crash came before its client had read
            // the timestamp.
            let without_ts = writes && entry.txn.outcome == Outcome::Committed;
            if entry.txn.commit_ts.map_or(without_ts, |ts| ts > durable_ts) {
                // A buffered commit was acknowledged but may be lost. Its outcome is looked up
                // after the next opening.
                entry.txn.outcome = Outcome::Unknown;
                entry.txn.commit_ts = None;
                entry.txn.ended = None;
            }
            if entry.txn.read_ts > durable_ts {
                entry.drop_reads();
            }
        }
    }

    /// Looks up each writing transaction whose outcome or commit timestamp is unknown. The caller
    /// must have resolved all locks.
    ///
    /// # Errors
    /// Errors of the reads.
    pub fn resolve_unknown(&mut self, engine: &dyn Engine, rows: &Keyspace) -> Result<Resolved, EngineError> {
        let mut resolved = Resolved::default();
        for (number, entry) in self.entries.iter_mut().filter(|(_, entry)| entry.is_undecided()) {
            let start_ts = Timestamp::from_u64(entry.txn.start_ts.unwrap_or_default());
            let mut found = None;
            for key in entry.writes() {
                let row = engine.read_row(&rows.row_key(encode_key(key)), start_ts)?;
                let newest = row.write.filter(|write| write.txn.start_ts == start_ts);
                found = found.or(newest.map(|write| write.commit_ts.to_u64()));
            }
            entry.txn.commit_ts = found;
            if found.is_some() {
                resolved.committed += usize::from(entry.txn.outcome == Outcome::Unknown);
                continue;
            }
            if entry.txn.outcome == Outcome::Committed {
                let what = format!("transaction {number} with start_ts {start_ts} was acknowledged and is missing");
                resolved.violations.push(Violation::new("durability", what));
            }
            entry.txn.outcome = if entry.marker.is_some() { Outcome::Aborted } else { Outcome::Unknown };
            entry.txn.ended = None;
        }
        Ok(resolved)
    }

    /// Checks that what survived of each incarnation is a prefix of its commits: no buffered commit
    /// is lost while a later one survived. Returns the first gap. `acknowledged` has the timestamps
    /// of acknowledged commits, as they were before [`ClientLog::allow_loss`].
    pub fn find_gap(&self, acknowledged: &BTreeMap<u64, u64>) -> Option<String> {
        for incarnation in 0..=self.last_incarnation {
            let of_life = || self.entries.iter().filter(move |(_, entry)| entry.incarnation == incarnation);
            let Some(newest) = of_life().filter_map(|(_, entry)| entry.txn.commit_ts).max() else { continue };
            for (number, entry) in of_life().filter(|(_, entry)| entry.txn.outcome == Outcome::Aborted) {
                if let Some(ts) = acknowledged.get(number).filter(|ts| **ts < newest) {
                    return Some(format!(
                        "transaction {number} of session {}, acknowledged at {ts}, is lost, but the later commit {newest} survived",
                        entry.txn.session
                    ));
                }
            }
        }
        None
    }

    /// The commit timestamps of acknowledged commits, by transaction number.
    pub fn acknowledged_commits(&self) -> BTreeMap<u64, u64> {
        let acknowledged = |entry: &Entry| entry.txn.commit_ts.filter(|_| entry.txn.outcome == Outcome::Committed);
        self.entries.iter().filter_map(|(number, entry)| Some((*number, acknowledged(entry)?))).collect()
    }

    /// The log as a history.
    pub fn history(&self) -> Result<History, Problem> {
        let mut history = History::default();
        self.lines().try_for_each(|line| history.push(&line))?;
        Ok(history)
    }

    /// The log as the lines of a history.
    pub fn lines(&self) -> impl Iterator<Item = Line> {
        let mut crashes = self.crashes.iter().peekable();
        self.entries.iter().flat_map(move |(number, entry)| {
            let before = std::iter::from_fn(|| crashes.next_if(|crash| *crash < number)).count();
            let txn = Line::Transaction(Transaction { id: Some(*number), ..entry.txn.clone() });
            std::iter::repeat_n(Line::Crash, before).chain([txn])
        })
    }
}
