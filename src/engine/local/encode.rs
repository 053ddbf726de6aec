//! Encodes row changes as changes of cells, in all columns that they affect.

use crate::codec::{HistoryEntry, InlineWrite, Record};
use crate::engine::storage::{Batch, Column};
use crate::engine::{OnePhaseWrites, RowBatch};
use crate::keys::{data_key, history_key};
use crate::row::{CellChange, Mutation, RowChange, RowKey};
use crate::timestamp::Timestamp;

/// The prefix of the GC queue in the metadata column. The queue has an entry for each deletion of a
/// row, and for each replaced version that is kept.
pub(crate) const GC_PREFIX: &str = "gc/";

/// Estimates the size of a cell batch, in bytes. The estimate is the batch's initial capacity, so
/// the batch is rarely reallocated: a reallocation costs as much as filling the batch.
pub fn estimate_batch_bytes(batches: &[RowBatch]) -> usize {
    batches.iter().map(RowBatch::size_bytes).sum()
}

/// Encodes row changes into a batch of cells.
pub struct CellBatchBuilder<B> {
    pub batch: B,
}

impl<B: Batch> CellBatchBuilder<B> {
    /// Adds the cells that [`CellBatchBuilder::add_change`] would add for each row. Puts are
    /// encoded without a [`RowChange`], because this is the hot path of a bulk load.
    pub fn add_one_phase(&mut self, versions: &OnePhaseWrites) {
        let OnePhaseWrites { txn, commit_ts, .. } = *versions;
        for (row, mutation) in versions.rows() {
            if let Mutation::Put(value) = mutation {
                let record = InlineWrite { commit_ts, start_ts: txn.start_ts, owner: txn.owner, value };
                self.batch.put_encoded(Column::Write, row.as_bytes(), |bytes| record.encode(bytes));
            } else {
                self.add_change(&versions.change(row, mutation));
            }
        }
    }

    pub fn add_change(&mut self, change: &RowChange) {
        let row = change.row.as_bytes();
        self.apply_edit(Column::Lock, row, &change.lock);
        self.apply_edit(Column::Write, row, &change.write);
        for (start_ts, edit) in &change.data {
            let key = data_key(&change.row, *start_ts);
            match edit {
                CellChange::Keep => {}
                CellChange::Put(value) => self.batch.put(Column::Data, &key, value),
                CellChange::Delete => self.batch.delete(Column::Data, &key),
            }
        }
        match &change.txn_record {
            CellChange::Keep => {}
            CellChange::Put(record) => {
                let key = history_key(&change.row, change.start_ts);
                self.put(Column::History, &key, &HistoryEntry::Ended(*record));
            }
            CellChange::Delete => self.batch.delete(Column::History, &history_key(&change.row, change.start_ts)),
        }
        if let Some(version) = &change.archived_version {
            let key = history_key(&change.row, version.commit_ts);
            self.put(Column::History, &key, &HistoryEntry::Version(version.clone()));
        }
        for commit_ts in &change.deleted_versions {
            self.batch.delete(Column::History, &history_key(&change.row, *commit_ts));
        }
        if let CellChange::Put(written) = &change.write
            && (written.value.is_none() || change.archived_version.is_some())
        {
            self.batch.put(Column::Meta, &gc_key(written.commit_ts, &change.row), &[]);
        }
        for ts in &change.gc_done {
            self.batch.delete(Column::Meta, &gc_key(*ts, &change.row));
        }
    }

    fn apply_edit<T: Record>(&mut self, column: Column, key: &[u8], edit: &CellChange<T>) {
        match edit {
            CellChange::Keep => {}
            CellChange::Put(record) => self.put(column, key, record),
            CellChange::Delete => self.batch.delete(column, key),
        }
    }

    fn put<T: Record>(&mut self, column: Column, key: &[u8], record: &T) {
        self.batch.put_encoded(column, key, |bytes| record.encode(bytes));
    }
}

/// The GC queue's key of a row that was deleted, or whose version was replaced, at `ts`.
pub(crate) fn gc_key(ts: Timestamp, row: &RowKey) -> Vec<u8> {
    [GC_PREFIX.as_bytes(), &ts.to_u64().to_be_bytes(), row.as_bytes()].concat()
}

