//! A store's directory with random damage in it.
//!
//! Opening, reading and verifying a damaged directory always ends, and without a panic. If the
//! store verifies as intact, it must have the state after the last commit. There are two
//! exceptions:
//!
//! - Damage to the sync record and to the log may lose the last commits; the state must then be
//!   that after an earlier commit. Without the record that proves its durability, the log looks as
//!   after a crash.
//! - If the manifest is truncated, any state is accepted. A manifest that has lost whole records at
//!   its end is a valid, older manifest, and no checksum detects that. RocksDB usually finds that a
//!   table of the older manifest is missing, but not always.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::mpsc::channel;
use std::time::Duration;

use percolite::{Builder, CommitProtocol, ErrorKind, Row, Store, Value};
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;
use tempfile::TempDir;

use crate::store_directories::{copy_directory, files};

/// A case that takes longer counts as hanging.
const TIMEOUT: Duration = Duration::from_secs(300);
const CASES: u32 = 48;

/// The name that a truncated manifest has in the list of damaged files.
const OLDER_MANIFEST: &str = "an older manifest";

type State = BTreeMap<Vec<u8>, Value>;

/// A closed store, and its state after each commit.
struct Sample {
    directory: TempDir,
    states: Vec<State>,
    files: Vec<String>,
}

fn small() -> Builder {
    Store::builder().block_cache_bytes(1 << 20).write_buffer_bytes(4 << 20)
}

/// A sample with tables of several incarnations, a log of the last incarnation, long values,
/// deletions and history.
fn sample() -> &'static Sample {
    static SAMPLE: OnceLock<Sample> = OnceLock::new();
    SAMPLE.get_or_init(|| {
        let directory = tempfile::tempdir().unwrap();
        let mut states = vec![State::new()];
        for life in 0..3_u8 {
            let store = small().history_retention(Duration::from_secs(3600)).open(directory.path()).unwrap();
            let rows = store.keyspace("rows").unwrap();
            for commit in 0..12_u8 {
                let mut state = states.last().unwrap().clone();
                let protocol = Some(if commit % 3 == 0 { CommitProtocol::TwoPhase } else { CommitProtocol::Auto });
                let options = percolite::TxnOptions::default().commit_protocol(protocol);
                let mut txn = store.begin_with(options).unwrap();
                for n in 0..6_u8 {
                    let key = vec![b'k', commit.wrapping_mul(7).wrapping_add(n * 5) % 40];
                    if n == 5 {
                        txn.delete(&rows, &key).unwrap();
                        state.remove(&key);
                    } else {
                        let value = vec![life * 50 + commit; if n == 4 { 1500 } else { 60 }];
                        txn.put(&rows, &key, &value).unwrap();
                        state.insert(key, value.into());
                    }
                }
                txn.commit().unwrap();
                states.push(state);
            }
            store.close().unwrap();
        }
        let relative = |path: PathBuf| path.strip_prefix(directory.path()).unwrap().to_str().unwrap().to_owned();
        let files = files(directory.path(), "").into_iter().map(relative).collect();
        Sample { directory, states, files }
    })
}

#[derive(Clone, Debug)]
enum Damage {
    /// Flips these bits of a byte.
    Flip(u8),
    /// Sets this number of bytes to zero.
    Zero(usize),
    /// Truncates the file.
    Cut,
    Append(Vec<u8>),
    Remove,
    /// Replaces the content by that of another file.
    Exchange(prop::sample::Index),
}

fn any_damage() -> impl Strategy<Value = Damage> {
    prop_oneof![
        3 => (1..=255_u8).prop_map(Damage::Flip),
        1 => (1..600_usize).prop_map(Damage::Zero),
        2 => Just(Damage::Cut),
        1 => prop::collection::vec(any::<u8>(), 1..40).prop_map(Damage::Append),
        1 => Just(Damage::Remove),
        1 => any::<prop::sample::Index>().prop_map(Damage::Exchange),
    ]
}

