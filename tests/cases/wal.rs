//! RocksDB's log files: the older one loses its unsynced tail exactly at a record border, the newer one is whole.
//!
//! facebook/rocksdb #10185, #10560, #13169

use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use percolite::{CommitProtocol, Durability, Store, TxnOptions};

use crate::world::World;

const BLOCK: usize = 32 << 10;
const HEADER: usize = 7;
/// A record that ends here: whole, or the last part of one.
const ENDS: [u8; 2] = [1, 4];
/// What begins a log since logs are verified: a note on the one before.
const NOTE: u8 = 130;

pub fn an_older_log_cut_at_a_record_leaves_no_hole(world: &World) {
    let builder = || world.builder().write_buffer_bytes(4 << 20).durability(Durability::Buffered);
    let store = world.open_with(builder());
    let rows = &store.rows;
    let mut written = 0_u64;
    // Small rows are what the logs are about. The long values beside them fill another column family until it is
    // flushed: that begins a new log, and of the small rows nothing is in a file yet.
    let write = |number: u64| {
        let options = TxnOptions { protocol: Some(CommitProtocol::TwoPhase), ..TxnOptions::default() };
        store.store.transact_with(options, |txn| txn.put(rows, "filler", vec![number as u8; 30 << 10])).unwrap();
        store.put(&format!("k{number:06}"), number.to_string());
    };
    // As a power cut right behind the switch leaves it: the table that the switch is for is not there yet. The older log is held
    // open, since RocksDB removes it once that table is written.
    let copy = tempfile::tempdir().unwrap();
    copy_folder(world.folder(), copy.path());
    let newest = || logs(world.folder()).pop().unwrap();
    let older = newest();
    let mut held = fs::File::open(world.folder().join(&older)).unwrap();
    while newest() == older {
        assert!(written < 2000, "no second log");
        write(written);
        written += 1;
    }
    for _ in 0..10 {
        write(written);
        written += 1;
    }
    let newer = newest();
    fs::copy(world.folder().join(&newer), copy.path().join(&newer)).unwrap();
    let mut whole = Vec::new();
    held.read_to_end(&mut whole).unwrap();
    fs::write(copy.path().join(&older), &whole).unwrap();
    assert!(fs::metadata(copy.path().join(newer)).unwrap().len() > 1000, "the newer log is empty");
    let borders = record_borders(&whole);
    assert!(borders.len() > 20, "{} records", borders.len());
    drop(store);

    // Nothing cut: everything is there.
    assert_eq!(rows_after(copy.path(), &older, whole.len(), &builder), Some(written));
    let (mut prefixes, mut refusals) = (0, 0);
    let mut dice = world.dice();
    let last = borders.len() - 1;
    let cuts = (last - 8..last).chain((0..6).map(|_| dice.below(last as u64) as usize));
    for cut in cuts {
        match rows_after(copy.path(), &older, borders[cut], &builder) {
            Some(found) => {
                assert!(found < written, "a cut log lost nothing");
                prefixes += 1;
            }
            None => refusals += 1,
        }
    }
    assert_eq!(prefixes + refusals, 14);
}

/// Opens a copy in which a log ends early. The answer is how many rows there are, all of them from the first one on; or
/// nothing, when the store refuses to open.
fn rows_after(folder: &Path, log: &Path, length: usize, builder: &dyn Fn() -> percolite::Builder) -> Option<u64> {
    let copy = tempfile::tempdir().unwrap();
    copy_folder(folder, copy.path());
    fs::OpenOptions::new().write(true).open(copy.path().join(log)).unwrap().set_len(length as u64).unwrap();
    let store: Store = builder().open(copy.path()).ok()?;
    let rows = store.keyspace("rows").unwrap();
    let snapshot = store.snapshot().unwrap();
    let mut found = 0;
    for row in snapshot.prefix(&rows, "k") {
        let (key, value) = row.unwrap();
        assert_eq!(key, format!("k{found:06}").into_bytes(), "a hole before this row, cut at {length} of {log:?}");
        assert_eq!(value, found.to_string().into_bytes());
        found += 1;
    }
    Some(found)
}

/// The log files, oldest first.
fn logs(folder: &Path) -> Vec<PathBuf> {
    let names = fs::read_dir(folder).unwrap().map(|entry| PathBuf::from(entry.unwrap().file_name()));
    let mut logs: Vec<PathBuf> = names.filter(|name| name.extension().is_some_and(|ext| ext == "log")).collect();
    logs.sort();
    logs
}

fn copy_folder(from: &Path, to: &Path) {
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        if entry.file_type().unwrap().is_file() {
            fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
        }
    }
}

/// Where a record ends: checksum (4 bytes), length (2), type (1), then the content; blocks are filled with zeros.
fn record_borders(log: &[u8]) -> Vec<usize> {
    let (mut at, mut borders) = (0, Vec::new());
    while at + HEADER <= log.len() {
        let left = BLOCK - at % BLOCK;
        if left < HEADER {
            at += left;
            continue;
        }
        let length = usize::from(u16::from_le_bytes([log[at + 4], log[at + 5]]));
        let sort = log[at + 6];
        if sort == 0 && length == 0 {
            break;
        }
        at += HEADER + length;
        if ENDS.contains(&sort) && at <= log.len() {
            borders.push(at);
        } else {
            assert!(matches!(sort, 2 | 3 | NOTE), "a record of sort {sort} at {at}");
        }
    }
    borders
}
