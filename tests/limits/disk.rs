//! A full disk.

use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use percolite::{Builder, Error, ErrorKind, SpaceLeft, Store};

use crate::rows::{Acknowledged, scattered, small};
use crate::{Limit, Scenario};

pub const fn small_disk(name: &'static str, run: fn(&Path)) -> Scenario {
    Scenario { name, limit: Limit::DiskKib(10 << 10), run }
}

pub const SCENARIOS: &[Scenario] = &[
    small_disk("commits and close end on a full disk", commits_and_close_end),
    small_disk("a full disk is left by a truncation", left_by_truncation),
    small_disk("a full disk is left by dropping what only the log has", left_by_drop),
    small_disk("a full disk is left by deletions", left_by_deletions),
    small_disk("a full disk is left when there is room", left_by_room),
    small_disk("deletions leave space for openings", deletions_leave_space),
    Scenario { name: "a disk without inodes", limit: Limit::Inodes(100), run: without_inodes },
];

/// The compactions of this store run out of space before its flushes do: with scattered keys each
/// rewrites all rows. So level 0 grows.
fn commits_and_close_end(directory: &Path) {
    let path = directory.join("store");
    let mut acknowledged = Acknowledged::default();
    let store = small().open(&path).unwrap();
    let error = acknowledged.fill(&store, scattered);
    assert!(error.to_string().contains("No space left on device"), "{error}");
    let closed = store.close().unwrap_err();
    assert!(closed.to_string().contains("No space left on device"), "{closed}");
    acknowledged.check(&path);
    assert!(acknowledged.keys.len() > 2000, "{} rows were written", acknowledged.keys.len());
}

/// Fills the disk to its last byte with a file.
pub fn fill_with_ballast(directory: &Path) {
    let mut file = File::create(directory.join("ballast")).unwrap();
    for bytes in [1 << 16, 1 << 12, 1] {
        while file.write_all(&vec![1; bytes]).is_ok() {}
    }
}

/// Fills the disk by a store of these options, so that no byte is free. Returns the rows of the
/// keyspaces `rows` and `kept`.
pub fn full_store(directory: &Path, options: &Builder) -> (Acknowledged, Acknowledged) {
    let path = directory.join("store");
    let (mut rows, mut kept) = (Acknowledged::default(), Acknowledged::named("kept"));
    let store = options.clone().open(&path).unwrap();
    kept.write(&store, scattered, 50).unwrap();
    rows.fill(&store, scattered);
    drop(store);
    fill_with_ballast(directory);
    (rows, kept)
}

fn put(store: &Store) -> Result<(), Error> {
    let rows = store.keyspace("rows")?;
    store.transact(|txn| txn.put(&rows, "more", ""))
}

pub fn check_refused(error: &Error, when: &str) {
    let is_named = matches!(error.kind(), ErrorKind::Io(text) if text.contains("until 3 MiB are free"));
    assert!(is_named, "{when}: {error}");
}

/// The store opens although no byte is free, as often as it is tried, and nothing can be put.
fn opens_often(path: &Path, options: &Builder, openings: usize) {
    for number in 0..openings {
        let when = format!("opening {number}");
        let store = options.clone().open(path).unwrap_or_else(|error| panic!("{when}: {error}"));
        let left = store.engine_stats().unwrap().space_left;
        assert_eq!(left, SpaceLeft::ForDeletions, "{when}");
        check_refused(&put(&store).unwrap_err(), &when);
        // A keyspace that exists is opened.
        check_refused(&store.keyspace("more").unwrap_err(), &when);
        check_refused(&store.rename_keyspace("kept", "more").unwrap_err(), &when);
        store.close().unwrap_or_else(|error| panic!("closing {number}: {error}"));
    }
}

pub fn is_usable(path: &Path, options: &Builder) -> bool {
    let store = options.clone().open(path).unwrap();
    let is_usable = put(&store).is_ok();
    store.close().unwrap();
    is_usable
}