/// Chooses a kind of file, a file of that kind and a position. A choice among all files would
/// mostly be a table: there are many tables, and one file of most other kinds.
fn any_place() -> impl Strategy<Value = (prop::sample::Index, prop::sample::Index, prop::sample::Index)> {
    any::<(prop::sample::Index, prop::sample::Index, prop::sample::Index)>()
}

fn kind(name: &str) -> &str {
    let name = name.rsplit('/').next().unwrap_or(name);
    if let Some((_, end)) = name.rsplit_once('.') { end } else { name.split('-').next().unwrap_or(name) }
}

fn apply(
    directory: &Path,
    (kind_index, file_index, position): &(prop::sample::Index, prop::sample::Index, prop::sample::Index),
    damage: &Damage,
) -> String {
    let sample = sample();
    let mut kinds: Vec<&str> = sample.files.iter().map(|name| kind(name)).collect();
    kinds.sort_unstable();
    kinds.dedup();
    let chosen = *kind_index.get(&kinds);
    let of_kind: Vec<&String> = sample.files.iter().filter(|name| kind(name) == chosen).collect();
    let name = *file_index.get(&of_kind);
    let path = directory.join(name);
    let Ok(mut bytes) = fs::read(&path) else { return name.clone() };
    if let Damage::Remove = damage {
        fs::remove_file(&path).unwrap();
        return name.clone();
    }
    let at = if bytes.is_empty() { 0 } else { position.index(bytes.len()) };
    match damage {
        Damage::Flip(bits) => bytes.iter_mut().skip(at).take(1).for_each(|byte| *byte ^= bits),
        Damage::Zero(length) => bytes.iter_mut().skip(at).take(*length).for_each(|byte| *byte = 0),
        Damage::Cut => bytes.truncate(at),
        Damage::Append(more) => bytes.extend(more),
        Damage::Exchange(other) => bytes = fs::read(sample.directory.path().join(other.get(&sample.files))).unwrap(),
        Damage::Remove => {}
    }
    fs::write(&path, bytes).unwrap();
    if chosen == "MANIFEST" && matches!(damage, Damage::Cut) { OLDER_MANIFEST.into() } else { name.clone() }
}

fn copy(to: &Path) {
    copy_directory(sample().directory.path(), to);
}

/// The store's rows; `None` when a read returns `Corruption`.
fn content(store: &Store) -> Option<State> {
    let expected = |error: percolite::Error| match error.kind() {
        ErrorKind::Corruption(_) => None::<()>,
        ErrorKind::KeyspaceNotFound(_) => Some(()),
        _ => panic!("{error}"),
    };
    let rows = match store.existing_keyspace("rows") {
        Ok(rows) => rows,
        Err(error) => return expected(error).map(|()| State::new()),
    };
    let mut state = State::new();
    for row in store.snapshot().unwrap().range(&rows, ..) {
        match row.map(Row::into_parts) {
            Ok((key, value)) => drop(state.insert(key, value)),
            Err(error) => return expected(error).map(|()| State::new()),
        }
    }
    Some(state)
}

