//! What a repair copies from a damaged directory, and how it reports the rest.

use std::collections::BTreeMap;
use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use percolite::{Builder, CommitProtocol, Compression, ErrorKind, RepairReport, Store, Value};

use crate::directories::{change, files, frames, payload, segment, state, tear_manifest};
use crate::orphans::leave_locks;

fn small() -> Builder {
    Store::builder().block_cache_bytes(1 << 20).write_buffer_bytes(4 << 20)
}

type Rows = BTreeMap<(String, Vec<u8>), Value>;

fn content(store: &Store) -> Rows {
    let snapshot = store.snapshot().unwrap();
    let rows = |keyspace: percolite::Keyspace| {
        let name = keyspace.name().to_owned();
        snapshot
            .range(&keyspace, ..)
            .map(|row| row.unwrap().into_parts())
            .map(move |(key, value)| ((name.clone(), key), value))
            .collect::<Vec<_>>()
    };
    snapshot.keyspaces().unwrap().into_iter().flat_map(rows).collect()
}

/// Makes a store out of a checkpoint, which has all rows in tables, and adds commits that stay in
/// the log. Returns the rows.
fn filled(directory: &Path) -> Rows {
    let store = small().open(directory.join("first")).unwrap();
    let (rows, gone) = (store.keyspace("rows").unwrap(), store.keyspace("gone").unwrap());
    store.keyspace("empty").unwrap();
    for part in 0..20_u8 {
        let write = |txn: &mut percolite::Txn| {
            (0..100_u8).try_for_each(|n| txn.put(&rows, [part, n], vec![n; if n % 10 == 0 { 3000 } else { 300 }]))
        };
        let protocol = (part % 4 == 0).then_some(CommitProtocol::TwoPhase);
        let options = percolite::TxnOptions::default().commit_protocol(protocol);
        store.transact_with(options, write).unwrap();
    }
    store.transact(|txn| txn.put(&gone, "k", "v")).unwrap();
    store.drop_keyspace("gone").unwrap();
    store.transact(|txn| txn.delete_prefix(&rows, [3]).map(drop)).unwrap();
    store.checkpoint(directory.join("store")).unwrap();
    store.close().unwrap();
    let store = small().open(directory.join("store")).unwrap();
    let rows = store.keyspace("rows").unwrap();
    for part in 30..40_u8 {
        store.transact(|txn| txn.put(&rows, [part], "in the log")).unwrap();
    }
    let content = content(&store);
    store.close().unwrap();
    content
}

#[test]
fn a_repair_copies_rows_above_max_transaction_bytes() {
    let directory = tempfile::tempdir().unwrap();
    let (path, to) = (directory.path().join("store"), directory.path().join("repaired"));
    let store = small().open(&path).unwrap();
    let rows = store.keyspace("rows").unwrap();
    let large = vec![7; 3 << 20];
    store.transact(|txn| txn.put(&rows, "large", &large)).unwrap();
    store.transact(|txn| (0..1000_u16).try_for_each(|n| txn.put(&rows, n.to_be_bytes(), [7; 500]))).unwrap();
    let whole = content(&store);
    store.close().unwrap();

    let few = small().max_transaction_bytes(64 << 10);
    assert!(few.clone().repair(&path, &to, |_| ()).unwrap().is_complete());
    let store = few.open(&to).unwrap();
    assert_eq!(content(&store), whole);
    let rows = store.keyspace("rows").unwrap();
    let refused = store.transact(|txn| txn.put(&rows, "large", &large)).unwrap_err();
    assert!(matches!(refused.kind(), ErrorKind::TooLarge { limit: 65536, .. }), "{refused}");
}

/// Damages and repairs a store. Returns the report and the rows before and after.
fn repaired(damage: impl FnOnce(&Path)) -> (RepairReport, Rows, Rows) {
    let directory = tempfile::tempdir().unwrap();
    let before = filled(directory.path());
    let (from, to) = (directory.path().join("store"), directory.path().join("new"));
    damage(&from);
    let as_it_was = state(&from);
    let mut seen = Vec::new();
    let repaired = small().repair(&from, &to, |so_far| seen.push(so_far.rows)).unwrap();
    assert_eq!(state(&from), as_it_was, "the damaged directory was changed");
    assert!(seen.is_sorted() && !directory.path().join("new.repairing").exists());
    let store = small().open(&to).unwrap();
    let verified = store.verify(|_| ()).unwrap();
    assert!(verified.is_ok(), "{:?}", verified.issues);
    let after = content(&store);
    assert_eq!((repaired.rows, repaired.loss_count), (after.len() as u64, repaired.losses.len() as u64));
    // The repaired store can be written to.
    let rows = store.keyspace("rows").unwrap();
    store.transact(|txn| txn.put(&rows, "new", "life")).unwrap();
    (repaired, before, after)
}