fn left_by(directory: &Path, (options, openings): (&Builder, usize), delete: impl Fn(&Store) -> Result<(), Error>) {
    let path = directory.join("store");
    let (rows, kept) = full_store(directory, options);
    opens_often(&path, options, openings);
    rows.check(&path);
    let store = options.clone().open(&path).unwrap();
    delete(&store).unwrap();
    store.close().unwrap();
    let openings = (1..10).find(|_| is_usable(&path, options));
    assert!(openings.is_some_and(|openings| openings <= 2), "the store is usable after {openings:?} openings");
    assert_eq!(allocated(&path.join("RESERVE")), 1 << 20, "the reserve is sparse");
    kept.check(&path);
}

fn allocated(file: &Path) -> u64 {
    file.metadata().unwrap().blocks() * 512
}

fn left_by_truncation(directory: &Path) {
    left_by(directory, (&small(), 100), |store| store.truncate_keyspace("rows").map(drop));
}

fn left_by_drop(directory: &Path) {
    left_by(directory, (&Store::builder(), 300), |store| store.drop_keyspace("rows"));
}

fn left_by_deletions(directory: &Path) {
    left_by(directory, (&small(), 100), |store| {
        while delete_some(store)? > 0 {}
        Ok(())
    });
}

/// Deletes up to 500 rows, and returns their number.
fn delete_some(store: &Store) -> Result<usize, Error> {
    let rows = store.keyspace("rows")?;
    store.transact(|txn| {
        let keys: Vec<_> = txn.range(&rows, ..).keys().take(500).collect::<Result<_, _>>()?;
        keys.iter().try_for_each(|key| txn.delete(&rows, key)).map(|()| keys.len())
    })
}

fn left_by_room(directory: &Path) {
    let (path, room) = (directory.join("store"), directory.join("room"));
    fs::write(&room, vec![1; 3 << 20]).unwrap();
    let (rows, kept) = full_store(directory, &small());
    opens_often(&path, &small(), 100);
    fs::remove_file(directory.join("ballast")).unwrap();
    fs::remove_file(room).unwrap();
    assert!(is_usable(&path, &small()), "the store is not usable");
    rows.check(&path);
    kept.check(&path);
}

/// Deletions of rows that free nothing end with an error, and the store can still be opened and
/// emptied.
fn deletions_leave_space(directory: &Path) {
    let path = directory.join("store");
    let (_, kept) = full_store(directory, &Store::builder());
    let store = Store::open(&path).unwrap();
    let rows = store.keyspace("rows").unwrap();
    // Deletions of rows that do not exist take space and free none.
    let mut number = 0_u64;
    let error = loop {
        let mut delete_one = || {
            number += 1;
            store.transact(|txn| txn.delete(&rows, [&b"missing"[..], &number.to_be_bytes(), &[0; 1000]].concat()))
        };
        if let Err(error) = delete_one() {
            break error;
        }
    };
    check_refused(&error, "deletion");
    assert!(error.to_string().contains("rows cannot be deleted"), "{error}");
    store.close().unwrap();
    let store = Store::open(&path).unwrap();
    store.drop_keyspace("rows").unwrap();
    store.close().unwrap();
    kept.check(&path);
}

/// Neither the log nor the tables get a new file.
fn without_inodes(directory: &Path) {
    let path = directory.join("store");
    let mut acknowledged = Acknowledged::default();
    let store = small().open(&path).unwrap();
    acknowledged.write(&store, scattered, 10).unwrap();
    let ballast = directory.join("ballast");
    fs::create_dir(&ballast).unwrap();
    let full = (0..).find(|number| File::create(ballast.join(format!("{number}"))).is_err()).unwrap();
    let error = acknowledged.fill(&store, scattered);
    assert!(error.to_string().contains("or inodes (df -i)"), "{error}");
    drop(store);
    let error = small().open(&path).unwrap_err();
    assert!(error.to_string().contains("or inodes (df -i)"), "{error}");
    acknowledged.check(&path);
    fs::remove_dir_all(&ballast).unwrap();
    let store = small().open(&path).unwrap();
    acknowledged.write(&store, scattered, 2000).unwrap();
    store.close().unwrap();
    acknowledged.check(&path);
    assert!(full > 10, "{full} other files");
}
