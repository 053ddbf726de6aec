//! Dumps that are restored beside clients.
//!
//! A restore happens as a whole or not at all, and one that was acknowledged stays, whatever the durability of the store:
//! restored keyspaces are all of one dump, of the last one whose restoring was acknowledged or of a later one. Of all that
//! went before nothing is left in the end.

use std::collections::BTreeSet;

use percolite::engine::storage::{Column, Reader};
use percolite::engine::{EngineError, RowRange};
use percolite::row::RowKey;
use percolite::{Builder, Error, Existing, KeyspaceId, Store};

use crate::violation::Broken;

/// Keyspaces of a dump.
const KEYSPACES: usize = 3;
/// Rows of each of them, where time does not matter: a block.
pub const MANY: usize = 400;
/// Rows of each of them, where it does.
pub const FEW: usize = 3;
/// One value in so many is long.
const LONG: usize = 7;
const WHOLE: &str = "a restore is whole or nothing";

/// What was restored.
#[derive(Clone, Debug, Default)]
pub struct Restores {
    /// The last one that was acknowledged.
    acknowledged: Option<u64>,
    /// Those that were begun since.
    begun: Vec<u64>,
}

impl Restores {
    /// One is about to be asked for.
    pub fn begins(&mut self, number: u64) {
        self.begun.push(number);
    }

    /// It was acknowledged.
    pub fn is_done(&mut self, number: u64) {
        *self = Self { acknowledged: Some(number), begun: Vec::new() };
    }

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

    /// Judges the restored keyspaces of a store, where dumps have so many rows.
    ///
    /// # Errors
    /// Those of reading it.
    pub fn judge(&self, store: &Store, rows: usize) -> Result<Option<Broken>, Error> {
        let found = restored(store)?;
        let may_be = [self.acknowledged].into_iter().chain(self.begun.iter().copied().map(Some));
        let mut wanted = may_be.map(|number| number.map_or_else(Vec::new, |number| rows_of(number, rows)));
        if wanted.any(|rows| rows == found) {
            return Ok(None);
        }
        let values: BTreeSet<&str> =
            found.iter().map(|(_, value)| value.split('/').next().unwrap_or_default()).collect();
        let what = format!("{} rows, of {values:?}, and it should be of {self:?}", found.len());
        Ok(Some(Broken::new(WHOLE, what)))
    }
}

/// Restores the dump of this number, which has so many rows in each keyspace. It is of a store beside this one, made by
/// `builder`, which comes by points of its own: so it should commit in the same way.
///
/// # Errors
/// Those of restoring.
pub fn restore(store: &Store, builder: Builder, number: u64, rows: usize) -> Result<(), Error> {
    store.restore(dump(builder, number, rows)?.as_slice(), Existing::Replace, |_| ()).map(drop)
}

fn dump(builder: Builder, number: u64, rows: usize) -> Result<Vec<u8>, Error> {
    let store = builder.in_memory()?;
    for name in names() {
        let keyspace = store.keyspace(&name)?;
        store.transact(|txn| (0..rows).try_for_each(|row| txn.put(&keyspace, key(row), value(number, row))))?;
    }
    let mut dump = Vec::new();
    store.snapshot()?.dump(&mut dump, |_| ())?;
    store.close()?;
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

/// Rows that nobody can get at.
pub fn left_behind(keyspaces: &BTreeSet<KeyspaceId>) -> Broken {
    Broken::new(WHOLE, format!("rows are left in keyspaces without a name: {keyspaces:?}"))
}

type Rows = Vec<(String, String)>;

fn rows_of(number: u64, rows: usize) -> Rows {
    let rows = |name: String| (0..rows).map(move |row| (format!("{name}/{}", key(row)), value(number, row)));
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
///
/// # Errors
/// Those of reading.
pub fn nameless(store: &Store, storage: &impl Reader) -> Result<BTreeSet<KeyspaceId>, EngineError> {
    let mut found = BTreeSet::new();
    for column in [Column::Write, Column::Lock] {
        storage.scan(column, &RowRange::all(), false, |key, _| {
            found.extend(RowKey::from_bytes(key).map(|row| row.keyspace()));
            true
        })?;
    }
    // The catalog itself has none, either.
    found.remove(&KeyspaceId(0));
    let there = store.snapshot().and_then(|snapshot| snapshot.keyspaces());
    for keyspace in there.map_err(|why| EngineError::Unknown(why.to_string()))? {
        found.remove(&keyspace.id());
    }
    Ok(found)
}