fn flip(path: &Path, at: usize, length: usize) {
    let mut bytes = fs::read(path).unwrap();
    bytes.iter_mut().skip(at).take(length).for_each(|byte| *byte ^= 0xff);
    // The file is replaced, not changed in place, because it may be a hard link.
    fs::remove_file(path).unwrap();
    fs::write(path, bytes).unwrap();
}

fn largest_table(directory: &Path) -> PathBuf {
    files(directory, ".sst").into_iter().max_by_key(|path| path.metadata().unwrap().len()).unwrap()
}

#[test]
fn an_intact_store_is_repaired_completely() {
    let (repaired, before, after) = repaired(|_| ());
    assert!(repaired.is_complete(), "{:?}", repaired.losses);
    assert_eq!((repaired.keyspaces, after.len()), (2, before.len()));
    assert!(after == before);
}

#[test]
fn an_interrupted_repair_is_named_with_what_to_do() {
    let directory = tempfile::tempdir().unwrap();
    filled(directory.path());
    files(&directory.path().join("store"), "MANIFEST").iter().for_each(|path| fs::remove_file(path).unwrap());
    fs::create_dir(directory.path().join("new.repairing")).unwrap();
    let (from, to) = (directory.path().join("store"), directory.path().join("new"));
    let refused = small().repair(&from, &to, |_| ()).unwrap_err().to_string();
    assert!(refused.contains("new.repairing") && refused.contains("remove it and try again"), "{refused}");
    fs::remove_dir(directory.path().join("new.repairing")).unwrap();
    small().repair(&from, &to, |_| ()).unwrap();
}

#[test]
fn a_repair_needs_neither_manifest_nor_marker() {
    for gone in [&["MANIFEST-", "CURRENT"][..], &["MANIFEST-", "PERCOLITE"], &["CURRENT"]] {
        let (repaired, before, after) = repaired(|directory| {
            gone.iter().flat_map(|name| files(directory, name)).for_each(|path| fs::remove_file(path).unwrap());
        });
        assert!(
            !repaired.is_complete() && repaired.losses[0].message.contains("rebuilt from their files"),
            "{:?}",
            repaired.losses
        );
        assert_eq!(after.len(), before.len(), "{gone:?}");
        assert!(after == before, "{gone:?}");
    }
}

#[test]
fn a_manifest_that_hangs_rocksdb_is_ignored() {
    let (repaired, before, after) = repaired(|directory| {
        let manifest = files(directory, "MANIFEST-").pop().unwrap();
        change(&manifest, |bytes| {
            let second = 7 + usize::from(u16::from_le_bytes([bytes[4], bytes[5]]));
            bytes[second + 6] = 5;
        });
        let error = small().open(directory).map(drop).unwrap_err().to_string();
        assert!(error.contains("of a type that is never written"), "{error}");
    });
    assert!(repaired.losses[0].message.contains("rebuilt from their files"), "{:?}", repaired.losses);
    assert!(after == before);
}

#[test]
fn a_torn_last_manifest_record_costs_nothing() {
    let (repaired, before, after) = repaired(tear_manifest);
    assert!(repaired.is_complete(), "{:?}", repaired.losses);
    assert!(after == before);
}

#[test]
fn a_torn_tail_is_no_loss_and_damage_before_later_frames_is() {
    // Without a later frame or a sync record nothing proves that the last commit was durable.
    let (found, before, after) = repaired(|directory| {
        fs::remove_file(directory.join("wal/synced")).unwrap();
        change(&segment(directory), |bytes| {
            let row = bytes.windows(b"in the log".len()).rposition(|bytes| bytes == b"in the log").unwrap();
            bytes[row..].fill(0);
        });
    });
    assert!(found.is_complete(), "{:?}", found.losses);
    assert!(after.len() < before.len() && after.iter().all(|(key, value)| before.get(key) == Some(value)));
    let (found, before, after) = repaired(|directory| {
        change(&segment(directory), |bytes| {
            let frames = frames(bytes);
            bytes[payload(frames[2])] ^= 1;
        });
    });
    assert_eq!(found.loss_count, 1, "{:?}", found.losses);
    assert!(found.losses[0].message.contains("the write-ahead log is damaged"), "{:?}", found.losses);
    assert!(after.len() < before.len() && after.iter().all(|(key, value)| before.get(key) == Some(value)));
}

