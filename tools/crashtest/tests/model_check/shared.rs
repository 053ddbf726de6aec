//! Several clients of one engine, as `coordinator/shared` drives them.
//!
//! There is no pipeline here. A client takes its commit timestamp before it commits its primary, changes one row at a time, and
//! whoever meets its locks goes by their time to live. Asking a step (the row is read, the protocol decides) and
//! sending the change are two actions, so everything can happen in between. A change that is sent may arrive twice, or
//! late while its sender hears nothing and asks again: then it lies in a bag from which it may be delivered at any
//! later time, or never. An owner that dies needs no action of its own: it is one that takes no further step, and
//! there is a state for every place where it may have stopped.
//!
//! Readers take a timestamp first and a view later. What they have read is held against all that is committed afterwards. Beside
//! them, in every state, a reader that begins there reads everything.

mod errands;
mod readers;
mod writers;

use std::hash::Hash;

use percolite::protocol::{
    CheckTxnStatus, OwnerLiveness, Step, StepError, TransactionStatus, check_txn_status, delete_txn_record,
};
use percolite::row::{CellChange, Lock, RowChange};
use percolite::timestamp::Timestamp;
use stateright::{Model, Property};

use self::readers::asks_about;
use crate::explore::{Sights, Told, rules};
use crate::judge::{Case, End, Fates, Named, Rule, Script, read, values_there};
use crate::rows::{Rows, Sent, index, key};

/// Milliseconds that a lock lives without a sign of life.
const TTL_MS: u64 = 1;
/// By how much the clock moves at once: every lock that had no sign of life since is expired.
const TICK_MS: u64 = 2;

/// A configuration.
pub struct Shared {
    pub scripts: Vec<Script>,
    pub rows: usize,
    pub readers: usize,
    /// How often the clock moves.
    pub ticks: u8,
    /// How many changes arrive late or twice.
    pub strays: u8,
    /// Whether the safe point moves up and ends are forgotten.
    pub collects: bool,
    pub sights: Sights,
}

/// What a writer is doing.
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
    /// Decided, and not yet known to have arrived.
    sending: Option<Sent>,
    /// Of its locks.
    ttl_ms: u64,
    errand: Option<Errand>,
}

/// From a lock to its verdict and back.
#[derive(Clone, Debug, PartialEq, Hash)]
struct Errand {
    row: usize,
    start_ts: Timestamp,
    primary: usize,
    push_above: Option<Timestamp>,
    /// What the primary says, once it has been asked, or will say when the change has arrived.
    answer: Option<End>,
    /// Whether that is known, and the lock itself is being resolved.
    answered: bool,
    sending: Option<Sent>,
}

#[derive(Clone, Debug, PartialEq, Hash)]
enum Reader {
    Begin,
    Stamped(Timestamp),
    /// Has read the rows before the one whose lock it asks about.
    Reading {
        read_ts: Timestamp,
        view: Rows,
        found: Vec<Option<Timestamp>>,
        errand: Errand,
    },
    Done {
        read_ts: Timestamp,
        found: Vec<Option<Timestamp>>,
    },
}

#[derive(Clone, Debug, PartialEq, Hash)]
pub struct State {
    rows: Rows,
    fates: Fates,
    newest_ts: Timestamp,
    named: Vec<Option<Named>>,
    writers: Vec<Writer>,
    readers: Vec<Reader>,
    /// Under way without anybody waiting, in order.
    bag: Vec<Sent>,
    ticks_left: u8,
    strays_left: u8,
    safe_points_left: u8,
    broken: Option<Rule>,
}

impl State {
    fn draw(&mut self) -> Timestamp {
        self.newest_ts = self.newest_ts.next();
        self.newest_ts
    }

    fn stray(&mut self, sent: Sent) {
        self.strays_left -= 1;
        self.bag.push(sent);
        self.bag.sort();
    }
}

/// How a change travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Travel {
    /// It arrives and is answered.
    Well,
    /// So it does, and it will arrive once more.
    Twice,
    /// It is under way; its sender gives up waiting and asks again.
    Late,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// A writer's next step that sends nothing.
    Writer(usize),
    WriterSends(usize, Travel),
    Reader(usize),
    ReaderSends(usize, Travel),
    Deliver(usize),
    Tick,
    SafePoint,
    Forget {
        row: usize,
        start_ts: Timestamp,
    },
}

