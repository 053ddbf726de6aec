//! Copies of a store: dumps, restores and checkpoints.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use percolite::engine::RowRange;
use percolite::engine::sim::SimStorage;
use percolite::engine::storage::{CellReader, Column};
use percolite::{
    Compression, DumpHeader, DumpOptions, DumpStats, ErrorKind, MAX_KEY_BYTES, OnExisting, RetryPolicy, Store,
    TxnOptions, Value,
};

type Rows = BTreeMap<String, Vec<(Vec<u8>, Value)>>;

fn content(store: &Store) -> Rows {
    let snapshot = store.snapshot().unwrap();
    let rows = |keyspace| snapshot.range(keyspace, ..).map(|row| row.unwrap().into_parts()).collect();
    snapshot.keyspaces().unwrap().iter().map(|keyspace| (keyspace.name().to_owned(), rows(keyspace))).collect()
}

fn dump(store: &Store) -> Vec<u8> {
    let mut dump = Vec::new();
    store.snapshot().unwrap().dump(&mut dump, |_| ()).unwrap();
    dump
}

/// The first line of every dump.
fn first_line() -> Vec<u8> {
    let dump = dump(&Store::in_memory().unwrap());
    dump.split_inclusive(|byte| *byte == b'\n').next().unwrap().to_vec()
}

/// A store with several keyspaces, one of them empty, with keys and values of all lengths, and with
/// enough rows for several blocks.
fn filled() -> Store {
    let store = Store::in_memory().unwrap();
    let (odd, many) = (store.keyspace("odd keys").unwrap(), store.keyspace("many").unwrap());
    store.keyspace("empty").unwrap();
    store.keyspace("gone").unwrap();
    store
        .transact(|txn| {
            for key in [&b"\0"[..], b"\0\xff", &[0xff; 9], &vec![7; MAX_KEY_BYTES]] {
                txn.put(&odd, key, vec![0; key.len() * 40])?;
            }
            txn.put(&odd, "nothing in it", "")?;
            txn.put(&odd, "deleted", "x")?;
            (0..10_000_u32).try_for_each(|n| txn.put(&many, n.to_be_bytes(), n.to_string()))
        })
        .unwrap();
    store.transact(|txn| txn.delete(&odd, "deleted")).unwrap();
    store.drop_keyspace("gone").unwrap();
    store
}

fn cells(memory: &SimStorage, column: Column) -> usize {
    let mut count = 0;
    let counted = |_: &[u8], _: &[u8]| {
        count += 1;
        true
    };
    memory.scan(column, &RowRange::all(), false, counted).unwrap();
    count
}