#[test]
fn a_missing_log_costs_what_was_not_in_tables() {
    let (found, before, after) =
        repaired(|directory| files(&directory.join("wal"), "").iter().for_each(|file| fs::remove_file(file).unwrap()));
    assert!(
        found.losses.iter().any(|loss| loss.message.contains("no segment of the write-ahead log")),
        "{:?}",
        found.losses
    );
    assert_eq!(after.len(), before.len() - 10);
}

#[test]
fn damaged_blocks_cost_their_rows_and_no_others() {
    let (repaired, before, after) = repaired(|directory| {
        let table = largest_table(directory);
        let length = fs::metadata(&table).unwrap().len() as usize;
        flip(&table, length / 2, 20);
    });
    assert!(!repaired.is_complete());
    assert!(after.iter().all(|(key, value)| before.get(key) == Some(value)), "a row has a value that it never had");
    assert!(after.len() < before.len() && after.len() >= before.len() - 40, "{} of {}", after.len(), before.len());
}

/// A store with two tables of `ROWS` rows, one with the old and one with the new values. Returns
/// the store and the newer table.
fn rows_twice(directory: &Path) -> (PathBuf, PathBuf) {
    let store =
        small().write_buffer_bytes(64 << 20).compression(Compression::None).open(directory.join("first")).unwrap();
    let rows = store.keyspace("rows").unwrap();
    for value in ["old", "new"] {
        for batch in (0..ROWS).step_by(1000) {
            let write = |txn: &mut percolite::Txn| {
                (batch..batch + 1000).try_for_each(|n| txn.put(&rows, row_key(n), row_value(n, value)))
            };
            store.transact(write).unwrap();
        }
        store.checkpoint(directory.join(value)).unwrap();
    }
    store.close().unwrap();
    let store = directory.join("new");
    let large = |path: &PathBuf| path.metadata().unwrap().len() > 1_000_000;
    let tables: Vec<_> = files(&store, ".sst").into_iter().filter(large).collect();
    assert_eq!(tables.len(), 2, "{tables:?}");
    (store, tables.into_iter().next_back().unwrap())
}

const ROWS: usize = 20_000;

fn row_key(n: usize) -> String {
    format!("row number {n:06} of many")
}

fn row_value(n: usize, text: &str) -> String {
    format!("{n:06} {text} {}", "x".repeat(100))
}

/// Repairs the store and counts its rows, each of which must have its newest value.
fn newest_rows(store: &Path) -> (RepairReport, usize) {
    let to = store.with_extension("repaired");
    let repaired = small().repair(store, &to, |_| ()).unwrap();
    let after = content(&small().open(&to).unwrap());
    for ((_, key), value) in &after {
        let n = String::from_utf8_lossy(key).split(' ').nth(2).unwrap().parse().unwrap();
        assert_eq!(String::from_utf8_lossy(value), row_value(n, "new"));
    }
    (repaired, after.len())
}

#[test]
fn five_flipped_bits_cost_five_blocks() {
    let directory = tempfile::tempdir().unwrap();
    let (store, table) = rows_twice(directory.path());
    let mut bytes = fs::read(&table).unwrap();
    let length = bytes.len();
    [1, 3, 5, 7, 9].iter().for_each(|tenth| bytes[length * tenth / 10] ^= 4);
    fs::remove_file(&table).unwrap();
    fs::write(&table, bytes).unwrap();
    let (repaired, rows) = newest_rows(&store);
    let lost = ROWS - rows;
    // A block of 4 KiB has some 30 of these rows.
    assert!(repaired.loss_count == 5 && (5..=250).contains(&lost), "{lost} rows lost: {:#?}", repaired.losses);
    assert!(repaired.losses.iter().all(|loss| loss.message.contains("an unknown number of cells")));
}