/// Opens, verifies and reads the store; an error says which expectation failed.
fn check(directory: PathBuf, read_only: bool, damaged: &[String]) -> Result<(), String> {
    let store = match small().read_only(read_only).open(directory) {
        Ok(store) => store,
        Err(error) => {
            let expected =
                matches!(error.kind(), ErrorKind::Corruption(_) | ErrorKind::UnrecognizedFormat(_) | ErrorKind::Io(_));
            let text = error.to_string();
            return if expected && !text.is_empty() { Ok(()) } else { Err(format!("an unexpected error: {error:?}")) };
        }
    };
    let verified = match store.verify(|_| ()) {
        Ok(verified) => verified,
        Err(error) if matches!(error.kind(), ErrorKind::Corruption(_)) => return Ok(()),
        Err(error) => return Err(format!("verify failed: {error:?}")),
    };
    let Some(state) = content(&store) else {
        return if verified.is_ok() { Err("a read found damage that verify did not report".into()) } else { Ok(()) };
    };
    if !verified.is_ok() || damaged.iter().any(|name| name == OLDER_MANIFEST) {
        return Ok(());
    }
    let states = &sample().states;
    // Searches from the last state back: if an earlier commit left the same state as the last one,
    // the last one counts.
    let found = states.iter().rposition(|earlier| *earlier == state);
    let damaged_kind = |wanted| damaged.iter().any(|name| kind(name) == wanted);
    let only_log_may_lose = damaged_kind("segment") && damaged_kind("synced");
    match found {
        Some(at) if at + 1 == states.len() || only_log_may_lose => Ok(()),
        Some(at) => Err(format!("it verifies as intact, as of commit {at} of {}", states.len() - 1)),
        None => Err(format!("it verifies as intact, with {} rows that no commit left", state.len())),
    }
}

fn cases() -> u32 {
    std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(CASES)
}

/// Fails a case that hangs.
fn with_timeout<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, wait) = channel();
    let thread = std::thread::spawn(move || {
        let answer = work();
        let _ = done.send(());
        answer
    });
    if wait.recv_timeout(TIMEOUT) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
        panic!("no result after {TIMEOUT:?}");
    }
    thread.join().unwrap()
}

#[test]
fn an_undamaged_directory_is_intact() {
    let directory = tempfile::tempdir().unwrap();
    copy(directory.path());
    for read_only in [true, false] {
        check(directory.path().into(), read_only, &[]).unwrap();
        let store = small().read_only(read_only).open(directory.path()).unwrap();
        assert!(store.verify(|_| ()).unwrap().is_ok());
        assert_eq!(content(&store).as_ref(), sample().states.last());
    }
}

/// RocksDB would never finish opening a manifest with an unknown record type, so the store must
/// refuse it first.
#[test]
fn a_manifest_with_an_unknown_record_type_is_refused() {
    for record_type in [5, 11, 131] {
        let directory = tempfile::tempdir().unwrap();
        copy(directory.path());
        let name = sample().files.iter().find(|name| kind(name) == "MANIFEST").unwrap();
        let mut bytes = fs::read(directory.path().join(name)).unwrap();
        // The first record stays as it is: a manifest whose first record is unknown is read as
        // empty.
        let second = 7 + usize::from(u16::from_le_bytes([bytes[4], bytes[5]]));
        bytes[second + 6] = record_type;
        fs::write(directory.path().join(name), bytes).unwrap();
        for read_only in [true, false] {
            let path = directory.path().to_path_buf();
            let error = with_timeout(move || small().read_only(read_only).open(path).map(drop)).unwrap_err();
            assert!(matches!(error.kind(), ErrorKind::Corruption(_)) && error.to_string().contains(name), "{error}");
        }
    }
}

const REGRESSIONS: &str = "tests/bad_input/directories.proptest-regressions";

proptest! {
    #![proptest_config(ProptestConfig {
        cases: cases(),
        max_shrink_iters: 40,
        failure_persistence: Some(Box::new(FileFailurePersistence::Direct(REGRESSIONS))),
        ..ProptestConfig::default()
    })]

    #[test]
    fn a_damaged_directory_never_passes_as_intact(damages in prop::collection::vec((any_place(), any_damage()), 1..3)) {
        let directory = tempfile::tempdir().unwrap();
        copy(directory.path());
        let damaged: Vec<String> = damages.iter().map(|(place, damage)| apply(directory.path(), place, damage)).collect();
        for read_only in [true, false] {
            let (path, names) = (directory.path().to_path_buf(), damaged.clone());
            let checked = with_timeout(move || check(path, read_only, &names));
            prop_assert!(checked.is_ok(), "{:?} read-only {}: {}", damaged, read_only, checked.unwrap_err());
        }
    }
}
