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

use std::hash::Hash;

use percolite::protocol::{
    Asker, CheckStatus, Commit, CommitPoint, Heartbeat, Prewrite, Prewritten, Refusal, Resolve, RollBack, Step,
    check_status, commit, forget, heartbeat, prewrite, resolve, roll_back,
};
use percolite::row::{Edit, Intent, Lock, Row, RowChange};
use percolite::timestamp::Timestamp;
use stateright::{Model, Property};

use crate::explore::{Sights, Told, rules};
use crate::judge::{Case, End, Fates, Named, Rule, Script, read, txn_id, values_there};
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
pub enum Fate {
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
    WriterSends(usize, Fate),
    Reader(usize),
    ReaderSends(usize, Fate),
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
    Refused(Refusal),
}

fn asked<T>(step: Result<Step<T>, Refusal>) -> Asked<T> {
    match step {
        Ok(Step::Apply(change, answer)) => Asked::Send(Sent::new(*change), answer),
        Ok(Step::Done(answer)) => Asked::Answer(answer),
        Err(why) => Asked::Refused(why),
    }
}

/// What came of an errand's step.
enum Settled {
    NotYet(Errand),
    Verdict(Option<End>),
    /// The protocol had no verdict to give.
    Failed,
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
    fn send(&self, state: &mut State, sent: &Sent, fate: Fate) -> Result<bool, Rule> {
        match fate {
            Fate::Well => self.deliver(state, &sent.change),
            Fate::Twice => {
                state.stray(sent.clone());
                self.deliver(state, &sent.change)
            }
            Fate::Late => {
                state.stray(sent.clone());
                Ok(false)
            }
        }
    }

    fn told(&self, state: &mut State, start_ts: Timestamp, verdict: CommitPoint) -> Result<(), Rule> {
        self.judged(state, |fates, case, _| fates.told(case, start_ts, verdict))
    }

    // Writers.

    fn writer(&self, state: &mut State, w: usize) -> Result<(), Rule> {
        if let Some(errand) = state.writers[w].errand.take() {
            let settled = self.errand(state, errand)?;
            return self.settled(state, w, settled);
        }
        match state.writers[w].task {
            Task::Begin => {
                let start_ts = state.draw();
                state.named[w] = Some(Named { read_ts: start_ts, start_ts });
                state.writers[w].ttl_ms = TTL_MS;
                self.turn_to(state, w, Task::Prewrite(0));
            }
            Task::Stamp => {
                let commit_ts = state.draw();
                self.turn_to(state, w, Task::Commit(commit_ts));
            }
            _ => {
                let row = self.row_of(state, w);
                let as_read = state.rows.read(row, state.named[w].expect("it has begun").start_ts);
                self.ask(state, w, &as_read)?;
            }
        }
        Ok(())
    }

    /// Of those that do the same the first begins first: any other order is the same but for their numbers.
    fn has_equal_before(&self, state: &State, w: usize) -> bool {
        (0..w).any(|before| self.scripts[before] == self.scripts[w] && state.writers[before].task == Task::Begin)
    }

    fn row_of(&self, state: &State, w: usize) -> usize {
        let writes = &self.scripts[w].writes;
        match state.writers[w].task {
            Task::Prewrite(n) | Task::Secondary(n, _) | Task::RollBack(n) => writes[n].0,
            _ => writes[0].0,
        }
    }

    fn turn_to(&self, state: &mut State, w: usize, task: Task) {
        let rows = self.scripts[w].writes.len();
        let ends = matches!(task, Task::Secondary(n, _) | Task::RollBack(n) if n == rows);
        state.writers[w].task = if ends { Task::Ended } else { task };
        state.writers[w].sending = None;
        if let Task::Prewrite(n) = task {
            if n == rows {
                state.writers[w].task = Task::Stamp;
            } else if let Asked::Send(sent, _) = asked(prewrite(&Row::default(), &self.prewrite(state, w, n))) {
                // Nothing of the row is known yet; the guards say what it must look like.
                state.writers[w].sending = Some(sent);
            }
        }
    }

