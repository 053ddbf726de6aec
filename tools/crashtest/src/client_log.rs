//! What clients asked for and what they were told, kept outside the store's reach.
//!
//! A client enters a transaction before it asks for the commit, and the answer when it has it. When the store dies in
//! between, the answer stays open; what became of such a transaction is then looked up in the store that was opened again
//! ([`Ledger::settle`]), by its *marker*: a row of its own that nobody else writes. So a commit is known to the timestamp even
//! where its client was never answered.
//!
//! Under a crash that loses what was not synced, some of what clients saw was never promised to them: reads of a transaction
//! that was not answered, and buffered commits. [`Ledger::lose`] takes those promises back, and nothing else.

use std::collections::BTreeMap;

use percolite::engine::{Engine, EngineError};
use percolite::{Keyspace, Timestamp};
use serde::{Deserialize, Serialize};

use crate::history::{History, Line, Op, Outcome, Problem, Transaction};
use crate::key_encoding::encode_key;
use crate::violation::Violation;

/// The prefix of the rows that tell which transactions are committed.
pub const MARKER_PREFIX: &str = "m/";

/// A transaction as its client entered it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Entry {
    /// What the history will say.
    pub txn: Transaction,
    /// In which life of the store.
    pub incarnation: u32,
    /// Whether the client asked for durability.
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

    /// What was read may have been lost, and nobody had been told that it may not.
    fn drop_reads(&mut self) {
        self.txn.ops.retain(|op| matches!(op, Op::Write(..)));
    }
}

/// An answer, or why there will be none.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Answer {
    /// How the transaction ended.
    pub outcome: Outcome,
    /// When it was committed, if the client was told.
    pub commit_ts: Option<u64>,
    /// When the client heard it.
    pub ended: u64,
}

/// What looking up has found.
#[derive(Debug, Default)]
pub struct Resolved {
    /// How many transactions are committed though nobody was told.
    pub committed: usize,
    /// Those that somebody was told of and that are not there.
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
    /// Enters a transaction under a number that no other has.
    pub fn record_commit(&mut self, number: u64, entry: Entry) {
        self.last_incarnation = self.last_incarnation.max(entry.incarnation);
        self.entries.insert(number, entry);
    }

    /// Enters the answer.
    pub fn record_answer(&mut self, number: u64, answer: Answer) {
        if let Some(entry) = self.entries.get_mut(&number) {
            entry.txn.outcome = answer.outcome;
            // A transaction that wrote nothing commits at no moment of its own.
            let changes = entry.txn.ops.iter().any(|op| matches!(op, Op::Write(..) | Op::ReadForUpdate(..)));
            entry.txn.commit_ts = answer.commit_ts.filter(|_| changes);
            entry.txn.ended = Some(answer.ended);
        }
    }

    /// Enters a crash under a number, so that it stands between what was asked for before and after.
    pub fn record_crash(&mut self, number: u64) {
        self.crashes.push(number);
    }

    /// Strikes out what was begun above a timestamp, as for a copy in which no later one was handed out.
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

    /// Takes back what was not promised in a life that ended with a crash in which everything above `durable_ts` may be lost.
    pub fn allow_loss(&mut self, incarnation: u32, durable_ts: Timestamp) {
        let durable_ts = durable_ts.to_u64();
        for entry in self.entries.values_mut().filter(|entry| entry.incarnation == incarnation) {
            let answered = entry.txn.outcome == Outcome::Committed && entry.durable;
            if answered {
                continue;
            }
            let writes = entry.writes().next().is_some();
            // Nobody may have been able to tell any more when it was committed.
            let untold = writes && entry.txn.outcome == Outcome::Committed;
            if entry.txn.commit_ts.map_or(untold, |ts| ts > durable_ts) {
                // A buffered commit: told, and not promised. Whether it is there will be looked up.
                entry.txn.outcome = Outcome::Unknown;
                entry.txn.commit_ts = None;
                entry.txn.ended = None;
            }
            if entry.txn.read_ts > durable_ts {
                entry.drop_reads();
            }
        }
    }

    /// Looks up what became of the transactions whose end is open. Every lock must have been resolved.
    ///
    /// # Errors
    /// Those of reading.
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
                let what = format!("transaction {number}, begun at {start_ts}, was acknowledged and is not there");
                resolved.violations.push(Violation::new("durability", what));
            }
            entry.txn.outcome = if entry.marker.is_some() { Outcome::Aborted } else { Outcome::Unknown };
            entry.txn.ended = None;
        }
        Ok(resolved)
    }

    /// Of each life, what is there must be a prefix of what was committed: no buffered commit is lost beside a later one that
    /// is not. `last` is the newest commit timestamp of each life that is known to be there.
    pub fn find_gap(&self, acknowledged: &BTreeMap<u64, u64>) -> Option<String> {
        for incarnation in 0..=self.last_incarnation {
            let of_life = || self.entries.iter().filter(move |(_, entry)| entry.incarnation == incarnation);
            let Some(newest) = of_life().filter_map(|(_, entry)| entry.txn.commit_ts).max() else { continue };
            for (number, entry) in of_life().filter(|(_, entry)| entry.txn.outcome == Outcome::Aborted) {
                if let Some(ts) = acknowledged.get(number).filter(|ts| **ts < newest) {
                    return Some(format!(
                        "transaction {number} of session {}, acknowledged at {ts}, is lost; a later one of {newest} is there",
                        entry.txn.session
                    ));
                }
            }
        }
        None
    }

    /// What was told of buffered commits, before [`Ledger::lose`] takes it back.
    pub fn acknowledged_commits(&self) -> BTreeMap<u64, u64> {
        let acknowledged = |entry: &Entry| entry.txn.commit_ts.filter(|_| entry.txn.outcome == Outcome::Committed);
        self.entries.iter().filter_map(|(number, entry)| Some((*number, acknowledged(entry)?))).collect()
    }

    /// All of it as a history.
    pub fn history(&self) -> Result<History, Problem> {
        let mut history = History::default();
        self.lines().try_for_each(|line| history.push(&line))?;
        Ok(history)
    }

    /// All of it as the lines of a history.
    pub fn lines(&self) -> impl Iterator<Item = Line> {
        let mut crashes = self.crashes.iter().peekable();
        self.entries.iter().flat_map(move |(number, entry)| {
            let before = std::iter::from_fn(|| crashes.next_if(|crash| *crash < number)).count();
            let txn = Line::Transaction(Transaction { id: Some(*number), ..entry.txn.clone() });
            std::iter::repeat_n(Line::Crash, before).chain([txn])
        })
    }
}
