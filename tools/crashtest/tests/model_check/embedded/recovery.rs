//! A crash and the recovery: resolvers of locks, and the sweep that deletes transaction records.

use std::sync::Arc;

use percolite::Timestamp;
use percolite::internal::protocol::{
    CheckTxnStatus, OwnerLiveness, Resolve, Step, TxnStatus, check_txn_status, delete_txn_record, resolve,
};
use percolite::row::RowChange;

use super::{Embedded, Phase, Resolver, State, Stepped};
use crate::rows::{Sent, index, key};
use crate::spec::{End, Invariant, txn_id};

impl Embedded {
    pub(super) fn resolver_step(&self, state: &mut State, resolver: usize) -> Stepped {
        let (row, start_ts) = match &state.resolvers[resolver] {
            Resolver::None => return Ok(false),
            Resolver::Met { row, start_ts, .. }
            | Resolver::Ending { row, start_ts, .. }
            | Resolver::StatusKnown { row, start_ts, .. }
            | Resolver::Resolving { row, start_ts, .. } => (*row, *start_ts),
        };
        let next = match state.resolvers[resolver].clone() {
            Resolver::None => return Ok(false),
            Resolver::Met { primary, .. } => self.check_status(state, row, start_ts, primary)?,
            Resolver::Ending { primary, change, .. } => {
                match self.submit(state, vec![(*change.change).clone()], None)? {
                    Ok(_) => self.record_status(state, row, start_ts, TxnStatus::RolledBack)?,
                    Err(_) => Resolver::Met { row, start_ts, primary },
                }
            }
            Resolver::StatusKnown { status, .. } => {
                let status_of_txn = status.map_or(TxnStatus::RolledBack, TxnStatus::Committed);
                let request = Resolve {
                    row: key(row),
                    txn: txn_id(start_ts),
                    status: status_of_txn,
                    keep_old_version: false,
                    on_shared_engine: false,
                };
                match resolve(&state.now().rows.read(row, start_ts), &request) {
                    Ok(Step::Done(())) => Resolver::None,
                    Ok(Step::Apply(change, ())) => {
                        Resolver::Resolving { row, start_ts, status, change: Sent::new(change) }
                    }
                    Err(_) => return Err(Invariant::LocksResolvable),
                }
            }
            Resolver::Resolving { status, change, .. } => {
                match (self.submit(state, vec![(*change.change).clone()], None)?, status) {
                    (Ok(_), Some(_)) => self.coverage.hit("a resolver rolls a row forward"),
                    (Ok(_), None) => self.coverage.hit("a resolver rolls a row back"),
                    (Err(_), _) => self.coverage.hit("a resolver is too late"),
                }
                Resolver::None
            }
        };
        state.resolvers[resolver] = next;
        Ok(true)
    }

    fn check_status(
        &self,
        state: &mut State,
        row: usize,
        start_ts: Timestamp,
        primary: usize,
    ) -> Result<Resolver, Invariant> {
        if let Some(commit_ts) = state.committed_with_locks(start_ts) {
            return self.record_status(state, row, start_ts, TxnStatus::Committed(commit_ts));
        }
        let txn = txn_id(start_ts);
        let rows = &state.now().rows;
        let is_locked = rows.cells[row].lock.as_ref().is_some_and(|lock| lock.txn == txn);
        if !is_locked || !state.is_orphan(start_ts) {
            return Ok(Resolver::None);
        }
        let request = CheckTxnStatus { row: key(primary), txn, liveness: OwnerLiveness::Ended };
        match check_txn_status(&rows.read(primary, start_ts), &request) {
            Ok(Step::Done(status)) => self.record_status(state, row, start_ts, status),
            Ok(Step::Apply(change, _)) => Ok(Resolver::Ending { row, start_ts, primary, change: Sent::new(change) }),
            // The status must be known: while the lock exists, its transaction's records must
            // exist.
            Err(_) => Err(Invariant::LocksResolvable),
        }
    }

    fn record_status(
        &self,
        state: &mut State,
        row: usize,
        start_ts: Timestamp,
        status: TxnStatus,
    ) -> Result<Resolver, Invariant> {
        let mut entry = state.now().clone();
        self.with_scenario(state, |case| entry.ends.check_answer(case, start_ts, status))?;
        let status = match status {
            TxnStatus::Pending => return Err(Invariant::LocksResolvable),
            TxnStatus::Committed(commit_ts) => Some(commit_ts),
            TxnStatus::RolledBack => None,
        };
        *state.log.last_mut().expect("the log is never empty") = Arc::new(entry);
        Ok(Resolver::StatusKnown { row, start_ts, status })
    }

    pub(super) fn sweep(&self, state: &mut State) -> Stepped {
        let rows = &state.now().rows;
        if state.swept || rows.locks().any(|(_, lock)| state.is_orphan(lock.txn.start_ts)) {
            return Ok(false);
        }
        let statuses = rows
            .cells
            .iter()
            .enumerate()
            .flat_map(|(row, cells)| cells.txn_records.iter().map(move |(start_ts, _)| (row, *start_ts)));
        let ended: Vec<_> = statuses.filter(|(_, start_ts)| state.is_orphan(*start_ts)).collect();
        if ended.is_empty() {
            (state.swept, state.orphans) = (true, false);
        } else if rows.safe_point < state.opened_at {
            let mut entry = state.now().clone();
            entry.rows.safe_point = state.opened_at;
            state.write(entry);
        } else if state.log[0].rows.safe_point < state.opened_at {
            // Records are deleted only once the safe point is durable.
            return Ok(false);
        } else {
            // A group has at most one change for a row, so further records of the row are deleted
            // by the next step.
            let mut changes: Vec<RowChange> = Vec::new();
            for (row, start_ts) in ended {
                if changes.iter().all(|change| index(&change.row) != row) {
                    changes.push(delete_txn_record(key(row), start_ts));
                }
            }
            self.coverage.hit("the sweep deletes transaction records");
            self.submit(state, changes, None)?.map_err(|_| Invariant::NothingLeft)?;
        }
        Ok(true)
    }

    pub(super) fn crash(&self, state: &mut State, keep: usize) {
        let left = Arc::clone(&state.log[keep]);
        for (client, phase) in state.phases.iter_mut().enumerate() {
            *phase = match *phase {
                Phase::Idle | Phase::Begun { .. } => Phase::Idle,
                Phase::Acknowledged(commit_ts) => Phase::Acknowledged(commit_ts),
                Phase::Unacknowledged(_) | Phase::Secondaries { .. } => {
                    if !matches!(left.ends.end_of(client), Some(End::Committed(_))) {
                        self.coverage.hit("a crash loses an unacknowledged commit");
                    }
                    Phase::Crashed
                }
                _ => Phase::Crashed,
            };
        }
        if state.orphans {
            self.coverage.hit("a crash interrupts the recovery from another");
        }
        state.log = vec![left];
        state.crashes_left -= 1;
        state.resolvers.fill(Resolver::None);
        state.opened_at = state.next_ts();
        state.visible_ts = state.opened_at;
        state.last_commits.fill(Timestamp::ZERO);
        let locks = state.now().rows.locks().count();
        state.orphans = locks > 0;
        state.swept = false;
    }
}
