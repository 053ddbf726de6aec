//! Secondary indexes: entries in a keyspace of their own, written in the transaction of their row.

use std::ops::Bound;

use gluesql_core::ast::{IndexOperator, OrderByExpr};
use gluesql_core::data::schema::{SchemaIndex, SchemaIndexOrd};
use gluesql_core::data::{Key, Schema, Value};
use gluesql_core::error::Result;
use gluesql_core::executor::{RowContext, evaluate_stateless};
use gluesql_core::plan::plan_scalar_expr;
use gluesql_core::store::{Index, IndexError, IndexMut, RowIter, Store as _, StoreMut as _};

use crate::{PercoliteStorage, Reader, decode, key_encoding, now, storage_error};

/// The keys of a row's entries in all indexes of its table.
pub fn entries(schema: Option<&Schema>, place: &[u8], values: Option<&[Value]>) -> Result<Vec<Vec<u8>>> {
    let (Some(schema), Some(values)) = (schema, values) else { return Ok(Vec::new()) };
    let columns: Vec<String> = schema.column_defs.iter().flatten().map(|column| column.name.clone()).collect();
    let entries = schema.indexes.iter().map(|index| {
        let expr = plan_scalar_expr(index.expr.clone());
        let row = RowContext::RefVecData { columns: &columns, values };
        let value: Value = evaluate_stateless(Some(row), &expr)?.try_into()?;
        let mut entry = key_encoding::index_value(&schema.table_name, &index.name, &value)?;
        entry.extend(place);
        Ok(entry)
    });
    entries.collect()
}

/// The first key above all keys with this prefix, which never consists of `ff` alone.
fn after(mut prefix: Vec<u8>) -> Vec<u8> {
    while prefix.last() == Some(&0xff) {
        prefix.pop();
    }
    if let Some(last) = prefix.last_mut() {
        *last += 1;
    }
    prefix
}

impl Index for PercoliteStorage {
    fn scan_indexed_data<'a>(
        &'a self,
        table_name: &str,
        index_name: &str,
        asc: Option<bool>,
        cmp_value: Option<(&IndexOperator, Value)>,
    ) -> Result<RowIter<'a>> {
        let all = key_encoding::index(table_name, index_name);
        let (mut start, mut end) = (all.clone(), after(all));
        if let Some((operator, value)) = cmp_value {
            let value = key_encoding::index_value(table_name, index_name, &value)?;
            match operator {
                IndexOperator::Gt => start = after(value),
                IndexOperator::GtEq => start = value,
                IndexOperator::Lt => end = value,
                IndexOperator::LtEq => end = after(value),
                IndexOperator::Eq => (start, end) = (value.clone(), after(value)),
            }
        }
        let reader = self.reader()?;
        let range = (Bound::Included(start), Bound::Excluded(end));
        let entries = match &reader {
            Reader::Txn(txn) => txn.range(&self.indexes, range),
            Reader::Snapshot(snapshot) => snapshot.range(&self.indexes, range),
        };
        let row = move |entry: percolite::Result<percolite::Row>| {
            let entry = entry.map_err(storage_error)?;
            let row: Option<(Key, Vec<Value>)> = reader.get(&self.rows, entry.value())?;
            row.ok_or_else(|| storage_error("an index entry without a row"))
        };
        Ok(if asc == Some(false) { Box::new(entries.rev().map(row)) } else { Box::new(entries.map(row)) })
    }
}

impl IndexMut for PercoliteStorage {
    fn create_index(&mut self, table_name: &str, index_name: &str, column: &OrderByExpr) -> Result<()> {
        let mut schema =
            self.fetch_schema(table_name)?.ok_or_else(|| IndexError::ConflictTableNotFound(table_name.into()))?;
        if schema.indexes.iter().any(|index| index.name == index_name) {
            return Err(IndexError::IndexNameAlreadyExists(index_name.into()).into());
        }
        let expr = column.expr.clone();
        let index = SchemaIndex { name: index_name.into(), expr, order: SchemaIndexOrd::Both, created: now() };
        schema.indexes.push(index.clone());
        self.insert_schema(&schema)?;
        let prefix = key_encoding::table(table_name);
        let only_new = Schema { indexes: vec![index], ..schema };
        let (rows, indexes) = (self.rows.clone(), self.indexes.clone());
        let txn = self.writer()?;
        for row in txn.prefix(&rows, prefix).collect::<percolite::Result<Vec<_>>>().map_err(storage_error)? {
            let (_, values): (Key, Vec<Value>) = decode(row.value())?;
            for entry in entries(Some(&only_new), row.key(), Some(&values))? {
                txn.put(&indexes, entry, row.key()).map_err(storage_error)?;
            }
        }
        Ok(())
    }

    fn drop_index(&mut self, table_name: &str, index_name: &str) -> Result<()> {
        let mut schema = self.fetch_schema(table_name)?.ok_or_else(|| IndexError::TableNotFound(table_name.into()))?;
        let before = schema.indexes.len();
        schema.indexes.retain(|index| index.name != index_name);
        if schema.indexes.len() == before {
            return Err(IndexError::IndexNameDoesNotExist(index_name.into()).into());
        }
        self.insert_schema(&schema)?;
        let indexes = self.indexes.clone();
        let prefix = key_encoding::index(table_name, index_name);
        self.writer()?.delete_prefix(&indexes, prefix).map(drop).map_err(storage_error)
    }
}
