//! A storage of `GlueSQL`, an SQL engine, on percolite.
//!
//! An SQL transaction is one transaction of the store, and everything of a database lies in it:
//! schemas, rows, indexes, functions, and the counter that numbers rows without a primary key. A
//! statement outside of a transaction has one of its own, for its reads, too.
//!
//! | keyspace | key | value |
//! |---|---|---|
//! | `tables` | name | schema, time of its creation |
//! | `rows` | table, primary key | primary key, values |
//! | `indexes` | table, index, value, primary key | place of the row in `rows` |
//! | `functions` | name in capitals | function |
//! | `counter` | `last` | the last number of a row |

mod index;
mod key_encoding;
mod mutation;

use std::collections::BTreeMap;
use std::path::Path;

use gluesql_core::chrono::{NaiveDateTime, Utc};
use gluesql_core::data::{CustomFunction as Function, Key, Schema, Value};
use gluesql_core::error::{Error, Result};
use gluesql_core::plan::StatementPlan;
use gluesql_core::planner;
use gluesql_core::store;
use gluesql_core::store::{MetaIter, RowIter};
use percolite::{Durability, Keyspace, Snapshot, Store, Txn};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// A database. See the [module](self).
pub struct PercoliteStorage {
    store: Store,
    tables: Keyspace,
    rows: Keyspace,
    indexes: Keyspace,
    functions: Keyspace,
    counter: Keyspace,
    /// The transaction of the session.
    txn: Option<Txn>,
    /// The functions of `txn`, which the engine borrows.
    cached_functions: BTreeMap<String, Function>,
}

/// A schema as it is stored.
#[derive(serde::Serialize, serde::Deserialize)]
struct Table {
    schema: Schema,
    created: NaiveDateTime,
}

/// What reads outside of a transaction go to.
enum Reader<'a> {
    Txn(&'a Txn),
    Snapshot(Snapshot),
}

/// An error of the store in the form of the SQL engine.
fn storage_error(error: impl std::fmt::Display) -> Error {
    Error::StorageMsg(error.to_string())
}

fn encode(value: &impl Serialize) -> Result<Vec<u8>> {
    bincode::serde::encode_to_vec(value, bincode::config::standard()).map_err(storage_error)
}

fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T> {
    let (value, length) =
        bincode::serde::decode_from_slice(bytes, bincode::config::standard()).map_err(storage_error)?;
    if length == bytes.len() { Ok(value) } else { Err(Error::StorageMsg("bytes after a value".into())) }
}

impl Reader<'_> {
    fn get<T: DeserializeOwned>(&self, keyspace: &Keyspace, key: &[u8]) -> Result<Option<T>> {
        let bytes = match self {
            Self::Txn(txn) => txn.get(keyspace, key),
            Self::Snapshot(snapshot) => snapshot.get(keyspace, key),
        };
        bytes.map_err(storage_error)?.map(|bytes| decode(&bytes)).transpose()
    }

    fn prefix<T: DeserializeOwned + 'static>(
        &self,
        keyspace: &Keyspace,
        prefix: &[u8],
    ) -> impl Iterator<Item = Result<T>> + 'static {
        let scan = match self {
            Self::Txn(txn) => txn.prefix(keyspace, prefix),
            Self::Snapshot(snapshot) => snapshot.prefix(keyspace, prefix),
        };
        scan.map(|row| decode(row.map_err(storage_error)?.value()))
    }
}

impl PercoliteStorage {
    /// Opens the database in a directory, or creates it.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let store = Store::builder().durability(Durability::Buffered).open(path).map_err(storage_error)?;
        let keyspace = |name| store.keyspace(name).map_err(storage_error);
        let mut storage = Self {
            tables: keyspace("tables")?,
            rows: keyspace("rows")?,
            indexes: keyspace("indexes")?,
            functions: keyspace("functions")?,
            counter: keyspace("counter")?,
            txn: None,
            cached_functions: BTreeMap::new(),
            store,
        };
        storage.load_functions()?;
        Ok(storage)
    }

    /// Reads go to the session's transaction, or to a snapshot of what is committed.
    fn reader(&self) -> Result<Reader<'_>> {
        match &self.txn {
            Some(txn) => Ok(Reader::Txn(txn)),
            None => self.store.snapshot().map(Reader::Snapshot).map_err(storage_error),
        }
    }

    /// The transaction that a change belongs to.
    fn writer(&mut self) -> Result<&mut Txn> {
        self.txn.as_mut().ok_or_else(|| Error::StorageMsg("a change outside of a transaction".into()))
    }

    fn load_functions(&mut self) -> Result<()> {
        let functions: Vec<Function> = self.reader()?.prefix(&self.functions, b"").collect::<Result<_>>()?;
        self.cached_functions =
            functions.into_iter().map(|function| (function_key(&function.func_name), function)).collect();
        Ok(())
    }

    fn table(&self, name: &str) -> Result<Option<Table>> {
        self.reader()?.get(&self.tables, name.as_bytes())
    }
}

