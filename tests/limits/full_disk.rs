//! Deletions on a full disk: a store that is full stays one that can be opened and emptied.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use percolite::{Builder, Error, Store};

use crate::Scenario;
use crate::disk::{check_refused, fill_with_ballast, full_store, is_usable, small_disk};
use crate::rows::{Acknowledged, scattered, small};

pub const SCENARIOS: &[Scenario] = &[
    small_disk("deleting many rows on a full disk ends with a store that opens", deletes_many_rows),
    small_disk("deleting what only the log has leaves space for openings", deletes_from_the_log),
    small_disk("a store on a full disk opens 300 times between deletions", opens_between_deletions),
    small_disk("a log that fills the disk opens 300 times between deletions", opens_with_a_long_log),
    small_disk("deletions in quick succession are flushed on a full disk", deletes_quickly),
    small_disk("a large transaction on a full disk is refused and fails nothing", large_transaction),
    small_disk("deleted rows are collected on a full disk", collects_garbage),
    small_disk("an opening whose flush does not fit makes none", opens_without_flush),
    small_disk("with any free space a store can be emptied and opened", sweep),
];

fn open(path: &Path, options: &Builder, when: &str) -> Store {
    options.clone().open(path).unwrap_or_else(|error| panic!("{when}: {error}"))
}

/// Deletes up to `limit` rows in one transaction, and returns their number. The store stays open.
fn delete(store: &Store, limit: usize) -> Result<usize, Error> {
    let rows = store.keyspace("rows").unwrap();
    let deleted = store.transact(|txn| {
        let keys: Vec<_> = txn.range(&rows, ..).keys().take(limit).collect::<Result<_, _>>()?;
        keys.iter().try_for_each(|key| txn.delete(&rows, key)).map(|()| keys.len())
    });
    if let Err(error) = &deleted {
        check_refused(error, "deletion");
    }
    assert!(store.status().failure.is_none(), "the store has failed: {:?}", store.status().failure);
    deleted
}

/// Deletes rows in pages, each after an opening, until none is left or no page is possible. Returns
/// whether the keyspace is empty.
fn delete_in_pages(path: &Path, options: &Builder) -> bool {
    let mut page = 2000;
    loop {
        let store = open(path, options, "between pages");
        match delete(&store, page) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(_) if page == 1 => return false,
            Err(_) => page = (page / 4).max(1),
        }
        store.close().unwrap();
    }
}

fn deletes_many_rows(directory: &Path) {
    let (path, options) = (directory.join("store"), small());
    let (_, kept) = full_store(directory, &options);
    let store = open(&path, &options, "all rows");
    let all = delete(&store, usize::MAX);
    println!("all rows in one transaction: {all:?}");
    store.close().unwrap();
    assert!(delete_in_pages(&path, &options), "rows are left");
    let openings = (1..10).find(|_| is_usable(&path, &options));
    assert!(openings.is_some(), "the store is not usable");
    kept.check(&path);
}

fn deletes_from_the_log(directory: &Path) {
    let (path, options) = (directory.join("store"), Store::builder());
    let (_, kept) = full_store(directory, &options);
    let is_empty = delete_in_pages(&path, &options);
    println!("empty: {is_empty}");
    for number in 0..20 {
        open(&path, &options, &format!("opening {number}")).close().unwrap();
    }
    let store = open(&path, &options, "drop");
    store.drop_keyspace("rows").unwrap();
    store.close().unwrap();
    let openings = (1..10).find(|_| {
        open(&path, &options, "after the drop").close().unwrap();
        Store::open(&path).unwrap().keyspace("more").is_ok()
    });
    assert!(openings.is_some(), "the store is not usable");
    kept.check(&path);
}

/// In all they take more of the log than the reserve has.
fn deletes_quickly(directory: &Path) {
    let path = directory.join("store");
    let (_, kept) = full_store(directory, &small());
    let store = open(&path, &small(), "deletions");
    let rows = store.keyspace("rows").unwrap();
    for number in 0..5000_u64 {
        store.transact(|txn| txn.delete(&rows, [&number.to_be_bytes()[..], &[0xff; 100]].concat())).unwrap();
    }
    store.close().unwrap();
    open(&path, &small(), "after the deletions").close().unwrap();
    kept.check(&path);
}

