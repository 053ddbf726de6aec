//! A store in a directory, with the short names of the tests.

use std::path::PathBuf;

use percolite::{
    Builder, Commit, CommitProtocol, Durability, Error, ErrorKind, Keyspace, Result, Store, Txn, TxnOptions,
};
use tempfile::TempDir;

/// A store with a keyspace `rows`, and the directory that it lies in.
pub struct Db {
    pub store: Store,
    pub rows: Keyspace,
    builder: Builder,
    path: PathBuf,
    directory: TempDir,
}

/// Runs a test in each commit protocol.
pub fn in_both_protocols(test: impl Fn(Db)) {
    for protocol in [CommitProtocol::Auto, CommitProtocol::TwoPhase] {
        println!("{protocol:?}");
        test(Db::with(small_memory().commit_protocol(protocol)));
    }
}

/// Options with small buffers, so that a test can fill them.
pub fn small_memory() -> Builder {
    Store::builder().memory_budget(8 << 20).write_buffer_bytes(256 << 10)
}

impl Db {
    pub fn with(builder: Builder) -> Self {
        let directory = tempfile::tempdir().unwrap();
        Self::open(builder, directory.path().join("store"), directory)
    }

    fn open(builder: Builder, path: PathBuf, directory: TempDir) -> Self {
        let store = builder.clone().open(&path).unwrap();
        let rows = store.keyspace("rows").unwrap();
        Self { store, rows, builder, path, directory }
    }

    /// Closes the store and opens it again.
    pub fn reopen(self) -> Self {
        self.store.close().unwrap();
        Self::open(self.builder, self.path, self.directory)
    }

    /// A checkpoint, opened: what recovery finds while transactions are open. The files of a
    /// running store, copied one after the other, would be of no single moment.
    pub fn copy(self) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("store");
        self.store.checkpoint(&path).unwrap();
        Self::open(self.builder.clone(), path, directory)
    }

    pub fn begin(&self) -> Txn {
        self.store.begin().unwrap()
    }

    /// Writes a row outside of the transactions of the test.
    pub fn put(&self, key: &str, value: &str) -> Commit {
        let mut txn = self.begin();
        txn.put(&self.rows, key, value).unwrap();
        txn.commit().unwrap()
    }

    pub fn delete(&self, key: &str) {
        let mut txn = self.begin();
        txn.delete(&self.rows, key).unwrap();
        txn.commit().unwrap();
    }

    pub fn get(&self, key: &str) -> Option<String> {
        self.store.get(&self.rows, key).unwrap().map(|value| String::from_utf8(value.to_vec()).unwrap())
    }

    /// Asserts the values of rows.
    #[track_caller]
    pub fn expect(&self, rows: &[(&str, Option<&str>)]) {
        for (key, value) in rows {
            assert_eq!(self.get(key).as_deref(), *value, "row {key}");
        }
    }

    /// Writes until the tables on disk have changed: a memtable was flushed into them.
    pub fn flush(&self) {
        let tables = || {
            let columns = self.store.engine_stats().unwrap().columns;
            columns.iter().map(|column| (column.sst_files, column.sst_bytes)).collect::<Vec<_>>()
        };
        let before = tables();
        let options = TxnOptions::default().durability(Durability::Buffered);
        let filler = "x".repeat(64 << 10);
        for number in 0..4000 {
            let mut txn = self.store.begin_with(options).unwrap();
            txn.put(&self.rows, format!("filler/{}", number % 10), filler.as_str()).unwrap();
            txn.commit().unwrap();
            if tables() != before {
                return;
            }
        }
        panic!("250 MiB were written, and the tables are as they were");
    }
}

/// The short names of reads and writes within a transaction.
pub trait Rows {
    fn set(&mut self, db: &Db, key: &str, value: &str);
    fn del(&mut self, db: &Db, key: &str);
    fn read(&self, db: &Db, key: &str) -> Option<String>;
    fn lock(&mut self, db: &Db, key: &str) -> Option<String>;
}

impl Rows for Txn {
    fn set(&mut self, db: &Db, key: &str, value: &str) {
        self.put(&db.rows, key, value).unwrap();
    }

    fn del(&mut self, db: &Db, key: &str) {
        self.delete(&db.rows, key).unwrap();
    }

    fn read(&self, db: &Db, key: &str) -> Option<String> {
        self.get(&db.rows, key).unwrap().map(|value| String::from_utf8(value.to_vec()).unwrap())
    }

    fn lock(&mut self, db: &Db, key: &str) -> Option<String> {
        self.get_for_update(&db.rows, key).unwrap().map(|value| String::from_utf8(value.to_vec()).unwrap())
    }
}

/// Asserts that a commit was refused because of another transaction.
#[track_caller]
pub fn expect_conflict<T: std::fmt::Debug>(result: Result<T>) {
    match result.as_ref().map_err(Error::kind) {
        Err(ErrorKind::Conflict(_)) => {}
        other => panic!("a conflict was expected, and there is {other:?}"),
    }
}
