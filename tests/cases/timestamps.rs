//! Timestamps, owner ids and times to live.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use percolite::OwnerId;
use percolite::Timestamp;
use percolite::env::Env;
use percolite::internal::owner_id::OwnerIdGenerator;
use percolite::internal::protocol::{OwnerLiveness, Prewrite, StepError, TxnStatus};
use percolite::oracle::{MemoryOracle, Oracle};
use percolite::row::{Mutation, RowKey, TxnId};

use crate::clocks;
use crate::driver::{Driver, put, ts, txn};
use crate::environment::{Clock, Environment, Opened, assert_conflict, some, spawn};
use crate::hooked_engine::{Act, Control, Gate, commits};
use crate::report::{Case, EMBEDDED, NO_LOCKS, NO_TTL, ONE, SHARED, STEPS, STORES, TWO};

pub fn cases() -> Vec<Case> {
    vec![
        Case::new("no start_ts is a commit_ts; if forced, nothing is lost")
            .on(STEPS | TWO, a_start_ts_that_is_a_commit_ts_loses_nothing)
            .on(STORES, no_start_ts_is_ever_a_commit_ts),
        Case::new("a commit_ts at or below start_ts is refused")
            .on(STEPS | TWO, a_commit_at_or_below_start_ts_is_refused)
            .not_on(ONE, "the pipeline chooses the commit_ts, above every earlier timestamp"),
        Case::new("a commit_ts below min_commit_ts is refused")
            .on(STEPS | TWO, a_commit_below_min_commit_ts_is_refused)
            .on(SHARED, a_reader_pushes_a_writer_above_itself)
            .on(SHARED, repeated_reader_pushes_do_not_starve_a_writer)
            .not_on(ONE, NO_LOCKS),
        Case::new("a million timestamps and ids are unique across clock steps")
            .on(STEPS, a_million_timestamps_and_owner_ids_are_unique)
            .on(STORES, a_million_transactions_have_unique_ids)
            .on(STORES, clocks::a_clock_set_back_an_hour_breaks_no_order),
        Case::new("two transactions with one owner id stay separate")
            .on(STEPS | TWO, one_owner_id_is_not_one_transaction)
            .on(STEPS | ONE, one_owner_id_is_not_one_transaction_in_one_phase)
            .on(STORES, a_repeated_owner_id_is_no_repeated_request),
        Case::new("a clock an hour off aborts no live transaction")
            .on(STEPS, clocks::a_time_to_live_saturates)
            .on(SHARED, clocks::a_reader_with_a_wrong_clock_aborts_no_writer)
            .on(EMBEDDED, clocks::a_clock_jump_aborts_no_transaction),
        Case::new("a heartbeat never shortens a TTL and fails after the end")
            .on(STEPS | SHARED, a_heartbeat_never_shortens_a_ttl)
            .on(SHARED, clocks::a_slow_commit_keeps_itself_alive)
            .not_on(EMBEDDED, NO_TTL),
        Case::new("a far-future timestamp does not push the oracle")
            .on(STEPS | SHARED, a_read_from_the_future_is_refused)
            .on(STEPS, clocks::a_reservation_follows_the_clock_a_day_at_most)
            .on(EMBEDDED, clocks::a_clock_years_ahead_is_followed_a_day_at_most),
    ]
}

fn a_start_ts_that_is_a_commit_ts_loses_nothing(environment: &Environment) {
    let driver = environment.driver();
    let orders: [fn(&Driver, &str); 3] = [
        |driver, key| {
            driver.write(txn(10), key, "one", 20);
            driver.roll_back(txn(20), key).unwrap();
        },
        |driver, key| {
            driver.prewrite(&put(txn(10), key, "one")).unwrap();
            driver.roll_back(txn(20), key).unwrap();
            driver.commit(txn(10), key, 20).unwrap();
        },
        |driver, key| {
            driver.roll_back(txn(20), key).unwrap();
            driver.write(txn(10), key, "one", 20);
        },
    ];
    for (order, key) in orders.into_iter().zip(["a", "b", "c"]) {
        order(&driver, key);
        assert_eq!(driver.value(key), some("one"), "order {key}");
        assert_eq!(driver.prewrite(&put(txn(20), key, "two")), Err(StepError::AlreadyRolledBack), "order {key}");
        assert_eq!(driver.roll_back(txn(20), key), Ok(()), "order {key}");
        assert_eq!(driver.commit(txn(20), key, 30), Err(StepError::AlreadyRolledBack), "order {key}");
        assert_eq!(driver.value(key), some("one"), "order {key}");
    }
}

