//! The column families of an open database.

use rocksdb::ColumnFamily;

use crate::engine::storage::Column;

/// The column family of each column.
pub struct ColumnFamilies<'a> {
    pub meta: &'a ColumnFamily,
    pub data: &'a ColumnFamily,
    pub lock: &'a ColumnFamily,
    pub write: &'a ColumnFamily,
    pub history: &'a ColumnFamily,
}

impl<'a> ColumnFamilies<'a> {
    pub fn get(&self, column: Column) -> &'a ColumnFamily {
        match column {
            Column::Meta => self.meta,
            Column::Data => self.data,
            Column::Lock => self.lock,
            Column::Write => self.write,
            Column::History => self.history,
        }
    }
}
