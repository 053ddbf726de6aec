//! Who reads: the transactions and snapshots that are not over, with age and label.
//!
//! Each is one [`ActiveReader`], which it shares with its scans and clones. The list of them holds weak references in shards and is
//! tidied as it grows, so to begin costs one short lock, and to end costs nothing. Labels outlive their transactions for a
//! while: who loses a row to another is told what that was.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::error::{Conflict, ConflictReason, Error, Result};
use crate::observe::{Metrics, TxnPhase, TxnTimer};
use crate::owner::OwnerId;
use crate::row::TxnId;
use crate::store::Store;
use crate::sync::Mutex;
use crate::timestamp::Timestamp;
use crate::read_view::ReadView;

const SHARDS: usize = 16;
const PRUNE_MIN: usize = 16;
/// So many labels of transactions that are over are kept, in each shard.
const OLD_LABELS_MAX: usize = 64;

/// What a reader is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ActiveKind {
    /// A [`Txn`](crate::store::Txn).
    Transaction,
    /// A [`Snapshot`](crate::store::Snapshot); its clones are one with it.
    Snapshot,
}

/// A transaction or snapshot that is not over: see [`Store::active_transactions`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ActiveTransaction {
    /// Which of the two.
    pub kind: ActiveKind,
    /// What it was called: [`TxnOptions::label`](crate::store::TxnOptions::label), [`Snapshot::with_label`](crate::store::Snapshot::with_label).
    pub label: Option<&'static str>,
    /// Who a transaction is in row locks and conflicts; `None` for a snapshot.
    pub owner_id: Option<OwnerId>,
    /// The timestamp that names a transaction; `None` for a snapshot.
    pub start_ts: Option<Timestamp>,
    /// Everything committed at or below this is seen. What the oldest one may need is not collected.
    pub read_ts: Timestamp,
    /// How long ago it began.
    pub age: Duration,
    /// Rows that a transaction has written and keeps in memory; without those that it has streamed.
    pub buffered_rows: u64,
    /// Bytes of these, each row counting 64 more.
    pub buffered_bytes: u64,
    /// Whether it has grown so large that its writes are row locks in the store already.
    pub is_large: bool,
    /// How many of its writes are, or are just about to be: a row that was written again behind that counts again.
    pub locked_rows: u64,
    /// Whether it was ended at [`Builder::max_snapshot_age`](crate::store::Builder::max_snapshot_age), so that it answers
    /// [`ErrorKind::SnapshotTooOld`](crate::ErrorKind::SnapshotTooOld) and holds nothing back.
    pub is_expired: bool,
}

/// See the [module](self).
pub(in crate::store) struct ActiveReader {
    pub view: Arc<ReadView>,
    pub label: Option<&'static str>,
    /// `None` for a snapshot.
    pub txn: Option<TxnId>,
    /// By the runtime's clock.
    pub started_at: Duration,
    pub timer: TxnTimer,
    /// The first conflict that a transaction meets before it commits.
    met: Mutex<Option<Box<Conflict>>>,
    rows: AtomicU64,
    bytes: AtomicU64,
    streaming: AtomicBool,
    streamed: AtomicU64,
    reported: AtomicBool,
}

impl ActiveReader {
    pub fn new(view: Arc<ReadView>, txn: Option<TxnId>, label: Option<&'static str>, began: Duration) -> Arc<Self> {
        Arc::new(Self {
            view,
            label,
            txn,
            started_at: began,
            timer: TxnTimer::default(),
            met: Mutex::default(),
            rows: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            streaming: AtomicBool::new(false),
            streamed: AtomicU64::new(0),
            reported: AtomicBool::new(false),
        })
    }

    /// Notes how much the transaction has written, and, once it streams, how much of it is streamed.
    pub fn set_written(&self, rows: usize, bytes: usize, streamed: Option<u64>) {
        self.rows.store(rows as u64, Ordering::Relaxed);
        self.bytes.store(bytes as u64, Ordering::Relaxed);
        if let Some(streamed) = streamed {
            self.streamed.store(streamed, Ordering::Relaxed);
            self.streaming.store(true, Ordering::Relaxed);
        }
    }

    /// Takes the conflict that was met before the commit.
    pub fn first_conflict(&self) -> Option<Box<Conflict>> {
        self.met.lock().take()
    }

    fn describe(&self, now: Duration) -> ActiveTransaction {
        ActiveTransaction {
            kind: if self.txn.is_some() { ActiveKind::Transaction } else { ActiveKind::Snapshot },
            label: self.label,
            owner_id: self.txn.map(|txn| txn.owner),
            start_ts: self.txn.map(|txn| txn.start_ts),
            read_ts: self.view.read_ts,
            age: now.saturating_sub(self.started_at),
            buffered_rows: self.rows.load(Ordering::Relaxed),
            buffered_bytes: self.bytes.load(Ordering::Relaxed),
            is_large: self.streaming.load(Ordering::Relaxed),
            locked_rows: self.streamed.load(Ordering::Relaxed),
            is_expired: self.view.expired.load(Ordering::Acquire),
        }
    }
}

