//! A damaged table that background work meets: a compaction reads it, though no client does.
//!
//! RocksDB then refuses all further writes, and the store fails. Nothing is lost by that: what the
//! tables lack is in the log. So the error is damage, and not an undetermined commit.

use std::fs;
use std::path::Path;

use percolite::{Builder, Durability, Error, ErrorKind, Store};

use crate::store_directories::{change, copy_directory, files};

/// More bytes than fit in the memtables, so that tables are written and compacted.
const ROWS: u32 = 40_000;

fn small() -> Builder {
    Store::builder().block_cache_bytes(1 << 20).write_buffer_bytes(4 << 20).durability(Durability::Buffered)
}

/// Writes rows of 1 kB until a commit fails, at most `count`. Returns the number of rows that were
/// committed, and the error.
fn fill(store: &Store, count: u32) -> (u32, Option<Error>) {
    let rows = match store.keyspace("rows") {
        Ok(rows) => rows,
        Err(error) => return (0, Some(error)),
    };
    for number in 0..count {
        let key = number.wrapping_mul(2_654_435_761).to_be_bytes();
        if let Err(error) = store.transact(|txn| txn.put(&rows, key, vec![number as u8; 1000])) {
            return (number, Some(error));
        }
    }
    (count, None)
}

/// Damages one block of each table with rows. New rows make a read of it unlikely, but for
/// compactions.
fn damage_tables(tables: &Path) {
    for entry in fs::read_dir(tables).unwrap() {
        let path = entry.unwrap().path();
        let length = fs::metadata(&path).unwrap().len();
        if path.extension().is_some_and(|extension| extension == "sst") && length > 100_000 {
            let mut bytes = fs::read(&path).unwrap();
            let middle = bytes.len() / 2;
            bytes[middle] ^= 1;
            fs::write(&path, bytes).unwrap();
        }
    }
}

#[test]
fn a_damaged_table_met_by_a_compaction_is_corruption() {
    let directory = tempfile::tempdir().unwrap();
    let store = small().open(directory.path()).unwrap();
    assert!(fill(&store, ROWS / 4).1.is_none());
    store.close().unwrap();
    damage_tables(&directory.path().join("tables"));
    let store = small().open(directory.path()).unwrap();
    let (_, error) = fill(&store, ROWS);
    let first = error.expect("a compaction reads the damaged tables");
    let later = [store.begin().map(drop), store.snapshot().map(drop), store.sync(), store.close()];
    for error in later.into_iter().map(|call| call.expect_err("the store has failed")).chain([first]) {
        assert!(matches!(error.kind(), ErrorKind::Corruption(_)), "{error:?}");
        let text = error.to_string();
        assert!(text.contains("restored from a backup") && text.contains(".sst"), "{text}");
    }
}

/// A writable opening may repair what a power cut can have left, and a read-only one may not.
#[test]
fn a_flipped_bit_in_a_manifest_has_one_kind_in_both_ways_of_opening() {
    let whole = tempfile::tempdir().unwrap();
    let store = small().open(whole.path()).unwrap();
    assert!(fill(&store, 100).1.is_none());
    store.checkpoint(whole.path().join("copy")).unwrap();
    fs::remove_dir_all(whole.path().join("copy")).unwrap();
    store.close().unwrap();
    let manifest = files(whole.path(), "MANIFEST-").pop().unwrap();
    let length = fs::read(&manifest).unwrap().len();
    let name = manifest.file_name().unwrap();
    let mut refusals = 0;
    // A prime step meets headers, checksums and contents of the records.
    for (nth, at) in (0..length).step_by(37).enumerate() {
        let directory = tempfile::tempdir().unwrap();
        copy_directory(whole.path(), directory.path());
        change(&directory.path().join("tables").join(name), |bytes| bytes[at] ^= 1 << (nth % 8));
        let read_only = small().read_only(true).open(directory.path()).map(drop);
        let writable = small().open(directory.path()).map(drop);
        for error in [&read_only, &writable].into_iter().filter_map(|opened| opened.as_ref().err()) {
            assert!(matches!(error.kind(), ErrorKind::Corruption(_)), "byte {at} of {length}: {error}");
            refusals += 1;
        }
        assert!(read_only.is_err() || writable.is_ok(), "byte {at} of {length}: {:?}", writable.err());
    }
    assert!(refusals > 20, "{refusals} openings of {length} damaged bytes were refused");
}
