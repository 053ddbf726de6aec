//! The protocol on a very bad network: clients that crash transfer money between accounts, and
//! their requests are lost, truncated, duplicated and delivered long after their transaction has
//! ended.
//!
//! Clients run one request at a time in a random order, so a seed replays everything. The sum of
//! all accounts must stay the same, an acknowledged commit must persist, and a message of a
//! finished transaction must have no effect.

use std::collections::{BTreeMap, BTreeSet};

use percolite::Timestamp;
use percolite::engine::sim::{SimEngine, SimStorage};
use percolite::engine::unreliable::{FaultCounts, Faults, FaultyEngine};
use percolite::engine::{Engine, PageRequest, RowRange};
use percolite::internal::protocol::{
    CheckTxnStatus, CommitRow, OwnerLiveness, Prewrite, PrewriteResult, Resolve, Rollback, StepError, TxnStatus,
    check_txn_status, commit, commit_at_least, prewrite, resolve, rollback,
};
use percolite::row::{Lock, Mutation, RowKey, StoredValue, TxnId};

use crate::common::{Context, Dice, put_write, row, ts, txn, txn_record_pages, until_answered};
use crate::steps::run;

const ACCOUNTS: usize = 5;
const OPENING: u64 = 100;
const CLIENTS: usize = 4;
const TURNS: usize = 600;

/// A client's progress in its transfer. Each stage is one request.
enum Stage {
    Idle,
    Prewrite(usize),
    AskTime,
    CommitPrimary(Timestamp),
    CommitSecondary(usize, Timestamp),
    RollBack(usize),
}

struct Client {
    engine: FaultyEngine<SimEngine>,
    stage: Stage,
    txn: TxnId,
    /// Rows and their new values; the first row is the primary.
    writes: Vec<(RowKey, Vec<u8>)>,
}

struct World {
    dice: Dice,
    clock: u64,
    alive: BTreeSet<Timestamp>,
    acknowledged: BTreeMap<Timestamp, Timestamp>,
    rolled_back: BTreeSet<Timestamp>,
}

impl World {
    fn next_ts(&mut self) -> Timestamp {
        self.clock += 1;
        ts(self.clock)
    }
}

/// Values of every second account are too long for a lock.
fn money(account: usize, amount: u64) -> Vec<u8> {
    let mut bytes = amount.to_be_bytes().to_vec();
    bytes.resize(if account.is_multiple_of(2) { 8 } else { 300 }, 0);
    bytes
}

fn account(number: usize) -> RowKey {
    row(format!("account {number}"))
}

/// The amount at `read_ts`. Fails with the lock that blocks the read, or with `None` if a commit is
/// above `read_ts`.
fn amount(engine: &dyn Engine, key: &RowKey, read_ts: Timestamp) -> Result<u64, Option<Lock>> {
    let view = until_answered(|| engine.snapshot()).unwrap();
    if let Some(lock) = until_answered(|| view.lock(key)).unwrap().filter(|lock| lock.txn.start_ts < read_ts) {
        return Err(Some(lock));
    }
    let write = until_answered(|| view.write(key)).unwrap().unwrap();
    if write.commit_ts > read_ts {
        return Err(None);
    }
    let bytes = match write.value.unwrap() {
        StoredValue::Inline(bytes) => bytes,
        StoredValue::OutOfLine => {
            until_answered(|| view.data(key, write.txn.start_ts)).unwrap().expect("the data cell is missing")
        }
    };
    Ok(u64::from_be_bytes(bytes[..8].try_into().unwrap()))
}

/// Reads the transaction's status from its primary and resolves the lock.
fn resolve_lock(engine: &dyn Engine, key: &RowKey, lock: &Lock, liveness: OwnerLiveness) -> TxnStatus {
    let txn = lock.txn;
    let request = CheckTxnStatus { row: lock.primary.clone(), txn, liveness };
    let status = run(engine, &lock.primary, txn.start_ts, &|row| check_txn_status(row, &request)).unwrap();
    let request = Resolve { row: key.clone(), txn, status, keep_old_version: true, on_shared_engine: true };
    // A refusal means that another resolver was faster.
    let _ = run(engine, key, txn.start_ts, &|row| resolve(row, &request));
    status
}

