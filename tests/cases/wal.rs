//! Two segments of the log: the older one loses its unsynced tail exactly at a frame border, while
//! the newer one is whole. Recovery must not leave a hole.
//!
//! Public issues: facebook/rocksdb #10185, #10560, #13169.

use std::fs;
use std::path::Path;

use percolite::{CommitProtocol, Durability, ErrorKind, Store, TxnOptions};

use crate::directories::{copy_directory, frames, segments};
use crate::environment::Environment;

pub fn an_older_segment_cut_at_a_frame_leaves_no_hole(environment: &Environment) {
    let builder = || environment.builder().write_buffer_bytes(1 << 20).durability(Durability::Buffered);
    let store = environment.open_with(builder());
    let rows = &store.rows;
    let mut written = 0_u64;
    let write = |number: u64| {
        let options = TxnOptions::default().commit_protocol(CommitProtocol::TwoPhase);
        store.store.transact_with(options, |txn| txn.put(rows, "filler", vec![number as u8; 3 << 10])).unwrap();
        store.put(&format!("k{number:06}"), number.to_string());
    };
    // Copies the store until a copy needs two segments: the older one, which is not flushed yet,
    // and the next one, which is being written. A flush may end between the copies of the log and
    // of the tables. Then the older segment is not needed, and another copy is made.
    let (copy, older) = loop {
        assert!(written < 20_000, "no two segments with frames");
        write(written);
        written += 1;
        let copy = tempfile::tempdir().unwrap();
        if segments(environment.directory()).len() < 2 {
            continue;
        }
        copy_directory(environment.directory(), copy.path());
        let filled = |path: &Path| !frames(&fs::read(path).unwrap()).is_empty();
        let mut filled: Vec<_> = segments(copy.path()).into_iter().filter(|path| filled(path)).collect();
        if let (Some(_), Some(older)) = (filled.pop(), filled.pop()) {
            let older = older.strip_prefix(copy.path()).unwrap().to_owned();
            let (first, _) = frames(&fs::read(copy.path().join(&older)).unwrap())[0];
            if rows_after(copy.path(), &older, first, &builder) != Some(written) {
                break (copy, older);
            }
        }
    };
    drop(store);
    let older = older.as_path();
    let whole = fs::read(copy.path().join(older)).unwrap();
    let borders: Vec<usize> = frames(&whole).iter().map(|(at, _)| *at).collect();
    assert!(borders.len() > 20, "{} frames", borders.len());

    // Without a cut every row is there.
    assert_eq!(rows_after(copy.path(), older, whole.len(), &builder), Some(written));
    let mut dice = environment.dice();
    let last = borders.len() - 1;
    let cuts = (last - 8..last).chain((0..6).map(|_| dice.below(last as u64) as usize));
    for cut in cuts {
        // Without a durability proof of the frames that were cut off, the cut is a torn tail.
        let found = rows_after(copy.path(), older, borders[cut], &builder);
        assert!(found.is_none_or(|found| found < written), "a cut log lost no row");
    }
}

/// Opens a copy in which a segment ends early. Returns the number of rows, which are consecutive
/// from the first one; or `None` if the store refuses to open because acknowledged commits are
/// lost.
fn rows_after(directory: &Path, log: &Path, length: usize, builder: &dyn Fn() -> percolite::Builder) -> Option<u64> {
    let copy = tempfile::tempdir().unwrap();
    copy_directory(directory, copy.path());
    fs::OpenOptions::new().write(true).open(copy.path().join(log)).unwrap().set_len(length as u64).unwrap();
    let store: Store = match builder().open(copy.path()) {
        Ok(store) => store,
        Err(error) => {
            assert!(matches!(error.kind(), ErrorKind::Corruption(_)), "{error}");
            return None;
        }
    };
    let rows = store.keyspace("rows").unwrap();
    let snapshot = store.snapshot().unwrap();
    let mut found = 0;
    for row in snapshot.prefix(&rows, "k") {
        let row = row.unwrap();
        assert_eq!(row.key(), format!("k{found:06}").as_bytes(), "a hole before this row, cut at {length} of {log:?}");
        assert_eq!(row.value(), found.to_string().as_bytes());
        found += 1;
    }
    Some(found)
}
