//! How much there is in each keyspace.

use std::ops::ControlFlow;

use serde::{Deserialize, Serialize};

use crate::engine::storage::Column;
use crate::error::Result;
use crate::keys::keyspace_range;
use crate::row::KeyspaceId;
use crate::store::{Keyspace, Snapshot, Store};

/// Bytes of keys and values that are counted before the rest is estimated.
const SAMPLE_BYTES: u64 = 64 << 20;

/// How much there is in a keyspace: see [`Store::keyspace_stats`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct KeyspaceStats {
    /// Its name; `None` for one that was dropped, or is just being restored: nobody can read it, and its space is still in use.
    pub name: Option<String>,
    /// Rows that a reader sees; 0 where there is no name.
    pub rows: u64,
    /// Bytes of their keys and values; 0 where there is no name.
    pub logical_bytes: u64,
    /// Whether all rows were counted. If not, both figures are estimates: as the counted part is to the whole on the disk.
    pub is_exact: bool,
    /// What it takes in tables on the disk, compressed, with replaced versions: an estimate by RocksDB, in whole blocks. What is only
    /// in the log yet does not count; 0 in memory.
    pub disk_bytes: u64,
}

/// What a keyspace takes on the disk, in a [`Status`](crate::store::StoreStatus).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct KeyspaceSize {
    /// Its name.
    pub name: String,
    /// See [`KeyspaceStats::disk_bytes`].
    pub stored_bytes: u64,
}

impl Store {
    /// Rows and sizes of every keyspace, in the order of their names, with those that were dropped and not erased yet at the end.
    ///
    /// Of each keyspace at least `count` rows, or 64 MiB, are read and counted; what is beyond is estimated by what RocksDB says of
    /// sizes on the disk. So the cost is bounded, however much there is, but for what is not in tables yet; `u64::MAX` counts everything,
    /// which takes as long as reading it. In memory everything is counted.
    ///
    /// ```
    /// # fn main() -> percolite::Result<()> {
    /// let store = percolite::Store::in_memory()?;
    /// let towns = store.keyspace("towns")?;
    /// store.transact(|txn| txn.put(&towns, "Oslo", "717710"))?;
    /// let figures = store.keyspace_stats(10_000)?;
    /// assert_eq!((figures[0].name.as_deref(), figures[0].rows, figures[0].bytes), (Some("towns"), 1, 10));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// Those of [`Snapshot::get`] and [`Store::snapshot`].
    pub fn keyspace_stats(&self, count: u64) -> Result<Vec<KeyspaceStats>> {
        let snapshot = self.snapshot()?;
        let named = snapshot.keyspaces()?;
        let mut figures: Vec<_> = named
            .iter()
            .map(|keyspace| self.keyspace_stats_of(&snapshot, keyspace, count.max(1)))
            .collect::<Result<_>>()?;
        for id in self.dropped_at(&snapshot.reader.view)? {
            let stored_bytes = self.disk_bytes_of(id).unwrap_or_default();
            figures.push(KeyspaceStats {
                name: None,
                rows: 0,
                logical_bytes: 0,
                is_exact: false,
                disk_bytes: stored_bytes,
            });
        }
        Ok(figures)
    }

    fn keyspace_stats_of(&self, snapshot: &Snapshot, keyspace: &Keyspace, count: u64) -> Result<KeyspaceStats> {
        let (mut rows, mut bytes, mut is_exact) = (0_u64, 0_u64, true);
        let mut scan = snapshot.range(keyspace, ..);
        loop {
            let upto = rows.saturating_add(count);
            let bytes_upto = if count == u64::MAX { u64::MAX } else { bytes.saturating_add(SAMPLE_BYTES) };
            let seen = scan.visit(|key, value| {
                rows += 1;
                bytes += (key.len() + value.len()) as u64;
                if rows >= upto || bytes >= bytes_upto {
                    ControlFlow::Break(keyspace.row(key))
                } else {
                    ControlFlow::Continue(())
                }
            })?;
            let ControlFlow::Break(last) = seen else { break };
            let (start, end) = keyspace_range(keyspace.id());
            let between = |end: &[u8]| self.inner.engine.approximate_size(Column::Write, &start, end);
            // What is in write buffers alone has no size yet.
            if let (Some(counted @ 1..), Some(all)) = (between(last.as_bytes()), between(&end)) {
                let whole = |part: u64| {
                    let whole = u128::from(part) * u128::from(all.max(counted)) / u128::from(counted);
                    u64::try_from(whole).unwrap_or(u64::MAX)
                };
                (rows, bytes, is_exact) = (whole(rows), whole(bytes), false);
                break;
            }
        }
        let name = Some(keyspace.name().to_owned());
        Ok(KeyspaceStats {
            name,
            rows,
            logical_bytes: bytes,
            is_exact,
            disk_bytes: self.disk_bytes_of(keyspace.id()).unwrap_or_default(),
        })
    }

    /// What a keyspace takes in all columns; `None` where the engine has no such figure.
    fn disk_bytes_of(&self, id: KeyspaceId) -> Option<u64> {
        let (start, end) = keyspace_range(id);
        let columns = [Column::Write, Column::Lock, Column::Data, Column::History];
        columns.into_iter().map(|column| self.inner.engine.approximate_size(column, &start, &end)).sum()
    }

    /// What the first of the keyspaces take; nothing where the engine has no such figures.
    pub(in crate::store) fn keyspace_sizes(&self, limit: usize) -> Result<Vec<KeyspaceSize>> {
        if self.inner.engine.approximate_size(Column::Write, &[], &[]).is_none() {
            return Ok(Vec::new());
        }
        self.inner.check_open()?;
        let view = self.inner.coordinator.begin()?.0;
        let named = self.names_at(&view).take(limit);
        named
            .map(|named| {
                named.map(|(name, id)| KeyspaceSize { name, stored_bytes: self.disk_bytes_of(id).unwrap_or_default() })
            })
            .collect()
    }
}
