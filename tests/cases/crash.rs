//! Crash and recovery: what a killed or slow owner leaves, and how it is resolved.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use percolite::OwnerId;
use percolite::internal::protocol::{OwnerLiveness, Prewrite, StepError, TxnStatus};
use percolite::row::{RowKey, TxnId, TxnRecord};

use crate::driver::{Driver, put, row, ts, txn};
use crate::environment::{Clock, Environment, Opened, TTL_MS, Thread, long, some, spawn, text};
use crate::hooked_engine::{Act, Gate, commits};
use crate::killed;
use crate::report::{Case, EMBEDDED, EMBEDDED_TWO, NO_LOCKS, ONE, SHARED, STEPS, STORES, TWO, WHOLE_STORE};
use crate::undecided;

pub fn cases() -> Vec<Case> {
    let tested_with_dumps = "restoring a dump moves the oracle: a test in tests/promises/backup.rs";
    vec![
        Case::new("killed before and after each write, and in recovery")
            .on(STEPS | TWO, killed::stopped_at_every_step_and_again_in_recovery)
            .on(STORES, killed::killed_at_every_write_and_again_in_recovery)
            .on(STORES, killed::killed_between_locks_of_a_large_transaction),
        Case::new("a lost reply to the commit is undetermined, never 'aborted'")
            .on(EMBEDDED, undecided::a_lost_reply_is_undetermined)
            .on(SHARED, undecided::a_lost_reply_is_read_back)
            .on(SHARED, undecided::a_reply_that_cannot_be_read_back_is_undetermined)
            .not_on(STEPS, WHOLE_STORE),
        Case::new("resolvers and the owner race: all get the same status")
            .row_by_row()
            .on(STEPS | TWO, every_order_of_owner_and_resolvers_gives_one_status)
            .on(SHARED, resolvers_race_with_a_slow_owner)
            .on(EMBEDDED_TWO, resolvers_race_with_each_other)
            .on(EMBEDDED_TWO, a_writer_overtakes_an_owner_slow_after_its_commit_point)
            .not_on(ONE, NO_LOCKS),
        Case::new("a retry keeps the commit_ts; a late error is not an abort")
            .on(STEPS | TWO, a_retry_keeps_the_commit_ts)
            .on(STEPS | ONE, a_retry_in_one_phase_keeps_the_commit_ts)
            .on(SHARED, undecided::a_repeated_commit_point_keeps_its_timestamp)
            .on(STORES, undecided::a_failed_commit_point_is_not_called_aborted),
        Case::new("an orphan secondary without a primary is resolved")
            .on(STEPS | TWO, a_secondary_without_a_primary_is_rolled_back)
            .on(STORES, a_row_locked_for_a_missing_primary_is_readable),
        Case::new("another lock on the primary's row is not the status")
            .on(STEPS | TWO, another_lock_on_the_primary_is_no_status)
            .on(TWO, an_orphan_whose_primary_is_locked_by_another_is_resolved)
            .not_on(ONE, NO_LOCKS),
        Case::new("an import moves the oracle past its timestamps").not_on(STEPS | STORES, tested_with_dumps),
    ]
}

/// An owner and two resolvers take two steps each, in every possible order.
fn every_order_of_owner_and_resolvers_gives_one_status(environment: &Environment) {
    let mut order = vec![0, 0, 1, 1, 2, 2];
    let (mut committed, mut rolled_back) = (0, 0);
    loop {
        let environment = environment.another();
        let driver = environment.driver();
        driver.prewrite(&put(txn(10), "p", "new")).unwrap();
        driver.prewrite(&Prewrite { primary: row("p"), ..put(txn(10), "s", "new") }).unwrap();
        let mut next = [0; 3];
        let mut learned: [Option<TxnStatus>; 3] = [None; 3];
        for party in &order {
            take_a_step(&driver, *party, next[*party], &mut learned);
            next[*party] += 1;
        }
        let status = learned[0].unwrap();
        assert!(learned.iter().all(|other| *other == Some(status)), "{order:?}: {learned:?}");
        let expected = match status {
            TxnStatus::Committed(_) => some("new"),
            _ => None,
        };
        if expected.is_some() {
            committed += 1
        } else {
            rolled_back += 1
        }
        assert_eq!([driver.value("p"), driver.value("s")], [expected.clone(), expected], "{order:?}");
        assert_eq!([driver.lock("p"), driver.lock("s")], [None, None], "{order:?}");
        if !next_permutation(&mut order) {
            break;
        }
    }
    assert_eq!(committed + rolled_back, 90);
    assert!(committed > 0 && rolled_back > 0);
}

