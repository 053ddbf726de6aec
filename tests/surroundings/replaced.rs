//! The directory of an open store, or a file in it, is renamed, replaced, removed or covered.

use std::fs;
use std::path::Path;
use std::process::Command;

use percolite::{Durability, ErrorKind, Keyspace, Store};

use crate::rows::{append, append_until_error, assert_rows, create, put, small};
use crate::{Scenario, as_root, run_helper, scenario, unix};

pub const SCENARIOS: &[Scenario] = &[
    scenario("the_directory_is_renamed", renamed),
    scenario("the_directory_is_replaced_by_another_store", replaced_by_another),
    scenario("the_directory_above_is_replaced", parent_replaced),
    scenario("the_tables_or_the_log_are_replaced", parts_replaced),
    scenario("the_tables_or_the_log_are_moved_away_and_copied_back", parts_copied_back),
    scenario("the_directory_is_removed", removed),
    scenario("the_directory_is_removed_and_created_anew", removed_and_created),
    scenario("the_marker_is_removed", marker_removed),
    scenario("the_marker_is_replaced", marker_replaced),
    scenario("the_segment_is_removed", segment_removed),
    scenario("an_older_segment_is_removed_or_truncated", older_segment_lost),
    scenario("the_segment_is_truncated", segment_truncated),
    scenario("a_table_is_removed", table_removed),
    scenario("the_status_file_is_removed_or_replaced", status_replaced),
    as_root("another_file_system_is_mounted_over", mounted_over),
    as_root("the_root_directory_changes", root_changed),
];

fn open(path: &Path) -> (Store, Keyspace) {
    let store = small().open(path).unwrap();
    let rows = store.keyspace("rows").unwrap();
    (store, rows)
}

/// Enough rows for several flushes and a compaction.
const MANY: u64 = 12_000;

fn renamed(place: &Path) {
    let (old, new) = (place.join("old"), place.join("new"));
    create(&old, 10);
    let (store, rows) = open(&old);
    fs::rename(&old, &new).unwrap();
    append(&store, &rows, 10..MANY).unwrap();
    store.checkpoint(place.join("copy")).unwrap();
    let error = small().open(&new).map(drop).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::AlreadyOpen(_)), "{error}");
    store.close().unwrap();
    drop(rows);
    assert!(!old.exists());
    assert_rows(&new, MANY);
    assert_rows(&place.join("copy"), MANY);
}

fn replaced_by_another(place: &Path) {
    let (path, moved, other) = (place.join("store"), place.join("moved"), place.join("other"));
    create(&path, 10);
    // The other store has files of the same names.
    create(&other, MANY);
    let (store, rows) = open(&path);
    fs::rename(&path, &moved).unwrap();
    fs::rename(&other, &path).unwrap();
    append(&store, &rows, 10..MANY).unwrap();
    store.close().unwrap();
    assert_rows(&path, MANY);
    assert_rows(&moved, MANY);
}

fn parent_replaced(place: &Path) {
    create(&place.join("a/store"), 10);
    create(&place.join("b/store"), MANY);
    let (store, rows) = open(&place.join("a/store"));
    fs::rename(place.join("a"), place.join("c")).unwrap();
    fs::rename(place.join("b"), place.join("a")).unwrap();
    append(&store, &rows, 10..MANY).unwrap();
    store.close().unwrap();
    assert_rows(&place.join("a/store"), MANY);
    assert_rows(&place.join("c/store"), MANY);
}

fn parts_replaced(place: &Path) {
    for part in ["tables", "wal"] {
        let (own, other) = (place.join(part).join("own"), place.join(part).join("other"));
        create(&own, 10);
        create(&other, MANY);
        let (store, rows) = open(&own);
        fs::rename(own.join(part), own.join("aside")).unwrap();
        fs::rename(other.join(part), own.join(part)).unwrap();
        assert_fails(store, &rows, &format!("directory {part} was removed or replaced"));
        drop(rows);
        fs::rename(own.join(part), other.join(part)).unwrap();
        fs::rename(own.join("aside"), own.join(part)).unwrap();
        assert_rows(&other, MANY);
        assert_rows(&own, 10);
    }
}

/// What was written to the directory that was moved away would not be found in its copy. The copy
/// has no lock, so another process could open the store.
fn parts_copied_back(place: &Path) {
    for part in ["tables", "wal"] {
        let path = place.join(part);
        create(&path, 10);
        let (store, rows) = open(&path);
        append(&store, &rows, 10..20).unwrap();
        fs::rename(path.join(part), path.join("aside")).unwrap();
        let copied = Command::new("cp").arg("-a").arg(path.join("aside")).arg(path.join(part)).status().unwrap();
        assert!(copied.success());
        until_names_are_looked_at();
        let (number, error) = append_until_error(&store, &rows, 20);
        assert_eq!(number, 20, "{error}");
        assert!(error.to_string().contains(&format!("directory {part} was removed or replaced")), "{error}");
        store.close().unwrap_err();
        drop(rows);
        assert_rows(&path, 20);
    }
}

