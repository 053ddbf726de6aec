//! Kills before and after each write, and again during recovery: all of a transaction or nothing of
//! it is visible, permanently.

use percolite::row::TxnRecord;
use percolite::{Commit, ErrorKind, Result};

use crate::driver::{Driver, put, row, ts, txn};
use crate::environment::{Dice, Environment, Opened, long, text};
use crate::hooked_engine::Act;

use percolite::internal::protocol::{OwnerLiveness, Prewrite, TxnStatus};

/// The rows of the transaction, one for each kind of change: a put of a new row, a long value over
/// a long one, a short value over a long one, a deletion, and a lock-only row.
const KEYS: [&str; 5] = ["a", "b", "c", "d", "e"];
/// A recovery has fewer writes than this. More writes mean that the recovery does not end.
const WRITES_MAX: u64 = 60;

type State = Vec<Option<String>>;

fn before() -> State {
    vec![None, Some(long("b")), Some(long("c")), Some("d".into()), Some("e".into())]
}

fn after() -> State {
    vec![Some("A".into()), Some(long("B")), Some("C".into()), None, Some("e".into())]
}

fn prepare(environment: &Environment) -> Opened {
    let store = environment.open_unswept();
    for (key, value) in KEYS.iter().zip(before()) {
        if let Some(value) = value {
            store.put(key, value);
        }
    }
    store
}

fn change(store: &Opened) -> Result<Commit> {
    let mut txn = store.begin()?;
    txn.put(&store.rows, "a", "A")?;
    txn.put(&store.rows, "b", long("B"))?;
    txn.put(&store.rows, "c", "C")?;
    txn.delete(&store.rows, "d")?;
    txn.get_for_update(&store.rows, "e")?;
    txn.commit()
}

/// Reads every row, beginning at a random one. Each row is read by itself, so that each lock is
/// resolved separately.
fn read(store: &Opened, dice: &mut Dice) -> Result<State> {
    let txn = store.begin()?;
    let mut state = before();
    let first = dice.below(KEYS.len() as u64) as usize;
    for turn in first..first + KEYS.len() {
        let index = turn % KEYS.len();
        state[index] = text(txn.get(&store.rows, KEYS[index])?);
    }
    Ok(state)
}

/// The number of writes of an uninterrupted transaction.
fn count_writes(environment: &Environment) -> u64 {
    let environment = environment.another();
    let store = prepare(&environment);
    let before = store.hooks.writes();
    change(&store).unwrap();
    store.hooks.writes() - before
}

struct Killed {
    answer: Result<Commit>,
    dice: Dice,
}

fn kill_the_owner(environment: &Environment, index: u64, act: Act, dice: Dice) -> Killed {
    let store = prepare(environment);
    store.hooks.cut_at(index, act);
    let mut killed = Killed { answer: change(&store), dice };
    assert!(store.hooks.is_dead());
    drop(store);
    environment.crash(&mut killed.dice);
    environment.let_locks_expire();
    killed
}

/// Checks that `state` agrees with the result that the owner got. Returns whether the transaction
/// has committed.
fn check_answer(answer: &Result<Commit>, state: &State) -> bool {
    assert!(*state == before() || *state == after(), "torn: {state:?}");
    let committed = *state == after();
    match answer.as_ref().map_err(percolite::Error::kind) {
        Ok(_) => assert!(committed, "an acknowledged commit is lost"),
        Err(ErrorKind::Undetermined(_)) => {}
        Err(other) => assert!(!committed, "committed, although the owner's result is {other:?}"),
    }
    committed
}

/// Reads every row, sweeps and reads again. Stops at the first call that fails.
fn recover(store: &Opened, dice: &mut Dice) -> Result<State> {
    let state = read(store, dice)?;
    store.resolve_orphan_locks()?;
    assert_eq!(read(store, dice)?, state);
    Ok(state)
}

pub fn killed_at_every_write_and_again_in_recovery(environment: &Environment) {
    let writes = count_writes(environment);
    assert!(writes >= if environment.is_two_phase() { 2 } else { 1 });
    let (mut forward, mut back, mut kills_in_recovery) = (0, 0, 0);
    // In memory there are few points to kill at, and a random part of the unsynced frames survives
    // the power cut. So each point is tried several times.
    let repeats = match (environment.is_rocks(), environment.is_two_phase()) {
        (true, _) => 1,
        (false, true) => 3,
        (false, false) => 8,
    };
    for (repeat, index) in (0..repeats).flat_map(|repeat| (0..writes).map(move |index| (repeat, index))) {
        for act in [Act::Refuse, Act::Lose] {
            for second in 0.. {
                assert!(second < WRITES_MAX, "recovery does not end");
                // In memory each point of the recovery is tried with both acts. On disk it is tried
                // with one act, which alternates: a run opens three stores, and opening is slow on
                // disk.
                let acts = [Act::Refuse, Act::Lose];
                let chosen =
                    if environment.is_rocks() { &acts[(index + second) as usize % 2..][..1] } else { &acts[..] };
                let mut recovered = false;
                for second_act in chosen {
                    let environment = environment.another();
                    let dice = Dice(environment.seed ^ repeat << 16 ^ second << 8 ^ index);
                    let mut killed = kill_the_owner(&environment, index, act, dice);
                    let dead = kill_the_recovery(&environment, second, *second_act, &mut killed);
                    recovered |= !dead;
                    kills_in_recovery += u64::from(dead);
                    if settle(&environment, &mut killed) { forward += 1 } else { back += 1 }
                }
                if recovered {
                    break;
                }
            }
        }
    }
    assert!(forward > 0 && back > 0 && kills_in_recovery > 0, "{forward} {back} {kills_in_recovery}");
}

