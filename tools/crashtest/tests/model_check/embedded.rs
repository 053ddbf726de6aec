//! One process that has its engine for itself, as `coordinator/embedded` drives it.
//!
//! Every change passes through one pipeline, which stamps commits and writes an ordered log. Clients run their transactions in
//! the coordinator's own steps: open a view, take a name, prewrite group by group, commit point, with all rows or some, the others; or
//! one phase; or release what was locked in vain. A sync makes the log so far durable, and a client is answered only
//! then. A crash cuts the log anywhere at or after the last sync; all that memory knew is gone, and in the next life
//! errands of readers and of the sweep meet the locks that are left. They are also what a writer does about an orphan in
//! its way, so a writer here just waits for one of them.
//!
//! In every state a reader opens a view and must see exactly what is committed.

mod clients;
mod recovery;

use std::hash::Hash;
use std::sync::Arc;

use percolite::protocol::{OwnerLiveness, TransactionStatus, txn_status_or_rolled_back};
use percolite::row::{Lock, LockType, Precondition, RowChange};
use percolite::timestamp::Timestamp;
use stateright::{Model, Property};

use crate::explore::{Coverage, Describe, rules};
use crate::rows::{Rows, Sent, index, key};
use crate::spec::{End, Invariant, Scenario, Script, TxnEnds, TxnTimestamps, read, values_there};

/// A configuration.
pub struct Embedded {
    pub scripts: Vec<Script>,
    pub rows: usize,
    /// The most rows that one group changes.
    pub batch_rows: usize,
    /// How many rows are committed by the change with the commit point.
    pub rows_with_primary: usize,
    pub crashes: u8,
    /// How many resolve locks at the same time.
    pub resolvers: usize,
    pub coverage: Coverage,
}

/// The rows after some write to the log, and how transactions have ended according to it.
#[derive(Clone, Debug, PartialEq, Hash)]
struct LogEntry {
    rows: Rows,
    ends: TxnEnds,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Phase {
    Idle,
    Begun {
        read_ts: Timestamp,
    },
    /// In one phase.
    OnePhase,
    Prewriting {
        group: usize,
    },
    CommitPoint,
    Secondaries {
        group: usize,
        commit_ts: Timestamp,
    },
    Releasing {
        group: usize,
        groups: usize,
    },
    Unacknowledged(Timestamp),
    Acknowledged(Timestamp),
    Refused,
    Dead,
}

/// Somebody's way from a lock to its verdict and back. What was read may be old when it is used.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Resolver {
    None,
    Met { row: usize, start_ts: Timestamp, primary: usize },
    Ending { row: usize, start_ts: Timestamp, primary: usize, change: Sent },
    Judged { row: usize, start_ts: Timestamp, status: Option<Timestamp> },
    Resolving { row: usize, start_ts: Timestamp, status: Option<Timestamp>, change: Sent },
}

#[derive(Clone, Debug, PartialEq, Hash)]
pub struct State {
    /// What a crash may leave: the newest that is durable, then everything written since.
    log: Vec<Arc<LogEntry>>,
    phases: Vec<Phase>,
    timestamps: Vec<Option<TxnTimestamps>>,
    resolvers: Vec<Resolver>,
    /// The newest timestamp handed out. Its lease is durable, so a crash does not take it back.
    newest_ts: Timestamp,
    visible_ts: Timestamp,
    opened_at: Timestamp,
    /// What the pipeline remembers of each row's last commit, holds included.
    last_commits: Vec<Timestamp>,
    orphans: bool,
    swept: bool,
    crashes_left: u8,
    violation: Option<Invariant>,
}

impl State {
    fn now(&self) -> &LogEntry {
        self.log.last().expect("the log is never empty")
    }

    fn draw(&mut self) -> Timestamp {
        self.newest_ts = self.newest_ts.next();
        self.newest_ts
    }

    fn write(&mut self, entry: LogEntry) {
        if self.crashes_left == 0 {
            // Nobody will see anything but the newest any more.
            self.log.clear();
        }
        self.log.push(Arc::new(entry));
    }

    fn committed_with_locks(&self, start_ts: Timestamp) -> Option<Timestamp> {
        self.phases.iter().zip(&self.timestamps).find_map(|(phase, timestamps)| match (phase, timestamps) {
            (Phase::Secondaries { commit_ts, .. }, Some(timestamps)) if timestamps.start_ts == start_ts => {
                Some(*commit_ts)
            }
            _ => None,
        })
    }

