//! Keyspaces that are created and dropped under load.
//!
//! Every transaction writes a row to a keyspace that is dropped from time to time, and the same row
//! to a ledger that stays. The keys begin with the keyspace's id. While a keyspace exists, its rows
//! and the rows with its id in the ledger agree. A new keyspace of the same name is empty. No
//! transaction commits into a keyspace that was dropped before the transaction began.

use std::collections::HashSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use percolite::{ErrorKind, Keyspace, KeyspaceId, Snapshot, Store};

use crate::common::{Rows, Run, any_options, every_way, number, read_number};
use crate::support::{Dice, Home};

const NAMES: [&str; 3] = ["one", "two", "three"];
const WRITERS: usize = 4;

#[test]
fn in_sim() {
    create_and_drop(&Run::begin("keyspaces::in_sim"), &Home::embedded(), 1500);
}

#[cfg(feature = "rocks")]
#[test]
fn in_rocks() {
    create_and_drop(&Run::begin("keyspaces::in_rocks"), &Home::rocks(), 500);
}

struct Shared {
    store: Store,
    ledger: Keyspace,
    /// Keyspaces whose drop has begun.
    dropping: Mutex<HashSet<KeyspaceId>>,
    /// Keyspaces whose drop has returned.
    dropped: Mutex<HashSet<KeyspaceId>>,
    done: AtomicBool,
}

fn create_and_drop(run: &Run, home: &Home, writes: u64) {
    let store = home.open(Store::builder());
    let ledger = store.keyspace("ledger").unwrap();
    let (dropping, dropped, done) = Default::default();
    let shared = Shared { store, ledger, dropping, dropped, done };
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| {
                let (shared, mut dice) = (&shared, run.dice(writer));
                // On a busy machine the writers could end before the first drop, so they continue
                // until there was one, for up to a hundred times as many writes.
                let continues = |write: &u64| *write <= writes || (*write <= writes * 100 && shared.none_dropped());
                scope
                    .spawn(move || (1..).take_while(continues).for_each(|write| shared.write(writer, write, &mut dice)))
            })
            .collect();
        let dropper = scope.spawn(|| shared.drop_keyspaces(run.dice(WRITERS)));
        let auditor = scope.spawn(|| shared.audit(run.dice(WRITERS + 1)));
        let worked: Vec<_> = writers.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
        shared.done.store(true, Ordering::Relaxed);
        dropper.join().unwrap();
        auditor.join().unwrap();
        worked.into_iter().for_each(|writer| writer.unwrap());
    });

    // The reopened store has the same keyspaces and rows.
    let before = shared.contents();
    assert!(!shared.none_dropped());
    drop(shared);
    let store = home.open(Store::builder());
    let ledger = store.keyspace("ledger").unwrap();
    let (dropping, dropped, done) = Default::default();
    let shared = Shared { store, ledger, dropping, dropped, done };
    assert!(shared.contents() == before, "the reopened store has other keyspaces or rows");
}

fn key(id: KeyspaceId, writer: usize, write: u64) -> Vec<u8> {
    [&id.0.to_be_bytes()[..], &[writer as u8], &write.to_be_bytes()].concat()
}

impl Shared {
    fn none_dropped(&self) -> bool {
        self.dropped.lock().unwrap().is_empty()
    }

    fn write(&self, writer: usize, write: u64, dice: &mut Dice) {
        let name = NAMES[dice.below(NAMES.len())];
        let keyspace = self.store.keyspace(name).unwrap();
        let was_dropped = self.dropped.lock().unwrap().contains(&keyspace.id());
        let key = key(keyspace.id(), writer, write);
        let value = number(keyspace.id().0.into(), dice);
        let options = any_options(dice);
        let done = self.store.transact_with(options, |txn| {
            txn.insert(&keyspace, &key, &value)?;
            txn.insert(&self.ledger, &key, &value)
        });
        match done {
            Ok(()) => assert!(!was_dropped, "a commit into a keyspace that was dropped before it began"),
            Err(error) => assert!(matches!(error.kind(), ErrorKind::KeyspaceNotFound(_)), "{error}"),
        }
    }

    fn drop_keyspaces(&self, mut dice: Dice) {
        while !self.done.load(Ordering::Relaxed) {
            let name = NAMES[dice.below(NAMES.len())];
            let Ok(keyspace) = self.store.existing_keyspace(name) else { continue };
            self.dropping.lock().unwrap().insert(keyspace.id());
            match self.store.drop_keyspace(name) {
                Ok(()) => {
                    self.dropped.lock().unwrap().insert(keyspace.id());
                    let mut txn = self.store.begin().unwrap();
                    assert!(txn.put(&keyspace, "late", "").is_err(), "a put into a dropped keyspace");
                }
                // The drop may conflict with the creation of a keyspace.
                Err(error) => assert!(error.is_retryable(), "{error}"),
            }
            std::thread::sleep(Duration::from_micros(dice.below(3000) as u64));
        }
    }

    fn audit(&self, mut dice: Dice) {
        let mut kept: Vec<(Snapshot, Keyspace, Rows)> = Vec::new();
        while !self.done.load(Ordering::Relaxed) {
            let Ok(keyspace) = self.store.existing_keyspace(NAMES[dice.below(NAMES.len())]) else { continue };
            let snapshot = self.store.snapshot().unwrap();
            // The first read may fail if the keyspace is being dropped. If it succeeds, this
            // snapshot can always read the keyspace.
            if let Err(error) = snapshot.get(&keyspace, "any") {
                assert!(matches!(error.kind(), ErrorKind::KeyspaceNotFound(_)), "{error}");
                assert!(self.dropping.lock().unwrap().contains(&keyspace.id()), "not found before its drop began");
                continue;
            }
            let (rows, ledger) = self.rows_and_ledger(&snapshot, &keyspace);
            if self.dropping.lock().unwrap().contains(&keyspace.id()) {
                continue;
            }
            assert!(rows == ledger, "keyspace and ledger: {} and {} rows", rows.len(), ledger.len());
            // A snapshot still reads the rows after the keyspace was dropped.
            kept.push((snapshot, keyspace, rows));
            if kept.len() == 8 {
                let (snapshot, keyspace, rows) = kept.swap_remove(dice.below(8));
                assert!(
                    self.rows_and_ledger(&snapshot, &keyspace).0 == rows,
                    "a snapshot has lost rows of a dropped keyspace"
                );
            }
        }
    }

    /// The rows of a keyspace, and its rows in the ledger.
    fn rows_and_ledger(&self, snapshot: &Snapshot, keyspace: &Keyspace) -> (Rows, Rows) {
        let rows = every_way(snapshot, keyspace);
        let id = u64::from(keyspace.id().0);
        assert!(rows.iter().all(|(_, value)| read_number(value) == id), "rows of another keyspace of this name");
        let ledger = snapshot.prefix(&self.ledger, keyspace.id().0.to_be_bytes());
        (rows, ledger.map(|row| row.unwrap().into_parts()).collect())
    }

    /// All keyspaces with their rows.
    fn contents(&self) -> Vec<(String, Rows)> {
        let names = self.store.keyspace_names().unwrap();
        let snapshot = self.store.snapshot().unwrap();
        let rows = |name: String| {
            let keyspace = self.store.existing_keyspace(&name).unwrap();
            if name != "ledger" {
                let (rows, ledger) = self.rows_and_ledger(&snapshot, &keyspace);
                assert!(rows == ledger, "keyspace and ledger at the end");
            }
            let rows = every_way(&snapshot, &keyspace);
            (name, rows)
        };
        names.into_iter().map(rows).collect()
    }
}
