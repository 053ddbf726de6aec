//! The orphan locks of a process that is killed during a commit.

use std::path::Path;

use percolite::engine::RowBatch;
use percolite::row::{CellChange, Lock, LockType, RowChange, StoredValue, TxnId, TxnRecord, WriteRecord};
use percolite::{Builder, RowKey, Store};

fn small() -> Builder {
    Store::builder().block_cache_bytes(1 << 20).write_buffer_bytes(4 << 20)
}

/// Leaves the orphan locks of a process that was killed before or after the commit point of a
/// transaction that wrote the rows `a`, its primary, and `b`.
pub fn leave_locks(path: &Path, committed: bool) {
    let store = small().open(path).unwrap();
    let rows = store.keyspace("rows").unwrap();
    store.transact(|txn| txn.put(&rows, "a", "old").and_then(|()| txn.put(&rows, "b", "old"))).unwrap();
    let (txn, later) = (store.begin().unwrap(), store.begin().unwrap());
    let (id, commit_ts) = (TxnId { start_ts: txn.start_ts(), owner: txn.owner_id() }, later.start_ts());
    let (a, b) = (rows.row_key("a"), rows.row_key("b"));
    drop((txn, later));
    store.close().unwrap();

    let engine = small().durable_engine(path).unwrap();
    let value = || StoredValue::Inline(b"new".as_slice().into());
    let lock = Lock {
        txn: id,
        primary: a.clone(),
        lock_type: LockType::Put(value()),
        write_seq: 1,
        ttl_ms: 3000,
        min_commit_ts: id.start_ts.next(),
    };
    let locked = |row: &RowKey| {
        let mut change = RowChange::new(row.clone(), id.start_ts);
        change.lock = CellChange::Put(lock.clone());
        change
    };
    let apply = |changes| drop(engine.apply(&[RowBatch::Changes(changes)]).unwrap());
    apply(vec![locked(&a), locked(&b)]);
    if committed {
        let mut change = RowChange::new(a, id.start_ts);
        change.lock = CellChange::Delete;
        change.write = CellChange::Put(WriteRecord { commit_ts, txn: id, value: Some(value()), lock_only_ts: None });
        change.txn_record = CellChange::Put(TxnRecord::Committed(commit_ts));
        apply(vec![change]);
    }
}
