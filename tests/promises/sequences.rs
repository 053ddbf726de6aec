//! Sequences: no number twice, no conflicts, and what copies continue with.

use std::collections::HashSet;
use std::num::NonZeroU32;
use std::sync::{Barrier, Mutex};

use percolite::engine::sim::SimStorage;
use percolite::{Durability, ErrorKind, Keyspace, OnExisting, Result, Sequence, Store};

fn open() -> (Store, Keyspace) {
    let store = Store::in_memory().unwrap();
    let rows = store.keyspace("sequences").unwrap();
    (store, rows)
}

fn ranges_of(sequence: Sequence, numbers: u32) -> Sequence {
    sequence.range_size(NonZeroU32::new(numbers).unwrap())
}

fn take(sequence: &Sequence, count: usize) -> Vec<u64> {
    (0..count).map(|_| sequence.next().unwrap()).collect()
}

#[test]
fn one_sequence_counts_from_1_and_its_row_is_ahead() {
    let (store, rows) = open();
    let sequence = ranges_of(store.sequence(&rows, "s").unwrap(), 3);
    assert_eq!(take(&sequence, 2), [1, 2]);
    assert_eq!(take(&sequence.clone(), 3), [3, 4, 5]);
    assert_eq!(store.get(&rows, "s").unwrap(), Some(7_u64.to_be_bytes().into()));
    assert_eq!(take(&store.sequence(&rows, "s").unwrap(), 2), [7, 8], "another handle has another range");
    assert_eq!(take(&store.sequence(&rows, "t").unwrap(), 1), [1], "another row is another sequence");
}

#[test]
fn threads_and_handles_get_each_number_once_and_in_order() {
    const THREADS: usize = 8;
    const NUMBERS: usize = 2_000;
    let (store, rows) = open();
    let handles: Vec<Sequence> = (0..2).map(|_| ranges_of(store.sequence(&rows, "s").unwrap(), 7)).collect();
    let (begin, seen) = (Barrier::new(THREADS), Mutex::new(HashSet::new()));
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (sequence, begin, seen) = (&handles[thread % handles.len()], &begin, &seen);
            scope.spawn(move || {
                begin.wait();
                let numbers = take(sequence, NUMBERS);
                assert!(numbers.is_sorted_by(|one, next| one < next), "a thread got a smaller number later");
                let mut seen = seen.lock().unwrap();
                numbers.into_iter().for_each(|number| assert!(seen.insert(number), "{number} came twice"));
            });
        }
    });
    let seen = seen.into_inner().unwrap();
    assert_eq!(seen.len(), THREADS * NUMBERS);
    // No range was lost but the rest of one for each handle.
    assert!(*seen.iter().max().unwrap() < (THREADS * NUMBERS + 3 * 7) as u64);
}

#[test]
fn transactions_that_use_one_sequence_do_not_conflict() {
    let (store, rows) = open();
    let orders = store.keyspace("orders").unwrap();
    let sequence = ranges_of(store.sequence(&rows, "s").unwrap(), 1);
    let mut open: Vec<_> = (0..10).map(|_| store.begin().unwrap()).collect();
    for txn in &mut open {
        txn.put(&orders, sequence.next().unwrap().to_be_bytes(), "tea").unwrap();
    }
    drop(open.pop());
    open.into_iter().for_each(|txn| assert!(txn.commit().unwrap().durable));
    let inside = store.transact(|txn| {
        let number = sequence.next()?;
        txn.put(&orders, number.to_be_bytes(), "tea")?;
        Ok::<_, percolite::Error>(number)
    });
    assert_eq!(inside.unwrap(), 11, "10 was rolled back, and does not come again");
    assert_eq!((store.range(&orders, ..).unwrap().count(), store.stats().retries), (10, 0));
}

struct Dice(u64);

impl Dice {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }
}