/// What came of asking a step.
enum Asked<T> {
    Send(Sent, T),
    Answer(T),
    Refused(StepError),
}

fn asked<T>(step: Result<Step<T>, StepError>) -> Asked<T> {
    match step {
        Ok(Step::Apply(change, answer)) => Asked::Send(Sent::new(change), answer),
        Ok(Step::Done(answer)) => Asked::Answer(answer),
        Err(why) => Asked::Refused(why),
    }
}

impl Shared {
    fn judged<T>(&self, state: &mut State, judge: impl FnOnce(&mut Fates, &Case<'_>, &Rows) -> T) -> T {
        let State { rows, fates, newest_ts, named, .. } = state;
        let lives = |lock: &Lock| lock.txn.start_ts.millis() + lock.ttl_ms >= newest_ts.millis();
        judge(fates, &Case { scripts: &self.scripts, named, lives: &lives }, rows)
    }

    /// A change arrives. The answer is whether it was made.
    fn deliver(&self, state: &mut State, change: &RowChange) -> Result<bool, Rule> {
        if state.rows.refusal(std::slice::from_ref(change)).is_some() {
            return Ok(false);
        }
        self.judged(state, |fates, case, rows| fates.see(case, &rows.cells[index(&change.row)], change))?;
        state.rows.change(change);
        Ok(true)
    }

    /// Sends a change. The answer is whether its sender knows it made; if not, it asks its step again.
    fn send(&self, state: &mut State, sent: &Sent, travel: Travel) -> Result<bool, Rule> {
        match travel {
            Travel::Well => self.deliver(state, &sent.change),
            Travel::Twice => {
                state.stray(sent.clone());
                self.deliver(state, &sent.change)
            }
            Travel::Late => {
                state.stray(sent.clone());
                Ok(false)
            }
        }
    }

    fn told(&self, state: &mut State, start_ts: Timestamp, verdict: TransactionStatus) -> Result<(), Rule> {
        self.judged(state, |fates, case, _| fates.told(case, start_ts, verdict))
    }

    /// What must hold in every state.
    fn examine(&self, state: &mut State) -> Result<(), Rule> {
        let readers = state.readers.clone();
        let newest_ts = state.newest_ts;
        self.judged(state, |fates, case, rows| {
            for reader in &readers {
                let Reader::Done { read_ts, found } = reader else { continue };
                for (row, found) in found.iter().enumerate() {
                    if *found != fates.expected(case, row, *read_ts) {
                        return Err(Rule::SnapshotsWhole);
                    }
                }
            }
            // A reader that begins here, with nobody else about, asks each lock's primary.
            for row in 0..self.rows {
                let mut decides = false;
                if let Some(lock) = asks_about(rows, row, newest_ts) {
                    let asker = OwnerLiveness::ByTtl { current_ts: newest_ts, push_above: Some(newest_ts) };
                    let request = CheckTxnStatus { row: lock.primary.clone(), txn: lock.txn, liveness: asker };
                    let primary = rows.read(index(&lock.primary), lock.txn.start_ts);
                    decides = match check_txn_status(&primary, &request) {
                        Ok(Step::Apply(_, answer) | Step::Done(answer)) => {
                            matches!(answer, TransactionStatus::Committed(commit_ts) if commit_ts <= newest_ts)
                        }
                        Err(_) => return Err(Rule::LocksResolvable),
                    };
                }
                if read(rows, row, newest_ts, decides)? != fates.expected(case, row, newest_ts) {
                    return Err(Rule::SnapshotsWhole);
                }
            }
            let much_later = OwnerLiveness::ByTtl { current_ts: Timestamp::MAX, push_above: None };
            fates.resolvable(case, rows, much_later, true)?;
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
            fates: Fates::new(writers),
            newest_ts: Timestamp::ZERO,
            named: vec![None; writers],
            writers: vec![Writer { task: Task::Begin, sending: None, ttl_ms: 0, errand: None }; writers],
            readers: vec![Reader::Begin; self.readers],
            bag: Vec::new(),
            ticks_left: self.ticks,
            strays_left: self.strays,
            safe_points_left: u8::from(self.collects),
            broken: None,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.broken.is_some() {
            return;
        }
        let travels: &[Travel] =
            if state.strays_left > 0 { &[Travel::Well, Travel::Twice, Travel::Late] } else { &[Travel::Well] };
        for (w, writer) in state.writers.iter().enumerate() {
            let sending = writer.errand.as_ref().map_or(&writer.sending, |errand| &errand.sending);
            if sending.is_some() {
                actions.extend(travels.iter().map(|travel| Action::WriterSends(w, *travel)));
            } else if writer.task != Task::Ended && !(writer.task == Task::Begin && self.has_equal_before(state, w)) {
                actions.push(Action::Writer(w));
            }
        }
        for (r, reader) in state.readers.iter().enumerate() {
            match reader {
                Reader::Reading { errand, .. } if errand.sending.is_some() => {
                    actions.extend(travels.iter().map(|travel| Action::ReaderSends(r, *travel)));
                }
                Reader::Done { .. } => {}
                Reader::Begin if r > 0 && state.readers[r - 1] == Reader::Begin => {}
                _ => actions.push(Action::Reader(r)),
            }
        }
        actions.extend((0..state.bag.len()).map(Action::Deliver));
        if state.ticks_left > 0 {
            actions.push(Action::Tick);
        }
        if state.safe_points_left > 0 {
            actions.push(Action::SafePoint);
        }
        // Records go when no lock older than the safe point is left.
        let safe_point = state.rows.safe_point;
        if state.rows.locks().all(|(_, lock)| lock.txn.start_ts >= safe_point) {
            for (row, cells) in state.rows.cells.iter().enumerate() {
                let old = cells.statuses.iter().filter(|(start_ts, _)| *start_ts < safe_point);
                actions.extend(old.map(|(start_ts, _)| Action::Forget { row, start_ts: *start_ts }));
            }
        }
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        let mut next = state.clone();
        let stepped = match action {
            Action::Writer(w) => self.writer(&mut next, w),
            Action::WriterSends(w, travel) => self.writer_sends(&mut next, w, travel),
            Action::Reader(r) => self.reader(&mut next, r),
            Action::ReaderSends(r, travel) => self.reader_sends(&mut next, r, travel),
            Action::Deliver(n) => {
                let sent = next.bag.remove(n);
                self.deliver(&mut next, &sent.change).map(|made| {
                    let locks = matches!(sent.change.lock, CellChange::Put(_));
                    self.sights.met(match (made, locks) {
                        (true, _) => "a late change is made",
                        (false, true) => "a late lock is refused",
                        (false, false) => "a late change that locks nothing is refused",
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
                next.rows.safe_point = next.draw();
                Ok(())
            }
            Action::Forget { row, start_ts } => {
                self.sights.met("an end is forgotten");
                next.rows.change(&delete_txn_record(key(row), start_ts));
                Ok(())
            }
        };
        if let Err(rule) = stepped.and_then(|()| self.examine(&mut next)) {
            next.broken = Some(rule);
        }
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        rules()
    }
}

impl Told for Shared {
    fn broken(state: &State) -> Option<Rule> {
        state.broken
    }

    fn sights(&self) -> &Sights {
        &self.sights
    }

    fn describe(&self, state: &State, action: &Action) -> String {
        let writer = |w: usize| match &state.writers[w] {
            Writer { errand: Some(errand), .. } => format!("writer {w} on an errand: {errand:?}"),
            Writer { task, sending, .. } => format!("writer {w}: {task:?} {sending:?}"),
        };
        match *action {
            Action::Writer(w) => writer(w),
            Action::WriterSends(w, travel) => format!("arrives {travel:?}: {}", writer(w)),
            Action::Reader(r) => format!("reader {r}: {:?}", state.readers[r]),
            Action::ReaderSends(r, travel) => format!("arrives {travel:?}: reader {r}: {:?}", state.readers[r]),
            Action::Deliver(n) => format!("arrives after all: {:?}", state.bag[n]),
            _ => format!("{action:?}"),
        }
    }

    fn show(&self, state: &State) -> String {
        let State { writers, readers, bag, .. } = state;
        let actors = format!("writers {writers:?}\nreaders {readers:?}\nunder way {bag:?}");
        format!("{}{:?}\n{actors}", state.rows.show(), state.fates)
    }
}
