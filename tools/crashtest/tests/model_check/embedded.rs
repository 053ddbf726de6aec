//! One process with an engine of its own, as driven by `coordinator/embedded`.
//!
//! Every change goes through one pipeline, which assigns commit timestamps and writes an ordered
//! log. Clients run their transactions in the coordinator's steps: open a view, get a `start_ts`,
//! prewrite group by group, commit all or some rows with the commit point, then commit the other
//! rows. Clients may also commit in one phase, or release the rows that they have locked.
//!
//! A sync makes the log durable, and a client gets its answer only after the sync. A crash
//! truncates the log at or after the last sync, and the state in memory is lost. In the next
//! incarnation the resolvers of readers and of the sweep resolve the orphan locks. In the store a
//! writer that meets an orphan lock resolves the lock as well; a writer of the model waits for one
//! of these resolvers instead.
//!
//! In every state a reader opens a view and must see exactly what is committed.

mod clients;
mod recovery;

use std::hash::Hash;
use std::sync::Arc;

use percolite::Timestamp;
use percolite::internal::protocol::{OwnerLiveness, TxnStatus, txn_status_or_rolled_back};
use percolite::row::{Lock, LockType, Precondition, RowChange};
use stateright::{Model, Property};

use crate::explore::{Coverage, Describe, invariants};
use crate::rows::{Rows, Sent, index, key};
use crate::spec::{End, Invariant, Scenario, Script, TxnEnds, TxnTimestamps, read, values_there};

/// A configuration of the model.
pub struct Embedded {
    pub scripts: Vec<Script>,
    pub rows: usize,
    /// The maximum number of rows that one group changes.
    pub batch_rows: usize,
    /// The number of rows that the change with the commit point commits.
    pub rows_with_primary: usize,
    pub crashes: u8,
    /// The number of concurrent resolvers.
    pub resolvers: usize,
    pub coverage: Coverage,
}

/// The rows after a write to the log, and the ends of transactions that follow from the log.
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
    /// Commits in one phase.
    CommitsDirectly,
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
    Crashed,
}

/// The progress of a resolver, which is a reader or the sweep, from a lock to its transaction's
/// status and back. What the resolver has read may be outdated at its next step.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Resolver {
    None,
    Met { row: usize, start_ts: Timestamp, primary: usize },
    Ending { row: usize, start_ts: Timestamp, primary: usize, change: Sent },
    StatusKnown { row: usize, start_ts: Timestamp, status: Option<Timestamp> },
    Resolving { row: usize, start_ts: Timestamp, status: Option<Timestamp>, change: Sent },
}

#[derive(Clone, Debug, PartialEq, Hash)]
pub struct State {
    /// The newest durable entry, then all later ones. A crash leaves one of them as the newest.
    log: Vec<Arc<LogEntry>>,
    phases: Vec<Phase>,
    timestamps: Vec<Option<TxnTimestamps>>,
    resolvers: Vec<Resolver>,
    /// The newest timestamp issued. The reservation of the timestamp is durable, so a crash does
    /// not reset it.
    newest_ts: Timestamp,
    visible_ts: Timestamp,
    opened_at: Timestamp,
    /// The timestamp of each row's last commit in the conflict set, lock-only commits included.
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

    fn next_ts(&mut self) -> Timestamp {
        self.newest_ts = self.newest_ts.next();
        self.newest_ts
    }

