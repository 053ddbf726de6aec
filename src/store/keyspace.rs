//! Keyspace handles.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::{ErrorKind, Result};
use crate::row::{KeyspaceId, RowKey};

/// A named, ordered set of rows. Cheap to clone; any thread may use it.
#[derive(Clone)]
pub struct Keyspace(pub(super) Arc<KeyspaceState>);

pub(super) struct KeyspaceState {
    pub id: KeyspaceId,
    pub name: String,
    /// False once it is dropped.
    pub alive: Arc<AtomicBool>,
    /// Tells one store's keyspaces from another's; no two stores of a process have the same.
    pub store: u64,
}

impl Keyspace {
    /// The name that it was created under.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Its number, which no other keyspace of the store ever gets.
    pub fn id(&self) -> KeyspaceId {
        self.0.id
    }

    pub(super) fn row(&self, key: &[u8]) -> RowKey {
        RowKey::new(self.0.id, key)
    }

    pub(super) fn check_store(&self, store: u64) -> Result<()> {
        if self.0.store == store {
            return Ok(());
        }
        Err(ErrorKind::InvalidArgument(format!("keyspace {:?} belongs to another store", self.0.name)).into())
    }

    pub(super) fn check(&self, store: u64) -> Result<()> {
        self.check_store(store)?;
        if !self.0.alive.load(Ordering::Acquire) {
            return Err(ErrorKind::NoSuchKeyspace(self.0.name.clone()).into());
        }
        Ok(())
    }
}

impl fmt::Debug for Keyspace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Keyspace({:?}, {})", self.0.name, self.0.id.0)
    }
}
