//! Lease rows in an engine.

use std::ops::Bound;

use percolite::engine::sim::SimStorage;
use percolite::engine::storage::{Batch, Column, Storage};
use percolite::engine::{Engine, RowBatch, RowRange};
use percolite::row::{CellChange, RowChange, StoredValue, TxnId, WriteRecord};
use percolite::{KeyspaceId, OwnerId, RowKey, Timestamp};

/// The lease time in the rows: one hour.
const TIME_MS: u32 = 3_600_000;

pub fn row_of(name: &str) -> RowKey {
    RowKey::new(KeyspaceId(0), format!("lock/{name}").as_bytes())
}

/// Whether the name has a lease row.
pub fn has_row(engine: &dyn Engine, name: &str) -> bool {
    let newest = engine.snapshot().unwrap().write(&row_of(name)).unwrap();
    newest.is_some_and(|newest| newest.value.is_some())
}

/// The names with a lease row.
pub fn names(engine: &dyn Engine) -> Vec<String> {
    let (start, view) = (row_of("").as_bytes().to_vec(), engine.snapshot().unwrap());
    let mut end = start.clone();
    *end.last_mut().unwrap() += 1;
    let range = RowRange { start: Bound::Included(start.clone()), end: Bound::Excluded(end) };
    let mut names = Vec::new();
    let mut on_row = |key: &[u8], _: &[u8]| {
        let name = RowKey::from_bytes(key).unwrap().user_key()["lock/".len()..].to_vec();
        names.push(String::from_utf8(name).unwrap());
        true
    };
    view.scan_raw(Column::Write, &range, &mut on_row).unwrap();
    names.retain(|name| has_row(engine, name));
    names
}

/// The bytes of a row with one exclusive lease of an hour. A test of the library compares this
/// format with golden bytes.
pub fn row_bytes(token: Timestamp, since_ms: u64) -> Vec<u8> {
    let mut bytes = vec![1, 1, 0, 253];
    bytes.extend(token.to_u64().to_le_bytes());
    bytes.push(253);
    bytes.extend(since_ms.to_le_bytes());
    // No clock of the machine.
    bytes.extend([0, 0]);
    bytes.push(252);
    bytes.extend(TIME_MS.to_le_bytes());
    bytes.extend([42, 0, 4]);
    bytes.extend(b"main");
    bytes.push(0);
    bytes
}

/// The change of an ordinary transaction that commits the row at `commit_ts`.
pub fn change(name: &str, commit_ts: Timestamp, value: Vec<u8>) -> RowChange {
    let start_ts = Timestamp::from_u64(commit_ts.to_u64() - 1);
    let txn = TxnId { start_ts, owner: OwnerId::new(7, 7) };
    let version = WriteRecord { commit_ts, txn, value: Some(StoredValue::Inline(value.into())), lock_only_ts: None };
    RowChange { write: CellChange::Put(version), ..RowChange::new(row_of(name), start_ts) }
}

/// Damages the row of the name: the whole cell, or only the lease record in its value.
pub fn damage(memory: &SimStorage, name: &str, token: Timestamp, whole_cell: bool) {
    if whole_cell {
        let mut batch = memory.new_batch(0);
        batch.put(Column::Write, row_of(name).as_bytes(), b"\x01nonsense");
        memory.write(batch).unwrap();
    } else {
        let mut bytes = row_bytes(token, super::clocks::THEN);
        bytes.truncate(bytes.len() - 3);
        let groups = [RowBatch::Changes(vec![change(name, token.next().next(), bytes)])];
        memory.exclusive_engine().apply(&groups).unwrap();
    }
}

/// Writes durable leases of the names `job 000000` and so on.
pub fn write_many(engine: &dyn Engine, many: usize, token: Timestamp) {
    for some in (0..many).collect::<Vec<_>>().chunks(1000) {
        let row = |at: &usize| change(&job(*at), token, row_bytes(token, super::clocks::THEN));
        engine.apply(&[RowBatch::Changes(some.iter().map(row).collect())]).unwrap();
    }
    engine.sync().unwrap();
}

pub fn job(at: usize) -> String {
    format!("job {at:06}")
}