impl Client {
    fn step(&mut self, world: &mut World) {
        let start_ts = self.txn.start_ts;
        self.stage = match self.stage {
            Stage::Idle => self.begin(world),
            Stage::Prewrite(index) => {
                let (key, value) = self.writes[index].clone();
                let request = Prewrite {
                    row: key.clone(),
                    txn: self.txn,
                    read_ts: start_ts,
                    primary: self.writes[0].0.clone(),
                    mutation: Mutation::Put(value.into()),
                    write_seq: 1,
                    ttl_ms: 0,
                    min_commit_ts: start_ts.next(),
                };
                match run(&self.engine, &key, start_ts, &|row| prewrite(row, &request)) {
                    Ok(PrewriteResult::Locked { .. }) if index + 1 < self.writes.len() => Stage::Prewrite(index + 1),
                    Ok(PrewriteResult::Locked { .. }) => Stage::AskTime,
                    Ok(PrewriteResult::Committed(at)) => panic!("committed at {at} before its commit was requested"),
                    Err(_) => Stage::RollBack(0),
                }
            }
            Stage::AskTime => Stage::CommitPrimary(world.next_ts()),
            Stage::CommitPrimary(commit_ts) => {
                let request = self.commit(0, commit_ts);
                match run(&self.engine, &request.row, start_ts, &|row| commit_at_least(row, &request)) {
                    Ok(at) => {
                        assert!(at >= commit_ts);
                        world.acknowledged.insert(start_ts, at);
                        Stage::CommitSecondary(1, at)
                    }
                    Err(StepError::AlreadyRolledBack) => Stage::RollBack(0),
                    Err(other) => panic!("{other:?}"),
                }
            }
            Stage::CommitSecondary(index, commit_ts) if index < self.writes.len() => {
                let request = self.commit(index, commit_ts);
                // The result does not matter: the row may have been rolled forward and overwritten
                // since.
                let _ = run(&self.engine, &request.row, start_ts, &|row| commit(row, &request));
                Stage::CommitSecondary(index + 1, commit_ts)
            }
            Stage::CommitSecondary(..) => self.end(world),
            Stage::RollBack(index) if index < self.writes.len() => {
                world.rolled_back.insert(start_ts);
                let request = Rollback { row: self.writes[index].0.clone(), txn: self.txn };
                run(&self.engine, &request.row, start_ts, &|row| rollback(row, &request)).unwrap();
                Stage::RollBack(index + 1)
            }
            Stage::RollBack(_) => self.end(world),
        };
        // A client may crash after any request. Its locks stay, and its late messages will still be
        // delivered.
        if world.dice.one_in(20) {
            self.stage = self.end(world);
        }
    }

    fn begin(&mut self, world: &mut World) -> Stage {
        let start_ts = world.next_ts();
        self.txn = txn(start_ts.to_u64());
        let from = world.dice.index(ACCOUNTS);
        let to = (from + 1 + world.dice.index(ACCOUNTS - 1)) % ACCOUNTS;
        let mut amounts = Vec::new();
        for number in [from, to] {
            match amount(&self.engine, &account(number), start_ts) {
                Ok(amount) => amounts.push(amount),
                Err(Some(lock)) => {
                    let pushing = OwnerLiveness::ByTtl { current_ts: world.next_ts(), push_above: Some(start_ts) };
                    let liveness =
                        if world.alive.contains(&lock.txn.start_ts) { pushing } else { OwnerLiveness::Ended };
                    resolve_lock(&self.engine, &account(number), &lock, liveness);
                    return Stage::Idle;
                }
                Err(None) => return Stage::Idle,
            }
        }
        let moved = world.dice.below(amounts[0] + 1).min(30);
        self.writes =
            vec![(account(from), money(from, amounts[0] - moved)), (account(to), money(to, amounts[1] + moved))];
        world.alive.insert(start_ts);
        Stage::Prewrite(0)
    }

    fn commit(&self, index: usize, commit_ts: Timestamp) -> CommitRow {
        CommitRow {
            row: self.writes[index].0.clone(),
            txn: self.txn,
            commit_ts,
            keep_txn_record: index == 0,
            keep_old_version: false,
            on_shared_engine: true,
        }
    }

    fn end(&mut self, world: &mut World) -> Stage {
        world.alive.remove(&self.txn.start_ts);
        Stage::Idle
    }
}

/// Resolves every remaining lock, as a store does that opens after all clients have ended.
fn resolve_all(engine: &SimEngine) {
    let page = PageRequest { range: &RowRange::all(), backwards: false, limit: 1000, cursor: None };
    for (key, lock) in engine.snapshot().unwrap().scan_locks(&page).unwrap() {
        resolve_lock(engine, &key, &lock, OwnerLiveness::Ended);
    }
    assert_eq!(engine.snapshot().unwrap().scan_locks(&page).unwrap(), []);
}

