//! A client: runs one transaction after another on a store and enters each in the ledger.

mod beside;
mod looking;

use std::collections::BTreeSet;
use std::sync::Arc;

use percolite::engine::Engine;
use percolite::row::{RowKey, TxnRecord};
use percolite::{
    Builder, CommitProtocol, Durability, Error, ErrorKind, HistoryRetention, Keyspace, KeyspaceId, RetryPolicy, Store,
    Timestamp, Txn, TxnOptions,
};

use crate::dice::Dice;
use crate::history::{Op, Outcome, Transaction};
use crate::keys::{shown, stored};
use crate::ledger::{Answer, Entry, MARKERS};
use crate::recorder::Recorded;
use crate::value::{Stamp, seal};
use crate::workload::Workload;

pub use beside::{ASIDE, BESIDE};
pub use looking::{Memory, Past, digest_of};

/// How often a transaction on every row may meet a lock that has to be resolved first.
const TOUCHES_MAX: usize = 3;

/// The keyspace that is checked.
pub const ROWS: &str = "rows";
/// One writing transaction in so many looks at everything once more.
const AFTERTHOUGHT: usize = 12;
/// One transaction in so many writes there, unless a client is told otherwise.
pub const BESIDE_EVERY: usize = 6;

/// Where a client enters what it does. It must not depend on the store: what was entered survives the store's death.
pub trait Sink: Send + Sync {
    /// A clock that all clients share and that never goes back; two moments are never the same.
    fn now(&self) -> u64;
    /// A number that no transaction had before.
    fn number(&self) -> u64;
    /// Enters a transaction whose commit is about to be asked for.
    fn asked(&self, number: u64, entry: Entry);
    /// Enters an answer.
    fn answered(&self, number: u64, answer: Answer);
}

/// What the clients of a run do.
#[derive(Clone, Copy, Debug)]
pub struct Habits {
    /// How transactions commit.
    pub protocol: CommitProtocol,
    /// When they are acknowledged.
    pub durability: Durability,
    /// One value in so many is long; 0: none is.
    pub long_values: usize,
}

/// Who a client is.
#[derive(Clone, Copy, Debug)]
pub struct Who {
    /// Its number, which no other has.
    pub session: u64,
    /// Which life of the store it belongs to.
    pub life: u32,
    /// Its ways.
    pub habits: Habits,
}

/// A store that is to keep so much of the past.
pub fn keeping(builder: Builder, keep: HistoryRetention) -> Builder {
    match keep {
        HistoryRetention::Unchanged => builder,
        HistoryRetention::For(time) => builder.history_retention(time),
        HistoryRetention::Disabled => builder.disable_history(),
    }
}

const WRITTEN_TO_GONE: &str = "a write to a dropped keyspace was acknowledged";

/// See the [module](self).
pub struct Client<'a> {
    store: &'a Store,
    /// To look up when a transaction was committed that the store retried by itself.
    engine: &'a dyn Engine,
    rows: Keyspace,
    beside: Option<Keyspace>,
    /// One that was dropped.
    gone: Option<Keyspace>,
    beside_every: usize,
    /// Whether it writes there before anywhere else, so that what it streams has its primary there.
    beside_first: bool,
    who: Who,
    dice: Dice,
    sink: &'a dyn Sink,
    begun: u64,
    skewed: u64,
    /// When it has committed something.
    committed: Vec<Timestamp>,
    past: Past,
    /// Whether keyspaces are renamed, so that the one of a name need not be the one of a handle.
    renames: bool,
    /// In which keyspace beside the last transaction has written, if in any.
    wrote_beside: Option<KeyspaceId>,
    /// Whether the store shows no snapshot of what might be lost.
    shows_durable: bool,
    /// Moments that the store must still know, where it must.
    firm: Option<Vec<(Timestamp, u64)>>,
}

/// Why a closure that commits nothing has returned.
enum Left {
    Chosen,
    Failed(Error),
}

impl From<Error> for Left {
    fn from(why: Error) -> Self {
        Self::Failed(why)
    }
}

/// How a transaction ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// Committed.
    Committed,
    /// Not committed; another attempt may succeed.
    Conflict,
    /// Not committed because its client chose so.
    GivenUp,
}

impl<'a> Client<'a> {
    /// A client of a store over `engine`; `beside` is the keyspace in which it writes now and then, if there is one.
    pub fn new(
        (store, engine): (&'a Store, &'a dyn Engine),
        (rows, beside): (Keyspace, Option<Keyspace>),
        sink: &'a dyn Sink,
        who: Who,
        dice: Dice,
    ) -> Self {
        Self {
            store,
            engine,
            rows,
            beside,
            gone: None,
            beside_every: BESIDE_EVERY,
            beside_first: false,
            who,
            dice,
            sink,
            begun: 0,
            skewed: 0,
            committed: Vec::new(),
            past: Past::default(),
            renames: false,
            wrote_beside: None,
            shows_durable: false,
            firm: None,
        }
    }

