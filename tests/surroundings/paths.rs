//! Paths: relative ones, and those that lead elsewhere later.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use percolite::{ErrorKind, Store, StoreStatus};

use crate::rows::{append, assert_rows, create, key, small};
use crate::{Scenario, scenario};

pub const SCENARIOS: &[Scenario] = &[
    scenario("relative_path_then_another_directory", relative_path),
    scenario("relative_path_then_another_directory_with_flushes", relative_path_with_flushes),
    scenario("relative_path_of_a_read_only_store", relative_path_read_only),
    scenario("relative_paths_of_calls", relative_paths_of_calls),
    scenario("a_symlink_is_switched", symlink_switched),
    scenario("a_symlink_to_a_checkpoint_is_switched", checkpoint_symlink),
    scenario("the_current_directory_is_removed", current_directory_removed),
    scenario("unusual_paths", unusual_paths),
    scenario("paths_longer_than_the_system_allows", long_paths),
    scenario("a_new_store_by_a_relative_path", new_store),
];

fn relative_path(place: &Path) {
    stay_in_own_directory(place, 200);
}

fn relative_path_with_flushes(place: &Path) {
    stay_in_own_directory(place, 8000);
}

/// Two stores with the same relative path; the current directory changes from one to the other.
fn stay_in_own_directory(place: &Path, count: u64) {
    let (a, b) = (place.join("a"), place.join("b"));
    create(&a.join("store"), 10);
    create(&b.join("store"), 1000);
    std::env::set_current_dir(&a).unwrap();
    let store = small().open("store").unwrap();
    std::env::set_current_dir(&b).unwrap();
    let rows = store.keyspace("rows").unwrap();
    append(&store, &rows, 10..10 + count).unwrap();
    store.close().unwrap();
    assert_rows(&b.join("store"), 1000);
    assert_rows(&a.join("store"), 10 + count);
}

fn relative_path_read_only(place: &Path) {
    let (a, b) = (place.join("a"), place.join("b"));
    create(&a.join("store"), 8000);
    create(&b.join("store"), 10);
    std::env::set_current_dir(&a).unwrap();
    let store = small().read_only(true).open("store").unwrap();
    std::env::set_current_dir(&b).unwrap();
    let rows = store.keyspace("rows").unwrap();
    assert_eq!(store.range(&rows, ..).unwrap().filter(|row| row.is_ok()).count(), 8000);
}

fn relative_paths_of_calls(place: &Path) {
    let (a, b) = (place.join("a"), place.join("b"));
    create(&a.join("store"), 3000);
    fs::create_dir(&b).unwrap();
    std::env::set_current_dir(&a).unwrap();
    let store = small().status_file_interval(std::time::Duration::from_millis(100)).open("store").unwrap();
    store.checkpoint("copies/one").unwrap();
    std::env::set_current_dir(&b).unwrap();
    let rows = store.keyspace("rows").unwrap();
    append(&store, &rows, 3000..3010).unwrap();
    while StoreStatus::read_from("../a/store").unwrap().is_none() {
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    store.checkpoint("../a/copies/two").unwrap();
    store.checkpoint("own").unwrap();
    store.close().unwrap();
    // The current directory changes during the repair.
    fs::remove_file(a.join("store/PERCOLITE")).unwrap();
    let elsewhere = || std::env::set_current_dir(place).unwrap();
    let report = small().repair("../a/store", "repaired", |_| elsewhere()).unwrap();
    assert_eq!(report.rows, 3010);
    assert_rows(&b.join("repaired"), 3010);
    assert_rows(&a.join("copies/one"), 3000);
    assert_rows(&a.join("copies/two"), 3010);
    assert_rows(&b.join("own"), 3010);
    let mut left: Vec<_> = fs::read_dir(place).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, ["a", "b"]);
}

fn symlink_switched(place: &Path) {
    let (first, second, current) = (place.join("1"), place.join("2"), place.join("current"));
    create(&first, 10);
    create(&second, 1000);
    symlink(&first, &current).unwrap();
    let store = small().open(&current).unwrap();
    fs::remove_file(&current).unwrap();
    symlink(&second, &current).unwrap();
    let rows = store.keyspace("rows").unwrap();
    append(&store, &rows, 10..8000).unwrap();
    store.close().unwrap();
    assert_rows(&second, 1000);
    assert_rows(&first, 8000);
}

