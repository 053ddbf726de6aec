//! Active transactions and snapshots, with age and label.
//!
//! Each transaction or snapshot has one [`ActiveReader`], which its scans and clones share. The
//! list of readers is sharded, has weak references, and is pruned as it grows: beginning a
//! transaction costs one short lock, ending it costs nothing. The labels of ended transactions are
//! kept for a while, because a conflict error has the label of the transaction that won.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::error::Conflict;
use crate::observe::TxnTimer;
use crate::owner_id::OwnerId;
use crate::read_view::ReadView;
use crate::row::TxnId;
use crate::sync::Mutex;
use crate::timestamp::Timestamp;

const SHARDS: usize = 16;
const PRUNE_MIN: usize = 16;
/// The maximum number of labels of ended transactions, in each shard.
const OLD_LABELS_MAX: usize = 64;

/// The kind of an [`ActiveTransaction`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ActiveKind {
    /// A [`Txn`](crate::store::Txn).
    Transaction,
    /// A [`Snapshot`](crate::store::Snapshot). A snapshot and its clones are one entry.
    Snapshot,
}

/// A transaction or snapshot that has not ended: see
/// [`Store::active_transactions`](crate::Store::active_transactions).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ActiveTransaction {
    /// Transaction or snapshot.
    pub kind: ActiveKind,
    /// Its label, from [`TxnOptions::label`](crate::store::TxnOptions::label) or
    /// [`Snapshot::with_label`](crate::store::Snapshot::with_label).
    pub label: Option<&'static str>,
    /// The owner id of a transaction, as in row locks and conflicts; `None` for a snapshot.
    pub owner_id: Option<OwnerId>,
    /// The start timestamp of a transaction; `None` for a snapshot.
    pub start_ts: Option<Timestamp>,
    /// The read timestamp: everything committed at or below it is visible. Until the entry expires,
    /// GC does not change what it reads. Nor does the GC horizon pass this timestamp, unless the
    /// entry is a snapshot of `snapshot_at`, whose engine snapshot has all that it reads.
    pub read_ts: Timestamp,
    /// The time since the transaction or snapshot began.
    pub age: Duration,
    /// The number of rows that a transaction has written and buffers in memory, without those that
    /// are locked in the store.
    pub buffered_rows: u64,
    /// The size of the buffered rows, in bytes, plus 64 for each row.
    pub buffered_bytes: u64,
    /// Whether this is a large transaction, which locks its rows in the store before it commits.
    pub is_large: bool,
    /// The number of rows that a large transaction has locked in the store. Rows that are being
    /// locked now still count as buffered. A row that is written and locked again counts again.
    pub locked_rows: u64,
    /// Whether the transaction or snapshot has expired at
    /// [`Builder::max_snapshot_age`](crate::store::Builder::max_snapshot_age). If so, its reads
    /// return [`ErrorKind::SnapshotTooOld`](crate::ErrorKind::SnapshotTooOld), and GC ignores it.
    pub is_expired: bool,
}

/// What the store records of a transaction or snapshot. Its scans and clones share the record.
pub(in crate::store) struct ActiveReader {
    pub view: Arc<ReadView>,
    pub label: Option<&'static str>,
    /// `None` for a snapshot.
    pub txn: Option<TxnId>,
    /// When the transaction or snapshot began, by the monotonic clock.
    pub started_at: Duration,
    pub timer: TxnTimer,
    /// The first conflict of the transaction's reads and writes. A conflict of the commit itself is
    /// not recorded here.
    pub first_conflict: Mutex<Option<Box<Conflict>>>,
    rows: AtomicU64,
    bytes: AtomicU64,
    is_large: AtomicBool,
    locked_rows: AtomicU64,
    pub reported: AtomicBool,
}

impl ActiveReader {
    pub fn new(
        view: Arc<ReadView>,
        txn: Option<TxnId>,
        label: Option<&'static str>,
        started_at: Duration,
    ) -> Arc<Self> {
        Arc::new(Self {
            view,
            label,
            txn,
            started_at,
            timer: TxnTimer::default(),
            first_conflict: Mutex::default(),
            rows: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            is_large: AtomicBool::new(false),
            locked_rows: AtomicU64::new(0),
            reported: AtomicBool::new(false),
        })
    }

    /// Records how much the transaction has written. `locked_rows` is `Some` if it is a large one.
    pub fn set_written(&self, rows: usize, bytes: usize, locked_rows: Option<u64>) {
        self.rows.store(rows as u64, Ordering::Relaxed);
        self.bytes.store(bytes as u64, Ordering::Relaxed);
        if let Some(locked_rows) = locked_rows {
            self.locked_rows.store(locked_rows, Ordering::Relaxed);
            self.is_large.store(true, Ordering::Relaxed);
        }
    }