/// All readers of a store.
#[derive(Default)]
pub(in crate::store) struct ActiveReaders {
    shards: [Shard; SHARDS],
    snapshots: AtomicUsize,
}

/// On a cache line of its own.
#[derive(Default)]
#[repr(align(64))]
struct Shard(Mutex<ReaderShard>);

#[derive(Default)]
struct ReaderShard {
    readers: Vec<ReaderEntry>,
    tidy_at: usize,
    /// Of labelled transactions that are over, newest last.
    labels: VecDeque<(OwnerId, &'static str)>,
}

struct ReaderEntry {
    named: Option<(OwnerId, &'static str)>,
    reader: Weak<ActiveReader>,
}

impl ReaderShard {
    fn add(&mut self, reader: &Arc<ActiveReader>) {
        if self.readers.len() >= self.tidy_at.max(PRUNE_MIN) {
            let labels = &mut self.labels;
            self.readers.retain(|entry| {
                let is_live = entry.reader.strong_count() > 0;
                labels.extend(entry.named.filter(|_| !is_live));
                is_live
            });
            self.labels.drain(..self.labels.len().saturating_sub(OLD_LABELS_MAX));
            self.tidy_at = self.readers.len() * 2;
        }
        let named = reader.txn.map(|txn| txn.owner).zip(reader.label);
        self.readers.push(ReaderEntry { named, reader: Arc::downgrade(reader) });
    }
}

impl ActiveReaders {
    /// Lists somebody who begins to read.
    pub fn add(
        &self,
        view: Arc<ReadView>,
        txn: Option<TxnId>,
        label: Option<&'static str>,
        began: Duration,
    ) -> Arc<ActiveReader> {
        let reader = ActiveReader::new(view, txn, label, began);
        let place = match txn {
            Some(txn) => shard_of(txn.owner),
            None => self.snapshots.fetch_add(1, Ordering::Relaxed) % SHARDS,
        };
        if let Some(shard) = self.shards.get(place) {
            shard.0.lock().add(&reader);
        }
        reader
    }

    fn all(&self) -> Vec<Arc<ActiveReader>> {
        // Copied first: letting go of the last reference gives an engine's view back, which is not for under a lock.
        let of = |shard: &Shard| shard.0.lock().readers.iter().filter_map(|entry| entry.reader.upgrade()).collect();
        self.shards.iter().flat_map(|shard| -> Vec<Arc<ActiveReader>> { of(shard) }).collect()
    }

    /// What a transaction, which may be over, was called.
    fn label_of(&self, owner: OwnerId) -> Option<&'static str> {
        let listed = self.shards.get(shard_of(owner))?.0.lock();
        let live = listed.readers.iter().filter_map(|entry| entry.named);
        let mut named = live.chain(listed.labels.iter().copied());
        named.find_map(|(named, label)| (named == owner).then_some(label))
    }
}

/// The lowest bits of an owner's id count up.
#[allow(clippy::cast_possible_truncation, reason = "smaller than the number of shards")]
fn shard_of(owner: OwnerId) -> usize {
    (owner.to_u64() % SHARDS as u64) as usize
}

impl Store {
    /// The transactions and snapshots that are not over, those that read the oldest state first: what the first one may need is
    /// kept from being collected. A scan that outlives its transaction or snapshot keeps it in this list.
    ///
    /// Costs a lock and a reference for each of them for a moment; it waits for nothing.
    ///
    /// ```
    /// # fn main() -> percolite::Result<()> {
    /// use percolite::{Store, TxnOptions};
    /// let store = Store::in_memory()?;
    /// let report = store.snapshot()?.with_label("monthly report");
    /// let txn = store.begin_with(TxnOptions::with_label("transfer"))?;
    /// for live in store.active_transactions() {
    ///     println!("{:?} {:?} for {:?}", live.kind, live.label, live.age);
    /// }
    /// assert_eq!(store.active_transactions().len(), 2);
    /// # Ok(()) }
    /// ```
    pub fn active_transactions(&self) -> Vec<ActiveTransaction> {
        let now = self.inner.runtime.elapsed();
        let mut live: Vec<ActiveTransaction> =
            self.inner.active.all().iter().map(|reader| reader.describe(now)).collect();
        live.sort_by_key(|live| (live.read_ts, std::cmp::Reverse(live.age)));
        live
    }

    /// Lists somebody who reads a view and is no transaction.
    pub(in crate::store) fn register_reader(
        &self,
        view: Arc<ReadView>,
        label: Option<&'static str>,
    ) -> Arc<ActiveReader> {
        self.inner.active.add(view, None, label, self.inner.runtime.elapsed())
    }

    /// The store itself, which reads for a moment: in nobody's list.
    pub(in crate::store) fn unregistered_reader(&self, view: Arc<ReadView>) -> Arc<ActiveReader> {
        ActiveReader::new(view, None, None, self.inner.runtime.elapsed())
    }