#[test]
fn a_table_destroyed_but_for_its_ends_costs_what_was_between() {
    let directory = tempfile::tempdir().unwrap();
    let (store, table) = rows_twice(directory.path());
    let length = fs::metadata(&table).unwrap().len() as usize;
    flip(&table, length / 5, length / 2);
    let (repaired, rows) = newest_rows(&store);
    assert!(repaired.loss_count == 1, "{:#?}", repaired.losses);
    assert!((ROWS * 45 / 100..ROWS * 52 / 100).contains(&rows), "{rows} of {ROWS}");
}

#[test]
fn a_missing_table_costs_its_rows() {
    let (repaired, before, after) = repaired(|directory| fs::remove_file(largest_table(directory)).unwrap());
    assert!(!repaired.is_complete() && repaired.losses[0].message.contains("No such file"), "{:?}", repaired.losses);
    assert!(after.len() >= 10 && after.len() < before.len(), "{}", after.len());
}

#[test]
fn a_repair_resolves_orphan_locks() {
    for (committed, value) in [(true, "new"), (false, "old")] {
        let directory = tempfile::tempdir().unwrap();
        let (from, to) = (directory.path().join("store"), directory.path().join("new"));
        leave_locks(&from, committed);
        let repaired = small().repair(&from, &to, |_| ()).unwrap();
        assert!(repaired.is_complete() && repaired.rows == 2, "{repaired:?}");
        assert!(content(&small().open(&to).unwrap()).into_values().all(|found| found == value.as_bytes()));
    }
}

#[test]
fn a_repair_is_refused_where_it_could_lose_data() {
    let directory = tempfile::tempdir().unwrap();
    filled(directory.path());
    let (store, new) = (directory.path().join("store"), directory.path().join("new"));
    let refused = |from: &Path, to: &Path| small().repair(from, to, |_| ()).unwrap_err();
    assert!(matches!(refused(&store, &store).kind(), ErrorKind::Io(_)));
    assert!(matches!(refused(directory.path(), &new).kind(), ErrorKind::UnrecognizedFormat(_)));
    assert!(matches!(refused(&directory.path().join("none"), &new).kind(), ErrorKind::UnrecognizedFormat(_)));
    let open = small().open(&store).unwrap();
    assert!(matches!(refused(&store, &new).kind(), ErrorKind::AlreadyOpen(_)));
    drop(open);
    fs::write(store.join("PERCOLITE"), "percolite store, format 9, build 0.1.0, wal 0123456789abcdef\n").unwrap();
    assert!(refused(&store, &new).to_string().contains("format 9"));
    assert!(!new.exists());
}

#[test]
fn a_cancelled_repair_leaves_an_empty_store() {
    let directory = tempfile::tempdir().unwrap();
    let before = filled(directory.path());
    let from = directory.path().join("store");
    let as_it_was = state(&from);
    // One repair is cancelled during the search for keyspace names, and another after some rows
    // were copied.
    for stops_at in [0, 1000] {
        let to = directory.path().join(format!("stopped {stops_at}"));
        let (mut rows, mut keyspaces) = (0, 0);
        let stop = |so_far: &RepairReport| {
            (rows, keyspaces) = (so_far.rows, so_far.keyspaces);
            if rows >= stops_at { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        let stopped = small().repair(&from, &to, stop).unwrap_err();
        assert!(matches!(stopped.kind(), ErrorKind::Cancelled(_)), "{stopped}");
        assert!((stops_at..before.len() as u64).contains(&rows) && (stops_at > 0) == (keyspaces > 0), "{rows}");
        assert!(stopped.to_string().contains(&format!("after {rows} rows")), "{stopped}");
        assert_eq!(state(&from), as_it_was, "the damaged directory was changed");
        let store = small().open(&to).unwrap();
        assert!(store.keyspace_names().unwrap().is_empty() && store.verify(|_| ()).unwrap().is_ok());
    }
    assert!(small().repair(&from, directory.path().join("new"), |_| ()).unwrap().is_complete());
}

#[test]
fn a_repair_to_a_path_too_long_for_its_files_succeeds() {
    let directory = tempfile::tempdir().unwrap();
    filled(directory.path());
    // The path is short enough for a directory, but too long for a file in this directory.
    let mut to = directory.path().to_owned();
    while to.as_os_str().len() < 4080 {
        to.push("x".repeat(200.min(4084 - to.as_os_str().len())));
    }
    let report = small().repair(directory.path().join("store"), &to, |_| ()).unwrap();
    assert!(report.is_complete() && report.rows > 0, "{report:?}");
    assert!(small().open(&to).unwrap().verify(|_| ()).unwrap().is_ok());
}
