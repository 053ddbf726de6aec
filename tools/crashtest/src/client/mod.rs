//! A client: runs one transaction after another on a store and records each.

mod reads;
mod second_keyspace;
mod txn_kinds;

use std::sync::Arc;

use percolite::engine::Engine;
use percolite::internal::coordinator::HistoryRetention;
use percolite::row::{RowKey, TxnRecord};
use percolite::{
    Builder, CommitProtocol, Durability, Error, ErrorKind, Keyspace, KeyspaceId, Store, Timestamp, Txn, TxnOptions,
};

use crate::client_log::{Answer, Entry, MARKER_PREFIX};
use crate::history::{Op, Outcome, Transaction};
use crate::key_encoding::encode_key;
use crate::recorded_txn::RecordedTxn;
use crate::rng::SeededRng;
use crate::value_encoding::{WriteId, encode_value};
use crate::workload::Workload;

pub use reads::{HistoryDigests, SharedDigests, digest_of};
pub use second_keyspace::{RENAMED, SECOND};

/// The keyspace that the checker sees.
pub const ROWS: &str = "rows";
/// One writing transaction in this many reads everything again at its end.
const REREAD_EVERY: usize = 12;
/// One transaction in this many writes to the second keyspace, by default.
pub const SECOND_EVERY: usize = 6;

/// Where clients record their transactions. It must not depend on the store, so that the records
/// survive a crash of the store.
pub trait Recorder: Send + Sync {
    /// A monotonic clock that all clients share; no two calls return the same value.
    fn now(&self) -> u64;
    /// A unique transaction number.
    fn number(&self) -> u64;
    /// Records a transaction whose commit is about to be requested.
    fn record_commit(&self, number: u64, entry: Entry);
    /// Records the answer to a commit request.
    fn record_answer(&self, number: u64, answer: Answer);
}

/// The configuration of a client.
#[derive(Clone, Copy, Debug)]
pub struct ClientConfig {
    /// How transactions commit.
    pub protocol: CommitProtocol,
    /// When commits are acknowledged.
    pub durability: Durability,
    /// One value in this many is long; 0: none.
    pub long_value_every: usize,
}

/// Identifies a client.
#[derive(Clone, Copy, Debug)]
pub struct ClientId {
    /// The unique number of the client's session.
    pub session: u64,
    /// The incarnation of the store.
    pub incarnation: u32,
    /// The configuration of the client.
    pub config: ClientConfig,
}

/// The builder with this history retention.
pub fn with_retention(builder: Builder, keep: HistoryRetention) -> Builder {
    match keep {
        HistoryRetention::Unchanged => builder,
        HistoryRetention::For(time) => builder.history_retention(time),
        HistoryRetention::Disabled => builder.disable_history(),
    }
}

const WRITE_TO_DROPPED: &str = "a write to a dropped keyspace was acknowledged";

/// See the [module](self).
pub struct Client<'a> {
    store: &'a Store,
    /// The store's engine: it has the commit timestamps that `Store::transact` does not return.
    engine: &'a dyn Engine,
    rows: Keyspace,
    second: Option<Keyspace>,
    /// A handle of the second keyspace from before it was dropped.
    dropped: Option<Keyspace>,
    second_every: usize,
    /// Whether a transaction writes to the second keyspace first, so that a large transaction has
    /// its primary there.
    second_first: bool,
    id: ClientId,
    rng: SeededRng,
    recorder: &'a dyn Recorder,
    started: u64,
    write_skews: u64,
    /// Timestamps of this client's commits.
    committed: Vec<Timestamp>,
    history_digests: SharedDigests,
    /// Whether the second keyspace is renamed. The name `SECOND` may then lead to another keyspace
    /// than the handle `second`.
    renames: bool,
    /// The second keyspace, if the last transaction wrote to it.
    wrote_second: Option<KeyspaceId>,
    /// Whether the store's snapshots show durable data only.
    durable_snapshots: bool,
    /// If the store keeps the whole history: the timestamps and digests of older snapshots, which
    /// must still be readable.
    required_digests: Option<Vec<(Timestamp, u64)>>,
}

/// How a transaction ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TxnEnd {
    /// Committed.
    Committed,
    /// Not committed; a retry may succeed.
    Conflict,
    /// Rolled back by the client.
    RolledBack,
}

impl<'a> Client<'a> {
    /// A client of a store over `engine`. `second` is the second keyspace, if there is one.
    pub fn new(
        (store, engine): (&'a Store, &'a dyn Engine),
        (rows, second): (Keyspace, Option<Keyspace>),
        recorder: &'a dyn Recorder,
        id: ClientId,
        rng: SeededRng,
    ) -> Self {
        Self {
            store,
            engine,
            rows,
            second,
            dropped: None,
            second_every: SECOND_EVERY,
            second_first: false,
            id,
            rng,
            recorder,
            started: 0,
            write_skews: 0,
            committed: Vec::new(),
            history_digests: SharedDigests::default(),
            renames: false,
            wrote_second: None,
            durable_snapshots: false,
            required_digests: None,
        }
    }

