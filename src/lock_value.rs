//! The mutation that a row's lock stands for, read through a snapshot.

use crate::engine::EngineSnapshot;
use crate::error::{Error, ErrorKind, Result};
use crate::row::{Lock, LockType, Mutation, RowKey, StoredValue, TxnId};
use crate::value::Value;

/// The transaction's own mutation of the row, from its lock in the snapshot. `None` if the row has
/// no lock of this transaction.
pub fn read_own_lock(snapshot: &dyn EngineSnapshot, txn: TxnId, row: &RowKey) -> Result<Option<Mutation>> {
    let own = snapshot.lock(row)?.filter(|lock| lock.txn == txn);
    own.map(|lock| lock_mutation(snapshot, row, lock)).transpose()
}

/// The mutation that a lock becomes when its transaction commits.
pub fn lock_mutation(snapshot: &dyn EngineSnapshot, row: &RowKey, lock: Lock) -> Result<Mutation> {
    Ok(match lock.lock_type {
        LockType::Put(StoredValue::Inline(bytes)) => Mutation::Put(bytes),
        LockType::Put(StoredValue::OutOfLine) => Mutation::Put(load_out_of_line(snapshot, row, lock.txn)?),
        LockType::Delete => Mutation::Delete,
        LockType::LockOnly => Mutation::LockOnly,
    })
}

/// The value that the transaction has written to the data column.
pub fn load_out_of_line(snapshot: &dyn EngineSnapshot, row: &RowKey, txn: TxnId) -> Result<Value> {
    snapshot.data(row, txn.start_ts)?.ok_or_else(|| {
        let what = format!("row {row:?}: the value written by the transaction {:#} is missing", txn.start_ts);
        Error::from(ErrorKind::Corruption(what))
    })
}
