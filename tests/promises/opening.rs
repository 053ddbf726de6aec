//! Opening a directory that is new, damaged, foreign, unfinished or incomplete.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use percolite::{Builder, Error, ErrorKind, Store};

use crate::directories::{change, copy_directory, files, records_of_manifest, segments, state, tear_manifest};

const MARKER: &str = "PERCOLITE";
const UNFINISHED: &str = "PERCOLITE.new";

fn small() -> Builder {
    Store::builder().block_cache_bytes(1 << 20).write_buffer_bytes(4 << 20)
}

fn refused(path: impl AsRef<Path>) -> Error {
    let Err(error) = small().open(path) else { panic!("the store was opened") };
    error
}

fn listing(path: &Path) -> Vec<(String, Vec<u8>)> {
    let entries = fs::read_dir(path).unwrap().map(Result::unwrap).filter(|entry| entry.path().is_file());
    let mut files: Vec<_> =
        entries.map(|entry| (entry.file_name().into_string().unwrap(), fs::read(entry.path()).unwrap())).collect();
    files.sort();
    files
}

fn fill(path: &Path) {
    let store = small().open(path).unwrap();
    let rows = store.keyspace("rows").unwrap();
    store.transact(|txn| txn.put(&rows, "k", "v")).unwrap();
    store.close().unwrap();
}

#[test]
fn a_marker_without_tables_is_corruption() {
    let directory = tempfile::tempdir().unwrap();
    let store = tempfile::tempdir().unwrap();
    fill(store.path());
    fs::copy(store.path().join(MARKER), directory.path().join(MARKER)).unwrap();
    let before = listing(directory.path());
    let error = refused(directory.path());
    assert!(matches!(error.kind(), ErrorKind::Corruption(_)), "{error}");
    assert!(error.to_string().contains("but no tables"), "{error}");
    assert_eq!(listing(directory.path()), before);
}

#[test]
fn the_marker_has_the_build_tag_and_the_wal_id() {
    let directory = tempfile::tempdir().unwrap();
    fill(directory.path());
    let marker = fs::read_to_string(directory.path().join(MARKER)).unwrap();
    let text = marker.strip_prefix("percolite store, format 1, build ").unwrap().strip_suffix('\n').unwrap();
    let (tag, identity) = text.split_once(", wal ").unwrap();
    assert!(tag.starts_with("0.1.0-dev."), "{marker}");
    assert!(identity.len() == 16 && identity.bytes().all(|byte| b"0123456789abcdef".contains(&byte)), "{marker}");
    // The WAL id is at byte 32 of a segment's header. A preallocated segment has no header yet.
    let identity = u64::from_str_radix(identity, 16).unwrap().to_le_bytes();
    let headers = segments(directory.path()).into_iter().map(|path| fs::read(path).unwrap()[32..40].to_vec());
    let used: Vec<_> = headers.filter(|found| found != &[0; 8]).collect();
    assert!(!used.is_empty() && used.iter().all(|found| *found == identity), "{used:?}");
}

#[test]
fn another_format_is_refused_and_the_store_is_unchanged() {
    let others = [
        ("percolite store, format 2, build 0.1.0-dev.1, wal 0123456789abcdef\n", "format 2"),
        ("percolite store, format 1\n", "an older development build, without a build tag"),
        ("percolite store, format 1, log 0123456789abcdef\n", "an older development build, without a build tag"),
        (
            "percolite store, format 1, build 0.1.0-dev.0, wal 0123456789abcdef\n",
            "another development build, 0.1.0-dev.0",
        ),
    ];
    for (marker, reason) in others {
        let directory = tempfile::tempdir().unwrap();
        fill(directory.path());
        fs::write(directory.path().join(MARKER), marker).unwrap();
        let before = state(directory.path());
        let elsewhere = tempfile::tempdir().unwrap();
        for error in [
            refused(directory.path()),
            small().read_only(true).open(directory.path()).map(drop).unwrap_err(),
            small().repair(directory.path(), elsewhere.path().join("repaired"), |_| ()).unwrap_err(),
        ] {
            assert!(
                matches!(error.kind(), ErrorKind::UnrecognizedFormat(_)) && error.to_string().contains(reason),
                "{error}"
            );
        }
        assert!(state(directory.path()) == before, "{marker}");
    }
}

