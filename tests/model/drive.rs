//! Applies each operation to a store and to the model, and compares the results.

use std::array::from_fn;
use std::collections::{BTreeSet, VecDeque};
use std::ops::{Bound, Range};
use std::rc::Rc;

use percolite::{
    CommitProtocol, Durability, ErrorKind, Keyspace, Row, Savepoint, Scan, Snapshot, Store, Txn, TxnOptions, Value,
};
use proptest::prelude::*;
use proptest::sample::Index;
use proptest::test_runner::TestCaseError;

use crate::handle::Handle;
use crate::operations::{
    Case, Extent, KEYSPACES, Key, MANY_ROWS, Operation, Place, Profile, Reader, SCANS, SNAPSHOTS, TXNS, numbered,
};
use crate::reference::{Model, ModelTxn, Rows, Write, scan};
use crate::support::Home;

type Checked<T = ()> = Result<T, TestCaseError>;

struct Driver {
    case: Case,
    model: Model,
    clients: Vec<Client>,
    txns: [Option<Open>; TXNS],
    snapshots: [Option<Kept>; SNAPSHOTS],
    scans: [Option<(Scan, VecDeque<(Vec<u8>, Value)>)>; SCANS],
    /// Rows whose writes a transaction undid, by a rollback to a savepoint, before it committed. If
    /// it was large, these rows stayed locked, and others may conflict on them.
    rolled_back: BTreeSet<Place>,
    values: usize,
    home: Home,
}

/// A store with its keyspaces.
struct Client {
    store: Store,
    keyspaces: [Keyspace; KEYSPACES],
}

struct Open {
    txn: Txn,
    model: ModelTxn,
    client: usize,
    savepoints: Vec<Savepoint>,
    /// Every row that the transaction ever wrote or locked, even if it rolled that back.
    touched: BTreeSet<Place>,
}

struct Kept {
    snapshot: Snapshot,
    rows: Rc<Rows>,
    client: usize,
}

pub fn run(home: Home, case: &Case) -> Checked {
    let mut driver = Driver {
        case: case.clone(),
        model: Model::default(),
        clients: Vec::new(),
        txns: from_fn(|_| None),
        snapshots: from_fn(|_| None),
        scans: from_fn(|_| None),
        rolled_back: BTreeSet::new(),
        values: 0,
        home,
    };
    driver.open()?;
    if let Profile::ManyRows = case.profile {
        driver.preload()?;
    }
    for operation in &case.operations {
        driver.operate(operation)?;
    }
    driver.reopen()?;
    driver.check_everything()
}

impl Driver {
    fn open(&mut self) -> Checked {
        let clients = if self.home.is_shared() { 2 } else { 1 };
        for _ in 0..clients {
            let store = self.home.open(
                Store::builder()
                    .conflict_set_rows(self.case.conflict_set_rows)
                    .large_transaction_bytes(self.case.large_transaction_bytes),
            );
            let names: [_; KEYSPACES] = from_fn(|number| store.keyspace(&format!("keyspace {number}")));
            let mut keyspaces = Vec::new();
            for keyspace in names {
                keyspaces.push(ok(keyspace)?);
            }
            let Ok(keyspaces) = keyspaces.try_into() else { panic!("the number of keyspaces has changed") };
            self.clients.push(Client { store, keyspaces });
        }
        Ok(())
    }

    fn reopen(&mut self) -> Checked {
        self.scans = from_fn(|_| None);
        self.txns = from_fn(|_| None);
        self.snapshots = from_fn(|_| None);
        self.clients.clear();
        self.model.reopen();
        self.open()
    }

