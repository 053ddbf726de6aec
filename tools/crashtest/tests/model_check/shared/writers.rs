//! Writers: lock the rows, get a commit timestamp, commit the primary, then the other rows; or roll
//! back.

use percolite::Timestamp;
use percolite::internal::protocol::{
    CommitRow, Heartbeat, Prewrite, PrewriteResult, Resolve, Rollback, StepError, TxnStatus, commit_at_least,
    heartbeat, prewrite, resolve, rollback,
};
use percolite::row::{Mutation, RowState};

use super::resolvers::{ResolverResult, new_resolver};
use super::{Delivery, Shared, State, StepResult, TTL_MS, Task, step_result};
use crate::rows::{index, key};
use crate::spec::{End, Invariant, Script, TxnTimestamps, txn_id};

impl Shared {
    pub(super) fn writer(&self, state: &mut State, w: usize) -> Result<(), Invariant> {
        if let Some(resolver) = state.writers[w].resolver.take() {
            let result = self.resolver_step(state, resolver)?;
            return self.resolver_done(state, w, result);
        }
        match state.writers[w].task {
            Task::Begin => {
                let start_ts = state.next_ts();
                state.timestamps[w] = Some(TxnTimestamps { read_ts: start_ts, start_ts });
                state.writers[w].ttl_ms = TTL_MS;
                self.set_task(state, w, Task::Prewrite(0));
            }
            Task::Stamp => {
                let commit_ts = state.next_ts();
                self.set_task(state, w, Task::Commit(commit_ts));
            }
            _ => {
                let row = self.row_of(state, w);
                let as_read = state.rows.read(row, state.timestamps[w].expect("it has started").start_ts);
                self.next_step(state, w, &as_read)?;
            }
        }
        Ok(())
    }

    /// Whether an earlier writer with an equal script has not begun yet. Writers with equal scripts
    /// begin in order: any other order differs only in their numbers.
    pub(super) fn has_equal_before(&self, state: &State, w: usize) -> bool {
        (0..w).any(|before| self.scripts[before] == self.scripts[w] && state.writers[before].task == Task::Begin)
    }

    fn nth_locked(&self, w: usize, n: usize) -> &(usize, Mutation) {
        let Script { writes, primary_last, .. } = &self.scripts[w];
        &writes[if *primary_last { writes.len() - 1 - n } else { n }]
    }

    fn row_of(&self, state: &State, w: usize) -> usize {
        let writes = &self.scripts[w].writes;
        match state.writers[w].task {
            Task::Prewrite(n) => self.nth_locked(w, n).0,
            Task::Secondary(n, _) | Task::RollBack(n) => writes[n].0,
            _ => writes[0].0,
        }
    }

    fn set_task(&self, state: &mut State, w: usize, task: Task) {
        let rows = self.scripts[w].writes.len();
        let ends = matches!(task, Task::Secondary(n, _) | Task::RollBack(n) if n == rows);
        state.writers[w].task = if ends { Task::Ended } else { task };
        state.writers[w].sending = None;
        if let Task::Prewrite(n) = task {
            if n == rows {
                state.writers[w].task = Task::Stamp;
            } else if let StepResult::Send(sent, _) =
                step_result(prewrite(&RowState::default(), &self.prewrite(state, w, n)))
            {
                // The row was not read. The preconditions check that the row is as assumed.
                state.writers[w].sending = Some(sent);
            }
        }
    }

    fn prewrite(&self, state: &State, w: usize, n: usize) -> Prewrite {
        let (row, mutation) = self.nth_locked(w, n);
        let TxnTimestamps { read_ts, start_ts } = state.timestamps[w].expect("it has started");
        Prewrite {
            row: key(*row),
            txn: txn_id(start_ts),
            read_ts,
            primary: key(self.scripts[w].primary()),
            mutation: mutation.clone(),
            write_seq: 1,
            ttl_ms: state.writers[w].ttl_ms,
            min_commit_ts: start_ts.next(),
        }
    }

