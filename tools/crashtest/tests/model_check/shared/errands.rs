//! Errands: whoever meets a lock asks its primary and carries the verdict out.

use percolite::protocol::{CheckTxnStatus, OwnerLiveness, Resolve, TransactionStatus, check_txn_status, resolve};
use percolite::row::{Lock, Row};
use percolite::timestamp::Timestamp;

use super::{Asked, Errand, Shared, State, Travel, asked};
use crate::judge::{End, Rule, txn_id};
use crate::rows::{index, key};

/// What came of an errand's step.
pub(super) enum Settled {
    NotYet(Errand),
    Verdict(Option<End>),
    /// The protocol had no verdict to give.
    Failed,
}

impl Shared {
    pub(super) fn errand(&self, state: &mut State, errand: Errand) -> Result<Settled, Rule> {
        let row = if errand.answered { errand.row } else { errand.primary };
        let as_read = state.rows.read(row, errand.start_ts);
        self.errand_asks(state, errand, &as_read)
    }

    fn errand_asks(&self, state: &mut State, mut errand: Errand, as_read: &Row) -> Result<Settled, Rule> {
        let (start_ts, txn) = (errand.start_ts, txn_id(errand.start_ts));
        if !errand.answered {
            let asker = OwnerLiveness::ByTtl { current_ts: state.newest_ts, push_above: errand.push_above };
            return match asked(check_txn_status(
                as_read,
                &CheckTxnStatus { row: key(errand.primary), txn, liveness: asker },
            )) {
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
        match asked(resolve(
            as_read,
            &Resolve { row: key(errand.row), txn, status: verdict, keep_old_version: true, record_lock_only: true },
        )) {
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
        (errand.answered, errand.sending) = (true, None);
        Ok(Settled::NotYet(errand))
    }

    pub(super) fn errand_sends(&self, state: &mut State, mut errand: Errand, travel: Travel) -> Result<Settled, Rule> {
        let Some(sent) = errand.sending.take() else { return Ok(Settled::NotYet(errand)) };
        if self.send(state, &sent, travel)? {
            if !errand.answered {
                return self.answered(state, errand);
            }
            self.sights.met(match errand.answer {
                Some(End::Committed(_)) => "an errand rolls a row forward",
                _ => "an errand rolls a row back",
            });
            return Ok(Settled::Verdict(errand.answer));
        }
        if travel == Travel::Late {
            return Ok(Settled::NotYet(errand));
        }
        self.sights.met("an errand comes too late");
        let as_found = state.rows.read(index(&sent.change.row), sent.change.start_ts);
        self.errand_asks(state, errand, &as_found)
    }
}

pub(super) fn errand(row: usize, lock: &Lock, push_above: Option<Timestamp>) -> Errand {
    let (start_ts, primary) = (lock.txn.start_ts, index(&lock.primary));
    Errand { row, start_ts, primary, push_above, answer: None, answered: false, sending: None }
}

fn end_of(point: TransactionStatus) -> Option<End> {
    match point {
        TransactionStatus::Pending => None,
        TransactionStatus::Committed(commit_ts) => Some(End::Committed(commit_ts)),
        TransactionStatus::RolledBack => Some(End::RolledBack),
    }
}

fn point_of(end: Option<End>) -> TransactionStatus {
    match end {
        None => TransactionStatus::Pending,
        Some(End::Committed(commit_ts)) => TransactionStatus::Committed(commit_ts),
        Some(End::RolledBack) => TransactionStatus::RolledBack,
    }
}