fn take_a_step(driver: &Driver, party: usize, step: usize, learned: &mut [Option<TxnStatus>; 3]) {
    match (party, step) {
        (0, 0) => {
            learned[0] = Some(match driver.commit(txn(10), "p", 20) {
                Ok(commit_ts) => TxnStatus::Committed(commit_ts),
                Err(error) => {
                    assert_eq!(error, StepError::AlreadyRolledBack);
                    TxnStatus::RolledBack
                }
            });
        }
        (_, 0) => learned[party] = Some(driver.check(txn(10), "p", OwnerLiveness::Ended).unwrap()),
        _ => driver.resolve(txn(10), "s", learned[party].unwrap()).unwrap(),
    }
}

fn next_permutation(order: &mut [usize]) -> bool {
    let Some(pivot) = (1..order.len()).rev().find(|at| order[at - 1] < order[*at]) else { return false };
    let swap = (pivot..order.len()).rev().find(|at| order[*at] > order[pivot - 1]).unwrap();
    order.swap(pivot - 1, swap);
    order[pivot..].reverse();
    true
}

/// What the owner and the resolvers of one round know of each other.
#[derive(Default)]
struct Race {
    /// The owner has locked its rows.
    locked: AtomicBool,
    /// The owner's commit has returned.
    answered: AtomicBool,
    /// How often the resolvers have read all rows.
    reads: AtomicU64,
}

fn resolvers_race_with_a_slow_owner(environment: &Environment) {
    const ROUNDS: u64 = 120;
    let (owner, one, two) = (environment.open(), environment.open(), environment.open());
    let mut dice = environment.dice();
    let (mut committed, mut aborted) = (0, 0);
    for round in 0..ROUNDS {
        let keys = ["a", "b", "c"].map(|key| format!("{key}{round}"));
        let race = Arc::new(Race::default());
        slow_down(&owner, owner.row(&keys[0]), &race, Arc::clone(&environment.clock), round, dice.below(400));
        let resolvers = [&one, &two].map(|client| read_until_answered(client, keys.clone(), Arc::clone(&race)));
        let mut txn = owner.begin().unwrap();
        for key in &keys {
            txn.put(&owner.rows, key, "new").unwrap();
        }
        let answer = txn.commit();
        race.answered.store(true, Ordering::SeqCst);
        resolvers.into_iter().for_each(|resolver| resolver.join());
        let expected = match &answer {
            Ok(_) => some("new"),
            Err(error) => {
                assert!(error.is_retryable(), "{error}");
                None
            }
        };
        if expected.is_some() {
            committed += 1
        } else {
            aborted += 1
        }
        for client in [&owner, &one, &two] {
            assert!(keys.iter().all(|key| client.get(key) == expected), "round {round}: {answer:?}");
        }
        assert_eq!(owner.locks_left(), 0);
    }
    assert!(committed > 0 && aborted > 0, "committed {committed}, aborted {aborted}");
}

