//! Several clients of one engine, as driven by `coordinator/shared`.
//!
//! There is no pipeline. A client gets its commit timestamp before it commits its primary, and
//! changes one row at a time. Its locks have a time to live, by which other clients decide whether
//! the owner is live.
//!
//! A step has two actions: first the row is read and the protocol decides, then the change is sent.
//! Anything may happen between the two. A change may arrive twice. A change may also be late: its
//! sender times out and repeats the step, while the change is in flight and may be delivered at any
//! later time, or never. The end of an owner needs no action: from any state the owner may take no
//! further step.
//!
//! A reader first gets a timestamp and later a view. What the reader has read is compared with all
//! commits, also with later ones. In addition, in every state a new reader reads all rows.

mod readers;
mod resolvers;
mod writers;

use std::hash::Hash;

use percolite::Timestamp;
use percolite::internal::protocol::{
    CheckTxnStatus, OwnerLiveness, Step, StepError, TxnStatus, check_txn_status, delete_txn_record,
};
use percolite::row::{CellChange, Lock, RowChange};
use stateright::{Model, Property};

use self::readers::lock_to_resolve;
use crate::explore::{Coverage, Describe, invariants};
use crate::rows::{Rows, Sent, index, key};
use crate::spec::{End, Invariant, Scenario, Script, TxnEnds, TxnTimestamps, read, values_there};

/// The time to live of a lock without a heartbeat, in milliseconds.
const TTL_MS: u64 = 1;
/// The clock moves by this many milliseconds, so every lock without a heartbeat in between expires.
const TICK_MS: u64 = 2;

/// A configuration of the model.
pub struct Shared {
    pub scripts: Vec<Script>,
    pub rows: usize,
    pub readers: usize,
    /// The number of moves of the clock.
    pub ticks: u8,
    /// The number of changes that arrive late or twice.
    pub late_messages: u8,
    /// Whether the safe point advances and transaction records are deleted.
    pub prunes: bool,
    pub coverage: Coverage,
}

/// The step of a writer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Task {
    Begin,
    Prewrite(usize),
    Heartbeat(usize),
    Stamp,
    Commit(Timestamp),
    Secondary(usize, Timestamp),
    RollBack(usize),
    Ended,
}

#[derive(Clone, Debug, PartialEq, Hash)]
struct Writer {
    task: Task,
    /// A change that was decided on and is not yet known to be applied.
    sending: Option<Sent>,
    /// The time to live of the writer's locks.
    ttl_ms: u64,
    resolver: Option<Resolver>,
}

/// The way from a lock to its transaction's status and back.
#[derive(Clone, Debug, PartialEq, Hash)]
struct Resolver {
    row: usize,
    start_ts: Timestamp,
    primary: usize,
    push_above: Option<Timestamp>,
    /// The end that the primary has recorded, or will have once `sending` is applied.
    answer: Option<End>,
    /// Whether the primary has recorded `answer`, so that it is final. From then on `sending` is
    /// the request that resolves the lock.
    answered: bool,
    sending: Option<Sent>,
}

#[derive(Clone, Debug, PartialEq, Hash)]
enum Reader {
    Begin,
    Stamped(Timestamp),
    /// The reader has read all rows before the row whose lock is being resolved.
    Reading {
        read_ts: Timestamp,
        view: Rows,
        found: Vec<Option<Timestamp>>,
        resolver: Resolver,
    },
    Done {
        read_ts: Timestamp,
        found: Vec<Option<Timestamp>>,
    },
}

#[derive(Clone, Debug, PartialEq, Hash)]
pub struct State {
    rows: Rows,
    ends: TxnEnds,
    newest_ts: Timestamp,
    timestamps: Vec<Option<TxnTimestamps>>,
    writers: Vec<Writer>,
    readers: Vec<Reader>,
    /// Changes in flight without a waiting sender, sorted.
    in_flight: Vec<Sent>,
    ticks_left: u8,
    late_messages_left: u8,
    safe_points_left: u8,
    violation: Option<Invariant>,
}

impl State {
    fn next_ts(&mut self) -> Timestamp {
        self.newest_ts = self.newest_ts.next();
        self.newest_ts
    }

    fn duplicate(&mut self, sent: Sent) {
        self.late_messages_left -= 1;
        self.in_flight.push(sent);
        self.in_flight.sort();
    }
}

/// How a change is delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// The change arrives, and the sender gets the answer.
    Once,
    /// As `Once`, and the change will arrive again.
    Duplicated,
    /// The change is in flight. Its sender times out and repeats the step.
    Late,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// A writer's next step that sends no change.
    Writer(usize),
    WriterSends(usize, Delivery),
    Reader(usize),
    ReaderSends(usize, Delivery),
    Deliver(usize),
    Tick,
    SafePoint,
    Prune {
        row: usize,
        start_ts: Timestamp,
    },
}

