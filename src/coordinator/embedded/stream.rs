//! Transactions too large to be kept in memory.
//!
//! Such a transaction locks its rows while it is still being written: each batch of writes is prewritten and forgotten, and
//! what it has written is read back from its own locks. A row written again replaces its lock's intent, under a higher
//! sequence number. Committing is one small change of the primary; from there on every reader that meets one of the locks
//! takes it for the version that it will become, and every writer rolls it forward. The rest is done in the background
//! ([`endings`](super::endings)).
//!
//! Nobody keeps a list of the locks. Their transaction is known by the lowest and highest row, and the pipeline by a filter
//! that says which rows need a look at the lock column.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::super::refused;
use super::Embedded;
use super::commit::{TwoPhase, primary_of};
use super::endings::Ending;
use crate::engine::EngineSnapshot;
use crate::error::{Error, ErrorKind, Result};
use crate::observe::Spent;
use crate::pipeline::{Conditions, Held, Purpose, Refused, Settled, Submission};
use crate::protocol::Refusal;
use crate::row::{Intent, Lock, Mutation, RowKey, SHORT_VALUE_MAX_BYTES, TxnId, Value};
use crate::timestamp::Timestamp;
use crate::writes::Writes;

/// The most bytes of keys and values that are locked at once, unless a single row has more.
const GROUP_BYTES: usize = 1 << 20;

/// A transaction that has locked rows already.
pub struct Stream {
    txn: TxnId,
    /// Commits after this are conflicts.
    pub read_ts: Timestamp,
    primary: RowKey,
    lowest: RowKey,
    highest: RowKey,
    /// How many writes were streamed; a row that is written again counts again.
    pub rows: u64,
}

impl Stream {
    /// A transaction of which nothing is locked yet. `None` when there is nothing to lock.
    pub fn new(txn: TxnId, read_ts: Timestamp, writes: &Writes) -> Option<Self> {
        let primary = primary_of(writes)?.clone();
        Some(Self { txn, read_ts, lowest: primary.clone(), highest: primary.clone(), primary, rows: 0 })
    }

    fn two_phase<'a>(&'a self, conditions: &'a Arc<Conditions>, spent: &'a Spent) -> TwoPhase<'a> {
        TwoPhase { txn: self.txn, read_ts: self.read_ts, primary: &self.primary, conditions, spent }
    }

    fn ending(&self, verdict: Option<Timestamp>) -> Ending {
        Ending::new(self.txn, &self.primary, &self.lowest, &self.highest, verdict)
    }
}

impl Embedded {
    /// Locks rows for a transaction that goes on being written. After an error it must be [abandoned](Self::abandon).
    pub fn stream(
        &self,
        stream: &mut Stream,
        writes: &Writes,
        conditions: &Arc<Conditions>,
        spent: &Spent,
    ) -> Result<()> {
        spent.start(self.pipeline.runtime().elapsed());
        let (Some(lowest), Some(highest)) = (writes.keys().next(), writes.keys().next_back()) else {
            return Ok(());
        };
        stream.lowest = stream.lowest.clone().min(lowest.clone());
        stream.highest = stream.highest.clone().max(highest.clone());
        if writes.values().any(|mutation| mutation.value_bytes() > SHORT_VALUE_MAX_BYTES) {
            self.note_long_values()?;
        }
        // The primary first: no lock is ever without one.
        stream.rows += writes.len() as u64;
        let this = stream.two_phase(conditions, spent);
        let others = writes.iter().filter(|(row, _)| *row != this.primary);
        let rows = writes.get_key_value(this.primary).into_iter().chain(others);
        let (mut group, mut bytes) = (Vec::new(), 0);
        for (row, mutation) in rows {
            bytes += row.as_bytes().len() + mutation.value_bytes();
            group.push((row, mutation));
            if group.len() >= self.group_rows() || bytes >= GROUP_BYTES {
                self.stream_group(&this, &group)?;
                (group, bytes) = (Vec::new(), 0);
            }
        }
        if group.is_empty() { Ok(()) } else { self.stream_group(&this, &group) }
    }

