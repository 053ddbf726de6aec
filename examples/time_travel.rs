//! History: reads of a past state, the versions of a row with their transactions, and the undoing
//! of a mistake.
//!
//! ```text
//! cargo run --release --example time_travel
//! ```

use std::time::{Duration, SystemTime};

use percolite::Store;

fn main() -> percolite::Result<()> {
    // Without history a replaced version can be removed as soon as no snapshot needs it.
    let store = Store::builder().history_retention(Duration::from_secs(24 * 3600)).in_memory()?;
    let accounts = store.keyspace("accounts")?;
    store.transact(|txn| {
        txn.put(&accounts, "alice", "100")?;
        txn.put(&accounts, "bob", "50")
    })?;

    // For a day the state at the time `before_lunch` can be read.
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
        println!("alice: {value:?}, committed at {}, owner {}", version.commit_ts, version.owner_id);
    }

    // A new transaction writes the old value again. History itself never changes.
    let bob = then.get(&accounts, "bob")?.unwrap_or_default();
    store.transact(|txn| txn.insert(&accounts, "bob", &bob))?;
    println!("restored:     {:?}", rows(&store.snapshot()?, &accounts)?);
    assert_eq!(store.get(&accounts, "bob")?, Some("50".into()));
    Ok(())
}

fn rows(snapshot: &percolite::Snapshot, keyspace: &percolite::Keyspace) -> percolite::Result<Vec<(String, String)>> {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    snapshot.range(keyspace, ..).map(|row| row.map(|row| (text(row.key()), text(row.value())))).collect()
}
