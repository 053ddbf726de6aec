//! A crash, and what comes after it: errands that resolve locks, and the sweep that forgets how the dead ended.

use std::sync::Arc;

use percolite::protocol::{
    CheckTxnStatus, OwnerLiveness, Resolve, Step, TransactionStatus, check_txn_status, delete_txn_record, resolve,
};
use percolite::row::RowChange;
use percolite::timestamp::Timestamp;

use super::{Embedded, Errand, Phase, State, Stepped};
use crate::judge::{End, Rule, txn_id};
use crate::rows::{Sent, index, key};

impl Embedded {
    pub(super) fn errand(&self, state: &mut State, errand: usize) -> Stepped {
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
                Ok(_) => self.judge(state, row, start_ts, TransactionStatus::RolledBack)?,
                Err(_) => Errand::Met { row, start_ts, primary },
            },
            Errand::Judged { verdict, .. } => {
                let point = verdict.map_or(TransactionStatus::RolledBack, TransactionStatus::Committed);
                let request = Resolve {
                    row: key(row),
                    txn: txn_id(start_ts),
                    status: point,
                    keep_old_version: false,
                    record_lock_only: false,
                };
                match resolve(&state.now().rows.read(row, start_ts), &request) {
                    Ok(Step::Done(())) => Errand::None,
                    Ok(Step::Apply(change, ())) => {
                        Errand::Resolving { row, start_ts, verdict, change: Sent::new(change) }
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
            return self.judge(state, row, start_ts, TransactionStatus::Committed(commit_ts));
        }
        let txn = txn_id(start_ts);
        let rows = &state.now().rows;
        let is_locked = rows.cells[row].lock.as_ref().is_some_and(|lock| lock.txn == txn);
        if !is_locked || !state.is_orphan(start_ts) {
            return Ok(Errand::None);
        }
        let request = CheckTxnStatus { row: key(primary), txn, liveness: OwnerLiveness::Dead };
        match check_txn_status(&rows.read(primary, start_ts), &request) {
            Ok(Step::Done(verdict)) => self.judge(state, row, start_ts, verdict),
            Ok(Step::Apply(change, _)) => Ok(Errand::Ending { row, start_ts, primary, change: Sent::new(change) }),
            // The lock is there, so its transaction's records must be.
            Err(_) => Err(Rule::LocksResolvable),
        }
    }

    fn judge(
        &self,
        state: &mut State,
        row: usize,
        start_ts: Timestamp,
        verdict: TransactionStatus,
    ) -> Result<Errand, Rule> {
        let mut moment = state.now().clone();
        self.judged(state, |case| moment.fates.told(case, start_ts, verdict))?;
        let verdict = match verdict {
            TransactionStatus::Pending => return Err(Rule::LocksResolvable),
            TransactionStatus::Committed(commit_ts) => Some(commit_ts),
            TransactionStatus::RolledBack => None,
        };
        *state.log.last_mut().expect("the log is never empty") = Arc::new(moment);
        Ok(Errand::Judged { row, start_ts, verdict })
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
                    changes.push(delete_txn_record(key(row), start_ts));
                }
            }
            self.sights.met("the sweep forgets how the dead ended");
            self.submit(state, changes, None)?.map_err(|_| Rule::NothingLeft)?;
        }
        Ok(true)
    }

    pub(super) fn crash(&self, state: &mut State, keep: usize) {
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
}