/// Slows the owner down after it has locked its rows. In every second round the lock expires before
/// the owner commits. In every fourth round the owner also waits until a resolver has read a row
/// after the lock expired.
fn slow_down(owner: &Opened, primary: RowKey, race: &Arc<Race>, clock: Arc<Clock>, round: u64, nap: u64) {
    let (race, slow, late) = (Arc::clone(race), round.is_multiple_of(2), round.is_multiple_of(4));
    let attempted = AtomicBool::new(false);
    owner.hooks.on_write(move |groups| {
        if !crate::hooked_engine::locks(groups, &primary) {
            race.locked.store(true, Ordering::SeqCst);
            // Only the owner's first attempt to commit is slow. If all were, readers could push the
            // lock faster than the owner retries, and it would never commit.
            if commits(groups, &primary) && attempted.swap(true, Ordering::SeqCst) {
                return Act::Pass;
            }
            if slow && commits(groups, &primary) {
                clock.step(TTL_MS as i64 * 2);
                // Three more reads must end. Two of them may have begun before the step of the
                // clock, one by each resolver; the third has begun after it.
                let enough = race.reads.load(Ordering::SeqCst) + 3;
                let began = std::time::Instant::now();
                while late && race.reads.load(Ordering::SeqCst) < enough && began.elapsed().as_secs() < 10 {
                    std::thread::yield_now();
                }
            }
            std::thread::sleep(std::time::Duration::from_micros(nap));
        }
        Act::Pass
    });
}

/// Starts a resolver. Its reads resolve the owner's locks; it must never see a part of the writes.
fn read_until_answered(client: &Opened, keys: [String; 3], race: Arc<Race>) -> Thread<()> {
    let (store, rows) = (client.store.clone(), client.rows.clone());
    spawn(move || {
        while !race.locked.load(Ordering::SeqCst) {
            std::hint::spin_loop();
        }
        while !race.answered.load(Ordering::SeqCst) {
            let txn = store.begin().unwrap();
            let seen = ["c", "a", "b"].map(|key| {
                let key = keys.iter().find(|name| name.starts_with(key)).unwrap();
                text(txn.get(&rows, key).unwrap())
            });
            assert!(seen.iter().all(|value| *value == seen[0]), "torn: {seen:?}");
            race.reads.fetch_add(1, Ordering::SeqCst);
        }
    })
}

fn resolvers_race_with_each_other(environment: &Environment) {
    for round in 0..6 {
        let environment = environment.another();
        let forward = round % 2 == 0;
        let keys: Vec<String> = (0..40).map(|number| format!("k{number:02}")).collect();
        let driver = environment.driver();
        for key in &keys {
            driver.prewrite(&Prewrite { primary: row(&keys[0]), ..put(txn(10), key, "new") }).unwrap();
        }
        if forward {
            driver.commit(txn(10), &keys[0], 20).unwrap();
        }
        drop(driver);
        // The sweep, a writer and two readers, one from each end, resolve the same locks.
        let store = environment.open();
        let expected = if forward { some("new") } else { None };
        let readers = [false, true].map(|backwards| {
            let (snapshot, rows, expected, mut keys) =
                (store.snapshot().unwrap(), store.rows.clone(), expected.clone(), keys.clone());
            if backwards {
                keys.reverse();
            }
            spawn(move || {
                keys.iter().for_each(|key| assert_eq!(text(snapshot.get(&rows, key).unwrap()), expected));
            })
        });
        let writer = {
            let (store, rows) = (store.store.clone(), store.rows.clone());
            spawn(move || {
                store.transact(|txn| {
                    let found = text(txn.get(&rows, "k20")?);
                    txn.put(&rows, "seen", found.unwrap_or_default())?;
                    txn.put(&rows, "k20", "written")
                })
            })
        };
        store.resolve_orphan_locks().unwrap();
        readers.into_iter().for_each(|reader| reader.join());
        writer.join().unwrap();
        assert_eq!(store.get("seen"), some(if forward { "new" } else { "" }));
        assert!(keys.iter().filter(|key| *key != "k20").all(|key| store.get(key) == expected));
        assert_eq!((store.get("k20"), store.locks_left()), (some("written"), 0));
    }
}

