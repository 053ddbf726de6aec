//! Row counts and sizes of keyspaces: counted up to a limit, and estimated beyond it.

use std::ops::ControlFlow;

use serde::{Deserialize, Serialize};

use crate::engine::storage::Column;
use crate::error::Result;
use crate::keys::keyspace_range;
use crate::row::KeyspaceId;
use crate::store::catalog::reader::CatalogReader;
use crate::store::handle::Store;
use crate::store::keyspace::Keyspace;
use crate::store::read::snapshot::Snapshot;

/// After this many bytes of keys and values are read, the rest of a keyspace is estimated.
const SAMPLE_BYTES: u64 = 64 << 20;

/// Row count and sizes of a keyspace: see [`Store::keyspace_stats`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct KeyspaceStats {
    /// The name. `None` if the keyspace was dropped and is not purged yet, or is being restored:
    /// such a keyspace cannot be read, but uses space.
    pub name: Option<String>,
    /// The number of rows that a new snapshot sees; 0 if there is no name.
    pub rows: u64,
    /// The size of the keys and values of these rows, in bytes; 0 if there is no name.
    pub logical_bytes: u64,
    /// Whether all rows were counted. If not, `rows` and `logical_bytes` are estimates: what was
    /// counted, multiplied by the size in tables of all rows and divided by that of the counted
    /// rows. Also `false` if there is no name.
    pub is_exact: bool,
    /// The size of the keyspace in tables (SST files) on disk, in bytes: compressed, with replaced
    /// versions, estimated by RocksDB in whole blocks. Excludes rows that are only in the
    /// write-ahead log and memtables; 0 for a store in memory.
    pub disk_bytes: u64,
}

/// The disk space of a keyspace in a [`StoreStatus`](crate::store::StoreStatus).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct KeyspaceSize {
    /// Its name.
    pub name: String,
    /// See [`KeyspaceStats::disk_bytes`].
    pub disk_bytes: u64,
}

/// See [`Store::keyspace_stats`].
pub(in crate::store) fn keyspace_stats(snapshot: &Snapshot, count: u64) -> Result<Vec<KeyspaceStats>> {
    let named = snapshot.keyspaces()?;
    let mut stats: Vec<_> =
        named.iter().map(|keyspace| keyspace_stats_of(snapshot, keyspace, count.max(1))).collect::<Result<_>>()?;
    for id in CatalogReader::new(&snapshot.store).dropped_at(&snapshot.reader.view)? {
        let disk_bytes = disk_bytes_of(&snapshot.store, id).unwrap_or_default();
        stats.push(KeyspaceStats { name: None, rows: 0, logical_bytes: 0, is_exact: false, disk_bytes });
    }
    Ok(stats)
}

fn keyspace_stats_of(snapshot: &Snapshot, keyspace: &Keyspace, count: u64) -> Result<KeyspaceStats> {
    let (mut rows, mut logical_bytes, mut is_exact) = (0_u64, 0_u64, true);
    let mut scan = snapshot.range(keyspace, ..);
    loop {
        let max_rows = rows.saturating_add(count);
        let max_bytes = if count == u64::MAX { u64::MAX } else { logical_bytes.saturating_add(SAMPLE_BYTES) };
        let seen = scan.visit(|key, value| {
            rows += 1;
            logical_bytes += (key.len() + value.len()) as u64;
            if rows >= max_rows || logical_bytes >= max_bytes {
                ControlFlow::Break(keyspace.row(key))
            } else {
                ControlFlow::Continue(())
            }
        })?;
        let ControlFlow::Break(last) = seen else { break };
        let (start, end) = keyspace_range(keyspace.id());
        let size_up_to = |end: &[u8]| snapshot.store.inner.engine.approximate_size(Column::Write, &start, end);
        // The estimate needs the size of the counted rows in tables. It is 0 if all of them are in
        // memtables or in one block, and `None` in a store in memory. Then the loop counts as many
        // rows or bytes again.
        if let (Some(counted @ 1..), Some(all)) = (size_up_to(last.as_bytes()), size_up_to(&end)) {
            let extrapolate = |part: u64| {
                let whole = u128::from(part) * u128::from(all.max(counted)) / u128::from(counted);
                u64::try_from(whole).unwrap_or(u64::MAX)
            };
            (rows, logical_bytes, is_exact) = (extrapolate(rows), extrapolate(logical_bytes), false);
            break;
        }
    }
    let name = Some(keyspace.name().to_owned());
    Ok(KeyspaceStats {
        name,
        rows,
        logical_bytes,
        is_exact,
        disk_bytes: disk_bytes_of(&snapshot.store, keyspace.id()).unwrap_or_default(),
    })
}

/// The size of a keyspace in all columns; `None` if the engine has no sizes.
fn disk_bytes_of(store: &Store, id: KeyspaceId) -> Option<u64> {
    let (start, end) = keyspace_range(id);
    let columns = [Column::Write, Column::Lock, Column::Data, Column::History];
    columns.into_iter().map(|column| store.inner.engine.approximate_size(column, &start, &end)).sum()
}

/// The disk space of at most `limit` keyspaces, the first by name; empty if the engine has no
/// sizes.
pub(in crate::store) fn keyspace_sizes(store: &Store, limit: usize) -> Result<Vec<KeyspaceSize>> {
    if store.inner.engine.approximate_size(Column::Write, &[], &[]).is_none() {
        return Ok(Vec::new());
    }
    store.inner.check_open()?;
    let view = store.inner.coordinator.begin()?.0;
    let named = CatalogReader::new(store).names_at(&view).take(limit);
    named
        .map(|named| {
            named.map(|(name, id)| KeyspaceSize { name, disk_bytes: disk_bytes_of(store, id).unwrap_or_default() })
        })
        .collect()
}