    fn is_orphan(&self, start_ts: Timestamp) -> bool {
        start_ts < self.opened_at
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Client(usize),
    Acknowledge(usize),
    Sync,
    Crash { keep: usize },
    MeetLock { resolver: usize, row: usize },
    Resolve(usize),
    Sweep,
}

/// What a step of the model comes to: nothing to do now, or done, or a rule is broken.
type Stepped = Result<bool, Invariant>;

impl Embedded {
    fn with_scenario<T>(&self, state: &State, judge: impl FnOnce(&Scenario<'_>) -> T) -> T {
        let is_live = |lock: &Lock| !state.is_orphan(lock.txn.start_ts);
        judge(&Scenario { scripts: &self.scripts, timestamps: &state.timestamps, is_live: &is_live })
    }

    /// The pipeline: checks the guards, stamps a commit, writes, publishes. The answer is the row that was refused.
    fn submit(
        &self,
        state: &mut State,
        mut changes: Vec<RowChange>,
        commits: Option<usize>,
    ) -> Result<Result<Timestamp, usize>, Invariant> {
        if let Some(row) = state.now().rows.refusal(&changes).or_else(|| in_conflict_cache(state, &changes)) {
            return Ok(Err(row));
        }
        let mut entry = state.now().clone();
        let mut commit_ts = Timestamp::ZERO;
        if let Some(client) = commits {
            commit_ts = state.draw();
            state.visible_ts = commit_ts;
            changes.iter_mut().for_each(|change| change.set_commit_ts(commit_ts));
            self.with_scenario(state, |case| entry.ends.end(case, client, End::Committed(commit_ts)))?;
            for change in &changes {
                state.last_commits[index(&change.row)] = commit_ts;
            }
        }
        for change in &changes {
            self.with_scenario(state, |case| entry.ends.apply(case, &entry.rows.cells[index(&change.row)], change))?;
            entry.rows.change(change);
        }
        state.write(entry);
        Ok(Ok(commit_ts))
    }

    /// What must hold in every state.
    fn check_state(&self, state: &State) -> Result<(), Invariant> {
        let LogEntry { rows, ends } = state.now();
        self.with_scenario(state, |case| {
            let check_locks = state.orphans || state.phases.iter().any(|p| matches!(p, Phase::Secondaries { .. }));
            for row in 0..self.rows {
                let lock =
                    rows.cells[row].lock.as_ref().filter(|lock| check_locks && lock.lock_type != LockType::LockOnly);
                let decides = lock.is_some_and(|lock| {
                    let primary = rows.read(index(&lock.primary), lock.txn.start_ts);
                    matches!(txn_status_or_rolled_back(&primary, lock.txn), TransactionStatus::Committed(_))
                });
                if read(rows, row, state.visible_ts, decides)? != ends.expected(case, row, state.visible_ts) {
                    return Err(Invariant::SnapshotsWhole);
                }
            }
            ends.resolvable(case, rows, OwnerLiveness::Dead, false)
        })?;
        values_there(rows)?;
        for (client, phase) in state.phases.iter().enumerate() {
            if let Phase::Acknowledged(commit_ts) = phase
                && ends.end_of(client) != Some(End::Committed(*commit_ts))
            {
                return Err(Invariant::AcknowledgedSurvives);
            }
        }
        let over = |phase: &Phase| {
            matches!(
                phase,
                Phase::Idle | Phase::Acknowledged(_) | Phase::Unacknowledged(_) | Phase::Refused | Phase::Dead
            )
        };
        let quiet =
            state.swept && state.phases.iter().all(over) && state.resolvers.iter().all(|e| *e == Resolver::None);
        let left = rows.cells.iter().any(|cells| cells.lock.is_some() || !cells.txn_records.is_empty());
        if quiet && left {
            return Err(Invariant::NothingLeft);
        }
        Ok(())
    }
}

/// The row of which the pipeline remembers a commit, or a hold, that the guards do not allow.
fn in_conflict_cache(state: &State, changes: &[RowChange]) -> Option<usize> {
    let newer = changes.iter().find(|change| {
        let last = state.last_commits[index(&change.row)];
        change
            .preconditions
            .iter()
            .any(|precondition| matches!(precondition, Precondition::NoCommitAfter(ts) if last > *ts))
    });
    newer.map(|change| index(&change.row))
}

impl Model for Embedded {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let clients = self.scripts.len();
        let first = LogEntry { rows: Rows::new(self.rows), ends: TxnEnds::new(clients) };
        let opened_at = Timestamp::from_u64(1);
        vec![State {
            log: vec![Arc::new(first)],
            phases: vec![Phase::Idle; clients],
            timestamps: vec![None; clients],
            resolvers: vec![Resolver::None; self.resolvers],
            newest_ts: opened_at,
            visible_ts: opened_at,
            opened_at,
            last_commits: vec![Timestamp::ZERO; self.rows],
            orphans: false,
            swept: true,
            crashes_left: self.crashes,
            violation: None,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.violation.is_some() {
            return;
        }
        for (client, phase) in state.phases.iter().enumerate() {
            match phase {
                Phase::Unacknowledged(_) if state.log.len() == 1 => actions.push(Action::Acknowledge(client)),
                Phase::Unacknowledged(_) | Phase::Acknowledged(_) | Phase::Refused | Phase::Dead => {}
                _ => actions.push(Action::Client(client)),
            }
        }
        for (resolver, doing) in state.resolvers.iter().enumerate() {
            if *doing != Resolver::None {
                actions.push(Action::Resolve(resolver));
                continue;
            }
            for (row, lock) in state.now().rows.locks() {
                if state.is_orphan(lock.txn.start_ts) || state.committed_with_locks(lock.txn.start_ts).is_some() {
                    actions.push(Action::MeetLock { resolver, row });
                }
            }
        }
        if !state.swept {
            actions.push(Action::Sweep);
        }
        if state.log.len() > 1 {
            actions.push(Action::Sync);
        }
        if state.crashes_left > 0 {
            actions.extend((0..state.log.len()).map(|keep| Action::Crash { keep }));
        }
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        let mut next = state.clone();
        let stepped = match action {
            Action::Client(client) => self.client(&mut next, client),
            Action::Acknowledge(client) => {
                if let Phase::Unacknowledged(commit_ts) = next.phases[client] {
                    next.phases[client] = Phase::Acknowledged(commit_ts);
                }
                Ok(true)
            }
            Action::Sync => {
                next.log.drain(..state.log.len() - 1);
                Ok(true)
            }
            Action::Crash { keep } => {
                self.crash(&mut next, keep);
                Ok(true)
            }
            Action::MeetLock { resolver, row } => {
                let lock = next.now().rows.cells[row].lock.as_ref()?;
                let (start_ts, primary) = (lock.txn.start_ts, index(&lock.primary));
                next.resolvers[resolver] = Resolver::Met { row, start_ts, primary };
                Ok(true)
            }
            Action::Resolve(resolver) => self.resolver_step(&mut next, resolver),
            Action::Sweep => self.sweep(&mut next),
        };
        match stepped.and_then(|stepped| if stepped { self.check_state(&next).map(|()| true) } else { Ok(false) }) {
            Ok(false) => return None,
            Ok(true) => {}
            Err(rule) => next.violation = Some(rule),
        }
        // Errands differ in nothing but what they are doing.
        next.resolvers.sort();
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        rules()
    }
}

impl Describe for Embedded {
    fn violation(state: &State) -> Option<Invariant> {
        state.violation
    }

    fn coverage(&self) -> &Coverage {
        &self.coverage
    }

    fn describe(&self, state: &State, action: &Action) -> String {
        match *action {
            Action::Client(client) => format!("client {client}: {:?}", state.phases[client]),
            Action::Acknowledge(client) => format!("client {client} is answered: {:?}", state.phases[client]),
            Action::Resolve(resolver) => format!("an errand goes on: {:?}", state.resolvers[resolver]),
            Action::Crash { keep } => {
                format!("crash: {} of {} writes are lost", state.log.len() - 1 - keep, state.log.len() - 1)
            }
            Action::MeetLock { row, .. } => format!("an errand meets the lock on {:?}", key(row)),
            Action::Sync | Action::Sweep => format!("{action:?}"),
        }
    }

    fn show(&self, state: &State) -> String {
        let State { phases, resolvers, visible_ts, opened_at, .. } = state;
        let actors = format!("clients {phases:?}\nerrands {resolvers:?}\nvisible {visible_ts}, opened at {opened_at}");
        format!("{}{:?}\n{actors}", state.now().rows.dump(), state.now().ends)
    }
}
