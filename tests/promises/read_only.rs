//! A read-only store: it shows every commit, changes no file and excludes writers.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use percolite::{Builder, ErrorKind, Store, TxnStatus};

use crate::directories::files;
use crate::orphans::leave_locks;

fn small() -> Builder {
    Store::builder().block_cache_bytes(1 << 20).write_buffer_bytes(4 << 20)
}

fn read_only_builder() -> Builder {
    small().read_only(true)
}

/// All files, with content and modification time.
fn state_of(directory: &Path) -> BTreeMap<PathBuf, (Vec<u8>, std::time::SystemTime)> {
    let state = |path: PathBuf| {
        let changed = path.metadata().unwrap().modified().unwrap();
        (path.clone(), (fs::read(path).unwrap(), changed))
    };
    files(directory, "").into_iter().map(state).collect()
}

#[test]
fn a_read_only_store_resolves_locks_without_writing() {
    for (committed, value) in [(true, "new"), (false, "old")] {
        let directory = tempfile::tempdir().unwrap();
        leave_locks(directory.path(), committed);
        let before = state_of(directory.path());

        let store = read_only_builder().open(directory.path()).unwrap();
        let rows = store.existing_keyspace("rows").unwrap();
        let snapshot = store.snapshot().unwrap();
        for key in ["a", "b"] {
            assert_eq!(snapshot.get(&rows, key).unwrap().as_deref(), Some(value.as_bytes()), "{key}");
        }
        let scanned: Vec<_> = snapshot.range(&rows, ..).map(|row| row.unwrap().into_parts().1).collect();
        assert_eq!(scanned, [value.as_bytes(); 2]);
        let locks: Vec<_> = store.row_locks().unwrap().map(Result::unwrap).collect();
        assert_eq!(locks.len(), if committed { 1 } else { 2 });
        assert!(locks.iter().all(|lock| lock.is_orphan), "{locks:?}");
        assert_eq!(matches!(locks[0].txn_status, TxnStatus::Committed(_)), committed);
        assert!(store.stats().may_have_orphan_locks);
        drop((snapshot, locks));
        store.close().unwrap();
        assert_eq!(state_of(directory.path()), before, "committed: {committed}");

        // A writable store resolves the locks to the same values.
        let store = small().open(directory.path()).unwrap();
        let rows = store.existing_keyspace("rows").unwrap();
        assert_eq!(store.snapshot().unwrap().get(&rows, "b").unwrap().as_deref(), Some(value.as_bytes()));
    }
}

#[test]
fn writes_to_a_read_only_store_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    leave_locks(directory.path(), false);
    let store = read_only_builder().open(directory.path()).unwrap();
    let rows = store.existing_keyspace("rows").unwrap();
    let refusals = [
        store.transact(|txn| txn.put(&rows, "a", "x")).unwrap_err(),
        store.transact(|txn| txn.delete(&rows, "a")).unwrap_err(),
        store.keyspace("more").unwrap_err(),
        store.drop_keyspace("rows").unwrap_err(),
        store.resolve_orphan_locks().unwrap_err(),
    ];
    for error in refusals {
        assert!(matches!(error.kind(), ErrorKind::InvalidArgument(_)), "{error}");
        assert!(error.to_string().contains("read-only"), "{error}");
    }
    let read = store.transact(|txn| txn.get(&rows, "a")).unwrap();
    assert_eq!(read.as_deref(), Some(&b"old"[..]));
}

#[test]
fn readers_share_a_store_and_exclude_a_writer() {
    let directory = tempfile::tempdir().unwrap();
    leave_locks(directory.path(), false);
    let readers =
        [read_only_builder().open(directory.path()).unwrap(), read_only_builder().open(directory.path()).unwrap()];
    let Err(error) = small().open(directory.path()) else { panic!("opened beside readers") };
    assert!(matches!(error.kind(), ErrorKind::AlreadyOpen(_)), "{error}");
    drop(readers);
    let _writer = small().open(directory.path()).unwrap();
    let Err(error) = read_only_builder().open(directory.path()) else { panic!("opened beside a writer") };
    assert!(
        matches!(error.kind(), ErrorKind::AlreadyOpen(_)) && error.to_string().contains("open for writing"),
        "{error}"
    );
}

#[test]
fn a_read_only_open_creates_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("file");
    fs::write(&file, "").unwrap();
    let empty = directory.path().join("empty");
    fs::create_dir(&empty).unwrap();
    let cases = [
        (directory.path().to_owned(), "is not empty and has no file"),
        (empty.clone(), "is an empty directory"),
        (directory.path().join("missing"), "there is no directory"),
        (file, "is a file, not a directory"),
    ];
    for (path, reason) in cases {
        let Err(error) = read_only_builder().open(&path) else { panic!("opened {}", path.display()) };
        assert!(error.to_string().contains(reason), "{}: {error}", path.display());
    }
    assert_eq!(fs::read_dir(&empty).unwrap().count(), 0);
    assert!(!directory.path().join("missing").exists());
}