    /// Takes the writer's step, with the row as read.
    fn next_step(&self, state: &mut State, w: usize, as_read: &RowState) -> Result<(), Invariant> {
        let start_ts = state.timestamps[w].expect("it has started").start_ts;
        let (row, txn) = (key(self.row_of(state, w)), txn_id(start_ts));
        match state.writers[w].task {
            Task::Prewrite(n) => self.prewrite_step(state, w, n, as_read)?,
            Task::Heartbeat(n) => self.heartbeat_step(state, w, n, as_read)?,
            Task::Commit(commit_ts) => self.commit_step(state, w, commit_ts, as_read)?,
            Task::Secondary(n, commit_ts) => {
                let status = TxnStatus::Committed(commit_ts);
                match step_result(resolve(
                    as_read,
                    &Resolve { row, txn, status, keep_old_version: true, on_shared_engine: true },
                )) {
                    StepResult::Send(sent, ()) => state.writers[w].sending = Some(sent),
                    StepResult::Answer(()) | StepResult::Refused(_) => {
                        self.set_task(state, w, Task::Secondary(n + 1, commit_ts))
                    }
                }
            }
            Task::RollBack(n) => match step_result(rollback(as_read, &Rollback { row, txn })) {
                StepResult::Send(sent, ()) => state.writers[w].sending = Some(sent),
                StepResult::Answer(()) | StepResult::Refused(_) => self.set_task(state, w, Task::RollBack(n + 1)),
            },
            Task::Begin | Task::Stamp | Task::Ended => {}
        }
        Ok(())
    }

    fn prewrite_step(&self, state: &mut State, w: usize, n: usize, as_read: &RowState) -> Result<(), Invariant> {
        match step_result(prewrite(as_read, &self.prewrite(state, w, n))) {
            StepResult::Send(sent, _) => state.writers[w].sending = Some(sent),
            StepResult::Answer(prewritten) => {
                if let PrewriteResult::Committed(commit_ts) = prewritten {
                    let start_ts = state.timestamps[w].expect("it has started").start_ts;
                    self.check_answer(state, start_ts, TxnStatus::Committed(commit_ts))?;
                }
                self.prewritten(state, w, n);
            }
            StepResult::Refused(StepError::KeyIsLocked(lock)) => {
                self.coverage.hit("a writer meets a lock");
                state.writers[w].sending = None;
                state.writers[w].resolver = Some(new_resolver(self.row_of(state, w), &lock, None));
            }
            StepResult::Refused(error) => {
                if matches!(error, StepError::WriteConflict(_)) {
                    self.coverage.hit("a writer meets a newer commit");
                }
                self.roll_back(state, w)?;
            }
        }
        Ok(())
    }

    fn heartbeat_step(&self, state: &mut State, w: usize, n: usize, as_read: &RowState) -> Result<(), Invariant> {
        let start_ts = state.timestamps[w].expect("it has started").start_ts;
        let (row, txn) = (key(self.row_of(state, w)), txn_id(start_ts));
        let age_ms = state.newest_ts.millis() - start_ts.millis();
        match step_result(heartbeat(as_read, &Heartbeat { row, txn, ttl_ms: age_ms + TTL_MS })) {
            StepResult::Send(sent, ttl_ms) => {
                state.writers[w].sending = Some(sent);
                state.writers[w].ttl_ms = ttl_ms;
            }
            StepResult::Answer(ttl_ms) => {
                state.writers[w].ttl_ms = ttl_ms;
                self.set_task(state, w, Task::Prewrite(n));
            }
            StepResult::Refused(_) => self.roll_back(state, w)?,
        }
        Ok(())
    }

