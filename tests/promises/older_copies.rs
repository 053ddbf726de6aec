//! A closed store of which a part, or all, was replaced by an older copy of itself.

use std::fs;
use std::path::{Path, PathBuf};

use percolite::{Builder, ErrorKind, Store};

use crate::directories::copy_directory;

/// Rows at the time of the older copy, and later.
const OLD: u32 = 150;
const NEW: u32 = 250;

fn small() -> Builder {
    Store::builder().block_cache_bytes(1 << 20).write_buffer_bytes(4 << 20)
}

/// Commits rows up to a number, and closes the store. After `flush_after` rows all is flushed, as a
/// checkpoint does.
fn fill(path: &Path, upto: u32, flush_after: Option<u32>) {
    let store = small().open(path).expect("the store opens");
    let rows = store.keyspace("rows").expect("the keyspace is there");
    for number in count(&store)..upto {
        if Some(number) == flush_after {
            let copy = path.with_extension("copy");
            store.checkpoint(&copy).expect("a checkpoint is made");
            fs::remove_dir_all(copy).expect("the checkpoint is removed");
        }
        store.transact(|txn| txn.put(&rows, number.to_be_bytes(), vec![7; 100])).expect("a row is committed");
    }
    store.close().expect("the store closes");
}

/// The number of rows, which must be the first ones.
fn count(store: &Store) -> u32 {
    let rows = store.keyspace("rows").expect("the keyspace is there");
    let keys =
        store.snapshot().expect("a snapshot opens").range(&rows, ..).keys().collect::<percolite::Result<Vec<_>>>();
    let keys = keys.expect("all keys can be read");
    let found = keys.len() as u32;
    assert!(keys.into_iter().eq((0..found).map(|number| number.to_be_bytes().to_vec())), "the rows are no prefix");
    found
}

/// Replaces a file or a directory.
fn replace(from: &Path, to: &Path) {
    if from.is_dir() {
        fs::remove_dir_all(to).expect("the newer part is removed");
        copy_directory(from, to);
    } else {
        fs::copy(from, to).map(drop).expect("the older part is copied");
    }
}

/// What an opening finds if these parts are older: the number of rows, or `None` if it refuses.
fn opened(older: &Path, newer: &Path, parts: &[&str]) -> Option<u32> {
    let place = tempfile::tempdir().expect("there is a temporary directory");
    let store = place.path().join("store");
    copy_directory(newer, &store);
    parts.iter().for_each(|part| replace(&older.join(part), &store.join(part)));
    let found = [true, false].map(|read_only| match small().read_only(read_only).open(&store) {
        Ok(store) => Some(count(&store)),
        Err(error) if matches!(error.kind(), ErrorKind::Corruption(_)) => None,
        Err(error) => panic!("{parts:?} older, read-only {read_only}: {error}"),
    });
    assert_eq!(found[0], found[1], "{parts:?} older: read-only, and for writing");
    found[1]
}

fn older_and_newer(place: &Path, flush_after: Option<u32>) -> [PathBuf; 2] {
    let [older, newer] = ["older", "newer"].map(|name| place.join(name));
    fill(&newer, OLD, Some(OLD / 2));
    copy_directory(&newer, &older);
    fill(&newer, NEW, flush_after);
    [older, newer]
}

const MARKER: &str = "PERCOLITE";

/// A flush between the two copies leaves neither part complete without the other of its time.
#[test]
fn an_older_log_or_older_tables_are_refused_after_a_flush() {
    let place = tempfile::tempdir().expect("there is a temporary directory");
    let [older, newer] = older_and_newer(place.path(), Some(OLD + 50));
    assert_eq!(opened(&older, &newer, &["wal"]), None, "the tables have more than the log");
    assert_eq!(opened(&older, &newer, &["tables"]), None, "the log begins after the tables end");
    assert_eq!(opened(&older, &newer, &[MARKER]), Some(NEW), "the marker never changes");
}

/// Without a flush the log has all that the tables lack, of both times.
#[test]
fn older_tables_lose_nothing_that_the_log_still_has() {
    let place = tempfile::tempdir().expect("there is a temporary directory");
    let [older, newer] = older_and_newer(place.path(), None);
    assert_eq!(opened(&older, &newer, &["tables"]), Some(NEW), "the log has what was committed since");
}

/// Nothing in the directory is newer than what was lost: `docs/wal.md` lists both.
#[test]
fn an_older_copy_that_is_whole_opens_as_it_was() {
    let place = tempfile::tempdir().expect("there is a temporary directory");
    let [older, newer] = older_and_newer(place.path(), Some(OLD + 50));
    assert_eq!(opened(&older, &newer, &["wal", "tables", MARKER]), Some(OLD), "the whole store is older");
    let unflushed = tempfile::tempdir().expect("there is a temporary directory");
    let [older, newer] = older_and_newer(unflushed.path(), None);
    assert_eq!(opened(&older, &newer, &["wal"]), Some(OLD), "the whole log is older, and the tables are the same");
}
