//! Changes of schemas and rows.

use gluesql_core::data::{Key, Schema, Value};
use gluesql_core::error::Result;
use gluesql_core::store::{Store as _, StoreMut};

use crate::{PercoliteStorage, Table, encode, index, key_encoding, now, storage_error};

/// The only key of the counter.
const LAST: &str = "last";

impl StoreMut for PercoliteStorage {
    /// Adds a schema, or replaces it. The caller then writes all rows in the new form, so entries
    /// of the old form go at once.
    fn insert_schema(&mut self, schema: &Schema) -> Result<()> {
        let old = self.table(&schema.table_name)?;
        let created = old.as_ref().map_or_else(now, |old| old.created);
        let bytes = encode(&Table { schema: schema.clone(), created })?;
        let (tables, indexes) = (self.tables.clone(), self.indexes.clone());
        let has_other_columns = old.is_some_and(|old| old.schema.column_defs != schema.column_defs);
        let txn = self.writer()?;
        if has_other_columns {
            txn.delete_prefix(&indexes, key_encoding::table(&schema.table_name)).map_err(storage_error)?;
        }
        txn.put(&tables, &schema.table_name, bytes).map_err(storage_error)
    }

    fn delete_schema(&mut self, table_name: &str) -> Result<()> {
        let (tables, rows, indexes) = (self.tables.clone(), self.rows.clone(), self.indexes.clone());
        let prefix = key_encoding::table(table_name);
        let txn = self.writer()?;
        txn.delete_prefix(&rows, &prefix).map_err(storage_error)?;
        txn.delete_prefix(&indexes, &prefix).map_err(storage_error)?;
        txn.delete(&tables, table_name).map_err(storage_error)
    }

    fn append_data(&mut self, table_name: &str, rows: Vec<Vec<Value>>) -> Result<()> {
        let counter = self.counter.clone();
        let last: u64 = self.reader()?.get(&counter, LAST.as_bytes())?.unwrap_or(0);
        let rows: Vec<_> = (last + 1..).zip(rows).map(|(id, values)| (Key::U64(id), values)).collect();
        let bytes = encode(&(last + rows.len() as u64))?;
        self.writer()?.put(&counter, LAST, bytes).map_err(storage_error)?;
        self.insert_data(table_name, rows)
    }

    fn insert_data(&mut self, table_name: &str, rows: Vec<(Key, Vec<Value>)>) -> Result<()> {
        let schema = self.fetch_schema(table_name)?;
        let (row_space, indexes) = (self.rows.clone(), self.indexes.clone());
        for (key, values) in rows {
            let place = key_encoding::row(table_name, &key)?;
            let old = self.fetch_data(table_name, &key)?;
            let removed = index::entries(schema.as_ref(), &place, old.as_deref())?;
            let added = index::entries(schema.as_ref(), &place, Some(&values))?;
            let bytes = encode(&(key, values))?;
            let txn = self.writer()?;
            for entry in removed {
                txn.delete(&indexes, entry).map_err(storage_error)?;
            }
            for entry in added {
                txn.put(&indexes, entry, &place).map_err(storage_error)?;
            }
            txn.put(&row_space, place, bytes).map_err(storage_error)?;
        }
        Ok(())
    }

    fn delete_data(&mut self, table_name: &str, keys: Vec<Key>) -> Result<()> {
        let schema = self.fetch_schema(table_name)?;
        let (row_space, indexes) = (self.rows.clone(), self.indexes.clone());
        for key in keys {
            let place = key_encoding::row(table_name, &key)?;
            let old = self.fetch_data(table_name, &key)?;
            let removed = index::entries(schema.as_ref(), &place, old.as_deref())?;
            let txn = self.writer()?;
            for entry in removed {
                txn.delete(&indexes, entry).map_err(storage_error)?;
            }
            txn.delete(&row_space, place).map_err(storage_error)?;
        }
        Ok(())
    }
}
