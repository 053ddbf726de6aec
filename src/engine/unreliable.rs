//! A bad network in front of any engine: requests get lost, replies get lost, messages come twice, late, or slowly.
//!
//! ```text
//!   client ──request──▶ (lost? cut short? copied?) ──▶ engine
//!   client ◀───reply─── (lost?) ◀──────────────────── engine
//!                            a copy, much later ──▶ engine, its answer thrown away
//! ```
//!
//! To the client a lost request and a lost reply look the same: [`EngineError::Undetermined`]. A protocol that survives this
//! engine looks before it believes, repeats without harm, and is not moved by a message that arrives long after
//! its sender has given up. A copy that is kept for later may be of a request that was lost, so the first delivery can be
//! the late one.
//!
//! Not every request may be copied. [`Engine::apply`] may be, because its changes carry the guards under which they
//! are still right; a change whose guards were proven elsewhere and removed must never be sent over a network that repeats.
//! The store's own bookkeeping ([`Engine::write_meta`]) has no guards: it is repeated at once, never later. Reads are lost or
//! slow, and so is every read of a view.
//!
//! A process that has its engine for itself calls it directly, and there every fault but a delay would be a lie: set only
//! [`Faults::delays`] in front of an engine whose [`Capabilities::exclusive`] is true.
//!
//! All choices come from a seed, one draw after the other. The same calls in the same order meet the same faults. No lock is
//! held while the engine is called or while a delay lasts.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;

use super::storage::Column;
use super::{
    ApplyResult, Capabilities, Engine, EngineError, EngineSnapshot, GcEntry, OnCell, PageBuffer, PageRequest, RowBatch,
    RowRange, ScanVisitor,
};
use crate::row::{KeyspaceId, Row, RowKey, TxnRecord, WriteRecord};
use crate::timestamp::Timestamp;

/// The most late copies that wait at a time; one more pushes the oldest out, to the engine.
pub const LATE_COPIES_MAX: usize = 64;

/// How often each fault happens, in per mille, and how bad it is. The default is a perfect network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// Requests that never arrive: not applied, answered [`EngineError::Undetermined`].
    pub lost_requests: u16,
    /// Requests that are carried out and whose reply never arrives: applied, answered [`EngineError::Undetermined`].
    pub lost_replies: u16,
    /// Calls of [`Engine::apply`] with several groups of which only the first few arrive: answered
    /// [`EngineError::Undetermined`]. Each group stays whole.
    pub truncated_requests: u16,
    /// Changes that arrive twice, the second right after the first; either answer may be the one that the client sees.
    pub duplicates: u16,
    /// Calls of [`Engine::apply`] that arrive once more, much later.
    pub late_duplicates: u16,
    /// After how many further calls, at most, a late copy arrives; 0 counts as 1.
    pub late_by_max: u64,
    /// Requests, and as often replies, that take their time.
    pub delays: u16,
    /// How long a delay is at most, in milliseconds; 0 counts as 1.
    pub delay_max_ms: u64,
}

impl Faults {
    /// Every fault of a network, often enough that a short run meets them all.
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

/// How often each fault has happened so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultCounts {
    /// See [`Faults::lost_requests`]; reads count here too.
    pub lost_requests: u64,
    /// See [`Faults::lost_replies`].
    pub lost_replies: u64,
    /// See [`Faults::truncated_requests`].
    pub cut_requests: u64,
    /// See [`Faults::duplicates`].
    pub duplicates: u64,
    /// Duplicates where the client saw the second answer.
    pub second_answers: u64,
    /// Late copies made; see [`Faults::late_duplicates`].
    pub late_copies: u64,
    /// Late copies delivered.
    pub late_deliveries: u64,
    /// Groups of late copies whose guards still held, so that they were applied.
    pub late_applied: u64,
    /// See [`Faults::delays`].
    pub delays: u64,
}

/// What a delay does, given its milliseconds.
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

/// A copy on its way, and the call before which it arrives.
struct Late {
    due: u64,
    groups: Vec<RowBatch>,
}

/// What will happen to one call.
#[derive(Clone, Copy, Debug, Default)]
struct CallPlan {
    request_delay_ms: u64,
    reply_delay_ms: u64,
    delivery: Delivery,
    reply_lost: bool,
}