/// The result of a step of the protocol.
enum StepResult<T> {
    Send(Sent, T),
    Answer(T),
    Refused(StepError),
}

fn step_result<T>(step: Result<Step<T>, StepError>) -> StepResult<T> {
    match step {
        Ok(Step::Apply(change, answer)) => StepResult::Send(Sent::new(change), answer),
        Ok(Step::Done(answer)) => StepResult::Answer(answer),
        Err(error) => StepResult::Refused(error),
    }
}

impl Shared {
    fn with_scenario<T>(&self, state: &mut State, f: impl FnOnce(&mut TxnEnds, &Scenario<'_>, &Rows) -> T) -> T {
        let State { rows, ends, newest_ts, timestamps, .. } = state;
        let is_live = |lock: &Lock| lock.txn.start_ts.millis() + lock.ttl_ms >= newest_ts.millis();
        f(ends, &Scenario { scripts: &self.scripts, timestamps, is_live: &is_live }, rows)
    }

    /// Delivers a change. Returns whether it was applied.
    fn deliver(&self, state: &mut State, change: &RowChange) -> Result<bool, Invariant> {
        if state.rows.refusal(std::slice::from_ref(change)).is_some() {
            return Ok(false);
        }
        self.with_scenario(state, |ends, case, rows| ends.apply(case, &rows.cells[index(&change.row)], change))?;
        state.rows.change(change);
        Ok(true)
    }

    /// Sends a change. Returns whether the sender gets the answer that the change was applied. If
    /// not, the sender repeats its step.
    fn send(&self, state: &mut State, sent: &Sent, delivery: Delivery) -> Result<bool, Invariant> {
        match delivery {
            Delivery::Once => self.deliver(state, &sent.change),
            Delivery::Duplicated => {
                state.duplicate(sent.clone());
                self.deliver(state, &sent.change)
            }
            Delivery::Late => {
                state.duplicate(sent.clone());
                Ok(false)
            }
        }
    }

    fn check_answer(&self, state: &mut State, start_ts: Timestamp, status: TxnStatus) -> Result<(), Invariant> {
        self.with_scenario(state, |ends, case, _| ends.check_answer(case, start_ts, status))
    }

    /// Checks the invariants that must hold in every state.
    fn check_state(&self, state: &mut State) -> Result<(), Invariant> {
        let readers = state.readers.clone();
        let newest_ts = state.newest_ts;
        self.with_scenario(state, |ends, case, rows| {
            for reader in &readers {
                let Reader::Done { read_ts, found } = reader else { continue };
                for (row, found) in found.iter().enumerate() {
                    if *found != ends.expected(case, row, *read_ts) {
                        return Err(Invariant::SnapshotsWhole);
                    }
                }
            }
            // A reader that starts here, without concurrency, checks the primary of each lock.
            for row in 0..self.rows {
                let mut decides = false;
                if let Some(lock) = lock_to_resolve(rows, row, newest_ts) {
                    let requester = OwnerLiveness::ByTtl { current_ts: newest_ts, push_above: Some(newest_ts) };
                    let request = CheckTxnStatus { row: lock.primary.clone(), txn: lock.txn, liveness: requester };
                    let primary = rows.read(index(&lock.primary), lock.txn.start_ts);
                    decides = match check_txn_status(&primary, &request) {
                        Ok(Step::Apply(_, answer) | Step::Done(answer)) => {
                            matches!(answer, TxnStatus::Committed(commit_ts) if commit_ts <= newest_ts)
                        }
                        Err(_) => return Err(Invariant::LocksResolvable),
                    };
                }
                if read(rows, row, newest_ts, decides)? != ends.expected(case, row, newest_ts) {
                    return Err(Invariant::SnapshotsWhole);
                }
            }
            let much_later = OwnerLiveness::ByTtl { current_ts: Timestamp::MAX, push_above: None };
            ends.resolvable(case, rows, much_later, true)?;
            values_there(rows)
        })
    }
}

impl Model for Shared {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let writers = self.scripts.len();
        vec![State {
            rows: Rows::new(self.rows),
            ends: TxnEnds::new(writers),
            newest_ts: Timestamp::ZERO,
            timestamps: vec![None; writers],
            writers: vec![Writer { task: Task::Begin, sending: None, ttl_ms: 0, resolver: None }; writers],
            readers: vec![Reader::Begin; self.readers],
            in_flight: Vec::new(),
            ticks_left: self.ticks,
            late_messages_left: self.late_messages,
            safe_points_left: u8::from(self.prunes),
            violation: None,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.violation.is_some() {
            return;
        }
        let deliveries: &[Delivery] = if state.late_messages_left > 0 {
            &[Delivery::Once, Delivery::Duplicated, Delivery::Late]
        } else {
            &[Delivery::Once]
        };
        for (w, writer) in state.writers.iter().enumerate() {
            let sending = writer.resolver.as_ref().map_or(&writer.sending, |resolver| &resolver.sending);
            if sending.is_some() {
                actions.extend(deliveries.iter().map(|delivery| Action::WriterSends(w, *delivery)));
            } else if writer.task != Task::Ended && !(writer.task == Task::Begin && self.has_equal_before(state, w)) {
                actions.push(Action::Writer(w));
            }
        }
        for (r, reader) in state.readers.iter().enumerate() {
            match reader {
                Reader::Reading { resolver, .. } if resolver.sending.is_some() => {
                    actions.extend(deliveries.iter().map(|delivery| Action::ReaderSends(r, *delivery)));
                }
                Reader::Done { .. } => {}
                Reader::Begin if r > 0 && state.readers[r - 1] == Reader::Begin => {}
                _ => actions.push(Action::Reader(r)),
            }
        }
        actions.extend((0..state.in_flight.len()).map(Action::Deliver));
        if state.ticks_left > 0 {
            actions.push(Action::Tick);
        }
        if state.safe_points_left > 0 {
            actions.push(Action::SafePoint);
        }
        // Records are deleted once no lock older than the safe point is left.
        let safe_point = state.rows.safe_point;
        if state.rows.locks().all(|(_, lock)| lock.txn.start_ts >= safe_point) {
            for (row, cells) in state.rows.cells.iter().enumerate() {
                let old = cells.txn_records.iter().filter(|(start_ts, _)| *start_ts < safe_point);
                actions.extend(old.map(|(start_ts, _)| Action::Prune { row, start_ts: *start_ts }));
            }
        }
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        let mut next = state.clone();
        let stepped = match action {
            Action::Writer(w) => self.writer(&mut next, w),
            Action::WriterSends(w, delivery) => self.writer_sends(&mut next, w, delivery),
            Action::Reader(r) => self.reader(&mut next, r),
            Action::ReaderSends(r, delivery) => self.reader_sends(&mut next, r, delivery),
            Action::Deliver(n) => {
                let sent = next.in_flight.remove(n);
                self.deliver(&mut next, &sent.change).map(|made| {
                    let locks = matches!(sent.change.lock, CellChange::Put(_));
                    self.coverage.hit(match (made, locks) {
                        (true, _) => "a late change is applied",
                        (false, true) => "a late lock is refused",
                        (false, false) => "a late change without a lock is refused",
                    });
                })
            }
            Action::Tick => {
                next.ticks_left -= 1;
                next.newest_ts = Timestamp::from_millis(next.newest_ts.millis() + TICK_MS);
                Ok(())
            }
            Action::SafePoint => {
                next.safe_points_left -= 1;
                next.rows.safe_point = next.next_ts();
                Ok(())
            }
            Action::Prune { row, start_ts } => {
                self.coverage.hit("a transaction record is pruned");
                next.rows.change(&delete_txn_record(key(row), start_ts));
                Ok(())
            }
        };
        if let Err(invariant) = stepped.and_then(|()| self.check_state(&mut next)) {
            next.violation = Some(invariant);
        }
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        invariants()
    }
}

impl Describe for Shared {
    fn violation(state: &State) -> Option<Invariant> {
        state.violation
    }

    fn coverage(&self) -> &Coverage {
        &self.coverage
    }

    fn describe(&self, state: &State, action: &Action) -> String {
        let writer = |w: usize| match &state.writers[w] {
            Writer { resolver: Some(resolver), .. } => format!("writer {w} resolves: {resolver:?}"),
            Writer { task, sending, .. } => format!("writer {w}: {task:?} {sending:?}"),
        };
        match *action {
            Action::Writer(w) => writer(w),
            Action::WriterSends(w, delivery) => format!("arrives {delivery:?}: {}", writer(w)),
            Action::Reader(r) => format!("reader {r}: {:?}", state.readers[r]),
            Action::ReaderSends(r, delivery) => format!("arrives {delivery:?}: reader {r}: {:?}", state.readers[r]),
            Action::Deliver(n) => format!("arrives late: {:?}", state.in_flight[n]),
            _ => format!("{action:?}"),
        }
    }

    fn show(&self, state: &State) -> String {
        let State { writers, readers, in_flight, .. } = state;
        let actors = format!("writers {writers:?}\nreaders {readers:?}\nin flight {in_flight:?}");
        format!("{}{:?}\n{actors}", state.rows.dump(), state.ends)
    }
}
