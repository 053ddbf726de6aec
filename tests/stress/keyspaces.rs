//! Keyspaces that come and go under load.
//!
//! Every transaction writes a row in a keyspace that is dropped now and then and one in a ledger that stays, both under the
//! keyspace's number. While a keyspace lives the two agree; a new one of the same name begins empty; and nobody commits into
//! one that was dropped before they began.

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
    come_and_go(&Run::begin("keyspaces::in_sim"), &Home::embedded(), 1500);
}

#[cfg(feature = "rocks")]
#[test]
fn in_rocks() {
    come_and_go(&Run::begin("keyspaces::in_rocks"), &Home::rocks(), 500);
}

struct Town {
    store: Store,
    ledger: Keyspace,
    /// Being dropped, and dropped.
    leaving: Mutex<HashSet<KeyspaceId>>,
    gone: Mutex<HashSet<KeyspaceId>>,
    done: AtomicBool,
}

fn come_and_go(run: &Run, home: &Home, writes: u64) {
    let store = home.open(Store::builder());
    let ledger = store.keyspace("ledger").unwrap();
    let (leaving, gone, done) = Default::default();
    let town = Town { store, ledger, leaving, gone, done };
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| {
                let (town, mut dice) = (&town, run.dice(writer));
                // On a busy machine the writers may be done before the wrecker has begun.
                let goes_on = |write: &u64| *write <= writes || (*write <= writes * 100 && town.stands());
                scope.spawn(move || (1..).take_while(goes_on).for_each(|write| town.write(writer, write, &mut dice)))
            })
            .collect();
        let wrecker = scope.spawn(|| town.wreck(run.dice(WRITERS)));
        let auditor = scope.spawn(|| town.audit(run.dice(WRITERS + 1)));
        let worked: Vec<_> = writers.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
        town.done.store(true, Ordering::Relaxed);
        wrecker.join().unwrap();
        auditor.join().unwrap();
        worked.into_iter().for_each(|writer| writer.unwrap());
    });

    // What lives when the store is closed lives when it is opened again, and the rest does not.
    let before = town.living();
    assert!(!town.stands());
    drop(town);
    let store = home.open(Store::builder());
    let ledger = store.keyspace("ledger").unwrap();
    let (leaving, gone, done) = Default::default();
    let town = Town { store, ledger, leaving, gone, done };
    assert!(town.living() == before, "other keyspaces after closing and opening");
}

fn key(id: KeyspaceId, writer: usize, write: u64) -> Vec<u8> {
    [&id.0.to_be_bytes()[..], &[writer as u8], &write.to_be_bytes()].concat()
}

impl Town {
    fn stands(&self) -> bool {
        self.gone.lock().unwrap().is_empty()
    }

    fn write(&self, writer: usize, write: u64, dice: &mut Dice) {
        let name = NAMES[dice.below(NAMES.len())];
        let keyspace = self.store.keyspace(name).unwrap();
        let was_gone = self.gone.lock().unwrap().contains(&keyspace.id());
        let key = key(keyspace.id(), writer, write);
        let value = number(keyspace.id().0.into(), dice);
        let options = any_options(dice);
        let done = self.store.transact_with(options, |txn| {
            txn.insert(&keyspace, &key, &value)?;
            txn.insert(&self.ledger, &key, &value)
        });
        match done {
            Ok(()) => assert!(!was_gone, "a commit into a keyspace that was dropped before it began"),
            Err(why) => assert!(matches!(why.kind(), ErrorKind::KeyspaceNotFound(_)), "{why}"),
        }
    }

    fn wreck(&self, mut dice: Dice) {
        while !self.done.load(Ordering::Relaxed) {
            let name = NAMES[dice.below(NAMES.len())];
            let Ok(keyspace) = self.store.existing_keyspace(name) else { continue };
            self.leaving.lock().unwrap().insert(keyspace.id());
            match self.store.drop_keyspace(name) {
                Ok(()) => {
                    self.gone.lock().unwrap().insert(keyspace.id());
                    let mut txn = self.store.begin().unwrap();
                    assert!(txn.put(&keyspace, "late", "").is_err(), "a put into a keyspace that is gone");
                }
                // Somebody was creating one.
                Err(why) => assert!(why.is_retryable(), "{why}"),
            }
            std::thread::sleep(Duration::from_micros(dice.below(3000) as u64));
        }
    }

    fn audit(&self, mut dice: Dice) {
        let mut kept: Vec<(Snapshot, Keyspace, Rows)> = Vec::new();
        while !self.done.load(Ordering::Relaxed) {
            let Ok(keyspace) = self.store.existing_keyspace(NAMES[dice.below(NAMES.len())]) else { continue };
            let snapshot = self.store.snapshot().unwrap();
            // What it answers once it answers always.
            if let Err(why) = snapshot.get(&keyspace, "any") {
                assert!(matches!(why.kind(), ErrorKind::KeyspaceNotFound(_)), "{why}");
                assert!(self.leaving.lock().unwrap().contains(&keyspace.id()), "gone before anybody dropped it");
                continue;
            }
            let (rows, ledger) = self.books(&snapshot, &keyspace);
            if self.leaving.lock().unwrap().contains(&keyspace.id()) {
                continue;
            }
            assert!(rows == ledger, "keyspace and ledger: {} and {} rows", rows.len(), ledger.len());
            // A snapshot goes on reading what it has seen, also after the keyspace is gone.
            kept.push((snapshot, keyspace, rows));
            if kept.len() == 8 {
                let (snapshot, keyspace, rows) = kept.swap_remove(dice.below(8));
                assert!(self.books(&snapshot, &keyspace).0 == rows, "a snapshot has lost rows of a dropped keyspace");
            }
        }
    }

    /// The rows of a keyspace, and what the ledger says they are.
    fn books(&self, snapshot: &Snapshot, keyspace: &Keyspace) -> (Rows, Rows) {
        let rows = every_way(snapshot, keyspace);
        let id = u64::from(keyspace.id().0);
        assert!(rows.iter().all(|(_, value)| read_number(value) == id), "rows of another keyspace of this name");
        let ledger = snapshot.prefix(&self.ledger, keyspace.id().0.to_be_bytes());
        (rows, ledger.collect::<percolite::Result<_>>().unwrap())
    }

    /// Everything in the keyspaces that there are.
    fn living(&self) -> Vec<(String, Rows)> {
        let names = self.store.keyspace_names().unwrap();
        let snapshot = self.store.snapshot().unwrap();
        let rows = |name: String| {
            let keyspace = self.store.existing_keyspace(&name).unwrap();
            if name != "ledger" {
                let (rows, ledger) = self.books(&snapshot, &keyspace);
                assert!(rows == ledger, "keyspace and ledger at the end");
            }
            let rows = every_way(&snapshot, &keyspace);
            (name, rows)
        };
        names.into_iter().map(rows).collect()
    }
}
