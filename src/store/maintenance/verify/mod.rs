//! Verification: reads every cell of every column in one engine snapshot, decodes the cell and
//! checks its invariants.
//!
//! | column | invariant |
//! |---|---|
//! | write | the commit timestamp is above the start timestamp |
//! | write | the commit timestamp is at or below the high-water mark |
//! | write | an out-of-line value has its cell in the data column |
//! | write | a tombstone has its entry in the GC queue |
//! | write | lease rows of named locks decode |
//! | lock | the primary shows the status of the transaction |
//! | lock | a transaction that has ended has no lock on its own primary |
//! | lock | an out-of-line value has its cell in the data column |
//! | data | a version or lock of the row refers to the value |
//! | history | a version is stored under its commit timestamp |
//! | history | it is older than the version that replaced it |
//! | history | the version that replaced it has its entry in the GC queue |
//! | meta | the entries of this program decode |
//!
//! Every row must be of a keyspace in the catalog, and there must be no accepted data loss. The
//! write-ahead log is checked when it is read at opening; verification reads the memtables and the
//! tables. Filters and indexes of RocksDB's tables are checked only as far as an ordered scan reads
//! them. So a damaged filter is not detected; it may hide a row from
//! [`Snapshot::get`](crate::Snapshot::get).
//!
//! Verification changes nothing. Damage in one place does not prevent the check of the rest.

mod checks;
pub(in crate::store) mod report;

use std::collections::HashMap;
use std::sync::Arc;

use crate::engine::storage::Column;
use crate::engine::{EngineError, RowRange};
use crate::error::Result;
use crate::read_view::ReadView;
use crate::row::KeyspaceId;
use crate::store::catalog::entries::{entry_id, entry_name};
use crate::store::handle::Store;
use crate::store::keyspace::Keyspace;
use crate::store::maintenance::progress::{IntoControlFlow, check_progress};
use crate::store::maintenance::verify::checks::Verifier;
use crate::store::maintenance::verify::report::VerifyReport;
use crate::store::read::key_range::prefix_range;
use crate::store::read::scan::Scan;
use crate::timestamp::Timestamp;

impl Store {
    /// Checks everything that is stored, and reports what is wrong in a [`VerifyReport`]. Changes
    /// nothing, and may run concurrently with transactions.
    ///
    /// Cells are read in order. So neither the filters of RocksDB's tables, which only point reads
    /// use, nor the parts of indexes that no scan needs are checked. The checksums of whole files
    /// are not checked, because RocksDB's Rust binding cannot do that. `progress` is called about
    /// every thousand cells, and may [cancel](IntoControlFlow) the verification.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) if the engine does not
    /// expose its cells, [`ErrorKind::Closed`](crate::ErrorKind::Closed) and
    /// [`ErrorKind::Cancelled`](crate::ErrorKind::Cancelled). Damage is an
    /// [`IntegrityIssue`](crate::IntegrityIssue), not an error.
    pub fn verify<P: IntoControlFlow>(&self, mut progress: impl FnMut(&VerifyReport) -> P) -> Result<VerifyReport> {
        self.inner.check_open()?;
        let view = ReadView::new(Timestamp::MAX, self.inner.engine.snapshot()?, true);
        // This read finds out whether the engine exposes its cells, and returns the error if it
        // does not. Other errors are ignored here, because the checks report them.
        view.snapshot.scan_raw(Column::Meta, &RowRange::all(), &mut |_, _| false).or_else(|error| match error {
            EngineError::Unsupported(_) => Err(error),
            _ => Ok(()),
        })?;
        let mut progress = |so_far: &VerifyReport| {
            self.inner.check_open()?;
            let stopped = || {
                let (cells, issues) = (so_far.cells(), so_far.issue_count);
                format!("stopped after {cells} cells with {issues} issues; the rest was not checked")
            };
            check_progress(progress(so_far), stopped)
        };
        let mut verifier = Verifier::new(&*view.snapshot, &mut progress);
        verifier.report.data_losses = self.data_losses();
        verifier.load_meta();
        match keyspace_names_at(self, &view) {
            Ok(names) => verifier.keyspaces = Some(names),
            Err(error) => verifier.add_issue(Column::Write, None, format!("cannot read the catalog: {error}")),
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
}

/// All keyspaces that may have rows, with their names. The catalog and the dropped and staged
/// keyspaces are included, without a name.
fn keyspace_names_at(store: &Store, view: &Arc<ReadView>) -> Result<HashMap<KeyspaceId, Option<String>>> {
    let catalog: Keyspace = store.inner.catalog.keyspace();
    let all = prefix_range(&catalog, b"");
    let rows = Scan::new(
        store,
        &store.inner.monitor.register_snapshot(Arc::clone(view), Some("verify")),
        Ok((None, None, all)),
    );
    let mut names = HashMap::from([(catalog.id(), None)]);
    for row in rows {
        let row = row?;
        if let Some(id) = entry_id(row.key(), row.value())? {
            names.insert(id, entry_name(row.key()));
        }
    }
    Ok(names)
}
