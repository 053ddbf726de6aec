//! A bank: eight sessions transfer between accounts, while two auditors sum up all accounts again
//! and again, in snapshots and in transactions. The sum must be constant.
//!
//! Every transfer also increments a count in a row of its session. With these counts a session
//! checks that snapshots show its acknowledged commits and never go backwards.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use percolite::{ErrorKind, Keyspace, Store, TxnOptions};

use crate::common::{Reads, Run, any_options, every_way, insist, number, read_number};
use crate::support::{Dice, Home};

const ACCOUNTS: usize = 20;
const OPENING_BALANCE: u64 = 100;
const SESSIONS: usize = 8;
const AUDITORS: usize = 2;

#[test]
fn in_sim() {
    bank(&Run::begin("bank::in_sim"), &Home::embedded(), 4000);
}

#[test]
fn in_sim_row_by_row() {
    bank(&Run::begin("bank::in_sim_row_by_row"), &Home::row_by_row(), 1500);
}

#[cfg(feature = "rocks")]
#[test]
fn in_rocks() {
    bank(&Run::begin("bank::in_rocks"), &Home::rocks(), 1500);
}

#[test]
fn in_sim_shared_by_clients() {
    bank(&Run::begin("bank::in_sim_shared_by_clients"), &Home::shared(), 400);
}

#[test]
fn in_sim_shared_by_clients_on_bad_networks() {
    let run = Run::begin("bank::in_sim_shared_by_clients_on_bad_networks");
    bank(&run, &Home::unreliable(run.seed, 3000), 30);
}

/// The locks of a live client may expire at any time, and others may then roll its transaction
/// back. If others do so, the client's commit must return a conflict, and no write of the
/// transaction may remain.
#[test]
fn in_sim_shared_by_clients_whose_locks_expire_soon() {
    let run = Run::begin("bank::in_sim_shared_by_clients_whose_locks_expire_soon");
    bank(&run, &Home::unreliable(run.seed, 10), 30);
}

/// A store as one session has opened it, with its handles of the keyspaces.
struct Tables {
    store: Store,
    accounts: Keyspace,
    sessions: Keyspace,
}

impl Tables {
    fn open(store: Store) -> Self {
        let accounts = insist(|| store.keyspace("accounts"));
        let sessions = insist(|| store.keyspace("sessions"));
        Self { store, accounts, sessions }
    }
}

fn bank(run: &Run, home: &Home, transfers: u64) {
    let tables: Vec<Tables> = home.open_sessions(SESSIONS + AUDITORS).into_iter().map(Tables::open).collect();
    insist(|| {
        tables[0].store.transact(|txn| {
            (0..ACCOUNTS).try_for_each(|at| txn.put(&tables[0].accounts, account(at), OPENING_BALANCE.to_be_bytes()))
        })
    });

    let (done, audits) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let auditors: Vec<_> = tables[SESSIONS..]
            .iter()
            .map(|tables| {
                scope.spawn(|| {
                    while !done.load(Ordering::Relaxed) {
                        audit(&insist(|| tables.store.snapshot()), &tables.accounts);
                        audit(&insist(|| tables.store.begin()), &tables.accounts);
                        audits.fetch_add(2, Ordering::Relaxed);
                    }
                })
            })
            .collect();
        let sessions: Vec<_> = (0..SESSIONS)
            .map(|own| {
                let (tables, dice) = (&tables, run.dice(own));
                scope.spawn(move || Session::new(own, dice).work(tables, transfers))
            })
            .collect();
        // The auditors must end even if a session has failed.
        let worked: Vec<_> = sessions.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
        done.store(true, Ordering::Relaxed);
        auditors.into_iter().for_each(|auditor| auditor.join().unwrap());
        worked.into_iter().for_each(|session| session.unwrap());
    });
    assert!(audits.load(Ordering::Relaxed) > 0);
    let snapshot = insist(|| tables[0].store.snapshot());
    audit(&snapshot, &tables[0].accounts);
    assert_eq!(counts(&snapshot, &tables[0].sessions), [transfers; SESSIONS], "acknowledged transfers");
}

fn account(number: usize) -> String {
    format!("account {number:02}")
}