    /// Shares the digests of older snapshots with other clients.
    #[must_use]
    pub fn with_history_digests(self, history_digests: &SharedDigests) -> Self {
        Self { history_digests: Arc::clone(history_digests), ..self }
    }

    /// Sets whether the second keyspace is renamed.
    #[must_use]
    pub fn with_renames(self, renames: bool) -> Self {
        Self { renames, ..self }
    }

    /// Sets whether the store's snapshots show durable data only.
    #[must_use]
    pub fn with_durable_snapshots(self, shows_durable: bool) -> Self {
        Self { durable_snapshots: shows_durable, ..self }
    }

    /// Sets whether the store keeps the whole history of this incarnation.
    #[must_use]
    pub fn with_full_history(self, keeps: bool) -> Self {
        Self { required_digests: keeps.then(Vec::new), ..self }
    }

    /// One transaction in this many writes to the second keyspace.
    #[must_use]
    pub fn with_second_every(self, transactions: usize) -> Self {
        Self { second_every: transactions, ..self }
    }

    /// Sets whether large transactions have their primary in the second keyspace.
    #[must_use]
    pub fn with_second_first(self, beside_first: bool) -> Self {
        Self { second_first: beside_first, ..self }
    }

    /// The number of write skews that snapshots have shown, each counted in every snapshot that
    /// shows it. Write skew of rows that were locked is a violation, and is not counted.
    pub fn write_skews(&self) -> u64 {
        self.write_skews
    }

    /// Whether the last transaction wrote to the second keyspace.
    pub fn has_written_second(&self) -> bool {
        self.wrote_second.is_some()
    }

    /// Runs the background work now: resolves orphan locks and locks of finished large
    /// transactions.
    fn clean_up(&mut self) -> Result<TxnEnd, Error> {
        self.store.resolve_orphan_locks().map(|_| TxnEnd::RolledBack)
    }

    /// Runs one random step: mostly a transaction of the workload, sometimes a read of everything
    /// or the background work.
    ///
    /// # Errors
    /// Errors of the store except conflicts.
    pub fn run(&mut self, workload: &dyn Workload) -> Result<TxnEnd, Error> {
        match self.rng.below(19) {
            16 => self.clean_up(),
            17 | 18 if self.store.stats().history_start_ts.is_some() => {
                self.read_history(workload).map(|()| TxnEnd::Committed)
            }
            0 => self.check_snapshot(workload).map(|()| TxnEnd::Committed),
            15 => self.read_history(workload).map(|()| TxnEnd::Committed),
            1 => self.rolled_back_txn(|txn| workload.transaction(txn)),
            14 => self.read_only_txn(),
            2..=4 => self.transact(|txn| workload.transaction(txn)),
            _ => self.attempt(|txn| workload.transaction(txn)),
        }
    }