    fn stream_group(&self, this: &TwoPhase<'_>, rows: &[(&RowKey, &Mutation)]) -> Result<()> {
        self.prewrite_group(this, rows, Purpose::Stream)?;
        crash_point!(StreamBetween);
        self.counters.rows_streamed.add(rows.len() as u64);
        Ok(())
    }

    /// Commits a transaction all of whose rows are locked. After an error that is not *undetermined* it must be
    /// [abandoned](Self::abandon).
    pub fn commit_stream(
        &self,
        stream: &Stream,
        conditions: &Arc<Conditions>,
        durable: bool,
        held: Option<Held>,
        spent: &Spent,
    ) -> Result<Timestamp> {
        let this = stream.two_phase(conditions, spent);
        let primary = self.pipeline.engine().read_row(this.primary, this.txn.start_ts)?;
        let Some(lock) = primary.lock.filter(|lock| lock.txn == this.txn) else { return Err(self.unlocked(&this)) };
        crash_point!(StreamAll);
        let change = self.commit_change(this.txn, this.primary, &lock, lock.min_commit_ts, true)?;
        let (purpose, conditions) = (Purpose::CommitPoint, Arc::clone(conditions));
        let group = vec![change].into();
        let submission = Submission { group, purpose, durable: false, conditions, held };
        let commit_ts = match self.pipeline.submit(submission, spent)? {
            Settled::Applied(Some(commit_ts)) => commit_ts,
            Settled::Applied(None) => return Err(self.unstamped(this.txn)),
            Settled::Refused(obstacle) => return Err(self.explain(obstacle, this.txn, this.read_ts)),
        };
        crash_point!(StreamCommitted);
        self.end_later(stream.ending(Some(commit_ts)));
        if durable {
            self.pipeline.confirm(commit_ts, spent)?;
        }
        self.pipeline.acknowledge(commit_ts);
        self.counters.commits_streamed.add(1);
        Ok(commit_ts)
    }

    /// Why the primary of a transaction that has locked all of its rows is not locked by it: its keyspace is gone, its view has expired
    /// and what it read was collected, or it was rolled back.
    fn unlocked(&self, this: &TwoPhase<'_>) -> Error {
        let Conditions { lives, view, .. } = &**this.conditions;
        let obstacle = match lives.iter().find(|life| life.is_over()) {
            Some(dropped) => Refused::Dropped(dropped.name().to_string()),
            None if view.as_ref().is_some_and(|view| view.expired.load(Ordering::Acquire)) => Refused::Expired,
            None => return refused(this.primary, Refusal::RolledBack, this.read_ts),
        };
        self.explain(obstacle, this.txn, this.read_ts)
    }

    /// Gives a transaction up. Its locks go in the background; a transaction with one in its way removes it first.
    pub fn abandon(&self, stream: &Stream) {
        self.pipeline.abandon(stream.txn.start_ts);
        self.end_later(stream.ending(None));
    }
}

/// The transaction's lock on the row.
pub(super) fn own_lock(view: &dyn EngineSnapshot, txn: TxnId, row: &RowKey) -> Result<Option<Lock>> {
    Ok(view.lock(row)?.filter(|lock| lock.txn == txn))
}

/// What the transaction has written to the row and streamed out, as the view shows it.
pub fn streamed_write(view: &dyn EngineSnapshot, txn: TxnId, row: &RowKey) -> Result<Option<Mutation>> {
    own_lock(view, txn, row)?.map(|lock| mutation_of(view, row, lock)).transpose()
}

/// What a lock will do to its row.
pub fn mutation_of(view: &dyn EngineSnapshot, row: &RowKey, lock: Lock) -> Result<Mutation> {
    Ok(match lock.intent {
        Intent::Put(Value::Inline(bytes)) => Mutation::Put(bytes),
        Intent::Put(Value::InData) => {
            let value = view.data(row, lock.txn.start_ts)?.ok_or_else(|| {
                let what =
                    format!("row {row:?}: the value written by the transaction {:#} is missing", lock.txn.start_ts);
                Error::from(ErrorKind::Corruption(what))
            })?;
            Mutation::Put(value.into())
        }
        Intent::Delete => Mutation::Delete,
        Intent::Hold => Mutation::Hold,
    })
}
