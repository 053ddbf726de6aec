//! The first steps: open a store, move money in a transaction, read a snapshot, scan in reverse.
//!
//! ```text
//! cargo run --release --example quick_start
//! ```

use percolite::{Store, Value};

fn main() -> anyhow::Result<()> {
    // A store is a directory; `open` creates it if it does not exist. A keyspace is a named set of
    // rows.
    let dir = tempfile::tempdir()?;
    let store = Store::open(dir.path().join("bank"))?;
    let accounts = store.keyspace("accounts")?;

    // Both rows are written, or neither. When `transact` returns, they are on disk.
    store.transact(|txn| {
        txn.put(&accounts, "alice", "100")?;
        txn.put(&accounts, "bob", "50")
    })?;

    // A snapshot shows this state, whatever is committed later.
    let before = store.snapshot()?;

    // After a conflict with another transaction the closure runs again. If the closure returns an
    // error, the transaction is rolled back. The error may be any type that the store's error
    // converts to.
    let moved: anyhow::Result<u64> = store.transact(|txn| {
        let parse =
            |balance: Option<Value>| anyhow::Ok(std::str::from_utf8(&balance.unwrap_or_default())?.parse::<u64>()?);
        let alice = parse(txn.get(&accounts, "alice")?)?;
        let bob = parse(txn.get(&accounts, "bob")?)?;
        anyhow::ensure!(alice >= 30, "alice has only {alice}");
        txn.put(&accounts, "alice", (alice - 30).to_string())?;
        txn.put(&accounts, "bob", (bob + 30).to_string())?;
        Ok(30)
    });
    println!("moved {}", moved?);

    // Rows are sorted by the bytes of their keys; this scan starts at the greatest key.
    for (when, snapshot) in [("before", before), ("after", store.snapshot()?)] {
        for row in snapshot.range(&accounts, "a"..).rev() {
            let row = row?;
            println!("{when}: {} has {}", row.key().escape_ascii(), row.value().escape_ascii());
        }
    }
    Ok(store.close()?)
}
