//! One process that has its engine for itself, as `coordinator/embedded` drives it.
//!
//! Every change passes through one pipeline, which stamps commits and writes an ordered log. Clients run their transactions in
//! the coordinator's own steps: open a view, take a name, prewrite group by group, commit point, secondaries; or
//! one phase; or release what was locked in vain. A sync makes the log so far durable, and a client is answered only
//! then. A crash cuts the log anywhere at or after the last sync; all that memory knew is gone, and in the next life
//! errands of readers and of the sweep meet the locks that are left. They are also what a writer does about an orphan in
//! its way, so a writer here just waits for one of them.
//!
//! In every state a reader opens a view and must see exactly what is committed.

use std::hash::Hash;
use std::sync::Arc;

use percolite::protocol::{
    Asker, CheckStatus, Commit, CommitPoint, OnePhase, Prewrite, Refusal, Resolve, RollBack, Step, check_status,
    commit, commit_point, forget, one_phase, prewrite, resolve, roll_back,
};
use percolite::row::{Edit, Intent, Lock, Row, RowChange, Status, TxnId};
use percolite::timestamp::Timestamp;
use stateright::{Model, Property};

use crate::explore::{Sights, Told, rules};
use crate::judge::{Case, End, Fates, Named, Rule, Script, read, txn_id, values_there};
use crate::rows::{Rows, Sent, index, key};

/// A configuration.
pub struct Embedded {
    pub scripts: Vec<Script>,
    pub rows: usize,
    /// The most rows that one group changes.
    pub group_rows: usize,
    pub crashes: u8,
    /// How many resolve locks at the same time.
    pub errands: usize,
    pub sights: Sights,
}

/// The rows after some write to the log, and how transactions have ended according to it.
#[derive(Clone, Debug, PartialEq, Hash)]
pub struct Moment {
    rows: Rows,
    fates: Fates,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Phase {
    Idle,
    Viewed { read_ts: Timestamp },
    OnePhase,
    Prewriting { group: usize },
    CommitPoint,
    Secondaries { group: usize, commit_ts: Timestamp },
    Releasing { group: usize, groups: usize, forgetting: bool },
    Unacknowledged(Timestamp),
    Acknowledged(Timestamp),
    Refused,
    Dead,
}

/// Somebody's way from a lock to its verdict and back. What was read may be old when it is used.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Errand {
    None,
    Met { row: usize, start_ts: Timestamp, primary: usize },
    Ending { row: usize, start_ts: Timestamp, primary: usize, change: Sent },
    Judged { row: usize, start_ts: Timestamp, verdict: Option<Timestamp> },
    Resolving { row: usize, start_ts: Timestamp, verdict: Option<Timestamp>, change: Sent },
}

#[derive(Clone, Debug, PartialEq, Hash)]
pub struct State {
    /// What a crash may leave: the newest that is durable, then everything written since.
    log: Vec<Arc<Moment>>,
    phases: Vec<Phase>,
    named: Vec<Option<Named>>,
    errands: Vec<Errand>,
    /// The newest timestamp handed out. Its lease is durable, so a crash does not take it back.
    newest_ts: Timestamp,
    visible_ts: Timestamp,
    opened_at: Timestamp,
    /// What the pipeline remembers of each row's last commit, holds included.
    last_commits: Vec<Timestamp>,
    orphans: bool,
    swept: bool,
    crashes_left: u8,
    broken: Option<Rule>,
}

impl State {
    fn now(&self) -> &Moment {
        self.log.last().expect("the log is never empty")
    }

    fn draw(&mut self) -> Timestamp {
        self.newest_ts = self.newest_ts.next();
        self.newest_ts
    }

    fn write(&mut self, moment: Moment) {
        if self.crashes_left == 0 {
            // Nobody will see anything but the newest any more.
            self.log.clear();
        }
        self.log.push(Arc::new(moment));
    }

