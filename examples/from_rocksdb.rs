//! Moving a plain RocksDB database into a store: its column families become keyspaces, in one transaction each, whatever
//! their size. The old database is only read.
//!
//! ```text
//! cargo run --release --example from_rocksdb -- [OLD NEW]
//! ```

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use percolite::Store;
use rocksdb::{DB, IteratorMode, Options};

fn main() -> anyhow::Result<()> {
    let scratch = tempfile::tempdir()?;
    let mut arguments = std::env::args_os().skip(1).map(PathBuf::from);
    let (old, new) = match (arguments.next(), arguments.next()) {
        (Some(old), Some(new)) => (old, new),
        _ => (an_old_database(scratch.path())?, scratch.path().join("new")),
    };

    let families =
        DB::list_cf(&Options::default(), &old).with_context(|| format!("{} is no database", old.display()))?;
    let from = DB::open_cf_for_read_only(&Options::default(), &old, &families, false)?;
    let store = Store::open(&new)?;
    for family in &families {
        let rows = from.cf_handle(family).context("a column family that is listed")?;
        let keyspace = store.keyspace(family)?;
        // All of it or nothing. Beyond 32 MiB it streams, so memory is no limit.
        let mut txn = store.begin()?;
        let mut moved = 0_u64;
        for row in from.iterator_cf(rows, IteratorMode::Start) {
            let (key, value) = row?;
            txn.put(&keyspace, key, value)?;
            moved += 1;
        }
        txn.commit()?;
        println!("{family}: {moved} rows");
    }
    store.close()?;
    Ok(())
}

/// Something to move, if nothing was named.
fn an_old_database(folder: &Path) -> anyhow::Result<PathBuf> {
    let path = folder.join("old");
    let mut options = Options::default();
    options.create_if_missing(true);
    options.create_missing_column_families(true);
    let db = DB::open_cf(&options, &path, ["default", "users"])?;
    for number in 0..1000_u32 {
        db.put(number.to_be_bytes(), format!("value {number}"))?;
        db.put_cf(db.cf_handle("users").context("just made")?, format!("user {number}"), "somebody")?;
    }
    Ok(path)
}