    fn prewrite(&self, state: &State, w: usize, n: usize) -> Prewrite {
        let (row, mutation) = &self.scripts[w].writes[n];
        let Named { read_ts, start_ts } = state.named[w].expect("it has begun");
        Prewrite {
            row: key(*row),
            txn: txn_id(start_ts),
            read_ts,
            primary: key(self.scripts[w].primary()),
            mutation: mutation.clone(),
            sequence: 1,
            ttl_ms: state.writers[w].ttl_ms,
            min_commit_ts: start_ts.next(),
        }
    }

    /// Asks the step that the writer is at, with the row as read.
    fn ask(&self, state: &mut State, w: usize, as_read: &Row) -> Result<(), Rule> {
        let start_ts = state.named[w].expect("it has begun").start_ts;
        let (row, txn) = (key(self.row_of(state, w)), txn_id(start_ts));
        match state.writers[w].task {
            Task::Prewrite(n) => match asked(prewrite(as_read, &self.prewrite(state, w, n))) {
                Asked::Send(sent, _) => state.writers[w].sending = Some(sent),
                Asked::Answer(prewritten) => {
                    if let Prewritten::Committed(commit_ts) = prewritten {
                        self.told(state, start_ts, CommitPoint::Committed(commit_ts))?;
                    }
                    self.prewritten(state, w, n);
                }
                Asked::Refused(Refusal::Locked(lock)) => {
                    self.sights.met("a writer meets a lock");
                    state.writers[w].sending = None;
                    state.writers[w].errand = Some(errand(self.row_of(state, w), &lock, None));
                }
                Asked::Refused(why) => {
                    if matches!(why, Refusal::NewerCommit(_)) {
                        self.sights.met("a writer meets a newer commit");
                    }
                    self.roll_back(state, w)?;
                }
            },
            Task::Heartbeat(n) => {
                let age_ms = state.newest_ts.millis() - start_ts.millis();
                match asked(heartbeat(as_read, &Heartbeat { row, txn, ttl_ms: age_ms + TTL_MS })) {
                    Asked::Send(sent, ttl_ms) => {
                        state.writers[w].sending = Some(sent);
                        state.writers[w].ttl_ms = ttl_ms;
                    }
                    Asked::Answer(ttl_ms) => {
                        state.writers[w].ttl_ms = ttl_ms;
                        self.turn_to(state, w, Task::Prewrite(n));
                    }
                    Asked::Refused(_) => self.roll_back(state, w)?,
                }
            }
            Task::Commit(commit_ts) => {
                let request =
                    Commit { row, txn, commit_ts, keep_status: true, keep_replaced: true, record_holds: true };
                match asked(commit(as_read, &request)) {
                    Asked::Send(sent, _) => state.writers[w].sending = Some(sent),
                    Asked::Answer(commit_ts) => self.committed(state, w, commit_ts)?,
                    Asked::Refused(Refusal::CommitTooEarly(_)) => {
                        self.sights.met("a reader has pushed an owner above itself");
                        self.turn_to(state, w, Task::Stamp);
                    }
                    // That leaves open how it ended; whoever says "undetermined" here says nothing wrong.
                    Asked::Refused(Refusal::BelowSafePoint(_)) => {
                        self.sights.met("an owner asks after its end is forgotten");
                        self.turn_to(state, w, Task::Ended);
                    }
                    Asked::Refused(_) => {
                        self.sights.met("an owner learns that it was taken for dead");
                        self.roll_back(state, w)?;
                    }
                }
            }
            Task::Secondary(n, commit_ts) => {
                let verdict = CommitPoint::Committed(commit_ts);
                match asked(resolve(as_read, &Resolve { row, txn, verdict, shared: true })) {
                    Asked::Send(sent, ()) => state.writers[w].sending = Some(sent),
                    Asked::Answer(()) | Asked::Refused(_) => self.turn_to(state, w, Task::Secondary(n + 1, commit_ts)),
                }
            }
            Task::RollBack(n) => match asked(roll_back(as_read, &RollBack { row, txn })) {
                Asked::Send(sent, ()) => state.writers[w].sending = Some(sent),
                Asked::Answer(()) | Asked::Refused(_) => self.turn_to(state, w, Task::RollBack(n + 1)),
            },
            Task::Begin | Task::Stamp | Task::Ended => {}
        }
        Ok(())
    }

