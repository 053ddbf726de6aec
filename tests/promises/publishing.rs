//! What a store publishes in its folder, for whom, and for how long.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use percolite::{Builder, ErrorKind, Store, StoreStatus, TxnOptions};

fn publishing() -> Builder {
    Store::builder().status_file_interval(Duration::from_millis(1))
}

/// Waits until there is one of which this holds.
fn read_when(folder: &Path, holds: impl Fn(&StoreStatus) -> bool) -> StoreStatus {
    let since = Instant::now();
    loop {
        if let Some(status) = StoreStatus::read_from(folder).unwrap().filter(|status| holds(status)) {
            return status;
        }
        assert!(since.elapsed() < Duration::from_secs(60), "nothing was published");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_status_is_in_the_folder_as_long_as_the_store_is_open() {
    let folder = tempfile::tempdir().unwrap();
    let (path, copy) = (folder.path().join("store"), folder.path().join("copy"));
    let store = publishing().open(&path).unwrap();
    let rows = store.keyspace("rows").unwrap();
    let before = store.stats().commits();
    let mut txn = store.begin_with(TxnOptions::with_label("open")).unwrap();
    txn.put(&rows, "k", "v").unwrap();
    let seen = read_when(&path, |status| {
        status.active.first().is_some_and(|live| live.buffered_rows == 1 && live.label == Some("open".into()))
    });
    assert_eq!(
        (seen.pid, seen.active[0].label.as_deref(), seen.active[0].buffered_rows),
        (std::process::id(), Some("open"), 1)
    );
    assert_eq!(
        (seen.publish_interval, &seen.failure, seen.stats.commits()),
        (Some(Duration::from_millis(1)), &None, before)
    );
    txn.commit().unwrap();
    let later = read_when(&path, |status| status.stats.commits() == before + 1);
    assert!(later.uptime > seen.uptime && later.latencies.since(&seen.latencies).commit_durable.count() == 1);
    store.checkpoint(&copy).unwrap();
    assert_eq!(StoreStatus::read_from(&copy).unwrap(), None);
    store.close().unwrap();
    assert_eq!(StoreStatus::read_from(&path).unwrap(), None);
    assert!(!path.join("STATUS.new").exists());
}

#[test]
fn nothing_is_published_where_nobody_asked_for_it() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path()).unwrap();
    std::thread::sleep(Duration::from_millis(800));
    assert_eq!(StoreStatus::read_from(folder.path()).unwrap(), None);
    drop(store);
    let reader = publishing().read_only(true).open(folder.path()).unwrap();
    std::thread::sleep(Duration::from_millis(800));
    assert_eq!(StoreStatus::read_from(folder.path()).unwrap(), None);
    drop(reader);
}

#[test]
fn what_a_killed_process_has_left_is_in_nobodys_way() {
    let folder = tempfile::tempdir().unwrap();
    let (path, copy) = (folder.path().join("store"), folder.path().join("copy"));
    let store = Store::open(&path).unwrap();
    let rows = store.keyspace("rows").unwrap();
    store.transact(|txn| txn.put(&rows, "k", "v")).unwrap();
    store.close().unwrap();
    for left in ["STATUS", "STATUS.new"] {
        fs::write(path.join(left), "half of a docu").unwrap();
    }
    let reader = Store::builder().read_only(true).open(&path).unwrap();
    assert!(reader.verify(|_| ()).unwrap().is_ok());
    drop(reader);
    assert!(path.join("STATUS").exists(), "looking has changed the folder");
    assert!(Store::builder().repair(&path, &copy, |_| ()).unwrap().is_complete());
    let store = Store::open(&path).unwrap();
    assert!(!path.join("STATUS").exists() && !path.join("STATUS.new").exists());
    store.close().unwrap();
}

#[test]
fn a_status_that_cannot_be_published_keeps_nothing_else_from_being_done() {
    let folder = tempfile::tempdir().unwrap();
    // In every round, however soon.
    let store = Store::builder().status_file_interval(Duration::from_nanos(1)).open(folder.path()).unwrap();
    store.keyspace("going").unwrap();
    // It fails while one is just being written.
    while fs::create_dir(folder.path().join("STATUS.new")).is_err() {
        std::thread::yield_now();
    }
    let before = store.stats().commits();
    store.drop_keyspace("going").unwrap();
    // The drop is one commit, and that its rows are gone is noted by another.
    let since = Instant::now();
    while store.stats().commits() < before + 2 {
        assert!(since.elapsed() < Duration::from_secs(60), "a dropped keyspace was not erased");
        std::thread::sleep(Duration::from_millis(10));
    }
    store.close().unwrap();
}

#[test]
fn a_document_that_cannot_be_read_is_an_error_and_no_status() {
    let folder = tempfile::tempdir().unwrap();
    let refused = |document: &str| {
        fs::write(folder.path().join("STATUS"), document).unwrap();
        let why = StoreStatus::read_from(folder.path()).unwrap_err();
        assert!(matches!(why.kind(), ErrorKind::Io(_)), "{why}");
        why.to_string()
    };
    for torn in ["", "{", "{}", "\0\0\0\0", "{\"percolite_status\": 1}"] {
        refused(torn);
    }
    assert!(refused("{\"percolite_status\": 2}").contains("format 2, this program reads format 1"));
    assert_eq!(StoreStatus::read_from(folder.path().join("none")).unwrap(), None);
}