/// How often a request arrives, and which delivery's answer is sent back.
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
                // Nobody waits for this one.
                let _ = change();
                first
            }
            Self::TwiceSecondAnswer => change(),
        }
    }
}

/// What a call may suffer.
#[derive(Clone, Copy, PartialEq, Eq)]
enum CallKind {
    Read,
    Change,
}

impl<E: Engine> FaultyEngine<E> {
    /// Puts a network with these faults in front of `engine`. The seed decides everything that will happen.
    pub fn new(engine: E, faults: Faults, seed: u64) -> Self {
        Self::with_pause(engine, faults, seed, Arc::new(|_| {}))
    }

    /// Like [`FaultyEngine::new`], with delays carried out by `pause`; without it they are counted and take no time.
    pub fn with_pause(engine: E, faults: Faults, seed: u64, pause: DelayFn) -> Self {
        let (injected, calls, late) = Default::default();
        let state = Mutex::new(State { faults, dice: Random(seed), injected, calls, late });
        Self { engine, network: Arc::new(Network { state, pause }) }
    }

    /// The engine behind the network.
    pub fn engine(&self) -> &E {
        &self.engine
    }

    /// What has gone wrong so far.
    pub fn injected(&self) -> FaultCounts {
        self.network.state.lock().injected
    }

    /// Changes how often faults happen from now on. Copies that are on their way stay there.
    pub fn set_faults(&self, faults: Faults) {
        self.network.state.lock().faults = faults;
    }

    /// Delivers every late copy that is still on its way, and says how many there were.
    pub fn deliver_delayed(&self) -> usize {
        let late = std::mem::take(&mut self.network.state.lock().late);
        for copy in &late {
            self.deliver(copy);
        }
        late.len()
    }

    fn deliver(&self, copy: &Late) {
        // Nobody waits for this answer any more.
        let applied = self
            .engine
            .apply(&copy.groups)
            .map_or(0, |outcomes| outcomes.iter().filter(|outcome| **outcome == ApplyResult::Applied).count() as u64);
        let mut state = self.network.state.lock();
        state.injected.late_deliveries += 1;
        state.injected.late_applied += applied;
    }

    /// Begins a call: what is due arrives first.
    fn begin(&self, kind: CallKind) -> CallPlan {
        let (fate, due) = self.network.begin(kind);
        for copy in &due {
            self.deliver(copy);
        }
        self.network.pause(fate.request_delay_ms);
        fate
    }

    fn read<T>(&self, read: impl FnOnce() -> Result<T, EngineError>) -> Result<T, EngineError> {
        let fate = self.begin(CallKind::Read);
        self.network.end(fate, read)
    }

    fn change<T>(&self, change: impl Fn() -> Result<T, EngineError>) -> Result<T, EngineError> {
        let fate = self.begin(CallKind::Change);
        self.network.end(fate, || fate.delivery.deliver(change))
    }
}

impl Network {
    fn begin(&self, kind: CallKind) -> (CallPlan, Vec<Late>) {
        let mut state = self.state.lock();
        let fate = state.plan_call(kind);
        (fate, state.due())
    }

    fn end<T>(&self, fate: CallPlan, work: impl FnOnce() -> Result<T, EngineError>) -> Result<T, EngineError> {
        if fate.delivery == Delivery::Never {
            return Err(EngineError::Undetermined("no answer: the network lost the request".into()));
        }
        let answer = work();
        self.pause(fate.reply_delay_ms);
        if fate.reply_lost {
            return Err(EngineError::Undetermined("no answer: the network lost the reply".into()));
        }
        answer
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
        let fate = CallPlan { request_delay_ms, reply_delay_ms, delivery, reply_lost };
        let seen_second = delivery == Delivery::TwiceSecondAnswer && !reply_lost;
        self.injected.lost_requests += u64::from(lost);
        self.injected.lost_replies += u64::from(reply_lost);
        self.injected.duplicates += u64::from(twice && !lost);
        self.injected.second_answers += u64::from(seen_second);
        self.injected.delays += u64::from(fate.request_delay_ms > 0) + u64::from(fate.reply_delay_ms > 0);
        fate
    }

    fn delay(&mut self) -> u64 {
        let happens = self.dice.happens(self.faults.delays);
        let millis = self.dice.up_to(self.faults.delay_max_ms);
        if happens { millis } else { 0 }
    }

