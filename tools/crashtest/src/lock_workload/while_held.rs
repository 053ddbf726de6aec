//! What a client does while it holds a lock.

use std::time::Duration;

use percolite::{Durability, Error, ErrorKind, LockMode, Timestamp, Txn, TxnOptions};

use super::LEASE_MAX_MS;
use super::client::{HeldLock, LockClient, LockRequest};
use super::event::{LockCommit, LockEvent, LockRead};
use super::waits::reason_of;
use crate::client::committed_at;
use crate::key_encoding::encode_key;

/// What a transaction does.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Work {
    /// Writes its number to the row of the lock, fenced.
    Append,
    /// Reads the row of the lock and writes another row, fenced.
    Read,
    /// Increments a counter of the lock, unfenced: the commit may come after the lock was lost.
    Unfenced,
}

impl<'a> LockClient<'a> {
    /// Does something under a lock; returns the lock unless it has ended.
    pub(super) fn while_held(&mut self, mut held: HeldLock<'a>) -> Result<Option<HeldLock<'a>>, Error> {
        match self.rng.below(18) {
            0..=4 => return self.commit(held, Work::Append),
            5 | 6 => return self.commit(held, Work::Read),
            7 | 8 => return self.commit(held, Work::Unfenced),
            9 => self.read_under_lock(&held, false)?,
            10 | 11 => self.read_under_lock(&held, true)?,
            12 => self.write_outside(&held)?,
            13 => self.convert(&mut held)?,
            14 if held.lease.is_some() => self.renew(&mut held)?,
            14 => self.wait_lost(&mut held)?,
            15 => self.cancel_a_wait(Some(&held.name))?,
            _ => self.pause(),
        }
        if !held.is_held() {
            self.events.record_not_held(&held.name, held.token, 0);
        }
        Ok(Some(held))
    }

    fn options_of_txn(&mut self) -> TxnOptions {
        let config = self.id.config;
        TxnOptions::default().commit_protocol(config.protocol).durability(config.durability)
    }

    /// Commits a transaction under the lock. During the commit the guard may be shared; if another
    /// client drops it, the lock is not returned.
    fn commit(&mut self, mut held: HeldLock<'a>, work: Work) -> Result<Option<HeldLock<'a>>, Error> {
        let (fence, options) = (held.guard()?.fence(), self.options_of_txn());
        let mut txn = self.env.store.begin_with(options)?;
        let early = self.rng.one_in(2);
        if work != Work::Unfenced && early {
            txn.fence(&fence)?;
        }
        let of = (held.name.clone(), held.token);
        let number = self.write_and_record(&mut txn, &of, work)?;
        if work != Work::Unfenced && !early {
            txn.fence(&fence)?;
        }
        if self.rng.one_in(8) {
            self.pause();
        }
        if self.rng.one_in(12) {
            self.convert(&mut held)?;
        }
        if !self.rng.one_in(3) {
            let committed = txn.commit().map(|commit| commit.commit_ts);
            self.record_answer(number, &of, committed)?;
            return Ok(Some(held));
        }
        held.share_guard();
        let committed = txn.commit().map(|commit| commit.commit_ts);
        let is_back = held.reclaim_guard();
        self.record_answer(number, &of, committed)?;
        Ok(is_back.then_some(held))
    }

    /// Records the end of a transaction. An error that the lock was lost is also recorded as a
    /// loss, because the checker verifies losses.
    fn record_answer(
        &self,
        number: u64,
        (name, token): &(String, u64),
        answer: Result<Timestamp, Error>,
    ) -> Result<(), Error> {
        match answer {
            Ok(ts) => self.events.record(LockEvent::Committed { number, ts: ts.to_u64() }),
            Err(error) => {
                if !matches!(error.kind(), ErrorKind::Undetermined(_)) {
                    self.events.record(LockEvent::NotCommitted { number });
                }
                if matches!(error.kind(), ErrorKind::LockLost(_)) {
                    self.events.record_not_held(name, *token, 0);
                }
                return Err(error);
            }
        }
        Ok(())
    }

    /// Writes the rows of a transaction and records the commit before it is requested.
    fn write_and_record(&mut self, txn: &mut Txn, (name, token): &(String, u64), work: Work) -> Result<u64, Error> {
        let (rows, number) = (self.env.rows, self.events.now().tick);
        let row = encode_key(&format!("{}/{name}", if work == Work::Unfenced { "u" } else { "l" }));
        let before = txn.get(rows, &row)?;
        let marker = format!("m/{}.{number}", self.id.session);
        match work {
            Work::Append => txn.put(rows, &row, number.to_string())?,
            Work::Unfenced => {
                let count = before.and_then(|count| str::from_utf8(&count).ok()?.parse::<u64>().ok());
                txn.put(rows, &row, (count.unwrap_or_default() + 1).to_string())?;
            }
            Work::Read => {}
        }
        txn.put(rows, encode_key(&marker), "")?;
        self.events.record(LockEvent::Commit(Box::new(LockCommit {
            number,
            name: name.clone(),
            token: *token,
            fenced: work != Work::Unfenced,
            read_ts: txn.read_ts().to_u64(),
            start_ts: txn.start_ts().to_u64(),
            marker,
            durable: self.id.config.durability == Durability::Sync,
            appends: work == Work::Append,
        })));
        Ok(number)
    }

    fn read_under_lock(&self, held: &HeldLock<'_>, durable: bool) -> Result<(), Error> {
        let (store, rows, row) = (self.env.store, self.env.rows, encode_key(&format!("l/{}", held.name)));
        let (read_ts, last) = if durable {
            let snapshot = store.snapshot()?;
            (snapshot.read_ts(), snapshot.get(rows, &row)?)
        } else {
            let txn = store.begin()?;
            (txn.read_ts(), txn.get(rows, &row)?)
        };
        self.events.record(LockEvent::Read(LockRead {
            name: held.name.clone(),
            token: held.token,
            read_ts: read_ts.to_u64(),
            durable,
            seen: last.and_then(|last| str::from_utf8(&last).ok()?.parse().ok()).unwrap_or_default(),
        }));
        Ok(())
    }

    /// Writes the token to the register outside the store. It is a violation if the register has
    /// seen a greater token although this grant is still held.
    fn write_outside(&self, held: &HeldLock<'_>) -> Result<(), Error> {
        if held.mode != LockMode::Exclusive {
            return Ok(());
        }
        let taken = {
            let mut register = self.env.shared.register.lock();
            let newest = register.entry(held.name.clone()).or_default();
            let taken = *newest <= held.token;
            *newest = held.token.max(*newest);
            taken
        };
        if !taken && held.is_held() {
            let what = format!("lock: token order: the held token {} is smaller than an earlier one", held.token);
            return Err(ErrorKind::Corruption(what).into());
        }
        Ok(())
    }

    fn renew(&self, held: &mut HeldLock<'_>) -> Result<(), Error> {
        let from = (self.events.now(), self.env.runtime.unix_millis());
        let time = Duration::from_millis(LEASE_MAX_MS);
        // From this event on the checker knows no latest end of the lease. It is recorded before
        // the renewal, which may take effect even if its answer is lost. The earliest end stays:
        // the new term is not shorter than the old one.
        self.events.record(LockEvent::Resumed { name: held.name.clone(), token: held.token });
        match held.guard()?.renew(time) {
            Ok(()) => {
                let (name, term) = (held.name.clone(), self.term(from, time, true));
                let at = self.events.now();
                self.events.record(LockEvent::Renewed { name, token: held.token, term, at });
            }
            Err(error) if matches!(error.kind(), ErrorKind::LockLost(_)) => {
                self.events.record_not_held(&held.name, held.token, 0);
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Converts from shared to exclusive or back; a failed conversion leaves the lock unchanged.
    fn convert(&mut self, held: &mut HeldLock<'_>) -> Result<(), Error> {
        let to = match held.mode {
            LockMode::Exclusive => LockMode::Shared,
            LockMode::Shared => LockMode::Exclusive,
            _ => return Ok(()),
        };
        if held.name == super::SEMAPHORE {
            return Ok(());
        }
        let request = LockRequest { name: held.name.clone(), mode: to, wait: self.random_wait(), lease: None };
        let wall = self.env.runtime.unix_millis();
        let by = self.events.record_end_attempt(&held.name, held.token);
        let requested = self.record_request(&request);
        let converted =
            if to == LockMode::Exclusive { held.guard()?.upgrade(request.wait) } else { held.guard()?.downgrade() };
        let (at, token) = (self.events.now(), held.guard()?.token().to_u64());
        match converted {
            Ok(()) => {
                let term = held.lease.map(|time| self.term((requested, wall), time, true));
                self.events.record(LockEvent::Granted { request: requested.tick, token, id: None, at, term });
                self.env.shared.held.lock().push((held.name.clone(), token));
                (held.mode, held.token) = (to, token);
                Ok(())
            }
            Err(error) => {
                if token == held.token && held.is_held() {
                    let (name, at) = (held.name.clone(), self.events.now());
                    self.events.record(LockEvent::EndFailed { name, token, by, at });
                }
                self.check_refusal(&request, requested, error)
            }
        }
    }

    /// Runs a transaction that began before the lock was taken. The transaction must see everything
    /// that earlier holders have committed, or be refused.
    pub(super) fn begin_before_lock(&mut self) -> Result<(), Error> {
        let options = self.options_of_txn();
        let mut txn = self.env.store.begin_with(options)?;
        let request = LockRequest { lease: None, ..self.random_request() };
        let Some(mut held) = self.acquire(request)? else { return Ok(()) };
        let of = (held.name.clone(), held.token);
        let work = if self.rng.one_in(3) { Work::Append } else { Work::Read };
        let fence = held.guard()?.fence();
        let fenced = txn.fence(&fence);
        let done = fenced.and_then(|()| self.write_and_record(&mut txn, &of, work)).and_then(|number| {
            let committed = txn.commit().map(|commit| commit.commit_ts);
            self.record_answer(number, &of, committed)
        });
        self.release(held)?;
        done
    }

    /// A transaction with a lock of its own (`transact_with_lock`).
    pub(super) fn transact(&mut self) -> Result<(), Error> {
        let request = LockRequest { lease: None, ..self.random_request() };
        let (options, store) = (self.options_of_txn(), self.env.store);
        let requested = self.record_request(&request);
        let lock = self.options(&request, requested);
        let (reason, name) = (reason_of(requested), request.name.as_str());
        let (mut held, mut last) = (None, None);
        let pauses = self.rng.one_in(8);
        let done: Result<(), Error> = store.transact_with_lock(name, lock, options, |txn| {
            let at = self.events.now();
            if let Some((number, _, _)) = last.take() {
                self.events.record(LockEvent::NotCommitted { number });
            }
            let Some(token) = held.or_else(|| self.own_token(name, &reason)) else { return Ok(()) };
            if held.replace(token).is_none() {
                self.events.record(LockEvent::Granted { request: requested.tick, token, id: None, at, term: None });
                self.env.shared.held.lock().push((request.name.clone(), token));
            }
            // An error ends the call, and with it the grant.
            let marked = self
                .write_and_record(txn, &(request.name.clone(), token), Work::Append)
                .inspect_err(|_| _ = self.events.record_end_attempt(&request.name, token))?;
            last = Some((marked, format!("m/{}.{marked}", self.id.session), txn.start_ts()));
            if pauses {
                self.pause();
            }
            self.events.record_end_attempt(&request.name, token);
            Ok(())
        });
        match (done, last) {
            (Ok(()), Some((number, marker, start_ts))) => {
                let row = self.env.rows.row_key(encode_key(&marker));
                match committed_at(self.env.engine, &row, start_ts) {
                    Some(ts) => self.events.record(LockEvent::Committed { number, ts: ts.to_u64() }),
                    None => return Ok(()),
                }
                Ok(())
            }
            (Ok(()), None) => Ok(()),
            (Err(error), last) => {
                if let Some((number, _, _)) = last.filter(|_| !matches!(error.kind(), ErrorKind::Undetermined(_))) {
                    self.events.record(LockEvent::NotCommitted { number });
                }
                match error.kind() {
                    ErrorKind::LockNotAvailable(_) | ErrorKind::Cancelled(_) => {
                        self.check_refusal(&request, requested, error)
                    }
                    _ => Err(error),
                }
            }
        }
    }

    /// The token of the client's own grant, which is recognized by the reason of its request.
    fn own_token(&self, name: &str, reason: &str) -> Option<u64> {
        let holders = self.env.store.lock_holders(name).ok()?;
        let own = holders.iter().find(|holder| holder.reason.as_deref() == Some(reason))?;
        own.token.map(Timestamp::to_u64)
    }
}