    fn prewritten(&self, state: &mut State, w: usize, n: usize) {
        let start_ts = state.named[w].expect("it has begun").start_ts;
        let age_ms = state.newest_ts.millis() - start_ts.millis();
        let more = n + 1 < self.scripts[w].writes.len();
        let due = more && age_ms + TTL_MS / 2 >= state.writers[w].ttl_ms;
        self.turn_to(state, w, if due { Task::Heartbeat(n + 1) } else { Task::Prewrite(n + 1) });
    }

    fn committed(&self, state: &mut State, w: usize, commit_ts: Timestamp) -> Result<(), Rule> {
        let start_ts = state.named[w].expect("it has begun").start_ts;
        self.told(state, start_ts, CommitPoint::Committed(commit_ts))?;
        self.turn_to(state, w, Task::Secondary(1, commit_ts));
        Ok(())
    }

    /// The caller is told that nothing of the transaction will remain.
    fn roll_back(&self, state: &mut State, w: usize) -> Result<(), Rule> {
        self.judged(state, |fates, case, _| fates.end(case, w, End::RolledBack))?;
        self.turn_to(state, w, Task::RollBack(0));
        Ok(())
    }

    fn settled(&self, state: &mut State, w: usize, settled: Settled) -> Result<(), Rule> {
        match settled {
            Settled::NotYet(errand) => state.writers[w].errand = Some(errand),
            // The owner lives.
            Settled::Verdict(None) | Settled::Failed => self.roll_back(state, w)?,
            Settled::Verdict(Some(_)) => {
                let task = state.writers[w].task;
                self.turn_to(state, w, task);
            }
        }
        Ok(())
    }

    fn writer_sends(&self, state: &mut State, w: usize, fate: Fate) -> Result<(), Rule> {
        if let Some(errand) = state.writers[w].errand.take() {
            let settled = self.errand_sends(state, errand, fate)?;
            return self.settled(state, w, settled);
        }
        let Some(sent) = state.writers[w].sending.take() else { return Ok(()) };
        if self.send(state, &sent, fate)? {
            return self.arrived(state, w);
        }
        if fate != Fate::Late {
            // The engine answers with the row as it found it.
            let as_found = state.rows.read(index(&sent.change.row), sent.change.start_ts);
            self.ask(state, w, &as_found)?;
        }
        Ok(())
    }

    fn arrived(&self, state: &mut State, w: usize) -> Result<(), Rule> {
        match state.writers[w].task {
            Task::Prewrite(n) => self.prewritten(state, w, n),
            Task::Heartbeat(n) => {
                self.sights.met("a sign of life arrives");
                self.turn_to(state, w, Task::Prewrite(n));
            }
            Task::Commit(commit_ts) => self.committed(state, w, commit_ts)?,
            Task::Secondary(n, commit_ts) => self.turn_to(state, w, Task::Secondary(n + 1, commit_ts)),
            Task::RollBack(n) => self.turn_to(state, w, Task::RollBack(n + 1)),
            Task::Begin | Task::Stamp | Task::Ended => {}
        }
        Ok(())
    }

    // Errands.

    fn errand(&self, state: &mut State, errand: Errand) -> Result<Settled, Rule> {
        let row = if errand.answered { errand.row } else { errand.primary };
        let as_read = state.rows.read(row, errand.start_ts);
        self.errand_asks(state, errand, &as_read)
    }

    fn errand_asks(&self, state: &mut State, mut errand: Errand, as_read: &Row) -> Result<Settled, Rule> {
        let (start_ts, txn) = (errand.start_ts, txn_id(errand.start_ts));
        if !errand.answered {
            let asker = Asker::Shared { current_ts: state.newest_ts, push_above: errand.push_above };
            return match asked(check_status(as_read, &CheckStatus { row: key(errand.primary), txn, asker })) {
                Asked::Send(sent, answer) => {
                    errand.answer = end_of(answer);
                    errand.sending = Some(sent);
                    Ok(Settled::NotYet(errand))
                }
                Asked::Answer(answer) => {
                    errand.answer = end_of(answer);
                    self.answered(state, errand)
                }
                // Records may be gone only when the lock is.
                Asked::Refused(_) => {
                    let locked = state.rows.cells[errand.row].lock.as_ref().is_some_and(|lock| lock.txn == txn);
                    if locked { Err(Rule::LocksResolvable) } else { Ok(Settled::Failed) }
                }
            };
        }
        let verdict = point_of(errand.answer);
        match asked(resolve(as_read, &Resolve { row: key(errand.row), txn, verdict, shared: true })) {
            Asked::Send(sent, ()) => {
                errand.sending = Some(sent);
                Ok(Settled::NotYet(errand))
            }
            Asked::Answer(()) => Ok(Settled::Verdict(errand.answer)),
            Asked::Refused(_) => {
                self.told(state, start_ts, verdict)?;
                Err(Rule::LocksResolvable)
            }
        }
    }

