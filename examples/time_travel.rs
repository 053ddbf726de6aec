//! Reading the past: what an account was at a moment, who changed it, and undoing a mistake.
//!
//! `cargo run --release --example time_travel`

use std::time::{Duration, SystemTime};

use percolite::Store;

fn main() -> percolite::Result<()> {
    let store = Store::builder().history_retention(Duration::from_secs(24 * 3600)).in_memory()?;
    let accounts = store.keyspace("accounts")?;
    store.transact(|txn| {
        txn.put(&accounts, "alice", "100")?;
        txn.put(&accounts, "bob", "50")
    })?;

    // Whatever happens from here on, this moment can be read for a day.
    std::thread::sleep(Duration::from_millis(5));
    let before_lunch = SystemTime::now();
    std::thread::sleep(Duration::from_millis(5));

    store.transact(|txn| txn.put(&accounts, "alice", "30"))?;
    store.transact(|txn| txn.delete(&accounts, "bob"))?;

    println!("now:          {:?}", rows(&store.snapshot()?, &accounts)?);
    let then = store.snapshot_at(before_lunch)?;
    println!("before lunch: {:?}", rows(&then, &accounts)?);

    for version in store.snapshot()?.versions(&accounts, "alice")? {
        let version = version?;
        let value = version.value.as_deref().map(String::from_utf8_lossy);
        println!("alice was {value:?} from {} on, by the transaction of {}", version.commit_ts, version.owner_id);
    }

    // The mistake is undone by writing what was there, in a transaction like any other.
    let bob = then.get(&accounts, "bob")?.unwrap_or_default();
    store.transact(|txn| txn.insert(&accounts, "bob", &bob))?;
    println!("bob again:    {:?}", rows(&store.snapshot()?, &accounts)?);
    assert_eq!(store.snapshot()?.get(&accounts, "bob")?, Some(b"50".to_vec()));
    Ok(())
}

fn rows(snapshot: &percolite::Snapshot, keyspace: &percolite::Keyspace) -> percolite::Result<Vec<(String, String)>> {
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    snapshot.range(keyspace, ..).map(|row| row.map(|(key, value)| (text(key), text(value)))).collect()
}
