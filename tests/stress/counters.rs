//! Contended counters with an index. Every increment moves the counter's entry in the index, so
//! deletes and inserts alternate on the same rows. Every increment also deletes or inserts a row of
//! its thread.

use std::sync::atomic::{AtomicBool, Ordering};

use percolite::{ErrorKind, Keyspace, Store};

use crate::common::{Reads, Run, any_options, every_way, insist, number, read_number};
use crate::support::{Dice, Home};

const COUNTERS: usize = 3;
const THREADS: usize = 6;

#[test]
fn in_sim() {
    count(&Run::begin("counters::in_sim"), &Home::embedded(), 2000);
}

#[cfg(feature = "rocks")]
#[test]
fn in_rocks() {
    count(&Run::begin("counters::in_rocks"), &Home::rocks(), 700);
}

#[test]
fn in_sim_shared_by_clients() {
    count(&Run::begin("counters::in_sim_shared_by_clients"), &Home::shared(), 60);
}

#[test]
fn in_sim_shared_by_clients_on_bad_networks() {
    let run = Run::begin("counters::in_sim_shared_by_clients_on_bad_networks");
    count(&run, &Home::unreliable(run.seed, 200), 10);
}

struct Tables {
    store: Store,
    counters: Keyspace,
    index: Keyspace,
    flips: Keyspace,
}

impl Tables {
    fn open(store: Store) -> Self {
        let open = |name| insist(|| store.keyspace(name));
        let (counters, index, flips) = (open("counters"), open("index"), open("flips"));
        Self { store, counters, index, flips }
    }

    /// Increments the counter. Returns the value before the increment.
    fn increment(&self, counter: u8, thread: usize, dice: &mut Dice) -> percolite::Result<u64> {
        let options = any_options(dice);
        self.store.transact_with(options, |txn| {
            let read = match dice.below(2) {
                0 => txn.get(&self.counters, [counter])?,
                _ => txn.get_for_update(&self.counters, [counter])?,
            };
            let before = read.map_or(0, |value| read_number(&value));
            txn.put(&self.counters, [counter], number(before + 1, dice))?;
            if before > 0 {
                txn.delete(&self.index, entry(before, counter))?;
            }
            txn.insert(&self.index, entry(before + 1, counter), number(before + 1, dice))?;
            let flip = [counter, thread as u8];
            if txn.contains_key(&self.flips, flip)? {
                txn.delete(&self.flips, flip)?;
            } else {
                txn.insert(&self.flips, flip, number(before, dice))?;
            }
            Ok(before)
        })
    }

    /// Checks that the index agrees with the counters. Returns their sum.
    fn check(&self, reader: &impl Reads) -> u64 {
        let counters = every_way(reader, &self.counters);
        let mut expected: Vec<(Vec<u8>, u64)> = counters
            .iter()
            .map(|(key, value)| (entry(read_number(value), key[0]).to_vec(), read_number(value)))
            .collect();
        expected.sort();
        let index = every_way(reader, &self.index);
        let index: Vec<(Vec<u8>, u64)> = index.into_iter().map(|(key, value)| (key, read_number(&value))).collect();
        assert_eq!(index, expected, "the index differs from the counters");
        every_way(reader, &self.flips);
        expected.iter().map(|(_, number)| number).sum()
    }
}

/// The key of a counter in the index.
fn entry(count: u64, counter: u8) -> [u8; 9] {
    let mut entry = [counter; 9];
    entry[..8].copy_from_slice(&count.to_be_bytes());
    entry
}

fn count(run: &Run, home: &Home, increments: u64) {
    let tables: Vec<Tables> = home.open_sessions(THREADS + 1).into_iter().map(Tables::open).collect();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let auditor = scope.spawn(|| {
            let tables = &tables[THREADS];
            let (mut last, mut last_snapshot) = (0, 0);
            while !done.load(Ordering::Relaxed) {
                let snapshot = tables.check(&insist(|| tables.store.snapshot()));
                let txn = tables.check(&insist(|| tables.store.begin()));
                assert!(
                    snapshot >= last_snapshot && txn >= last && txn >= snapshot,
                    "the sum of the counters has decreased"
                );
                (last, last_snapshot) = (txn, snapshot);
            }
        });
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                let (tables, mut dice) = (&tables[thread], run.dice(thread));
                scope.spawn(move || {
                    let mut seen = [None; COUNTERS];
                    for _ in 0..increments {
                        let counter = dice.below(COUNTERS);
                        let before = loop {
                            match tables.increment(counter as u8, thread, &mut dice) {
                                Ok(before) => break before,
                                Err(error) if matches!(error.kind(), ErrorKind::Io(_)) => {}
                                Err(error) => panic!("{error}"),
                            }
                        };
                        assert!(seen[counter].is_none_or(|last| before > last), "a counter has decreased");
                        seen[counter] = Some(before);
                    }
                })
            })
            .collect();
        let worked: Vec<_> = threads.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
        done.store(true, Ordering::Relaxed);
        auditor.join().unwrap();
        worked.into_iter().for_each(|thread| thread.unwrap());
    });
    let total = tables[0].check(&insist(|| tables[0].store.snapshot()));
    assert_eq!(total, increments * THREADS as u64, "acknowledged increments");
}