    /// Reads; if so asked, the time that takes is counted as the transaction's.
    pub(in crate::store) fn time_read<T>(&self, reader: &ActiveReader, read: impl FnOnce() -> T) -> T {
        if !self.inner.options.track_read_timing || reader.txn.is_none() {
            return read();
        }
        let began = self.inner.runtime.elapsed();
        let answer = read();
        reader.timer.add(TxnPhase::Read, self.inner.runtime.elapsed().saturating_sub(began));
        answer
    }

    /// Passes an outcome on; a conflict is remembered by the reader that met it, and counted if it is the first.
    pub(in crate::store) fn record_conflict<T>(&self, reader: &ActiveReader, outcome: Result<T>) -> Result<T> {
        outcome.map_err(|mut why| {
            if why.is_retryable()
                && let Some(conflict) = why.conflict_mut()
            {
                self.fill_conflict_names(conflict);
                // One that writes blindly is judged by another moment than the one it reads at.
                conflict.read_ts = reader.view.read_ts;
                let mut met = reader.met.lock();
                if met.is_none() {
                    self.count_conflict(reader, conflict);
                    *met = Some(Box::new(conflict.clone()));
                }
            }
            why
        })
    }

    /// An error that calls what it is about by name.
    pub(in crate::store) fn with_conflict_names(&self, mut why: Error) -> Error {
        if let Some(conflict) = why.conflict_mut() {
            self.fill_conflict_names(conflict);
        }
        why
    }

    /// Says what the owner in the way is called, and the keyspace.
    pub(in crate::store) fn fill_conflict_names(&self, conflict: &mut Conflict) {
        if conflict.keyspace.is_some() {
            return;
        }
        conflict.keyspace = self.cached_name(conflict.row.keyspace_id());
        conflict.conflicting_label = conflict.conflicting_owner.and_then(|owner| self.inner.active.label_of(owner));
    }

    #[cfg_attr(not(feature = "tracing"), allow(unused_variables, reason = "for the event alone"))]
    pub(in crate::store) fn count_conflict(&self, reader: &ActiveReader, conflict: &Conflict) {
        let Metrics { conflicts_newer_version, conflicts_locked, conflicts_rolled_back, .. } = &*self.inner.metrics;
        match conflict.reason {
            ConflictReason::NewerVersion(_) => conflicts_newer_version.add(1),
            ConflictReason::Locked => conflicts_locked.add(1),
            ConflictReason::RolledBackByOther => conflicts_rolled_back.add(1),
        }
        event!(
            DEBUG,
            owner = reader.txn.map(|txn| ::tracing::field::display(txn.owner)),
            label = reader.label,
            with = %conflict,
            "conflict"
        );
    }
}

impl crate::store::Inner {
    /// Counts and reports the readers whose views have ended at the age limit.
    pub(in crate::store) fn report_expired(&self) {
        for reader in self.active.all() {
            if reader.view.expired.load(Ordering::Acquire) && !reader.reported.swap(true, Ordering::Relaxed) {
                self.metrics.snapshots_expired.add(1);
                event!(
                    WARN,
                    owner = reader.txn.map(|txn| ::tracing::field::display(txn.owner)),
                    read_ts = %reader.view.read_ts,
                    age_ms = u64::try_from(self.runtime.elapsed().saturating_sub(reader.started_at).as_millis()).ok(),
                    label = reader.label,
                    "snapshot expired"
                );
            }
        }
    }

    /// Hands the figures that are no metrics to the program's recorder.
    #[cfg(feature = "metrics")]
    #[allow(clippy::cast_precision_loss, reason = "figures for a graph")]
    pub(in crate::store) fn set_gauges(&self) {
        let readers = self.active.all();
        let transactions = readers.iter().filter(|reader| reader.txn.is_some()).count();
        let oldest = readers.iter().map(|reader| reader.started_at).min();
        let age = oldest.map_or(Duration::ZERO, |began| self.runtime.elapsed().saturating_sub(began));
        let set = |name, value| crate::observe::gauge(self.instance_id, name, value);
        set("percolite_active_transactions", transactions as f64);
        set("percolite_active_snapshots", (readers.len() - transactions) as f64);
        set("percolite_oldest_snapshot_age_seconds", age.as_secs_f64());
        set(
            "percolite_current_write_stall_seconds",
            self.update_write_stalls().current.unwrap_or_default().as_secs_f64(),
        );
        if let (Some(marks), Some(locks)) = (self.coordinator.watermarks(), &self.locks) {
            let behind = marks.visible_ts.millis().saturating_sub(marks.durable_ts.millis());
            let waiting = locks.totals();
            let set_locks = |name, value| crate::observe::lock_gauge(self.instance_id, name, value);
            set_locks("percolite_named_locks_held", waiting.held as f64);
            set_locks("percolite_named_lock_waiters", waiting.waiting as f64);
            set_locks(
                "percolite_oldest_named_lock_wait_seconds",
                waiting
                    .oldest_request_at
                    .map_or(Duration::ZERO, |asked| self.runtime.elapsed().saturating_sub(asked))
                    .as_secs_f64(),
            );
            set("percolite_open_views", marks.open_views as f64);
            set("percolite_cleanup_pending", marks.cleanup_pending as f64);
            set("percolite_durability_lag_seconds", behind as f64 / 1000.0);
        }
    }
}
