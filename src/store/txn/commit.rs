//! The end of a transaction: commit, rollback or drop. Commits are timed and conflicts counted; a
//! slow transaction is logged, however it ended.

#[cfg(doc)]
use crate::store::options::Durability;

use crate::coordinator::CommitRequest;
use crate::error::{Error, ErrorKind, Result};
use crate::store::introspect::slow_log::{AttemptTiming, PastAttempts, TxnOutcome};
use crate::store::txn::Txn;
use crate::store::txn::outcome::{Commit, TxnEnd};
use crate::timestamp::Timestamp;

impl Txn {
    /// Commits the transaction: all of its writes become visible atomically, or none.
    ///
    /// With [`Durability::Sync`] the call returns once the commit, and everything that the
    /// transaction has read, is durable. With [`Durability::Buffered`] the call returns once the
    /// commit is visible.
    ///
    /// The call consumes the transaction, so a second commit does not compile:
    ///
    /// ```compile_fail,E0382
    /// # let store = percolite::Store::in_memory().unwrap();
    /// let txn = store.begin().unwrap();
    /// let failed = txn.commit();
    /// txn.commit();
    /// ```
    ///
    /// # Errors
    /// - [`ErrorKind::Conflict`]: another transaction was first. Nothing of this one remains.
    /// - [`ErrorKind::Undetermined`]: the store failed during the commit, which may or may not have
    ///   taken effect.
    /// - [`ErrorKind::SnapshotTooOld`]: the transaction has expired: see
    ///   [`Builder::max_snapshot_age`](crate::store::Builder::max_snapshot_age).
    /// - [`ErrorKind::KeyspaceNotFound`]: a keyspace that it writes to was dropped.
    /// - [`ErrorKind::Io`]: a full disk has no space for the deletions. Nothing was committed.
    /// - [`ErrorKind::LockLost`]: a lock grant that [fences](Txn::fence) it has ended. Nothing was
    ///   written, and no transaction fenced by that grant can commit.
    /// - Others mean that nothing was committed.
    pub fn commit(mut self) -> Result<Commit> {
        self.commit_in_place()
    }

    pub(in crate::store) fn commit_in_place(&mut self) -> Result<Commit> {
        span!(DEBUG, "commit", owner = %self.id.owner, label = self.options.label);
        let began = self.store.inner.env.elapsed();
        self.reader.timer.start(began);
        let (wrote, was_aborted) = (!self.buffer.is_empty(), self.buffer.check().is_err());
        let mut committed = self.submit();
        let at = self.reader.timer.last();
        let metrics = &self.store.inner.metrics;
        let (outcome, met) = match &mut committed {
            Ok(ts) => {
                if wrote {
                    let timer = if self.is_durable() { &metrics.commit_durable } else { &metrics.commit_buffered };
                    timer.record(at.saturating_sub(began));
                }
                if self.restarts.is_some() {
                    self.store.inner.admission.note_commit();
                }
                event!(DEBUG, owner = %self.id.owner, commit_ts = %ts, rows = self.buffer.write_set.len(),
                    label = self.options.label, "transaction committed");
                (TxnOutcome::Committed(*ts), None)
            }
            Err(error) if error.is_retryable() => {
                let conflict = error.conflict_mut();
                // If the transaction was aborted earlier, its conflict has been counted already.
                if let Some(conflict) = conflict.filter(|_| !was_aborted) {
                    self.store.inner.monitor.record_commit_conflict(&self.reader, conflict);
                }
                (TxnOutcome::Conflict, error.conflict())
            }
            Err(_) if self.is_attempt => (TxnOutcome::RolledBack, None),
            Err(error) => (TxnOutcome::Failed(error.to_string()), None),
        };
        let conflict = met.filter(|_| !self.is_attempt).map(|conflict| Box::new(conflict.clone()));
        self.ended = Some(TxnEnd { at, outcome, conflict });
        committed.map(|ts| Commit { commit_ts: ts, durable: self.is_durable() })
    }

