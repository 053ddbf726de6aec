//! Kills before and after each write, and again during recovery: all of a transaction or nothing of
//! it is visible, permanently.

use percolite::row::TxnRecord;
use percolite::{Commit, ErrorKind, Result};

use crate::hand::{Hand, put, row, ts, txn};
use crate::tap::Act;
use crate::world::{Dice, Opened, World, long, text};

use percolite::internal::protocol::{OwnerLiveness, Prewrite, TxnStatus};

/// A put of a new row, a long value over a long one, a short one over a long one, a deletion, and a
/// lock-only row.
const KEYS: [&str; 5] = ["a", "b", "c", "d", "e"];
/// A recovery has fewer writes than this. More mean that it does not end.
const WRITES_MAX: u64 = 60;

type State = Vec<Option<String>>;

fn before() -> State {
    vec![None, Some(long("b")), Some(long("c")), Some("d".into()), Some("e".into())]
}

fn after() -> State {
    vec![Some("A".into()), Some(long("B")), Some("C".into()), None, Some("e".into())]
}

fn prepare(world: &World) -> Opened {
    let store = world.open_unswept();
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

/// Every row, from a random one on, read one by one so that each lock is resolved separately.
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
fn count_writes(world: &World) -> u64 {
    let world = world.another();
    let store = prepare(&world);
    let before = store.tap.writes();
    change(&store).unwrap();
    store.tap.writes() - before
}

struct Killed {
    answer: Result<Commit>,
    dice: Dice,
}

fn kill_the_owner(world: &World, index: u64, act: Act, dice: Dice) -> Killed {
    let store = prepare(world);
    store.tap.cut_at(index, act);
    let mut killed = Killed { answer: change(&store), dice };
    assert!(store.tap.is_dead());
    drop(store);
    world.crash(&mut killed.dice);
    world.let_locks_expire();
    killed
}

/// The owner's result must stay true permanently.
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

/// Recovers until a call fails: reads every row, sweeps, reads again.
fn recover(store: &Opened, dice: &mut Dice) -> Result<State> {
    let state = read(store, dice)?;
    store.resolve_orphan_locks()?;
    assert_eq!(read(store, dice)?, state);
    Ok(state)
}

pub fn killed_at_every_write_and_again_in_recovery(world: &World) {
    let writes = count_writes(world);
    assert!(writes >= if world.is_two_phase() { 2 } else { 1 });
    let (mut forward, mut back, mut kills_in_recovery) = (0, 0, 0);
    // There are few points to kill at, and in memory a random part survives the power cut.
    let repeats = match (world.is_rocks(), world.is_two_phase()) {
        (true, _) => 1,
        (false, true) => 3,
        (false, false) => 8,
    };
    for (repeat, index) in (0..repeats).flat_map(|repeat| (0..writes).map(move |index| (repeat, index))) {
        for act in [Act::Refuse, Act::Lose] {
            for second in 0.. {
                assert!(second < WRITES_MAX, "recovery does not end");
                // On disk one of the two, in turn: each opens three stores.
                let acts = [Act::Refuse, Act::Lose];
                let chosen = if world.is_rocks() { &acts[(index + second) as usize % 2..][..1] } else { &acts[..] };
                let mut recovered = false;
                for second_act in chosen {
                    let world = world.another();
                    let dice = Dice(world.seed ^ repeat << 16 ^ second << 8 ^ index);
                    let mut killed = kill_the_owner(&world, index, act, dice);
                    let dead = kill_the_recovery(&world, second, *second_act, &mut killed);
                    recovered |= !dead;
                    kills_in_recovery += u64::from(dead);
                    if settle(&world, &mut killed) { forward += 1 } else { back += 1 }
                }
                if recovered {
                    break;
                }
            }
        }
    }
    assert!(forward > 0 && back > 0 && kills_in_recovery > 0, "{forward} {back} {kills_in_recovery}");
}

fn kill_the_recovery(world: &World, index: u64, act: Act, killed: &mut Killed) -> bool {
    let tap = std::sync::Arc::<crate::tap::Control>::default();
    tap.cut_at(index, act);
    let seen = match world.try_open(world.builder().background_resolve(false), std::sync::Arc::clone(&tap)) {
        Ok(store) => recover(&store, &mut killed.dice).ok(),
        Err(_) => None,
    };
    let dead = tap.is_dead();
    if let Some(state) = seen {
        check_answer(&killed.answer, &state);
        // A state that was read once is permanent.
        world.crash(&mut killed.dice);
        let store = world.open_unswept();
        assert_eq!(read(&store, &mut killed.dice).unwrap(), state);
    } else {
        assert!(dead, "recovery failed without being cut off");
        world.crash(&mut killed.dice);
    }
    world.let_locks_expire();
    dead
}

fn settle(world: &World, killed: &mut Killed) -> bool {
    let store = world.open_unswept();
    let state = recover(&store, &mut killed.dice).unwrap();
    let committed = check_answer(&killed.answer, &state);
    for key in KEYS {
        store.put(key, "free");
    }
    // Reads do not resolve the lock-only row; the write above has.
    assert_eq!(store.locks_left(), 0);
    drop(store);
    let store = world.open();
    assert!(KEYS.iter().all(|key| store.get(key).as_deref() == Some("free")));
    committed
}

/// More rows than one batch locks: the owner is killed between two batches of prewrites, or of a
/// rollback.
pub fn killed_between_locks_of_a_large_transaction(world: &World) {
    const ROWS: usize = 1100;
    let fill = |store: &Opened| -> Result<Commit> {
        let mut txn = store.begin()?;
        for number in 0..ROWS {
            txn.put(&store.rows, format!("k{number:04}"), "new")?;
        }
        txn.commit()
    };
    let writes = {
        let world = world.another();
        let store = world.open();
        let before = store.tap.writes();
        fill(&store).unwrap();
        store.tap.writes() - before
    };
    let indexes: Vec<u64> =
        if writes > 10 { vec![0, 1, ROWS as u64 - 1, ROWS as u64, ROWS as u64 + 1] } else { (0..writes).collect() };
    for index in indexes {
        let world = world.another();
        let mut dice = Dice(world.seed ^ index);
        let store = world.open();
        store.tap.cut_at(index, if dice.below(2) == 0 { Act::Refuse } else { Act::Lose });
        let answer = fill(&store);
        drop(store);
        world.crash(&mut dice);
        world.let_locks_expire();
        let store = world.open();
        let seen = store.begin().unwrap().prefix(&store.rows, "k").count();
        assert!(seen == 0 || seen == ROWS, "{seen} of {ROWS} rows");
        match answer {
            Ok(_) => assert_eq!(seen, ROWS),
            Err(why) if matches!(why.kind(), ErrorKind::Undetermined(_)) => {}
            Err(_) => assert_eq!(seen, 0),
        }
    }
}

/// Two rows: the owner stops at any step, resolvers take over and stop at any step, and all of them
/// get the same transaction status.
pub fn stopped_at_every_step_and_again_in_recovery(world: &World) {
    type Work = fn(&Hand);
    let owner: [Work; 4] = [
        |hand| drop(hand.prewrite(&put(txn(10), "p", "new"))),
        |hand| drop(hand.prewrite(&Prewrite { primary: row("p"), ..put(txn(10), "s", "new") })),
        |hand| drop(hand.commit(txn(10), "p", 20)),
        |hand| drop(hand.commit_secondary(txn(10), "s", 20)),
    ];
    let check = |hand: &Hand| hand.check(txn(10), "p", OwnerLiveness::Dead).unwrap();
    for stopped in 0..=owner.len() {
        for resolvers in 0..3 {
            for resolver_stops in 0..3 {
                let world = world.another();
                let hand = world.hand();
                owner[..stopped].iter().for_each(|step| step(&hand));
                let mut found = Vec::new();
                for _ in 0..=resolvers {
                    // A resolver checks the status, resolves the secondary, then the primary. The
                    // last one completes.
                    found.push(check(&hand));
                    if resolver_stops > 0 {
                        hand.resolve(txn(10), "s", found[0]).unwrap();
                    }
                    if resolver_stops > 1 {
                        hand.resolve(txn(10), "p", found[0]).unwrap();
                    }
                }
                hand.resolve(txn(10), "s", found[0]).unwrap();
                let committed = stopped >= 3;
                let expected = if committed { TxnStatus::Committed(ts(20)) } else { TxnStatus::RolledBack };
                assert!(found.iter().all(|status| *status == expected), "{stopped}: {found:?}");
                // The owner was only slow and takes its remaining steps.
                owner[stopped..].iter().for_each(|step| step(&hand));
                hand.resolve(txn(10), "s", check(&hand)).unwrap();
                let value = committed.then(|| "new".to_owned());
                assert_eq!([hand.value("p"), hand.value("s")], [value.clone(), value]);
                assert_eq!([hand.lock("p"), hand.lock("s")], [None, None]);
                let ended = if committed { TxnRecord::Committed(ts(20)) } else { TxnRecord::RolledBack };
                assert_eq!(hand.status("p", txn(10)), Some(ended));
            }
        }
    }
}