    /// Runs the closure and records the transaction, which the caller may then commit. Returns the
    /// number of the transaction and the result of the closure.
    fn run_and_record(
        &mut self,
        txn: &mut Txn,
        began: u64,
        with_marker: bool,
        work: impl FnOnce(&mut RecordedTxn<'_>) -> Result<(), Error>,
    ) -> (u64, Result<(), Error>) {
        self.started += 1;
        self.wrote_second = None;
        let stamp = WriteId { session: self.id.session, txn: self.started, write: 0 };
        let mut rng = self.rng.split();
        let rows = self.rows.clone();
        let first = if self.second_first { self.write_to_second(txn, &mut rng) } else { Ok(()) };
        let mut recorded = RecordedTxn::new(txn, &rows, stamp, &mut rng, self.id.config.long_value_every);
        let mut worked = first.and_then(|()| work(&mut recorded));
        if worked.is_ok() && recorded.has_written() && recorded.rng().one_in(REREAD_EVERY) {
            worked = reread(&mut recorded);
        }
        let mut ops = recorded.into_ops();
        let writes = ops.iter().any(|op| !matches!(op, Op::Read(..) | Op::Scan { .. }));
        let marker = (with_marker && writes && worked.is_ok()).then(|| self.marker());
        if let Some(marker) = &marker {
            let (sealed, seen) = encode_value("", stamp, 0);
            worked = txn.put(&self.rows, encode_key(marker), sealed);
            ops.push(Op::Write(marker.clone(), Some(seen)));
        }
        if writes && worked.is_ok() && !self.second_first {
            worked = self.write_to_second(txn, &mut rng);
        }
        let entry = self.new_transaction(Some(txn.start_ts()), txn.read_ts().to_u64(), Some(began), ops);
        let number = self.recorder.number();
        self.recorder.record_commit(
            number,
            Entry { txn: entry, incarnation: self.id.incarnation, durable: self.is_durable(), marker },
        );
        (number, worked)
    }

    /// Writes to the second keyspace, in one of `second_every` transactions.
    fn write_to_second(&mut self, txn: &mut Txn, rng: &mut SeededRng) -> Result<(), Error> {
        let Some(second) = self.second.as_ref().filter(|_| rng.one_in(self.second_every)) else { return Ok(()) };
        self.wrote_second = Some(second.id());
        txn.put(second, encode_key(&rng.below(3).to_string()), "second")
    }

    fn new_transaction(
        &self,
        start_ts: Option<Timestamp>,
        read_ts: u64,
        began: Option<u64>,
        ops: Vec<Op>,
    ) -> Transaction {
        Transaction {
            id: None,
            session: self.id.session,
            start_ts: start_ts.map(Timestamp::to_u64),
            read_ts,
            commit_ts: None,
            outcome: Outcome::Unknown,
            began,
            ended: None,
            ops,
        }
    }

    fn failed(&mut self, number: u64, error: Error) -> Result<TxnEnd, Error> {
        // An undetermined outcome is looked up after the next opening.
        if matches!(error.kind(), ErrorKind::Undetermined(_)) {
            return Err(error);
        }
        self.answer(number, Outcome::Aborted, None);
        tolerate(error)
    }

    fn answer(&self, number: u64, outcome: Outcome, commit_ts: Option<Timestamp>) {
        let ended = self.recorder.now();
        self.recorder.record_answer(number, Answer { outcome, commit_ts: commit_ts.map(Timestamp::to_u64), ended });
    }

    fn marker(&self) -> String {
        format!("{MARKER_PREFIX}{}.{}", self.id.session, self.started)
    }

    fn is_durable(&self) -> bool {
        self.id.config.durability == Durability::Sync
    }

    fn options(&self) -> TxnOptions {
        let ClientConfig { protocol, durability, .. } = self.id.config;
        TxnOptions::default().commit_protocol(protocol).durability(durability)
    }
}

/// The commit timestamp of the transaction with this `start_ts`, which wrote the row. The row of a
/// large transaction may still be locked; then the transaction record has the timestamp.
pub fn committed_at(engine: &dyn Engine, row: &RowKey, start_ts: Timestamp) -> Option<Timestamp> {
    let view = engine.snapshot().ok()?;
    let found = view.row(row, start_ts).ok()?;
    match found.lock.filter(|lock| lock.txn.start_ts == start_ts) {
        // The record is read in the snapshot that has the lock. After the transaction's lock
        // cleanup, a later snapshot has neither lock nor record.
        Some(lock) => match view.txn_record(&lock.primary, start_ts).ok()?? {
            TxnRecord::Committed(commit_ts) => Some(commit_ts),
            TxnRecord::RolledBack => None,
        },
        None => found.write.filter(|write| write.txn.start_ts == start_ts).map(|write| write.commit_ts),
    }
}

/// In half of the calls writes a few rows and deletes them by prefix. Then reads everything.
fn reread(txn: &mut RecordedTxn<'_>) -> Result<(), Error> {
    if txn.rng().one_in(2) {
        for key in ["gone/a", "gone/b", "gone/c"] {
            txn.put(key, "")?;
        }
        txn.delete_prefix("gone/")?;
    }
    txn.scan("").map(drop)
}

/// Ignores an error about a snapshot that was too old, or about a conflict of a call whose thread
/// stood still for longer than the call may try.
///
/// # Errors
/// Any other error.
pub fn ignore_too_old(outcome: Result<(), Error>) -> Result<(), Error> {
    outcome.or_else(|error| match error.kind() {
        ErrorKind::SnapshotTooOld(_) | ErrorKind::RetriesExhausted { .. } => Ok(()),
        _ => Err(error),
    })
}

/// Turns an error that any client may get into the end of its transaction, and returns all others.
fn tolerate(error: Error) -> Result<TxnEnd, Error> {
    match error.kind() {
        ErrorKind::Conflict(_) | ErrorKind::RetriesExhausted { .. } => Ok(TxnEnd::Conflict),
        // Another client dropped the second keyspace, or a snapshot exceeded the age limit.
        ErrorKind::KeyspaceNotFound(_) | ErrorKind::SnapshotTooOld(_) => Ok(TxnEnd::RolledBack),
        _ => Err(error),
    }
}