/// Names are looked at 10 ms after the last look, as docs/operations.md says.
fn until_names_are_looked_at() {
    std::thread::sleep(std::time::Duration::from_millis(20));
}

/// A commit that finds its log removed is not acknowledged.
fn assert_fails(store: Store, rows: &Keyspace, what: &str) {
    until_names_are_looked_at();
    let error = put(&store, rows, 10, Durability::Sync).unwrap_err();
    // `Closed` if a sync in the background has found it first.
    assert!(matches!(error.kind(), ErrorKind::Undetermined(_) | ErrorKind::Closed(_)), "{error}");
    assert!(error.to_string().contains(what), "{error}");
    let error = put(&store, rows, 11, Durability::Buffered).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Closed(_)), "{error}");
    store.close().unwrap_err();
}

/// Removes the directory, in which the store may create a file meanwhile.
fn remove(path: &Path) {
    while path.exists() {
        let _ = fs::remove_dir_all(path);
    }
}

fn removed(place: &Path) {
    let path = place.join("store");
    create(&path, 10);
    let (store, rows) = open(&path);
    remove(&path);
    assert_fails(store, &rows, "");
    assert!(!path.exists());
}

fn removed_and_created(place: &Path) {
    let path = place.join("store");
    create(&path, 10);
    let (store, rows) = open(&path);
    remove(&path);
    create(&path, 100);
    until_names_are_looked_at();
    let (number, _) = append_until_error(&store, &rows, 10);
    assert_eq!(number, 10);
    store.close().unwrap_err();
    drop(rows);
    assert_rows(&path, 100);
}

fn marker_removed(place: &Path) {
    let path = place.join("store");
    create(&path, 10);
    let (store, rows) = open(&path);
    let marker = fs::read(path.join("PERCOLITE")).unwrap();
    fs::remove_file(path.join("PERCOLITE")).unwrap();
    let error = small().open(&path).map(drop).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::UnrecognizedFormat(_)), "{error}");
    assert_fails(store, &rows, "marker");
    drop(rows);
    fs::write(path.join("PERCOLITE"), marker).unwrap();
    assert_rows(&path, 10);
}

/// A copy of the marker is not locked: another process could open the store for writing.
fn marker_replaced(place: &Path) {
    let path = place.join("store");
    create(&path, 10);
    let (store, rows) = open(&path);
    fs::copy(path.join("PERCOLITE"), path.join("copy")).unwrap();
    fs::rename(path.join("copy"), path.join("PERCOLITE")).unwrap();
    assert_fails(store, &rows, "marker");
    drop(rows);
    assert_rows(&path, 10);
}

fn segment_removed(place: &Path) {
    for replace in [false, true] {
        let path = place.join(format!("store {replace}"));
        create(&path, 10);
        let (store, rows) = open(&path);
        for entry in fs::read_dir(path.join("wal")).unwrap() {
            let segment = entry.unwrap().path();
            let copy = path.join("copy");
            fs::copy(&segment, &copy).unwrap();
            fs::remove_file(&segment).unwrap();
            if replace {
                fs::rename(copy, segment).unwrap();
            }
        }
        assert_fails(store, &rows, "removed or replaced");
        drop(rows);
        if replace {
            assert_rows(&path, 10);
        }
    }
}

/// An older segment, which only a recovery would read.
fn older_segment_lost(place: &Path) {
    let path = place.join("store");
    create(&path, 10);
    let segments = || {
        let mut found: Vec<_> = fs::read_dir(path.join("wal")).unwrap().map(|entry| entry.unwrap().path()).collect();
        found.retain(|file| file.extension().is_some_and(|end| end == "segment"));
        found.sort();
        found
    };
    for what in ["removed", "truncated"] {
        let (store, rows) = open(&path);
        append(&store, &rows, 10..11).unwrap();
        let oldest = segments().swap_remove(0);
        assert!(segments().len() > 1, "{:?}", segments());
        fs::rename(&oldest, place.join("aside")).unwrap();
        if what == "truncated" {
            fs::write(&oldest, "short").unwrap();
        }
        assert_fails(store, &rows, &format!("was {what} while the store was open"));
        drop(rows);
        fs::rename(place.join("aside"), oldest).unwrap();
    }
    assert_rows(&path, 11);
}

