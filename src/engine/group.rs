//! Row changes that are made together.

use std::borrow::Cow;
use std::sync::Arc;

use crate::row::{Mutation, Precondition, RowChange, RowKey, TxnId};
use crate::timestamp::Timestamp;
use crate::writes::WriteSet;

/// Row changes that are made together, at most one a row.
#[derive(Clone, Debug)]
pub enum RowBatch {
    /// These.
    Changes(Vec<RowChange>),
    /// The same change for every row that a transaction wrote.
    OnePhaseWrites(OnePhaseWrites),
}

/// What a commit in one phase does to its rows where nothing of them needs to be known: each gets its next version, and all of them
/// under the same guards. What a load writes is large, and the changes that say the same of each row would be several times as large
/// and walked over again and again; so an engine does well to have no more than one of them at a time.
#[derive(Clone, Debug)]
pub struct OnePhaseWrites {
    /// Whose versions they are.
    pub txn: TxnId,
    /// When they are committed.
    pub commit_ts: Timestamp,
    /// The guards of every row: that nobody has locked it, and that it was not committed after this. `None` where there are none.
    pub no_commit_after: Option<Timestamp>,
    /// The rows, and what becomes of each.
    pub writes: Arc<WriteSet>,
}

impl RowBatch {
    /// How many rows it changes.
    pub fn row_count(&self) -> usize {
        match self {
            Self::Changes(changes) => changes.len(),
            Self::OnePhaseWrites(versions) => versions.writes.len(),
        }
    }

    /// The changes, one by one.
    pub fn changes(&self) -> Cow<'_, [RowChange]> {
        match self {
            Self::Changes(changes) => changes.into(),
            Self::OnePhaseWrites(versions) => {
                versions.writes.iter().map(|(row, mutation)| versions.change(row, mutation)).collect()
            }
        }
    }

    /// The rows, in the order of the changes.
    pub fn row_keys(&self) -> impl Iterator<Item = &RowKey> {
        let (changes, versions) = match self {
            Self::Changes(changes) => (changes.as_slice(), None),
            Self::OnePhaseWrites(versions) => (Default::default(), Some(versions)),
        };
        let written = versions.into_iter().flat_map(|versions| versions.writes.keys());
        changes.iter().map(|change| &change.row).chain(written)
    }

    /// The transaction that it is about, if that can be told: not of no changes.
    pub fn start_ts(&self) -> Option<Timestamp> {
        match self {
            Self::Changes(changes) => changes.first().map(|change| change.start_ts),
            Self::OnePhaseWrites(versions) => Some(versions.txn.start_ts),
        }
    }

    /// Whether any of it depends on what is found in a row.
    pub fn is_conditional(&self) -> bool {
        match self {
            Self::Changes(changes) => changes.iter().any(|change| !change.preconditions.is_empty()),
            Self::OnePhaseWrites(versions) => versions.no_commit_after.is_some(),
        }
    }

    /// About how much there is to write, in bytes.
    pub fn size_bytes(&self) -> usize {
        match self {
            Self::Changes(changes) => changes.iter().map(RowChange::size_bytes).sum(),
            Self::OnePhaseWrites(versions) => {
                versions.writes.iter().map(|(row, mutation)| row.as_bytes().len() + mutation.value_bytes()).sum()
            }
        }
    }

    /// Sets the commit timestamp of everything that it commits, for pipelines that learn it last.
    pub fn set_commit_ts(&mut self, commit_ts: Timestamp) {
        match self {
            Self::Changes(changes) => changes.iter_mut().for_each(|change| change.set_commit_ts(commit_ts)),
            Self::OnePhaseWrites(versions) => versions.commit_ts = commit_ts,
        }
    }
}

impl OnePhaseWrites {
    /// The change of one of the rows.
    pub fn change(&self, row: &RowKey, mutation: &Mutation) -> RowChange {
        let mut change = RowChange::next_version(row, self.txn, self.commit_ts, mutation);
        if let Some(ts) = self.no_commit_after {
            change.preconditions = Precondition::for_next_version(ts).into();
        }
        change
    }
}

impl From<Vec<RowChange>> for RowBatch {
    fn from(changes: Vec<RowChange>) -> Self {
        Self::Changes(changes)
    }
}