#[test]
fn a_log_of_another_store_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let (one, other) = (directory.path().join("one"), directory.path().join("other"));
    fill(&one);
    fill(&other);
    fs::remove_dir_all(one.join("wal")).unwrap();
    copy_directory(&other.join("wal"), &one.join("wal"));
    let error = refused(&one);
    assert!(
        matches!(error.kind(), ErrorKind::UnrecognizedFormat(_))
            && error.to_string().contains("belongs to another store"),
        "{error}"
    );
}

#[test]
fn a_store_reopens_while_other_processes_start() {
    let directory = tempfile::tempdir().unwrap();
    fill(directory.path());
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let starter = || {
            while !done.load(std::sync::atomic::Ordering::Relaxed) {
                std::process::Command::new("true").status().unwrap();
            }
        };
        scope.spawn(starter);
        scope.spawn(starter);
        for _ in 0..40 {
            let opened = small().open(directory.path()).map(drop);
            if opened.is_err() {
                done.store(true, std::sync::atomic::Ordering::Relaxed);
            }
            opened.unwrap();
        }
        done.store(true, std::sync::atomic::Ordering::Relaxed);
    });
}

#[test]
fn a_store_without_its_log_directory_is_corruption() {
    for replaced in [false, true] {
        let directory = tempfile::tempdir().unwrap();
        fill(directory.path());
        let wal = directory.path().join("wal");
        fs::remove_dir_all(&wal).unwrap();
        if replaced {
            fs::write(&wal, "a file").unwrap();
        }
        for read_only in [false, true] {
            let error = small().read_only(read_only).open(directory.path()).map(drop).unwrap_err();
            assert!(matches!(error.kind(), ErrorKind::Corruption(_)), "{error}");
            let wal = wal.display().to_string();
            assert!(
                [&wal, "percolite repair ", "backup"].iter().all(|part| error.to_string().contains(part)),
                "{error}"
            );
        }
    }
}

#[test]
fn an_error_of_the_log_names_the_call_and_the_path() {
    let directory = tempfile::tempdir().unwrap();
    fill(directory.path());
    let segment = segments(directory.path()).remove(0);
    fs::remove_file(&segment).unwrap();
    fs::create_dir(&segment).unwrap();
    for read_only in [false, true] {
        let error = small().read_only(read_only).open(directory.path()).map(drop).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Io(_)), "{error}");
        let text = error.to_string();
        assert!(text.contains(&format!("cannot open {}: it is a directory", segment.display())), "{text}");
        assert!(text.contains("move it away"), "{text}");
    }
}

#[test]
fn a_store_with_missing_files_is_not_opened_as_empty() {
    for lost in ["CURRENT", "MANIFEST-"] {
        let directory = tempfile::tempdir().unwrap();
        fill(directory.path());
        for file in files(directory.path(), lost) {
            fs::remove_file(file).unwrap();
        }
        let error = refused(directory.path());
        assert!(matches!(error.kind(), ErrorKind::Corruption(_) | ErrorKind::Io(_)), "{lost}: {error}");
    }
}

#[test]
fn a_torn_last_manifest_record_is_dropped() {
    let directory = tempfile::tempdir().unwrap();
    for _ in 0..2 {
        fill(directory.path());
    }
    tear_manifest(directory.path());
    let torn = state(directory.path());
    let error = small().read_only(true).open(directory.path()).map(drop).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Corruption(_)) && error.to_string().contains("a power cut"), "{error}");
    assert_eq!(state(directory.path()), torn, "a read-only open changed the directory");

    let store = small().open(directory.path()).unwrap();
    let rows = store.keyspace("rows").unwrap();
    assert_eq!(store.snapshot().unwrap().get(&rows, "k").unwrap().as_deref(), Some(&b"v"[..]));
    assert!(store.verify(|_| ()).unwrap().is_ok());
    store.close().unwrap();
    assert!(!directory.path().join("tables.torn").exists());
}