/// The store is opened with `Buffered`, and still no range is handed out before it is durable. In
/// half of the rounds a write or a sync fails, so that commits are undetermined.
#[test]
fn no_number_comes_twice_over_power_cuts_and_failed_writes() {
    const ROUNDS: u64 = 300;
    let seed = std::env::var("SEED").ok().map_or_else(rand_seed, |seed| seed.parse().unwrap());
    println!("SEED={seed}");
    let (memory, mut dice, mut seen) = (SimStorage::new(), Dice(seed), HashSet::new());
    let mut undetermined = 0;
    let open = || Store::builder().durability(Durability::Buffered).open_in_memory(&memory).unwrap();
    open().keyspace("sequences").unwrap();
    for round in 0..ROUNDS {
        let store = open();
        let rows = store.existing_keyspace("sequences").unwrap();
        let nth = 1 + dice.below(12);
        match dice.below(6) {
            0 => memory.fail_sync(nth),
            1 => memory.fail_write(nth),
            2 => memory.reject_write(nth),
            _ => {}
        }
        let numbers = Mutex::new(Vec::new());
        let handles: Vec<Sequence> = (0..2).map(|_| ranges_of(store.sequence(&rows, "s").unwrap(), 3)).collect();
        let (counts, crash) = ([0; 4].map(|_| dice.below(30)), dice.below(1 << 20));
        let errors = std::thread::scope(|scope| {
            let threads: Vec<_> = counts
                .iter()
                .enumerate()
                .map(|(thread, count)| {
                    let (sequence, numbers) = (&handles[thread % 2], &numbers);
                    scope.spawn(move || {
                        (0..*count).try_for_each(|_| -> Result<()> {
                            let number = sequence.next()?;
                            numbers.lock().unwrap().push(number);
                            Ok(())
                        })
                    })
                })
                .collect();
            // Half of the crashes come while the threads run.
            let joined: Vec<_> = if crash % 2 == 0 {
                threads.into_iter().map(|thread| thread.join().unwrap()).collect()
            } else {
                while numbers.lock().unwrap().len() < counts[0].min(counts[1]) as usize / 2
                    && !threads.iter().all(|thread| thread.is_finished())
                {
                    std::thread::yield_now();
                }
                memory.crash(crash);
                threads.into_iter().map(|thread| thread.join().unwrap()).collect()
            };
            joined.into_iter().filter_map(Result::err).collect::<Vec<_>>()
        });
        undetermined += errors.iter().filter(|error| matches!(error.kind(), ErrorKind::Undetermined(_))).count();
        for number in numbers.into_inner().unwrap() {
            assert!(seen.insert(number), "{number} came twice, in round {round} with seed {seed}");
        }
        memory.crash(crash / 2);
        drop((handles, rows, store));
    }
    assert!(seen.len() > 1_000 && undetermined > 10, "{} numbers, {undetermined} undetermined", seen.len());
}

fn rand_seed() -> u64 {
    std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64
}

#[test]
fn a_restored_sequence_continues_above_what_the_dump_had_seen() {
    let (store, rows) = open();
    let sequence = ranges_of(store.sequence(&rows, "s").unwrap(), 10);
    let before = take(&sequence, 12);
    let mut dump = Vec::new();
    store.snapshot().unwrap().dump(&mut dump, |_| ()).unwrap();
    let copy = Store::in_memory().unwrap();
    copy.restore(&dump[..], OnExisting::Fail, |_| ()).unwrap();
    let rows = copy.existing_keyspace("sequences").unwrap();
    let after = take(&copy.sequence(&rows, "s").unwrap(), 2);
    assert_eq!(after, [21, 22]);
    assert!(before.iter().max() < after.iter().min());
}

#[test]
fn a_row_that_is_set_back_does_not_make_a_handle_repeat_itself() {
    let (store, rows) = open();
    let sequence = ranges_of(store.sequence(&rows, "s").unwrap(), 2);
    assert_eq!(take(&sequence, 2), [1, 2]);
    store.transact(|txn| txn.delete(&rows, "s")).unwrap();
    assert_eq!(take(&sequence, 2), [3, 4]);
    store.transact(|txn| txn.put(&rows, "s", 100_u64.to_be_bytes())).unwrap();
    assert_eq!(take(&sequence, 2), [100, 101]);
}

#[test]
fn errors_of_a_sequence_say_what_is_wrong_and_hand_out_nothing() {
    let (store, rows) = open();
    store
        .transact(|txn| {
            txn.put(&rows, "text", "seven")?;
            txn.put(&rows, "full", (u64::MAX - 1).to_be_bytes())
        })
        .unwrap();
    let error = store.sequence(&rows, "text").unwrap().next().unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Corruption(_)), "{error}");
    assert!(error.to_string().contains("\"sequences\", key \"text\""), "{error}");
    let full = store.sequence(&rows, "full").unwrap();
    assert_eq!(full.next().unwrap(), u64::MAX - 1);
    for _ in 0..2 {
        assert!(matches!(full.next().unwrap_err().kind(), ErrorKind::InvalidArgument(_)));
    }
    assert!(matches!(store.sequence(&rows, "").unwrap_err().kind(), ErrorKind::InvalidArgument(_)));
    let (other, _) = open();
    assert!(matches!(other.sequence(&rows, "s").unwrap_err().kind(), ErrorKind::InvalidArgument(_)));

    // Handles with numbers in memory.
    let [dropped, truncated, closed] = ["dropped", "truncated", "closed"].map(|name| {
        let sequence = store.sequence(&store.keyspace(name).unwrap(), "s").unwrap();
        sequence.next().unwrap();
        sequence
    });
    store.drop_keyspace("dropped").unwrap();
    store.truncate_keyspace("truncated").unwrap();
    for ended in [dropped, truncated] {
        assert!(matches!(ended.next().unwrap_err().kind(), ErrorKind::KeyspaceNotFound(_)));
    }
    store.close().unwrap();
    assert!(matches!(closed.next().unwrap_err().kind(), ErrorKind::Closed(_)));
}
