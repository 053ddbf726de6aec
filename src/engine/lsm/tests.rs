//! Random histories of an LSM storage over a simulated disk and simulated tables, compared with a
//! model.
//!
//! Every batch writes its own number into a cell, so the state after a crash identifies the prefix.
//! Histories that fail print their seed: `LSM_SEED` runs that history alone, and `LSM_HISTORIES`
//! sets how many run.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::atomic::Ordering;

use super::background::{Poll, run_once};
use super::shared::FLUSHED_SEQUENCE_KEY;
use super::*;
use crate::cell::{Column, RowRange};
use crate::disk::{Disk as _, SimDisk, SplitMix64};
use crate::engine::EngineError;
use crate::engine::sim::SimStorage;
use crate::engine::storage::{Batch, CellReader, Storage};
use crate::wal;

type Store = LsmStorage<SimDisk, SimStorage>;
type Snapshot = LsmSnapshot<SimDisk, SimStorage>;
type State = BTreeMap<(Column, Vec<u8>), Vec<u8>>;

const NUMBER: &[u8] = b"number of the batch";

struct Model {
    disk: SimDisk,
    tables: SimStorage,
    choices: SplitMix64,
    /// The state after each number of batches.
    states: Vec<State>,
    /// How many batches are durable.
    acknowledged: usize,
    snapshots: Vec<(Snapshot, usize)>,
    /// What the background rounds keep from one to the next.
    written: u64,
    flushed: u64,
}

enum Step {
    Put(Column, Vec<u8>, Vec<u8>),
    Delete(Column, Vec<u8>),
    DeleteRange(Column, Vec<u8>, Vec<u8>),
}

