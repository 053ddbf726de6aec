//! Renaming and truncating keyspaces and deleting ranges of rows while transactions are open. Also
//! the settings and statistics of a store on disk.

use std::time::Duration;

use percolite::engine::sim::SimStorage;
use percolite::{Error, ErrorKind, Keyspace, Snapshot, Store};

fn with_rows(count: u8) -> (Store, Keyspace) {
    let store = Store::in_memory().unwrap();
    let rows = store.keyspace("rows").unwrap();
    store.transact(|txn| (0..count).try_for_each(|key| txn.put(&rows, [key], [key]))).unwrap();
    (store, rows)
}

fn keys(snapshot: &Snapshot, rows: &Keyspace) -> Vec<u8> {
    snapshot.range(rows, ..).map(|row| row.unwrap().key()[0]).collect()
}

fn names(snapshot: &Snapshot) -> Vec<String> {
    snapshot.keyspaces().unwrap().iter().map(|keyspace| keyspace.name().to_owned()).collect()
}

fn is_missing(error: &Error, name: &str) -> bool {
    *error.kind() == ErrorKind::KeyspaceNotFound(name.into())
}

#[test]
fn a_rename_changes_only_the_name_of_a_keyspace() {
    let memory = SimStorage::new();
    let store = Store::builder().history_retention(Duration::from_secs(3600)).open_in_memory(&memory).unwrap();
    let rows = store.keyspace("rows").unwrap();
    store.transact(|txn| (0..3_u8).try_for_each(|key| txn.put(&rows, [key], [key]))).unwrap();
    let (before, mut under_way) = (store.snapshot().unwrap(), store.begin().unwrap());
    under_way.put(&rows, [3], "under way").unwrap();
    let renamed = store.rename_keyspace("rows", "lines").unwrap();
    assert_eq!((renamed.name(), rows.name(), renamed.id()), ("lines", "rows", rows.id()));
    under_way.commit().unwrap();
    store
        .transact(|txn| txn.put(&rows, [4], "old handle").and_then(|()| txn.put(&renamed, [5], "new handle")))
        .unwrap();
    let after = store.snapshot().unwrap();
    assert_eq!((names(&before), names(&after)), (vec!["rows".into()], vec!["lines".into()]));
    for handle in [&rows, &renamed, &after.keyspaces().unwrap()[0], &before.keyspaces().unwrap()[0]] {
        assert_eq!((keys(&before, handle), keys(&after, handle)), (vec![0, 1, 2], vec![0, 1, 2, 3, 4, 5]));
    }
    assert!(is_missing(&store.existing_keyspace("rows").unwrap_err(), "rows"));
    // The old name is free for another keyspace.
    let other = store.keyspace("rows").unwrap();
    assert_ne!(other.id(), rows.id());
    let past = store.snapshot_at(before.read_ts()).unwrap();
    assert_eq!((names(&past), keys(&past, &renamed)), (vec!["rows".into()], vec![0, 1, 2]));

    // After a drop, the rows can be read with the old and the new handle in snapshots from before
    // the drop, and with neither handle in later snapshots.
    store.drop_keyspace("lines").unwrap();
    for handle in [&rows, &renamed] {
        assert_eq!((keys(&before, handle).len(), keys(&after, handle).len()), (3, 6));
        let error = store.snapshot().unwrap().get(handle, [0]).unwrap_err();
        assert!(is_missing(&error, handle.name()), "{error}");
    }
    let error = store.transact(|txn| txn.put(&rows, [1], "")).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::KeyspaceNotFound(_)), "{error}");
    drop((before, after, past));
    store.close().unwrap();
    let store = Store::builder().open_in_memory(&memory).unwrap();
    assert_eq!(store.keyspace_names().unwrap(), ["rows"]);
    assert!(store.verify(|_| ()).unwrap().is_ok());
}

#[test]
fn an_invalid_rename_is_refused() {
    let (store, _) = with_rows(1);
    store.keyspace("other").unwrap();
    for to in ["other", "rows", "", "a\nb"] {
        let error = store.rename_keyspace("rows", to).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::InvalidArgument(_)), "{error}");
    }
    assert!(is_missing(&store.rename_keyspace("none", "some").unwrap_err(), "none"));
    assert_eq!(store.keyspace_names().unwrap(), ["other", "rows"]);
}

