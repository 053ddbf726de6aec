//! Prewrite: locks rows and stores their future values in the locks, a batch at a time.
//!
//! The rows are not read first. The preconditions of the changes require that a row has no lock,
//! and no version newer than the snapshot. If a precondition fails because of a finished
//! transaction's lock, the lock is resolved. If it fails because this transaction, a large one, has
//! locked the row before, the new change replaces that lock. In both cases the batch is submitted
//! again; any other failure is returned.

use std::collections::HashMap;
use std::sync::Arc;

use super::super::step_error::step_error;
use super::blocker::resolve_blockers;
use super::rows::Rows;
use crate::commit_conditions::CommitConditions;
use crate::engine::EngineSnapshot;
use crate::error::Result;
use crate::observe::TxnTimer;
use crate::pipeline::{Rejection, Submission, SubmissionKind, SubmitResult};
use crate::protocol::{Prewrite, Step, prewrite};
use crate::row::{CellChange, Lock, Mutation, RowChange, RowKey, RowState, TxnId};
use crate::timestamp::Timestamp;
use crate::write_set::WriteSet;

/// A batch ends with the row that brings its keys and values to this many bytes.
const BATCH_BYTES: usize = 1 << 20;

/// What all steps of one two-phase commit have in common.
pub struct TwoPhaseTxn<'a> {
    pub txn: TxnId,
    pub read_ts: Timestamp,
    pub primary: &'a RowKey,
    pub conditions: &'a Arc<CommitConditions>,
    pub timer: &'a TxnTimer,
}

/// Locks rows in batches, in the order of `writes`. After each batch, calls `on_batch` with the
/// number of its rows and the list of its locks. For a large transaction, which keeps no locks in
/// memory, the list is empty.
pub fn prewrite_rows<'a>(
    rows: &Rows,
    this: &TwoPhaseTxn<'_>,
    writes: impl Iterator<Item = (&'a RowKey, &'a Mutation)>,
    kind: SubmissionKind,
    mut on_batch: impl FnMut(usize, Vec<(RowKey, Lock)>),
) -> Result<()> {
    let (mut batch, mut bytes, mut writes) = (Vec::new(), 0, writes.peekable());
    while let Some((row, mutation)) = writes.next() {
        bytes += row.as_bytes().len() + mutation.value_bytes();
        batch.push((row, mutation));
        if batch.len() >= rows.batch_rows_max() || bytes >= BATCH_BYTES || writes.peek().is_none() {
            on_batch(batch.len(), prewrite_batch(rows, this, &batch, kind)?);
            (batch, bytes) = (Vec::new(), 0);
        }
    }
    Ok(())
}

/// Locks rows in one batch, and returns the locks; for a large transaction, which keeps no locks in
/// memory, an empty list. Only a large transaction may have locked some of the rows before.
fn prewrite_batch(
    rows: &Rows,
    this: &TwoPhaseTxn<'_>,
    writes: &[(&RowKey, &Mutation)],
    kind: SubmissionKind,
) -> Result<Vec<(RowKey, Lock)>> {
    let TwoPhaseTxn { txn, read_ts, .. } = *this;
    let mut own_locks: HashMap<&RowKey, Lock> = HashMap::new();
    loop {
        let mut changes = Vec::with_capacity(writes.len());
        for (row, mutation) in writes {
            let own = own_locks.get(row);
            let request = Prewrite {
                row: (*row).clone(),
                txn,
                read_ts,
                primary: this.primary.clone(),
                mutation: (*mutation).clone(),
                write_seq: own.map_or(1, |own| own.write_seq.saturating_add(1)),
                ttl_ms: 0,
                min_commit_ts: txn.start_ts.next(),
            };
            // To save a read, the row is assumed to have nothing but the lock `own`, if any. If
            // another lock or a conflicting commit is there, a precondition fails.
            let as_read = RowState { lock: own.cloned(), ..RowState::default() };
            match prewrite(&as_read, &request).map_err(|error| step_error(row, error, read_ts))? {
                Step::Apply(change, _) => changes.push(change),
                Step::Done(_) => {}
            }
        }
        let keeps_locks = kind != SubmissionKind::PrewriteLarge;
        let locks = if keeps_locks { changes.iter().filter_map(written_lock).collect() } else { Vec::new() };
        let conditions = Arc::clone(this.conditions);
        let submission = Submission { batch: changes.into(), kind, durable: false, conditions, attempt: None };
        match rows.pipeline.submit(submission, this.timer)? {
            SubmitResult::Applied(_) => return Ok(locks),
            SubmitResult::Rejected(Rejection::PreconditionFailed(_, found))
                if found.lock.as_ref().is_some_and(|lock| lock.txn == txn) =>
            {
                // This large transaction has locked the rejected row before, and may have locked
                // other rows of the batch. So the locks on all of them are read.
                let snapshot = rows.engine().snapshot()?;
                for (row, _) in writes {
                    if let Some(lock) = own_lock(&*snapshot, txn, row)? {
                        own_locks.insert(row, lock);
                    }
                }
            }
            SubmitResult::Rejected(rejection) => {
                resolve_blockers(rows, writes.iter().map(|(row, _)| *row), rejection, txn, read_ts)?;
            }
        }
    }
}

/// The row whose state decides the transaction: the first with a put or a delete, else the first.
pub fn choose_primary(writes: &WriteSet) -> Option<&RowKey> {
    let written = writes.iter().find(|(_, mutation)| **mutation != Mutation::LockOnly);
    written.or_else(|| writes.iter().next()).map(|(row, _)| row)
}

/// The transaction's lock on the row.
pub fn own_lock(snapshot: &dyn EngineSnapshot, txn: TxnId, row: &RowKey) -> Result<Option<Lock>> {
    Ok(snapshot.lock(row)?.filter(|lock| lock.txn == txn))
}

fn written_lock(change: &RowChange) -> Option<(RowKey, Lock)> {
    match &change.lock {
        CellChange::Put(lock) => Some((change.row.clone(), lock.clone())),
        CellChange::Keep | CellChange::Delete => None,
    }
}