    fn submit(&mut self) -> Result<Timestamp> {
        self.store.inner.rows.check_usable(&self.reader.view)?;
        let inner = &self.store.inner;
        let durable = self.is_durable();
        let attempt = self.attempt.take();
        let timer = &self.reader.timer;
        self.buffer.check()?;
        if self.buffer.is_empty() {
            drop(attempt);
            self.buffer.check_and_release_fences()?;
            if durable {
                inner.coordinator.wait_durable(self.reader.view.read_ts, timer)?;
            }
            inner.coordinator.note_acked(self.reader.view.read_ts);
            return Ok(self.reader.view.read_ts);
        }
        if self.buffer.large.is_some() {
            let (coordinator, view) = (&*inner.coordinator, &self.reader.view);
            let committed = self.buffer.commit_large(coordinator, view, durable, attempt, timer);
            return committed.map_err(|error| self.abort(error));
        }
        inner.coordinator.commit(CommitRequest {
            txn: self.id,
            read_ts: self.buffer.read_ts(),
            writes: &self.buffer.write_set,
            protocol: self.options.commit_protocol.unwrap_or(inner.options.protocol),
            durable,
            conditions: self.buffer.commit_conditions(&self.reader.view),
            attempt,
            timer,
        })
    }

    /// Rolls back, and waits until everything that the transaction has read is durable, so that the
    /// caller may act on it. With [`Durability::Buffered`] the call does not wait. To roll back
    /// without waiting, drop the transaction.
    ///
    /// # Errors
    /// [`ErrorKind::Undetermined`] if the sync fails: what was read may not be durable.
    /// [`ErrorKind::Closed`]. The transaction is rolled back in either case.
    pub fn rollback(mut self) -> Result<()> {
        self.attempt = None;
        self.store.inner.check_open()?;
        self.answer_without_commit()
    }

    /// Waits until everything that was read is durable, because the caller may act on it. A
    /// buffered transaction does not wait.
    pub(in crate::store) fn answer_without_commit(&self) -> Result<()> {
        if self.is_durable() { self.wait_reads_durable() } else { Ok(()) }
    }

    pub(in crate::store) fn is_durable(&self) -> bool {
        self.options.durability.unwrap_or(self.store.inner.options.durability).waits_for_sync()
    }

    /// The first conflict that the transaction met before its commit, if any.
    pub(in crate::store) fn conflict_met(&self) -> Option<Error> {
        Some(ErrorKind::Conflict(self.reader.first_conflict()?).into())
    }

    /// For the slow log: when the transaction began and ended, and the time it spent in each phase.
    /// If no commit was called, the present time is taken as the end.
    pub(in crate::store) fn last(&self) -> AttemptTiming {
        let ended = self.ended.as_ref().map_or_else(|| self.store.inner.env.elapsed(), |ended| ended.at);
        AttemptTiming::new(self.id, &self.reader, ended)
    }

    /// Blocks until everything that the transaction may have read is durable. Until then a power
    /// cut may undo what it has read.
    ///
    /// # Errors
    /// [`ErrorKind::Undetermined`] if the sync fails; [`ErrorKind::Closed`].
    pub fn wait_reads_durable(&self) -> Result<()> {
        self.store.inner.check_open()?;
        self.store.inner.coordinator.wait_durable(self.reader.view.read_ts, &self.reader.timer)
    }
}

impl Drop for Txn {
    fn drop(&mut self) {
        if !self.store.inner.process.is_current() {
            std::mem::forget((self.buffer.large.take(), self.attempt.take()));
            return;
        }
        // A large transaction that was not committed is rolled back in the background.
        drop(self.buffer.large.take());
        let monitor = &self.store.inner.monitor;
        if !self.is_attempt && monitor.has_slow_log() {
            let last = self.last();
            if monitor.is_slow(last.ended.saturating_sub(last.began)) {
                let (outcome, conflict) = match self.ended.take() {
                    Some(ended) => (ended.outcome, ended.conflict),
                    None => (TxnOutcome::RolledBack, self.reader.first_conflict()),
                };
                let mut before = PastAttempts { attempts: 1, ..PastAttempts::default() };
                before.conflicts.extend(conflict.map(|conflict| *conflict));
                monitor.log_slow(last.began, &mut before, &last, outcome);
            }
        }
    }
}
