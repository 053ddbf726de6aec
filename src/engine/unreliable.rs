//! An unreliable network in front of any engine: it loses and delays requests and replies,
//! truncates requests, and delivers requests twice, the copy immediately or much later.
//!
//! ```text
//!   client ──request──▶ (lost? truncated? copied?) ──▶ engine
//!   client ◀───reply─── (lost?) ◀───────────────────── engine
//!                     a delayed copy, much later ────▶ engine, reply discarded
//! ```
//!
//! To the client a lost request and a lost reply are the same: [`EngineError::Undetermined`]. A
//! protocol is correct on this engine only if it checks the stored state before it decides, if its
//! retries do no harm, and if it tolerates a message that arrives long after its sender has timed
//! out. A lost request may have a delayed copy: then the request is applied for the first time when
//! the copy arrives.
//!
//! Which requests may arrive twice depends on their kind:
//! - A call of [`Engine::apply`] may arrive again, immediately or much later: its changes carry the
//!   preconditions under which they are valid. So a change whose preconditions were checked
//!   elsewhere and removed must never cross a network that duplicates.
//! - Another change, such as [`Engine::write_meta`], may arrive again only immediately: it has no
//!   preconditions.
//! - A read of the engine or of a snapshot never arrives twice: it may only be lost or delayed.
//!
//! A process with exclusive use of its engine calls it directly, without a network. So in front of
//! an engine whose [`Capabilities::exclusive`] is true, set only [`Faults::delays`].
//!
//! All choices come from a seed, in the order of the calls: the same calls in the same order meet
//! the same faults. No lock is held while the engine is called or while a delay lasts.

use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;

use super::faults::{CallKind, CallPlan, Delivery, FaultPlan, Late};
pub use super::faults::{FaultCounts, Faults, MAX_LATE_COPIES};
use super::storage::Column;
use super::{
    ApplyResult, Capabilities, Engine, EngineError, EngineSnapshot, GcEntry, OnCell, PageBuffer, PageRequest, RowBatch,
    RowRange, ScanVisitor, TxnRecordEntry, TxnRecordPage,
};
use crate::row::{KeyspaceId, RowKey, RowState, TxnRecord, WriteRecord};
use crate::split_mix64::SplitMix64;
use crate::timestamp::Timestamp;
use crate::value::Value;

/// Performs a delay, given in milliseconds.
pub type DelayFn = Arc<dyn Fn(u64) + Send + Sync>;

/// An engine behind an unreliable network: see the [module](self).
pub struct FaultyEngine<E> {
    engine: E,
    network: Arc<Network>,
}

impl<E> fmt::Debug for FaultyEngine<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.network.state.lock();
        let mut engine = f.debug_struct("FaultyEngine");
        engine.field("faults", &state.faults).field("injected", &state.injected).finish_non_exhaustive()
    }
}

struct Network {
    state: Mutex<FaultPlan>,
    pause: DelayFn,
}

impl<E: Engine> FaultyEngine<E> {
    /// Puts a network with these faults in front of `engine`. The seed decides all choices. Delays
    /// take no time; they are only counted.
    pub fn new(engine: E, faults: Faults, seed: u64) -> Self {
        Self::with_pause(engine, faults, seed, Arc::new(|_| {}))
    }

    /// Like [`FaultyEngine::new`], with delays performed by `pause`.
    pub fn with_pause(engine: E, faults: Faults, seed: u64, pause: DelayFn) -> Self {
        let (injected, calls, late) = Default::default();
        let state = Mutex::new(FaultPlan { faults, dice: SplitMix64::new(seed), injected, calls, late });
        Self { engine, network: Arc::new(Network { state, pause }) }
    }

    /// The wrapped engine.
    pub fn engine(&self) -> &E {
        &self.engine
    }

    /// How many faults of each kind were injected so far.
    pub fn injected(&self) -> FaultCounts {
        self.network.state.lock().injected
    }

    /// Replaces the probabilities of the faults. Copies that are already waiting are still
    /// delivered.
    pub fn set_faults(&self, faults: Faults) {
        self.network.state.lock().faults = faults;
    }

    /// Delivers all delayed copies and returns their number.
    pub fn deliver_delayed(&self) -> usize {
        let late = std::mem::take(&mut self.network.state.lock().late);
        for copy in &late {
            self.deliver(copy);
        }
        late.len()
    }

    fn deliver(&self, copy: &Late) {
        // The batches of the copy that were applied are counted; the client gets no reply.
        let applied = self
            .engine
            .apply(&copy.batches)
            .map_or(0, |results| results.iter().filter(|result| **result == ApplyResult::Applied).count() as u64);
        let mut state = self.network.state.lock();
        state.injected.late_deliveries += 1;
        state.injected.late_applied += applied;
    }

    /// Starts a call: plans its faults, delivers the copies that are due, and then performs the
    /// delay of the request.
    fn begin(&self, kind: CallKind) -> CallPlan {
        let (plan, due) = self.network.begin(kind);
        for copy in &due {
            self.deliver(copy);
        }
        self.network.pause(plan.request_delay_ms);
        plan
    }

    fn read<T>(&self, read: impl FnOnce() -> Result<T, EngineError>) -> Result<T, EngineError> {
        let plan = self.begin(CallKind::Read);
        self.network.end(plan, read)
    }

    fn change<T>(&self, change: impl Fn() -> Result<T, EngineError>) -> Result<T, EngineError> {
        let plan = self.begin(CallKind::Change);
        self.network.end(plan, || plan.delivery.deliver(change))
    }
}