/// Parses a key of the GC queue; `None` if it is malformed.
pub(crate) fn parse_gc_key(key: &[u8]) -> Option<(Timestamp, RowKey)> {
    let (ts, row) = key.strip_prefix(GC_PREFIX.as_bytes())?.split_first_chunk()?;
    Some((Timestamp::from_u64(u64::from_be_bytes(*ts)), RowKey::from_bytes(row)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memtable::{BatchEntry, Modification};
    use crate::owner_id::OwnerId;
    use crate::row::{KeyspaceId, Lock, LockType, StoredValue, TxnId, TxnRecord, WriteRecord};
    use crate::split_mix64::SplitMix64;

    /// A batch encoded as the payload of a frame of the write-ahead log.
    #[derive(Default)]
    struct Payload(Vec<u8>);

    impl Batch for Payload {
        fn put(&mut self, column: Column, key: &[u8], value: &[u8]) {
            BatchEntry { column, key, modification: Modification::Put(value) }.encode(&mut self.0);
        }

        fn put_encoded(&mut self, column: Column, key: &[u8], encode: impl FnOnce(&mut Vec<u8>)) {
            BatchEntry::encode_put(column, key, encode, &mut self.0);
        }

        fn delete(&mut self, column: Column, key: &[u8]) {
            BatchEntry { column, key, modification: Modification::Delete }.encode(&mut self.0);
        }

        fn delete_range(&mut self, _: Column, _: &[u8], _: &[u8]) {}
    }

    /// The limit of a batch's `size_bytes` is half of what a frame's payload may have. So every
    /// batch within the limit fits a frame if its encoding has at most twice its `size_bytes`.
    #[test]
    fn a_batch_encodes_to_at_most_twice_its_size() {
        let mut random = SplitMix64::new(7);
        let mut next = move |below: u64| random.next_below(below);
        for _ in 0..3000 {
            let length = [1, 16, 100, 1000, 16 << 10][usize::try_from(next(5)).unwrap()];
            // A key of zeros is the worst case: escaped, it has twice its length.
            let row = RowKey::new(KeyspaceId(1), &vec![u8::try_from(next(2)).unwrap(); length]);
            let ts = Timestamp::from_u64(u64::MAX - next(1000));
            let txn = TxnId { start_ts: ts, owner: OwnerId::from_u64(u64::MAX) };
            let value = |kind: u64| match kind {
                0 => None,
                1 => Some(StoredValue::OutOfLine),
                kind => Some(StoredValue::Inline(vec![1; usize::try_from(kind).unwrap()].into())),
            };
            let mut version = |lengths: u64| WriteRecord {
                commit_ts: ts,
                txn,
                value: value(next(lengths)),
                lock_only_ts: (lengths.is_multiple_of(2)).then_some(ts),
            };
            let mut change = RowChange::new(row.clone(), ts);
            change.write = CellChange::Put(version(300));
            change.archived_version = length.is_multiple_of(2).then(|| version(301));
            change.lock = if length > 50 {
                let lock_type = LockType::Put(StoredValue::Inline(vec![2; 20].into()));
                CellChange::Put(Lock {
                    txn,
                    primary: row.clone(),
                    lock_type,
                    write_seq: 1,
                    ttl_ms: 0,
                    min_commit_ts: ts,
                })
            } else {
                CellChange::Delete
            };
            change.txn_record = CellChange::Put(TxnRecord::Committed(ts));
            change.data = vec![(ts, CellChange::Delete), (ts, CellChange::Put(vec![3; 500].into()))];
            (change.deleted_versions, change.gc_done) = (vec![ts; 2], vec![ts; 2]);
            let size = change.size_bytes();
            let mut builder = CellBatchBuilder { batch: Payload::default() };
            builder.add_change(&change);
            let encoded = builder.batch.0.len();
            assert!(encoded <= 2 * size, "{encoded} bytes of {size}: {length}");
            assert!(size <= 2 * encoded + 1000, "{encoded} bytes of {size}: {length}");
        }
    }
}