impl Model {
    fn new(seed: u64) -> Self {
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

    fn one_in(&mut self, bound: u64) -> bool {
        self.choices.next_below(bound) == 0
    }

    fn key(&mut self) -> Vec<u8> {
        let length = self.choices.index(3);
        (0..length).map(|_| b'a' + self.choices.index(4) as u8).collect()
    }

    fn column(&mut self) -> Column {
        Column::ALL[self.choices.index(Column::ALL.len())]
    }

    fn open(&mut self) -> Result<Store, EngineError> {
        let mut seed = SplitMix64::new(self.choices.next());
        let options = LsmOptions {
            wal_id: 7,
            is_new: true,
            memtable_bytes: 3000,
            random: Box::new(move || seed.next()),
            accept_data_loss: None,
            background_flush: false,
        };
        let tables = self.tables.exclusive_engine().storage().clone();
        LsmStorage::open(self.disk.handle(), tables, options)
    }

    /// A batch, and the state after it.
    fn batch(&mut self, storage: &Store) -> (LsmBatch, State) {
        let mut state = self.states.last().unwrap().clone();
        let mut batch = storage.new_batch(0);
        let mut steps = Vec::new();
        if self.one_in(12) {
            // Metadata is never deleted by ranges: the flushed sequence is in it.
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

    fn step(&mut self, storage: &Store) -> Result<(), EngineError> {
        match self.choices.next_below(20) {
            0..=9 => {
                let (batch, state) = self.batch(storage);
                // Even if the write fails, the batch may be there.
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
    fn check_reads(&mut self, storage: &Store) {
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

    fn bound(&mut self) -> Bound<Vec<u8>> {
        let key = self.key();
        [Bound::Unbounded, Bound::Included(key.clone()), Bound::Excluded(key)][self.choices.index(3)].clone()
    }

    /// Ends an incarnation by a power cut or a kill, and checks what is left.
    fn crash_and_check(&mut self, storage: Store, has_failed: bool) {
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
        // What the tables have not synced is lost either way.
        self.tables.crash(self.choices.next());
        if self.one_in(3) {
            // A power cut at some call of the next opening.
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

fn flushed_sequence_of(storage: &Store) -> u64 {
    let read = |bytes: &[u8]| u64::from_be_bytes(bytes.try_into().unwrap());
    storage.tables().get(Column::Meta, FLUSHED_SEQUENCE_KEY, read).ok().flatten().unwrap_or_default()
}

fn check(reader: &impl CellReader, state: &State, column: Column, range: &RowRange, backwards: bool, key: &[u8]) {
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

fn run(seed: u64) -> u64 {
    let mut model = Model::new(seed);
    for _ in 0..=model.choices.next_below(4) {
        let storage = model.open().unwrap();
        let fault = model.one_in(3).then(|| (1 + model.choices.next_below(60), model.choices.next()));
        match fault {
            Some((nth, seed)) if seed % 3 > 0 => model.disk.fail_nth(None, nth, seed),
            Some((nth, seed)) if seed % 2 > 0 => model.tables.fail_sync(1 + nth % 4),
            Some((nth, _)) => model.tables.fail_write(1 + nth % 6),
            None => {}
        }
        let mut has_failed = false;
        for _ in 0..model.choices.next_below(120) {
            if model.step(&storage).is_err() {
                assert!(storage.write(model.batch(&storage).0).is_err(), "nothing succeeds after a failure");
                assert!(storage.sync().is_err(), "nothing becomes durable after a failure");
                has_failed = true;
                break;
            }
        }
        model.disk.clear_fault();
        model.crash_and_check(storage, has_failed);
    }
    model.flushed
}

#[test]
fn an_idle_log_gets_one_noop_frame_and_a_failed_one_none() {
    let mut model = Model::new(1);
    let storage = model.open().unwrap();
    let shared = &*storage.shared;
    let path = shared.write_path.as_ref().unwrap();
    let mut written = 0;
    let put = || {
        let mut batch = storage.new_batch(0);
        batch.put(Column::Data, b"a", b"b");
        storage.write(batch).and_then(|()| storage.sync())
    };
    put().unwrap();
    // With a thread, `sync` would have woken it.
    path.noop_needed.store(true, Ordering::Release);
    let before = path.wal.written_sequence();
    let rounds = [Poll::AfterIdle, Poll::Again, Poll::Park];
    assert_eq!([(); 3].map(|()| run_once(shared, path, &mut written)), rounds);
    assert_eq!((path.wal.written_sequence(), path.wal.durable_sequence()), (before + 1, before + 1));
    // The no-op frame gets no other one when the idle log is synced again.
    storage.sync().unwrap();
    path.noop_needed.store(true, Ordering::Release);
    while storage.run_background_once(&mut written) {}
    assert_eq!(path.wal.written_sequence(), before + 1);

    model.disk.fail_nth(None, 1, 1);
    put().unwrap_err();
    path.noop_needed.store(true, Ordering::Release);
    assert_eq!(run_once(shared, path, &mut written), Poll::Park);
}

#[test]
fn incarnations_killed_before_a_flush_do_not_grow_the_log() {
    // As much as may be written without a flush, and hardly anything.
    for bytes in [4_000, 10] {
        let mut model = Model::new(5);
        let mut segments_most = 0;
        for number in 0..60_u8 {
            // Without a thread, only the opening can flush.
            let storage = model.open().unwrap();
            let mut batch = storage.new_batch(0);
            batch.put(Column::Write, b"a", &vec![number; bytes]);
            storage.write(batch).unwrap();
            drop(storage);
            model.disk.kill();
            model.tables.crash(u64::from(number));
            let names = model.disk.handle().list().unwrap();
            segments_most = segments_most.max(names.iter().filter(|name| wal::is_segment_name(name)).count());
        }
        let at_most = if bytes == 10 { 18 } else { 5 };
        assert!(segments_most <= at_most, "{segments_most} segments, of incarnations that write {bytes} bytes");
        let storage = model.open().unwrap();
        assert_eq!(storage.get(Column::Write, b"a", |content| content[0]).unwrap(), Some(59));
    }
}

/// Two batches that set two cells to the same number; only the second is above the flushed
/// sequence. A flush of it was interrupted, and the tables have synced one of the cells.
fn with_a_part_in_the_tables() -> (Model, usize) {
    let mut model = Model::new(6);
    let storage = model.open().unwrap();
    let put = |number| {
        let mut batch = storage.new_batch(0);
        batch.put(Column::Data, b"x", &[number; 400]);
        batch.put(Column::History, b"y", &[number; 400]);
        storage.write(batch).and_then(|()| storage.sync())
    };
    put(1).unwrap();
    storage.flush_all().unwrap();
    let offset = storage.shared.write_path.as_ref().unwrap().writer.lock().wal.segment_bytes() as usize;
    put(2).unwrap();
    model.tables.reject_write(2);
    storage.flush_all().unwrap_err();
    drop(storage);
    model.disk.kill();
    model.tables.crash(1);
    let x = model.tables.exclusive_engine().storage().get(Column::Data, b"x", |content| content[0]);
    assert_eq!(x.unwrap(), Some(2), "the tables have a part");
    (model, offset)
}

#[test]
fn a_loss_that_is_partly_in_the_tables_is_always_refused() {
    let (mut model, _) = with_a_part_in_the_tables();
    assert_eq!(model.open().unwrap().get(Column::History, b"y", |content| content[0]).unwrap(), Some(2));
    let (mut model, offset) = with_a_part_in_the_tables();
    model.disk.flip_bits("0000000002.segment", offset + 100, 1);
    let refused = |opened: Result<Store, EngineError>| match opened.map(drop) {
        Err(EngineError::Corruption(why)) => {
            // The command line offers to accept a loss that has a fingerprint.
            assert!(why.contains("interrupted flush") && !why.contains("(loss "), "{why}");
        }
        other => panic!("{other:?}"),
    };
    refused(model.open());
    let tables = || model.tables.exclusive_engine().storage().clone();
    refused(LsmStorage::open_read_only(model.disk.handle(), tables(), 7, 1));
    let is_noted = |disk: SimDisk| {
        let mut notes = Vec::new();
        Store::open_for_salvage(disk, tables(), 1, &mut notes).unwrap();
        assert!(notes.iter().any(|note| note.contains("an interrupted flush")), "{notes:?}");
    };
    is_noted(model.disk.handle());
    let disk = model.disk.handle();
    disk.list().unwrap().iter().for_each(|name| disk.remove(name).unwrap());
    is_noted(disk);
}

#[test]
fn a_read_error_of_the_log_does_not_stop_salvage() {
    let mut model = Model::new(7);
    let storage = model.open().unwrap();
    drop(snapshots_of(&storage, 0..3));
    storage.sync().unwrap();
    drop(storage);
    model.disk.kill();
    let mut incomplete = 0;
    for nth in 1..40 {
        let (disk, tables) = (model.disk.handle(), model.tables.exclusive_engine().storage().clone());
        disk.fail_nth(Some(crate::disk::CallKind::Read), nth, 1);
        let mut notes = Vec::new();
        let storage = Store::open_for_salvage(disk.clone(), tables, 1, &mut notes).unwrap();
        let found = storage.get(Column::Write, b"a", |content| content[0]).unwrap();
        assert!(found == Some(2) || !notes.is_empty(), "{found:?} without a note");
        incomplete += u64::from(!notes.is_empty());
        disk.clear_fault();
    }
    assert!(incomplete > 3, "{incomplete} read errors were noted");
}

/// Batches that set a cell to their number, and a snapshot after each.
fn snapshots_of(storage: &Store, numbers: std::ops::Range<u8>) -> Vec<(Snapshot, u8)> {
    let write = |number| {
        let mut batch = storage.new_batch(0);
        batch.put(Column::Write, b"a", &[number]);
        storage.write(batch).unwrap();
        (storage.snapshot().unwrap(), number)
    };
    numbers.map(write).collect()
}

/// How many memtables the snapshots keep in memory.
fn pinned_memtables(snapshots: &[(Snapshot, u8)]) -> usize {
    let mut pinned: Vec<_> = snapshots.iter().flat_map(|(snapshot, _)| snapshot.pinned_memtables()).collect();
    pinned.sort_unstable();
    pinned.dedup();
    pinned.len()
}

#[test]
fn a_snapshot_pins_no_flushed_memtable() {
    let mut model = Model::new(2);
    let storage = model.open().unwrap();
    let mut snapshots = vec![(storage.snapshot().unwrap(), 0)];
    for round in 1..4 {
        snapshots.extend(snapshots_of(&storage, round * 10..round * 10 + 2));
        assert_eq!(pinned_memtables(&snapshots), 1);
        storage.flush_all().unwrap();
        assert_eq!(pinned_memtables(&snapshots), 0);
    }
    for (snapshot, number) in &snapshots[1..] {
        assert_eq!(snapshot.get(Column::Write, b"a", <[u8]>::to_vec).unwrap(), Some(vec![*number]));
    }
    assert_eq!(snapshots[0].0.get(Column::Write, b"a", <[u8]>::to_vec).unwrap(), None);
}

#[test]
fn a_snapshot_after_a_noop_frame_pins_no_flushed_memtable() {
    let mut model = Model::new(4);
    let storage = model.open().unwrap();
    let path = storage.shared.write_path.as_ref().unwrap();
    drop(snapshots_of(&storage, 0..1));
    storage.sync().unwrap();
    path.noop_needed.store(true, Ordering::Release);
    let before = path.wal.written_sequence();
    while storage.run_background_once(&mut model.written) {}
    assert_eq!(path.wal.written_sequence(), before + 1, "no no-op frame was written");
    storage.flush_all().unwrap();
    let snapshot = (storage.snapshot().unwrap(), 0);
    drop(snapshots_of(&storage, 1..2));
    storage.flush_all().unwrap();
    assert_eq!(snapshot.0.get(Column::Write, b"a", <[u8]>::to_vec).unwrap(), Some(vec![0]));
    assert_eq!(pinned_memtables(&[snapshot]), 0);
}

#[test]
fn snapshots_without_a_stripe_pin_their_memtable() {
    let mut model = Model::new(3);
    let storage = model.open().unwrap();
    let mut snapshots = snapshots_of(&storage, 0..10);
    storage.flush_all().unwrap();
    assert_eq!(pinned_memtables(&snapshots), 1);
    for (snapshot, number) in &snapshots {
        assert_eq!(snapshot.get(Column::Write, b"a", <[u8]>::to_vec).unwrap(), Some(vec![*number]));
    }
    snapshots.truncate(3);
    assert_eq!(pinned_memtables(&snapshots), 0);
}

#[test]
fn every_crash_leaves_a_prefix_with_all_acknowledged() {
    let number_from = |variable: &str| std::env::var(variable).ok()?.parse::<u64>().ok();
    let seeds = match number_from("LSM_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number_from("LSM_HISTORIES").unwrap_or(3000),
    };
    let mut flushed = 0;
    for seed in seeds.clone() {
        let history = std::panic::AssertUnwindSafe(|| run(seed));
        match std::panic::catch_unwind(history) {
            Ok(sequence) => flushed += u64::from(sequence > 0),
            Err(why) => {
                eprintln!("failed with LSM_SEED={seed}");
                std::panic::resume_unwind(why);
            }
        }
    }
    assert!(seeds.count() < 100 || flushed > 100, "{flushed} histories flushed a memtable");
}
