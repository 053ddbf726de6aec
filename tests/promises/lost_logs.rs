//! A damaged write-ahead log: acknowledged commits are dropped only with the operator's consent,
//! and a torn tail is no data loss.

use std::fs;
use std::path::{Path, PathBuf};

use percolite::{Builder, DumpHeader, DumpOptions, Durability, Error, ErrorKind, Store};

use crate::directories::{FRAMES_AT, change, copy_directory, files, frames, payload, segment, state};

const COMMITS: u32 = 200;

fn small() -> Builder {
    Store::builder().block_cache_bytes(1 << 20).write_buffer_bytes(4 << 20).background_resolve(false)
}

/// A store that was closed, with commits in its log.
fn closed(directory: &Path) -> PathBuf {
    let path = directory.join("closed");
    let store = small().open(&path).unwrap();
    let rows = store.keyspace("rows").unwrap();
    for n in 0..COMMITS {
        store.transact(|txn| txn.put(&rows, n.to_be_bytes(), vec![7; 100])).unwrap();
    }
    store.close().unwrap();
    path
}

fn damage_in_the_middle(store: &Path) {
    change(&segment(store), |bytes| {
        let frames = frames(bytes);
        bytes[payload(frames[frames.len() / 2]) + 5] ^= 4;
    });
}

/// The fingerprint that the error names.
fn fingerprint(refusal: &Error) -> u64 {
    assert!(matches!(refusal.kind(), ErrorKind::Corruption(_)), "{refusal}");
    let text = refusal.to_string();
    let number = text.split("accept_data_loss(0x").nth(1).unwrap().split(')').next().unwrap();
    u64::from_str_radix(number, 16).unwrap()
}

fn refused(builder: Builder, path: &Path) -> Error {
    let Err(error) = builder.open(path) else { panic!("the store was opened") };
    error
}

/// The number of commits that are there. They must be the first ones, without a gap.
fn prefix(store: &Store) -> u32 {
    let rows = store.existing_keyspace("rows").unwrap();
    let snapshot = store.snapshot().unwrap();
    let keys: Vec<_> = snapshot.range(&rows, ..).map(|row| row.unwrap().key().to_vec()).collect();
    let wanted: Vec<_> = (0..keys.len() as u32).map(|n| n.to_be_bytes().to_vec()).collect();
    assert_eq!(keys, wanted, "the commits are no prefix");
    keys.len() as u32
}

#[test]
fn lost_commits_need_the_fingerprint_to_open() {
    let directory = tempfile::tempdir().unwrap();
    let path = closed(directory.path());
    damage_in_the_middle(&path);
    let (damaged, segment) = (state(&path), segment(&path));
    let was = fs::read(&segment).unwrap();
    let error = refused(small(), &path);
    let accepted = fingerprint(&error);
    for way in ["backup", "Builder::repair", "were durable and cannot be read"] {
        assert!(error.to_string().contains(way), "{error}");
    }
    assert_eq!(fingerprint(&refused(small().read_only(true), &path)), accepted);
    assert_eq!(fingerprint(&refused(small().accept_data_loss(accepted ^ 1), &path)), accepted);
    // Only the segment is compared, because RocksDB writes its info log at each opening.
    let assert_segment_is_unchanged = |state: Vec<(PathBuf, Vec<u8>)>| {
        let kept = damaged.iter().filter(|file| state.contains(file)).map(|(path, _)| path.clone());
        assert!(kept.into_iter().any(|path| path == segment));
    };
    assert_segment_is_unchanged(state(&path));

    let store = small().accept_data_loss(accepted).open(&path).unwrap();
    let there = prefix(&store);
    assert!((COMMITS / 3..COMMITS * 2 / 3).contains(&there), "{there}");
    let lost = store.data_losses();
    assert_eq!((lost.len(), lost[0].fingerprint), (1, accepted));
    assert_eq!(fs::read(&lost[0].file).unwrap(), was, "the damaged segment is not in quarantine");
    assert!(
        lost[0].lost_bytes > 50 * 100 && lost[0].to_string().contains("acknowledged commits were lost"),
        "{lost:?}"
    );
    let verified = store.verify(|_| ()).unwrap();
    assert!(!verified.is_ok() && verified.issues.is_empty() && verified.data_losses == lost);
    let rows = store.existing_keyspace("rows").unwrap();
    store.transact(|txn| txn.put(&rows, there.to_be_bytes(), "again")).unwrap();
    store.close().unwrap();

    // Every later incarnation reports the loss until the quarantined files are deleted. A
    // checkpoint does not report it.
    for read_only in [false, true] {
        let store = small().read_only(read_only).open(&path).unwrap();
        assert_eq!((store.data_losses(), prefix(&store)), (lost.clone(), there + 1));
    }
    let copy = directory.path().join("copy");
    small().open(&path).unwrap().checkpoint(&copy).unwrap();
    files(&path, "lost-").iter().for_each(|file| fs::remove_file(file).unwrap());
    for place in [copy, path] {
        let store = small().open(&place).unwrap();
        assert!(store.data_losses().is_empty() && store.verify(|_| ()).unwrap().is_ok());
        assert_eq!(prefix(&store), there + 1);
    }
}