/// Waits up to a minute for work of the background.
fn eventually(done: impl Fn() -> bool) {
    for _ in 0..6000 {
        if done() {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    panic!("the background has not done it within a minute");
}

#[test]
fn a_restored_store_has_the_same_keyspaces_and_rows() {
    let store = filled();
    let dump = dump(&store);
    let copy = Store::in_memory().unwrap();
    let mut seen = Vec::new();
    let restored = copy.restore(dump.as_slice(), OnExisting::Fail, |so_far| seen.push(so_far.rows)).unwrap();
    assert_eq!((restored.keyspaces, restored.rows), (3, 10_005));
    assert!(seen.is_sorted() && seen.len() > 3, "{seen:?}");
    assert_eq!(content(&copy), content(&store));
    assert!(copy.verify(|_| ()).unwrap().is_ok());
    assert_eq!(self::dump(&copy).len(), dump.len(), "the length of the dump of the copy");
}

#[test]
fn the_oracle_passes_a_dump_from_a_store_whose_clock_was_ahead() {
    // The timestamps of this store are ten reservations ahead of the clock.
    let memory = SimStorage::new();
    for _ in 0..10 {
        let store = Store::builder().open_in_memory(&memory).unwrap();
        store.keyspace("rows").unwrap();
        memory.crash(0);
    }
    let store = Store::builder().open_in_memory(&memory).unwrap();
    let ahead = store.begin().unwrap().start_ts();
    let copy = Store::in_memory().unwrap();
    assert!(copy.begin().unwrap().start_ts() < ahead);
    let dump = dump(&store);
    copy.restore(&dump[..dump.len() - 1], OnExisting::Fail, |_| ()).unwrap_err();
    assert!(copy.begin().unwrap().start_ts() < ahead, "a failed restore has advanced the oracle");
    copy.restore(dump.as_slice(), OnExisting::Fail, |_| ()).unwrap();
    let txn = copy.begin().unwrap();
    assert!(txn.start_ts() > store.snapshot().unwrap().read_ts());
}

#[test]
fn a_dump_shows_one_snapshot_while_others_write() {
    let store = Store::in_memory().unwrap();
    let (left, right) = (store.keyspace("left").unwrap(), store.keyspace("right").unwrap());
    let set = |n: u32| {
        let both = |txn: &mut percolite::Txn| {
            (0..50_u8).try_for_each(|row| {
                txn.put(&left, [row], n.to_string()).and_then(|()| txn.put(&right, [row], n.to_string()))
            })
        };
        store.transact(both).unwrap();
    };
    set(0);
    let snapshot = store.snapshot().unwrap();
    set(1);
    store.drop_keyspace("right").unwrap();
    let mut dump = Vec::new();
    snapshot.dump(&mut dump, |_| ()).unwrap();
    let copy = Store::in_memory().unwrap();
    copy.restore(dump.as_slice(), OnExisting::Fail, |_| ()).unwrap();
    let values: Vec<_> = content(&copy).into_values().flatten().map(|(_, value)| value).collect();
    assert_eq!(values, ["0"; 100]);
}

#[test]
fn a_truncated_or_damaged_dump_restores_nothing() {
    for compression in [Compression::None, Compression::Lz4] {
        cut_off_or_damaged(compression);
    }
}

fn cut_off_or_damaged(compression: Compression) {
    let store = Store::in_memory().unwrap();
    let rows = store.keyspace("rows").unwrap();
    store.transact(|txn| (0..9_u8).try_for_each(|key| txn.put(&rows, [key], "value"))).unwrap();
    let mut whole = Vec::new();
    let options = DumpOptions::default().compression(compression);
    store.snapshot().unwrap().dump_with(options, &mut whole, |_| ()).unwrap();
    let line = whole.iter().position(|byte| *byte == b'\n').unwrap() + 1;
    let memory = SimStorage::new();
    let copy = Store::builder().open_in_memory(&memory).unwrap();
    let refused = |dump: &[u8], what: &str| {
        let error = copy.restore(dump, OnExisting::Fail, |_| ()).expect_err(what);
        assert_eq!(copy.keyspace_names().unwrap(), Vec::<String>::new(), "{what}");
        matches!(error.kind(), ErrorKind::Corruption(_)) || {
            assert!(matches!(error.kind(), ErrorKind::UnrecognizedFormat(_)), "{what}: {error}");
            false
        }
    };
    for length in 0..whole.len() {
        // A dump that is cut off is refused as corruption, an empty file as an unrecognized format.
        assert_eq!(refused(&whole[..length], &format!("cut off at {length}")), length > 0, "{length}");
    }
    for at in 0..whole.len() {
        for bit in 0..8 {
            let mut damaged = whole.clone();
            damaged[at] ^= 1 << bit;
            let what = format!("bit {bit} of byte {at} changed");
            // Damage in the first line is refused as an unrecognized format, other damage as
            // corruption.
            assert_eq!(refused(&damaged, &what), at >= line, "{what}");
        }
    }
    assert!(refused(&[whole.as_slice(), b"\0"].concat(), "a trailing byte"));
    assert!(refused(&[whole.as_slice(), whole.as_slice()].concat(), "twice"));

    // The background deletes what the failed attempts have written, and a restore then works.
    eventually(|| cells(&memory, Column::Write) <= 20);
    copy.restore(whole.as_slice(), OnExisting::Fail, |_| ()).unwrap();
    assert_eq!(content(&copy), content(&store));
}

#[test]
fn a_crashed_restore_leaves_nothing_after_a_reopen() {
    let dump = dump(&filled());
    let memory = SimStorage::new();
    let store = Store::builder().open_in_memory(&memory).unwrap();
    // The power is cut after some blocks, which are durable.
    let blocks = std::cell::Cell::new(0);
    let died = store.restore(dump.as_slice(), OnExisting::Fail, |_| {
        blocks.set(blocks.get() + 1);
        if blocks.get() == 3 {
            store.sync().unwrap();
            memory.crash(0);
        }
    });
    died.unwrap_err();
    drop(store);
    let store = Store::builder().open_in_memory(&memory).unwrap();
    assert!(store.keyspace_names().unwrap().is_empty());
    eventually(|| cells(&memory, Column::Write) <= 20);
    assert_eq!(store.restore(dump.as_slice(), OnExisting::Fail, |_| ()).unwrap().rows, 10_005);
}

#[test]
fn keyspaces_are_replaced_only_on_request_and_atomically() {
    let store = Store::in_memory().unwrap();
    let rows = store.keyspace("rows").unwrap();
    store.transact(|txn| txn.put(&rows, "k", "restored")).unwrap();
    let dump = dump(&store);

    let copy = Store::in_memory().unwrap();
    let (old, other) = (copy.keyspace("rows").unwrap(), copy.keyspace("other").unwrap());
    copy.transact(|txn| txn.put(&old, "k", "old").and_then(|()| txn.put(&other, "k", "stays"))).unwrap();
    let error = copy.restore(dump.as_slice(), OnExisting::Fail, |_| ()).unwrap_err();
    assert!(error.to_string().contains("not empty"), "{error}");

    let before = copy.snapshot().unwrap();
    copy.restore(dump.as_slice(), OnExisting::Replace, |_| ()).unwrap();
    assert_eq!(before.get(&old, "k").unwrap().as_deref(), Some(&b"old"[..]), "a snapshot does not change");
    let error = copy.transact(|txn| txn.put(&old, "k", "late")).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::KeyspaceNotFound(_)), "{error}");
    let new = copy.existing_keyspace("rows").unwrap();
    let snapshot = copy.snapshot().unwrap();
    assert_eq!(snapshot.get(&new, "k").unwrap().as_deref(), Some(&b"restored"[..]));
    assert_eq!(snapshot.get(&other, "k").unwrap().as_deref(), Some(&b"stays"[..]));
}