impl Network {
    fn begin(&self, kind: CallKind) -> (CallPlan, Vec<Late>) {
        let mut state = self.state.lock();
        let plan = state.plan_call(kind);
        (plan, state.due())
    }

    fn end<T>(&self, plan: CallPlan, work: impl FnOnce() -> Result<T, EngineError>) -> Result<T, EngineError> {
        if plan.delivery == Delivery::Never {
            return Err(EngineError::Undetermined("no reply: the network lost the request".into()));
        }
        let reply = work();
        self.pause(plan.reply_delay_ms);
        if plan.reply_lost {
            return Err(EngineError::Undetermined("no reply: the network lost the reply".into()));
        }
        reply
    }

    fn pause(&self, millis: u64) {
        if millis > 0 {
            (self.pause)(millis);
        }
    }
}

impl<E: Engine> Engine for FaultyEngine<E> {
    fn capabilities(&self) -> Capabilities {
        self.engine.capabilities()
    }

    fn snapshot(&self) -> Result<Arc<dyn EngineSnapshot>, EngineError> {
        let snapshot = self.read(|| self.engine.snapshot())?;
        Ok(Arc::new(UnreliableView { view: snapshot, network: Arc::clone(&self.network) }))
    }

    fn read_row(&self, row: &RowKey, start_ts: Timestamp) -> Result<RowState, EngineError> {
        self.read(|| self.engine.read_row(row, start_ts))
    }

    fn apply(&self, batches: &[RowBatch]) -> Result<Vec<ApplyResult>, EngineError> {
        let limit = self.capabilities().batch_rows_max;
        if batches.iter().any(|batch| batch.row_count() > limit) {
            // A client rejects a batch of too many rows before sending it, so no network fault can
            // happen.
            return self.engine.apply(batches);
        }
        let mut plan = self.begin(CallKind::Change);
        let truncated = self.network.state.lock().plan_copies(batches, plan.delivery != Delivery::Never);
        plan.reply_lost |= truncated.is_some();
        let arrives = truncated.and_then(|count| batches.get(..count)).unwrap_or(batches);
        self.network.end(plan, || plan.delivery.deliver(|| self.engine.apply(arrives)))
    }

    fn sync(&self) -> Result<(), EngineError> {
        self.change(|| self.engine.sync())
    }

    fn get_meta(&self, name: &str) -> Result<Option<Vec<u8>>, EngineError> {
        self.read(|| self.engine.get_meta(name))
    }

    fn scan_meta(&self, prefix: &str) -> Result<Vec<(String, Vec<u8>)>, EngineError> {
        self.read(|| self.engine.scan_meta(prefix))
    }

    fn write_meta(&self, entries: &[(String, Option<Vec<u8>>)]) -> Result<(), EngineError> {
        self.change(|| self.engine.write_meta(entries))
    }

    fn safe_point(&self) -> Result<Timestamp, EngineError> {
        self.read(|| self.engine.safe_point())
    }

    fn advance_safe_point(&self, to: Timestamp) -> Result<(), EngineError> {
        self.change(|| self.engine.advance_safe_point(to))
    }

    fn gc_candidates(
        &self,
        after: Option<&GcEntry>,
        upto: Timestamp,
        limit: usize,
    ) -> Result<Vec<GcEntry>, EngineError> {
        self.read(|| self.engine.gc_candidates(after, upto, limit))
    }

    fn txn_records(
        &self,
        before: Timestamp,
        after: Option<&TxnRecordEntry>,
        limit: usize,
    ) -> Result<TxnRecordPage, EngineError> {
        self.read(|| self.engine.txn_records(before, after, limit))
    }

    fn delete_keyspace(&self, keyspace: KeyspaceId) -> Result<(), EngineError> {
        self.change(|| self.engine.delete_keyspace(keyspace))
    }
}

/// A snapshot whose reads cross the network.
struct UnreliableView {
    view: Arc<dyn EngineSnapshot>,
    network: Arc<Network>,
}

impl UnreliableView {
    fn read<T>(&self, read: impl FnOnce(&dyn EngineSnapshot) -> Result<T, EngineError>) -> Result<T, EngineError> {
        // Copies that are due are not delivered here, because a snapshot cannot apply them: they
        // wait for the next call of the engine.
        let plan = self.network.state.lock().plan_call(CallKind::Read);
        self.network.pause(plan.request_delay_ms);
        self.network.end(plan, || read(self.view.as_ref()))
    }
}

impl EngineSnapshot for UnreliableView {
    fn get_cell(&self, column: Column, row: &RowKey, on_cell: OnCell<'_>) -> Result<(), EngineError> {
        self.read(|snapshot| snapshot.get_cell(column, row, on_cell))
    }

    fn txn_record(&self, row: &RowKey, start_ts: Timestamp) -> Result<Option<TxnRecord>, EngineError> {
        self.read(|snapshot| snapshot.txn_record(row, start_ts))
    }

    fn data(&self, row: &RowKey, start_ts: Timestamp) -> Result<Option<Value>, EngineError> {
        self.read(|snapshot| snapshot.data(row, start_ts))
    }

    fn version_at(&self, row: &RowKey, upto: Timestamp) -> Result<Option<WriteRecord>, EngineError> {
        self.read(|snapshot| snapshot.version_at(row, upto))
    }

    fn scan_page(&self, column: Column, page: &PageRequest<'_>, cells: &mut PageBuffer) -> Result<bool, EngineError> {
        self.read(|snapshot| snapshot.scan_page(column, page, cells))
    }

    fn scan_raw(&self, column: Column, range: &RowRange, visit: ScanVisitor<'_>) -> Result<(), EngineError> {
        self.read(|snapshot| snapshot.scan_raw(column, range, visit))
    }
}
