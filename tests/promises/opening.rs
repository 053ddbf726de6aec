//! What opening a folder makes of what it finds there.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use percolite::{Builder, Error, ErrorKind, Store};

const MARKER: &str = "PERCOLITE";
const UNFINISHED: &str = "PERCOLITE.new";

fn small() -> Builder {
    Store::builder().cache_bytes(1 << 20).write_buffer_bytes(4 << 20)
}

fn refused(path: impl AsRef<Path>) -> Error {
    let Err(why) = small().open(path) else { panic!("it was opened") };
    why
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
fn a_marker_without_a_database_is_corruption_and_stays_as_it_was() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join(MARKER), "percolite store, format 1\n").unwrap();
    let before = listing(folder.path());
    let why = refused(folder.path());
    assert!(matches!(why.kind(), ErrorKind::Corruption(_)), "{why}");
    assert!(why.to_string().contains("its database is gone"), "{why}");
    assert_eq!(listing(folder.path()), before);
}

/// `v1`, as formats 1 and 2 have it. Never edit it.
const OLD_RECORD: &[u8] = b"\x01\xfd\x03\0\0\0\0\0\x65\x06\x02\xfd\x07\0\xc0\x1f\x42\x4f\x0d\x0b\x01\0\x02v1\0";

/// The same, as format 3 has it. Never edit it.
const FORMAT_3_RECORD: &[u8] = b"\x02\x31\x03\0\0\0\0\0\x65\x06\x02\x56\x34\x12v1";

#[test]
fn a_store_of_an_earlier_format_is_read_and_becomes_one_of_format_4_when_it_is_written() {
    let formats = [
        ("percolite store, format 1\n", OLD_RECORD),
        ("percolite store, format 2\n", OLD_RECORD),
        ("percolite store, format 3\n", FORMAT_3_RECORD),
    ];
    for (old, record) in formats {
        let folder = tempfile::tempdir().unwrap();
        fill(folder.path());
        let marker = folder.path().join(MARKER);
        assert_eq!(fs::read_to_string(&marker).unwrap(), "percolite store, format 4\n");
        let row = small().open(folder.path()).unwrap().existing_keyspace("rows").unwrap().row_of("k");
        {
            let columns = ["default", "data", "lock", "write", "history"];
            let database = rocksdb::DB::open_cf(&rocksdb::Options::default(), folder.path(), columns).unwrap();
            database.put_cf(database.cf_handle("write").unwrap(), row.as_bytes(), record).unwrap();
        }
        fs::write(&marker, old).unwrap();
        let read = |store: &Store| {
            let rows = store.existing_keyspace("rows").unwrap();
            let snapshot = store.snapshot().unwrap();
            assert_eq!(snapshot.get(&rows, "k").unwrap(), Some(b"v1".to_vec()));
            let all: Vec<_> = snapshot.range(&rows, ..).collect::<Result<_, _>>().unwrap();
            assert_eq!(all, [(b"k".to_vec(), b"v1".to_vec())]);
            assert!(store.verify(|_| ()).unwrap().is_sound());
        };
        read(&small().read_only(true).open(folder.path()).unwrap());
        assert_eq!(fs::read_to_string(&marker).unwrap(), old);
        read(&small().open(folder.path()).unwrap());
        assert_eq!(fs::read_to_string(&marker).unwrap(), "percolite store, format 4\n");
    }
}

#[test]
fn a_store_that_was_closed_can_be_opened_while_other_processes_are_being_started() {
    let folder = tempfile::tempdir().unwrap();
    fill(folder.path());
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
            let opened = small().open(folder.path()).map(drop);
            if opened.is_err() {
                done.store(true, std::sync::atomic::Ordering::Relaxed);
            }
            opened.unwrap();
        }
        done.store(true, std::sync::atomic::Ordering::Relaxed);
    });
}

