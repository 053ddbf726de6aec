//! Power cuts under load: threads commit until the power is cut, and the reopened store is checked.
//! Often the power is cut again during the recovery.
//!
//! Invariants: every commit that was acknowledged as durable is there; of the other commits a
//! prefix by timestamp is there; no transaction is there in part; the sum of the accounts is
//! constant; and no lock is left.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{ScopedJoinHandle, sleep};
use std::time::Duration;

use percolite::engine::Engine;
use percolite::engine::sim::SimStorage;
use percolite::engine::unreliable::{Faults, FaultyEngine};
use percolite::{Durability, ErrorKind, Keyspace, Store, Timestamp, Txn};

use crate::common::{Reads, Run, any_options, every_way, number, read_number};
use crate::support::Dice;

const SESSIONS: usize = 4;
/// Each transaction writes its own number into this many rows of its session.
const OWN_ROWS: u64 = 4;
/// A wide transaction writes its own number into this many further rows.
const WIDE_ROWS: u64 = 1200;
const ACCOUNTS: u64 = 8;
const OPENING_BALANCE: u64 = 100;

#[test]
fn durable_commits_survive_and_nothing_is_torn() {
    let run = Run::begin("crashes::durable_commits_survive_and_nothing_is_torn");
    (0..25).for_each(|world| run_incarnations(run.dice(world), Durability::Sync));
}

#[test]
fn a_buffered_store_loses_only_the_end() {
    let run = Run::begin("crashes::a_buffered_store_loses_only_the_end");
    (0..10).for_each(|world| run_incarnations(run.dice(world), Durability::Buffered));
}

/// A session's record of its transactions, which are numbered.
#[derive(Default)]
struct Session {
    /// The number of the last transaction that was begun.
    begun: u64,
    /// The number of the last transaction that was acknowledged as durable.
    durable: u64,
    /// The transactions that were acknowledged in this incarnation, with their commit timestamps.
    acknowledged: Vec<(Timestamp, u64)>,
}

struct Tables {
    store: Store,
    accounts: Keyspace,
    sessions: Keyspace,
}

/// Several incarnations of one store, each ended by a power cut.
fn run_incarnations(mut dice: Dice, durability: Durability) {
    let memory = SimStorage::new();
    let tables = open(&memory, &mut dice, durability);
    let open_accounts = |txn: &mut Txn| {
        (0..ACCOUNTS).try_for_each(|at| txn.put(&tables.accounts, [at as u8], OPENING_BALANCE.to_be_bytes()))
    };
    tables.store.transact(open_accounts).unwrap();
    tables.store.sync().unwrap();
    drop(tables);

    let mut sessions: Vec<Session> = (0..SESSIONS).map(|_| Session::default()).collect();
    for _ in 0..4 {
        let tables = open_on(slow_at_times(&memory, &mut dice), &mut dice, durability);
        run_until_crash(&tables, &memory, &mut dice, &mut sessions);
        drop(tables);
        for _ in 0..dice.below(3) {
            // Interrupted recovery: readers resolve some locks, the sweep some, and some are left.
            let tables = open(&memory, &mut dice, durability);
            let snapshot = tables.store.snapshot().unwrap();
            for _ in 0..dice.below(4) {
                let session = dice.below(SESSIONS) as u8;
                let rows = snapshot.prefix(&tables.sessions, [session]).take(dice.below(50));
                rows.for_each(|row| drop(row.unwrap()));
            }
            sleep(Duration::from_micros(dice.below(2000) as u64));
            memory.crash(dice.next());
        }
        let tables = open(&memory, &mut dice, durability);
        check(&tables, &mut sessions);
        tables.store.resolve_orphan_locks().unwrap();
        assert_eq!(tables.store.row_locks().unwrap().count(), 0, "locks are left");
        check(&tables, &mut sessions);
    }
}

fn open(memory: &SimStorage, dice: &mut Dice, durability: Durability) -> Tables {
    open_on(Arc::new(memory.exclusive_engine()), dice, durability)
}

/// In half of the incarnations the engine's calls may begin and return late, so that other calls
/// run between the end of a sync and its return.
fn slow_at_times(memory: &SimStorage, dice: &mut Dice) -> Arc<dyn Engine> {
    if dice.one_in(2) {
        return Arc::new(memory.exclusive_engine());
    }
    let faults = Faults { delays: 100, delay_max_ms: 40, ..Faults::default() };
    let pause = Arc::new(|millis| sleep(Duration::from_micros(10 * millis)));
    Arc::new(FaultyEngine::with_pause(memory.exclusive_engine(), faults, dice.next(), pause))
}

fn open_on(engine: Arc<dyn Engine>, dice: &mut Dice, durability: Durability) -> Tables {
    let store = Store::builder().background_resolve(dice.one_in(2)).durability(durability).open_engine(engine).unwrap();
    let (accounts, sessions) = (store.keyspace("accounts").unwrap(), store.keyspace("sessions").unwrap());
    Tables { store, accounts, sessions }
}

