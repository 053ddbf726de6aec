//! Files of a store that are not what they should be, and stores inside of stores.

use std::fs;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::Command;

use percolite::{Durability, ErrorKind, Store};

use crate::rows::{append, assert_rows, create, put, small};
use crate::{Scenario, scenario, unix};

pub const SCENARIOS: &[Scenario] = &[
    scenario("a_file_of_the_store_is_something_else", something_else),
    scenario("a_file_is_in_the_place_of_a_missing_one", in_place_of_missing),
    scenario("a_file_of_the_store_has_a_second_name", second_name),
    scenario("a_part_of_the_store_is_on_another_disk", linked_parts),
    scenario("an_interrupted_creation_has_a_linked_directory", linked_while_created),
    scenario("a_store_inside_of_a_store", nested),
    scenario("the_marker_is_replaced_beneath_another_writer", marker_replaced_for_another),
];

const PRECIOUS: &[u8] = b"a foreign file";

/// Makes something of a name. A link leads to the foreign file.
type Make = fn(&Path, &Path);

/// What can have the name of a file, and the word for it in an error.
const KINDS: [(&str, Make); 5] = [
    ("a symbolic link", |path, foreign| symlink(foreign, path).unwrap()),
    ("a symbolic link", |path, foreign| symlink(foreign.with_extension("missing"), path).unwrap()),
    ("a pipe", |path, _| unix::make_pipe(path)),
    ("a socket", |path, _| drop(UnixListener::bind(path).unwrap())),
    ("a directory", |path, _| fs::create_dir(path).unwrap()),
];

fn remove(path: &Path) {
    if path.symlink_metadata().unwrap().is_dir() { fs::remove_dir(path) } else { fs::remove_file(path) }.unwrap();
}

/// The files of a closed store, in all of its directories.
fn files(store: &Path) -> Vec<PathBuf> {
    let listed = [".", "wal", "tables"].map(|part| fs::read_dir(store.join(part)).unwrap());
    let files: Vec<_> = listed.into_iter().flatten().map(|entry| entry.unwrap().path()).collect();
    files.into_iter().filter(|file| file.is_file()).collect()
}

/// The error of opening names the file and what it is. Nothing hangs, and no other file is written.
fn refuses(store: &Path, file: &Path, what: &str, foreign: &Path) {
    let error = small().open(store).map(drop).unwrap_err();
    let named = file.strip_prefix(store).unwrap().strip_prefix(".").unwrap_or(file.strip_prefix(store).unwrap());
    let text = error.to_string();
    assert!(text.contains(&*named.to_string_lossy()), "{}: {what}: {text}", file.display());
    assert!(text.contains(&format!("it is {what}, not a regular file; move it away")), "{}: {text}", file.display());
    let is_marker = file.file_name().unwrap().to_string_lossy().starts_with("PERCOLITE");
    let is_expected = match error.kind() {
        ErrorKind::UnrecognizedFormat(_) => is_marker,
        ErrorKind::Io(_) => !is_marker,
        _ => false,
    };
    assert!(is_expected, "{}: {what}: {error:?}", file.display());
    check_untouched(foreign);
}

fn check_untouched(foreign: &Path) {
    assert_eq!(fs::read(foreign).unwrap(), PRECIOUS);
    assert!(!foreign.with_extension("missing").exists());
}

fn something_else(place: &Path) {
    let (path, foreign) = (place.join("store"), place.join("foreign"));
    fs::write(&foreign, PRECIOUS).unwrap();
    create(&path, 100);
    let files = files(&path);
    assert!(files.len() > 8, "{files:?}");
    for name in files.iter().map(|file| file.strip_prefix(&path).unwrap()) {
        // An opening that fails late has replaced files of RocksDB.
        let path = place.join("copy");
        let copied = Command::new("cp").arg("-r").arg(place.join("store")).arg(&path).status().unwrap();
        assert!(copied.success());
        let (file, aside) = (path.join(name), place.join("aside"));
        fs::rename(&file, &aside).unwrap();
        for (what, make) in KINDS {
            make(&file, &foreign);
            refuses(&path, &file, what, &foreign);
            // Reads less, and may need none of it.
            let _ = small().read_only(true).open(&path).map(drop);
            let _ = small().repair(&path, place.join("repaired"), |_| ()).map(drop);
            let _ = fs::remove_dir_all(place.join("repaired"));
            check_untouched(&foreign);
            remove(&file);
        }
        fs::rename(&aside, &file).unwrap();
        assert_rows(&path, 100);
        fs::remove_dir_all(&path).unwrap();
    }
}

