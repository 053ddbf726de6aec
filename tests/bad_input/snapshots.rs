//! Very many open snapshots.

use percolite::{Durability, Store};

const SNAPSHOTS: u32 = 100_000;

#[test]
fn a_hundred_thousand_snapshots_each_show_their_state() {
    // Snapshots of a buffered store need no sync. A sync for each would make the test slow.
    let store = Store::builder().durability(Durability::Buffered).in_memory().unwrap();
    let rows = store.keyspace("rows").unwrap();
    let mut snapshots = Vec::new();
    for n in 0..SNAPSHOTS {
        let mut txn = store.begin().unwrap();
        txn.put(&rows, (n % 100).to_be_bytes(), n.to_be_bytes()).unwrap();
        txn.commit().unwrap();
        snapshots.push(store.snapshot().unwrap());
    }
    assert!(store.stats().open_views >= u64::from(SNAPSHOTS), "{:?}", store.stats());
    for (n, snapshot) in snapshots.iter().enumerate().step_by(997) {
        let n = u32::try_from(n).unwrap();
        for back in [0, 1, 50, 99] {
            let Some(written) = n.checked_sub(back) else { continue };
            let found = snapshot.get(&rows, (written % 100).to_be_bytes()).unwrap();
            assert_eq!(found, Some(written.to_be_bytes().into()), "snapshot {n}");
        }
        assert_eq!(snapshot.range(&rows, ..).count() as u32, (n + 1).min(100), "snapshot {n}");
    }
    snapshots.clear();
    assert!(store.stats().open_views <= 2, "{:?}", store.stats());
    store.close().unwrap();
}
