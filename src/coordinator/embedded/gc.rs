//! Garbage collection (GC): removes tombstones and replaced versions that no active transaction,
//! snapshot or historical read can see.
//!
//! A commit puts an entry into the GC queue for each row that it deletes, or whose replaced version
//! it keeps. The queue is ordered by commit timestamp. A pass reads the queue in pages, up to where
//! the GC horizon was when the pass began. Each page begins where the previous page ended: the pass
//! has deleted nearly all entries before that point, and a scan from the beginning would read all
//! their RocksDB tombstones.

use std::collections::BTreeMap;

use super::history::History;
use super::rows::Rows;
use crate::engine::{EngineError, EngineSnapshot, GcEntry, SpaceLeft};
use crate::error::Result;
use crate::pipeline::SubmissionKind;
use crate::protocol::{GcRequest, OldVersion, gc_row};
use crate::row::{RowChange, RowKey};
use crate::timestamp::Timestamp;

const PAGE_ROWS: usize = 512;
/// On a full disk, where the log has little space.
const PAGE_ROWS_ON_FULL_DISK: usize = 16;

/// A pass over the GC queue.
#[derive(Default)]
pub struct Gc {
    /// The last entry that was read, and the horizon of the pass; `None` between two passes.
    cursor: Option<(GcEntry, Timestamp)>,
}

impl Gc {
    /// Whether a pass is in progress.
    pub fn is_running(&self) -> bool {
        self.cursor.is_some()
    }

    /// Removes the garbage of the next page of the queue.
    pub fn page(&mut self, rows: &Rows, history: &History) -> Result<()> {
        let page_rows = match rows.engine().space_left() {
            SpaceLeft::Enough => PAGE_ROWS,
            SpaceLeft::ForDeletions => PAGE_ROWS_ON_FULL_DISK,
            SpaceLeft::ForDrops => return Ok(()),
        };
        let (after, horizon) = match self.cursor.take() {
            Some((after, horizon)) => (Some(after), horizon),
            None => (None, history.advance_gc_horizon()?),
        };
        let entries = rows.engine().gc_candidates(after.as_ref(), horizon, page_rows)?;
        self.cursor = entries.last().filter(|_| entries.len() == page_rows).map(|last| (last.clone(), horizon));
        let mut by_row: BTreeMap<RowKey, Vec<Timestamp>> = BTreeMap::new();
        for (replaced_at, row) in entries {
            by_row.entry(row).or_default().push(replaced_at);
        }
        collect_rows(rows, by_row)
    }
}

fn collect_rows(rows: &Rows, by_row: BTreeMap<RowKey, Vec<Timestamp>>) -> Result<()> {
    let snapshot = rows.engine().snapshot()?;
    let (mut unconditional, mut damage) = (Vec::new(), None);
    for (row, replaced_at) in by_row {
        let change = match row_change(&*snapshot, row, replaced_at) {
            Ok(change) => change,
            Err(error) => {
                // One unreadable row must not prevent the GC of the others.
                damage.get_or_insert(error);
                continue;
            }
        };
        if change.preconditions.is_empty() {
            unconditional.push(change);
            continue;
        }
        crash_point!(GcBefore);
        submit(rows, vec![change])?;
        crash_point!(GcDone);
    }
    while !unconditional.is_empty() {
        let rest = unconditional.split_off(unconditional.len().min(rows.batch_rows_max()));
        submit(rows, std::mem::replace(&mut unconditional, rest))?;
    }
    damage.map_or(Ok(()), |error| Err(error.into()))
}

fn row_change(
    snapshot: &dyn EngineSnapshot,
    row: RowKey,
    replaced_at: Vec<Timestamp>,
) -> Result<RowChange, EngineError> {
    let mut old_versions: Vec<OldVersion> = Vec::new();
    for ts in &replaced_at {
        old_versions.extend(snapshot.version_at(&row, ts.previous())?.as_ref().map(OldVersion::from));
    }
    old_versions.dedup();
    let as_read = snapshot.row(&row, Timestamp::ZERO)?;
    Ok(gc_row(&as_read, &GcRequest { row, replaced_at, old_versions }))
}

/// Submits changes. If a precondition fails, the entries stay queued for the next pass.
fn submit(rows: &Rows, changes: Vec<RowChange>) -> Result<()> {
    let entries = changes.iter().map(|change| change.gc_done.len()).sum();
    let versions: usize = changes.iter().map(|change| change.deleted_versions.len()).sum();
    if entries == 0 || !rows.try_apply(changes, SubmissionKind::Gc)? {
        return Ok(());
    }
    rows.metrics.gc_tombstones.add((entries - versions.min(entries)) as u64);
    rows.metrics.gc_versions.add(versions as u64);
    event!(DEBUG, entries, versions, "garbage collected");
    Ok(())
}