    fn preload(&mut self) -> Checked {
        let rows = (0..MANY_ROWS).step_by(2);
        self.operate(&Operation::Begin { slot: 0, two_phases: false, buffered: true })?;
        for row in rows.clone() {
            let length = if row % 14 == 0 { 256 } else { 7 };
            self.operate(&Operation::Put(0, (0, numbered(row)), length))?;
        }
        self.operate(&Operation::Commit(0))?;
        self.operate(&Operation::Begin { slot: 1, two_phases: true, buffered: true })?;
        for row in rows.map(|row| row + 1) {
            self.operate(&Operation::Put(1, (0, numbered(row)), 3))?;
        }
        self.operate(&Operation::Commit(1))
    }

    /// Reads all rows, from both ends, and checks that no locks are left.
    fn check_everything(&mut self) -> Checked {
        for keyspace in 0..KEYSPACES {
            let all = Extent::Range(Bound::Unbounded, Bound::Unbounded);
            for directions in [vec![false], vec![true], vec![false, true, true]] {
                self.operate(&Operation::Scan(Reader::Txn(0), keyspace, all.clone(), directions))?;
            }
            let places: Vec<Place> = self.model.rows.keys().filter(|(of, _)| *of == keyspace).cloned().collect();
            for place in places.into_iter().step_by(11) {
                self.operate(&Operation::Get(Reader::Txn(0), place))?;
            }
        }
        // Locks of large transactions may still wait for the lock cleanup, or for the sweep after a
        // reopening.
        let locks = || self.clients[0].store.row_locks().map(Iterator::count);
        for _ in 0..2000 {
            if ok(locks())? == 0 {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        prop_assert_eq!(ok(locks())?, 0, "locks are left");
        Ok(())
    }

    fn operate(&mut self, operation: &Operation) -> Checked {
        match operation {
            Operation::Begin { slot, two_phases, buffered } => {
                self.txns[*slot] = None;
                self.begin(*slot, *two_phases, *buffered)?;
            }
            Operation::Get(reader, place) => {
                let expected = self.expect(*reader, place)?;
                let (handle, keyspace) = self.handle(*reader, place.0);
                let found = ok(handle.get(keyspace, &place.1))?;
                prop_assert_eq!(short(found.as_ref()), short(expected.as_ref()));
            }
            Operation::Contains(reader, place) => {
                let expected = self.expect(*reader, place)?.is_some();
                let (handle, keyspace) = self.handle(*reader, place.0);
                prop_assert_eq!(ok(handle.contains(keyspace, &place.1))?, expected);
            }
            Operation::MultiGet(reader, keyspace, keys) => self.multi_get(*reader, *keyspace, keys)?,
            Operation::GetForUpdate(slot, place) => self.get_for_update(*slot, place)?,
            Operation::Put(slot, place, length) => {
                let value = self.value(*length);
                let (keyspace, open) = self.writer(*slot, place.0)?;
                let done = open.txn.put(&keyspace, &place.1.0, &value);
                open.model.write(place.clone(), Write::Put(value));
                self.written(*slot, place, done)?;
            }
            Operation::Insert(slot, place, length) => self.insert(*slot, place, *length)?,
            Operation::Delete(slot, place) => {
                let (keyspace, open) = self.writer(*slot, place.0)?;
                let done = open.txn.delete(&keyspace, &place.1.0);
                open.model.write(place.clone(), Write::Delete);
                self.written(*slot, place, done)?;
            }
            Operation::Band { slot, keyspace, first, rows, put } => {
                self.write_band(*slot, *keyspace, *first..(first + rows).min(MANY_ROWS), *put)?;
            }
            Operation::Scan(reader, keyspace, extent, directions) => {
                self.scan_to_end(*reader, *keyspace, extent, directions)?;
            }
            Operation::OpenScan(slot, reader, keyspace, extent) => {
                self.scans[*slot] = Some(self.scan(*reader, *keyspace, extent)?);
            }
            Operation::StepScan { slot, backwards, rows } => self.step_scan(*slot, *backwards, *rows)?,
            Operation::Savepoint(slot) => {
                let (_, open) = self.writer(*slot, 0)?;
                open.savepoints.push(open.txn.savepoint());
                open.model.savepoint();
            }
            Operation::RollbackTo(slot, which) => self.rollback_to(*slot, *which)?,
            Operation::Commit(slot) => {
                if let Some(open) = self.txns[*slot].take() {
                    self.commit(open)?;
                }
            }
            Operation::RollBack(slot) => {
                if let Some(open) = self.txns[*slot].take() {
                    ok(open.txn.rollback())?;
                }
            }
            Operation::Drop(slot) => self.txns[*slot] = None,
            Operation::Snapshot(slot) => {
                self.snapshots[*slot] = None;
                self.ensure(Reader::Snapshot(*slot))?;
            }
            Operation::Reopen => self.reopen()?,
        }
        Ok(())
    }

    fn multi_get(&mut self, reader: Reader, keyspace: usize, keys: &[Key]) -> Checked {
        self.ensure(reader)?;
        let expected: Checked<Vec<_>> = keys.iter().map(|key| self.expect(reader, &(keyspace, key.clone()))).collect();
        let (handle, keyspace) = self.handle(reader, keyspace);
        prop_assert_eq!(ok(handle.multi_get(keyspace, keys))?, expected?);
        Ok(())
    }

    fn get_for_update(&mut self, slot: usize, place: &Place) -> Checked {
        let expected = self.expect(Reader::Txn(slot), place)?;
        let (keyspace, open) = self.writer(slot, place.0)?;
        let found = open.txn.get_for_update(&keyspace, &place.1.0);
        open.model.lock_only(place.clone());
        if let Some(found) = self.written(slot, place, found)? {
            prop_assert_eq!(short(found.as_ref()), short(expected.as_ref()));
        }
        Ok(())
    }

    fn insert(&mut self, slot: usize, place: &Place, length: usize) -> Checked {
        let value = self.value(length);
        let (keyspace, open) = self.writer(slot, place.0)?;
        let inserted = open.txn.insert(&keyspace, &place.1.0, &value);
        if open.model.get(place).is_some() {
            let row = ErrorKind::AlreadyExists(keyspace.row_key(&place.1.0));
            prop_assert_eq!(inserted.map_err(|error| error.kind().clone()), Err(row));
        } else {
            open.model.write(place.clone(), Write::Put(value));
            self.written(slot, place, inserted)?;
        }
        Ok(())
    }

    /// Puts rows with values of this length, or deletes them if it is `None`.
    fn write_band(&mut self, slot: usize, keyspace: usize, rows: Range<usize>, put: Option<usize>) -> Checked {
        for row in rows {
            let place = (keyspace, numbered(row));
            self.operate(&match put {
                Some(length) => Operation::Put(slot, place, length),
                None => Operation::Delete(slot, place),
            })?;
        }
        Ok(())
    }

    /// Scans all rows. `directions` says for each step whether it goes backwards, and is repeated
    /// until the scan ends.
    fn scan_to_end(&mut self, reader: Reader, keyspace: usize, extent: &Extent, directions: &[bool]) -> Checked {
        let (mut scan, mut expected) = self.scan(reader, keyspace, extent)?;
        for backwards in directions.iter().cycle() {
            if !step(&mut scan, &mut expected, *backwards)? {
                break;
            }
        }
        // An ended scan stays ended, at both ends.
        prop_assert!(scan.next_back().is_none() && scan.next().is_none());
        Ok(())
    }

    fn step_scan(&mut self, slot: usize, backwards: bool, rows: usize) -> Checked {
        if let Some((scan, expected)) = &mut self.scans[slot] {
            for _ in 0..rows {
                step(scan, expected, backwards)?;
            }
        }
        Ok(())
    }

    fn rollback_to(&mut self, slot: usize, which: Index) -> Checked {
        let (_, open) = self.writer(slot, 0)?;
        if !open.savepoints.is_empty() {
            let which = which.index(open.savepoints.len());
            let done = open.txn.rollback_to(open.savepoints[which]);
            prop_assert_eq!(done.is_ok(), open.model.rollback_to(which), "{:?}", done);
        }
        Ok(())
    }

    fn begin(&mut self, slot: usize, two_phases: bool, buffered: bool) -> Checked {
        let client = slot % self.clients.len();
        let options = TxnOptions::default()
            .commit_protocol(if two_phases { CommitProtocol::TwoPhase } else { CommitProtocol::Auto })
            .durability(if buffered { Durability::Buffered } else { Durability::Sync });
        let txn = ok(self.clients[client].store.begin_with(options))?;
        self.txns[slot] =
            Some(Open { txn, model: self.model.begin(), client, savepoints: Vec::new(), touched: BTreeSet::new() });
        Ok(())
    }

    /// Begins the reader's transaction or snapshot if there is none.
    fn ensure(&mut self, reader: Reader) -> Checked {
        match reader {
            Reader::Txn(slot) if self.txns[slot].is_none() => self.begin(slot, slot == 1, slot == 2),
            Reader::Snapshot(slot) if self.snapshots[slot].is_none() => {
                let client = slot % self.clients.len();
                let snapshot = ok(self.clients[client].store.snapshot())?;
                self.snapshots[slot] = Some(Kept { snapshot, rows: Rc::clone(&self.model.rows), client });
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// An existing reader, and its client's handle of a keyspace.
    fn handle(&self, reader: Reader, keyspace: usize) -> (Handle<'_>, &Keyspace) {
        let (handle, client) = match reader {
            Reader::Txn(slot) => {
                let open = self.txns[slot].as_ref().unwrap();
                (Handle::Txn(&open.txn), open.client)
            }
            Reader::Snapshot(slot) => {
                let kept = self.snapshots[slot].as_ref().unwrap();
                (Handle::Snapshot(&kept.snapshot), kept.client)
            }
        };
        (handle, &self.clients[client].keyspaces[keyspace])
    }

    fn writer(&mut self, slot: usize, keyspace: usize) -> Checked<(Keyspace, &mut Open)> {
        self.ensure(Reader::Txn(slot))?;
        let open = self.txns[slot].as_mut().unwrap();
        Ok((self.clients[open.client].keyspaces[keyspace].clone(), open))
    }

    fn expect(&mut self, reader: Reader, place: &Place) -> Checked<Option<Value>> {
        self.ensure(reader)?;
        Ok(match reader {
            Reader::Txn(slot) => self.txns[slot].as_ref().unwrap().model.get(place).cloned(),
            Reader::Snapshot(slot) => self.snapshots[slot].as_ref().unwrap().rows.get(place).cloned(),
        })
    }

    /// A scan, and the rows that it must return.
    fn scan(
        &mut self,
        reader: Reader,
        keyspace: usize,
        extent: &Extent,
    ) -> Checked<(Scan, VecDeque<(Vec<u8>, Value)>)> {
        self.ensure(reader)?;
        let expected = match reader {
            Reader::Txn(slot) => scan(&self.txns[slot].as_ref().unwrap().model.seen(), keyspace, extent),
            Reader::Snapshot(slot) => scan(&self.snapshots[slot].as_ref().unwrap().rows, keyspace, extent),
        };
        let (handle, keyspace) = self.handle(reader, keyspace);
        Ok((handle.scan(keyspace, extent), expected))
    }

    fn commit(&mut self, open: Open) -> Checked {
        let Open { txn, model, client, touched, .. } = open;
        let conflicts = self.model.conflicts(&model);
        match txn.commit() {
            Ok(_) => {
                prop_assert!(conflicts.is_empty(), "committed in spite of conflicts on {conflicts:?}");
                self.rolled_back.extend(touched.into_iter().filter(|place| !model.has_written(place)));
                self.model.commit(model);
            }
            Err(error) if error.is_retryable() => {
                self.check_conflict(&error, &conflicts, &model, client)?;
            }
            Err(error) => prop_assert!(false, "{error}"),
        }
        Ok(())
    }

    /// Checks the result of a write. In a large transaction it may be a conflict, which ends the
    /// transaction.
    fn written<T>(&mut self, slot: usize, place: &Place, answer: percolite::Result<T>) -> Checked<Option<T>> {
        let open = self.txns[slot].as_mut().unwrap();
        open.touched.insert(place.clone());
        match answer {
            Err(error) if error.is_retryable() => {
                let mut open = self.txns[slot].take().unwrap();
                let again = open
                    .txn
                    .put(&self.clients[open.client].keyspaces[0], "more", "more")
                    .map_err(|error| error.kind().clone());
                prop_assert_eq!(again, Err(error.kind().clone()), "the transaction continues after a conflict");
                prop_assert_eq!(
                    open.txn.commit().map(drop).map_err(|error| error.kind().clone()),
                    Err(error.kind().clone())
                );
                let conflicts = self.model.conflicts(&open.model);
                self.check_conflict(&error, &conflicts, &open.model, open.client)?;
                Ok(None)
            }
            answer => ok(answer).map(Some),
        }
    }

    /// Checks the row that `error` names, a conflict of the transaction `model`. The row must be in
    /// `conflicts`, or, if transactions are large, one that another may have locked. With a
    /// conflict cache of one row, lock-only rows may cause spurious conflicts, too.
    fn check_conflict(
        &self,
        error: &percolite::Error,
        conflicts: &[Place],
        model: &ModelTxn,
        client: usize,
    ) -> Checked {
        let row = &error.conflict().unwrap().row;
        let is_row = |(keyspace, key): &Place| self.clients[client].keyspaces[*keyspace].row_key(&key.0) == *row;
        let has_locks = self.case.large_transaction_bytes < 1 << 20;
        let mut others = self.txns.iter().flatten().flat_map(|other| &other.touched);
        let allowed =
            conflicts.iter().any(is_row) || has_locks && (others.any(is_row) || self.rolled_back.iter().any(is_row));
        let lock_only = self.model.lock_only_since(model) || !self.rolled_back.is_empty();
        let may_be_spurious = self.case.conflict_set_rows == 1 && lock_only;
        prop_assert!(allowed || may_be_spurious, "{error}, but the conflicts are {conflicts:?}");
        Ok(())
    }

    /// A value of this length. It differs from all earlier values of the same length, except that
    /// very short values repeat.
    fn value(&mut self, length: usize) -> Value {
        self.values += 1;
        self.values.to_be_bytes().iter().rev().copied().cycle().take(length).collect::<Vec<_>>().into()
    }
}

/// Takes one step of a scan. Returns whether there was a row.
fn step(scan: &mut Scan, expected: &mut VecDeque<(Vec<u8>, Value)>, backwards: bool) -> Checked<bool> {
    let (found, expected) =
        if backwards { (scan.next_back(), expected.pop_back()) } else { (scan.next(), expected.pop_front()) };
    let found = found.map(ok).transpose()?.map(Row::into_parts);
    prop_assert!(found == expected, "the scan returns {} instead of {}", line(&found), line(&expected));
    Ok(found.is_some())
}

fn ok<T>(result: percolite::Result<T>) -> Checked<T> {
    result.map_err(|error| TestCaseError::fail(format!("{error:?}")))
}

/// A row as text.
fn line(row: &Option<(Vec<u8>, Value)>) -> String {
    match row {
        Some((key, value)) => format!("{} = {:?}", key.escape_ascii(), short(Some(value))),
        None => "no row".into(),
    }
}

/// The length and the start of a value, to print.
fn short(value: Option<&Value>) -> Option<(usize, &[u8])> {
    value.map(|value| (value.len(), &value[..value.len().min(8)]))
}