fn audit(reader: &impl Reads, accounts: &Keyspace) {
    let rows = every_way(reader, accounts);
    let sum: u64 = rows.iter().map(|(_, value)| read_number(value)).sum();
    assert_eq!((rows.len(), sum), (ACCOUNTS, ACCOUNTS as u64 * OPENING_BALANCE), "rows and their sum");
}

/// The number of transfers of each session.
fn counts(reader: &impl Reads, sessions: &Keyspace) -> Vec<u64> {
    let count =
        |session: usize| insist(|| reader.one(sessions, &[session as u8])).map_or(0, |value| read_number(&value));
    (0..SESSIONS).map(count).collect()
}

struct Session {
    own: usize,
    dice: Dice,
    /// The counts of all sessions when this one last read them in a snapshot.
    in_snapshot: Vec<u64>,
    /// The counts of all sessions when this one last read them, in a snapshot or a transaction.
    in_any: Vec<u64>,
}

impl Session {
    fn new(own: usize, dice: Dice) -> Self {
        Self { own, dice, in_snapshot: vec![0; SESSIONS], in_any: vec![0; SESSIONS] }
    }

    fn work(mut self, tables: &[Tables], transfers: u64) {
        for transfer in 1..=transfers {
            let options = any_options(&mut self.dice);
            self.transfer(&tables[self.own], transfer, options);
            if self.dice.one_in(4) {
                // Snapshots of all clients must show the transfer, not only those of the client
                // that committed.
                let other = self.dice.below(tables.len());
                self.check_counts(&tables[other], transfer);
            }
        }
    }

    fn transfer(&mut self, tables: &Tables, transfer: u64, options: TxnOptions) {
        let from = self.dice.below(ACCOUNTS);
        let to = (from + 1 + self.dice.below(ACCOUNTS - 1)) % ACCOUNTS;
        let (from, to) = (account(from), account(to));
        let dice = &mut self.dice;
        loop {
            let done = tables.store.transact_with(options, |txn| {
                let mut balance = |key: &str| -> percolite::Result<u64> {
                    let read = if dice.one_in(2) {
                        txn.get(&tables.accounts, key)?
                    } else {
                        txn.get_for_update(&tables.accounts, key)?
                    };
                    Ok(read_number(&read.expect("an account is missing")))
                };
                let (source, target) = (balance(&from)?, balance(&to)?);
                let amount = dice.below(30) as u64;
                if amount <= source {
                    txn.put(&tables.accounts, &from, number(source - amount, dice))?;
                    txn.put(&tables.accounts, &to, number(target + amount, dice))?;
                }
                txn.put(&tables.sessions, [self.own as u8], number(transfer, dice))
            });
            match done {
                Ok(()) => return,
                // An I/O error means that nothing was committed.
                Err(error) if matches!(error.kind(), ErrorKind::Io(_)) => {}
                Err(error) if matches!(error.kind(), ErrorKind::Undetermined(_)) => {
                    let snapshot = insist(|| tables.store.snapshot());
                    if counts(&snapshot, &tables.sessions)[self.own] == transfer {
                        return;
                    }
                }
                Err(error) => panic!("{error}"),
            }
        }
    }

    /// Checks the counts of all sessions after this session's `transfer` was acknowledged.
    fn check_counts(&mut self, tables: &Tables, transfer: u64) {
        let snapshot = counts(&insist(|| tables.store.snapshot()), &tables.sessions);
        not_before(&snapshot, &self.in_snapshot, "a snapshot and the one before");
        let txn = counts(&insist(|| tables.store.begin()), &tables.sessions);
        not_before(&txn, &self.in_any, "a transaction and what was seen before");
        not_before(&txn, &snapshot, "a transaction and the snapshot before");
        for seen in [&snapshot, &txn] {
            assert_eq!(seen[self.own], transfer, "a commit that was acknowledged is not seen");
        }
        (self.in_snapshot, self.in_any) = (snapshot, txn);
    }
}

fn not_before(later: &[u64], earlier: &[u64], what: &str) {
    assert!(later.iter().zip(earlier).all(|(later, earlier)| later >= earlier), "{what}: {later:?}, {earlier:?}");
}