#[test]
fn a_fingerprint_without_a_loss_changes_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let path = closed(directory.path());
    let store = small().accept_data_loss(7).open(&path).unwrap();
    assert_eq!((prefix(&store), store.data_losses()), (COMMITS, vec![]));
}

/// The sync record proves that all frames of a closed log were durable. A segment has two copies of
/// its header, so damage to one of them is harmless.
#[test]
fn damage_to_any_frame_of_a_closed_log_is_detected() {
    let directory = tempfile::tempdir().unwrap();
    let path = closed(directory.path());
    let bytes = fs::read(segment(&path)).unwrap();
    let frames = frames(&bytes);
    let places = frames.iter().map(|frame| (payload(*frame), false)).step_by(9);
    let places = places.chain([(payload(frames[frames.len() - 1]), false), (40, true), (4096 + 40, true)]);
    for (place, opens) in places {
        let copy = tempfile::tempdir().unwrap();
        copy_directory(&path, copy.path());
        change(&segment(copy.path()), |bytes| bytes[place] ^= 1);
        let opened = small().open(copy.path());
        assert_eq!(opened.is_ok(), opens, "byte {place}");
        match opened {
            Ok(store) => assert_eq!(prefix(&store), COMMITS),
            Err(error) => assert!(fingerprint(&error) > 0),
        }
    }
}

#[test]
fn a_missing_log_is_a_data_loss() {
    let directory = tempfile::tempdir().unwrap();
    let path = closed(directory.path());
    files(&path.join("wal"), "").iter().for_each(|file| fs::remove_file(file).unwrap());
    let accepted = fingerprint(&refused(small(), &path));
    let store = small().accept_data_loss(accepted).open(&path).unwrap();
    assert!(store.keyspace_names().unwrap().is_empty());
    assert_eq!(store.data_losses().len(), 1);
}

/// A closed store of which the newest segment, as a file, is not what it was.
#[test]
fn damage_to_the_newest_segment_of_a_closed_store_is_detected() {
    let directory = tempfile::tempdir().unwrap();
    let path = closed(directory.path());
    let segments = crate::directories::segments(&path);
    let [newest, spare] = segments.as_slice() else { panic!("{segments:?}") };
    let bytes = fs::read(newest).unwrap();
    let end = frames(&bytes).last().map(|frame| payload(*frame) + frame.1).unwrap();
    let inside = |directory: &Path, file: &Path| directory.join(file.strip_prefix(&path).unwrap());
    let check = |what: &str, damage: &dyn Fn(&Path, &Path)| {
        let copy = tempfile::tempdir().unwrap();
        copy_directory(&path, copy.path());
        damage(&inside(copy.path(), newest), &inside(copy.path(), spare));
        let accepted = fingerprint(&refused(small(), copy.path()));
        assert_eq!(fingerprint(&refused(small().read_only(true), copy.path())), accepted, "{what}");
        let store = small().accept_data_loss(accepted).open(copy.path()).unwrap();
        let left = if store.keyspace_names().unwrap().is_empty() { 0 } else { prefix(&store) };
        assert!(left <= COMMITS && store.data_losses().len() == 1, "{what}: {left}");
        store.close().unwrap();
        for read_only in [true, false] {
            small().read_only(read_only).open(copy.path()).unwrap_or_else(|error| panic!("{what}: {error}"));
        }
    };
    let set_len = |file: &Path, length: usize| change(file, |bytes| bytes.resize(length, 0));
    for length in [0, 1, 127, 128, 4096, 8192, 8193, end / 2, end - 1] {
        check(&format!("cut to {length}"), &|newest, _| set_len(newest, length));
    }
    check("missing", &|newest, _| fs::remove_file(newest).unwrap());
    check("missing, with the spare one", &|newest, spare| {
        fs::remove_file(newest).unwrap();
        fs::remove_file(spare).unwrap();
    });
    check("renamed", &|newest, _| fs::rename(newest, newest.with_extension("old")).unwrap());
    check("renamed to the next", &|newest, spare| fs::rename(newest, spare).unwrap());
    check("replaced by the spare one", &|newest, spare| fs::rename(spare, newest).unwrap());
    check("swapped with the spare one", &|newest, spare| {
        fs::rename(newest, newest.with_extension("old")).unwrap();
        fs::rename(spare, newest).unwrap();
        fs::rename(newest.with_extension("old"), spare).unwrap();
    });
    check("an older copy", &|newest, _| change(newest, |bytes| bytes[end / 2..].fill(0)));
}

