//! A log that is damaged in the middle: never without a word.

use std::fs;
use std::path::{Path, PathBuf};

use percolite::{Builder, DumpHeader, DumpOptions, ErrorKind, Store};

const BLOCK: usize = 32 << 10;
const COMMITS: u32 = 600;

fn small() -> Builder {
    Store::builder().cache_bytes(1 << 20).write_buffer_bytes(4 << 20).sweep(false)
}

/// What a killed process leaves: some hundred acknowledged commits in the log.
fn killed(folder: &Path) -> PathBuf {
    let store = small().open(folder.join("alive")).unwrap();
    let rows = store.keyspace("rows").unwrap();
    for n in 0..COMMITS {
        store.transact(|txn| txn.put(&rows, n.to_be_bytes(), vec![7; 100])).unwrap();
    }
    let killed = image(&folder.join("alive"), &folder.join("killed"));
    change(&log(&killed), |bytes| bytes.truncate(written(bytes)));
    killed
}

/// How long a log is without the room behind its records, which end with a value of sevens.
fn written(log: &[u8]) -> usize {
    log.len() - log.iter().rev().take_while(|byte| **byte == 0).count()
}

fn image(from: &Path, to: &Path) -> PathBuf {
    fs::create_dir(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
    to.to_owned()
}

fn named(folder: &Path, end: &str) -> Vec<PathBuf> {
    let mut found: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    found.retain(|path| path.to_string_lossy().ends_with(end));
    found.sort();
    found
}

/// The dumps may have what the store has lost, so a chain of increments ends with the loss, also when its traces are moved away.
#[test]
fn no_increment_follows_a_dump_of_what_was_lost() {
    let folder = tempfile::tempdir().unwrap();
    let history = || small().history(std::time::Duration::from_secs(3600));
    let store = history().open(folder.path().join("alive")).unwrap();
    let rows = store.keyspace("rows").unwrap();
    (0..50_u32).for_each(|n| store.transact(|txn| txn.put(&rows, n.to_be_bytes(), vec![7; 100])).unwrap());
    let mut dump = Vec::new();
    store.snapshot().unwrap().dump(&mut dump, |_| ()).unwrap();
    let damaged = image(&folder.path().join("alive"), &folder.path().join("damaged"));
    change(&log(&damaged), |bytes| {
        let middle = written(bytes) / 2;
        bytes[middle] ^= 1;
    });
    let refusal = || {
        let store = history().open(&damaged).unwrap();
        let since = DumpOptions::since(DumpHeader::read(dump.as_slice()).unwrap());
        let why = store.snapshot().unwrap().dump_with(since, Vec::new(), |_| ()).unwrap_err();
        assert!(matches!(why.kind(), ErrorKind::InvalidArgument(_)), "{why}");
        why.to_string()
    };
    let before = refusal();
    let kept = named(&damaged, ".kept");
    assert!(before.contains("lost") && !kept.is_empty(), "{before}");
    kept.iter().for_each(|file| fs::remove_file(file).unwrap());
    assert_eq!(refusal(), before);
}

fn log(folder: &Path) -> PathBuf {
    named(folder, ".log").pop().unwrap()
}

fn change(path: &Path, change: impl FnOnce(&mut Vec<u8>)) {
    let mut bytes = fs::read(path).unwrap();
    change(&mut bytes);
    fs::write(path, bytes).unwrap();
}

/// How many commits there are, all of them from the first one on.
fn prefix(store: &Store) -> u32 {
    let rows = store.existing_keyspace("rows").unwrap();
    let snapshot = store.snapshot().unwrap();
    let keys: Vec<_> = snapshot.range(&rows, ..).map(|row| row.unwrap().0).collect();
    let wanted: Vec<_> = (0..keys.len() as u32).map(|n| n.to_be_bytes().to_vec()).collect();
    assert_eq!(keys, wanted, "no prefix");
    keys.len() as u32
}

#[test]
fn a_flipped_bit_in_front_of_whole_records_is_told_in_every_life_and_the_log_is_kept() {
    let folder = tempfile::tempdir().unwrap();
    let place = killed(folder.path());
    let log = log(&place);
    let middle = fs::metadata(&log).unwrap().len() / 2;
    change(&log, |bytes| bytes[middle as usize] ^= 4);
    let damaged = fs::read(&log).unwrap();

    // Read-only: told, and nothing is kept.
    let store = small().read_only(true).open(&place).unwrap();
    let told = store.lost_logs();
    assert_eq!((told.len(), &told[0].file), (1, &log));
    assert!(told[0].offset <= middle && told[0].offset + 400 > middle, "{told:?}");
    let rest = damaged.len() as u64 - told[0].offset;
    assert!(told[0].bytes > rest - 1000 && told[0].bytes < rest, "{told:?} of {rest}");
    let verified = store.verify(|_| ()).unwrap();
    assert!(!verified.is_sound() && verified.problems.is_empty(), "{:?}", verified.problems);
    assert_eq!(verified.lost_logs, told);
    assert!(told[0].to_string().contains("acknowledged ones may be among them"));
    drop(store);
    assert!(named(&place, ".kept").is_empty());

    // Writers come and go.
    let mut written = 0;
    for life in 0..3 {
        let store = small().open(&place).unwrap();
        let kept = store.lost_logs();
        assert_eq!((kept.len(), kept[0].offset, kept[0].bytes), (1, told[0].offset, told[0].bytes), "life {life}");
        assert_eq!(named(&place, ".kept"), [kept[0].file.clone()]);
        assert_eq!(fs::read(&kept[0].file).unwrap(), damaged);
        assert!(!store.verify(|_| ()).unwrap().is_sound());
        written = prefix(&store);
        assert!(written > 100 && written < COMMITS, "{written}");
        let rows = store.existing_keyspace("rows").unwrap();
        store.transact(|txn| txn.put(&rows, written.to_be_bytes(), "again")).unwrap();
        store.close().unwrap();
    }

    // A copy has nothing of it, nor has the store when somebody has seen to it.
    let store = small().open(&place).unwrap();
    let copy = folder.path().join("copy");
    store.checkpoint(&copy).unwrap();
    drop(store);
    assert!(named(&copy, ".kept").is_empty());
    fs::remove_file(named(&place, ".kept").pop().unwrap()).unwrap();
    for place in [copy, place] {
        let store = small().open(&place).unwrap();
        assert!(store.lost_logs().is_empty() && store.verify(|_| ()).unwrap().is_sound());
        assert_eq!(prefix(&store), written + 1);
    }
}

#[test]
fn a_repair_tells_of_a_damaged_log_before_and_after_the_next_writer() {
    let folder = tempfile::tempdir().unwrap();
    let place = killed(folder.path());
    change(&log(&place), |bytes| {
        let middle = bytes.len() / 2;
        bytes[middle] ^= 4;
    });
    for life in ["before", "after"] {
        let repaired = small().repair(&place, folder.path().join(life), |_| ()).unwrap();
        assert!(repaired.losses.iter().any(|loss| loss.what.contains("log")), "{life}: {:?}", repaired.losses);
        small().open(&place).unwrap().close().unwrap();
    }
}

#[test]
fn what_a_crash_leaves_is_no_news() {
    let folder = tempfile::tempdir().unwrap();
    let place = killed(folder.path());
    let whole = fs::read(log(&place)).unwrap();
    for (n, length) in (whole.len() - 200..=whole.len()).step_by(9).chain([BLOCK + 3, 2 * BLOCK - 1]).enumerate() {
        for zeros in [0, 5000] {
            let place = image(&place, &folder.path().join(format!("{n} {zeros}")));
            change(&log(&place), |bytes| {
                bytes.truncate(length);
                bytes.resize(length + zeros, 0);
            });
            for read_only in [true, false] {
                let store = small().read_only(read_only).open(&place).unwrap();
                assert!(store.lost_logs().is_empty(), "cut off at {length}: {:?}", store.lost_logs());
                assert!(prefix(&store) <= COMMITS);
            }
            assert!(named(&place, ".kept").is_empty());
        }
    }
}

#[test]
fn a_log_that_an_earlier_life_has_recovered_and_not_deleted_is_no_news() {
    let folder = tempfile::tempdir().unwrap();
    let place = killed(folder.path());
    let old = log(&place);
    change(&old, |bytes| bytes.truncate(bytes.len() - 10));
    let torn = fs::read(&old).unwrap();
    let store = small().open(&place).unwrap();
    let rows = store.existing_keyspace("rows").unwrap();
    for n in COMMITS - 1..COMMITS + 100 {
        store.transact(|txn| txn.put(&rows, n.to_be_bytes(), vec![7; 100])).unwrap();
    }
    let next = image(&place, &folder.path().join("next"));
    fs::write(next.join(old.file_name().unwrap()), &torn).unwrap();
    assert_eq!(named(&next, ".log").len(), 2);
    for read_only in [true, false] {
        let store = small().read_only(read_only).open(&next).unwrap();
        assert!(store.lost_logs().is_empty(), "{:?}", store.lost_logs());
        assert_eq!(prefix(&store), COMMITS + 100);
    }
}

/// Where the records of a block begin, and where the last one ends.
fn records(log: &[u8], block: usize) -> Vec<usize> {
    let (mut at, end) = (block * BLOCK, (block + 1) * BLOCK);
    let mut found = vec![at];
    while at + 7 <= end {
        at += 7 + usize::from(u16::from_le_bytes([log[at + 4], log[at + 5]]));
        found.push(at);
    }
    found
}

#[test]
fn a_hole_of_zeros_up_to_the_end_of_a_block_is_not_read_over() {
    let folder = tempfile::tempdir().unwrap();
    let alive = folder.path().join("alive");
    let store = small().open(&alive).unwrap();
    let rows = store.keyspace("rows").unwrap();
    let length = || written(&fs::read(log(&alive)).unwrap());
    // Until a block begins with a whole record.
    let (mut n, mut overhead) = (0_u32, 0);
    let block = loop {
        let before = length();
        let room = BLOCK - before % BLOCK;
        let size = if overhead > 0 && room > overhead + 130 && room < overhead + 250 { room - overhead } else { 100 };
        store.transact(|txn| txn.put(&rows, n.to_be_bytes(), vec![7; size])).unwrap();
        n += 1;
        let grown = length() - before;
        if size == 100 && room > 1000 {
            // A value of 128 bytes or more has a length of two bytes, in three places.
            overhead = grown - size + 3;
        }
        if size != 100 && length().is_multiple_of(BLOCK) || BLOCK - length() % BLOCK < 7 {
            break length() / BLOCK - usize::from(length().is_multiple_of(BLOCK));
        }
        assert!(n < 20_000, "no such block");
    };
    for _ in 0..300 {
        store.transact(|txn| txn.put(&rows, n.to_be_bytes(), vec![7; 100])).unwrap();
        n += 1;
    }
    let place = image(&alive, &folder.path().join("hole"));
    let log = log(&place);
    change(&log, |bytes| {
        assert_eq!(bytes[(block + 1) * BLOCK + 6], 1, "the next block begins with a whole record");
        let records = records(bytes, block);
        let from = records[records.len() / 2];
        bytes[from..(block + 1) * BLOCK].fill(0);
    });
    let holed = fs::read(&log).unwrap();
    let Err(why) = small().read_only(true).open(&place) else { panic!("it was read over the hole") };
    assert!(matches!(why.kind(), ErrorKind::Corruption(text) if text.contains("damaged")), "{why}");
    let repaired = small().repair(&place, folder.path().join("repaired"), |_| ()).unwrap();
    assert!(!repaired.is_whole());
    for life in 0..2 {
        let store = small().open(&place).unwrap();
        let found = prefix(&store);
        assert!(found > 10 && found < n - 300, "{found} of {n}");
        let kept = store.lost_logs();
        assert!(kept.len() == 1 && kept[0].bytes > 300 * 100, "life {life}: {kept:?}");
        assert_eq!(fs::read(&kept[0].file).unwrap(), holed);
    }
}