impl store::Store for PercoliteStorage {
    fn fetch_schema(&self, table_name: &str) -> Result<Option<Schema>> {
        Ok(self.table(table_name)?.map(|table| table.schema))
    }

    fn fetch_all_schemas(&self) -> Result<Vec<Schema>> {
        self.reader()?.prefix(&self.tables, b"").map(|table: Result<Table>| Ok(table?.schema)).collect()
    }

    fn fetch_data(&self, table_name: &str, key: &Key) -> Result<Option<Vec<Value>>> {
        let row: Option<(Key, Vec<Value>)> = self.reader()?.get(&self.rows, &key_encoding::row(table_name, key)?)?;
        Ok(row.map(|(_, values)| values))
    }

    fn scan_data<'a>(&'a self, table_name: &str) -> Result<RowIter<'a>> {
        Ok(Box::new(self.reader()?.prefix(&self.rows, &key_encoding::table(table_name))))
    }
}

impl store::Transaction for PercoliteStorage {
    fn begin(&mut self, autocommit: bool) -> Result<bool> {
        match (&self.txn, autocommit) {
            (Some(_), true) => return Ok(false),
            (Some(_), false) => return Err(Error::StorageMsg("a transaction is open already".into())),
            (None, _) => {}
        }
        self.txn = Some(self.store.begin().map_err(storage_error)?);
        Ok(autocommit)
    }

    fn commit(&mut self) -> Result<()> {
        let txn = self.txn.take().ok_or_else(|| Error::StorageMsg("no transaction is open".into()))?;
        let result = txn.commit().map(drop).map_err(storage_error);
        if result.is_err() {
            self.load_functions()?;
        }
        result
    }

    fn rollback(&mut self) -> Result<()> {
        let txn = self.txn.take().ok_or_else(|| Error::StorageMsg("no transaction is open".into()))?;
        txn.rollback().map_err(storage_error)?;
        self.load_functions()
    }
}

impl store::Metadata for PercoliteStorage {
    fn scan_table_meta(&self) -> Result<MetaIter> {
        let tables = self.reader()?.prefix(&self.tables, b"");
        Ok(Box::new(tables.map(|table: Result<Table>| {
            let table = table?;
            let created = Value::Timestamp(table.created);
            Ok((table.schema.table_name, BTreeMap::from([("CREATED".to_owned(), created)])))
        })))
    }
}

impl store::CustomFunction for PercoliteStorage {
    fn fetch_function<'a>(&'a self, func_name: &str) -> Result<Option<&'a Function>> {
        Ok(self.cached_functions.get(&function_key(func_name)))
    }

    fn fetch_all_functions(&self) -> Result<Vec<&Function>> {
        Ok(self.cached_functions.values().collect())
    }
}

impl store::CustomFunctionMut for PercoliteStorage {
    fn insert_function(&mut self, func: Function) -> Result<()> {
        let (keyspace, key, bytes) = (self.functions.clone(), function_key(&func.func_name), encode(&func)?);
        self.writer()?.put(&keyspace, &key, bytes).map_err(storage_error)?;
        self.cached_functions.insert(key, func);
        Ok(())
    }

    fn delete_function(&mut self, func_name: &str) -> Result<()> {
        let (keyspace, key) = (self.functions.clone(), function_key(func_name));
        self.writer()?.delete(&keyspace, &key).map_err(storage_error)?;
        self.cached_functions.remove(&key);
        Ok(())
    }
}

impl store::AlterTable for PercoliteStorage {}

impl store::Planner for PercoliteStorage {
    fn plan(&self, statement: StatementPlan) -> Result<StatementPlan> {
        let schemas = planner::fetch_schema_map(self, &statement)?;
        planner::validate(&schemas, &statement)?;
        let statement = planner::plan_schemaless(&schemas, statement)?;
        let statement = planner::plan_primary_key(&schemas, statement);
        let statement = planner::plan_index(&schemas, statement);
        let statement = planner::plan_hash_join(&schemas, statement);
        Ok(planner::plan_aggregate(statement))
    }
}

/// Names of functions have no case.
fn function_key(name: &str) -> String {
    name.to_uppercase()
}

/// The time of a new schema.
fn now() -> NaiveDateTime {
    Utc::now().naive_utc()
}
