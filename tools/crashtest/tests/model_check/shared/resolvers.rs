//! Resolvers: a client that meets a lock checks its primary and resolves the lock accordingly.

use percolite::Timestamp;
use percolite::internal::protocol::{CheckTxnStatus, OwnerLiveness, Resolve, TxnStatus, check_txn_status, resolve};
use percolite::row::{Lock, RowState};

use super::{Delivery, Resolver, Shared, State, StepResult, step_result};
use crate::rows::{index, key};
use crate::spec::{End, Invariant, txn_id};

/// The result of a resolver's step.
pub(super) enum ResolverResult {
    NotYet(Resolver),
    Status(Option<End>),
    /// The protocol could not determine the status.
    Failed,
}

impl Shared {
    pub(super) fn resolver_step(&self, state: &mut State, resolver: Resolver) -> Result<ResolverResult, Invariant> {
        let row = if resolver.answered { resolver.row } else { resolver.primary };
        let as_read = state.rows.read(row, resolver.start_ts);
        self.resolver_reads(state, resolver, &as_read)
    }

    fn resolver_reads(
        &self,
        state: &mut State,
        mut resolver: Resolver,
        as_read: &RowState,
    ) -> Result<ResolverResult, Invariant> {
        let (start_ts, txn) = (resolver.start_ts, txn_id(resolver.start_ts));
        if !resolver.answered {
            let requester = OwnerLiveness::ByTtl { current_ts: state.newest_ts, push_above: resolver.push_above };
            return match step_result(check_txn_status(
                as_read,
                &CheckTxnStatus { row: key(resolver.primary), txn, liveness: requester },
            )) {
                StepResult::Send(sent, answer) => {
                    resolver.answer = end_of(answer);
                    resolver.sending = Some(sent);
                    Ok(ResolverResult::NotYet(resolver))
                }
                StepResult::Answer(answer) => {
                    resolver.answer = end_of(answer);
                    self.answered(state, resolver)
                }
                // The transaction's records are deleted, which is allowed only after the lock was
                // removed.
                StepResult::Refused(_) => {
                    let locked = state.rows.cells[resolver.row].lock.as_ref().is_some_and(|lock| lock.txn == txn);
                    if locked { Err(Invariant::LocksResolvable) } else { Ok(ResolverResult::Failed) }
                }
            };
        }
        let status = status_of(resolver.answer);
        match step_result(resolve(
            as_read,
            &Resolve { row: key(resolver.row), txn, status, keep_old_version: true, on_shared_engine: true },
        )) {
            StepResult::Send(sent, ()) => {
                resolver.sending = Some(sent);
                Ok(ResolverResult::NotYet(resolver))
            }
            StepResult::Answer(()) => Ok(ResolverResult::Status(resolver.answer)),
            StepResult::Refused(_) => {
                self.check_answer(state, start_ts, status)?;
                Err(Invariant::LocksResolvable)
            }
        }
    }

    /// Checks the status that the primary has given. The next step resolves the lock itself.
    fn answered(&self, state: &mut State, mut resolver: Resolver) -> Result<ResolverResult, Invariant> {
        self.check_answer(state, resolver.start_ts, status_of(resolver.answer))?;
        (resolver.answered, resolver.sending) = (true, None);
        Ok(ResolverResult::NotYet(resolver))
    }

    pub(super) fn resolver_sends(
        &self,
        state: &mut State,
        mut resolver: Resolver,
        delivery: Delivery,
    ) -> Result<ResolverResult, Invariant> {
        let Some(sent) = resolver.sending.take() else { return Ok(ResolverResult::NotYet(resolver)) };
        if self.send(state, &sent, delivery)? {
            if !resolver.answered {
                return self.answered(state, resolver);
            }
            self.coverage.hit(match resolver.answer {
                Some(End::Committed(_)) => "a resolver rolls a row forward",
                _ => "a resolver rolls a row back",
            });
            return Ok(ResolverResult::Status(resolver.answer));
        }
        if delivery == Delivery::Late {
            return Ok(ResolverResult::NotYet(resolver));
        }
        self.coverage.hit("a resolver is too late");
        let as_found = state.rows.read(index(&sent.change.row), sent.change.start_ts);
        self.resolver_reads(state, resolver, &as_found)
    }
}

pub(super) fn new_resolver(row: usize, lock: &Lock, push_above: Option<Timestamp>) -> Resolver {
    let (start_ts, primary) = (lock.txn.start_ts, index(&lock.primary));
    Resolver { row, start_ts, primary, push_above, answer: None, answered: false, sending: None }
}

fn end_of(status: TxnStatus) -> Option<End> {
    match status {
        TxnStatus::Pending => None,
        TxnStatus::Committed(commit_ts) => Some(End::Committed(commit_ts)),
        TxnStatus::RolledBack => Some(End::RolledBack),
    }
}

fn status_of(end: Option<End>) -> TxnStatus {
    match end {
        None => TxnStatus::Pending,
        Some(End::Committed(commit_ts)) => TxnStatus::Committed(commit_ts),
        Some(End::RolledBack) => TxnStatus::RolledBack,
    }
}
