//! What is written on a full disk.
//!
//! Only the leader knows what a batch takes, and what is written before it. So it asks the engine
//! before it adds a batch to its group. A batch that the log has no space for is refused: a write
//! that fails would fail the pipeline, and leave no space for the next opening.
//!
//! The last space is for what gives space back: drops, which write the catalog; the resolution of
//! locks, for which drops wait; and GC. A batch of locks leaves space for their resolution.

use super::submission::{Submission, SubmissionKind};
use crate::engine::{Engine, RowBatch, SpaceLeft};
use crate::error::{Error, Result};
use crate::row::{CellChange, KeyspaceId};

/// Refuses a submission of this size for which a full disk has no space, after `staged` bytes of
/// others.
pub fn check_space(engine: &dyn Engine, submission: &Submission, (bytes, staged): (usize, usize)) -> Result<()> {
    if bytes == 0 || engine.space_left() == SpaceLeft::Enough {
        return Ok(());
    }
    let is_lock = locks_rows(&submission.batch);
    let needed = if !is_lock && gives_space(submission) { SpaceLeft::ForDrops } else { SpaceLeft::ForDeletions };
    let bytes = if is_lock { bytes.saturating_mul(3) } else { bytes };
    if engine.has_space(staged.saturating_add(bytes), needed) {
        return Ok(());
    }
    Err(Error::full_disk(match needed {
        SpaceLeft::ForDrops => {
            "nothing can be written until 3 MiB are free: close the store, which gives back what was deleted"
        }
        SpaceLeft::ForDeletions | SpaceLeft::Enough => {
            "rows cannot be deleted in a transaction of this size until 3 MiB are free: delete fewer in each, end the \
             history, which keeps what was deleted, truncate or drop keyspaces"
        }
    }))
}

fn locks_rows(batch: &RowBatch) -> bool {
    match batch {
        RowBatch::Changes(changes) => changes.iter().any(|change| matches!(change.lock, CellChange::Put(_))),
        RowBatch::OnePhaseWrites(_) => false,
    }
}

fn gives_space(Submission { batch, kind, .. }: &Submission) -> bool {
    match kind {
        SubmissionKind::Commit => batch.row_keys().all(|row| row.keyspace_id() == KeyspaceId::CATALOG),
        SubmissionKind::CommitPrimary | SubmissionKind::PrewriteLarge => false,
        SubmissionKind::RollForward { .. }
        | SubmissionKind::FinishRollback { .. }
        | SubmissionKind::Gc
        | SubmissionKind::NoCommit => true,
    }
}