fn checkpoint_symlink(place: &Path) {
    create(&place.join("store"), 10);
    let store = small().open(place.join("store")).unwrap();
    for name in ["1", "2"] {
        fs::create_dir(place.join(name)).unwrap();
    }
    symlink("1", place.join("copies")).unwrap();
    store.checkpoint(place.join("copies/a")).unwrap();
    fs::remove_file(place.join("copies")).unwrap();
    symlink("2", place.join("copies")).unwrap();
    store.checkpoint(place.join("copies/b")).unwrap();
    store.close().unwrap();
    assert_rows(&place.join("1/a"), 10);
    assert_rows(&place.join("2/b"), 10);
}

fn current_directory_removed(place: &Path) {
    let gone = place.join("gone");
    fs::create_dir(&gone).unwrap();
    create(&place.join("store"), 10);
    std::env::set_current_dir(&gone).unwrap();
    fs::remove_dir(&gone).unwrap();
    for error in [
        small().open("store").map(drop).unwrap_err(),
        small().read_only(true).open("store").map(drop).unwrap_err(),
        small().open(place.join("store")).unwrap().checkpoint("copy").unwrap_err(),
        small().repair("store", place.join("repaired"), |_| ()).unwrap_err(),
        small().repair(place.join("store"), "repaired", |_| ()).unwrap_err(),
    ] {
        let text = error.to_string();
        assert!(text.contains("the current directory was removed: name an absolute path"), "{text}");
    }
    assert_rows(&place.join("store"), 10);
}

fn unusual_paths(place: &Path) {
    fs::create_dir_all(place.join("x/y")).unwrap();
    std::env::set_current_dir(place.join("x/y")).unwrap();
    let odd = OsStr::from_bytes(b"not \xff UTF-8 \n%s");
    let paths: [PathBuf; 6] =
        ["../up".into(), ".".into(), "./a/../b/".into(), odd.into(), "new/deep/er".into(), "(deleted)".into()];
    for path in &paths[2..] {
        create(path, 3000);
        let store = small().open(path).unwrap();
        let copy = path.join("../copy of it");
        store.checkpoint(&copy).unwrap();
        store.close().unwrap();
        assert_rows(&copy, 3000);
        assert_rows(path, 3000);
        fs::remove_dir_all(copy).unwrap();
    }
    for path in &paths[..1] {
        create(path, 10);
        assert_rows(&place.join("x/up"), 10);
    }
    fs::create_dir(place.join("dot")).unwrap();
    std::env::set_current_dir(place.join("dot")).unwrap();
    create(&paths[1], 10);
    assert_rows(&place.join("dot"), 10);
    let empty = Store::open("").map(drop).unwrap_err();
    assert!(matches!(empty.kind(), ErrorKind::InvalidArgument(_)), "{empty}");
}

/// Directories so deep that no absolute path leads there.
fn long_paths(place: &Path) {
    let name = "d".repeat(200);
    std::env::set_current_dir(place).unwrap();
    for _ in 0..30 {
        fs::create_dir(&name).unwrap();
        std::env::set_current_dir(&name).unwrap();
    }
    create(Path::new("store"), 3000);
    let store = small().open("store").unwrap();
    let rows = store.keyspace("rows").unwrap();
    append(&store, &rows, 3000..8000).unwrap();
    assert_eq!(store.get(&rows, key(7999)).unwrap().map(|value| value.len()), Some(1000));
    store.close().unwrap();
    assert_rows(Path::new("store"), 8000);
    let error = small().open(place.join("e".repeat(300))).map(drop).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Io(_)) && error.to_string().contains("too long"), "{error}");
}

fn new_store(place: &Path) {
    let (a, b) = (place.join("a"), place.join("b"));
    fs::create_dir(&a).unwrap();
    fs::create_dir(&b).unwrap();
    std::env::set_current_dir(&a).unwrap();
    let store = small().open("new/store").unwrap();
    std::env::set_current_dir(&b).unwrap();
    let rows = store.keyspace("rows").unwrap();
    append(&store, &rows, 0..3000).unwrap();
    store.close().unwrap();
    assert_eq!(fs::read_dir(&b).unwrap().count(), 0);
    assert_rows(&a.join("new/store"), 3000);
}