    fn commit_step(
        &self,
        state: &mut State,
        w: usize,
        commit_ts: Timestamp,
        as_read: &RowState,
    ) -> Result<(), Invariant> {
        let request = CommitRow {
            row: key(self.row_of(state, w)),
            txn: txn_id(state.timestamps[w].expect("it has started").start_ts),
            commit_ts,
            keep_txn_record: true,
            keep_old_version: true,
            on_shared_engine: true,
        };
        match step_result(commit_at_least(as_read, &request)) {
            StepResult::Send(sent, at) => {
                if at > commit_ts {
                    self.coverage.hit("a reader has raised an owner's min_commit_ts");
                }
                state.writers[w].task = Task::Commit(at);
                state.writers[w].sending = Some(sent);
            }
            StepResult::Answer(commit_ts) => self.committed(state, w, commit_ts)?,
            // The owner cannot know how its transaction ended. The correct result is
            // "undetermined".
            StepResult::Refused(StepError::BelowSafePoint(_)) => {
                self.coverage.hit("an owner commits after its record is pruned");
                self.set_task(state, w, Task::Ended);
            }
            StepResult::Refused(_) => {
                self.coverage.hit("an owner finds itself rolled back");
                self.roll_back(state, w)?;
            }
        }
        Ok(())
    }

    fn prewritten(&self, state: &mut State, w: usize, n: usize) {
        let start_ts = state.timestamps[w].expect("it has started").start_ts;
        let age_ms = state.newest_ts.millis() - start_ts.millis();
        let more = n + 1 < self.scripts[w].writes.len();
        let due = more && age_ms + TTL_MS / 2 >= state.writers[w].ttl_ms;
        self.set_task(state, w, if due { Task::Heartbeat(n + 1) } else { Task::Prewrite(n + 1) });
    }

    fn committed(&self, state: &mut State, w: usize, commit_ts: Timestamp) -> Result<(), Invariant> {
        let start_ts = state.timestamps[w].expect("it has started").start_ts;
        self.check_answer(state, start_ts, TxnStatus::Committed(commit_ts))?;
        self.set_task(state, w, Task::Secondary(1, commit_ts));
        Ok(())
    }

    /// Records that the transaction is rolled back, because its caller may get an error from here
    /// on, and begins to roll back its rows.
    fn roll_back(&self, state: &mut State, w: usize) -> Result<(), Invariant> {
        self.with_scenario(state, |ends, case, _| ends.end(case, w, End::RolledBack))?;
        self.set_task(state, w, Task::RollBack(0));
        Ok(())
    }

    fn resolver_done(&self, state: &mut State, w: usize, result: ResolverResult) -> Result<(), Invariant> {
        match result {
            ResolverResult::NotYet(resolver) => state.writers[w].resolver = Some(resolver),
            // The owner of the lock is live, or the status of its transaction cannot be determined.
            ResolverResult::Status(None) | ResolverResult::Failed => self.roll_back(state, w)?,
            ResolverResult::Status(Some(_)) => {
                let task = state.writers[w].task;
                self.set_task(state, w, task);
            }
        }
        Ok(())
    }

    pub(super) fn writer_sends(&self, state: &mut State, w: usize, delivery: Delivery) -> Result<(), Invariant> {
        if let Some(resolver) = state.writers[w].resolver.take() {
            let result = self.resolver_sends(state, resolver, delivery)?;
            return self.resolver_done(state, w, result);
        }
        let Some(sent) = state.writers[w].sending.take() else { return Ok(()) };
        if self.send(state, &sent, delivery)? {
            return self.arrived(state, w);
        }
        if delivery != Delivery::Late {
            // The engine answers with the row as it found it.
            let as_found = state.rows.read(index(&sent.change.row), sent.change.start_ts);
            self.next_step(state, w, &as_found)?;
        }
        Ok(())
    }

    fn arrived(&self, state: &mut State, w: usize) -> Result<(), Invariant> {
        match state.writers[w].task {
            Task::Prewrite(n) => self.prewritten(state, w, n),
            Task::Heartbeat(n) => {
                self.coverage.hit("a heartbeat arrives");
                self.set_task(state, w, Task::Prewrite(n));
            }
            Task::Commit(commit_ts) => self.committed(state, w, commit_ts)?,
            Task::Secondary(n, commit_ts) => self.set_task(state, w, Task::Secondary(n + 1, commit_ts)),
            Task::RollBack(n) => self.set_task(state, w, Task::RollBack(n + 1)),
            Task::Begin | Task::Stamp | Task::Ended => {}
        }
        Ok(())
    }
}