fn no_start_ts_is_ever_a_commit_ts(environment: &Environment) {
    let store = environment.open_with(environment.builder().durability(percolite::Durability::Buffered));
    let threads: Vec<_> = (0..4)
        .map(|thread| {
            let (store, rows) = (store.store.clone(), store.rows.clone());
            spawn(move || {
                let mut seen = Vec::new();
                for number in 0..500 {
                    let mut txn = store.begin().unwrap();
                    txn.put(&rows, format!("{thread}"), format!("{number}")).unwrap();
                    let (read_ts, start_ts) = (txn.read_ts(), txn.start_ts());
                    let commit_ts = txn.commit().unwrap().commit_ts;
                    assert!(read_ts <= start_ts && start_ts < commit_ts, "{read_ts} {start_ts} {commit_ts}");
                    seen.extend([start_ts, commit_ts]);
                }
                seen
            })
        })
        .collect();
    let seen: Vec<Timestamp> = threads.into_iter().flat_map(|thread| thread.join()).collect();
    assert_eq!(seen.iter().collect::<HashSet<_>>().len(), 4 * 500 * 2);
}

fn a_commit_at_or_below_start_ts_is_refused(environment: &Environment) {
    let driver = environment.driver();
    driver.prewrite(&put(txn(10), "k", "v")).unwrap();
    for too_early in [0, 9, 10] {
        assert_eq!(driver.commit(txn(10), "k", too_early), Err(StepError::CommitTsTooLow(ts(11))));
    }
    assert_eq!(driver.value("k"), None);
    assert_eq!(driver.commit(txn(10), "k", 11), Ok(ts(11)));
}

fn a_commit_below_min_commit_ts_is_refused(environment: &Environment) {
    let driver = environment.driver();
    driver.prewrite(&Prewrite { min_commit_ts: ts(15), ..put(txn(10), "k", "v") }).unwrap();
    assert_eq!(driver.commit(txn(10), "k", 14), Err(StepError::CommitTsTooLow(ts(15))));
    let liveness = OwnerLiveness::ByTtl { current_ts: ts(30), push_above: Some(ts(25)) };
    assert_eq!(driver.check(txn(10), "k", liveness), Ok(TxnStatus::Pending));
    assert_eq!(driver.commit(txn(10), "k", 25), Err(StepError::CommitTsTooLow(ts(30))));
    // A reader with a lower timestamp does not lower the lock's min_commit_ts.
    let older = OwnerLiveness::ByTtl { current_ts: ts(30), push_above: Some(ts(12)) };
    assert_eq!(driver.check(txn(10), "k", older), Ok(TxnStatus::Pending));
    assert_eq!(driver.commit(txn(10), "k", 25), Err(StepError::CommitTsTooLow(ts(30))));
    // The owner commits exactly at the pushed min_commit_ts: no other transaction uses that
    // timestamp.
    assert_eq!(driver.commit_at_or_above(txn(10), "k", 25), Ok(ts(30)));
}

fn a_reader_pushes_a_writer_above_itself(environment: &Environment) {
    let (writer, reader) = (environment.open(), environment.open());
    reader.put_all(&["a", "b"], "old");
    let (gate, barrier) = Gate::closed();
    let primary = writer.row("a");
    writer.hooks.on_write(move |groups| {
        if commits(groups, &primary) {
            barrier.pass();
        }
        Act::Pass
    });
    let (store, rows) = (writer.store.clone(), writer.rows.clone());
    let commit = spawn(move || {
        let mut txn = store.begin().unwrap();
        txn.put(&rows, "a", "new").unwrap();
        txn.put(&rows, "b", "new").unwrap();
        txn.commit().unwrap().commit_ts
    });
    gate.wait_for_arrival();
    // The writer has chosen its commit timestamp, which is below the read_ts of this snapshot.
    let snapshot = reader.snapshot().unwrap();
    let read = || [snapshot.get(&reader.rows, "b").unwrap(), snapshot.get(&reader.rows, "a").unwrap()];
    assert_eq!(read(), [Some("old".into()), Some("old".into())]);
    gate.open();
    assert!(commit.join() > snapshot.read_ts());
    assert_eq!(read(), [Some("old".into()), Some("old".into())]);
    assert_eq!(reader.get("b"), some("new"));
}

fn repeated_reader_pushes_do_not_starve_a_writer(environment: &Environment) {
    let (writer, reader) = (environment.open(), Arc::new(environment.open()));
    let pushes = Arc::new(AtomicUsize::new(0));
    push_at_every_read(&writer.hooks, writer.row("a"), &reader, &pushes);
    let mut txn = writer.begin().unwrap();
    txn.put(&writer.rows, "a", "new").unwrap();
    txn.put(&writer.rows, "b", "new").unwrap();
    txn.commit().unwrap();
    assert_eq!(pushes.load(Ordering::SeqCst), 1, "the writer reads its primary once and commits at the push");
    assert_eq!(reader.get("b"), some("new"));
}