/// If RocksDB read a damaged manifest only up to the damage, it would have an older manifest, and
/// would delete every table that the older manifest does not name.
#[test]
fn a_damaged_manifest_record_deletes_no_table() {
    let whole = tempfile::tempdir().unwrap();
    fill(whole.path());
    let store = small().open(whole.path()).unwrap();
    let rows = store.keyspace("rows").unwrap();
    store.transact(|txn| txn.put(&rows, "k", "in tables alone")).unwrap();
    store.checkpoint(whole.path().join("copy")).unwrap();
    fs::remove_dir_all(whole.path().join("copy")).unwrap();
    store.close().unwrap();
    let value = |store: &Store| {
        let rows = store.existing_keyspace("rows").unwrap();
        store.get(&rows, "k").unwrap()
    };
    let mut refusals = 0;
    for back in 1..=10 {
        let (directory, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        copy_directory(whole.path(), directory.path());
        let tables = || files(directory.path(), ".sst").len();
        let before = tables();
        change(&files(directory.path(), "MANIFEST-").pop().unwrap(), |bytes| {
            let records = records_of_manifest(bytes);
            bytes[records[records.len() - back] + 7] ^= 1;
        });
        // A read-only opening of the same damage, which it cannot tell from a power cut.
        if let Err(error) = small().read_only(true).open(directory.path()) {
            assert!(matches!(error.kind(), ErrorKind::Corruption(_)), "{back}: {error}");
        }
        match small().open(directory.path()) {
            Ok(store) => assert_eq!(value(&store).as_deref(), Some(&b"in tables alone"[..]), "{back}"),
            Err(error) => {
                assert!(matches!(error.kind(), ErrorKind::Corruption(_)), "{back}: {error}");
                assert_eq!(tables(), before, "{back}: {error}");
                let repaired = other.path().join("repaired");
                small().repair(directory.path(), &repaired, |_| ()).unwrap();
                let store = small().open(repaired).unwrap();
                assert_eq!(value(&store).as_deref(), Some(&b"in tables alone"[..]), "{back}: after a repair");
                refusals += 1;
            }
        }
        assert!(!directory.path().join("tables.torn").exists());
    }
    assert!(refusals > 0, "no damaged record was refused");
}

#[test]
fn an_unfinished_creation_is_started_again() {
    let directory = tempfile::tempdir().unwrap();
    fill(directory.path());
    fs::rename(directory.path().join(MARKER), directory.path().join(UNFINISHED)).unwrap();
    let store = small().open(directory.path()).unwrap();
    assert_eq!(store.keyspace_names().unwrap(), [""; 0]);
    drop(store);
    assert!(!directory.path().join(UNFINISHED).exists());
    fill(directory.path());
}

/// A directory, and which of its files are meant.
type FileGroup = (&'static str, fn(&str) -> bool);

/// Only the unfinished marker is durable when the other names are created. A power cut may keep any
/// of them.
#[test]
fn a_power_cut_during_creation_leaves_what_is_created_again() {
    let whole = tempfile::tempdir().expect("a directory");
    small().open(whole.path()).and_then(|store| store.close()).expect("a new store");
    fs::rename(whole.path().join(MARKER), whole.path().join(UNFINISHED)).expect("an unfinished store");
    let groups: [FileGroup; 6] = [
        ("tables", |name| name == "CURRENT"),
        ("tables", |name| name.starts_with("MANIFEST")),
        ("tables", |name| name != "CURRENT" && !name.starts_with("MANIFEST")),
        ("wal", |name| name == "0000000001.segment"),
        ("wal", |name| name.ends_with(".segment") && name != "0000000001.segment"),
        ("wal", |name| name == "synced"),
    ];
    for kept in 0_u32..1 << (groups.len() + 2) {
        let cut = tempfile::tempdir().expect("a directory");
        copy_directory(whole.path(), cut.path());
        let is_kept = |number: usize| kept & 1 << number != 0;
        for (number, (part, is_in)) in groups.iter().enumerate() {
            for entry in fs::read_dir(cut.path().join(part)).expect("a part of the store") {
                let entry = entry.expect("an entry");
                if !is_kept(number) && is_in(&entry.file_name().to_string_lossy()) {
                    fs::remove_file(entry.path()).expect("a file that the power cut takes");
                }
            }
        }
        for (number, part) in ["tables", "wal"].into_iter().enumerate() {
            if !is_kept(groups.len() + number) {
                fs::remove_dir_all(cut.path().join(part)).expect("a part that the power cut takes");
            }
        }
        if kept % 2 == 1 {
            fs::write(cut.path().join(UNFINISHED), "").expect("a marker without its text");
        }
        let created = small().open(cut.path()).and_then(|store| store.keyspace_names());
        assert_eq!(created.unwrap_or_else(|error| panic!("of the names {kept:08b} are left: {error}")), [""; 0]);
    }
}

#[test]
fn an_unfinished_marker_deletes_no_foreign_file() {
    let cases: [&[&str]; 2] = [&["precious.txt", "000004.log", "CURRENT"], &["photos/1.jpg", "000004.log"]];
    for names in cases {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir(directory.path().join("photos")).unwrap();
        for name in names.iter().chain(&[UNFINISHED]) {
            fs::write(directory.path().join(name), "x").unwrap();
        }
        let before = listing(directory.path());
        let error = refused(directory.path());
        assert!(matches!(error.kind(), ErrorKind::UnrecognizedFormat(_)), "{error}");
        assert_eq!(listing(directory.path()), before);
        assert!(names.iter().all(|name| directory.path().join(name).exists()));
    }
}

#[test]
fn concurrent_creators_get_already_open() {
    for _ in 0..20 {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("store");
        let together = std::sync::Barrier::new(4);
        let open = || {
            together.wait();
            (0..200).find_map(|_| match small().open(&path) {
                Ok(store) => Some(store.close()),
                Err(error) => {
                    assert!(matches!(error.kind(), ErrorKind::AlreadyOpen(_)), "{error}");
                    std::thread::sleep(std::time::Duration::from_millis(1));
                    None
                }
            })
        };
        std::thread::scope(|scope| {
            (0..4).map(|_| scope.spawn(open)).collect::<Vec<_>>().into_iter().for_each(|thread| {
                thread.join().unwrap().into_iter().for_each(Result::unwrap);
            })
        });
        assert!(!path.join(UNFINISHED).exists(), "a marker is left over");
        fill(&path);
    }
}

#[test]
fn opening_creates_missing_parent_directories() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("n1/a/b/s");
    fill(&path);
    assert_eq!(small().open(&path).unwrap().keyspace_names().unwrap(), ["rows"]);
}

#[test]
fn an_invalid_marker_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let marker = directory.path().join(MARKER);
    fs::write(&marker, b"\xff\xfe").unwrap();
    let error = refused(directory.path());
    assert!(matches!(error.kind(), ErrorKind::UnrecognizedFormat(_)), "{error}");
    assert!(error.to_string().contains(marker.to_str().unwrap()), "{error}");
    fs::remove_file(&marker).unwrap();
    fs::create_dir(&marker).unwrap();
    let error = refused(directory.path());
    assert!(matches!(error.kind(), ErrorKind::UnrecognizedFormat(_)), "{error}");
    assert!(error.to_string().contains(marker.to_str().unwrap()), "{error}");
}

