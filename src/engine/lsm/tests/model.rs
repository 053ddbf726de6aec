//! The model of an LSM storage: the state after each batch, and random steps.

use std::collections::BTreeMap;
use std::ops::Bound;

use super::super::shared::FLUSHED_SEQUENCE_KEY;
use super::super::*;
use crate::cell::{Column, RowRange};
use crate::disk::SimDisk;
use crate::engine::EngineError;
use crate::engine::sim::SimStorage;
use crate::engine::storage::{Batch, CellReader, Storage};
use crate::split_mix64::SplitMix64;

pub(super) type Store = LsmStorage<SimDisk, SimStorage>;
pub(super) type Snapshot = LsmSnapshot<SimDisk, SimStorage>;
pub(super) type State = BTreeMap<(Column, Vec<u8>), Vec<u8>>;

pub(super) const NUMBER: &[u8] = b"number of the batch";

pub(super) struct Model {
    pub disk: SimDisk,
    pub tables: SimStorage,
    pub choices: SplitMix64,
    /// The states, by the number of batches that were written.
    pub states: Vec<State>,
    /// How many batches are durable.
    pub acknowledged: usize,
    pub snapshots: Vec<(Snapshot, usize)>,
    /// The written sequence of the log at the last `run_background_once`, which updates it.
    pub written: u64,
    pub flushed: u64,
}

pub(super) enum Step {
    Put(Column, Vec<u8>, Vec<u8>),
    Delete(Column, Vec<u8>),
    DeleteRange(Column, Vec<u8>, Vec<u8>),
}

impl Model {
    pub fn new(seed: u64) -> Self {
        Self {
            disk: SimDisk::new(),
            tables: SimStorage::new(),
            choices: SplitMix64::new(seed),
            states: vec![State::new()],
            acknowledged: 0,
            snapshots: Vec::new(),
            written: 0,
            flushed: 0,
        }
    }

    pub fn one_in(&mut self, bound: u64) -> bool {
        self.choices.next_below(bound) == 0
    }

    pub fn key(&mut self) -> Vec<u8> {
        let length = self.choices.index(3);
        (0..length).map(|_| b'a' + self.choices.index(4) as u8).collect()
    }

    pub fn column(&mut self) -> Column {
        Column::ALL[self.choices.index(Column::ALL.len())]
    }

    pub fn open(&mut self) -> Result<Store, EngineError> {
        let mut seed = SplitMix64::new(self.choices.next());
        let options = LsmOptions {
            wal_id: 7,
            is_new: true,
            memtable_bytes: 3000,
            random: Box::new(move || seed.next()),
            accept_data_loss: None,
            background_flush: false,
            is_disk_full: std::sync::Arc::default(),
        };
        let tables = self.tables.exclusive_engine().storage().clone();
        LsmStorage::open(self.disk.handle(), tables, options)
    }

    /// A batch, and the state after it.
    pub fn batch(&mut self, storage: &Store) -> (LsmBatch, State) {
        let mut state = self.states.last().unwrap().clone();
        let mut batch = storage.new_batch(0);
        let mut steps = Vec::new();
        if self.one_in(12) {
            // Metadata is never deleted by ranges, because the flushed sequence is a cell of this
            // column.
            let column = Column::ALL[1 + self.choices.index(Column::ALL.len() - 1)];
            let (one, other) = (self.key(), self.key());
            steps.push(Step::DeleteRange(column, one.clone().min(other.clone()), one.max(other)));
        } else {
            for _ in 0..=self.choices.index(6) {
                let (column, key) = (self.column(), self.key());
                let bytes = if self.one_in(40) { 3000 } else { self.choices.index(60) };
                let content = vec![self.choices.index(256) as u8; bytes];
                steps.push(if self.one_in(4) { Step::Delete(column, key) } else { Step::Put(column, key, content) });
            }
        }
        steps.push(Step::Put(Column::Meta, NUMBER.to_vec(), self.states.len().to_be_bytes().to_vec()));
        for step in steps {
            match step {
                Step::Put(column, key, content) => {
                    batch.put(column, &key, &content);
                    state.insert((column, key), content);
                }
                Step::Delete(column, key) => {
                    batch.delete(column, &key);
                    state.remove(&(column, key));
                }
                Step::DeleteRange(column, start, end) => {
                    batch.delete_range(column, &start, &end);
                    state.retain(|(of, key), _| *of != column || *key < start || *key >= end);
                }
            }
        }
        (batch, state)
    }

    pub fn step(&mut self, storage: &Store) -> Result<(), EngineError> {
        match self.choices.next_below(20) {
            0..=9 => {
                let (batch, state) = self.batch(storage);
                // A failed write may have been applied, so its state counts as possible.
                self.states.push(state);
                storage.write(batch)?;
            }
            10 | 11 => {
                let written = self.states.len() - 1;
                storage.sync()?;
                self.acknowledged = written;
            }
            12 | 13 => {
                let at = self.states.len() - 1;
                self.snapshots.push((storage.snapshot()?, at));
            }
            14 if !self.snapshots.is_empty() => {
                let dropped = self.choices.index(self.snapshots.len());
                self.snapshots.swap_remove(dropped);
            }
            15 if self.one_in(4) => storage.flush_all()?,
            15 | 16 => drop(storage.run_background_once(&mut self.written)),
            _ => self.check_reads(storage),
        }
        Ok(())
    }

