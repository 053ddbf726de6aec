//! Keyspace handles.

use std::fmt;
use std::sync::Arc;

use super::catalog::Known;
use crate::error::{Error, ErrorKind, Result};
use crate::pipeline::Life;
use crate::row::{KeyspaceId, RowKey};

/// A named, ordered set of rows. Cheap to clone; any thread may use it.
#[derive(Clone)]
pub struct Keyspace {
    pub(super) state: Arc<KeyspaceState>,
    name: Arc<str>,
}

pub(super) struct KeyspaceState {
    pub id: KeyspaceId,
    pub life: Arc<Life>,
    pub known: Known,
    /// Tells one store's keyspaces from another's; no two stores of a process have the same.
    pub store: u64,
}

impl Keyspace {
    pub(super) fn new(state: Arc<KeyspaceState>, name: &str) -> Self {
        Self { state, name: name.into() }
    }

    /// The name under which it was opened or listed. [`Store::rename_keyspace`](super::Store::rename_keyspace) changes that of
    /// no handle that there is.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its number, which no other keyspace of the store ever gets.
    pub fn id(&self) -> KeyspaceId {
        self.state.id
    }

    pub(super) fn row(&self, key: &[u8]) -> RowKey {
        RowKey::new(self.state.id, key)
    }

    pub(super) fn check_store(&self, store: u64) -> Result<()> {
        if self.state.store == store {
            return Ok(());
        }
        Err(ErrorKind::InvalidArgument(format!("keyspace {:?} belongs to another store", self.name())).into())
    }

    pub(super) fn check(&self, store: u64) -> Result<()> {
        self.check_store(store)?;
        if self.state.life.is_over() { Err(self.is_missing()) } else { Ok(()) }
    }

    pub(super) fn is_missing(&self) -> Error {
        ErrorKind::NoSuchKeyspace(self.name().into()).into()
    }
}

impl fmt::Debug for Keyspace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Keyspace({:?}, {})", self.name(), self.state.id.0)
    }
}
