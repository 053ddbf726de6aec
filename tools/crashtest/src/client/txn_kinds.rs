//! The kinds of transactions: a single attempt, one that is rolled back, one that only reads, one
//! that the store retries, and one that locks every row.

use std::collections::BTreeSet;

use percolite::{Error, ErrorKind, RetryPolicy, Timestamp, Txn};

use super::{Client, TxnEnd, WRITE_TO_DROPPED, committed_at, tolerate};
use crate::client_log::Answer;
use crate::history::Outcome;
use crate::key_encoding::{decode_key, encode_key};
use crate::recorded_txn::RecordedTxn;

/// How many attempts a transaction on every row has: each attempt may find a lock that must be
/// resolved first.
const LOCK_ALL_ATTEMPTS: usize = 3;

/// Why a closure returned an error to abort its transaction.
enum AbortReason {
    Chosen,
    Failed(Error),
}

impl From<Error> for AbortReason {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

impl Client<'_> {
    /// Runs one attempt of a transaction.
    ///
    /// # Errors
    /// Errors of the store except conflicts.
    pub fn attempt(&mut self, work: impl FnOnce(&mut RecordedTxn<'_>) -> Result<(), Error>) -> Result<TxnEnd, Error> {
        let with_marker = !self.rng.one_in(4);
        let began = self.recorder.now();
        let mut txn = self.store.begin_with(self.options())?;
        let (number, worked) = self.run_and_record(&mut txn, began, with_marker, work);
        if let Err(error) = worked {
            drop(txn);
            return self.failed(number, error);
        }
        match txn.commit() {
            Ok(commit) => {
                self.answer(number, Outcome::Committed, Some(commit.commit_ts));
                self.committed.push(commit.commit_ts);
                let dropped = self.wrote_second.and_then(|id| self.history_digests.dropped.lock().get(&id).copied());
                match dropped.filter(|dropped| *dropped < commit.commit_ts) {
                    Some(_) => Err(ErrorKind::Corruption(WRITE_TO_DROPPED.into()).into()),
                    None => Ok(TxnEnd::Committed),
                }
            }
            Err(error) => self.failed(number, error),
        }
    }

    /// A transaction that is rolled back. The checker still checks its reads.
    pub(super) fn rolled_back_txn(
        &mut self,
        work: impl FnOnce(&mut RecordedTxn<'_>) -> Result<(), Error>,
    ) -> Result<TxnEnd, Error> {
        let began = self.recorder.now();
        let mut txn = self.store.begin_with(self.options())?;
        let (number, worked) = self.run_and_record(&mut txn, began, false, work);
        self.answer(number, Outcome::Aborted, None);
        if self.rng.one_in(2) {
            txn.rollback()?;
        }
        worked.map(|()| TxnEnd::RolledBack).or_else(tolerate)
    }

    /// A transaction that reads everything and does not commit. It is recorded as committed if its
    /// end confirms that what it has read is durable.
    pub(super) fn read_only_txn(&mut self) -> Result<TxnEnd, Error> {
        let (began, store, options) = (self.recorder.now(), self.store, self.options());
        let mut number = 0;
        let left = if self.rng.one_in(2) {
            store.begin_with(options).and_then(|mut txn| {
                number = self.read_all(&mut txn, began)?;
                if self.rng.one_in(2) { txn.rollback() } else { txn.wait_reads_durable() }
            })
        } else {
            let dropped_keyspace = self.dropped.clone().filter(|_| self.rng.one_in(2));
            let left = store.transact_with(options, |txn| {
                number = self.read_all(txn, began)?;
                dropped_keyspace.as_ref().map_or(Err(AbortReason::Chosen), |dropped_keyspace| {
                    Ok(txn.put(dropped_keyspace, encode_key("dropped"), "dropped")?)
                })
            });
            match left {
                Err(AbortReason::Failed(error)) if !matches!(error.kind(), ErrorKind::KeyspaceNotFound(_)) => {
                    Err(error)
                }
                Ok(()) => Err(ErrorKind::Corruption(WRITE_TO_DROPPED.into()).into()),
                Err(_) => Ok(()),
            }
        };
        // The reads of a client with buffered commits may have shown data that a crash loses, so
        // they do not count as confirmed.
        let is_acknowledged = left.is_ok() && self.is_durable();
        self.answer(number, if is_acknowledged { Outcome::Committed } else { Outcome::Aborted }, None);
        left.map(|()| TxnEnd::RolledBack).or_else(tolerate)
    }

    fn read_all(&mut self, txn: &mut Txn, began: u64) -> Result<u64, Error> {
        let (number, worked) = self.run_and_record(txn, began, false, |txn| txn.scan("").map(drop));
        worked.map(|()| number)
    }

    /// A transaction that the store retries until it commits.
    pub(super) fn transact(
        &mut self,
        mut work: impl FnMut(&mut RecordedTxn<'_>) -> Result<(), Error>,
    ) -> Result<TxnEnd, Error> {
        let policy = RetryPolicy::default().max_attempts(6);
        let options = self.options().retry_policy(policy);
        let store = self.store;
        let mut last = None;
        // `began` must be before the attempt's snapshot, which is older than the call of the
        // closure. So each call reads the clock at its end, for the next attempt.
        let mut began = self.recorder.now();
        let done = store.transact_with(options, |txn| {
            if let Some((number, _)) = last {
                self.answer(number, Outcome::Aborted, None);
            }
            let (number, worked) = self.run_and_record(txn, began, true, &mut work);
            last = Some((number, txn.start_ts()));
            began = self.recorder.now();
            worked
        });
        let Some((number, start_ts)) = last else { return done.map(|()| TxnEnd::Committed) };
        match done {
            Ok(()) => {
                // The call returns no commit timestamp; the version of the marker row has it.
                let answered_at = self.recorder.now();
                let marker = self.rows.row_key(encode_key(&self.marker()));
                let commit_ts = committed_at(self.engine, &marker, start_ts).map(Timestamp::to_u64);
                self.recorder
                    .record_answer(number, Answer { outcome: Outcome::Committed, commit_ts, ended: answered_at });
                Ok(TxnEnd::Committed)
            }
            Err(error) => self.failed(number, error),
        }
    }

    /// A transaction that locks every row that has a value or a lock. No lock that an earlier
    /// transaction has left may block it.
    ///
    /// # Errors
    /// Errors of the store except conflicts.
    pub fn lock_every_row(&mut self) -> Result<TxnEnd, Error> {
        let mut ended = TxnEnd::RolledBack;
        for _ in 0..LOCK_ALL_ATTEMPTS {
            let locked = self.locked_keys()?;
            ended = self.attempt(|txn| {
                let there = txn.scan("")?.into_iter().map(|(key, _)| key);
                for key in there.chain(locked).collect::<BTreeSet<_>>() {
                    txn.get_for_update(&key)?;
                }
                txn.put("touched", "")
            })?;
            if ended == TxnEnd::Committed {
                break;
            }
        }
        Ok(ended)
    }

    /// The keys of locked rows.
    fn locked_keys(&self) -> Result<Vec<String>, Error> {
        let mut keys = Vec::new();
        for lock in self.store.row_locks()? {
            let row = lock?.row;
            if row.keyspace_id() == self.rows.id() {
                keys.push(decode_key(row.user_key()));
            }
        }
        Ok(keys)
    }
}