/// Names that a closed store does not have, and an opening or a running store uses.
fn in_place_of_missing(place: &Path) {
    let (path, foreign) = (place.join("store"), place.join("foreign"));
    fs::write(&foreign, PRECIOUS).unwrap();
    create(&path, 100);
    for (what, make) in KINDS {
        let lost = path.join("wal/lost-00000000000000ff.txt");
        make(&lost, &foreign);
        refuses(&path, &lost, what, &foreign);
        remove(&lost);
        // Its content is never needed.
        for name in ["STATUS", "STATUS.new"] {
            make(&path.join(name), &foreign);
            let store = small().status_file_interval(std::time::Duration::from_millis(1)).open(&path).unwrap();
            std::thread::sleep(std::time::Duration::from_millis(20));
            let _ = percolite::StoreStatus::read_from(&path);
            store.close().unwrap();
            check_untouched(&foreign);
            if path.join(name).symlink_metadata().is_ok() {
                remove(&path.join(name));
            }
        }
        let new = place.join("new");
        fs::create_dir(&new).unwrap();
        make(&new.join("PERCOLITE.new"), &foreign);
        refuses(&new, &new.join("PERCOLITE.new"), what, &foreign);
        fs::remove_dir_all(&new).unwrap();
    }
    assert_rows(&path, 100);
}

/// As after `cp -al` or a program that links equal files: a change would change the copy as well.
fn second_name(place: &Path) {
    let path = place.join("store");
    create(&path, 100);
    for name in ["RESERVE", "wal/synced"] {
        let link = place.join("copy");
        fs::hard_link(path.join(name), &link).unwrap();
        let before = fs::read(&link).unwrap();
        let error = small().open(&path).map(drop).unwrap_err().to_string();
        assert!(error.contains(name) && error.contains("it has a second name (a hard link)"), "{error}");
        assert_eq!(fs::read(&link).unwrap(), before);
        fs::remove_file(link).unwrap();
    }
    assert_rows(&path, 100);
}

/// `wal` and `tables` may be symlinks to directories. A copy that has the same ones is not opened
/// meanwhile.
fn linked_parts(place: &Path) {
    let path = place.join("store");
    create(&path, 10);
    for part in ["wal", "tables"] {
        fs::rename(path.join(part), place.join(part)).unwrap();
        symlink(place.join(part), path.join(part)).unwrap();
    }
    let store = small().open(&path).unwrap();
    let rows = store.keyspace("rows").unwrap();
    append(&store, &rows, 10..3000).unwrap();
    for shared in ["wal", "tables"] {
        let copy = place.join(format!("copy with the same {shared}"));
        fs::create_dir(&copy).unwrap();
        fs::copy(path.join("PERCOLITE"), copy.join("PERCOLITE")).unwrap();
        for part in ["wal", "tables"] {
            if part == shared {
                symlink(place.join(part), copy.join(part)).unwrap();
            } else {
                // A file that the store removes meanwhile is not copied, and none is read.
                Command::new("cp").arg("-r").arg(place.join(part)).arg(copy.join(part)).output().unwrap();
            }
        }
        for builder in [small(), small().read_only(true)] {
            let error = builder.open(&copy).map(drop).unwrap_err();
            assert!(matches!(error.kind(), ErrorKind::AlreadyOpen(_)), "{error:?}");
            let text = error.to_string();
            assert!(text.contains(&format!("{shared} is already open")) && text.contains("shares this"), "{text}");
        }
    }
    append(&store, &rows, 3000..3010).unwrap();
    store.close().unwrap();
    drop(rows);
    assert_rows(&path, 3010);
}