#[test]
fn a_torn_tail_after_a_crash_is_no_data_loss() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("alive");
    let store = small().durability(Durability::Buffered).open(&path).unwrap();
    let rows = store.keyspace("rows").unwrap();
    for n in 0..COMMITS {
        store.transact(|txn| txn.put(&rows, n.to_be_bytes(), vec![7; 100])).unwrap();
    }
    let killed = directory.path().join("killed");
    copy_directory(&path, &killed);
    // The sync record may have been copied after the segment, and describe a later state.
    fs::remove_file(killed.join("wal/synced")).unwrap();
    let whole = fs::read(segment(&killed)).unwrap();
    let (at, length) = *frames(&whole).last().unwrap();
    // The background syncs the log from time to time. Each frame names the sequence number that was
    // durable when the frame was written. A crash cannot lose frames up to the number that the last
    // frame names, so all cuts are after those frames.
    let number = |at: usize| u64::from_le_bytes(whole[at..at + 8].try_into().unwrap());
    let is_durable = |frame: &&(usize, usize)| number(frame.0 + 8) <= number(at + 16);
    let synced = frames(&whole).iter().rfind(is_durable).map_or(FRAMES_AT, |(at, length)| at + 24 + length);
    let mut found = 0;
    for (number, cut) in (synced + 100..=at + 24 + length).step_by(701).enumerate() {
        let copy = tempfile::tempdir().unwrap();
        copy_directory(&killed, copy.path());
        change(&segment(copy.path()), |bytes| match number % 2 {
            0 => bytes[cut..].fill(0),
            // One page was not written, although later ones were.
            _ => bytes[cut..].iter_mut().take(4096).for_each(|byte| *byte = 0),
        });
        let store = small().open(copy.path()).unwrap_or_else(|error| panic!("cut at {cut}: {error}"));
        let there = prefix(&store);
        assert!(there >= found && store.data_losses().is_empty(), "cut at {cut}: {there}");
        found = there;
    }
    assert!(found > COMMITS * 9 / 10, "{found}");
}

/// A dump may have commits that the store has lost. So a chain of increments ends at a data loss,
/// even after the quarantined files are deleted.
#[test]
fn a_dump_of_lost_commits_is_no_base_for_an_increment() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store");
    let history = || small().history_retention(std::time::Duration::from_secs(3600));
    let store = history().open(&path).unwrap();
    let rows = store.keyspace("rows").unwrap();
    (0..50_u32).for_each(|n| store.transact(|txn| txn.put(&rows, n.to_be_bytes(), vec![7; 100])).unwrap());
    let mut dump = Vec::new();
    store.snapshot().unwrap().dump(&mut dump, |_| ()).unwrap();
    store.close().unwrap();
    damage_in_the_middle(&path);
    let accepted = fingerprint(&refused(history(), &path));
    let refusal = || {
        let store = history().accept_data_loss(accepted).open(&path).unwrap();
        let since = DumpOptions::default().since(DumpHeader::read(dump.as_slice()).unwrap());
        let error = store.snapshot().unwrap().dump_with(since, Vec::new(), |_| ()).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::InvalidArgument(_)), "{error}");
        error.to_string()
    };
    let before = refusal();
    let kept = files(&path, "lost-");
    assert!(before.contains("lost") && !kept.is_empty(), "{before}");
    kept.iter().for_each(|file| fs::remove_file(file).unwrap());
    assert_eq!(refusal(), before);
}

#[test]
fn a_repair_keeps_commits_before_the_damage_and_names_it() {
    let directory = tempfile::tempdir().unwrap();
    let path = closed(directory.path());
    damage_in_the_middle(&path);
    let accepted = fingerprint(&refused(small(), &path));
    for when in ["before", "after"] {
        let to = directory.path().join(when);
        let repaired = small().repair(&path, &to, |_| ()).unwrap();
        assert!(repaired.losses.iter().any(|loss| loss.message.contains(&format!("{accepted:016x}"))), "{repaired:?}");
        assert!((COMMITS / 3..COMMITS).contains(&prefix(&small().open(&to).unwrap())));
        drop(small().accept_data_loss(accepted).open(&path).unwrap());
    }
}
