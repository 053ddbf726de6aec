//! What a large transaction has written so far, for its own reads.

use std::sync::Arc;

use crate::engine::{EngineSnapshot, decode_lock};
use crate::error::Result;
use crate::lock_value::read_own_lock;
use crate::row::{LockType, Mutation, RowKey, TxnId};

/// The rows that a large transaction has locked, in one engine snapshot.
pub(in crate::store) struct LargeWrites {
    pub view: Arc<dyn EngineSnapshot>,
    pub txn: TxnId,
}

impl LargeWrites {
    pub fn write(&self, row: &RowKey) -> Result<Option<Mutation>> {
        read_own_lock(&*self.view, self.txn, row)
    }

    /// What the transaction's own lock on a row becomes, given the row's cell in the lock column;
    /// `None` if the lock belongs to another transaction.
    pub(in crate::store) fn own_lock(&self, row: &RowKey, lock: &[u8]) -> Result<Option<LockType>> {
        let lock = decode_lock(row.as_bytes(), lock)?;
        Ok((lock.txn == self.txn).then_some(lock.lock_type))
    }
}