fn run_until_crash(tables: &Tables, memory: &SimStorage, dice: &mut Dice, sessions: &mut [Session]) {
    let started = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let mut threads = Vec::new();
        for (own, session) in sessions.iter_mut().enumerate() {
            let (seed, started) = (dice.next(), &started);
            threads.push(scope.spawn(move || {
                session.acknowledged.clear();
                work(tables, own, session, Dice(seed), started);
            }));
        }
        while !started.load(Ordering::Relaxed) && !threads.iter().any(ScopedJoinHandle::is_finished) {
            sleep(Duration::from_micros(100));
        }
        sleep(Duration::from_micros(dice.below(12_000) as u64));
        memory.crash(dice.next());
    });
}

/// Commits until the power is cut.
fn work(tables: &Tables, own: usize, session: &mut Session, mut dice: Dice, started: &AtomicBool) {
    loop {
        session.begun += 1;
        let number = session.begun;
        let options = any_options(&mut dice);
        loop {
            let committed = tables.store.begin_with(options).and_then(|mut txn| {
                attempt(tables, &mut txn, own as u8, number, &mut dice)?;
                txn.commit()
            });
            match committed {
                Ok(commit) => {
                    session.acknowledged.push((commit.commit_ts, number));
                    if commit.durable {
                        session.durable = number;
                    }
                    started.store(true, Ordering::Relaxed);
                    break;
                }
                Err(error) if error.is_retryable() => {}
                Err(error) => {
                    let is_power_cut =
                        matches!(error.kind(), ErrorKind::Undetermined(_) | ErrorKind::Closed(_) | ErrorKind::Io(_));
                    assert!(is_power_cut, "{error}");
                    return;
                }
            }
        }
    }
}

/// Sets the session's rows to `stamp`, the transaction's number, and moves some money.
fn attempt(tables: &Tables, txn: &mut Txn, own: u8, stamp: u64, dice: &mut Dice) -> percolite::Result<()> {
    for row in 0..OWN_ROWS {
        txn.put(&tables.sessions, own_row(own, row), number(stamp, dice))?;
    }
    if dice.one_in(12) {
        for row in 0..WIDE_ROWS {
            txn.put(&tables.sessions, own_row(own, 1000 + row), number(stamp, dice))?;
        }
    }
    let (from, to) = (dice.below(ACCOUNTS as usize) as u8, dice.below(ACCOUNTS as usize) as u8);
    let balance = |txn: &Txn, account: u8| -> percolite::Result<u64> {
        Ok(read_number(&txn.get(&tables.accounts, [account])?.expect("an account is missing")))
    };
    let source = balance(txn, from)?;
    txn.put(&tables.accounts, [from], number(source - source.min(1), dice))?;
    let target = balance(txn, to)?;
    txn.put(&tables.accounts, [to], number(target + source.min(1), dice))
}

fn own_row(own: u8, row: u64) -> Vec<u8> {
    [&[own][..], &row.to_be_bytes()].concat()
}

/// Checks the state after a crash, and sets the sessions to what has survived.
fn check(tables: &Tables, sessions: &mut [Session]) {
    let txn = tables.store.begin().unwrap();
    let snapshot = tables.store.snapshot().unwrap();
    let accounts = every_way(&snapshot, &tables.accounts);
    let sum: u64 = accounts.iter().map(|(_, value)| read_number(value)).sum();
    assert_eq!((accounts.len() as u64, sum), (ACCOUNTS, ACCOUNTS * OPENING_BALANCE), "rows and their sum");
    let rows = every_way(&snapshot, &tables.sessions);
    assert!(rows == every_way(&txn, &tables.sessions), "a snapshot and a transaction read differently");

    let (mut last_kept, mut first_lost) = (Timestamp::ZERO, Timestamp::MAX);
    for (own, session) in sessions.iter_mut().enumerate() {
        let numbers = |wide: bool| -> Vec<u64> {
            let of_kind =
                |key: &[u8]| key[0] == own as u8 && (u64::from_be_bytes(key[1..].try_into().unwrap()) >= 1000) == wide;
            rows.iter().filter(|(key, _)| of_kind(key)).map(|(_, value)| read_number(value)).collect()
        };
        let (narrow, wide) = (numbers(false), numbers(true));
        let found = narrow.first().copied().unwrap_or(0);
        let whole = |numbers: &[u64], rows| numbers.is_empty() || numbers == vec![numbers[0]; rows as usize];
        assert!(whole(&narrow, OWN_ROWS), "session {own} is there in part: {narrow:?}");
        assert!(whole(&wide, WIDE_ROWS), "a wide transaction of session {own} is there in part");
        assert!(wide.first().is_none_or(|number| *number <= found), "the wide rows are newer than the other rows");
        let (durable, begun) = (session.durable, session.begun);
        assert!((durable..=begun).contains(&found), "session {own}: {found} is there, {durable} was durable");
        for (ts, number) in session.acknowledged.drain(..) {
            if number <= found {
                last_kept = last_kept.max(ts);
            } else {
                first_lost = first_lost.min(ts);
            }
        }
        // A snapshot has shown this state, so the next crash must not lose it.
        (session.begun, session.durable) = (found, found);
    }
    assert!(last_kept < first_lost, "the commit at {last_kept} survived, and the one at {first_lost} did not");
    assert!(txn.one(&tables.accounts, b"absent").unwrap().is_none());
}
