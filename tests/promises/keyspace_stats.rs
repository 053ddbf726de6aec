//! Row counts and sizes of keyspaces.

use percolite::{KeyspaceStats, Store};

fn stats(store: &Store, count: u64) -> Vec<KeyspaceStats> {
    store.keyspace_stats(count).unwrap()
}

fn fill(store: &Store, name: &str, rows: u32, value: &[u8]) {
    let keyspace = store.keyspace(name).unwrap();
    for from in (0..rows).step_by(10_000) {
        let upto = rows.min(from + 10_000);
        store.transact(|txn| (from..upto).try_for_each(|n| txn.put(&keyspace, n.to_be_bytes(), value))).unwrap();
    }
}

#[test]
fn rows_are_counted_as_a_snapshot_sees_them() {
    let store = Store::in_memory().unwrap();
    fill(&store, "many", 5000, b"123456");
    fill(&store, "gone", 10, b"x");
    store.keyspace("empty").unwrap();
    let many = store.keyspace("many").unwrap();
    store.transact(|txn| txn.delete_range(&many, ..100_u32.to_be_bytes())).unwrap();
    // While this snapshot is open, the rows of the dropped keyspace are not deleted.
    let _reader = store.snapshot().unwrap();
    store.drop_keyspace("gone").unwrap();
    for count in [0, 1, 77, u64::MAX] {
        let found = stats(&store, count);
        let summary: Vec<_> =
            found.iter().map(|one| (one.name.as_deref(), one.rows, one.logical_bytes, one.is_exact)).collect();
        let wanted = [(Some("empty"), 0, 0, true), (Some("many"), 4900, 49_000, true), (None, 0, 0, false)];
        assert_eq!(summary, wanted, "{count}");
    }
}

#[cfg(feature = "rocks")]
#[test]
fn uncounted_rows_are_estimated_from_their_size_on_disk() {
    let directory = tempfile::tempdir().unwrap();
    let open = || Store::builder().write_buffer_bytes(1 << 20).compression(percolite::Compression::None);
    let store = open().open(directory.path()).unwrap();
    fill(&store, "before", 1000, &[1; 100]);
    fill(&store, "large", 100_000, &[7; 100]);
    fill(&store, "small", 10, &[7; 100]);
    store.close().unwrap();
    let store = open().read_only(true).open(directory.path()).unwrap();
    let exact = stats(&store, u64::MAX);
    assert_eq!((exact[1].rows, exact[1].logical_bytes, exact[1].is_exact), (100_000, 10_400_000, true));
    assert!(exact[1].disk_bytes > 5_000_000, "{exact:?}");
    let about = stats(&store, 5000);
    assert!(!about[1].is_exact && (50_000..200_000).contains(&about[1].rows), "{about:?}");
    assert!((5_000_000..20_000_000).contains(&about[1].logical_bytes), "{about:?}");
    // A small keyspace is counted exactly.
    assert_eq!((about[2].rows, about[2].is_exact), (10, true));
}