fn opens_and_deletes(directory: &Path, options: &Builder) {
    let path = directory.join("store");
    let (_, kept) = full_store(directory, options);
    for number in 0..300 {
        let store = open(&path, options, &format!("opening {number}"));
        if number % 10 == 0 {
            delete(&store, 5).unwrap();
        }
        store.close().unwrap_or_else(|error| panic!("closing {number}: {error}"));
    }
    kept.check(&path);
}

fn opens_between_deletions(directory: &Path) {
    opens_and_deletes(directory, &small());
}

fn opens_with_a_long_log(directory: &Path) {
    opens_and_deletes(directory, &Store::builder());
}

fn large_transaction(directory: &Path) {
    let path = directory.join("store");
    let (rows, kept) = full_store(directory, &small());
    let store = open(&path, &small().large_transaction_bytes(1000), "large");
    let deleted = delete(&store, usize::MAX);
    println!("all rows in a large transaction: {deleted:?}");
    if deleted.is_err() {
        store.close().unwrap();
        rows.check(&path);
    } else {
        store.close().unwrap();
    }
    let store = open(&path, &small(), "drop");
    store.drop_keyspace("rows").unwrap();
    store.close().unwrap();
    let openings = (1..10).find(|_| {
        let store = open(&path, &small(), "after the drop");
        let is_usable = store.keyspace("more").is_ok();
        store.close().unwrap();
        is_usable
    });
    assert!(openings.is_some(), "the store is not usable");
    kept.check(&path);
}

fn collects_garbage(directory: &Path) {
    let path = directory.join("store");
    let (_, kept) = full_store(directory, &small());
    let store = open(&path, &small(), "deletions");
    let deleted = delete(&store, 1000).unwrap() as u64;
    let started = Instant::now();
    while store.stats().gc_tombstones < deleted {
        assert!(store.status().failure.is_none(), "the store has failed: {:?}", store.status().failure);
        assert!(started.elapsed() < Duration::from_secs(60), "{} tombstones", store.stats().gc_tombstones);
        std::thread::sleep(Duration::from_millis(10));
    }
    store.close().unwrap();
    open(&path, &small(), "after GC").close().unwrap();
    kept.check(&path);
}

/// The log has more segments than an opening leaves unflushed, and the reserve is whole.
fn opens_without_flush(directory: &Path) {
    let path = directory.join("store");
    let mut rows = Acknowledged::default();
    for _ in 0..18 {
        let store = Store::open(&path).unwrap();
        rows.write(&store, scattered, 150).unwrap();
        store.close().unwrap();
    }
    let room = directory.join("room");
    fs::write(&room, vec![1; 1200 << 10]).unwrap();
    fill_with_ballast(directory);
    fs::remove_file(room).unwrap();
    for number in 0..10 {
        open(&path, &Store::builder(), &format!("opening {number}")).close().unwrap();
    }
    rows.check(&path);
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}

/// The same full store, on a disk with more free space each time.
fn sweep(directory: &Path) {
    let path = directory.join("store");
    full_store(directory, &small());
    let outside = tempfile::tempdir().unwrap();
    let original = outside.path().join("store");
    copy(&path, &original);
    for free in (0..24_u64).map(|step| step * (128 << 10)) {
        let when = format!("{free} bytes free");
        fs::remove_dir_all(&path).unwrap();
        fs::remove_file(directory.join("ballast")).unwrap();
        copy(&original, &path);
        let room = directory.join("room");
        if fs::write(&room, vec![1; free as usize]).is_err() {
            break;
        }
        fill_with_ballast(directory);
        fs::remove_file(room).unwrap();
        let store = open(&path, &small(), &when);
        let some = delete(&store, 100).unwrap_or_else(|error| panic!("{when}: {error}"));
        let all = delete(&store, usize::MAX).map_err(|_| "refused");
        println!("{when}: {some} rows, then all: {all:?}");
        store.close().unwrap_or_else(|error| panic!("{when}: {error}"));
        open(&path, &small(), &when).close().unwrap();
    }
}
