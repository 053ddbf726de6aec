//! Room that is written ahead in the log: there is some, it is no record, and it costs none.

use std::fs::{self, File};
use std::io::Read as _;
use std::path::{Path, PathBuf};

use percolite::{Builder, Durability, Store};

const ROWS_MAX: u32 = 2000;
const BEHIND: u32 = 10;

fn small() -> Builder {
    Store::builder().cache_bytes(1 << 20).write_buffer_bytes(4 << 20).sweep(false)
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

fn logs(folder: &Path) -> Vec<PathBuf> {
    let mut found: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    found.retain(|path| path.extension().is_some_and(|end| end == "log"));
    found.sort();
    found
}

/// How many bytes a file ends with that are zero.
fn zeros(file: &Path) -> usize {
    fs::read(file).unwrap().iter().rev().take_while(|byte| **byte == 0).count()
}

fn count(store: &Store) -> u32 {
    let rows = store.existing_keyspace("rows").unwrap();
    let snapshot = store.snapshot().unwrap();
    u32::try_from(snapshot.prefix(&rows, "k").map(Result::unwrap).count()).unwrap()
}

#[test]
fn small_syncs_have_room_written_ahead_which_costs_nothing_after_a_crash_and_goes_with_closing() {
    let folder = tempfile::tempdir().unwrap();
    let (alive, killed) = (folder.path().join("alive"), folder.path().join("killed"));
    let store = small().open(&alive).unwrap();
    let rows = store.keyspace("rows").unwrap();
    for n in 0..3000 {
        store.transact(|txn| txn.put(&rows, format!("k{n:06}"), vec![7; 100])).unwrap();
    }
    copy(&alive, &killed);
    let log = logs(&killed).pop().unwrap();
    assert!(zeros(&log) > 4096, "there is no room in {}", log.display());

    let looked_at = small().read_only(true).open(&killed).unwrap();
    assert_eq!((count(&looked_at), looked_at.lost_logs()), (3000, vec![]));
    drop(looked_at);
    assert!(zeros(&log) > 4096, "somebody who only looks has changed it");
    let opened = small().open(&killed).unwrap();
    assert_eq!((count(&opened), opened.lost_logs()), (3000, vec![]));
    drop(opened);

    store.close().unwrap();
    assert!(logs(&alive).iter().all(|log| zeros(log) < 4096), "a store that was closed has room");
}

#[test]
fn who_writes_much_at_a_time_or_does_not_sync_has_no_room_written_ahead() {
    for (durability, bytes) in [(Durability::Sync, 50 << 10), (Durability::Buffered, 100)] {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::builder().durability(durability).open(folder.path()).unwrap();
        let rows = store.keyspace("rows").unwrap();
        for n in 0..200 {
            store.transact(|txn| txn.put(&rows, format!("k{n:06}"), vec![7; bytes])).unwrap();
        }
        let newest = logs(folder.path()).pop().unwrap();
        assert!(zeros(&newest) < 4096, "{durability:?}");
    }
}

/// As a machine can stop when RocksDB has begun a new log and not closed the old one: some rows in each, and room in the old one.
fn between_two_logs(folder: &Path) -> (PathBuf, u32) {
    let (alive, stopped) = (folder.join("alive"), folder.join("stopped"));
    let store = small().durability(Durability::Buffered).open(&alive).unwrap();
    let rows = store.keyspace("rows").unwrap();
    copy(&alive, &stopped);
    let older = logs(&alive).pop().unwrap();
    // RocksDB removes it when the table is written, which may be soon.
    let mut held = File::open(&older).unwrap();
    let mut written = 0;
    let mut put = |bytes: usize| {
        let put = store.transact(|txn| {
            txn.put(&rows, "filler", vec![b'f'; bytes])?;
            txn.put(&rows, format!("k{written:06}"), "v")
        });
        put.unwrap();
        written += 1;
        assert!(written < ROWS_MAX, "no second log");
    };
    while logs(&alive).last() == Some(&older) {
        put(25 << 10);
    }
    (0..BEHIND).for_each(|_| put(400));
    let newer = logs(&alive).pop().unwrap();
    fs::copy(&newer, stopped.join(newer.file_name().unwrap())).unwrap();
    let mut bytes = Vec::new();
    held.read_to_end(&mut bytes).unwrap();
    bytes.extend([0; 100_000]);
    fs::write(stopped.join(older.file_name().unwrap()), &bytes).unwrap();
    (stopped, written)
}

#[test]
fn room_in_a_log_costs_nothing_of_the_next_one() {
    let folder = tempfile::tempdir().unwrap();
    let (stopped, written) = between_two_logs(folder.path());

    let Err(why) = small().read_only(true).open(&stopped) else { panic!("it was opened to look at") };
    assert!(why.to_string().contains("has to be opened for writing once"), "{why}");

    let repaired = folder.path().join("repaired");
    let found = small().repair(&stopped, &repaired, |_| ()).unwrap();
    assert!(found.is_whole(), "{:?}", found.losses);
    assert_eq!(count(&small().open(&repaired).unwrap()), written);

    let opened = small().open(&stopped).unwrap();
    assert_eq!((count(&opened), opened.lost_logs()), (written, vec![]));
}
