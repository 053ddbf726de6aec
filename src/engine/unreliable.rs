//! An unreliable network in front of any engine: it loses requests and replies, truncates requests,
//! and delivers messages twice, late or slowly.
//!
//! ```text
//!   client ──request──▶ (lost? truncated? copied?) ──▶ engine
//!   client ◀───reply─── (lost?) ◀───────────────────── engine
//!                     a delayed copy, much later ────▶ engine, reply discarded
//! ```
//!
//! To the client a lost request and a lost reply are the same: [`EngineError::Undetermined`]. A
//! protocol that survives this engine checks the stored state before it decides, and retries
//! without harm. It tolerates a message that arrives long after its sender has timed out. A delayed
//! copy may be of a lost request, so the first delivery can be the late one.
//!
//! Not every request may be copied:
//! - [`Engine::apply`] may, because its changes carry the preconditions under which they are valid.
//!   A change whose preconditions were checked elsewhere and removed must never cross a network
//!   that duplicates.
//! - Metadata ([`Engine::write_meta`]) has no preconditions: it is duplicated immediately, never
//!   later.
//! - Reads, including those of snapshots, are only lost or delayed.
//!
//! A process with exclusive use of its engine calls it directly, without a network. So in front of
//! an engine whose [`Capabilities::exclusive`] is true, set only [`Faults::delays`].
//!
//! All choices come from a seed, in the order of the calls: the same calls in the same order meet
//! the same faults. No lock is held while the engine is called or while a delay lasts.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;

use super::storage::Column;
use super::{
    ApplyResult, Capabilities, Engine, EngineError, EngineSnapshot, GcEntry, OnCell, PageBuffer, PageRequest, RowBatch,
    RowRange, ScanVisitor,
};
use crate::row::{KeyspaceId, RowKey, RowState, TxnRecord, WriteRecord};
use crate::timestamp::Timestamp;
use crate::value::Value;

/// The maximum number of delayed copies; one more delivers the oldest.
pub const LATE_COPIES_MAX: usize = 64;

/// The probability of each fault, in per mille, and its limits. The default has no faults.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// Requests that never arrive: not applied; they return [`EngineError::Undetermined`].
    pub lost_requests: u16,
    /// Replies that never arrive: the request is applied and returns
    /// [`EngineError::Undetermined`].
    pub lost_replies: u16,
    /// Calls of [`Engine::apply`] of which only the first few batches arrive: they return
    /// [`EngineError::Undetermined`]. No batch is split.
    pub truncated_requests: u16,
    /// Changes that arrive twice, the second immediately after the first. The client gets either
    /// reply.
    pub duplicates: u16,
    /// Calls of [`Engine::apply`] of which a delayed copy arrives much later.
    pub late_duplicates: u16,
    /// The maximum number of calls until a delayed copy arrives; 0 counts as 1.
    pub late_by_max: u64,
    /// Requests, and independently replies, that are delayed.
    pub delays: u16,
    /// The maximum delay in milliseconds; 0 counts as 1.
    pub delay_max_ms: u64,
}

impl Faults {
    /// All faults, with probabilities at which a short run meets each of them.
    pub fn bad_network() -> Self {
        Self {
            lost_requests: 60,
            lost_replies: 60,
            truncated_requests: 60,
            duplicates: 60,
            late_duplicates: 120,
            late_by_max: 200,
            delays: 60,
            delay_max_ms: 50,
        }
    }
}

/// The number of times that each fault has happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultCounts {
    /// See [`Faults::lost_requests`]; lost reads count here, too.
    pub lost_requests: u64,
    /// See [`Faults::lost_replies`].
    pub lost_replies: u64,
    /// See [`Faults::truncated_requests`].
    pub cut_requests: u64,
    /// See [`Faults::duplicates`].
    pub duplicates: u64,
    /// Duplicates of which the client got the second reply.
    pub second_answers: u64,
    /// Delayed copies made; see [`Faults::late_duplicates`].
    pub late_copies: u64,
    /// Delayed copies delivered.
    pub late_deliveries: u64,
    /// Batches of delayed copies that met their preconditions and were applied.
    pub late_applied: u64,
    /// See [`Faults::delays`].
    pub delays: u64,
}

/// Performs a delay, given in milliseconds.
pub type DelayFn = Arc<dyn Fn(u64) + Send + Sync>;

/// See the [module](self).
pub struct FaultyEngine<E> {
    engine: E,
    network: Arc<Network>,
}

struct Network {
    state: Mutex<State>,
    pause: DelayFn,
}

struct State {
    faults: Faults,
    dice: Random,
    injected: FaultCounts,
    calls: u64,
    late: VecDeque<Late>,
}

/// A delayed copy, and the number of the call before which it arrives.
struct Late {
    due: u64,
    groups: Vec<RowBatch>,
}

/// The faults of one call.
#[derive(Clone, Copy, Debug, Default)]
struct CallPlan {
    request_delay_ms: u64,
    reply_delay_ms: u64,
    delivery: Delivery,
    reply_lost: bool,
}

/// How often a request arrives, and which reply is sent back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Delivery {
    Never,
    #[default]
    Once,
    TwiceFirstAnswer,
    TwiceSecondAnswer,
}