fn balances(engine: &SimEngine) -> Vec<u64> {
    (0..ACCOUNTS).map(|number| amount(engine, &account(number), Timestamp::MAX).unwrap()).collect()
}

fn transfers(seed: u64) -> (usize, usize, FaultCounts) {
    let storage = SimStorage::new();
    let direct = storage.shared_engine();
    let opening = |number: usize| {
        let mut write = crate::common::put(1);
        write.value = Some(crate::common::inline(money(number, OPENING)));
        put_write(format!("account {number}"), write)
    };
    crate::common::make(&direct, (0..ACCOUNTS).map(opening));
    let faults = Faults { lost_requests: 200, late_calls_max: 400, late_duplicates: 600, ..Faults::bad_network() };
    let mut clients: Vec<Client> = (0..CLIENTS)
        .map(|number| Client {
            engine: FaultyEngine::new(storage.shared_engine(), faults, seed * 100 + number as u64),
            stage: Stage::Idle,
            txn: txn(1),
            writes: Vec::new(),
        })
        .collect();
    let mut world = World {
        dice: Dice(seed),
        clock: 10,
        alive: BTreeSet::new(),
        acknowledged: BTreeMap::new(),
        rolled_back: BTreeSet::new(),
    };
    for _ in 0..TURNS {
        let turn = world.dice.index(CLIENTS);
        clients[turn].step(&mut world);
    }
    resolve_all(&direct);
    let before = balances(&direct);
    assert_eq!(before.iter().sum::<u64>(), OPENING * ACCOUNTS as u64, "the sum has changed: {before:?}");
    // All clients have ended; then the last messages arrive.
    let mut injected = FaultCounts::default();
    for client in &clients {
        client.engine.deliver_delayed();
        let seen = client.engine.injected();
        injected.lost_requests += seen.lost_requests;
        injected.lost_replies += seen.lost_replies;
        injected.duplicates += seen.duplicates;
        injected.second_replies += seen.second_replies;
        injected.late_deliveries += seen.late_deliveries;
        injected.late_applied += seen.late_applied;
    }
    let page = PageRequest { range: &RowRange::all(), backwards: false, limit: 1000, cursor: None };
    for (key, lock) in direct.snapshot().unwrap().scan_locks(&page).unwrap() {
        let ended = direct.read_row(&key, lock.txn.start_ts).unwrap().txn_record;
        assert_eq!(ended, None, "a late message locked {key:?} for a transaction that has a record there");
    }
    resolve_all(&direct);
    assert_eq!(balances(&direct), before, "a late message moved money");
    // Every acknowledged commit is recorded, and none of them was rolled back.
    for (start_ts, commit_ts) in &world.acknowledged {
        assert!(!world.rolled_back.contains(start_ts), "{start_ts} was acknowledged and rolled back");
        let all = txn_record_pages(&direct, Timestamp::MAX, usize::MAX).0;
        let records = all.iter().filter(|(_, at)| at == start_ts);
        let records: Vec<_> = records.map(|(row, at)| direct.read_row(row, *at).unwrap().txn_record).collect();
        let committed = percolite::row::TxnRecord::Committed(*commit_ts);
        assert!(
            records.contains(&Some(committed)),
            "{start_ts} was acknowledged at {commit_ts}, and its records are {records:?}"
        );
    }
    (world.acknowledged.len(), world.rolled_back.len(), injected)
}

#[test]
fn transfers_on_a_bad_network_keep_the_sum() {
    let (mut acknowledged, mut rolled_back, mut late_applied) = (0, 0, 0);
    for seed in 0..300 {
        let _context = Context(format!("seed {seed}"));
        let (committed, aborted, injected) = transfers(seed);
        acknowledged += committed;
        rolled_back += aborted;
        late_applied += injected.late_applied;
        for count in [injected.lost_requests, injected.lost_replies, injected.duplicates, injected.late_deliveries] {
            assert!(count > 0, "{injected:?}");
        }
    }
    println!("{acknowledged} transfers committed, {rolled_back} rolled back, {late_applied} late changes applied");
    assert!(acknowledged > 3000 && rolled_back > 1000, "{acknowledged} transfers committed, {rolled_back} rolled back");
    assert!(late_applied > 20, "only {late_applied} late messages took effect");
}
