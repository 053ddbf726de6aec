//! What must hold when a commit is decided, besides the preconditions of its rows.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::keyspace_descriptor::KeyspaceDescriptor;
use crate::lock_manager::Fences;
use crate::read_view::ReadView;

/// Conditions of a transaction. The leader checks them in the same round in which it decides the
/// changes, so nothing happens in between.
#[derive(Default)]
pub struct CommitConditions {
    /// The keyspaces that are written: none was dropped.
    pub keyspaces: SmallVec<[Arc<KeyspaceDescriptor>; 1]>,
    /// The view that was read: it has not expired. GC may have removed a tombstone that an expired
    /// transaction had to see.
    pub read_view: Option<Arc<ReadView>>,
    /// The grants that fence the transaction: none has ended.
    pub fences: Fences,
}