    fn write(&mut self, entry: LogEntry) {
        if self.crashes_left == 0 {
            // If no crash can follow, only the newest entry is needed.
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

/// The result of a step: whether there was anything to do, or the invariant that is violated.
type Stepped = Result<bool, Invariant>;

impl Embedded {
    fn with_scenario<T>(&self, state: &State, f: impl FnOnce(&Scenario<'_>) -> T) -> T {
        let is_live = |lock: &Lock| !state.is_orphan(lock.txn.start_ts);
        f(&Scenario { scripts: &self.scripts, timestamps: &state.timestamps, is_live: &is_live })
    }

    /// The pipeline: checks the preconditions, assigns the commit timestamp, writes, publishes.
    /// Returns the row that was refused.
    fn submit(
        &self,
        state: &mut State,
        mut changes: Vec<RowChange>,
        commits: Option<usize>,
    ) -> Result<Result<Timestamp, usize>, Invariant> {
        if let Some(row) = state.now().rows.refusal(&changes).or_else(|| in_conflict_set(state, &changes)) {
            return Ok(Err(row));
        }
        let mut entry = state.now().clone();
        let mut commit_ts = Timestamp::ZERO;
        if let Some(client) = commits {
            commit_ts = state.next_ts();
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

    /// Checks the invariants that must hold in every state.
    fn check_state(&self, state: &State) -> Result<(), Invariant> {
        let LogEntry { rows, ends } = state.now();
        self.with_scenario(state, |case| {
            let check_locks = state.orphans || state.phases.iter().any(|p| matches!(p, Phase::Secondaries { .. }));
            for row in 0..self.rows {
                let lock =
                    rows.cells[row].lock.as_ref().filter(|lock| check_locks && lock.lock_type != LockType::LockOnly);
                let decides = lock.is_some_and(|lock| {
                    let primary = rows.read(index(&lock.primary), lock.txn.start_ts);
                    matches!(txn_status_or_rolled_back(&primary, lock.txn), TxnStatus::Committed(_))
                });
                if read(rows, row, state.visible_ts, decides)? != ends.expected(case, row, state.visible_ts) {
                    return Err(Invariant::SnapshotsWhole);
                }
            }
            ends.resolvable(case, rows, OwnerLiveness::Ended, false)
        })?;
        values_there(rows)?;
        for (client, phase) in state.phases.iter().enumerate() {
            if let Phase::Acknowledged(commit_ts) = phase
                && ends.end_of(client) != Some(End::Committed(*commit_ts))
            {
                return Err(Invariant::AcknowledgedSurvives);
            }
        }
        let is_done = |phase: &Phase| {
            matches!(
                phase,
                Phase::Idle | Phase::Acknowledged(_) | Phase::Unacknowledged(_) | Phase::Refused | Phase::Crashed
            )
        };
        let quiet =
            state.swept && state.phases.iter().all(is_done) && state.resolvers.iter().all(|e| *e == Resolver::None);
        let left = rows.cells.iter().any(|cells| cells.lock.is_some() || !cells.txn_records.is_empty());
        if quiet && left {
            return Err(Invariant::NothingLeft);
        }
        Ok(())
    }
}

/// The row for which the conflict set has a commit that violates a precondition.
fn in_conflict_set(state: &State, changes: &[RowChange]) -> Option<usize> {
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
                Phase::Unacknowledged(_) | Phase::Acknowledged(_) | Phase::Refused | Phase::Crashed => {}
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
            Err(invariant) => next.violation = Some(invariant),
        }
        // Resolvers are interchangeable: sorting merges states that differ only in their order.
        next.resolvers.sort();
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        invariants()
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
            Action::Acknowledge(client) => format!("client {client} gets its answer: {:?}", state.phases[client]),
            Action::Resolve(resolver) => format!("a resolver continues: {:?}", state.resolvers[resolver]),
            Action::Crash { keep } => {
                format!("crash: {} of {} writes are lost", state.log.len() - 1 - keep, state.log.len() - 1)
            }
            Action::MeetLock { row, .. } => format!("a resolver meets the lock on {:?}", key(row)),
            Action::Sync | Action::Sweep => format!("{action:?}"),
        }
    }

    fn show(&self, state: &State) -> String {
        let State { phases, resolvers, visible_ts, opened_at, .. } = state;
        let actors =
            format!("clients {phases:?}\nresolvers {resolvers:?}\nvisible {visible_ts}, opened at {opened_at}");
        format!("{}{:?}\n{actors}", state.now().rows.dump(), state.now().ends)
    }
}