#[test]
fn a_path_that_is_no_directory_is_refused_with_the_reason() {
    let error = refused("");
    assert!(matches!(error.kind(), ErrorKind::InvalidArgument(_)), "{error}");
    let directory = tempfile::tempdir().unwrap();
    let (file, link) = (directory.path().join("file"), directory.path().join("link"));
    fs::write(&file, "x").unwrap();
    symlink(directory.path().join("nothing"), &link).unwrap();
    assert!(refused(&file).to_string().ends_with("is a file, not a directory"), "{}", refused(&file));
    assert!(refused(&link).to_string().ends_with("is a dangling symbolic link"), "{}", refused(&link));
}

/// The build checks the headers of an installed RocksDB, but the linked library may have another
/// version. RocksDB writes the version of the library into its options file.
#[test]
fn the_linked_rocksdb_has_the_expected_version() {
    let directory = tempfile::tempdir().unwrap();
    fill(directory.path());
    let tables = fs::read_dir(directory.path().join("tables")).unwrap().map(|entry| entry.unwrap().path());
    let mut options = tables.filter(|file| file.file_name().unwrap().to_string_lossy().starts_with("OPTIONS-"));
    let options = fs::read_to_string(options.next().unwrap()).unwrap();
    let version = options.lines().find_map(|line| line.trim().strip_prefix("rocksdb_version=")).unwrap();
    assert_eq!(version, env!("PERCOLITE_ROCKSDB_VERSION"));
}

#[test]
fn leftover_options_files_are_removed() {
    let directory = tempfile::tempdir().unwrap();
    Store::open(directory.path()).unwrap().close().unwrap();
    let (left, foreign) =
        (directory.path().join("tables/OPTIONS-000099.dbtmp"), directory.path().join("tables/OPTIONS-mine.dbtmp"));
    for file in [&left, &foreign] {
        fs::write(file, "half").unwrap();
    }
    Store::open(directory.path()).unwrap().close().unwrap();
    assert!(!left.exists() && foreign.exists());
}