fn kill_the_recovery(environment: &Environment, index: u64, act: Act, killed: &mut Killed) -> bool {
    let hooks = std::sync::Arc::<crate::hooked_engine::Control>::default();
    hooks.cut_at(index, act);
    let seen =
        match environment.try_open(environment.builder().background_resolve(false), std::sync::Arc::clone(&hooks)) {
            Ok(store) => recover(&store, &mut killed.dice).ok(),
            Err(_) => None,
        };
    let dead = hooks.is_dead();
    if let Some(state) = seen {
        check_answer(&killed.answer, &state);
        // A state that a reader has seen survives the next crash.
        environment.crash(&mut killed.dice);
        let store = environment.open_unswept();
        assert_eq!(read(&store, &mut killed.dice).unwrap(), state);
    } else {
        assert!(dead, "recovery failed without being cut off");
        environment.crash(&mut killed.dice);
    }
    environment.let_locks_expire();
    dead
}

fn settle(environment: &Environment, killed: &mut Killed) -> bool {
    let store = environment.open_unswept();
    let state = recover(&store, &mut killed.dice).unwrap();
    let committed = check_answer(&killed.answer, &state);
    for key in KEYS {
        store.put(key, "free");
    }
    // No lock is left, not even that of the lock-only row, which reads do not resolve.
    assert_eq!(store.locks_left(), 0);
    drop(store);
    let store = environment.open();
    assert!(KEYS.iter().all(|key| store.get(key).as_deref() == Some("free")));
    committed
}

/// More rows than one batch locks: the owner is killed between two batches of prewrites, or of a
/// rollback.
pub fn killed_between_locks_of_a_large_transaction(environment: &Environment) {
    const ROWS: usize = 1100;
    let fill = |store: &Opened| -> Result<Commit> {
        let mut txn = store.begin()?;
        for number in 0..ROWS {
            txn.put(&store.rows, format!("k{number:04}"), "new")?;
        }
        txn.commit()
    };
    let writes = {
        let environment = environment.another();
        let store = environment.open();
        let before = store.hooks.writes();
        fill(&store).unwrap();
        store.hooks.writes() - before
    };
    let indexes: Vec<u64> =
        if writes > 10 { vec![0, 1, ROWS as u64 - 1, ROWS as u64, ROWS as u64 + 1] } else { (0..writes).collect() };
    for index in indexes {
        let environment = environment.another();
        let mut dice = Dice(environment.seed ^ index);
        let store = environment.open();
        store.hooks.cut_at(index, if dice.below(2) == 0 { Act::Refuse } else { Act::Lose });
        let answer = fill(&store);
        drop(store);
        environment.crash(&mut dice);
        environment.let_locks_expire();
        let store = environment.open();
        let seen = store.begin().unwrap().prefix(&store.rows, "k").count();
        assert!(seen == 0 || seen == ROWS, "{seen} of {ROWS} rows");
        match answer {
            Ok(_) => assert_eq!(seen, ROWS),
            Err(error) if matches!(error.kind(), ErrorKind::Undetermined(_)) => {}
            Err(_) => assert_eq!(seen, 0),
        }
    }
}

/// The owner of a transaction of two rows stops at any step. Resolvers take over and stop at any
/// step, and each resolver must find the same transaction status.
pub fn stopped_at_every_step_and_again_in_recovery(environment: &Environment) {
    type Work = fn(&Driver);
    let owner: [Work; 4] = [
        |driver| drop(driver.prewrite(&put(txn(10), "p", "new"))),
        |driver| drop(driver.prewrite(&Prewrite { primary: row("p"), ..put(txn(10), "s", "new") })),
        |driver| drop(driver.commit(txn(10), "p", 20)),
        |driver| drop(driver.commit_secondary(txn(10), "s", 20)),
    ];
    let check = |driver: &Driver| driver.check(txn(10), "p", OwnerLiveness::Ended).unwrap();
    for stopped in 0..=owner.len() {
        for resolvers in 0..3 {
            for resolver_stops in 0..3 {
                let environment = environment.another();
                let driver = environment.driver();
                owner[..stopped].iter().for_each(|step| step(&driver));
                let mut found = Vec::new();
                for _ in 0..=resolvers {
                    // Each resolver checks the status, resolves the secondary, then the primary,
                    // and may stop after each of these steps. After the last resolver the recovery
                    // is completed.
                    found.push(check(&driver));
                    if resolver_stops > 0 {
                        driver.resolve(txn(10), "s", found[0]).unwrap();
                    }
                    if resolver_stops > 1 {
                        driver.resolve(txn(10), "p", found[0]).unwrap();
                    }
                }
                driver.resolve(txn(10), "s", found[0]).unwrap();
                let committed = stopped >= 3;
                let expected = if committed { TxnStatus::Committed(ts(20)) } else { TxnStatus::RolledBack };
                assert!(found.iter().all(|status| *status == expected), "{stopped}: {found:?}");
                // The owner has not died: it takes its remaining steps now, too late to change
                // the status.
                owner[stopped..].iter().for_each(|step| step(&driver));
                driver.resolve(txn(10), "s", check(&driver)).unwrap();
                let value = committed.then(|| "new".to_owned());
                assert_eq!([driver.value("p"), driver.value("s")], [value.clone(), value]);
                assert_eq!([driver.lock("p"), driver.lock("s")], [None, None]);
                let ended = if committed { TxnRecord::Committed(ts(20)) } else { TxnRecord::RolledBack };
                assert_eq!(driver.status("p", txn(10)), Some(ended));
            }
        }
    }
}