    /// Reads the newest state, and that of each open snapshot.
    pub fn check_reads(&mut self, storage: &Store) {
        let newest = self.states.len() - 1;
        let (column, backwards) = (self.column(), self.one_in(2));
        let range = RowRange { start: self.bound(), end: self.bound() };
        let key = self.key();
        check(storage, &self.states[newest], column, &range, backwards, &key);
        for (snapshot, at) in &self.snapshots {
            check(snapshot, &self.states[*at], column, &range, backwards, &key);
        }
        self.flushed = self.flushed.max(flushed_sequence_of(storage));
    }

    pub fn bound(&mut self) -> Bound<Vec<u8>> {
        let key = self.key();
        [Bound::Unbounded, Bound::Included(key.clone()), Bound::Excluded(key)][self.choices.index(3)].clone()
    }

    /// Ends an incarnation by a power cut or a kill, and checks what is left.
    pub fn crash_and_check(&mut self, storage: Store, has_failed: bool) {
        self.snapshots.clear();
        drop(storage);
        let is_kill = self.one_in(2);
        let mut is_all_left = is_kill && !has_failed;
        let seed = self.choices.next();
        if is_kill {
            self.disk.kill();
        } else {
            self.disk.crash(seed);
        }
        // A kill, too, may lose unsynced writes to the tables, which are only in the memory of the
        // process.
        self.tables.crash(self.choices.next());
        if self.one_in(3) {
            // The next opening is interrupted: its disk fails from a random call on, and then the
            // power is cut.
            is_all_left = false;
            let (nth, seed) = (1 + self.choices.next_below(40), self.choices.next());
            self.disk.fail_from(nth, seed);
            if let Ok(storage) = self.open() {
                drop(storage);
            }
            self.disk.clear_fault();
            self.disk.crash(seed);
            self.tables.crash(self.choices.next());
        }
        let storage = self.open().unwrap();
        let number = storage.get(Column::Meta, NUMBER, |bytes| usize::from_be_bytes(bytes.try_into().unwrap()));
        let found = number.unwrap().unwrap_or_default();
        assert!(found >= self.acknowledged, "{} were acknowledged, {found} are there", self.acknowledged);
        if is_all_left {
            assert_eq!(found, self.states.len() - 1, "a kill costs nothing");
        }
        self.states.truncate(found + 1);
        for column in Column::ALL {
            check(&storage, &self.states[found], column, &RowRange::all(), false, b"a");
        }
        self.acknowledged = found;
        drop(storage);
        self.disk.kill();
        self.tables.crash(0);
    }
}

pub(super) fn flushed_sequence_of(storage: &Store) -> u64 {
    let read = |bytes: &[u8]| u64::from_be_bytes(bytes.try_into().unwrap());
    storage.tables().get(Column::Meta, FLUSHED_SEQUENCE_KEY, read).ok().flatten().unwrap_or_default()
}

pub(super) fn check(
    reader: &impl CellReader,
    state: &State,
    column: Column,
    range: &RowRange,
    backwards: bool,
    key: &[u8],
) {
    let is_in = |key: &[u8]| {
        let after = match &range.start {
            Bound::Unbounded => true,
            Bound::Included(start) => key >= &start[..],
            Bound::Excluded(start) => key > &start[..],
        };
        after
            && match &range.end {
                Bound::Unbounded => true,
                Bound::Included(end) => key <= &end[..],
                Bound::Excluded(end) => key < &end[..],
            }
    };
    let of_column = state.iter().filter(|((of, key), _)| *of == column && is_in(key));
    let mut expected: Vec<_> = of_column.map(|((_, key), content)| (key.clone(), content.clone())).collect();
    if backwards {
        expected.reverse();
    }
    let limit = expected.len().div_ceil(2).max(1);
    for limit in [usize::MAX, limit] {
        let mut found = Vec::new();
        let scanned = reader.scan(column, range, backwards, |key, content| {
            found.push((key.to_vec(), content.to_vec()));
            found.len() < limit
        });
        scanned.unwrap();
        assert_eq!(found, expected[..expected.len().min(limit)]);
    }
    let got = reader.get(column, key, <[u8]>::to_vec).unwrap();
    assert_eq!(got.as_ref(), state.get(&(column, key.to_vec())));
    let keys: [&[u8]; 4] = [b"a", key, b"bc", b""];
    let mut got = [const { None }; 4];
    reader.multi_get(column, &keys, |number, content| got[number] = Some(content.to_vec())).unwrap();
    assert_eq!(got, keys.map(|key| state.get(&(column, key.to_vec())).cloned()));
}