fn push_at_every_read(hooks: &Arc<Control>, row: RowKey, reader: &Arc<Opened>, pushes: &Arc<AtomicUsize>) {
    let (again, watched, reader, pushes) = (Arc::clone(hooks), row.clone(), Arc::clone(reader), Arc::clone(pushes));
    hooks.on_next_look_at(row, move || {
        if pushes.fetch_add(1, Ordering::SeqCst) < 100 {
            push_at_every_read(&again, watched.clone(), &reader, &pushes);
        }
        assert_eq!(reader.get("b"), None);
    });
}

const THREADS: usize = 8;
const EACH: usize = 125_000;

fn a_million_timestamps_and_owner_ids_are_unique(environment: &Environment) {
    let clock: Arc<dyn Env> = Arc::<Clock>::clone(&environment.clock);
    let (oracle, owners) = (Arc::new(MemoryOracle::new(Arc::clone(&clock))), Arc::new(OwnerIdGenerator::default()));
    let threads: Vec<_> = (0..THREADS)
        .map(|_| {
            let (oracle, owners, clock) = (Arc::clone(&oracle), Arc::clone(&owners), Arc::clone(&clock));
            spawn(move || {
                let draw = |_| (oracle.timestamp().unwrap(), owners.next(clock.unix_millis(), clock.random()));
                (0..EACH).map(draw).collect::<Vec<_>>()
            })
        })
        .collect();
    let drawn: Vec<Vec<(Timestamp, OwnerId)>> = threads.into_iter().map(|thread| thread.join()).collect();
    for each in &drawn {
        assert!(each.is_sorted_by(|a, b| a.0 < b.0), "a thread's own timestamps must increase");
    }
    assert_eq!(drawn.iter().flatten().map(|(ts, _)| ts).collect::<HashSet<_>>().len(), THREADS * EACH);
    assert_eq!(drawn.iter().flatten().map(|(_, owner)| owner).collect::<HashSet<_>>().len(), THREADS * EACH);
}

fn a_million_transactions_have_unique_ids(environment: &Environment) {
    let store = environment.open();
    let threads: Vec<_> = (0..THREADS)
        .map(|_| {
            let store = store.store.clone();
            spawn(move || {
                let begin = |_| {
                    let txn = store.begin().unwrap();
                    (txn.start_ts(), txn.owner_id())
                };
                (0..EACH).map(begin).collect::<Vec<_>>()
            })
        })
        .collect();
    let ids: Vec<(Timestamp, OwnerId)> = threads.into_iter().flat_map(|thread| thread.join()).collect();
    assert_eq!(ids.iter().map(|id| id.0).collect::<HashSet<_>>().len(), THREADS * EACH);
    assert_eq!(ids.iter().map(|id| id.1).collect::<HashSet<_>>().len(), THREADS * EACH);
}

fn one_owner_id_is_not_one_transaction(environment: &Environment) {
    let driver = environment.driver();
    let first = txn(10);
    let second = TxnId { owner: first.owner, ..txn(20) };
    driver.prewrite(&put(first, "k", "first")).unwrap();
    let held = driver.lock("k").unwrap();
    assert_eq!(driver.prewrite(&put(second, "k", "second")), Err(StepError::KeyIsLocked(Box::new(held.clone()))));
    let other_sequence = Prewrite { write_seq: 2, ..put(second, "k", "second") };
    assert_eq!(driver.prewrite(&other_sequence), Err(StepError::KeyIsLocked(Box::new(held.clone()))));
    assert_eq!(driver.commit(second, "k", 30), Err(StepError::AlreadyRolledBack));
    assert_eq!(driver.heartbeat(second, "k", 9999), Err(StepError::AlreadyRolledBack));
    driver.roll_back(second, "k").unwrap();
    // Two transactions may have the same start_ts: the owner id distinguishes them.
    let namesake = TxnId { owner: OwnerId::from_u64(9), ..first };
    assert_eq!(driver.prewrite(&put(namesake, "k", "third")), Err(StepError::KeyIsLocked(Box::new(held.clone()))));
    assert_eq!(driver.prewrite(&Prewrite { write_seq: 2, ..put(namesake, "k", "third") }).ok(), None);
    assert_eq!(driver.commit(namesake, "k", 30), Err(StepError::AlreadyRolledBack));
    assert_eq!(driver.heartbeat(namesake, "k", 9999), Err(StepError::AlreadyRolledBack));
    assert_eq!(driver.lock("k"), Some(held));
    assert_eq!(driver.commit(first, "k", 30), Ok(ts(30)));
    assert_eq!(driver.value("k"), some("first"));
}