fn a_writer_overtakes_an_owner_slow_after_its_commit_point(environment: &Environment) {
    let store = environment.open();
    // For long values the owner reads each row before it writes the row, and the hook stops it at
    // that read.
    store.put_all(&["a", "b", "c"], long("old"));
    let (gate, barrier) = Gate::closed();
    let (control, watched, row) = (Arc::downgrade(&store.hooks), store.row("a"), store.row("b"));
    let committed = AtomicBool::new(false);
    store.hooks.on_write(move |groups| {
        if commits(groups, &watched) && !committed.swap(true, Ordering::SeqCst) {
            let barrier = barrier.clone();
            control.upgrade().unwrap().on_next_look_at(row.clone(), move || barrier.pass());
        }
        Act::Pass
    });
    let (inner, rows) = (store.store.clone(), store.rows.clone());
    let owner = spawn(move || {
        let mut txn = inner.begin().unwrap();
        for key in ["a", "b", "c"] {
            txn.put(&rows, key, "owner's").unwrap();
        }
        txn.commit().unwrap().commit_ts
    });
    gate.wait_for_arrival();
    assert_eq!(store.locks_left(), 2);
    let mut overtaking = store.begin().unwrap();
    assert_eq!(text(overtaking.get(&store.rows, "b").unwrap()), some("owner's"));
    overtaking.put(&store.rows, "b", "next").unwrap();
    let overtook = overtaking.commit().unwrap().commit_ts;
    assert_eq!(store.get("c"), some("owner's"));
    gate.open();
    assert!(owner.join() < overtook);
    assert_eq!(["a", "b", "c"].map(|key| store.get(key)), [some("owner's"), some("next"), some("owner's")]);
    assert_eq!((store.locks_left(), store.stats().locks_rolled_forward), (0, 1));
}

/// Public issue: cockroach PR 107658.
fn a_retry_keeps_the_commit_ts(environment: &Environment) {
    let driver = environment.driver();
    driver.prewrite(&put(txn(10), "p", "v")).unwrap();
    driver.prewrite(&Prewrite { primary: row("p"), ..put(txn(10), "s", "v") }).unwrap();
    assert_eq!(driver.commit(txn(10), "p", 20), Ok(ts(20)));
    assert_eq!(driver.commit(txn(10), "p", 25), Ok(ts(20)));
    assert_eq!(driver.check(txn(10), "p", OwnerLiveness::Ended), Ok(TxnStatus::Committed(ts(20))));
    driver.resolve(txn(10), "s", TxnStatus::Committed(ts(20))).unwrap();
    assert_eq!(driver.commit_secondary(txn(10), "s", 25), Ok(ts(20)));
    assert_eq!(["p", "s"].map(|key| driver.record(key).unwrap().commit_ts), [ts(20), ts(20)]);
    driver.write(txn(30), "p", "later", 31);
    assert_eq!(driver.commit(txn(10), "p", 40), Ok(ts(20)));
    assert_eq!(driver.status("p", txn(10)), Some(TxnRecord::Committed(ts(20))));
}

fn a_retry_in_one_phase_keeps_the_commit_ts(environment: &Environment) {
    let driver = environment.driver();
    let value = percolite::row::Mutation::Put(b"v".into());
    assert_eq!(driver.one_phase(txn(10), 9, "k", &value, 20), Ok(ts(20)));
    assert_eq!(driver.one_phase(txn(10), 9, "k", &value, 25), Ok(ts(20)));
    assert_eq!(driver.record("k").unwrap().commit_ts, ts(20));
}

/// Public issue: tikv client-rust #543.
fn a_secondary_without_a_primary_is_rolled_back(environment: &Environment) {
    let driver = environment.driver();
    driver.write(txn(5), "s", "old", 6);
    driver.prewrite(&Prewrite { primary: row("p"), ..put(txn(10), "s", "new") }).unwrap();
    let status = driver.check(txn(10), "p", OwnerLiveness::Ended).unwrap();
    assert_eq!(status, TxnStatus::RolledBack);
    driver.resolve(txn(10), "s", status).unwrap();
    assert_eq!((driver.lock("s"), driver.value("s")), (None, some("old")));
    assert_eq!(driver.prewrite(&put(txn(10), "p", "new")), Err(StepError::AlreadyRolledBack));
    assert_eq!(driver.commit(txn(10), "p", 20), Err(StepError::AlreadyRolledBack));
}

