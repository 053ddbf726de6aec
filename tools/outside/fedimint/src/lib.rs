//! A database of Fedimint on percolite.

use std::fmt;
use std::ops::Range;
use std::path::Path;

use anyhow::Context as _;
use async_trait::async_trait;
use fedimint_core::db::{
    IDatabaseTransactionOps, IDatabaseTransactionOpsCore, IRawDatabase, IRawDatabaseTransaction, PrefixStream,
};
use futures::stream;
use percolite::{Keyspace, Savepoint, Store, Txn};

/// A database in memory. Its rows lie in one keyspace.
pub struct PercoliteDatabase {
    store: Store,
    rows: Keyspace,
}

/// A transaction with the one savepoint that Fedimint's transactions have.
pub struct PercoliteTransaction {
    /// An error of `begin`, which Fedimint has no place for, is returned by the first call.
    txn: percolite::Result<Txn>,
    rows: Keyspace,
    savepoint: Option<Savepoint>,
}

impl PercoliteDatabase {
    /// An empty database.
    pub fn in_memory() -> percolite::Result<Self> {
        let store = Store::in_memory()?;
        Ok(Self { rows: store.keyspace("rows")?, store })
    }
}

impl fmt::Debug for PercoliteDatabase {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("PercoliteDatabase")
    }
}

impl fmt::Debug for PercoliteTransaction {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("PercoliteTransaction")
    }
}

#[async_trait]
impl IRawDatabase for PercoliteDatabase {
    type Transaction<'a> = PercoliteTransaction;

    async fn begin_transaction<'a>(&'a self) -> PercoliteTransaction {
        let (txn, savepoint) = match self.store.begin() {
            Ok(mut txn) => {
                let savepoint = txn.savepoint();
                (Ok(txn), Some(savepoint))
            }
            Err(error) => (Err(error), None),
        };
        PercoliteTransaction { txn, rows: self.rows.clone(), savepoint }
    }

    fn checkpoint(&self, backup_path: &Path) -> anyhow::Result<()> {
        Ok(self.store.checkpoint(backup_path)?)
    }
}

impl PercoliteTransaction {
    fn txn(&mut self) -> anyhow::Result<&mut Txn> {
        self.txn.as_mut().map_err(|error| anyhow::anyhow!(error.to_string()))
    }

    fn get(&mut self, key: &[u8]) -> anyhow::Result<Option<Vec<u8>>> {
        let rows = self.rows.clone();
        Ok(self.txn()?.get(&rows, key)?.map(|value| value.to_vec()))
    }
}

fn rows_of(scan: impl Iterator<Item = percolite::Result<percolite::Row>>) -> anyhow::Result<PrefixStream<'static>> {
    let row = |row: percolite::Result<percolite::Row>| {
        let (key, value) = row?.into_parts();
        Ok((key, value.to_vec()))
    };
    let rows: Vec<_> = scan.map(row).collect::<percolite::Result<_>>()?;
    Ok(Box::pin(stream::iter(rows)))
}

#[async_trait]
impl IDatabaseTransactionOpsCore for PercoliteTransaction {
    async fn raw_insert_bytes(&mut self, key: &[u8], value: &[u8]) -> anyhow::Result<Option<Vec<u8>>> {
        let (old, rows) = (self.get(key)?, self.rows.clone());
        self.txn()?.put(&rows, key, value)?;
        Ok(old)
    }

    async fn raw_get_bytes(&mut self, key: &[u8]) -> anyhow::Result<Option<Vec<u8>>> {
        self.get(key)
    }

    async fn raw_remove_entry(&mut self, key: &[u8]) -> anyhow::Result<Option<Vec<u8>>> {
        let (old, rows) = (self.get(key)?, self.rows.clone());
        self.txn()?.delete(&rows, key)?;
        Ok(old)
    }

    async fn raw_find_by_prefix(&mut self, key_prefix: &[u8]) -> anyhow::Result<PrefixStream<'_>> {
        let rows = self.rows.clone();
        rows_of(self.txn()?.prefix(&rows, key_prefix))
    }

    async fn raw_find_by_prefix_sorted_descending(&mut self, key_prefix: &[u8]) -> anyhow::Result<PrefixStream<'_>> {
        let rows = self.rows.clone();
        rows_of(self.txn()?.prefix(&rows, key_prefix).rev())
    }

    async fn raw_find_by_range(&mut self, range: Range<&[u8]>) -> anyhow::Result<PrefixStream<'_>> {
        let rows = self.rows.clone();
        rows_of(self.txn()?.range(&rows, range))
    }

    async fn raw_remove_by_prefix(&mut self, key_prefix: &[u8]) -> anyhow::Result<()> {
        let rows = self.rows.clone();
        self.txn()?.delete_prefix(&rows, key_prefix)?;
        Ok(())
    }
}

#[async_trait]
impl IDatabaseTransactionOps for PercoliteTransaction {
    async fn set_tx_savepoint(&mut self) -> anyhow::Result<()> {
        self.savepoint = Some(self.txn()?.savepoint());
        Ok(())
    }

    async fn rollback_tx_to_savepoint(&mut self) -> anyhow::Result<()> {
        let savepoint = self.savepoint.context("no savepoint")?;
        Ok(self.txn()?.rollback_to(savepoint)?)
    }
}

#[async_trait]
impl IRawDatabaseTransaction for PercoliteTransaction {
    async fn commit_tx(self) -> anyhow::Result<()> {
        self.txn?.commit()?;
        Ok(())
    }
}
