//! What must hold when the leader decides a commit, besides the preconditions of its rows.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::keyspace_descriptor::KeyspaceDescriptor;
use crate::lock_manager::Fences;
use crate::read_view::ReadView;

/// Conditions of a transaction. The leader checks them in the round in which it decides the
/// changes, so no other commit can come between the check and the changes.
#[derive(Default)]
pub struct CommitConditions {
    /// The keyspaces that the transaction writes; none may have been dropped.
    pub keyspaces: SmallVec<[Arc<KeyspaceDescriptor>; 1]>,
    /// The view from which the transaction has read; the view must not have expired. After the
    /// expiry, GC may have removed a tombstone with which the transaction should conflict.
    pub read_view: Option<Arc<ReadView>>,
    /// The grants that fence the transaction; none may have ended.
    pub fences: Fences,
}
