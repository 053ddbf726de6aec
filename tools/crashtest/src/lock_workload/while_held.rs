//! What is done while a lock is held.

use std::time::Duration;

use percolite::{Durability, Error, ErrorKind, LockMode, Timestamp, Txn, TxnOptions};

use super::LEASE_MAX_MS;
use super::client::{HeldLock, LockClient, LockRequest};
use super::event::{LockCommit, LockEvent, LockRead};
use crate::client::committed_at;
use crate::key_encoding::encode_key;

/// What a transaction does.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Work {
    /// Appends its token to the row of the lock, fenced.
    Append,
    /// Reads that row and writes elsewhere, fenced.
    Read,
    /// Counts in another row, unfenced: it is wrong where another locker counts meanwhile.
    Unfenced,
}

impl<'a> LockClient<'a> {
    /// Does something under a lock; gives it back unless it has ended.
    pub(super) fn while_held(&mut self, mut token_held: HeldLock<'a>) -> Result<Option<HeldLock<'a>>, Error> {
        match self.rng.below(16) {
            0..=4 => return self.commit(token_held, Work::Append),
            5 | 6 => return self.commit(token_held, Work::Read),
            7 | 8 => return self.commit(token_held, Work::Unfenced),
            9 => self.read_under_lock(&token_held, false)?,
            10 | 11 => self.read_under_lock(&token_held, true)?,
            12 => self.write_outside(&token_held)?,
            13 => self.convert(&mut token_held)?,
            14 if token_held.lease.is_some() => self.renew(&mut token_held)?,
            _ => self.pause(),
        }
        if !token_held.is_held() {
            self.events.record_not_held(&token_held.name, token_held.token, 0);
        }
        Ok(Some(token_held))
    }

    fn options_of_txn(&mut self) -> TxnOptions {
        let config = self.id.config;
        TxnOptions {
            commit_protocol: Some(config.protocol),
            durability: Some(config.durability),
            ..TxnOptions::default()
        }
    }

    /// A transaction under the lock. Meanwhile the guard may lie where any locker may drop it.
    fn commit(&mut self, mut token_held: HeldLock<'a>, work: Work) -> Result<Option<HeldLock<'a>>, Error> {
        let (fence, options) = (token_held.guard()?.fence(), self.options_of_txn());
        let mut txn = self.env.store.begin_with(options)?;
        let early = self.rng.one_in(2);
        if work != Work::Unfenced && early {
            txn.fence(&fence)?;
        }
        let of = (token_held.name.clone(), token_held.token);
        let number = self.write_and_record(&mut txn, &of, work)?;
        if work != Work::Unfenced && !early {
            txn.fence(&fence)?;
        }
        if self.rng.one_in(8) {
            self.pause();
        }
        if self.rng.one_in(12) {
            self.convert(&mut token_held)?;
        }
        if !self.rng.one_in(3) {
            let committed = txn.commit().map(|commit| commit.commit_ts);
            self.record_answer(number, &of, committed)?;
            return Ok(Some(token_held));
        }
        token_held.share_guard();
        let committed = txn.commit().map(|commit| commit.commit_ts);
        let is_back = token_held.reclaim_guard();
        self.record_answer(number, &of, committed)?;
        Ok(is_back.then_some(token_held))
    }

    /// Enters how a transaction has ended. One that returned that the lock was lost must have lost it.
    fn record_answer(
        &self,
        number: u64,
        (name, token): &(String, u64),
        answer: Result<Timestamp, Error>,
    ) -> Result<(), Error> {
        match answer {
            Ok(ts) => self.events.record(LockEvent::Committed { number, ts: ts.to_u64() }),
            Err(why) => {
                if !matches!(why.kind(), ErrorKind::Undetermined(_)) {
                    self.events.record(LockEvent::NotCommitted { number });
                }
                if matches!(why.kind(), ErrorKind::LockLost(_)) {
                    self.events.record_not_held(name, *token, 0);
                }
                return Err(why);
            }
        }
        Ok(())
    }

    /// What a transaction writes; it is entered before its commit is asked for.
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

    fn read_under_lock(&self, token_held: &HeldLock<'_>, durable: bool) -> Result<(), Error> {
        let (store, rows, row) = (self.env.store, self.env.rows, encode_key(&format!("l/{}", token_held.name)));
        let (read_ts, last) = if durable {
            let snapshot = store.snapshot()?;
            (snapshot.read_ts(), snapshot.get(rows, &row)?)
        } else {
            let txn = store.begin()?;
            (txn.read_ts(), txn.get(rows, &row)?)
        };
        self.events.record(LockEvent::Read(LockRead {
            name: token_held.name.clone(),
            token: token_held.token,
            read_ts: read_ts.to_u64(),
            durable,
            seen: last.and_then(|last| str::from_utf8(&last).ok()?.parse().ok()).unwrap_or_default(),
        }));
        Ok(())
    }

    /// Outside of the store the token is all that counts.
    fn write_outside(&self, token_held: &HeldLock<'_>) -> Result<(), Error> {
        if token_held.mode != LockMode::Exclusive {
            return Ok(());
        }
        let taken = {
            let mut register = self.env.shared.register.lock();
            let newest = register.entry(token_held.name.clone()).or_default();
            let taken = *newest <= token_held.token;
            *newest = token_held.token.max(*newest);
            taken
        };
        if !taken && token_held.is_held() {
            let what =
                format!("lock: token order: one that is held is smaller than an earlier one: {}", token_held.token);
            return Err(ErrorKind::Corruption(what).into());
        }
        Ok(())
    }

    fn renew(&self, token_held: &mut HeldLock<'_>) -> Result<(), Error> {
        let from = (self.events.now(), self.env.runtime.unix_millis());
        let time = Duration::from_millis(LEASE_MAX_MS);
        // A longer one than before, so that what is not answered takes nothing away.
        self.events.record(LockEvent::Resumed { name: token_held.name.clone(), token: token_held.token });
        match token_held.guard()?.renew(time) {
            Ok(()) => {
                let (name, term) = (token_held.name.clone(), self.term(from, time, true));
                self.events.record(LockEvent::Renewed { name, token: token_held.token, term });
            }
            Err(why) if matches!(why.kind(), ErrorKind::LockLost(_)) => {
                self.events.record_not_held(&token_held.name, token_held.token, 0);
            }
            Err(why) => return Err(why),
        }
        Ok(())
    }

    /// From shared to exclusive or back; what fails leaves the lock as it was.
    fn convert(&mut self, token_held: &mut HeldLock<'_>) -> Result<(), Error> {
        let to = match token_held.mode {
            LockMode::Exclusive => LockMode::Shared,
            LockMode::Shared => LockMode::Exclusive,
            _ => return Ok(()),
        };
        if token_held.name == super::SEMAPHORE {
            return Ok(());
        }
        let request = LockRequest { name: token_held.name.clone(), mode: to, wait: self.random_wait(), lease: None };
        let wall = self.env.runtime.unix_millis();
        let by = self.events.record_end_attempt(&token_held.name, token_held.token);
        let requested = self.record_request(&request);
        let converted = if to == LockMode::Exclusive {
            token_held.guard()?.upgrade(request.wait)
        } else {
            token_held.guard()?.downgrade()
        };
        let (at, token) = (self.events.now(), token_held.guard()?.token().to_u64());
        match converted {
            Ok(()) => {
                let term = token_held.lease.map(|time| self.term((requested, wall), time, true));
                self.events.record(LockEvent::Granted { request: requested.tick, token, id: None, at, term });
                self.env.shared.held.lock().push((token_held.name.clone(), token));
                (token_held.mode, token_held.token) = (to, token);
                Ok(())
            }
            Err(why) => {
                if token == token_held.token && token_held.is_held() {
                    let (name, at) = (token_held.name.clone(), self.events.now());
                    self.events.record(LockEvent::EndFailed { name, token, by, at });
                }
                self.check_refusal(&request, requested, why)
            }
        }
    }

    /// A transaction that has begun before the lock was taken sees what there was under it before, or is refused.
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

    /// A transaction under a lock of its own.
    pub(super) fn transact(&mut self) -> Result<(), Error> {
        let request = LockRequest { lease: None, ..self.random_request() };
        let (options, store) = (self.options_of_txn(), self.env.store);
        let lock = self.options(&request);
        let requested = self.record_request(&request);
        let (why, name) = (requested.tick.to_string(), request.name.as_str());
        let (mut token_held, mut last) = (None, None);
        let pauses = self.rng.one_in(8);
        let done: Result<(), Error> = store.transact_with_lock(name, lock.reason(why.as_str()), options, |txn| {
            let at = self.events.now();
            if let Some((number, _, _)) = last.take() {
                self.events.record(LockEvent::NotCommitted { number });
            }
            let Some(token) = token_held.or_else(|| self.own_token(name, &why)) else { return Ok(()) };
            if token_held.replace(token).is_none() {
                self.events.record(LockEvent::Granted { request: requested.tick, token, id: None, at, term: None });
                self.env.shared.held.lock().push((request.name.clone(), token));
            }
            let marked = self.write_and_record(txn, &(request.name.clone(), token), Work::Append)?;
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
            (Err(why), last) => {
                if let Some((number, _, _)) = last.filter(|_| !matches!(why.kind(), ErrorKind::Undetermined(_))) {
                    self.events.record(LockEvent::NotCommitted { number });
                }
                match why.kind() {
                    ErrorKind::LockNotAvailable(_) | ErrorKind::Cancelled(_) => {
                        self.check_refusal(&request, requested, why)
                    }
                    _ => Err(why),
                }
            }
        }
    }

    /// The token of the lock that was taken for this.
    fn own_token(&self, name: &str, why: &str) -> Option<u64> {
        let holders = self.env.store.lock_holders(name).ok()?;
        let own = holders.iter().find(|holder| holder.reason.as_deref() == Some(why))?;
        own.token.map(Timestamp::to_u64)
    }
}