/// The next opening removes the files of the interrupted creation, and none of another store.
fn linked_while_created(place: &Path) {
    let (other, new) = (place.join("other"), place.join("new"));
    create(&other, 100);
    for part in ["wal", "tables"] {
        fs::create_dir(&new).unwrap();
        fs::write(new.join("PERCOLITE.new"), "").unwrap();
        symlink(other.join(part), new.join(part)).unwrap();
        let error = small().open(&new).map(drop).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::UnrecognizedFormat(_)), "{error}");
        assert!(error.to_string().contains(&format!("new/{part} is not a file of a store")), "{error}");
        fs::remove_dir_all(&new).unwrap();
    }
    assert_rows(&other, 100);
}

fn nested(place: &Path) {
    let (outer, apart) = (place.join("outer"), place.join("apart"));
    create(&outer, 10);
    create(&apart, 10);
    let link = place.join("link");
    symlink(&outer, &link).unwrap();
    let check = |error: percolite::Error| {
        let text = error.to_string();
        assert!(matches!(error.kind(), ErrorKind::Io(_)), "{error:?}");
        assert!(text.contains("among the files of another store, in "), "{text}");
        assert!(text.contains(outer.to_str().unwrap()), "{text}");
    };
    let store = small().open(&apart).unwrap();
    for name in ["tables/inner", "wal/a/inner"] {
        for inner in [outer.join(name), link.join(name)] {
            check(small().open(&inner).map(drop).unwrap_err());
            check(store.checkpoint(&inner).unwrap_err());
            check(small().open(inner.parent().unwrap()).map(drop).unwrap_err());
            assert!(!outer.join("tables/inner").exists() && !outer.join("wal/a").exists(), "{}", inner.display());
        }
    }
    store.close().unwrap();
    check(small().repair(&apart, outer.join("tables/repaired"), |_| ()).map(drop).unwrap_err());
    // One that is there already can be read and moved.
    fs::rename(&apart, outer.join("wal/inner")).unwrap();
    check(small().open(outer.join("wal/inner")).map(drop).unwrap_err());
    small().read_only(true).open(outer.join("wal/inner")).unwrap().close().unwrap();
    // Beside these files it may stay.
    fs::rename(outer.join("wal/inner"), outer.join("inner")).unwrap();
    assert_rows(&outer.join("inner"), 10);
    assert_rows(&outer, 10);
    fs::rename(outer.join("inner"), &apart).unwrap();
    // A directory below a file of that name which is no marker.
    fs::write(place.join("PERCOLITE"), "a shopping list").unwrap();
    assert_rows(&outer, 10);
}

/// The new marker is not locked, but RocksDB has a lock of its own.
fn marker_replaced_for_another(place: &Path) {
    let path = place.join("store");
    create(&path, 10);
    let store = Store::open(&path).unwrap();
    fs::copy(path.join("PERCOLITE"), path.join("copy")).unwrap();
    fs::rename(path.join("copy"), path.join("PERCOLITE")).unwrap();
    let own = small().open(&path).map(drop).unwrap_err();
    assert!(matches!(own.kind(), ErrorKind::AlreadyOpen(_)), "{own}");
    for error in [own.to_string(), crate::run_helper("opens_and_prints_the_error", &path)] {
        assert!(error.contains("already open") && error.contains("the store's marker was replaced"), "{error}");
    }
    let rows = store.existing_keyspace("rows").unwrap();
    // Names are looked at 10 ms after the last look.
    std::thread::sleep(std::time::Duration::from_millis(20));
    let error = put(&store, &rows, 10, Durability::Sync).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Undetermined(_)), "{error}");
    store.close().unwrap_err();
    drop(rows);
    assert_rows(&path, 10);
}

fn opens_and_prints_the_error(path: &Path) {
    let error = small().open(path).map(drop).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::AlreadyOpen(_)), "{error:?}");
    println!("{error}");
}

pub const HELPERS: &[Scenario] = &[scenario("opens_and_prints_the_error", opens_and_prints_the_error)];
