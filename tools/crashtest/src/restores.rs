//! Restores of dumps while clients run.
//!
//! A restore is atomic, and is durable when it is acknowledged, whatever the durability of the
//! store. So all restored keyspaces come from one dump: that of the last acknowledged restore or of
//! a later restore. In the end nothing of earlier restores is left.
//!
//! Restores are numbered. Each number stands for two restores: of a full dump, and of the increment
//! that follows it. The increment changes and deletes rows, and renames, truncates and drops
//! keyspaces. The acknowledgement comes after the second restore.

use std::collections::BTreeSet;
use std::time::Duration;

use percolite::engine::storage::{CellReader, Column};
use percolite::engine::{EngineError, RowRange};
use percolite::row::RowKey;
use percolite::{Builder, DumpHeader, DumpOptions, Error, KeyspaceId, OnExisting, Store};

use crate::key_encoding::{decode_key, encode_key};
use crate::violation::Violation;

/// The number of keyspaces in a full dump.
const KEYSPACES: usize = 4;
/// The history retention of the dumped store, longer than any run: an increment is made from
/// history.
const HISTORY: Duration = Duration::from_secs(24 * 3600);
/// The rows of a keyspace in the layers with real processes.
pub const MANY_ROWS: usize = 400;
/// The rows of a keyspace in the simulation.
pub const FEW_ROWS: usize = 3;
/// One value in this many is long.
const LONG_VALUE_EVERY: usize = 7;
const ATOMIC_RESTORE: &str = "atomic restore";

/// Which restores were started and acknowledged.
#[derive(Clone, Debug, Default)]
pub struct Restores {
    /// The last acknowledged restore.
    acknowledged: Option<u64>,
    /// Restores that were started after the last acknowledged one.
    started: Vec<u64>,
}

impl Restores {
    /// Records that a restore is about to be requested.
    pub fn start(&mut self, number: u64) {
        self.started.push(number);
    }

    /// Records that the restore was acknowledged.
    pub fn acknowledge(&mut self, number: u64) {
        *self = Self { acknowledged: Some(number), started: Vec::new() };
    }

    /// Adds the restores of a later incarnation.
    pub fn append(&mut self, later: Self) {
        if later.acknowledged.is_some() {
            *self = later;
        } else {
            self.started.extend(later.started);
        }
    }

    /// Whether any restore was started.
    pub fn any_started(&self) -> bool {
        self.acknowledged.is_some() || !self.started.is_empty()
    }

    /// Checks the restored keyspaces of a store, from dumps with this many rows.
    ///
    /// # Errors
    /// Errors of the reads.
    pub fn check(&self, store: &Store, rows: usize) -> Result<Option<Violation>, Error> {
        let found = restored(store)?;
        let acknowledged = self.acknowledged.map_or_else(Vec::new, |number| changed_rows_of(number, rows));
        let started = self.started.iter().flat_map(|number| [rows_of(*number, rows), changed_rows_of(*number, rows)]);
        let mut expected = [acknowledged].into_iter().chain(started);
        if expected.any(|rows| rows == found) {
            return Ok(None);
        }
        let values: BTreeSet<&str> =
            found.iter().map(|(_, value)| value.split('/').next().unwrap_or_default()).collect();
        let what = format!("{} rows with the values {values:?}; expected those of {self:?}", found.len());
        Ok(Some(Violation::new(ATOMIC_RESTORE, what)))
    }
}

/// Restores the full dump of this number, with this many rows a keyspace, and its increment. The
/// dumps are of another store, made by `builder`. The commits of that store visit crash points,
/// too. They count for the environment of `store`, so `builder` must use the same commit protocol.
///
/// # Errors
/// Errors of the restore.
pub fn restore(store: &Store, builder: Builder, number: u64, rows: usize) -> Result<(), Error> {
    let dumps = dumps(builder, number, rows)?;
    dumps.iter().try_for_each(|dump| store.restore(dump.as_slice(), OnExisting::Replace, |_| ()).map(drop))
}

fn dumps(builder: Builder, number: u64, rows: usize) -> Result<[Vec<u8>; 2], Error> {
    let store = builder.history_retention(HISTORY).in_memory()?;
    for name in names() {
        let keyspace = store.keyspace(&name)?;
        store.transact(|txn| (0..rows).try_for_each(|row| txn.put(&keyspace, key(row), value(number, row))))?;
    }
    let (mut full, mut increment) = (Vec::new(), Vec::new());
    store.snapshot()?.dump(&mut full, |_| ())?;
    change(&store, number, rows)?;
    let options = DumpOptions::default().since(DumpHeader::read(full.as_slice())?);
    store.snapshot()?.dump_with(options, &mut increment, |_| ())?;
    store.close()?;
    Ok([full, increment])
}

