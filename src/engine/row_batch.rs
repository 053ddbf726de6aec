//! Atomic batches of row changes.

use std::borrow::Cow;
use std::sync::Arc;

use crate::row::{CELL_OVERHEAD_BYTES, Mutation, Precondition, RowChange, RowKey, TxnId};
use crate::timestamp::Timestamp;
use crate::write_set::WriteSet;

/// Row changes that are applied atomically, at most one per row.
#[derive(Clone, Debug)]
pub enum RowBatch {
    /// A list of changes.
    Changes(Vec<RowChange>),
    /// The writes of a one-phase commit.
    OnePhaseWrites(OnePhaseWrites),
}

/// The writes of a one-phase commit: the next version of each row, except for rows that are only
/// locked. All rows have the same preconditions.
///
/// A bulk load commits large write sets. A [`RowChange`] for each row would take several times
/// their memory. So engines should expand the batch one row at a time ([`OnePhaseWrites::rows`] and
/// [`OnePhaseWrites::change`]).
#[derive(Clone, Debug)]
pub struct OnePhaseWrites {
    /// The transaction that writes the versions.
    pub txn: TxnId,
    /// The commit timestamp of all versions.
    pub commit_ts: Timestamp,
    /// Every row must have no lock, and no commit after this timestamp. `None`: no precondition.
    pub no_commit_after: Option<Timestamp>,
    /// The rows and their mutations. Engines read them by [`OnePhaseWrites::rows`].
    pub(crate) writes: Arc<WriteSet>,
}

impl RowBatch {
    /// The number of rows.
    pub fn row_count(&self) -> usize {
        match self {
            Self::Changes(changes) => changes.len(),
            Self::OnePhaseWrites(versions) => versions.writes.len(),
        }
    }

    /// The changes, one per row. Expands [`OnePhaseWrites`] in full.
    pub fn changes(&self) -> Cow<'_, [RowChange]> {
        match self {
            Self::Changes(changes) => changes.into(),
            Self::OnePhaseWrites(versions) => {
                versions.rows().map(|(row, mutation)| versions.change(row, mutation)).collect()
            }
        }
    }

    /// The row keys, in the order of the changes.
    pub fn row_keys(&self) -> impl Iterator<Item = &RowKey> {
        let (changes, versions) = match self {
            Self::Changes(changes) => (changes.as_slice(), None),
            Self::OnePhaseWrites(versions) => (Default::default(), Some(versions)),
        };
        let written = versions.into_iter().flat_map(|versions| versions.writes.keys());
        changes.iter().map(|change| &change.row).chain(written)
    }

    /// The start timestamp of the transaction; `None` if there are no changes.
    pub fn start_ts(&self) -> Option<Timestamp> {
        match self {
            Self::Changes(changes) => changes.first().map(|change| change.start_ts),
            Self::OnePhaseWrites(versions) => Some(versions.txn.start_ts),
        }
    }

    /// Whether any change has a precondition.
    pub fn is_conditional(&self) -> bool {
        match self {
            Self::Changes(changes) => changes.iter().any(|change| !change.preconditions.is_empty()),
            Self::OnePhaseWrites(versions) => versions.no_commit_after.is_some(),
        }
    }

    /// The approximate size of the changed cells, in bytes: keys and values, including those of
    /// replaced versions that are kept, and 32 bytes more for each cell.
    pub fn size_bytes(&self) -> usize {
        match self {
            Self::Changes(changes) => changes.iter().map(RowChange::size_bytes).sum(),
            Self::OnePhaseWrites(versions) => versions.writes.iter().map(size_of_next_version).sum(),
        }
    }

    /// Sets the commit timestamp of all versions and commit records of the batch. The commit
    /// pipeline draws this timestamp last, when the batch is already built.
    pub fn set_commit_ts(&mut self, commit_ts: Timestamp) {
        match self {
            Self::Changes(changes) => changes.iter_mut().for_each(|change| change.set_commit_ts(commit_ts)),
            Self::OnePhaseWrites(versions) => versions.commit_ts = commit_ts,
        }
    }
}

/// What [`RowChange::size_bytes`] returns for the change to a row's next version.
fn size_of_next_version((row, mutation): (&RowKey, &Mutation)) -> usize {
    let cell = row.as_bytes().len() + CELL_OVERHEAD_BYTES;
    match mutation {
        Mutation::Put(value) => cell + value.len(),
        // The tombstone, and its entry in the GC queue.
        Mutation::Delete => 2 * cell,
        Mutation::LockOnly => 0,
    }
}

impl OnePhaseWrites {
    /// Writes of these rows. Of several mutations of one row the last counts.
    pub fn new(
        (txn, commit_ts): (TxnId, Timestamp),
        no_commit_after: Option<Timestamp>,
        rows: impl IntoIterator<Item = (RowKey, Mutation)>,
    ) -> Self {
        Self { txn, commit_ts, no_commit_after, writes: Arc::new(rows.into_iter().collect()) }
    }

    /// The rows and their mutations, in key order.
    pub fn rows(&self) -> impl Iterator<Item = (&RowKey, &Mutation)> {
        self.writes.iter()
    }

    /// The change of one row, with its preconditions.
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