fn a_row_locked_for_a_missing_primary_is_readable(environment: &Environment) {
    let driver = environment.driver();
    for key in ["read", "scanned", "written"] {
        driver.write(txn(5), key, "old", 6);
        driver.prewrite(&Prewrite { primary: row("never"), ..put(txn(10), key, "new") }).unwrap();
    }
    drop(driver);
    environment.let_locks_expire();
    let store = environment.open_unswept();
    assert_eq!(store.locks_left(), 3);
    assert_eq!(store.get("read"), some("old"));
    let scanned: Vec<_> =
        store.begin().unwrap().prefix(&store.rows, "s").map(|row| row.unwrap().into_parts().1).collect();
    assert_eq!(scanned, [b"old"]);
    store.put("written", "next");
    assert_eq!((store.get("written"), store.locks_left()), (some("next"), 0));
    store.put("never", "free");
    assert_eq!(store.get("never"), some("free"));
}

/// Public issue: tidb #42937.
fn another_lock_on_the_primary_is_no_status(environment: &Environment) {
    let driver = environment.driver();
    driver.prewrite(&put(txn(20), "p", "theirs")).unwrap();
    let theirs = driver.lock("p");
    for liveness in [OwnerLiveness::Ended, OwnerLiveness::ByTtl { current_ts: ts(50), push_above: Some(ts(40)) }] {
        assert_eq!(driver.check(txn(10), "p", liveness), Ok(TxnStatus::RolledBack));
        // Nor does the lock decide the status of a transaction with a later start and a lower owner
        // id: the ids must be equal.
        let namesake = TxnId { owner: OwnerId::from_u64(99), ..txn(21) };
        assert_eq!(driver.check(namesake, "p", liveness), Ok(TxnStatus::RolledBack));
        assert_eq!(driver.lock("p"), theirs);
    }
    // A lock of the transaction itself that names another primary does not decide its status.
    driver.prewrite(&Prewrite { primary: row("elsewhere"), ..put(txn(30), "q", "v") }).unwrap();
    let secondary = driver.lock("q").unwrap();
    for liveness in [OwnerLiveness::Ended, OwnerLiveness::ByTtl { current_ts: ts(50), push_above: None }] {
        assert_eq!(driver.check(txn(30), "q", liveness), Err(StepError::PrimaryMismatch(Box::new(secondary.clone()))));
    }
    assert_eq!((driver.lock("q"), driver.status("q", txn(30))), (Some(secondary), None));
    assert_eq!(driver.commit(txn(20), "p", 60), Ok(ts(60)));
    assert_eq!(driver.value("p"), some("theirs"));
}

fn an_orphan_whose_primary_is_locked_by_another_is_resolved(environment: &Environment) {
    let driver = environment.driver();
    driver.prewrite(&Prewrite { primary: row("p"), ..put(txn(10), "s", "never") }).unwrap();
    driver.prewrite(&put(txn(20), "p", "theirs")).unwrap();
    driver.prewrite(&Prewrite { primary: row("p"), ..put(txn(20), "t", "theirs") }).unwrap();
    drop(driver);
    environment.let_locks_expire();
    let store = environment.open_unswept();
    assert_eq!((store.get("s"), store.locks_left()), (None, 2));
    let left: Vec<_> = store.row_locks().unwrap().map(|lock| lock.unwrap()).collect();
    assert!(left.iter().all(|lock| lock.start_ts == ts(20) && lock.txn_status == TxnStatus::Pending));
    assert_eq!([store.get("t"), store.get("p")], [None, None]);
    assert_eq!(store.locks_left(), 0);
}
