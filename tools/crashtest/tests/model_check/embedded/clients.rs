//! Clients: the steps of the coordinator through a transaction.

use std::sync::Arc;

use percolite::Timestamp;
use percolite::internal::protocol::{
    CommitRow, OnePhase, Prewrite, Rollback, Step, commit, delete_txn_record, one_phase, prewrite, release_lock,
};
use percolite::row::{CellChange, Lock, MAX_SHORT_VALUE_BYTES, Mutation, RowChange, RowState, TxnId};

use super::{Embedded, Phase, State, Stepped};
use crate::rows::key;
use crate::spec::{End, Invariant, TxnTimestamps, txn_id};

impl Embedded {
    fn txn(state: &State, client: usize) -> TxnId {
        txn_id(state.timestamps[client].expect("only a transaction that has started takes steps").start_ts)
    }

    fn groups(&self, client: usize) -> usize {
        self.scripts[client].writes.len().div_ceil(self.batch_rows)
    }

    /// The number of rows that the change with the commit point commits.
    fn with_primary(&self, client: usize) -> usize {
        self.scripts[client].writes.len().min(self.rows_with_primary)
    }

    /// The number of groups of the remaining rows.
    fn secondary_groups(&self, client: usize) -> usize {
        (self.scripts[client].writes.len() - self.with_primary(client)).div_ceil(self.batch_rows)
    }

    /// The change that locks the n-th row of the transaction. The change assumes an empty row,
    /// which its preconditions check.
    fn prewrite(&self, state: &State, client: usize, n: usize) -> RowChange {
        let (row, mutation) = &self.scripts[client].writes[n];
        let txn = Self::txn(state, client);
        let request = Prewrite {
            row: key(*row),
            txn,
            read_ts: state.timestamps[client].expect("it has started").read_ts,
            primary: key(self.scripts[client].primary()),
            mutation: mutation.clone(),
            write_seq: 1,
            ttl_ms: 0,
            min_commit_ts: txn.start_ts.next(),
        };
        match prewrite(&RowState::default(), &request) {
            Ok(Step::Apply(change, _)) => change,
            other => panic!("an empty row can be locked, not {other:?}"),
        }
    }

    /// The row that a step assumes at first. If values may be long, the coordinator reads the row,
    /// because a replaced value may be out of line. Otherwise it assumes an empty row, which the
    /// preconditions check.
    fn assumed_row(&self, state: &State, row: usize, start_ts: Timestamp) -> RowState {
        let is_long = |mutation: &Mutation| mutation.value_bytes() > MAX_SHORT_VALUE_BYTES;
        let long_values = self.scripts.iter().any(|script| script.writes.iter().any(|(_, m)| is_long(m)));
        if long_values { state.now().rows.read(row, start_ts) } else { RowState::default() }
    }

    fn lock(&self, state: &State, client: usize, n: usize) -> Lock {
        match self.prewrite(state, client, n).lock {
            CellChange::Put(lock) => lock,
            other => panic!("a prewrite puts a lock, not {other:?}"),
        }
    }

    fn commit(
        &self,
        state: &State,
        client: usize,
        n: usize,
        commit_ts: Timestamp,
        keep_txn_record: bool,
    ) -> Result<Step<Timestamp>, Invariant> {
        let row = self.scripts[client].writes[n].0;
        let txn = Self::txn(state, client);
        let as_read =
            RowState { lock: Some(self.lock(state, client, n)), ..self.assumed_row(state, row, txn.start_ts) };
        let request = CommitRow {
            row: key(row),
            txn,
            commit_ts,
            keep_txn_record,
            keep_old_version: false,
            on_shared_engine: false,
        };
        // A live owner must be able to commit the rows that it has locked.
        commit(&as_read, &request).map_err(|_| Invariant::LiveOwnersLeftAlone)
    }

    pub(super) fn client(&self, state: &mut State, client: usize) -> Stepped {
        let script = &self.scripts[client];
        let phase = state.phases[client];
        state.phases[client] = match phase {
            Phase::Idle => Phase::Begun { read_ts: state.visible_ts },
            Phase::Begun { read_ts } => {
                let start_ts = state.next_ts();
                if read_ts >= start_ts {
                    return Err(Invariant::TimestampsInOrder);
                }
                state.timestamps[client] = Some(TxnTimestamps { read_ts, start_ts });
                if script.one_phase { Phase::CommitsDirectly } else { Phase::Prewriting { group: 0 } }
            }
            Phase::CommitsDirectly => match self.one_phase(state, client)? {
                Ok(commit_ts) => Phase::Unacknowledged(commit_ts),
                Err(row) => match self.conflict_of(state, client, row) {
                    None => return Ok(false),
                    Some(conflict) => {
                        self.coverage.hit(conflict);
                        self.abort(state, client)?;
                        Phase::Refused
                    }
                },
            },
            Phase::Prewriting { group } => {
                let rows = group * self.batch_rows..((group + 1) * self.batch_rows).min(script.writes.len());
                let changes = rows.map(|n| self.prewrite(state, client, n)).collect();
                match self.submit(state, changes, None)? {
                    Ok(_) if group + 1 < self.groups(client) => Phase::Prewriting { group: group + 1 },
                    Ok(_) => Phase::CommitPoint,
                    Err(row) => match self.conflict_of(state, client, row) {
                        None => return Ok(false),
                        Some(conflict) => {
                            self.coverage.hit(conflict);
                            self.abort(state, client)?;
                            self.release_phase(0, group)
                        }
                    },
                }
            }
            Phase::CommitPoint => self.commit_point(state, client)?,
            Phase::Secondaries { group, commit_ts } => {
                self.roll_forward(state, client, group, commit_ts)?;
                if group + 1 < self.secondary_groups(client) {
                    Phase::Secondaries { group: group + 1, commit_ts }
                } else {
                    Phase::Unacknowledged(commit_ts)
                }
            }
            Phase::Releasing { group, groups } => {
                self.release(state, client, group)?;
                self.release_phase(group + 1, groups)
            }
            Phase::Unacknowledged(_) | Phase::Acknowledged(_) | Phase::Refused | Phase::Crashed => return Ok(false),
        };
        Ok(true)
    }