#[test]
fn other_files_and_other_formats_get_different_errors() {
    let store = Store::in_memory().unwrap();
    let cases = [
        ("", "it is empty"),
        ("{\"key\": 1}\n", "not a percolite dump"),
        ("percolite dump, format 2, build 0.1.0-dev.1\nwhatever", "has format 2"),
        ("percolite dump, format 0\n", "has format 0"),
        ("percolite dump, format 12345678901\n", "not a percolite dump"),
        ("percolite dump, format x\n", "not a percolite dump"),
        ("percolite dump, format +1\n", "not a percolite dump"),
        ("percolite dump, format 1\n", "an older development build, without a build tag"),
        ("percolite dump, format 1, build 0.1.0-dev.0\n", "another development build, 0.1.0-dev.0"),
        ("percolite dump, format 1, build \u{1b}\n", "not a percolite dump"),
    ];
    for (bytes, what) in cases {
        let error = store.restore(bytes.as_bytes(), OnExisting::Fail, |_| ()).unwrap_err();
        assert!(error.to_string().contains(what), "{bytes:?}: {error}");
        assert!(matches!(error.kind(), ErrorKind::UnrecognizedFormat(_)), "{bytes:?}: {error}");
        assert_eq!(DumpHeader::read(bytes.as_bytes()).unwrap_err().to_string(), error.to_string());
    }
    let line = first_line();
    for bytes in [&line[..], &line[..line.len() - 1], b"percolite dump, format 1", b"perc"] {
        let error = store.restore(bytes, OnExisting::Fail, |_| ()).unwrap_err();
        assert!(
            matches!(error.kind(), ErrorKind::Corruption(_)) && error.to_string().contains("is truncated"),
            "{bytes:?}: {error}"
        );
    }
    let packed = [(&b"\x1f\x8b\x08\0"[..], "gzip"), (b"\x28\xb5\x2f\xfd\0", "zstd"), (b"\x04\x22\x4d\x18\x64", "lz4")];
    for (bytes, by) in packed {
        let error = store.restore(bytes, OnExisting::Fail, |_| ()).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::UnrecognizedFormat(_)) && error.to_string().contains(by), "{error}");
    }
}

#[test]
fn random_bytes_are_refused_as_a_dump_without_a_panic() {
    let seed = 19_u64;
    println!("seed {seed}");
    let store = Store::in_memory().unwrap();
    let mut state = seed;
    let mut random = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    for line in [Vec::new(), first_line()] {
        for round in 0..2000_usize {
            let noise = (0..round % 80).map(|_| random().to_le_bytes()[3]);
            let bytes: Vec<u8> = line.iter().copied().chain(noise).collect();
            let error = store.restore(bytes.as_slice(), OnExisting::Fail, |_| ()).unwrap_err();
            assert!(
                matches!(error.kind(), ErrorKind::UnrecognizedFormat(_) | ErrorKind::Corruption(_)),
                "{bytes:?}: {error}"
            );
            drop(DumpHeader::read(bytes.as_slice()));
        }
    }
}