    fn unapplied(&self, start_ts: Timestamp) -> Option<Timestamp> {
        self.phases.iter().zip(&self.named).find_map(|(phase, named)| match (phase, named) {
            (Phase::Secondaries { commit_ts, .. }, Some(named)) if named.start_ts == start_ts => Some(*commit_ts),
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
    Meet { errand: usize, row: usize },
    Errand(usize),
    Sweep,
}

/// What a step of the model comes to: nothing to do now, or done, or a rule is broken.
type Stepped = Result<bool, Rule>;

impl Embedded {
    fn judged<T>(&self, state: &State, judge: impl FnOnce(&Case<'_>) -> T) -> T {
        let lives = |lock: &Lock| !state.is_orphan(lock.txn.start_ts);
        judge(&Case { scripts: &self.scripts, named: &state.named, lives: &lives })
    }

    /// The pipeline: checks the guards, stamps a commit, writes, publishes. The answer is the row that was refused.
    fn submit(
        &self,
        state: &mut State,
        mut changes: Vec<RowChange>,
        commits: Option<usize>,
    ) -> Result<Result<Timestamp, usize>, Rule> {
        if let Some(row) = state.now().rows.refusal(&changes).or_else(|| remembered(state, &changes)) {
            return Ok(Err(row));
        }
        let mut moment = state.now().clone();
        let mut commit_ts = Timestamp::ZERO;
        if let Some(client) = commits {
            commit_ts = state.draw();
            state.visible_ts = commit_ts;
            changes.iter_mut().for_each(|change| change.stamp(commit_ts));
            self.judged(state, |case| moment.fates.end(case, client, End::Committed(commit_ts)))?;
            for change in &changes {
                state.last_commits[index(&change.row)] = commit_ts;
            }
        }
        for change in &changes {
            self.judged(state, |case| moment.fates.see(case, &moment.rows.cells[index(&change.row)], change))?;
            moment.rows.change(change);
        }
        state.write(moment);
        Ok(Ok(commit_ts))
    }

    fn txn(state: &State, client: usize) -> TxnId {
        txn_id(state.named[client].expect("only a transaction that has begun takes steps").start_ts)
    }

    fn groups(&self, client: usize) -> usize {
        self.scripts[client].writes.len().div_ceil(self.group_rows)
    }

    /// The secondaries are grouped anew, without the primary.
    fn secondary_groups(&self, client: usize) -> usize {
        (self.scripts[client].writes.len() - 1).div_ceil(self.group_rows)
    }

    /// The change that locks the n-th row of the transaction, decided on an untouched row: the guards know better.
    fn prewrite(&self, state: &State, client: usize, n: usize) -> RowChange {
        let (row, mutation) = &self.scripts[client].writes[n];
        let txn = Self::txn(state, client);
        let request = Prewrite {
            row: key(*row),
            txn,
            read_ts: state.named[client].expect("it has begun").read_ts,
            primary: key(self.scripts[client].primary()),
            mutation: mutation.clone(),
            sequence: 1,
            ttl_ms: 0,
            min_commit_ts: txn.start_ts.next(),
        };
        match prewrite(&Row::default(), &request) {
            Ok(Step::Apply(change, _)) => *change,
            other => panic!("an untouched row can be locked, not {other:?}"),
        }
    }

    fn lock(&self, state: &State, client: usize, n: usize) -> Lock {
        match self.prewrite(state, client, n).lock {
            Edit::Put(lock) => lock,
            other => panic!("a prewrite puts a lock, not {other:?}"),
        }
    }

    fn commit(
        &self,
        state: &State,
        client: usize,
        n: usize,
        commit_ts: Timestamp,
        keep_status: bool,
    ) -> Step<Timestamp> {
        let row = self.scripts[client].writes[n].0;
        let txn = Self::txn(state, client);
        let as_read = Row { lock: Some(self.lock(state, client, n)), ..state.now().rows.read(row, txn.start_ts) };
        let request = Commit { row: key(row), txn, commit_ts, keep_status, keep_replaced: false, record_holds: false };
        commit(&as_read, &request).unwrap_or_else(|why| panic!("its owner can commit its own lock: {why:?}"))
    }

    fn has_equal_before(&self, state: &State, client: usize) -> bool {
        (0..client).any(|before| self.scripts[before] == self.scripts[client] && state.phases[before] == Phase::Idle)
    }

    fn client(&self, state: &mut State, client: usize) -> Stepped {
        let script = &self.scripts[client];
        let phase = state.phases[client];
        state.phases[client] = match phase {
            Phase::Idle => Phase::Viewed { read_ts: state.visible_ts },
            Phase::Viewed { read_ts } => {
                let start_ts = state.draw();
                if read_ts >= start_ts {
                    return Err(Rule::TimestampsInOrder);
                }
                state.named[client] = Some(Named { read_ts, start_ts });
                if script.one_phase { Phase::OnePhase } else { Phase::Prewriting { group: 0 } }
            }
            Phase::OnePhase => match self.one_phase(state, client)? {
                Ok(commit_ts) => Phase::Unacknowledged(commit_ts),
                Err(row) => match self.in_the_way(state, client, row) {
                    None => return Ok(false),
                    Some(conflict) => {
                        self.sights.met(conflict);
                        self.give_up(state, client)?;
                        Phase::Refused
                    }
                },
            },
            Phase::Prewriting { group } => {
                let rows = group * self.group_rows..((group + 1) * self.group_rows).min(script.writes.len());
                let changes = rows.map(|n| self.prewrite(state, client, n)).collect();
                match self.submit(state, changes, None)? {
                    Ok(_) if group + 1 < self.groups(client) => Phase::Prewriting { group: group + 1 },
                    Ok(_) => Phase::CommitPoint,
                    Err(row) => match self.in_the_way(state, client, row) {
                        None => return Ok(false),
                        Some(conflict) => {
                            self.sights.met(conflict);
                            self.give_up(state, client)?;
                            self.releasing(0, group, false)
                        }
                    },
                }
            }
            Phase::CommitPoint => {
                let secondaries = script.writes.len() > 1;
                let earliest = self.lock(state, client, 0).min_commit_ts;
                let Step::Apply(change, _) = self.commit(state, client, 0, earliest, secondaries) else {
                    return Err(Rule::OneVerdict);
                };
                match self.submit(state, vec![*change], Some(client))? {
                    Ok(commit_ts) if secondaries => Phase::Secondaries { group: 0, commit_ts },
                    Ok(commit_ts) => Phase::Unacknowledged(commit_ts),
                    // Nobody may have touched a lock of a transaction that lives.
                    Err(_) => return Err(Rule::LiveOwnersLeftAlone),
                }
            }
            Phase::Secondaries { group, commit_ts } => {
                self.roll_forward(state, client, group, commit_ts)?;
                if group + 1 < self.secondary_groups(client) {
                    Phase::Secondaries { group: group + 1, commit_ts }
                } else {
                    Phase::Unacknowledged(commit_ts)
                }
            }
            Phase::Releasing { group, groups, forgetting } => {
                self.release(state, client, group, forgetting)?;
                if forgetting { self.releasing(group + 1, groups, false) } else { self.releasing(group, groups, true) }
            }
            Phase::Unacknowledged(_) | Phase::Acknowledged(_) | Phase::Refused | Phase::Dead => return Ok(false),
        };
        Ok(true)
    }

    fn one_phase(&self, state: &mut State, client: usize) -> Result<Result<Timestamp, usize>, Rule> {
        let txn = Self::txn(state, client);
        let mut changes = Vec::new();
        for (row, mutation) in &self.scripts[client].writes {
            let read_ts = state.named[client].expect("it has begun").read_ts;
            let commit_ts = txn.start_ts;
            let request = OnePhase { row: key(*row), txn, read_ts, commit_ts, mutation, keep_replaced: false };
            match one_phase(&state.now().rows.read(*row, txn.start_ts), &request) {
                Ok(Step::Apply(change, _)) => changes.push(*change),
                Ok(Step::Done(_)) => return Err(Rule::OneVerdict),
                Err(_) => return Ok(Err(*row)),
            }
        }
        self.submit(state, changes, Some(client))
    }

    /// What a refused writer makes of the row: a conflict, or nothing that an errand cannot clear.
    fn in_the_way(&self, state: &State, client: usize, row: usize) -> Option<&'static str> {
        let found = &state.now().rows.cells[row];
        match &found.lock {
            Some(lock) if lock.txn != Self::txn(state, client) => {
                let start_ts = lock.txn.start_ts;
                let cleared = state.is_orphan(start_ts) || state.unapplied(start_ts).is_some();
                (!cleared).then_some("a writer meets a live lock")
            }
            _ => Some("a writer meets a newer commit"),
        }
    }

    fn give_up(&self, state: &mut State, client: usize) -> Result<(), Rule> {
        // Nothing is written: its caller is told at once, and what the caller was told no crash takes back.
        let mut log = state.log.clone();
        for moment in &mut log {
            self.judged(state, |case| Arc::make_mut(moment).fates.end(case, client, End::RolledBack))?;
        }
        state.log = log;
        Ok(())
    }

    fn releasing(&self, group: usize, groups: usize, forgetting: bool) -> Phase {
        if group < groups { Phase::Releasing { group, groups, forgetting } } else { Phase::Refused }
    }

    fn release(&self, state: &mut State, client: usize, group: usize, forgetting: bool) -> Result<(), Rule> {
        let txn = Self::txn(state, client);
        let writes = &self.scripts[client].writes;
        let mut changes = Vec::new();
        for n in group * self.group_rows..((group + 1) * self.group_rows).min(writes.len()) {
            let row = key(writes[n].0);
            if forgetting {
                changes.push(forget(row, txn.start_ts));
                continue;
            }
            let as_locked = Row { lock: Some(self.lock(state, client, n)), ..Row::default() };
            if let Ok(Step::Apply(change, ())) = roll_back(&as_locked, &RollBack { row, txn }) {
                changes.push(*change);
            }
        }
        self.submit(state, changes, None)?.map(drop).map_err(|_| Rule::LiveOwnersLeftAlone)
    }

    fn roll_forward(&self, state: &mut State, client: usize, group: usize, commit_ts: Timestamp) -> Result<(), Rule> {
        let writes = &self.scripts[client].writes;
        let finishes = group + 1 == self.secondary_groups(client);
        let first = 1 + group * self.group_rows;
        let mut rows: Vec<usize> = (first..(first + self.group_rows).min(writes.len())).collect();
        loop {
            let mut changes = Vec::new();
            for n in &rows {
                match self.commit(state, client, *n, commit_ts, false) {
                    Step::Apply(change, _) => changes.push(*change),
                    Step::Done(_) => {}
                }
            }
            if finishes {
                changes.push(forget(key(self.scripts[client].primary()), Self::txn(state, client).start_ts));
            }
            match self.submit(state, changes, None)? {
                Ok(_) => return Ok(()),
                Err(row) => {
                    self.sights.met("an owner finds its row rolled forward by somebody else");
                    rows.retain(|n| writes[*n].0 != row);
                }
            }
        }
    }

    fn errand(&self, state: &mut State, errand: usize) -> Stepped {
        let (row, start_ts) = match &state.errands[errand] {
            Errand::None => return Ok(false),
            Errand::Met { row, start_ts, .. }
            | Errand::Ending { row, start_ts, .. }
            | Errand::Judged { row, start_ts, .. }
            | Errand::Resolving { row, start_ts, .. } => (*row, *start_ts),
        };
        let next = match state.errands[errand].clone() {
            Errand::None => return Ok(false),
            Errand::Met { primary, .. } => self.ask(state, row, start_ts, primary)?,
            Errand::Ending { primary, change, .. } => match self.submit(state, vec![(*change.change).clone()], None)? {
                Ok(_) => self.judge(state, row, start_ts, CommitPoint::RolledBack)?,
                Err(_) => Errand::Met { row, start_ts, primary },
            },
            Errand::Judged { verdict, .. } => {
                let point = verdict.map_or(CommitPoint::RolledBack, CommitPoint::Committed);
                let request = Resolve { row: key(row), txn: txn_id(start_ts), verdict: point, shared: false };
                match resolve(&state.now().rows.read(row, start_ts), &request) {
                    Ok(Step::Done(())) => Errand::None,
                    Ok(Step::Apply(change, ())) => {
                        Errand::Resolving { row, start_ts, verdict, change: Sent::new(*change) }
                    }
                    Err(_) => return Err(Rule::LocksResolvable),
                }
            }
            Errand::Resolving { verdict, change, .. } => {
                match (self.submit(state, vec![(*change.change).clone()], None)?, verdict) {
                    (Ok(_), Some(_)) => self.sights.met("an errand rolls a row forward"),
                    (Ok(_), None) => self.sights.met("an errand rolls a row back"),
                    (Err(_), _) => self.sights.met("an errand comes too late"),
                }
                Errand::None
            }
        };
        state.errands[errand] = next;
        Ok(true)
    }

    fn ask(&self, state: &mut State, row: usize, start_ts: Timestamp, primary: usize) -> Result<Errand, Rule> {
        if let Some(commit_ts) = state.unapplied(start_ts) {
            return self.judge(state, row, start_ts, CommitPoint::Committed(commit_ts));
        }
        let txn = txn_id(start_ts);
        let rows = &state.now().rows;
        let is_locked = rows.cells[row].lock.as_ref().is_some_and(|lock| lock.txn == txn);
        if !is_locked || !state.is_orphan(start_ts) {
            return Ok(Errand::None);
        }
        let request = CheckStatus { row: key(primary), txn, asker: Asker::Orphan };
        match check_status(&rows.read(primary, start_ts), &request) {
            Ok(Step::Done(verdict)) => self.judge(state, row, start_ts, verdict),
            Ok(Step::Apply(change, _)) => Ok(Errand::Ending { row, start_ts, primary, change: Sent::new(*change) }),
            // The lock is there, so its transaction's records must be.
            Err(Refusal::BelowSafePoint(_)) | Err(_) => Err(Rule::LocksResolvable),
        }
    }

    fn judge(&self, state: &mut State, row: usize, start_ts: Timestamp, verdict: CommitPoint) -> Result<Errand, Rule> {
        let mut moment = state.now().clone();
        self.judged(state, |case| moment.fates.told(case, start_ts, verdict))?;
        let verdict = match verdict {
            CommitPoint::Pending => return Err(Rule::LocksResolvable),
            CommitPoint::Committed(commit_ts) => Some(commit_ts),
            CommitPoint::RolledBack => None,
        };
        *state.log.last_mut().expect("the log is never empty") = Arc::new(moment);
        Ok(Errand::Judged { row, start_ts, verdict })
    }

    fn sweep(&self, state: &mut State) -> Stepped {
        let rows = &state.now().rows;
        if state.swept || rows.locks().any(|(_, lock)| state.is_orphan(lock.txn.start_ts)) {
            return Ok(false);
        }
        let statuses = rows
            .cells
            .iter()
            .enumerate()
            .flat_map(|(row, cells)| cells.statuses.iter().map(move |(start_ts, _)| (row, *start_ts)));
        let ended: Vec<_> = statuses.filter(|(_, start_ts)| state.is_orphan(*start_ts)).collect();
        if ended.is_empty() {
            (state.swept, state.orphans) = (true, false);
        } else if rows.safe_point < state.opened_at {
            let mut moment = state.now().clone();
            moment.rows.safe_point = state.opened_at;
            state.write(moment);
        } else if state.log[0].rows.safe_point < state.opened_at {
            // Not before that is durable.
            return Ok(false);
        } else {
            // One row has one change in a group; the rest goes with the next page.
            let mut changes: Vec<RowChange> = Vec::new();
            for (row, start_ts) in ended {
                if changes.iter().all(|change| index(&change.row) != row) {
                    changes.push(forget(key(row), start_ts));
                }
            }
            self.sights.met("the sweep forgets how the dead ended");
            self.submit(state, changes, None)?.map_err(|_| Rule::NothingLeft)?;
        }
        Ok(true)
    }

    fn crash(&self, state: &mut State, keep: usize) {
        let left = Arc::clone(&state.log[keep]);
        for (client, phase) in state.phases.iter_mut().enumerate() {
            *phase = match *phase {
                Phase::Idle | Phase::Viewed { .. } => Phase::Idle,
                Phase::Acknowledged(commit_ts) => Phase::Acknowledged(commit_ts),
                Phase::Unacknowledged(_) | Phase::Secondaries { .. } => {
                    if !matches!(left.fates.end_of(client), Some(End::Committed(_))) {
                        self.sights.met("a crash loses a commit that was not acknowledged");
                    }
                    Phase::Dead
                }
                _ => Phase::Dead,
            };
        }
        if state.orphans {
            self.sights.met("a crash interrupts the recovery from another");
        }
        state.log = vec![left];
        state.crashes_left -= 1;
        state.errands.fill(Errand::None);
        state.opened_at = state.draw();
        state.visible_ts = state.opened_at;
        state.last_commits.fill(Timestamp::ZERO);
        let locks = state.now().rows.locks().count();
        state.orphans = locks > 0;
        state.swept = false;
    }

    /// What must hold in every state.
    fn examine(&self, state: &State) -> Result<(), Rule> {
        let Moment { rows, fates } = state.now();
        self.judged(state, |case| {
            let check_locks = state.orphans || state.phases.iter().any(|p| matches!(p, Phase::Secondaries { .. }));
            for row in 0..self.rows {
                let lock = rows.cells[row].lock.as_ref().filter(|lock| check_locks && lock.intent != Intent::Hold);
                let decides = lock.is_some_and(|lock| {
                    let primary = rows.read(index(&lock.primary), lock.txn.start_ts);
                    matches!(commit_point(&primary, lock.txn), CommitPoint::Committed(_))
                });
                if read(rows, row, state.visible_ts, decides)? != fates.expected(case, row, state.visible_ts) {
                    return Err(Rule::SnapshotsWhole);
                }
            }
            fates.resolvable(case, rows, Asker::Orphan, false)
        })?;
        values_there(rows)?;
        for (client, phase) in state.phases.iter().enumerate() {
            if let Phase::Acknowledged(commit_ts) = phase
                && fates.end_of(client) != Some(End::Committed(*commit_ts))
            {
                return Err(Rule::AcknowledgedSurvives);
            }
        }
        let over = |phase: &Phase| {
            matches!(
                phase,
                Phase::Idle | Phase::Acknowledged(_) | Phase::Unacknowledged(_) | Phase::Refused | Phase::Dead
            )
        };
        let quiet = state.swept && state.phases.iter().all(over) && state.errands.iter().all(|e| *e == Errand::None);
        // An errand that comes after the sweep may put a rollback record back; the next opening's sweep forgets it.
        let put_back =
            |(start_ts, status): &(Timestamp, Status)| *status == Status::RolledBack && *start_ts < rows.safe_point;
        let left = rows.cells.iter().any(|cells| cells.lock.is_some() || !cells.statuses.iter().all(put_back));
        if quiet && left {
            return Err(Rule::NothingLeft);
        }
        Ok(())
    }
}

/// The row of which the pipeline remembers a commit, or a hold, that the guards do not allow.
fn remembered(state: &State, changes: &[RowChange]) -> Option<usize> {
    use percolite::row::Guard;
    let newer = changes.iter().find(|change| {
        let last = state.last_commits[index(&change.row)];
        change.guards.iter().any(|guard| matches!(guard, Guard::NoCommitAfter(ts) if last > *ts))
    });
    newer.map(|change| index(&change.row))
}

impl Model for Embedded {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let clients = self.scripts.len();
        let first = Moment { rows: Rows::new(self.rows), fates: Fates::new(clients) };
        let opened_at = Timestamp::from_u64(1);
        vec![State {
            log: vec![Arc::new(first)],
            phases: vec![Phase::Idle; clients],
            named: vec![None; clients],
            errands: vec![Errand::None; self.errands],
            newest_ts: opened_at,
            visible_ts: opened_at,
            opened_at,
            last_commits: vec![Timestamp::ZERO; self.rows],
            orphans: false,
            swept: true,
            crashes_left: self.crashes,
            broken: None,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.broken.is_some() {
            return;
        }
        for (client, phase) in state.phases.iter().enumerate() {
            match phase {
                Phase::Unacknowledged(_) if state.log.len() == 1 => actions.push(Action::Acknowledge(client)),
                Phase::Unacknowledged(_) | Phase::Acknowledged(_) | Phase::Refused | Phase::Dead => {}
                // Of those that do the same the first begins first: any other order is the same but for their numbers.
                Phase::Idle if self.has_equal_before(state, client) => {}
                _ => actions.push(Action::Client(client)),
            }
        }
        for (errand, doing) in state.errands.iter().enumerate() {
            if *doing != Errand::None {
                actions.push(Action::Errand(errand));
                continue;
            }
            for (row, lock) in state.now().rows.locks() {
                if state.is_orphan(lock.txn.start_ts) || state.unapplied(lock.txn.start_ts).is_some() {
                    actions.push(Action::Meet { errand, row });
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
            Action::Meet { errand, row } => {
                let lock = next.now().rows.cells[row].lock.as_ref()?;
                let (start_ts, primary) = (lock.txn.start_ts, index(&lock.primary));
                next.errands[errand] = Errand::Met { row, start_ts, primary };
                Ok(true)
            }
            Action::Errand(errand) => self.errand(&mut next, errand),
            Action::Sweep => self.sweep(&mut next),
        };
        match stepped.and_then(|stepped| if stepped { self.examine(&next).map(|()| true) } else { Ok(false) }) {
            Ok(false) => return None,
            Ok(true) => {}
            Err(rule) => next.broken = Some(rule),
        }
        // Errands differ in nothing but what they are doing.
        next.errands.sort();
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        rules()
    }
}

impl Told for Embedded {
    fn broken(state: &State) -> Option<Rule> {
        state.broken
    }

    fn sights(&self) -> &Sights {
        &self.sights
    }

    fn describe(&self, state: &State, action: &Action) -> String {
        match *action {
            Action::Client(client) => format!("client {client}: {:?}", state.phases[client]),
            Action::Acknowledge(client) => format!("client {client} is answered: {:?}", state.phases[client]),
            Action::Errand(errand) => format!("an errand goes on: {:?}", state.errands[errand]),
            Action::Crash { keep } => {
                format!("crash: {} of {} writes are lost", state.log.len() - 1 - keep, state.log.len() - 1)
            }
            Action::Meet { row, .. } => format!("an errand meets the lock on {:?}", key(row)),
            Action::Sync | Action::Sweep => format!("{action:?}"),
        }
    }

    fn show(&self, state: &State) -> String {
        format!("{state:#?}")
    }
}