/// Makes the changes of the increment; [`changed_rows_of`] has the rows that result.
fn change(store: &Store, number: u64, rows: usize) -> Result<(), Error> {
    let keyspace = store.keyspace("restored 0")?;
    store.transact(|txn| {
        (0..rows).try_for_each(|row| {
            if row % 2 == 0 {
                txn.put(&keyspace, key(row), changed(number, row))
            } else {
                txn.delete(&keyspace, key(row))
            }
        })
    })?;
    let keyspace = store.truncate_keyspace("restored 1")?;
    store.transact(|txn| (0..rows).try_for_each(|row| txn.put(&keyspace, key(row), changed(number, row))))?;
    store.drop_keyspace("restored 3")?;
    // The full dump has a keyspace of the new name, so the next full restore replaces the renamed
    // keyspace.
    store.rename_keyspace("restored 2", "restored 3").map(drop)
}

fn changed(number: u64, row: usize) -> String {
    format!("{}+", value(number, row))
}

/// The rows after the increment is restored.
fn changed_rows_of(number: u64, rows: usize) -> Rows {
    let row = |keyspace: &str, row: usize, value| (format!("{keyspace}/{}", shown_key(row)), value);
    let even = (0..rows).step_by(2).map(|number_of| row("restored 0", number_of, changed(number, number_of)));
    let all = (0..rows).map(|number_of| row("restored 1", number_of, changed(number, number_of)));
    let same = (0..rows).map(|number_of| row("restored 3", number_of, value(number, number_of)));
    even.chain(all).chain(same).collect()
}

fn names() -> impl Iterator<Item = String> {
    (0..KEYSPACES).map(|number| format!("restored {number}"))
}

fn key(row: usize) -> Vec<u8> {
    encode_key(&shown_key(row))
}

fn shown_key(row: usize) -> String {
    format!("{row:04}")
}

fn value(number: u64, row: usize) -> String {
    format!("{number}/{row}{}", if row.is_multiple_of(LONG_VALUE_EVERY) { "x".repeat(300) } else { String::new() })
}

/// The violation if rows are left in these keyspaces, which have no name.
pub fn orphaned_keyspaces(keyspaces: &BTreeSet<KeyspaceId>) -> Violation {
    Violation::new(ATOMIC_RESTORE, format!("rows are left in keyspaces without a name: {keyspaces:?}"))
}

type Rows = Vec<(String, String)>;

fn rows_of(number: u64, rows: usize) -> Rows {
    let rows = |name: String| (0..rows).map(move |row| (format!("{name}/{}", shown_key(row)), value(number, row)));
    names().flat_map(rows).collect()
}

fn restored(store: &Store) -> Result<Rows, Error> {
    let mut rows = Vec::new();
    let snapshot = store.snapshot()?;
    for keyspace in snapshot.keyspaces()?.iter().filter(|keyspace| keyspace.name().starts_with("restored")) {
        for row in snapshot.range(keyspace, ..) {
            let row = row?;
            let value = String::from_utf8_lossy(row.value()).into_owned();
            rows.push((format!("{}/{}", keyspace.name(), decode_key(row.key())), value));
        }
    }
    Ok(rows)
}

/// Keyspaces that have rows and no name.
///
/// # Errors
/// Errors of the reads.
pub fn keyspaces_without_name(store: &Store, storage: &impl CellReader) -> Result<BTreeSet<KeyspaceId>, EngineError> {
    let mut found = BTreeSet::new();
    for column in [Column::Write, Column::Lock] {
        storage.scan(column, &RowRange::all(), false, |key, _| {
            found.extend(RowKey::from_bytes(key).map(|row| row.keyspace_id()));
            true
        })?;
    }
    // The catalog has no name, but its rows are legal.
    found.remove(&KeyspaceId(0));
    let keyspaces = store.snapshot().and_then(|snapshot| snapshot.keyspaces());
    for keyspace in keyspaces.map_err(|error| EngineError::Undetermined(error.to_string()))? {
        found.remove(&keyspace.id());
    }
    Ok(found)
}