    /// The same client, who goes by what others remember of the past, too.
    #[must_use]
    pub fn with_past(self, past: &Past) -> Self {
        Self { past: Arc::clone(past), ..self }
    }

    /// The same client, of a store whose keyspaces are renamed.
    #[must_use]
    pub fn of_renamed(self, renames: bool) -> Self {
        Self { renames, ..self }
    }

    /// The same client, of a store that shows no snapshot of what might be lost.
    #[must_use]
    pub fn of_durable(self, shows_durable: bool) -> Self {
        Self { shows_durable, ..self }
    }

    /// The same client, of a store that keeps all of the past of this life.
    #[must_use]
    pub fn of_keeping(self, keeps: bool) -> Self {
        Self { firm: keeps.then(Vec::new), ..self }
    }

    /// The same client, who writes to the keyspace beside once in so many transactions.
    #[must_use]
    pub fn with_beside_every(self, transactions: usize) -> Self {
        Self { beside_every: transactions, ..self }
    }

    /// The same client, whose large transactions have their primary in the keyspace beside.
    #[must_use]
    pub fn with_beside_first(self, beside_first: bool) -> Self {
        Self { beside_first, ..self }
    }

    /// How often it has seen write skew where nothing forbids it.
    pub fn skewed(&self) -> u64 {
        self.skewed
    }

    /// Whether its last transaction has written to the keyspace beside.
    pub fn has_written_beside(&self) -> bool {
        self.wrote_beside.is_some()
    }

    /// Does what the background does, now: resolves what is left of the dead, and of large transactions.
    fn clean_up(&mut self) -> Result<Ended, Error> {
        self.store.resolve_orphan_locks().map(|_| Ended::GivenUp)
    }

    /// Runs one transaction of the workload, in one of the ways that the store offers.
    ///
    /// # Errors
    /// Those of the store but conflicts.
    pub fn run(&mut self, workload: &dyn Workload) -> Result<Ended, Error> {
        match self.dice.below(19) {
            16 => self.clean_up(),
            17 | 18 if self.store.stats().history_start_ts.is_some() => {
                self.look_back(workload).map(|()| Ended::Committed)
            }
            0 => self.observe(workload).map(|()| Ended::Committed),
            15 => self.look_back(workload).map(|()| Ended::Committed),
            1 => self.give_up(|txn| workload.transaction(txn)),
            14 => self.leave(),
            2..=4 => self.transact(|txn| workload.transaction(txn)),
            _ => self.attempt(|txn| workload.transaction(txn)),
        }
    }

