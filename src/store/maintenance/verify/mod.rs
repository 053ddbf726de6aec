//! Verifying: does everything that is stored make sense?
//!
//! Every cell of every column is read in one view and decoded, and asked for what must be true of it:
//!
//! | column | what must be true |
//! |---|---|
//! | versions | committed after its transaction began, below the oracle's mark; a long value has its entry, a deletion its place on the collector's work list; leases of locks decode |
//! | row locks | the primary can tell the transaction's fate, and is itself not locked any more once it has; a long value has its entry |
//! | values | some version or lock of the row owns it |
//! | history | filed under its own timestamp, older than the version that replaced it, which the collector's work list names |
//! | meta | whatever is known of it decodes |
//!
//! And every row belongs to a keyspace that the catalog knows, and no loss of commits was accepted. The log was checked when it was read at
//! opening; what is read here is the window and the tables. What RocksDB keeps beside the cells, the filters and indexes of tables, is
//! looked at as far as reading the cells in order needs it: damage to a filter goes unnoticed, and may hide a row from
//! [`Snapshot::get`](crate::Snapshot::get). Nothing is changed, and damage in one place does not keep the rest from being looked at.

mod checks;

use std::collections::HashMap;
use std::sync::Arc;

use crate::engine::storage::Column;
use crate::engine::{DataLoss, EngineError, RowRange};
use crate::error::Result;
use crate::read_view::ReadView;
use crate::row::{KeyspaceId, RowKey};
use crate::store::maintenance::progress::{IntoControlFlow, check_progress};
use crate::store::maintenance::verify::checks::Verifier;
use crate::store::read::key_range::prefix_range;
use crate::store::read::scan::Scan;
use crate::store::{Keyspace, Store};
use crate::timestamp::Timestamp;

/// So many problems are told; beyond that they are counted.
pub(in crate::store) const ISSUES_MAX: usize = 1000;

/// What was looked at and what was found, so far or in all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct VerifyReport {
    /// Newest versions of rows, records of deletions included.
    pub versions: u64,
    /// Row locks.
    pub row_locks: u64,
    /// Long values, which are stored apart from their versions.
    pub out_of_line_values: u64,
    /// Replaced versions and ends of transactions.
    pub history_entries: u64,
    /// Entries of the store's own bookkeeping.
    pub meta_entries: u64,
    /// Bytes of all these, keys included.
    pub bytes: u64,
    /// How many problems there are.
    pub issue_count: u64,
    /// The first thousand of them.
    pub issues: Vec<IntegrityIssue>,
    /// Losses of commits that were accepted: see [`Store::data_losses`]. Not among the problems.
    pub data_losses: Vec<DataLoss>,
}

/// Something that is not as it must be.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct IntegrityIssue {
    /// The column.
    pub column: Column,
    /// The row, where it is known.
    pub row: Option<RowKey>,
    /// The name of the row's keyspace, where it has one that is known.
    pub keyspace: Option<String>,
    /// What is wrong with it.
    pub message: String,
}

impl std::fmt::Display for IntegrityIssue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?} column", self.column)?;
        if let Some(row) = &self.row {
            write!(f, ", row {}", row_text(row, self.keyspace.as_deref()))?;
        }
        write!(f, ": {}", self.message)
    }
}

/// A row for people: with its keyspace's name, or else the number.
fn row_text(row: &RowKey, keyspace: Option<&str>) -> String {
    keyspace.map_or_else(|| format!("{row:?}"), |keyspace| format!("{keyspace}/{}", row.user_key().escape_ascii()))
}

impl VerifyReport {
    /// Whether there is nothing wrong.
    pub fn is_ok(&self) -> bool {
        self.issue_count == 0 && self.data_losses.is_empty()
    }

    /// How many cells were looked at.
    pub fn cells(&self) -> u64 {
        self.versions + self.row_locks + self.out_of_line_values + self.history_entries + self.meta_entries
    }
}

impl Store {
    /// Looks at everything that is stored and tells what is wrong with it; see [`VerifyReport`]. Nothing is changed by it, and it may
    /// run beside transactions. It reads cells in order: the filters of RocksDB's tables, which only single reads use, and
    /// what of an index no scan needs are not checked, nor checksums of whole files: RocksDB can, but its Rust binding does not
    /// offer it. `progress` is called every thousand cells or so,
    /// and may [stop](IntoControlFlow) it.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) where the engine does not show what it stores,
    /// [`ErrorKind::Closed`](crate::ErrorKind::Closed), [`ErrorKind::Cancelled`](crate::ErrorKind::Cancelled). Damage is no error but a [`IntegrityIssue`].
    pub fn verify<P: IntoControlFlow>(&self, mut progress: impl FnMut(&VerifyReport) -> P) -> Result<VerifyReport> {
        self.inner.check_open()?;
        let view = ReadView::new(Timestamp::MAX, self.inner.engine.snapshot()?, true);
        // An engine that cannot show its cells says so here.
        view.snapshot.scan_raw(Column::Meta, &RowRange::all(), &mut |_, _| false).or_else(|why| match why {
            EngineError::Unsupported(_) => Err(why),
            _ => Ok(()),
        })?;
        let mut progress = |so_far: &VerifyReport| {
            self.inner.check_open()?;
            let stopped = || {
                let (cells, problems) = (so_far.cells(), so_far.issue_count);
                format!("stopped after {cells} cells, with {problems} problems found; the others were not read")
            };
            check_progress(progress(so_far), stopped)
        };
        let mut verifier = Verifier::new(&*view.snapshot, &mut progress);
        verifier.report.data_losses = self.data_losses();
        verifier.load_meta();
        match self.keyspace_names_at(&view) {
            Ok(names) => verifier.keyspaces = Some(names),
            Err(why) => verifier.add_issue(Column::Write, None, format!("the catalog cannot be read: {why}")),
        }
        verifier.check_column(Column::Meta, |verifier, key, value| {
            verifier.check_meta(key, value);
            Ok(())
        })?;
        verifier.check_column(Column::Write, Verifier::check_version_cell)?;
        verifier.check_column(Column::Lock, Verifier::check_lock)?;
        verifier.check_column(Column::Data, Verifier::check_value)?;
        verifier.check_column(Column::History, Verifier::check_history)?;
        Ok(verifier.report)
    }

    /// Of all keyspaces that may have rows, the catalog's own and those dropped included.
    fn keyspace_names_at(&self, view: &Arc<ReadView>) -> Result<HashMap<KeyspaceId, Option<String>>> {
        let catalog: Keyspace = self.catalog();
        let all = prefix_range(&catalog, b"");
        let rows = Scan::new(self, &self.register_reader(Arc::clone(view), Some("verify")), Ok((None, None, all)));
        let mut names = HashMap::from([(catalog.id(), None)]);
        for row in rows {
            let (key, value) = row?;
            if let Some(number) = crate::store::catalog::entry_id(&key, &value)? {
                names.insert(number, crate::store::catalog::entry_name(&key));
            }
        }
        Ok(names)
    }
}
