//! The status file in a store's directory: when it is written, and when it is removed.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use percolite::{Builder, ErrorKind, Store, StoreStatus, TxnOptions};

fn publishing() -> Builder {
    Store::builder().status_file_interval(Duration::from_millis(1))
}

/// Waits for a status for which `holds` returns true.
fn read_when(directory: &Path, holds: impl Fn(&StoreStatus) -> bool) -> StoreStatus {
    let since = Instant::now();
    loop {
        if let Some(status) = StoreStatus::read_from(directory).unwrap().filter(|status| holds(status)) {
            return status;
        }
        assert!(since.elapsed() < Duration::from_secs(60), "nothing was published");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn the_status_file_exists_while_the_store_is_open() {
    let directory = tempfile::tempdir().unwrap();
    let (path, copy) = (directory.path().join("store"), directory.path().join("copy"));
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
fn no_status_file_is_written_unless_requested() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path()).unwrap();
    std::thread::sleep(Duration::from_millis(800));
    assert_eq!(StoreStatus::read_from(directory.path()).unwrap(), None);
    drop(store);
    let reader = publishing().read_only(true).open(directory.path()).unwrap();
    std::thread::sleep(Duration::from_millis(800));
    assert_eq!(StoreStatus::read_from(directory.path()).unwrap(), None);
    drop(reader);
}

#[test]
fn leftover_status_files_do_no_harm() {
    let directory = tempfile::tempdir().unwrap();
    let (path, copy) = (directory.path().join("store"), directory.path().join("copy"));
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
    assert!(path.join("STATUS").exists(), "a read-only open has changed the directory");
    assert!(Store::builder().repair(&path, &copy, |_| ()).unwrap().is_complete());
    let store = Store::open(&path).unwrap();
    assert!(!path.join("STATUS").exists() && !path.join("STATUS.new").exists());
    store.close().unwrap();
}

#[test]
fn a_failing_status_file_does_not_stop_other_tasks() {
    let directory = tempfile::tempdir().unwrap();
    // The interval is so short that the status is published in every round of the background
    // worker.
    let store = Store::builder().status_file_interval(Duration::from_nanos(1)).open(directory.path()).unwrap();
    store.keyspace("going").unwrap();
    // A directory of the name `STATUS.new` makes the writes of the status file fail. The store
    // itself may have a file of this name for a short time, so the test tries repeatedly to create
    // the directory.
    while fs::create_dir(directory.path().join("STATUS.new")).is_err() {
        std::thread::yield_now();
    }
    let before = store.stats().commits();
    store.drop_keyspace("going").unwrap();
    // The drop is one commit. Another one follows when the background has deleted the keyspace's
    // rows.
    let since = Instant::now();
    while store.stats().commits() < before + 2 {
        assert!(since.elapsed() < Duration::from_secs(60), "a dropped keyspace was not deleted");
        std::thread::sleep(Duration::from_millis(10));
    }
    store.close().unwrap();
}

#[test]
fn an_unreadable_status_file_is_an_error() {
    let directory = tempfile::tempdir().unwrap();
    let refused = |document: &str| {
        fs::write(directory.path().join("STATUS"), document).unwrap();
        let error = StoreStatus::read_from(directory.path()).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Io(_)), "{error}");
        error.to_string()
    };
    for torn in ["", "{", "{}", "\0\0\0\0", "{\"format_version\": 1}"] {
        refused(torn);
    }
    assert!(refused("{\"format_version\": 2}").contains("format 2, this program reads format 1"));
    assert_eq!(StoreStatus::read_from(directory.path().join("none")).unwrap(), None);
}