/// A block of a dump, with the right checksum.
fn block(number: u64, content: &[u8]) -> Vec<u8> {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&number.to_be_bytes());
    hasher.update(content);
    let length = u32::try_from(content.len()).unwrap().to_be_bytes();
    [&length[..], &hasher.finalize().to_be_bytes(), content].concat()
}

#[test]
fn a_decompression_bomb_is_refused() {
    let store = Store::in_memory().unwrap();
    let zeros = |length: u32, packed: usize| {
        // In the format of LZ4: one literal byte, and then a match, which repeats it about
        // 255 * `packed` times.
        let lz4 = [&[0x1f, 0, 1, 0][..], &vec![0xff; packed], &[0]].concat();
        let content = [&[1][..], &length.to_be_bytes(), &lz4].concat();
        [first_line(), block(0, &content)].concat()
    };
    let cases = [(u32::MAX, 100), (60 << 20, 1 << 20), (40 << 20, 1000), (1000, 1 << 20), (30 << 20, 1 << 20)];
    for (length, packed) in cases {
        let error = store.restore(zeros(length, packed).as_slice(), OnExisting::Fail, |_| ()).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Corruption(_)), "{length} {packed}: {error}");
        // A block that claims too great a length is refused before memory is allocated for it.
        let is_too_much = length > 40 << 20 || u64::from(length) > 256 * (packed as u64 + 5);
        assert_eq!(error.to_string().contains("too long"), is_too_much, "{length} {packed}: {error}");
    }
}

#[test]
fn a_compressed_dump_is_smaller_and_restores_the_same() {
    let store = filled();
    let sizes = [Compression::None, Compression::Lz4].map(|compression| {
        let mut dump = Vec::new();
        let options = DumpOptions::default().compression(compression);
        store.snapshot().unwrap().dump_with(options, &mut dump, |_| ()).unwrap();
        let copy = Store::in_memory().unwrap();
        copy.restore(dump.as_slice(), OnExisting::Fail, |_| ()).unwrap();
        assert_eq!(content(&copy), content(&store));
        dump.len()
    });
    assert!(sizes[1] * 4 < sizes[0], "{sizes:?}");
}

#[cfg(feature = "rocks")]
#[test]
fn checkpoints_under_load_are_consistent() {
    use std::sync::atomic::{AtomicBool, Ordering};

    const ACCOUNTS: u8 = 20;
    let directory = tempfile::tempdir().unwrap();
    let open = |path: std::path::PathBuf| {
        Store::builder().block_cache_bytes(1 << 20).write_buffer_bytes(4 << 20).open(path).unwrap()
    };
    let store = open(directory.path().join("bank"));
    let (accounts, log) = (store.keyspace("accounts").unwrap(), store.keyspace("log").unwrap());
    store.transact(|txn| (0..ACCOUNTS).try_for_each(|account| txn.put(&accounts, [account], [100]))).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for writer in 0..3_u8 {
            let (store, accounts, log, stop) = (&store, &accounts, &log, &stop);
            scope.spawn(move || {
                for n in 0_u32.. {
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                    let pair = [(n as u8).wrapping_mul(7) % ACCOUNTS, (n as u8).wrapping_mul(13) % ACCOUNTS];
                    store
                        .transact(|txn| {
                            let [from, to] = pair;
                            let balance = txn.get(accounts, [from])?.unwrap()[0];
                            if balance > 0 && from != to {
                                let other = txn.get(accounts, [to])?.unwrap()[0];
                                txn.put(accounts, [from], [balance - 1])?;
                                txn.put(accounts, [to], [other.saturating_add(1)])?;
                                assert!(other < 255);
                            }
                            // Long values, and enough of them for flushes and log switches.
                            txn.put(log, [&[writer][..], &n.to_be_bytes()].concat(), vec![writer; 3000])
                        })
                        .unwrap();
                }
            });
        }
        for round in 0..6 {
            store.transact(|txn| txn.put(&log, "round", [round])).unwrap();
            let path = directory.path().join(format!("copy {round}"));
            store.checkpoint(&path).unwrap();
            let copy = open(path);
            let (accounts, log) = (copy.existing_keyspace("accounts").unwrap(), copy.existing_keyspace("log").unwrap());
            let snapshot = copy.snapshot().unwrap();
            let money: u32 = snapshot.range(&accounts, ..).map(|row| u32::from(row.unwrap().value()[0])).sum();
            assert_eq!(money, u32::from(ACCOUNTS) * 100, "round {round}");
            assert_eq!(
                snapshot.get(&log, "round").unwrap(),
                Some([round].into()),
                "a commit acknowledged before the checkpoint is missing"
            );
            let verified = copy.verify(|_| ()).unwrap();
            assert!(verified.is_ok(), "{:?}", verified.issues);
            copy.transact(|txn| txn.put(&log, "own", "life")).unwrap();
        }
        stop.store(true, Ordering::Relaxed);
    });
    let error = store.checkpoint(directory.path().join("copy 0")).unwrap_err();
    assert!(error.to_string().contains("already exists"), "{error}");
    let error = Store::in_memory().unwrap().checkpoint(directory.path().join("of memory")).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::InvalidArgument(_)), "{error}");
}