    /// The conflict of the field `first_conflict`. It stays there: what retries the transaction
    /// reads it, and the slow log after that.
    pub fn first_conflict(&self) -> Option<Box<Conflict>> {
        self.first_conflict.lock().clone()
    }

    pub fn describe(&self, now: Duration) -> ActiveTransaction {
        ActiveTransaction {
            kind: if self.txn.is_some() { ActiveKind::Transaction } else { ActiveKind::Snapshot },
            label: self.label,
            owner_id: self.txn.map(|txn| txn.owner),
            start_ts: self.txn.map(|txn| txn.start_ts),
            read_ts: self.view.read_ts,
            age: now.saturating_sub(self.started_at),
            buffered_rows: self.rows.load(Ordering::Relaxed),
            buffered_bytes: self.bytes.load(Ordering::Relaxed),
            is_large: self.is_large.load(Ordering::Relaxed),
            locked_rows: self.locked_rows.load(Ordering::Relaxed),
            is_expired: self.view.expired.load(Ordering::Acquire),
        }
    }
}

/// All active transactions and snapshots of a store.
#[derive(Default)]
pub(in crate::store) struct ActiveReaders {
    shards: [Shard; SHARDS],
    snapshots: AtomicUsize,
}

/// No two shards share a cache line, so that threads that use different shards do not slow each
/// other down.
#[derive(Default)]
#[repr(align(64))]
struct Shard(Mutex<ReaderShard>);

#[derive(Default)]
struct ReaderShard {
    readers: Vec<ReaderEntry>,
    /// The length of `readers` at which the entries of ended readers are removed.
    prune_at: usize,
    /// Labels of ended transactions, newest last.
    labels: VecDeque<(OwnerId, &'static str)>,
}

struct ReaderEntry {
    labelled: Option<(OwnerId, &'static str)>,
    reader: Weak<ActiveReader>,
}

impl ReaderShard {
    fn add(&mut self, reader: &Arc<ActiveReader>) {
        if self.readers.len() >= self.prune_at.max(PRUNE_MIN) {
            let labels = &mut self.labels;
            self.readers.retain(|entry| {
                let is_active = entry.reader.strong_count() > 0;
                labels.extend(entry.labelled.filter(|_| !is_active));
                is_active
            });
            self.labels.drain(..self.labels.len().saturating_sub(OLD_LABELS_MAX));
            self.prune_at = self.readers.len() * 2;
        }
        let labelled = reader.txn.map(|txn| txn.owner).zip(reader.label);
        self.readers.push(ReaderEntry { labelled, reader: Arc::downgrade(reader) });
    }
}

impl ActiveReaders {
    /// Registers a transaction or snapshot.
    pub fn add(
        &self,
        view: Arc<ReadView>,
        txn: Option<TxnId>,
        label: Option<&'static str>,
        started_at: Duration,
    ) -> Arc<ActiveReader> {
        let reader = ActiveReader::new(view, txn, label, started_at);
        let shard = match txn {
            Some(txn) => shard_of(txn.owner),
            None => self.snapshots.fetch_add(1, Ordering::Relaxed) % SHARDS,
        };
        if let Some(shard) = self.shards.get(shard) {
            shard.0.lock().add(&reader);
        }
        reader
    }

    pub fn all(&self) -> Vec<Arc<ActiveReader>> {
        // The references are collected, and dropped only after the shard lock is released: one may
        // be the last reference to its engine snapshot, which must not be dropped under a shard
        // lock.
        let of = |shard: &Shard| shard.0.lock().readers.iter().filter_map(|entry| entry.reader.upgrade()).collect();
        self.shards.iter().flat_map(|shard| -> Vec<Arc<ActiveReader>> { of(shard) }).collect()
    }

    /// The label of a transaction that is active or has ended recently.
    pub fn label_of(&self, owner: OwnerId) -> Option<&'static str> {
        let shard = self.shards.get(shard_of(owner))?.0.lock();
        let active = shard.readers.iter().filter_map(|entry| entry.labelled);
        let mut labelled = active.chain(shard.labels.iter().copied());
        labelled.find_map(|(id, label)| (id == owner).then_some(label))
    }
}

/// The shard of a transaction. The lowest bits of owner ids count up within a millisecond, from a
/// random start, so concurrent transactions are spread over the shards.
#[allow(clippy::cast_possible_truncation, reason = "smaller than the number of shards")]
fn shard_of(owner: OwnerId) -> usize {
    (owner.to_u64() % SHARDS as u64) as usize
}
