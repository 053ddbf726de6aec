//! Migration of a plain RocksDB database: each column family becomes a keyspace, which one
//! transaction fills, however many rows it has. The RocksDB database is only read.
//!
//! ```text
//! cargo run --release --example from_rocksdb -- [OLD NEW]
//! ```
//!
//! Without arguments the example migrates a small database that it creates itself.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use percolite::Store;
use rocksdb::{DB, IteratorMode, Options};

fn main() -> anyhow::Result<()> {
    let scratch = tempfile::tempdir()?;
    let mut arguments = std::env::args_os().skip(1).map(PathBuf::from);
    let (old, new) = match (arguments.next(), arguments.next()) {
        (Some(old), Some(new)) => (old, new),
        _ => (create_sample(scratch.path())?, scratch.path().join("new")),
    };

    let families =
        DB::list_cf(&Options::default(), &old).with_context(|| format!("{} is not a database", old.display()))?;
    let source = DB::open_cf_for_read_only(&Options::default(), &old, &families, false)?;
    let store = Store::open(&new)?;
    for family in &families {
        let rows = source.cf_handle(family).context("the column family does not exist")?;
        let keyspace = store.keyspace(family)?;
        // One transaction is atomic: after a crash the keyspace has all rows or none. Beyond 32 MiB
        // the transaction writes its rows to the store before the commit, so it need not fit in
        // memory.
        let mut txn = store.begin()?;
        let mut copied = 0_u64;
        for row in source.iterator_cf(rows, IteratorMode::Start) {
            let (key, value) = row?;
            txn.put(&keyspace, key, value)?;
            copied += 1;
        }
        txn.commit()?;
        println!("{family}: {copied} rows");
    }
    store.close()?;
    Ok(())
}

/// Creates a RocksDB database with two column families.
fn create_sample(dir: &Path) -> anyhow::Result<PathBuf> {
    let path = dir.join("old");
    let mut options = Options::default();
    options.create_if_missing(true);
    options.create_missing_column_families(true);
    let db = DB::open_cf(&options, &path, ["default", "users"])?;
    for number in 0..1000_u32 {
        db.put(number.to_be_bytes(), format!("value {number}"))?;
        db.put_cf(db.cf_handle("users").context("just created")?, format!("user {number}"), "a name")?;
    }
    Ok(path)
}