#[test]
fn concurrent_rename_drop_and_create_lose_no_row() {
    let store = Store::in_memory().unwrap();
    for round in 0..100_u8 {
        let rows = store.keyspace("a").unwrap();
        store.transact(|txn| txn.put(&rows, [round], "v")).unwrap();
        let (renamed, dropped) = std::thread::scope(|scope| {
            let renamed = scope.spawn(|| store.rename_keyspace("a", "b"));
            let dropped = scope.spawn(|| store.drop_keyspace("a"));
            (renamed.join().unwrap(), dropped.join().unwrap())
        });
        assert!(renamed.is_ok() != dropped.is_ok(), "{renamed:?} {dropped:?}");
        match renamed {
            Ok(renamed) => {
                assert_eq!(keys(&store.snapshot().unwrap(), &renamed), [round]);
                store.transact(|txn| txn.put(&rows, [round], "it goes on")).unwrap();
                store.drop_keyspace("b").unwrap();
            }
            Err(error) => assert!(is_missing(&error, "a"), "{error}"),
        }
        assert!(store.keyspace_names().unwrap().is_empty());
    }
}

#[test]
fn a_truncate_is_seen_by_later_snapshots_only() {
    let (store, old) = with_rows(200);
    let (before, mut under_way) = (store.snapshot().unwrap(), store.begin().unwrap());
    under_way.put(&old, [7], "under way").unwrap();
    let new = store.truncate_keyspace("rows").unwrap();
    assert_eq!((new.name(), store.keyspace_names().unwrap()), ("rows", vec!["rows".into()]));
    let error = under_way.commit().unwrap_err();
    assert!(is_missing(&error, "rows"), "{error}");
    store.transact(|txn| txn.put(&new, [9], "new")).unwrap();
    let after = store.snapshot().unwrap();
    assert_eq!((keys(&before, &old).len(), keys(&after, &new)), (200, vec![9]));
    assert!(is_missing(&after.get(&old, [1]).unwrap_err(), "rows"));
    assert!(is_missing(&store.truncate_keyspace("none").unwrap_err(), "none"));
    drop((before, after));
    // The background frees the space.
    for _ in 0..6000 {
        if store.verify(|_| ()).unwrap().versions < 20 {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("the rows were not deleted");
}

#[test]
fn a_range_delete_is_atomic_and_deletes_what_was_read() {
    let (store, rows) = with_rows(10);
    let before = store.snapshot().unwrap();
    let mut txn = store.begin().unwrap();
    txn.put(&rows, [4, 4], "own").unwrap();
    txn.delete(&rows, [5]).unwrap();
    let savepoint = txn.savepoint();
    assert_eq!(txn.delete_range(&rows, [3]..[7]).unwrap(), 4, "3, 4, 4 4 and 6");
    assert_eq!(txn.delete_range(&rows, [3]..[7]).unwrap(), 0);
    txn.rollback_to(savepoint).unwrap();
    assert_eq!(txn.delete_range(&rows, vec![3]..=vec![4, 4]).unwrap(), 3);
    assert_eq!(txn.delete_prefix(&rows, [8]).unwrap(), 1);
    // This row is in a deleted range, but not in the snapshot. So it causes no conflict and is not
    // deleted.
    store.transact(|txn| txn.put(&rows, [3, 3], "later")).unwrap();
    txn.commit().unwrap();
    let after = store.snapshot().unwrap();
    assert_eq!((keys(&before, &rows).len(), keys(&after, &rows)), (10, vec![0, 1, 2, 3, 6, 7, 9]));

    // A concurrent write to a row that the range delete has read causes a conflict, and nothing is
    // deleted.
    let mut txn = store.begin().unwrap();
    txn.delete_range(&rows, ..).unwrap();
    store.transact(|txn| txn.put(&rows, [6], "first")).unwrap();
    let error = txn.commit().unwrap_err();
    assert_eq!(error.conflict().unwrap().row.user_key(), [6]);
    assert_eq!(keys(&store.snapshot().unwrap(), &rows).len(), 7);
}

#[test]
fn a_range_of_any_size_is_deleted_in_bounded_memory() {
    let store = Store::builder().large_transaction_bytes(20_000).max_transaction_bytes(100_000).in_memory().unwrap();
    let rows = store.keyspace("rows").unwrap();
    for part in 0..10_u8 {
        store
            .transact(|txn| {
                (0..1000_u16).try_for_each(|n| txn.put(&rows, [&[part][..], &n.to_be_bytes()].concat(), "v"))
            })
            .unwrap();
    }
    let before = store.snapshot().unwrap();
    assert_eq!(store.transact(|txn| txn.delete_range(&rows, [2]..)).unwrap(), 8000);
    assert_eq!((before.range(&rows, ..).count(), store.snapshot().unwrap().range(&rows, ..).count()), (10_000, 2000));
    assert!(store.stats().large_rows_locked > 5000);
}

#[cfg(feature = "rocks")]
mod on_disk {
    use std::time::Duration;

    use percolite::engine::storage::Column;
    use percolite::{Compression, ErrorKind, Store};

    fn random(seed: u64, length: usize) -> Vec<u8> {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut step = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state as u8
        };
        (0..length).map(|_| step()).collect()
    }

    #[test]
    fn the_memory_budget_covers_buffers_and_cache() {
        const LIMIT: usize = 16 << 20;
        let directory = tempfile::tempdir().unwrap();
        let store = Store::builder()
            .memory_budget(LIMIT)
            .durability(percolite::Durability::Buffered)
            .open(directory.path())
            .unwrap();
        let rows = store.keyspace("rows").unwrap();
        let mut most = 0;
        for n in 0..64_u64 {
            store
                .transact(|txn| {
                    (0..64_u64).try_for_each(|k| txn.put(&rows, (n * 64 + k).to_be_bytes(), random(n * 64 + k, 10_000)))
                })
                .unwrap();
            let stats = store.engine_stats().unwrap();
            most = most.max(stats.memtable_bytes + stats.block_cache_bytes);
        }
        let snapshot = store.snapshot().unwrap();
        assert_eq!(snapshot.range(&rows, ..).map(Result::unwrap).count(), 4096);
        let stats = store.engine_stats().unwrap();
        most = most.max(stats.memtable_bytes + stats.block_cache_bytes);
        assert!(most < LIMIT as u64 && most > 1 << 20, "{most}");
        assert_eq!(stats.block_cache_capacity_bytes, LIMIT as u64 / 2);
        assert!(stats.open_snapshots >= 1 && !stats.is_write_stopped && stats.background_errors == 0, "{stats:?}");
        assert!(stats.wal_bytes > 0 && stats.columns.len() == Column::ALL.len(), "{stats:?}");
        // Transactions of this size are large, so their long values are in the data column. The
        // statistics of a column count its tables only, so a checkpoint first flushes the
        // memtables.
        store.checkpoint(directory.path().join("copy")).unwrap();
        let stats = store.engine_stats().unwrap();
        let written = stats.columns.iter().find(|column| column.column == Column::Data).unwrap();
        assert!(written.sst_bytes > 20 << 20 && written.sst_files > 0 && written.estimated_keys >= 4096, "{stats:?}");
        let error = Store::in_memory().unwrap().engine_stats().unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::InvalidArgument(_)), "{error}");
    }

    #[test]
    fn write_stalls_are_counted_and_no_write_fails() {
        const ROWS: u64 = 16;
        // A write must stall before this number of commits, which would fill a thousand write
        // buffers.
        const COMMITS_MAX: u64 = 4000;
        let directory = tempfile::tempdir().unwrap();
        let builder = Store::builder().durability(percolite::Durability::Buffered).write_buffer_bytes(1 << 20);
        let store = builder.open(directory.path()).unwrap();
        let rows = store.keyspace("rows").unwrap();
        let stats = store.stats();
        assert_eq!((stats.write_stalls, stats.write_stall_time, stats.current_write_stall), (0, Duration::ZERO, None));
        let mut commits = 0;
        while store.stats().write_stalls == 0 {
            assert!(commits < COMMITS_MAX, "no write stalled");
            let value = random(commits, 256 << 10);
            store.transact(|txn| txn.put(&rows, (commits % ROWS).to_be_bytes(), &value)).unwrap();
            commits += 1;
        }
        let stalled = store.stats();
        assert!(stalled.write_stall_time > Duration::ZERO, "{stalled:?}");
        store.transact(|txn| txn.put(&rows, "one more", "value")).unwrap();
        let later = store.stats();
        assert!(later.write_stalls >= stalled.write_stalls && later.write_stall_time >= stalled.write_stall_time);
        let snapshot = store.snapshot().unwrap();
        let last = (commits - 1) % ROWS;
        assert_eq!(snapshot.get(&rows, last.to_be_bytes()).unwrap(), Some(random(commits - 1, 256 << 10).into()));
        assert_eq!(Store::in_memory().unwrap().stats().write_stalls, 0);
    }

    /// Needs Linux, which counts the bytes that a process reads from files.
    #[cfg(target_os = "linux")]
    #[test]
    fn the_filter_of_a_large_table_stays_in_the_cache() {
        const ROWS: u64 = 800_000;
        const READS: u64 = 1000;
        let bytes_read = || {
            let io = std::fs::read_to_string("/proc/self/io").unwrap();
            io.lines().find_map(|line| line.strip_prefix("rchar: ")).unwrap().parse::<u64>().unwrap()
        };
        let directory = tempfile::tempdir().unwrap();
        let store = Store::builder()
            .block_cache_bytes(16 << 20)
            .write_buffer_bytes(4 << 20)
            .durability(percolite::Durability::Buffered)
            .open(directory.path())
            .unwrap();
        let rows = store.keyspace("rows").unwrap();
        // Multiplying by an odd number permutes the keys. Tables of unordered keys overlap, and
        // compaction merges them into large ones.
        let key = |n: u64| (n.wrapping_mul(0x9E37_79B9_7F4A_7C15) % ROWS.next_power_of_two()).to_be_bytes();
        for from in (0..ROWS).step_by(10_000) {
            store.transact(|txn| (from..from + 10_000).try_for_each(|n| txn.put(&rows, key(n), ""))).unwrap();
        }
        let snapshot = store.snapshot().unwrap();
        let till = std::time::Instant::now() + std::time::Duration::from_secs(60);
        loop {
            let before = bytes_read();
            for n in 0..READS {
                assert!(snapshot.get(&rows, key(n * 7919 % ROWS)).unwrap().is_some());
            }
            let each = (bytes_read() - before) / READS;
            // A `get` that must read the filter reads 1 MB, one that reads only a block 4 KiB. The
            // measurement is repeated, because other tests read files, too, and compactions may
            // still run.
            if each < 50_000 {
                break;
            }
            assert!(std::time::Instant::now() < till, "a read takes {each} bytes from files");
            std::thread::sleep(std::time::Duration::from_millis(500));
        }
    }

    #[test]
    fn tables_are_compressed_as_set_and_read_either_way() {
        let bytes =
            |store: &Store| store.engine_stats().unwrap().columns.iter().map(|column| column.sst_bytes).sum::<u64>();
        let directory = tempfile::tempdir().unwrap();
        let mut sizes = Vec::new();
        for (name, compression) in [("plain", Compression::None), ("packed", Compression::Lz4)] {
            let path = directory.path().join(name);
            let open = |compression| Store::builder().compression(compression).open(&path).unwrap();
            let store = open(compression);
            let rows = store.keyspace("rows").unwrap();
            store
                .transact(|txn| (0..1000_u16).try_for_each(|n| txn.put(&rows, n.to_be_bytes(), [b'x'; 1000])))
                .unwrap();
            // A checkpoint flushes everything into tables.
            store.checkpoint(directory.path().join(format!("{name} copy"))).unwrap();
            sizes.push(bytes(&store));
            store.close().unwrap();
            let other = if compression == Compression::None { Compression::Lz4 } else { Compression::None };
            let store = open(other);
            assert_eq!(store.snapshot().unwrap().range(&rows_of(&store), ..).map(Result::unwrap).count(), 1000);
        }
        assert!(sizes[0] > 1_000_000 && sizes[1] < sizes[0] / 3, "{sizes:?}");
    }

    fn rows_of(store: &Store) -> percolite::Keyspace {
        store.existing_keyspace("rows").unwrap()
    }
}
