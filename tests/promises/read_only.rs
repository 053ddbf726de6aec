//! A store that is only looked at: nothing changes, everything committed is seen, and nobody writes meanwhile.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use percolite::{Builder, ErrorKind, Store, TransactionStatus};

use crate::folders::files;
use crate::orphans::leave_locks;

fn small() -> Builder {
    Store::builder().block_cache_bytes(1 << 20).write_buffer_bytes(4 << 20)
}

fn looking() -> Builder {
    small().read_only(true)
}

/// Names, contents and times of change.
fn state_of(folder: &Path) -> BTreeMap<PathBuf, (Vec<u8>, std::time::SystemTime)> {
    let state = |path: PathBuf| {
        let changed = path.metadata().unwrap().modified().unwrap();
        (path.clone(), (fs::read(path).unwrap(), changed))
    };
    files(folder, "").into_iter().map(state).collect()
}

#[test]
fn a_locked_row_shows_what_its_transaction_came_to_and_the_folder_stays_as_it_was() {
    for (committed, value) in [(true, "new"), (false, "old")] {
        let folder = tempfile::tempdir().unwrap();
        leave_locks(folder.path(), committed);
        let before = state_of(folder.path());

        let store = looking().open(folder.path()).unwrap();
        let rows = store.existing_keyspace("rows").unwrap();
        let snapshot = store.snapshot().unwrap();
        for key in ["a", "b"] {
            assert_eq!(snapshot.get(&rows, key).unwrap().as_deref(), Some(value.as_bytes()), "{key}");
        }
        let scanned: Vec<_> = snapshot.range(&rows, ..).map(|row| row.unwrap().1).collect();
        assert_eq!(scanned, [value.as_bytes(); 2]);
        let locks: Vec<_> = store.row_locks().unwrap().map(Result::unwrap).collect();
        assert_eq!(locks.len(), if committed { 1 } else { 2 });
        assert!(locks.iter().all(|lock| lock.is_orphan), "{locks:?}");
        assert_eq!(matches!(locks[0].txn_status, TransactionStatus::Committed(_)), committed);
        assert!(store.stats().may_have_orphan_locks);
        drop((snapshot, locks));
        store.close().unwrap();
        assert_eq!(state_of(folder.path()), before, "committed: {committed}");

        // A writer comes to the same.
        let store = small().open(folder.path()).unwrap();
        let rows = store.existing_keyspace("rows").unwrap();
        assert_eq!(store.snapshot().unwrap().get(&rows, "b").unwrap().as_deref(), Some(value.as_bytes()));
    }
}

#[test]
fn whoever_writes_is_told_that_the_store_is_read_only() {
    let folder = tempfile::tempdir().unwrap();
    leave_locks(folder.path(), false);
    let store = looking().open(folder.path()).unwrap();
    let rows = store.existing_keyspace("rows").unwrap();
    let refusals = [
        store.transact(|txn| txn.put(&rows, "a", "x")).unwrap_err(),
        store.transact(|txn| txn.delete(&rows, "a")).unwrap_err(),
        store.keyspace("more").unwrap_err(),
        store.drop_keyspace("rows").unwrap_err(),
        store.resolve_orphan_locks().unwrap_err(),
    ];
    for why in refusals {
        assert!(matches!(why.kind(), ErrorKind::InvalidArgument(_)), "{why}");
        assert!(why.to_string().contains("read-only"), "{why}");
    }
    let read = store.transact(|txn| txn.get(&rows, "a")).unwrap();
    assert_eq!(read.as_deref(), Some(&b"old"[..]));
}

#[test]
fn readers_stand_each_other_but_neither_a_writer_beside_them() {
    let folder = tempfile::tempdir().unwrap();
    leave_locks(folder.path(), false);
    let readers = [looking().open(folder.path()).unwrap(), looking().open(folder.path()).unwrap()];
    let Err(why) = small().open(folder.path()) else { panic!("opened beside readers") };
    assert!(matches!(why.kind(), ErrorKind::AlreadyOpen(_)), "{why}");
    drop(readers);
    let _writer = small().open(folder.path()).unwrap();
    let Err(why) = looking().open(folder.path()) else { panic!("opened beside a writer") };
    assert!(matches!(why.kind(), ErrorKind::AlreadyOpen(_)) && why.to_string().contains("open for writing"), "{why}");
}

#[test]
fn nothing_is_made_where_there_is_no_store() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    let empty = folder.path().join("empty");
    fs::create_dir(&empty).unwrap();
    let told = [
        (folder.path().to_owned(), "is not empty and has no file"),
        (empty.clone(), "is an empty directory"),
        (folder.path().join("missing"), "there is no directory"),
        (file, "is a file, not a directory"),
    ];
    for (path, what) in told {
        let Err(why) = looking().open(&path) else { panic!("opened {}", path.display()) };
        assert!(why.to_string().contains(what), "{}: {why}", path.display());
    }
    assert_eq!(fs::read_dir(&empty).unwrap().count(), 0);
    assert!(!folder.path().join("missing").exists());
}
