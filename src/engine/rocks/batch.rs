//! Changes of cells for one write.

use rocksdb::WriteBatch;

use super::column_families::ColumnFamilies;
use crate::engine::storage::{Batch, Column};

/// Changes of cells for one write to a `RocksStorage`.
pub struct RocksBatch<'a> {
    pub(super) batch: WriteBatch,
    pub(super) columns: &'a ColumnFamilies<'a>,
}

impl Batch for RocksBatch<'_> {
    fn put(&mut self, column: Column, key: &[u8], value: &[u8]) {
        self.batch.put_cf(self.columns.get(column), key, value);
    }

    fn delete(&mut self, column: Column, key: &[u8]) {
        self.batch.delete_cf(self.columns.get(column), key);
    }

    fn delete_range(&mut self, column: Column, start: &[u8], end: &[u8]) {
        self.batch.delete_range_cf(self.columns.get(column), start, end);
    }
}
