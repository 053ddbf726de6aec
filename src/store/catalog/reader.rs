//! Reads the entries of the catalog: names and ids of keyspaces, and drops.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use crate::error::Result;
use crate::read_view::ReadView;
use crate::row::KeyspaceId;
use crate::store::catalog::entries::{
    DROPPED_PREFIX, NAME_PREFIX, decode_dropped_id, decode_id, entry_name, scanned_name,
};
use crate::store::handle::Store;
use crate::store::read::key_range::prefix_range;
use crate::store::read::scan::Scan;

/// Reads the catalog of a store. `name_of` and `dropped_before_open` read its newest
/// state, the other functions a given view (`check_not_staging` both).
#[derive(Clone, Copy)]
pub(in crate::store) struct CatalogReader<'a> {
    pub(super) store: &'a Store,
}

impl<'a> CatalogReader<'a> {
    pub fn new(store: &'a Store) -> Self {
        Self { store }
    }

    /// The entries of the catalog that the view shows and whose keys begin with `kind`, such as
    /// [`NAME_PREFIX`]. The scan is internal, so it is not in the list of active transactions.
    pub fn entries(self, view: &Arc<ReadView>, kind: &str) -> Scan {
        let range = prefix_range(&self.store.inner.catalog.keyspace(), kind.as_bytes());
        Scan::new(self.store, &self.store.inner.monitor.unregistered_reader(Arc::clone(view)), Ok((None, None, range)))
    }

    /// The keyspaces among `ids` that were dropped in an earlier incarnation; the caller marks
    /// their new handles as dropped. They are those that have no name now, so each keyspace in
    /// `ids` must have had one once. A keyspace that has a handle is left out: if it was dropped,
    /// its handles are marked already.
    pub fn dropped_before_open(self, ids: impl Iterator<Item = KeyspaceId>) -> Result<HashSet<KeyspaceId>> {
        let mut dropped: HashSet<_> = ids.filter(|id| !self.store.inner.catalog.has_handle(*id)).collect();
        if !dropped.is_empty() {
            let view = self.store.inner.coordinator.begin()?.0;
            for row in self.entries(&view, NAME_PREFIX) {
                dropped.remove(&decode_id(row?.value())?);
            }
        }
        Ok(dropped)
    }

    /// The ids of the keyspaces that have a name in the view.
    pub fn ids_at(self, view: &Arc<ReadView>) -> Result<BTreeSet<u32>> {
        self.names_at(view).map(|named| Ok(named?.1.0)).collect()
    }

    /// The keyspaces that have a name in the view, ordered by name.
    pub fn names_at(self, view: &Arc<ReadView>) -> impl Iterator<Item = Result<(String, KeyspaceId)>> + use<> {
        self.entries(view, NAME_PREFIX).map(|row| {
            let row = row?;
            Ok((scanned_name(row.key()), decode_id(row.value())?))
        })
    }

    /// The keyspaces that are dropped or staged in the view, and not purged.
    pub fn dropped_at(self, view: &Arc<ReadView>) -> Result<Vec<KeyspaceId>> {
        self.entries(view, DROPPED_PREFIX).map(|row| decode_dropped_id(row?.key())).collect()
    }

    /// The current name of a keyspace.
    pub fn name_of(self, id: KeyspaceId) -> Option<String> {
        if let Some(name) = self.store.inner.catalog.name_by_handle(id) {
            return Some(name);
        }
        let view = self.store.inner.coordinator.begin().ok()?.0;
        self.entries(&view, NAME_PREFIX).find_map(|row| {
            let row = row.ok()?;
            let name = entry_name(row.key())?;
            (decode_id(row.value()).ok()? == id).then_some(name)
        })
    }
}