    /// One attempt.
    ///
    /// # Errors
    /// Those of the store but conflicts.
    pub fn attempt(&mut self, work: impl FnOnce(&mut Recorded<'_>) -> Result<(), Error>) -> Result<Ended, Error> {
        let marked = !self.dice.one_in(4);
        let began = self.sink.now();
        let mut txn = self.store.begin_with(self.options())?;
        let (number, worked) = self.enter(&mut txn, began, marked, work);
        if let Err(why) = worked {
            drop(txn);
            return self.refused(number, why);
        }
        match txn.commit() {
            Ok(commit) => {
                self.answer(number, Outcome::Committed, Some(commit.commit_ts));
                self.committed.push(commit.commit_ts);
                let dropped = self.wrote_beside.and_then(|id| self.past.dropped.lock().get(&id).copied());
                match dropped.filter(|dropped| *dropped < commit.commit_ts) {
                    Some(_) => Err(ErrorKind::Corruption(WRITTEN_TO_GONE.into()).into()),
                    None => Ok(Ended::Committed),
                }
            }
            Err(why) => self.refused(number, why),
        }
    }

    /// A transaction that is rolled back in the end; what it has read is checked all the same.
    fn give_up(&mut self, work: impl FnOnce(&mut Recorded<'_>) -> Result<(), Error>) -> Result<Ended, Error> {
        let began = self.sink.now();
        let mut txn = self.store.begin_with(self.options())?;
        let (number, worked) = self.enter(&mut txn, began, false, work);
        self.answer(number, Outcome::Aborted, None);
        if self.dice.one_in(2) {
            txn.rollback()?;
        }
        worked.map(|()| Ended::GivenUp).or_else(may_happen)
    }

    /// A transaction that reads everything and then does not commit, with an answer that makes what it has read certain.
    fn leave(&mut self) -> Result<Ended, Error> {
        let (began, store, options) = (self.sink.now(), self.store, self.options());
        let mut number = 0;
        let left = if self.dice.one_in(2) {
            store.begin_with(options).and_then(|mut txn| {
                number = self.read_all(&mut txn, began)?;
                if self.dice.one_in(2) { txn.rollback() } else { txn.wait_reads_durable() }
            })
        } else {
            let gone = self.gone.clone().filter(|_| self.dice.one_in(2));
            let left = store.transact_with(options, |txn| {
                number = self.read_all(txn, began)?;
                gone.as_ref().map_or(Err(Left::Chosen), |gone| Ok(txn.put(gone, stored("gone"), "gone")?))
            });
            match left {
                Err(Left::Failed(why)) if !matches!(why.kind(), ErrorKind::KeyspaceNotFound(_)) => Err(why),
                Ok(()) => Err(ErrorKind::Corruption(WRITTEN_TO_GONE.into()).into()),
                Err(_) => Ok(()),
            }
        };
        // Who does not ask for durability is promised nothing.
        let promised = left.is_ok() && self.is_durable();
        self.answer(number, if promised { Outcome::Committed } else { Outcome::Aborted }, None);
        left.map(|()| Ended::GivenUp).or_else(may_happen)
    }

    fn read_all(&mut self, txn: &mut Txn, began: u64) -> Result<u64, Error> {
        let (number, worked) = self.enter(txn, began, false, |txn| txn.scan("").map(drop));
        worked.map(|()| number)
    }

    /// A transaction that the store repeats until it commits.
    fn transact(&mut self, mut work: impl FnMut(&mut Recorded<'_>) -> Result<(), Error>) -> Result<Ended, Error> {
        let limits = RetryPolicy { max_attempts: 6, ..RetryPolicy::default() };
        let options = TxnOptions { retry_policy: Some(limits), ..self.options() };
        let store = self.store;
        let mut last = None;
        // An attempt begins before the closure is called.
        let mut began = self.sink.now();
        let done = store.transact_with(options, |txn| {
            if let Some((number, _)) = last {
                self.answer(number, Outcome::Aborted, None);
            }
            let (number, worked) = self.enter(txn, began, true, &mut work);
            last = Some((number, txn.start_ts()));
            began = self.sink.now();
            worked
        });
        let Some((number, start_ts)) = last else { return done.map(|()| Ended::Committed) };
        match done {
            Ok(()) => {
                // Told; when it was committed, the marker knows.
                let heard = self.sink.now();
                let marker = self.rows.row_key(stored(&self.marker()));
                let commit_ts = committed_at(self.engine, &marker, start_ts).map(Timestamp::to_u64);
                self.sink.answered(number, Answer { outcome: Outcome::Committed, commit_ts, ended: heard });
                Ok(Ended::Committed)
            }
            Err(why) => self.refused(number, why),
        }
    }

    /// A transaction that claims every row that has a value or a lock: nothing that was left behind may stand in its way.
    ///
    /// # Errors
    /// Those of the store but conflicts.
    pub fn touch_every_row(&mut self) -> Result<Ended, Error> {
        let mut ended = Ended::GivenUp;
        for _ in 0..TOUCHES_MAX {
            let locked = self.locked()?;
            ended = self.attempt(|txn| {
                let there = txn.scan("")?.into_iter().map(|(key, _)| key);
                for key in there.chain(locked).collect::<BTreeSet<_>>() {
                    txn.get_for_update(&key)?;
                }
                txn.put("touched", "")
            })?;
            if ended == Ended::Committed {
                break;
            }
        }
        Ok(ended)
    }

    /// The keys of rows with locks.
    fn locked(&self) -> Result<Vec<String>, Error> {
        let mut keys = Vec::new();
        for lock in self.store.row_locks()? {
            let row = lock?.row;
            if row.keyspace_id() == self.rows.id() {
                keys.push(shown(row.user_key()));
            }
        }
        Ok(keys)
    }

    /// Runs the closure and enters what it did.
    fn enter(
        &mut self,
        txn: &mut Txn,
        began: u64,
        marked: bool,
        work: impl FnOnce(&mut Recorded<'_>) -> Result<(), Error>,
    ) -> (u64, Result<(), Error>) {
        self.begun += 1;
        self.wrote_beside = None;
        let stamp = Stamp { session: self.who.session, number: self.begun, write: 0 };
        let mut dice = self.dice.split();
        let rows = self.rows.clone();
        let first = if self.beside_first { self.write_to_beside(txn, &mut dice) } else { Ok(()) };
        let mut recorded = Recorded::new(txn, &rows, stamp, &mut dice, self.who.habits.long_values);
        let mut worked = first.and_then(|()| work(&mut recorded));
        if worked.is_ok() && recorded.has_written() && recorded.dice().one_in(AFTERTHOUGHT) {
            worked = afterthought(&mut recorded);
        }
        let mut ops = recorded.into_ops();
        let writes = ops.iter().any(|op| !matches!(op, Op::Read(..) | Op::Scan { .. }));
        let marker = (marked && writes && worked.is_ok()).then(|| self.marker());
        if let Some(marker) = &marker {
            let (sealed, seen) = seal("", stamp, 0);
            worked = txn.put(&self.rows, stored(marker), sealed);
            ops.push(Op::Write(marker.clone(), Some(seen)));
        }
        if writes && worked.is_ok() && !self.beside_first {
            worked = self.write_to_beside(txn, &mut dice);
        }
        let entry = self.entry(Some(txn.start_ts()), txn.read_ts().to_u64(), Some(began), ops);
        let number = self.sink.number();
        self.sink.asked(number, Entry { txn: entry, life: self.who.life, durable: self.is_durable(), marker });
        (number, worked)
    }

    /// Writes to the keyspace beside, once in so many transactions.
    fn write_to_beside(&mut self, txn: &mut Txn, dice: &mut Dice) -> Result<(), Error> {
        let Some(beside) = self.beside.as_ref().filter(|_| dice.one_in(self.beside_every)) else { return Ok(()) };
        self.wrote_beside = Some(beside.id());
        txn.put(beside, stored(&dice.below(3).to_string()), "beside")
    }

    fn entry(&self, start_ts: Option<Timestamp>, read_ts: u64, began: Option<u64>, ops: Vec<Op>) -> Transaction {
        Transaction {
            id: None,
            session: self.who.session,
            start_ts: start_ts.map(Timestamp::to_u64),
            read_ts,
            commit_ts: None,
            outcome: Outcome::Unknown,
            began,
            ended: None,
            ops,
        }
    }

    fn refused(&mut self, number: u64, why: Error) -> Result<Ended, Error> {
        // Whether it is committed will be looked up.
        if matches!(why.kind(), ErrorKind::Undetermined(_)) {
            return Err(why);
        }
        self.answer(number, Outcome::Aborted, None);
        may_happen(why)
    }

    fn answer(&self, number: u64, outcome: Outcome, commit_ts: Option<Timestamp>) {
        let ended = self.sink.now();
        self.sink.answered(number, Answer { outcome, commit_ts: commit_ts.map(Timestamp::to_u64), ended });
    }

    fn marker(&self) -> String {
        format!("{MARKERS}{}.{}", self.who.session, self.begun)
    }

    fn is_durable(&self) -> bool {
        self.who.habits.durability == Durability::Sync
    }

    fn options(&self) -> TxnOptions {
        let Habits { protocol, durability, .. } = self.who.habits;
        TxnOptions { commit_protocol: Some(protocol), durability: Some(durability), ..TxnOptions::default() }
    }
}

/// When the transaction that wrote the row was committed; of a large one the row may still be locked.
pub fn committed_at(engine: &dyn Engine, row: &RowKey, start_ts: Timestamp) -> Option<Timestamp> {
    let view = engine.snapshot().ok()?;
    let found = view.row(row, start_ts).ok()?;
    match found.lock.filter(|lock| lock.txn.start_ts == start_ts) {
        // In the same view: it may end meanwhile, and then the status goes.
        Some(lock) => match view.txn_record(&lock.primary, start_ts).ok()?? {
            TxnRecord::Committed(commit_ts) => Some(commit_ts),
            TxnRecord::RolledBack => None,
        },
        None => found.write.filter(|write| write.txn.start_ts == start_ts).map(|write| write.commit_ts),
    }
}

/// Nothing of it stays: it meets what the transaction itself has written.
fn afterthought(txn: &mut Recorded<'_>) -> Result<(), Error> {
    if txn.dice().one_in(2) {
        for key in ["gone/a", "gone/b", "gone/c"] {
            txn.put(key, "")?;
        }
        txn.delete_prefix("gone/")?;
    }
    txn.scan("").map(drop)
}

/// A call that may have been too slow for the store's age limit, whoever made it slow.
///
/// # Errors
/// Any other.
pub fn unless_too_old(outcome: Result<(), Error>) -> Result<(), Error> {
    outcome.or_else(|why| if matches!(why.kind(), ErrorKind::SnapshotTooOld(_)) { Ok(()) } else { Err(why) })
}

/// What a client puts up with.
fn may_happen(why: Error) -> Result<Ended, Error> {
    match why.kind() {
        ErrorKind::Conflict(_) | ErrorKind::RetriesExhausted { .. } => Ok(Ended::Conflict),
        // Somebody has dropped the one beside; a view was older than the store allows.
        ErrorKind::KeyspaceNotFound(_) | ErrorKind::SnapshotTooOld(_) => Ok(Ended::GivenUp),
        _ => Err(why),
    }
}
