//! What the keeper of a store does beside its clients: makes copies of it, and restores a dump.
//!
//! Either happens as a whole or not at all. A copy that was cut short is no store; one that opens has everything that was
//! acknowledged before it was begun, and is a store like any that was killed. Restored keyspaces are all of one dump, of the
//! last one whose restoring was acknowledged or of a later one, and of all that went before nothing is left in the end.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use percolite::engine::rocks::RocksEngine;
use percolite::engine::storage::{Column, Reader as _};
use percolite::engine::{Engine, EngineError, RowRange};
use percolite::row::RowKey;
use percolite::{CommitProtocol, Error, Existing, KeyspaceId, Store, Timestamp};

use crate::examine::{MEMORY, engine};
use crate::fast::Fast;
use crate::ledger::Ledger;
use crate::violation::Broken;

/// Keyspaces of a dump, with so many rows each: a block for each of them.
const KEYSPACES: usize = 3;
const ROWS: usize = 400;
/// One value in so many is long.
const LONG: usize = 7;
/// What is left of a restore is erased well within this time, by a store whose clock runs so fast.
const ERASED_WITHIN: Duration = Duration::from_secs(20);
const SPEED: u32 = 50;

/// A copy that was begun.
#[derive(Clone, Debug)]
pub struct Copy {
    /// Which.
    pub number: u64,
    /// What its clients were told until then, and all that they asked for.
    pub ledger: Ledger,
    /// Whether it was finished.
    pub done: bool,
}

/// Dumps that were restored.
#[derive(Clone, Debug, Default)]
pub struct Restores {
    /// The last one that was acknowledged.
    pub acknowledged: Option<u64>,
    /// Those that were begun since.
    pub begun: Vec<u64>,
}

impl Restores {
    /// What a later life has restored comes on top.
    pub fn goes_on_with(&mut self, later: Self) {
        if later.acknowledged.is_some() {
            *self = later;
        } else {
            self.begun.extend(later.begun);
        }
    }

    /// Whether any was begun.
    pub fn were_made(&self) -> bool {
        self.acknowledged.is_some() || !self.begun.is_empty()
    }
}

/// Where a copy of the store in `folder` is.
pub fn copy_of(folder: &Path, number: u64) -> PathBuf {
    folder.with_extension("copies").join(number.to_string())
}

/// Restores the dump of this number into a store. The dump is of a store beside it, which comes by points of its own: so
/// it commits in the same way.
///
/// # Errors
/// Those of restoring.
pub fn restore(store: &Store, number: u64, protocol: CommitProtocol) -> Result<(), Error> {
    store.restore(dump(number, protocol)?.as_slice(), Existing::Replace, |_| ()).map(drop)
}

fn dump(number: u64, protocol: CommitProtocol) -> Result<Vec<u8>, Error> {
    let store = Store::builder().protocol(protocol).in_memory()?;
    for name in names() {
        let rows = store.keyspace(&name)?;
        store.transact(|txn| (0..ROWS).try_for_each(|row| txn.put(&rows, key(row), value(number, row))))?;
    }
    let mut dump = Vec::new();
    store.snapshot()?.dump(&mut dump, |_| ())?;
    Ok(dump)
}

fn names() -> impl Iterator<Item = String> {
    (0..KEYSPACES).map(|number| format!("restored {number}"))
}

fn key(row: usize) -> String {
    format!("{row:04}")
}

fn value(number: u64, row: usize) -> String {
    format!("{number}/{row}{}", if row.is_multiple_of(LONG) { "x".repeat(300) } else { String::new() })
}

/// Whether a copy that was cut short is refused; the answer is whether there is one that must be a store.
pub fn is_store(folder: &Path, copy: &Copy) -> Result<bool, Broken> {
    const PROMISE: &str = "a copy is whole or no store";
    let number = copy.number;
    if !folder.exists() {
        return if copy.done { Err(Broken::new(PROMISE, format!("copy {number} is gone"))) } else { Ok(false) };
    }
    if copy.done || folder.join("PERCOLITE").exists() {
        return Ok(true);
    }
    match engine(folder, MEMORY) {
        Err(EngineError::NotAStore(_)) => Ok(false),
        other => {
            Err(Broken::new(PROMISE, format!("copy {number} was cut short and opens with {:?}", other.map(drop).err())))
        }
    }
}

/// Above this nothing was handed out in a store that nobody has open.
///
/// # Errors
/// Those of opening it.
pub fn last_timestamp(folder: &Path) -> Result<Timestamp, Error> {
    Ok(Store::builder().read_only(true).open(folder)?.snapshot()?.read_ts())
}

/// Judges the restored keyspaces of a store that was killed.
///
/// # Errors
/// Those of opening and reading it.
pub fn judge_restores(folder: &Path, restores: &Restores) -> Result<Vec<Broken>, Error> {
    const PROMISE: &str = "a restore is whole or nothing";
    let engine = engine(folder, MEMORY)?;
    let store = Store::builder()
        .no_history()
        .runtime(Arc::new(Fast::new(SPEED)))
        .open_engine(Arc::clone(&engine) as Arc<dyn Engine>)?;
    let mut broken = Vec::new();
    let found = restored(&store)?;
    let may_be = [restores.acknowledged].into_iter().chain(restores.begun.iter().copied().map(Some));
    let mut wanted = may_be.map(|number| number.map_or_else(Vec::new, rows_of));
    if !wanted.any(|rows| rows == found) {
        let count = found.len();
        let values: BTreeSet<&str> =
            found.iter().map(|(_, value)| value.split('/').next().unwrap_or_default()).collect();
        broken.push(Broken::new(PROMISE, format!("{count} rows, of {values:?}, and it should be of {restores:?}")));
    }
    let began = Instant::now();
    loop {
        let left = nameless(&store, &engine)?;
        if left.is_empty() {
            break;
        }
        if began.elapsed() > ERASED_WITHIN {
            broken.push(Broken::new(PROMISE, format!("rows are left in keyspaces without a name: {left:?}")));
            break;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    store.close()?;
    Ok(broken)
}

type Rows = Vec<(String, String)>;

fn rows_of(number: u64) -> Rows {
    let rows = |name: String| (0..ROWS).map(move |row| (format!("{name}/{}", key(row)), value(number, row)));
    names().flat_map(rows).collect()
}

fn restored(store: &Store) -> Result<Rows, Error> {
    let mut rows = Vec::new();
    let snapshot = store.snapshot()?;
    for keyspace in snapshot.keyspaces()?.iter().filter(|keyspace| keyspace.name().starts_with("restored")) {
        for row in snapshot.range(keyspace, ..) {
            let (key, value) = row?;
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            rows.push((format!("{}/{}", keyspace.name(), text(&key)), text(&value)));
        }
    }
    Ok(rows)
}

/// Keyspaces that have rows and that nobody can open.
fn nameless(store: &Store, engine: &RocksEngine) -> Result<BTreeSet<KeyspaceId>, Error> {
    let mut found = BTreeSet::new();
    for column in [Column::Write, Column::Lock] {
        engine.storage().scan(column, &RowRange::all(), false, |key, _| {
            found.extend(RowKey::from_bytes(key).map(|row| row.keyspace()));
            true
        })?;
    }
    // The catalog itself has none, either.
    found.remove(&KeyspaceId(0));
    for keyspace in store.snapshot()?.keyspaces()? {
        found.remove(&keyspace.id());
    }
    Ok(found)
}