#[test]
fn a_store_that_has_lost_files_is_corruption_and_not_an_empty_store() {
    for lost in ["CURRENT", "MANIFEST-"] {
        let folder = tempfile::tempdir().unwrap();
        fill(folder.path());
        for (name, _) in listing(folder.path()).into_iter().filter(|(name, _)| name.starts_with(lost)) {
            fs::remove_file(folder.path().join(name)).unwrap();
        }
        let why = refused(folder.path());
        assert!(matches!(why.kind(), ErrorKind::Corruption(_) | ErrorKind::Io(_)), "{lost}: {why}");
    }
}

#[test]
fn a_creation_that_was_cut_short_is_begun_again() {
    let folder = tempfile::tempdir().unwrap();
    fill(folder.path());
    fs::rename(folder.path().join(MARKER), folder.path().join(UNFINISHED)).unwrap();
    let store = small().open(folder.path()).unwrap();
    assert_eq!(store.keyspaces().unwrap(), [""; 0]);
    drop(store);
    assert!(!folder.path().join(UNFINISHED).exists());
    fill(folder.path());
}

#[test]
fn an_unfinished_marker_costs_nobody_a_file() {
    let cases: [&[&str]; 2] = [&["precious.txt", "000004.log", "CURRENT"], &["photos/1.jpg", "000004.log"]];
    for names in cases {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("photos")).unwrap();
        for name in names.iter().chain(&[UNFINISHED]) {
            fs::write(folder.path().join(name), "x").unwrap();
        }
        let before = listing(folder.path());
        let why = refused(folder.path());
        assert!(matches!(why.kind(), ErrorKind::NotAStore(_)), "{why}");
        assert_eq!(listing(folder.path()), before);
        assert!(names.iter().all(|name| folder.path().join(name).exists()));
    }
}

#[test]
fn of_several_who_create_one_store_at_once_the_others_find_it_open() {
    for _ in 0..20 {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("store");
        let together = std::sync::Barrier::new(4);
        let open = || {
            together.wait();
            (0..200).find_map(|_| match small().open(&path) {
                Ok(store) => Some(store.close()),
                Err(why) => {
                    assert!(matches!(why.kind(), ErrorKind::Busy(_)), "{why}");
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
fn a_store_may_be_created_several_folders_deep() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("n1/a/b/s");
    fill(&path);
    assert_eq!(small().open(&path).unwrap().keyspaces().unwrap(), ["rows"]);
}

#[test]
fn a_marker_that_is_none_is_named_and_left() {
    let folder = tempfile::tempdir().unwrap();
    let marker = folder.path().join(MARKER);
    fs::write(&marker, b"\xff\xfe").unwrap();
    let why = refused(folder.path());
    assert!(matches!(why.kind(), ErrorKind::NotAStore(_)), "{why}");
    assert!(why.to_string().contains(marker.to_str().unwrap()), "{why}");
    fs::remove_file(&marker).unwrap();
    fs::create_dir(&marker).unwrap();
    let why = refused(folder.path());
    assert!(matches!(why.kind(), ErrorKind::NotAStore(_)), "{why}");
    assert!(why.to_string().contains(marker.to_str().unwrap()), "{why}");
}

#[test]
fn a_path_that_cannot_be_a_folder_says_why() {
    let why = refused("");
    assert!(matches!(why.kind(), ErrorKind::InvalidArgument(_)), "{why}");
    let folder = tempfile::tempdir().unwrap();
    let (file, link) = (folder.path().join("file"), folder.path().join("link"));
    fs::write(&file, "x").unwrap();
    symlink(folder.path().join("nothing"), &link).unwrap();
    assert!(refused(&file).to_string().ends_with("is a file, not a folder"), "{}", refused(&file));
    assert!(refused(&link).to_string().ends_with("is a link to nothing"), "{}", refused(&link));
}

#[test]
fn options_that_an_opening_left_unfinished_are_removed_by_the_next() {
    let folder = tempfile::tempdir().unwrap();
    Store::open(folder.path()).unwrap().close().unwrap();
    let (left, foreign) = (folder.path().join("OPTIONS-000099.dbtmp"), folder.path().join("OPTIONS-mine.dbtmp"));
    for file in [&left, &foreign] {
        fs::write(file, "half").unwrap();
    }
    Store::open(folder.path()).unwrap().close().unwrap();
    assert!(!left.exists() && foreign.exists());
}
