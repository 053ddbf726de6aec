//! Opening a store, a transaction that is retried, a snapshot, a scan from the end.
//!
//! `cargo run --release --example quick_start`

use percolite::Store;

fn main() -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let store = Store::open(folder.path().join("bank"))?;
    let accounts = store.keyspace("accounts")?;

    store.transact(|txn| {
        txn.put(&accounts, "alice", "100")?;
        txn.put(&accounts, "bob", "50")
    })?;
    let before = store.snapshot()?;

    // The closure's error may be any type that can be made from the store's.
    let moved: anyhow::Result<u64> = store.transact(|txn| {
        let read = |bytes: Option<Vec<u8>>| anyhow::Ok(String::from_utf8(bytes.unwrap_or_default())?.parse::<u64>()?);
        let alice = read(txn.get_for_update(&accounts, "alice")?)?;
        let bob = read(txn.get(&accounts, "bob")?)?;
        anyhow::ensure!(alice >= 30, "alice has only {alice}");
        txn.put(&accounts, "alice", (alice - 30).to_string())?;
        txn.put(&accounts, "bob", (bob + 30).to_string())?;
        Ok(30)
    });
    println!("moved {}", moved?);

    for (when, snapshot) in [("before", before), ("after", store.snapshot()?)] {
        for row in snapshot.range(&accounts, "a"..).rev() {
            let (name, balance) = row?;
            println!("{when}: {} has {}", name.escape_ascii(), balance.escape_ascii());
        }
    }
    Ok(store.close()?)
}
