//! What a large transaction has written so far, for its own reads.

use std::sync::Arc;

use crate::engine::{EngineSnapshot, decode_lock};
use crate::error::Result;
use crate::lock_value::{lock_mutation, read_own_lock};
use crate::row::{Mutation, RowKey, TxnId};

/// The rows that a large transaction has locked, in one engine snapshot.
pub(in crate::store) struct LargeWrites {
    pub view: Arc<dyn EngineSnapshot>,
    pub txn: TxnId,
}

impl LargeWrites {
    pub fn write(&self, row: &RowKey) -> Result<Option<Mutation>> {
        read_own_lock(&*self.view, self.txn, row)
    }

    /// The transaction's write to a row, given the row's cell in the lock column; `None` if the
    /// lock belongs to another transaction.
    pub(in crate::store) fn write_of(&self, row: &RowKey, lock: &[u8]) -> Result<Option<Mutation>> {
        let lock = decode_lock(row.as_bytes(), lock)?;
        if lock.txn == self.txn { lock_mutation(&*self.view, row, lock).map(Some) } else { Ok(None) }
    }
}