    /// The primary has spoken.
    fn answered(&self, state: &mut State, mut errand: Errand) -> Result<Settled, Rule> {
        self.told(state, errand.start_ts, point_of(errand.answer))?;
        if errand.answer.is_none() {
            return Ok(Settled::Verdict(None));
        }
        (errand.answered, errand.sending) = (true, None);
        Ok(Settled::NotYet(errand))
    }

    fn errand_sends(&self, state: &mut State, mut errand: Errand, fate: Fate) -> Result<Settled, Rule> {
        let Some(sent) = errand.sending.take() else { return Ok(Settled::NotYet(errand)) };
        if self.send(state, &sent, fate)? {
            if !errand.answered {
                return self.answered(state, errand);
            }
            self.sights.met(match errand.answer {
                Some(End::Committed(_)) => "an errand rolls a row forward",
                _ => "an errand rolls a row back",
            });
            return Ok(Settled::Verdict(errand.answer));
        }
        if fate == Fate::Late {
            return Ok(Settled::NotYet(errand));
        }
        self.sights.met("an errand comes too late");
        let as_found = state.rows.read(index(&sent.change.row), sent.change.start_ts);
        self.errand_asks(state, errand, &as_found)
    }

    // Readers.

    fn reader(&self, state: &mut State, r: usize) -> Result<(), Rule> {
        let next = match state.readers[r].clone() {
            Reader::Begin => Reader::Stamped(state.draw()),
            Reader::Stamped(read_ts) => self.read_on(state.rows.clone(), read_ts, Vec::new())?,
            Reader::Reading { read_ts, view, found, errand } => {
                let settled = self.errand(state, errand)?;
                self.has_settled(settled, view, read_ts, found)?
            }
            done @ Reader::Done { .. } => done,
        };
        state.readers[r] = next;
        Ok(())
    }

    fn reader_sends(&self, state: &mut State, r: usize, fate: Fate) -> Result<(), Rule> {
        if let Reader::Reading { read_ts, view, found, errand } = state.readers[r].clone() {
            let settled = self.errand_sends(state, errand, fate)?;
            state.readers[r] = self.has_settled(settled, view, read_ts, found)?;
        }
        Ok(())
    }

    fn has_settled(
        &self,
        settled: Settled,
        view: Rows,
        read_ts: Timestamp,
        mut found: Vec<Option<Timestamp>>,
    ) -> Result<Reader, Rule> {
        let decides = match settled {
            Settled::NotYet(errand) => return Ok(Reader::Reading { read_ts, view, found, errand }),
            // It is told that its snapshot is too old, and has read nothing.
            Settled::Failed => {
                self.sights.met("a reader comes after its answer is forgotten");
                return Ok(Reader::Done { read_ts, found: Vec::new() });
            }
            Settled::Verdict(end) => matches!(end, Some(End::Committed(commit_ts)) if commit_ts <= read_ts),
        };
        if decides {
            self.sights.met("a reader reads what a lock intends");
        }
        found.push(read(&view, found.len(), read_ts, decides)?);
        self.read_on(view, read_ts, found)
    }

    /// Reads up to the next lock that has a say.
    fn read_on(&self, view: Rows, read_ts: Timestamp, mut found: Vec<Option<Timestamp>>) -> Result<Reader, Rule> {
        while found.len() < self.rows {
            let row = found.len();
            match asks_about(&view, row, read_ts) {
                Some(lock) => {
                    let errand = errand(row, lock, Some(read_ts));
                    return Ok(Reader::Reading { read_ts, view, found, errand });
                }
                None => {
                    if view.cells[row].write.as_ref().is_some_and(|newest| newest.commit_ts > read_ts) {
                        self.sights.met("a reader reads past a newer version");
                    }
                    found.push(read(&view, row, read_ts, false)?);
                }
            }
        }
        Ok(Reader::Done { read_ts, found })
    }