    /// Takes the copies that arrive before this call.
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

    /// Decides on a late copy, and on how many of the groups arrive now if not all do.
    fn plan_copies(&mut self, groups: &[RowBatch], arrives: bool) -> Option<usize> {
        let late = self.dice.happens(self.faults.late_duplicates);
        let by = self.dice.up_to(self.faults.late_by_max);
        let cut = self.dice.happens(self.faults.truncated_requests);
        let whole = self.dice.up_to(groups.len().saturating_sub(1) as u64);
        if late {
            self.late.push_back(Late { due: self.calls.saturating_add(by), groups: groups.to_vec() });
            self.injected.late_copies += 1;
        }
        let cut = cut && arrives && groups.len() > 1;
        self.injected.cut_requests += u64::from(cut);
        cut.then(|| usize::try_from(whole).unwrap_or(usize::MAX))
    }
}

/// Splitmix64: small, and good enough to throw dice.
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

    /// From 1 to `most`.
    fn up_to(&mut self, most: u64) -> u64 {
        1 + self.next() % most.max(1)
    }
}

impl<E: Engine> Engine for FaultyEngine<E> {
    fn capabilities(&self) -> Capabilities {
        self.engine.capabilities()
    }

    fn snapshot(&self) -> Result<Arc<dyn EngineSnapshot>, EngineError> {
        let view = self.read(|| self.engine.snapshot())?;
        Ok(Arc::new(UnreliableView { view, network: Arc::clone(&self.network) }))
    }

    fn read_row(&self, row: &RowKey, start_ts: Timestamp) -> Result<Row, EngineError> {
        self.read(|| self.engine.read_row(row, start_ts))
    }

    fn apply(&self, groups: &[RowBatch]) -> Result<Vec<ApplyResult>, EngineError> {
        let limit = self.capabilities().batch_rows_max;
        if groups.iter().any(|group| group.row_count() > limit) {
            // Refused before it is sent, so there is nothing that the network could do to it.
            return self.engine.apply(groups);
        }
        let mut fate = self.begin(CallKind::Change);
        let cut = self.network.state.lock().plan_copies(groups, fate.delivery != Delivery::Never);
        fate.reply_lost |= cut.is_some();
        let arrives = cut.and_then(|whole| groups.get(..whole)).unwrap_or(groups);
        self.network.end(fate, || fate.delivery.deliver(|| self.engine.apply(arrives)))
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

/// A view whose reads go over the network.
struct UnreliableView {
    view: Arc<dyn EngineSnapshot>,
    network: Arc<Network>,
}

impl UnreliableView {
    fn read<T>(&self, read: impl FnOnce(&dyn EngineSnapshot) -> Result<T, EngineError>) -> Result<T, EngineError> {
        // Late copies wait for a call of the engine itself: a view has no way to it.
        let fate = self.network.state.lock().plan_call(CallKind::Read);
        self.network.pause(fate.request_delay_ms);
        self.network.end(fate, || read(self.view.as_ref()))
    }
}

impl EngineSnapshot for UnreliableView {
    fn get_cell(&self, column: Column, row: &RowKey, see: OnCell<'_>) -> Result<(), EngineError> {
        self.read(|view| view.get_cell(column, row, see))
    }

    fn txn_record(&self, row: &RowKey, start_ts: Timestamp) -> Result<Option<TxnRecord>, EngineError> {
        self.read(|view| view.txn_record(row, start_ts))
    }

    fn data(&self, row: &RowKey, start_ts: Timestamp) -> Result<Option<Vec<u8>>, EngineError> {
        self.read(|view| view.data(row, start_ts))
    }

    fn version_at(&self, row: &RowKey, upto: Timestamp) -> Result<Option<WriteRecord>, EngineError> {
        self.read(|view| view.version_at(row, upto))
    }

    fn scan_page(&self, column: Column, page: &PageRequest<'_>, cells: &mut PageBuffer) -> Result<bool, EngineError> {
        self.read(|view| view.scan_page(column, page, cells))
    }

    fn scan_raw(&self, column: Column, range: &RowRange, visit: ScanVisitor<'_>) -> Result<(), EngineError> {
        self.read(|view| view.scan_raw(column, range, visit))
    }
}