impl Delivery {
    fn deliver<T>(self, change: impl Fn() -> Result<T, EngineError>) -> Result<T, EngineError> {
        let first = change();
        match self {
            Self::Never | Self::Once => first,
            Self::TwiceFirstAnswer => {
                // The reply is discarded.
                let _ = change();
                first
            }
            Self::TwiceSecondAnswer => change(),
        }
    }
}

/// The kind of a call, which decides the possible faults.
#[derive(Clone, Copy, PartialEq, Eq)]
enum CallKind {
    Read,
    Change,
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
        let state = Mutex::new(State { faults, dice: Random(seed), injected, calls, late });
        Self { engine, network: Arc::new(Network { state, pause }) }
    }

    /// The wrapped engine.
    pub fn engine(&self) -> &E {
        &self.engine
    }

    /// The faults so far.
    pub fn injected(&self) -> FaultCounts {
        self.network.state.lock().injected
    }

    /// Replaces the probabilities. Delayed copies are not affected.
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
        // The reply is discarded, except for counting.
        let applied = self
            .engine
            .apply(&copy.groups)
            .map_or(0, |results| results.iter().filter(|result| **result == ApplyResult::Applied).count() as u64);
        let mut state = self.network.state.lock();
        state.injected.late_deliveries += 1;
        state.injected.late_applied += applied;
    }

    /// Starts a call: delivers the copies that are due, then plans the call's faults.
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

impl State {
    fn plan_call(&mut self, kind: CallKind) -> CallPlan {
        self.calls += 1;
        let faults = self.faults;
        let changes = kind == CallKind::Change;
        let (request_delay_ms, reply_delay_ms) = (self.delay(), self.delay());
        let lost = self.dice.happens(faults.lost_requests);
        let reply_lost = self.dice.happens(faults.lost_replies) && changes && !lost;
        let twice = self.dice.happens(faults.duplicates) && changes;
        let second = self.dice.happens(500);
        let delivery = match (lost, twice, second) {
            (true, ..) => Delivery::Never,
            (false, false, _) => Delivery::Once,
            (false, true, false) => Delivery::TwiceFirstAnswer,
            (false, true, true) => Delivery::TwiceSecondAnswer,
        };
        let reply_delay_ms = if lost { 0 } else { reply_delay_ms };
        let plan = CallPlan { request_delay_ms, reply_delay_ms, delivery, reply_lost };
        let seen_second = delivery == Delivery::TwiceSecondAnswer && !reply_lost;
        self.injected.lost_requests += u64::from(lost);
        self.injected.lost_replies += u64::from(reply_lost);
        self.injected.duplicates += u64::from(twice && !lost);
        self.injected.second_answers += u64::from(seen_second);
        self.injected.delays += u64::from(plan.request_delay_ms > 0) + u64::from(plan.reply_delay_ms > 0);
        plan
    }

    fn delay(&mut self) -> u64 {
        let happens = self.dice.happens(self.faults.delays);
        let millis = self.dice.up_to(self.faults.delay_max_ms);
        if happens { millis } else { 0 }
    }

    /// Removes the delayed copies that arrive before this call.
    fn due(&mut self) -> Vec<Late> {
        let surplus = (self.late.len() + 1).saturating_sub(LATE_COPIES_MAX);
        let mut due: Vec<Late> = self.late.drain(..surplus).collect();
        for copy in std::mem::take(&mut self.late) {
            if copy.due <= self.calls {
                due.push(copy);
            } else {
                self.late.push_back(copy);
            }
        }
        due
    }

    /// Plans a delayed copy, and truncation: the number of batches that arrive if not all do.
    fn plan_copies(&mut self, batches: &[RowBatch], arrives: bool) -> Option<usize> {
        let late = self.dice.happens(self.faults.late_duplicates);
        let by = self.dice.up_to(self.faults.late_by_max);
        let truncated = self.dice.happens(self.faults.truncated_requests);
        let count = self.dice.up_to(batches.len().saturating_sub(1) as u64);
        if late {
            self.late.push_back(Late { due: self.calls.saturating_add(by), groups: batches.to_vec() });
            self.injected.late_copies += 1;
        }
        let truncated = truncated && arrives && batches.len() > 1;
        self.injected.cut_requests += u64::from(truncated);
        truncated.then(|| usize::try_from(count).unwrap_or(usize::MAX))
    }
}

/// `SplitMix64`: small, and random enough to choose faults.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn happens(&mut self, per_mille: u16) -> bool {
        self.next() % 1000 < u64::from(per_mille)
    }

    /// A number from 1 to `most`.
    fn up_to(&mut self, most: u64) -> u64 {
        1 + self.next() % most.max(1)
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
            // The engine rejects it before it is sent, so no fault can happen.
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

    fn txn_records(&self, before: Timestamp, limit: usize) -> Result<Vec<(RowKey, Timestamp)>, EngineError> {
        self.read(|| self.engine.txn_records(before, limit))
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
        // Delayed copies wait for a call of the engine: a snapshot cannot apply them.
        let plan = self.network.state.lock().plan_call(CallKind::Read);
        self.network.pause(plan.request_delay_ms);
        self.network.end(plan, || read(self.view.as_ref()))
    }
}

impl EngineSnapshot for UnreliableView {
    fn get_cell(&self, column: Column, row: &RowKey, see: OnCell<'_>) -> Result<(), EngineError> {
        self.read(|snapshot| snapshot.get_cell(column, row, see))
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