/// A frame that is written behind the new end of the file would follow zeros. A long one makes the
/// file as long as it was.
fn segment_truncated(place: &Path) {
    for (left, value_bytes) in [(0, 1), (100, 1), (0, 300_000), (20_000, 700_000)] {
        let path = place.join(format!("store {left} {value_bytes}"));
        create(&path, 10);
        let (store, rows) = open(&path);
        append(&store, &rows, 10..20).unwrap();
        for entry in fs::read_dir(path.join("wal")).unwrap() {
            let file = entry.unwrap().path();
            if file.extension().is_some_and(|end| end == "segment") {
                fs::OpenOptions::new().write(true).open(file).unwrap().set_len(left).unwrap();
            }
        }
        until_names_are_looked_at();
        let error = store.transact(|txn| txn.put(&rows, "large", vec![b'x'; value_bytes])).unwrap_err();
        // `Closed` if a sync in the background has found it first.
        assert!(matches!(error.kind(), ErrorKind::Undetermined(_) | ErrorKind::Closed(_)), "{error}");
        assert!(error.to_string().contains("truncated while it was open"), "{error}");
        store.close().unwrap_err();
        drop(rows);
        // The rows of the removed frames are gone, and that is an error.
        let error = small().open(&path).map(drop).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Corruption(_)), "{error:?}");
    }
}

/// What is acknowledged stays readable, or there is an error: never a wrong answer.
fn table_removed(place: &Path) {
    let path = place.join("store");
    create(&path, MANY);
    let (store, rows) = open(&path);
    let is_table = |path: &Path| path.extension().is_some_and(|end| end == "sst");
    let mut removed = 0;
    for entry in fs::read_dir(path.join("tables")).unwrap() {
        let file = entry.unwrap().path();
        if is_table(&file) {
            fs::remove_file(file).unwrap();
            removed += 1;
        }
    }
    assert!(removed > 0);
    // An error, or every row.
    let read: Result<Vec<_>, _> = store.range(&rows, ..).unwrap().collect();
    assert!(read.is_err() || read.unwrap().len() as u64 == MANY);
    let appended = append(&store, &rows, MANY..2 * MANY).is_ok();
    let _ = store.close();
    drop(rows);
    match small().open(&path) {
        Err(error) => assert!(matches!(error.kind(), ErrorKind::Corruption(_)), "{error}"),
        // A compaction has read the removed tables, which were still open, and written them anew.
        Ok(store) => {
            let rows = store.keyspace("rows").unwrap();
            let read = store.range(&rows, ..).unwrap().collect::<Result<Vec<_>, _>>().unwrap().len() as u64;
            assert!(read == 2 * MANY || !appended && read >= MANY, "{read} rows, appended: {appended}");
        }
    }
}

fn status_replaced(place: &Path) {
    let path = place.join("store");
    create(&path, 10);
    let store = small().status_file_interval(std::time::Duration::from_millis(50)).open(&path).unwrap();
    let rows = store.keyspace("rows").unwrap();
    for number in 10..200 {
        let status = path.join("STATUS");
        let _ = match number % 3 {
            0 => fs::remove_file(status),
            1 => fs::write(status, "no status"),
            _ => fs::remove_file(&status).and_then(|()| fs::create_dir(&status)).and_then(|()| fs::remove_dir(&status)),
        };
        append(&store, &rows, number..number + 1).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(3));
    }
    store.close().unwrap();
    assert_rows(&path, 200);
}

fn mounted_over(place: &Path) {
    let (above, path) = (place.join("above"), place.join("above/store"));
    create(&path, 10);
    let (store, rows) = open(&path);
    if let Err(error) = unix::mount_over(&above) {
        panic!("this test must mount a file system: {error}");
    }
    assert!(!path.exists());
    create(&path, 100);
    append(&store, &rows, 10..MANY).unwrap();
    store.checkpoint(place.join("copy")).unwrap();
    store.close().unwrap();
    assert_rows(&path, 100);
    assert_rows(&place.join("copy"), MANY);
}

/// Without `/proc` below the new root no file can be created: an error, and nothing is lost.
fn root_changed(place: &Path) {
    let (path, root) = (place.join("store"), place.join("root"));
    let other = root.join(path.strip_prefix("/").unwrap());
    create(&path, 10);
    create(&other, 100);
    let ended = run_helper("in_another_root", place);
    let number: u64 = ended.lines().last().unwrap().parse().unwrap();
    assert!(number > 10);
    assert_rows(&other, 100);
    assert_rows(&path, number);
}

fn in_another_root(place: &Path) {
    let (store, rows) = open(&place.join("store"));
    std::os::unix::fs::chroot(place.join("root")).unwrap();
    std::env::set_current_dir("/").unwrap();
    let (number, error) = append_until_error(&store, &rows, 10);
    assert!(matches!(error.kind(), ErrorKind::Undetermined(_) | ErrorKind::Closed(_)), "{error}");
    store.close().unwrap_err();
    println!("{number}");
}

pub const HELPERS: &[Scenario] = &[scenario("in_another_root", in_another_root)];