    fn commit_point(&self, state: &mut State, client: usize) -> Result<Phase, Invariant> {
        let finishes = self.secondary_groups(client) == 0;
        let mut changes = Vec::new();
        for n in 0..self.with_primary(client) {
            let earliest = self.lock(state, client, n).min_commit_ts;
            let Step::Apply(change, _) = self.commit(state, client, n, earliest, n == 0 && !finishes)? else {
                return Err(Invariant::SingleStatus);
            };
            changes.push(change);
        }
        match self.submit(state, changes, Some(client))? {
            Ok(commit_ts) if finishes => Ok(Phase::Unacknowledged(commit_ts)),
            Ok(commit_ts) => Ok(Phase::Secondaries { group: 0, commit_ts }),
            // Only the owner itself may remove the locks of a live transaction.
            Err(_) => Err(Invariant::LiveOwnersLeftAlone),
        }
    }

    fn one_phase(&self, state: &mut State, client: usize) -> Result<Result<Timestamp, usize>, Invariant> {
        let txn = Self::txn(state, client);
        let mut changes = Vec::new();
        for (row, mutation) in &self.scripts[client].writes {
            let read_ts = state.timestamps[client].expect("it has started").read_ts;
            let commit_ts = txn.start_ts;
            let locked = key(*row);
            let request = OnePhase { row: &locked, txn, read_ts, commit_ts, mutation, keep_old_version: false };
            match one_phase(&self.assumed_row(state, *row, txn.start_ts), &request) {
                Ok(Step::Apply(change, _)) => changes.push(change),
                Ok(Step::Done(_)) => return Err(Invariant::SingleStatus),
                Err(_) => return Ok(Err(*row)),
            }
        }
        self.submit(state, changes, Some(client))
    }

    /// The conflict with which a refused writer aborts. `None` if it met a lock of a committed
    /// transaction or an orphan lock: the writer waits until the lock is gone.
    fn conflict_of(&self, state: &State, client: usize, row: usize) -> Option<&'static str> {
        let found = &state.now().rows.cells[row];
        match &found.lock {
            Some(lock) if lock.txn != Self::txn(state, client) => {
                let start_ts = lock.txn.start_ts;
                let cleared = state.is_orphan(start_ts) || state.committed_with_locks(start_ts).is_some();
                (!cleared).then_some("a writer meets a live lock")
            }
            _ => Some("a writer meets a newer commit"),
        }
    }

    fn abort(&self, state: &mut State, client: usize) -> Result<(), Invariant> {
        // An abort writes nothing. The caller gets the error immediately, and must not see a commit
        // after a crash, so all entries of the log record the abort.
        let mut log = state.log.clone();
        for entry in &mut log {
            self.with_scenario(state, |case| Arc::make_mut(entry).ends.end(case, client, End::RolledBack))?;
        }
        state.log = log;
        Ok(())
    }

    fn release_phase(&self, group: usize, groups: usize) -> Phase {
        if group < groups { Phase::Releasing { group, groups } } else { Phase::Refused }
    }

    fn release(&self, state: &mut State, client: usize, group: usize) -> Result<(), Invariant> {
        let txn = Self::txn(state, client);
        let writes = self.scripts[client].writes.iter().enumerate();
        let release = |(n, (row, _)): (usize, &(usize, Mutation))| {
            let as_locked = RowState { lock: Some(self.lock(state, client, n)), ..RowState::default() };
            release_lock(&as_locked, &Rollback { row: key(*row), txn })
        };
        let changes = writes.skip(group * self.batch_rows).take(self.batch_rows).filter_map(release).collect();
        self.submit(state, changes, None)?.map(drop).map_err(|_| Invariant::LiveOwnersLeftAlone)
    }

    fn roll_forward(
        &self,
        state: &mut State,
        client: usize,
        group: usize,
        commit_ts: Timestamp,
    ) -> Result<(), Invariant> {
        let writes = &self.scripts[client].writes;
        let finishes = group + 1 == self.secondary_groups(client);
        let first = self.with_primary(client) + group * self.batch_rows;
        let mut rows: Vec<usize> = (first..(first + self.batch_rows).min(writes.len())).collect();
        loop {
            let mut changes = Vec::new();
            for n in &rows {
                match self.commit(state, client, *n, commit_ts, false)? {
                    Step::Apply(change, _) => changes.push(change),
                    Step::Done(_) => {}
                }
            }
            if finishes {
                changes.push(delete_txn_record(key(self.scripts[client].primary()), Self::txn(state, client).start_ts));
            }
            match self.submit(state, changes, None)? {
                Ok(_) => return Ok(()),
                Err(row) => {
                    self.coverage.hit("an owner finds its row already rolled forward");
                    rows.retain(|n| writes[*n].0 != row);
                }
            }
        }
    }
}