    // All.

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
                    let asker = Asker::Shared { current_ts: newest_ts, push_above: Some(newest_ts) };
                    let request = CheckStatus { row: lock.primary.clone(), txn: lock.txn, asker };
                    let primary = rows.read(index(&lock.primary), lock.txn.start_ts);
                    decides = match check_status(&primary, &request) {
                        Ok(Step::Apply(_, answer) | Step::Done(answer)) => {
                            matches!(answer, CommitPoint::Committed(commit_ts) if commit_ts <= newest_ts)
                        }
                        Err(_) => return Err(Rule::LocksResolvable),
                    };
                }
                if read(rows, row, newest_ts, decides)? != fates.expected(case, row, newest_ts) {
                    return Err(Rule::SnapshotsWhole);
                }
            }
            let much_later = Asker::Shared { current_ts: Timestamp::MAX, push_above: None };
            fates.resolvable(case, rows, much_later, true)?;
            values_there(rows)
        })
    }
}

/// The lock in the row that a reader has to ask about.
fn asks_about(view: &Rows, row: usize, read_ts: Timestamp) -> Option<&Lock> {
    view.cells[row].lock.as_ref().filter(|lock| lock.intent != Intent::Hold && lock.txn.start_ts <= read_ts)
}

fn errand(row: usize, lock: &Lock, push_above: Option<Timestamp>) -> Errand {
    let (start_ts, primary) = (lock.txn.start_ts, index(&lock.primary));
    Errand { row, start_ts, primary, push_above, answer: None, answered: false, sending: None }
}

fn end_of(point: CommitPoint) -> Option<End> {
    match point {
        CommitPoint::Pending => None,
        CommitPoint::Committed(commit_ts) => Some(End::Committed(commit_ts)),
        CommitPoint::RolledBack => Some(End::RolledBack),
    }
}

fn point_of(end: Option<End>) -> CommitPoint {
    match end {
        None => CommitPoint::Pending,
        Some(End::Committed(commit_ts)) => CommitPoint::Committed(commit_ts),
        Some(End::RolledBack) => CommitPoint::RolledBack,
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
        let fates = |stray: bool| if stray { [Fate::Well, Fate::Twice, Fate::Late].as_slice() } else { &[Fate::Well] };
        let fates = fates(state.strays_left > 0);
        for (w, writer) in state.writers.iter().enumerate() {
            let sending = writer.errand.as_ref().map_or(&writer.sending, |errand| &errand.sending);
            if sending.is_some() {
                actions.extend(fates.iter().map(|fate| Action::WriterSends(w, *fate)));
            } else if writer.task != Task::Ended && !(writer.task == Task::Begin && self.has_equal_before(state, w)) {
                actions.push(Action::Writer(w));
            }
        }
        for (r, reader) in state.readers.iter().enumerate() {
            match reader {
                Reader::Reading { errand, .. } if errand.sending.is_some() => {
                    actions.extend(fates.iter().map(|fate| Action::ReaderSends(r, *fate)));
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
            Action::WriterSends(w, fate) => self.writer_sends(&mut next, w, fate),
            Action::Reader(r) => self.reader(&mut next, r),
            Action::ReaderSends(r, fate) => self.reader_sends(&mut next, r, fate),
            Action::Deliver(n) => {
                let sent = next.bag.remove(n);
                self.deliver(&mut next, &sent.change).map(|made| {
                    let locks = matches!(sent.change.lock, Edit::Put(_));
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
                next.rows.change(&forget(key(row), start_ts));
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
            Action::WriterSends(w, fate) => format!("arrives {fate:?}: {}", writer(w)),
            Action::Reader(r) => format!("reader {r}: {:?}", state.readers[r]),
            Action::ReaderSends(r, fate) => format!("arrives {fate:?}: reader {r}: {:?}", state.readers[r]),
            Action::Deliver(n) => format!("arrives after all: {:?}", state.bag[n]),
            _ => format!("{action:?}"),
        }
    }

    fn show(&self, state: &State) -> String {
        format!("{state:#?}")
    }
}