#[cfg(feature = "rocks")]
#[test]
fn a_checkpoint_leaves_existing_directories_alone() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path().join("store")).unwrap();
    let (copy, other) = (directory.path().join("copy"), directory.path().join("copy.tmp"));
    for path in [&copy, &other] {
        std::fs::create_dir(path).unwrap();
        std::fs::write(path.join("precious"), "text").unwrap();
    }
    for path in [copy.clone(), copy.join("")] {
        let error = store.checkpoint(path).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Io(_)) && error.to_string().contains("already exists"), "{error}");
    }
    std::fs::rename(&copy, directory.path().join("elsewhere")).unwrap();
    store.checkpoint(copy.join("")).unwrap();
    for path in [&other, &directory.path().join("elsewhere")] {
        assert_eq!(std::fs::read(path.join("precious")).unwrap(), b"text");
    }
    assert!(Store::open(&copy).unwrap().verify(|_| ()).unwrap().is_ok());
}

#[cfg(feature = "rocks")]
#[test]
fn a_checkpoint_without_its_marker_is_no_store() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path().join("store")).unwrap();
    let copy = directory.path().join("copy");
    store.checkpoint(&copy).unwrap();
    std::fs::rename(copy.join("PERCOLITE"), copy.join("PERCOLITE.copy")).unwrap();
    let Err(error) = Store::open(&copy) else { panic!("the store was opened") };
    assert!(matches!(error.kind(), ErrorKind::UnrecognizedFormat(_)), "{error}");
}

/// With a small conflict cache, lock-only rows of other transactions cause spurious conflicts.
#[test]
fn a_restore_does_not_conflict_with_other_transactions() {
    let dump = dump(&filled());
    // The restore's short transactions on the catalog succeed within thirty attempts. Those that
    // write the rows take longer, and succeed only because they do not check for conflicts.
    let few = RetryPolicy::default().max_attempts(30).timeout(Duration::from_secs(60));
    let store = Store::builder().conflict_set_rows(1).retry_policy(few).in_memory().unwrap();
    let busy = store.keyspace("busy").unwrap();
    let usual = TxnOptions::default().retry_policy(RetryPolicy::default());
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for client in 0..2 {
            let (store, busy, done) = (&store, &busy, &done);
            scope.spawn(move || {
                for number in 0..1_000_000 {
                    if done.load(Ordering::Relaxed) {
                        return;
                    }
                    let held = store.transact_with(usual, |txn| txn.get_for_update(busy, format!("{client} {number}")));
                    held.unwrap();
                }
            });
        }
        let restored = store.restore(dump.as_slice(), OnExisting::Replace, |_| ());
        done.store(true, Ordering::Relaxed);
        restored.unwrap();
    });
}

#[test]
fn a_cancelled_dump_or_restore_leaves_nothing_usable() {
    let store = filled();
    let dump = dump(&store);
    let mut part = Vec::new();
    let stopped = store.snapshot().unwrap().dump(&mut part, |_| ControlFlow::Break(())).unwrap_err();
    assert!(matches!(stopped.kind(), ErrorKind::Cancelled(_)) && part.len() < dump.len(), "{stopped}");
    let copy = Store::in_memory().unwrap();
    let refused = copy.restore(part.as_slice(), OnExisting::Fail, |_| ()).unwrap_err();
    assert!(matches!(refused.kind(), ErrorKind::Corruption(_)), "{refused}");
    let some = |so_far: &DumpStats| if so_far.rows > 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) };
    let stopped = copy.restore(dump.as_slice(), OnExisting::Fail, some).unwrap_err();
    assert!(matches!(stopped.kind(), ErrorKind::Cancelled(_)), "{stopped}");
    assert!(stopped.to_string().contains("nothing was restored"), "{stopped}");
    assert!(copy.keyspace_names().unwrap().is_empty());
    copy.restore(dump.as_slice(), OnExisting::Fail, |_| ()).unwrap();
    assert_eq!(content(&copy), content(&store));
}
