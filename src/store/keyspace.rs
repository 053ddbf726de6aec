//! Keyspace handles.

use std::fmt;
use std::sync::Arc;

use crate::error::{Error, ErrorKind, Result};
use crate::pipeline::Life;
use crate::row::{KeyspaceId, RowKey};

/// A named, ordered set of rows. Cheap to clone; any thread may use it.
#[derive(Clone)]
pub struct Keyspace(pub(super) Arc<KeyspaceState>);

pub(super) struct KeyspaceState {
    pub id: KeyspaceId,
    pub life: Arc<Life>,
    /// Tells one store's keyspaces from another's; no two stores of a process have the same.
    pub store: u64,
}

impl Keyspace {
    /// The name that it was created under.
    pub fn name(&self) -> &str {
        &self.0.life.name
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
        Err(ErrorKind::InvalidArgument(format!("keyspace {:?} belongs to another store", self.name())).into())
    }

    pub(super) fn check(&self, store: u64) -> Result<()> {
        self.check_store(store)?;
        if self.0.life.is_over() { Err(self.is_missing()) } else { Ok(()) }
    }

    pub(super) fn is_missing(&self) -> Error {
        ErrorKind::NoSuchKeyspace(self.name().into()).into()
    }
}

impl fmt::Debug for Keyspace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Keyspace({:?}, {})", self.name(), self.0.id.0)
    }
}