fn one_owner_id_is_not_one_transaction_in_one_phase(environment: &Environment) {
    let driver = environment.driver();
    let first = txn(10);
    let second = TxnId { owner: first.owner, ..txn(12) };
    driver.one_phase(first, 9, "k", &Mutation::Put(b"first".into()), 20).unwrap();
    let found = driver.record("k").unwrap();
    let refused = driver.one_phase(second, 11, "k", &Mutation::Put(b"second".into()), 30);
    assert_eq!(refused, Err(StepError::WriteConflict(Box::new(found))));
    assert_eq!(driver.value("k"), some("first"));
}

fn a_repeated_owner_id_is_no_repeated_request(environment: &Environment) {
    environment.clock.freeze();
    if environment.is_shared() {
        let (one, two) = (environment.open(), environment.open());
        // The client with the lower owner id begins transactions until the two owner ids are equal.
        let (mut first, mut second) = (one.begin().unwrap(), two.begin().unwrap());
        while first.owner_id() < second.owner_id() {
            first = one.begin().unwrap();
        }
        while second.owner_id() < first.owner_id() {
            second = two.begin().unwrap();
        }
        assert_eq!(first.owner_id(), second.owner_id());
        first.put(&one.rows, "k", "first").unwrap();
        second.put(&two.rows, "k", "second").unwrap();
        first.commit().unwrap();
        assert_conflict(second.commit());
        assert_eq!(one.get("k"), some("first"));
        return;
    }
    // The clock is stopped and every random number is the same, so that a second incarnation of the
    // store repeats owner ids of the first. The repeated ids must do no harm.
    let mut first_incarnation = HashSet::new();
    let (store, rows) = (environment.open(), ["a", "b"]);
    first_incarnation.extend((0..50).map(|_| store.begin().unwrap().owner_id()));
    drop(store);
    let protocol_leaves_locks = environment.is_two_phase();
    environment.leave_behind(
        |store, txn| rows.into_iter().for_each(|key| txn.put(&store.rows, key, "orphan").unwrap()),
        |groups, rows| commits(groups, &rows.row_key("a")).then_some(Act::Refuse),
    );
    let store = environment.open_unswept();
    let mut again = 0;
    for number in 0..50 {
        let mut txn = store.begin().unwrap();
        again += usize::from(first_incarnation.contains(&txn.owner_id()));
        txn.put(&store.rows, rows[number % 2], format!("{number}")).unwrap();
        txn.commit().unwrap();
    }
    assert!(again > 0, "no owner id was repeated");
    assert_eq!([store.get("a"), store.get("b")], [some("48"), some("49")]);
    assert_eq!(store.stats().locks_rolled_back > 0, protocol_leaves_locks);
}

fn a_heartbeat_never_shortens_a_ttl(environment: &Environment) {
    let driver = environment.driver();
    driver.prewrite(&Prewrite { ttl_ms: 100, ..put(txn(10), "k", "v") }).unwrap();
    assert_eq!(driver.heartbeat(txn(10), "k", 300), Ok(300));
    assert_eq!(driver.heartbeat(txn(10), "k", 200), Ok(300));
    assert_eq!(driver.lock("k").map(|lock| lock.ttl_ms), Some(300));
    // A later write of the same row does not shorten the TTL, either.
    driver.prewrite(&Prewrite { ttl_ms: 100, write_seq: 2, ..put(txn(10), "k", "w") }).unwrap();
    assert_eq!(driver.lock("k").map(|lock| lock.ttl_ms), Some(300));
    driver.roll_back(txn(10), "k").unwrap();
    assert_eq!(driver.heartbeat(txn(10), "k", 400), Err(StepError::AlreadyRolledBack));
    driver.write(txn(20), "k", "v", 30);
    assert_eq!(driver.heartbeat(txn(20), "k", 400), Err(StepError::AlreadyCommitted(ts(30))));
    assert_eq!(driver.lock("k"), None);
}

fn a_read_from_the_future_is_refused(environment: &Environment) {
    let driver = environment.driver();
    driver.prewrite(&put(txn(10), "k", "v")).unwrap();
    let held = driver.lock("k");
    for future in [ts(21), Timestamp::MAX] {
        let liveness = OwnerLiveness::ByTtl { current_ts: ts(20), push_above: Some(future) };
        assert_eq!(driver.check(txn(10), "k", liveness), Err(StepError::FutureTimestamp(future)));
    }
    assert_eq!(driver.lock("k"), held);
    let liveness = OwnerLiveness::ByTtl { current_ts: ts(20), push_above: Some(ts(20)) };
    assert_eq!(driver.check(txn(10), "k", liveness), Ok(TxnStatus::Pending));
    assert_eq!(driver.lock("k").map(|lock| lock.min_commit_ts), Some(ts(21)));
}
