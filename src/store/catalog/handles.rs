//! What the catalog has in memory: the handles, and the drops of this incarnation.

use std::collections::HashMap;
use std::sync::Arc;

use crate::keyspace_descriptor::KeyspaceDescriptor;
use crate::row::KeyspaceId;
use crate::store::catalog::entries::CATALOG_ID;
use crate::store::catalog::visibility_cache::VisibilityCache;
use crate::store::keyspace::{Keyspace, KeyspaceInner};
use crate::sync::Mutex;
use crate::timestamp::Timestamp;

/// See the [module](self).
pub(in crate::store) struct Catalog {
    instance_id: u64,
    /// By keyspace id, what all handles of the keyspace share.
    handles: Mutex<HashMap<u32, Arc<KeyspaceInner>>>,
    /// The keyspaces dropped in this incarnation, each with a timestamp at or above the commit of
    /// its drop. The timestamp is MAX until the drop is committed, and for a staged keyspace.
    drops: Mutex<HashMap<u32, Timestamp>>,
}

impl Catalog {
    /// The catalog of a store that has just been opened.
    pub fn new(instance_id: u64) -> Self {
        Self { instance_id, handles: Mutex::default(), drops: Mutex::default() }
    }

    /// The keyspace that has the catalog's entries.
    pub fn keyspace(&self) -> Keyspace {
        self.handle(CATALOG_ID, "(catalog)")
    }

    /// A handle of the keyspace with this id, under this name.
    pub fn handle(&self, id: KeyspaceId, name: &str) -> Keyspace {
        let mut handles = self.handles.lock();
        let new = || {
            Arc::new(KeyspaceInner {
                id,
                descriptor: KeyspaceDescriptor::new(name),
                instance_id: self.instance_id,
                visibility: VisibilityCache::new(id),
            })
        };
        Keyspace::new(Arc::clone(handles.entry(id.0).or_insert_with(new)), name)
    }

    /// Whether the keyspace has had a handle in this incarnation.
    pub fn has_handle(&self, id: KeyspaceId) -> bool {
        self.handles.lock().contains_key(&id.0)
    }

    /// The current name of a keyspace that has a handle.
    pub fn name_by_handle(&self, id: KeyspaceId) -> Option<String> {
        self.handles.lock().get(&id.0).map(|keyspace| keyspace.descriptor.name().to_string())
    }

    /// Records a drop that is to be committed, or a staged keyspace. Must be called before the
    /// commit. Until [`Catalog::drop_committed`] or [`Catalog::undo_drop`] is called, the
    /// background worker does not purge the keyspace.
    pub fn begin_drop(&self, id: KeyspaceId) {
        self.drops.lock().insert(id.0, Timestamp::MAX);
    }

    /// Records that the drop was committed at or before this timestamp.
    pub fn drop_committed(&self, id: KeyspaceId, ts: Timestamp) {
        self.drops.lock().insert(id.0, ts);
    }

    /// Removes the record of a drop that was not committed.
    pub fn undo_drop(&self, id: KeyspaceId) {
        self.drops.lock().remove(&id.0);
    }

    /// A timestamp at or above the commit of this incarnation's drop of the keyspace. MAX until the
    /// drop is committed, and for a staged keyspace; ZERO if there is no drop.
    pub fn dropped_at(&self, id: KeyspaceId) -> Timestamp {
        self.drops.lock().get(&id.0).copied().unwrap_or_default()
    }
}
