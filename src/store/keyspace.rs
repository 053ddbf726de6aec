//! Keyspace handles.
//!
//! A handle has the keyspace's id, and the name that the keyspace had when the handle was created.
//! All handles of a keyspace share a descriptor, which records the current name, and whether the
//! keyspace was dropped.

use std::fmt;
use std::sync::Arc;

use crate::error::{Error, ErrorKind, Result};
use crate::keyspace_descriptor::KeyspaceDescriptor;
use crate::row::{KeyspaceId, RowKey};
use crate::store::catalog::visibility_cache::VisibilityCache;
use crate::store::limits::check_key;

/// A named, ordered set of rows (RocksDB: column family). A handle is cheap to clone and can be
/// used by any thread.
#[derive(Clone)]
pub struct Keyspace {
    pub(in crate::store) inner: Arc<KeyspaceInner>,
    name: Arc<str>,
}

pub(in crate::store) struct KeyspaceInner {
    pub id: KeyspaceId,
    pub descriptor: Arc<KeyspaceDescriptor>,
    pub visibility: VisibilityCache,
    /// The instance id of the store that opened the handle. Each store that this process opens has
    /// an instance id of its own.
    pub instance_id: u64,
}

impl Keyspace {
    pub(in crate::store) fn new(state: Arc<KeyspaceInner>, name: &str) -> Self {
        Self { inner: state, name: name.into() }
    }

    /// The name with which this handle was opened or listed.
    /// [`Store::rename_keyspace`](crate::store::Store::rename_keyspace) does not change the name of
    /// existing handles.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The id of the keyspace. No other keyspace of the store ever gets this id.
    pub fn id(&self) -> KeyspaceId {
        self.inner.id
    }

    pub(in crate::store) fn row(&self, key: &[u8]) -> RowKey {
        RowKey::new(self.inner.id, key)
    }

    /// The row keys for these keys in this keyspace. Fails if a key is empty or too long.
    pub(in crate::store) fn rows<K: AsRef<[u8]>>(&self, keys: impl IntoIterator<Item = K>) -> Result<Vec<RowKey>> {
        let row = |key: K| check_key(key.as_ref()).map(|()| self.row(key.as_ref()));
        keys.into_iter().map(row).collect()
    }

    pub(in crate::store) fn check_belongs_to(&self, store: u64) -> Result<()> {
        if self.inner.instance_id == store {
            return Ok(());
        }
        Err(ErrorKind::InvalidArgument(format!("keyspace {:?} belongs to another store", self.name())).into())
    }

    pub(in crate::store) fn check_not_dropped(&self, store: u64) -> Result<()> {
        self.check_belongs_to(store)?;
        if self.inner.descriptor.is_dropped() { Err(self.not_found_error()) } else { Ok(()) }
    }

    pub(in crate::store) fn not_found_error(&self) -> Error {
        ErrorKind::KeyspaceNotFound(self.name().into()).into()
    }
}

impl fmt::Debug for Keyspace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Keyspace({:?}, {})", self.name(), self.inner.id.0)
    }
}
