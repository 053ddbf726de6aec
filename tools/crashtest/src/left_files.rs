//! What is in the directory of a store: all that it needs, and nothing that is left over.
//!
//! A crash may leave files that the next incarnation has to remove: segments whose rows are in the
//! tables, files of an interrupted creation or acceptance, tables that no manifest names. Reading
//! the store shows none of them. So the store gets a few more commits and a flush, after which its
//! log needs one segment, and its directory is listed.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use percolite::engine::storage::Storage as _;
use percolite::{Durability, Error, ErrorKind, Store};

use crate::client::SECOND;
use crate::key_encoding::encode_key;
use crate::log_parser::{header, segments};
use crate::verify_store::reopen;
use crate::violation::Violation;

const INVARIANT: &str = "nothing is left over";
/// Commits before the flush.
const COMMITS: u64 = 3;
/// What a closed store has.
const STORE_FILES: [&str; 3] = ["PERCOLITE", "tables", "wal"];
/// A closed store has it if the disk had enough space.
const RESERVE: &str = "RESERVE";
/// An empty file of a checkpoint that was not opened for writing.
const CHECKPOINT_FLAG: &str = "PERCOLITE.copied";
/// RocksDB removes tables in the background, within this time.
const REMOVAL_TIMEOUT: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(1);

/// Opens a store, commits, flushes and closes it, and judges what its directory has then. The log
/// of a store with accepted losses also has what was kept of them.
///
/// # Errors
/// Errors of the store, and of reading its directory.
pub fn check(store_dir: &Path, has_losses: bool) -> Result<Vec<Violation>, Error> {
    let engine = reopen(store_dir)?;
    let store = Store::builder().durability(Durability::Sync).conflict_set_rows(64).open_engine(engine.clone())?;
    let keyspace = store.keyspace(SECOND)?;
    for number in 0..COMMITS {
        store.transact(|txn| txn.put(&keyspace, encode_key("left"), number.to_string()))?;
    }
    // A checkpoint flushes. It is made beside the store, because it has links to the tables.
    let copy = store_dir.with_extension("left");
    store.checkpoint(&copy)?;
    let mut found = Vec::new();
    found.extend(check_names(&copy, STORE_FILES.into_iter().chain([CHECKPOINT_FLAG])).map_err(unreadable)?);
    found.extend(check_log(&copy, false).map_err(unreadable)?);
    fs::remove_dir_all(&copy).map_err(unreadable)?;
    found.extend(check_log(store_dir, has_losses).map_err(unreadable)?);
    found.extend(check_tables(store_dir, || {
        Ok(engine.storage().stats()?.columns.iter().map(|column| column.sst_files).sum())
    })?);
    store.close()?;
    found.extend(check_names(store_dir, STORE_FILES).map_err(unreadable)?);
    Ok(found.into_iter().collect())
}

fn unreadable(error: io::Error) -> Error {
    ErrorKind::Io(format!("the harness cannot read the store's directory: {error}")).into()
}

fn names(dir: &Path) -> io::Result<BTreeSet<String>> {
    fs::read_dir(dir)?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
}

fn check_names(dir: &Path, expected: impl IntoIterator<Item = &'static str>) -> io::Result<Option<Violation>> {
    let (mut names, expected) = (names(dir)?, expected.into_iter().map(str::to_owned).collect());
    names.remove(RESERVE);
    Ok((names != expected).then(|| Violation::new(INVARIANT, format!("the directory has {names:?}, not {expected:?}"))))
}

/// Checks that the log has one segment, perhaps a spare one after it, and the sync record.
fn check_log(store_dir: &Path, has_losses: bool) -> io::Result<Option<Violation>> {
    let mut others = names(&store_dir.join("wal"))?;
    let mut in_use = Vec::new();
    for segment in segments(store_dir)? {
        in_use.push(header(&fs::read(&segment)?).is_some());
        others.remove(&segment.file_name().unwrap_or_default().to_string_lossy().into_owned());
    }
    others.retain(|name| name != "synced" && !(has_losses && name.starts_with("lost-")));
    let is_right = matches!(in_use[..], [true] | [true, false]) && others.is_empty();
    let what = || format!("after a flush, the log has segments with headers {in_use:?}, and {others:?}");
    Ok((!is_right).then(|| Violation::new(INVARIANT, what())))
}

/// Waits until the directory has as many tables as the store.
fn check_tables(store_dir: &Path, tables: impl Fn() -> Result<u64, Error>) -> Result<Option<Violation>, Error> {
    let began = Instant::now();
    loop {
        let expected = tables()?;
        let names = names(&store_dir.join("tables")).map_err(unreadable)?;
        let files =
            names.iter().filter(|name| Path::new(name).extension().is_some_and(|end| end == "sst")).count() as u64;
        if files == expected {
            return Ok(None);
        }
        if began.elapsed() > REMOVAL_TIMEOUT {
            let what = format!("the store has {expected} tables, and its directory {files}: {names:?}");
            return Ok(Some(Violation::new(INVARIANT, what)));
        }
        std::thread::sleep(POLL);
    }
}
