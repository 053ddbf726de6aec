//! Limits, standard streams, signals and rights that change while a store is open.

use std::path::{Path, PathBuf};

use percolite::{Durability, ErrorKind, SpaceLeft};

use crate::rows::{append, append_until_error, assert_rows, create, key, put, small};
use crate::unix::{self, Limit};
use crate::{Scenario, as_root, helper, scenario};

pub const SCENARIOS: &[Scenario] = &[
    scenario("standard_streams_are_closed_before_opening", streams_closed_before),
    scenario("standard_streams_are_closed_while_open", streams_closed_while_open),
    scenario("the_limit_of_open_files_falls", open_files),
    scenario("the_limit_of_file_size_falls", file_size),
    scenario("the_limit_of_memory_falls", memory),
    scenario("signals_interrupt_every_call", signals),
    scenario("the_umask_forbids_everything", umask),
    scenario("the_quota_of_the_disk_is_used_up", quota),
    as_root("the_user_changes_while_open", user_changes),
];

/// Prints to a stream that the program has closed.
fn print() {
    for stream in 0..3 {
        let error = unix::write(stream, "the program's own text, which belongs into no file of a store\n").unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EBADF), "stream {stream}");
    }
}

fn streams_closed_before(place: &Path) {
    let path = place.join("store");
    create(&path, 10);
    (0..3).for_each(unix::close);
    let store = small().open(&path).unwrap();
    let rows = store.keyspace("rows").unwrap();
    for number in 10..4000 {
        append(&store, &rows, number..number + 1).unwrap();
        print();
    }
    store.close().unwrap();
    print();
    assert_rows(&path, 4000);
}

fn streams_closed_while_open(place: &Path) {
    let path = place.join("store");
    create(&path, 10);
    let store = small().open(&path).unwrap();
    let rows = store.keyspace("rows").unwrap();
    (0..3).for_each(unix::close);
    append(&store, &rows, 10..4000).unwrap();
    print();
    store.close().unwrap();
    assert_rows(&path, 4000);
}

fn open_files(place: &Path) {
    let path = place.join("store");
    create(&path, 10);
    let store = small().open(&path).unwrap();
    let rows = store.keyspace("rows").unwrap();
    unix::lower(Limit::Files, unix::open_files());
    let mut number = 10;
    while number < 40_000 && append(&store, &rows, number..number + 1).is_ok() {
        number += 1;
    }
    let _ = store.close();
    drop(rows);
    unix::lower(Limit::Files, 1000);
    assert_rows(&path, number);
}

/// The signal of the limit is ignored here; its default ends the process.
fn file_size(place: &Path) {
    let path = place.join("store");
    create(&path, 10);
    let store = small().open(&path).unwrap();
    let rows = store.keyspace("rows").unwrap();
    unix::ignore_signal(libc::SIGXFSZ);
    unix::lower(Limit::FileSize, 300 << 10);
    let (number, error) = append_until_error(&store, &rows, 10);
    assert!(matches!(error.kind(), ErrorKind::Undetermined(_)), "{error}");
    store.close().unwrap_err();
    drop(rows);
    unix::lower(Limit::FileSize, u64::MAX);
    assert_rows(&path, number);
}

/// Without memory the process may end at any time. What it had acknowledged is there.
fn memory(place: &Path) {
    let path = place.join("store");
    create(&path, 10);
    let ended = helper("commits_without_memory", &path).output().unwrap();
    let acknowledged = String::from_utf8_lossy(&ended.stdout);
    let number = acknowledged.lines().last().map_or(10, |line| line.parse().unwrap());
    assert_rows(&path, number);
}

/// Prints the number of acknowledged rows after each commit.
fn commits_without_memory(path: &Path) {
    let store = small().open(path).unwrap();
    let rows = store.keyspace("rows").unwrap();
    let used = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = used.split(' ').next().unwrap().parse().unwrap();
    // Enough for some commits.
    unix::lower(Limit::AddressSpace, pages * 4096 + (4 << 20));
    for number in 10..20_000 {
        if put(&store, &rows, number, Durability::Sync).is_err() {
            break;
        }
        println!("{}", number + 1);
    }
}

pub const HELPERS: &[Scenario] = &[
    scenario("commits_without_memory", commits_without_memory),
    scenario("opens_and_deletes_within_the_quota", opens_within_quota),
];

/// As on a full disk, the reserve is given up, and rows can be deleted. The disk has free space,
/// of which the user may take no more.
fn quota(place: &Path) {
    let path = place.join("store");
    create(&path, 10);
    let inject = "pwrite64:error=EDQUOT:when=1 fallocate:error=EDQUOT:when=1..20";
    // Threads are counted apart, so the faults are those of files that the opening thread writes.
    let files = [path.join("wal/0000000002.segment"), path.join("RESERVE")];
    let mut command = crate::access::faulty(
        inject,
        &files.each_ref().map(PathBuf::as_path),
        "opens_and_deletes_within_the_quota",
        &path,
    );
    let ended = command.output().unwrap();
    let (text, errors) = (String::from_utf8_lossy(&ended.stdout), String::from_utf8_lossy(&ended.stderr));
    assert!(ended.status.success(), "{}\n{text}\n{errors}", ended.status);
    assert_rows(&path, 9);
}

/// The first write of each thread to the log fails, and the first attempts to make the reserve
/// again. So the store does not close without an error.
fn opens_within_quota(path: &Path) {
    let store = small().open(path).unwrap();
    let rows = store.keyspace("rows").unwrap();
    assert_eq!(store.engine_stats().unwrap().space_left, SpaceLeft::ForDeletions);
    let error = put(&store, &rows, 10, Durability::Sync).unwrap_err();
    assert!(error.to_string().contains("nothing can be put until"), "{error}");
    store.transact(|txn| txn.delete(&rows, key(9))).unwrap();
}

fn signals(place: &Path) {
    let path = place.join("store");
    create(&path, 10);
    let store = small().open(&path).unwrap();
    let rows = store.keyspace("rows").unwrap();
    unix::interrupt_all_the_time(libc::SIGUSR1);
    append(&store, &rows, 10..6000).unwrap();
    store.checkpoint(place.join("copy")).unwrap();
    store.close().unwrap();
    assert_rows(&path, 6000);
    assert_rows(&place.join("copy"), 6000);
}

/// The superuser may read files without any right; other users get an error: see `access`.
fn umask(place: &Path) {
    let path = place.join("store");
    create(&path, 10);
    let store = small().open(&path).unwrap();
    let rows = store.keyspace("rows").unwrap();
    unix::umask(0o777);
    let mut number = 10;
    while number < 6000 && append(&store, &rows, number..number + 1).is_ok() {
        number += 1;
    }
    let closed = store.close();
    drop(rows);
    assert_eq!(closed.is_ok(), number == 6000);
    unix::umask(0o022);
    crate::access::allow_everything(&path);
    assert_rows(&path, number);
}

/// A daemon that opens its store as the superuser and then becomes another user.
fn user_changes(place: &Path) {
    let path = place.join("store");
    create(&path, 10);
    let program = crate::access::program_for_all(place);
    let number: u64 = crate::access::run(&program, "opens_and_changes_its_user", &path, None)
        .lines()
        .last()
        .unwrap()
        .parse()
        .unwrap();
    assert!(number > 10);
    assert_rows(&path, number);
}
