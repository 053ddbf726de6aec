//! What is done while a lock is held.

use std::time::Duration;

use percolite::{Durability, Error, ErrorKind, LockMode, Timestamp, Txn, TxnOptions};

use super::LEASE_MAX_MS;
use super::locker::{Asking, Holding, Locker};
use super::note::{Commit, Look, Note};
use crate::client::committed_at;
use crate::keys::stored;

/// What a transaction does.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Deed {
    /// Appends its token to the row of the lock, fenced.
    Appends,
    /// Reads that row and writes elsewhere, fenced.
    Reads,
    /// Counts in another row, unfenced: it is wrong where another locker counts meanwhile.
    Unfenced,
}

impl<'a> Locker<'a> {
    /// Does something under a lock; gives it back unless it has ended.
    pub(super) fn under(&mut self, mut holding: Holding<'a>) -> Result<Option<Holding<'a>>, Error> {
        match self.dice.below(16) {
            0..=4 => return self.commit(holding, Deed::Appends),
            5 | 6 => return self.commit(holding, Deed::Reads),
            7 | 8 => return self.commit(holding, Deed::Unfenced),
            9 => self.look(&holding, false)?,
            10 | 11 => self.look(&holding, true)?,
            12 => self.write_outside(&holding)?,
            13 => self.convert(&mut holding)?,
            14 if holding.lease.is_some() => self.renew(&mut holding)?,
            _ => self.pause(),
        }
        if !holding.is_held() {
            self.pen.not_there(&holding.name, holding.token, 0);
        }
        Ok(Some(holding))
    }

    fn options_of_txn(&mut self) -> TxnOptions {
        let habits = self.who.habits;
        TxnOptions {
            commit_protocol: Some(habits.protocol),
            durability: Some(habits.durability),
            ..TxnOptions::default()
        }
    }

    /// A transaction under the lock. Meanwhile the guard may lie where any locker may drop it.
    fn commit(&mut self, mut holding: Holding<'a>, deed: Deed) -> Result<Option<Holding<'a>>, Error> {
        let (fence, options) = (holding.guard()?.fence(), self.options_of_txn());
        let mut txn = self.world.store.begin_with(options)?;
        let early = self.dice.one_in(2);
        if deed != Deed::Unfenced && early {
            txn.fence(&fence)?;
        }
        let of = (holding.name.clone(), holding.token);
        let number = self.write(&mut txn, &of, deed)?;
        if deed != Deed::Unfenced && !early {
            txn.fence(&fence)?;
        }
        if self.dice.one_in(8) {
            self.pause();
        }
        if self.dice.one_in(12) {
            self.convert(&mut holding)?;
        }
        if !self.dice.one_in(3) {
            let committed = txn.commit().map(|commit| commit.commit_ts);
            self.answered(number, &of, committed)?;
            return Ok(Some(holding));
        }
        holding.put_on_shelf();
        let committed = txn.commit().map(|commit| commit.commit_ts);
        let is_back = holding.take_back();
        self.answered(number, &of, committed)?;
        Ok(is_back.then_some(holding))
    }

    /// Enters how a transaction has ended. One that returned that the lock was lost must have lost it.
    fn answered(
        &self,
        number: u64,
        (name, token): &(String, u64),
        answer: Result<Timestamp, Error>,
    ) -> Result<(), Error> {
        match answer {
            Ok(ts) => self.pen.note(Note::Committed { number, ts: ts.to_u64() }),
            Err(why) => {
                if !matches!(why.kind(), ErrorKind::Undetermined(_)) {
                    self.pen.note(Note::NotCommitted { number });
                }
                if matches!(why.kind(), ErrorKind::LockLost(_)) {
                    self.pen.not_there(name, *token, 0);
                }
                return Err(why);
            }
        }
        Ok(())
    }

    /// What a transaction writes; it is entered before its commit is asked for.
    fn write(&mut self, txn: &mut Txn, (name, token): &(String, u64), deed: Deed) -> Result<u64, Error> {
        let (rows, number) = (self.world.rows, self.pen.now().tick);
        let row = stored(&format!("{}/{name}", if deed == Deed::Unfenced { "u" } else { "l" }));
        let before = txn.get(rows, &row)?;
        let marker = format!("m/{}.{number}", self.who.session);
        match deed {
            Deed::Appends => txn.put(rows, &row, number.to_string())?,
            Deed::Unfenced => {
                let count = before.and_then(|count| str::from_utf8(&count).ok()?.parse::<u64>().ok());
                txn.put(rows, &row, (count.unwrap_or_default() + 1).to_string())?;
            }
            Deed::Reads => {}
        }
        txn.put(rows, stored(&marker), "")?;
        self.pen.note(Note::Commit(Box::new(Commit {
            number,
            name: name.clone(),
            token: *token,
            fenced: deed != Deed::Unfenced,
            read_ts: txn.read_ts().to_u64(),
            start_ts: txn.start_ts().to_u64(),
            marker,
            durable: self.who.habits.durability == Durability::Sync,
            appends: deed == Deed::Appends,
        })));
        Ok(number)
    }

    fn look(&self, holding: &Holding<'_>, durable: bool) -> Result<(), Error> {
        let (store, rows, row) = (self.world.store, self.world.rows, stored(&format!("l/{}", holding.name)));
        let (read_ts, last) = if durable {
            let snapshot = store.snapshot()?;
            (snapshot.read_ts(), snapshot.get(rows, &row)?)
        } else {
            let txn = store.begin()?;
            (txn.read_ts(), txn.get(rows, &row)?)
        };
        self.pen.note(Note::Look(Look {
            name: holding.name.clone(),
            token: holding.token,
            read_ts: read_ts.to_u64(),
            durable,
            saw: last.and_then(|last| str::from_utf8(&last).ok()?.parse().ok()).unwrap_or_default(),
        }));
        Ok(())
    }

    /// Outside of the store the token is all that counts.
    fn write_outside(&self, holding: &Holding<'_>) -> Result<(), Error> {
        if holding.mode != LockMode::Exclusive {
            return Ok(());
        }
        let taken = {
            let mut register = self.world.common.register.lock();
            let newest = register.entry(holding.name.clone()).or_default();
            let taken = *newest <= holding.token;
            *newest = holding.token.max(*newest);
            taken
        };
        if !taken && holding.is_held() {
            let what = format!("I2 tokens grow: one that is held is smaller than an earlier one: {}", holding.token);
            return Err(ErrorKind::Corruption(what).into());
        }
        Ok(())
    }

    fn renew(&self, holding: &mut Holding<'_>) -> Result<(), Error> {
        let from = (self.pen.now(), self.world.runtime.unix_millis());
        let time = Duration::from_millis(LEASE_MAX_MS);
        // A longer one than before, so that what is not answered takes nothing away.
        self.pen.note(Note::Resumed { name: holding.name.clone(), token: holding.token });
        match holding.guard()?.renew(time) {
            Ok(()) => {
                let (name, term) = (holding.name.clone(), self.term(from, time, true));
                self.pen.note(Note::Renewed { name, token: holding.token, term });
            }
            Err(why) if matches!(why.kind(), ErrorKind::LockLost(_)) => {
                self.pen.not_there(&holding.name, holding.token, 0);
            }
            Err(why) => return Err(why),
        }
        Ok(())
    }

    /// From shared to exclusive or back; what fails leaves the lock as it was.
    fn convert(&mut self, holding: &mut Holding<'_>) -> Result<(), Error> {
        let to = match holding.mode {
            LockMode::Exclusive => LockMode::Shared,
            LockMode::Shared => LockMode::Exclusive,
            _ => return Ok(()),
        };
        if holding.name == super::PERMITS {
            return Ok(());
        }
        let asking = Asking { name: holding.name.clone(), mode: to, wait: self.wait(), lease: None };
        let wall = self.world.runtime.unix_millis();
        let by = self.pen.ending(&holding.name, holding.token);
        let asked = self.asked(&asking);
        let converted = if to == LockMode::Exclusive {
            holding.guard()?.upgrade(asking.wait)
        } else {
            holding.guard()?.downgrade()
        };
        let (at, token) = (self.pen.now(), holding.guard()?.token().to_u64());
        match converted {
            Ok(()) => {
                let term = holding.lease.map(|time| self.term((asked, wall), time, true));
                self.pen.note(Note::Returned { request: asked.tick, token, id: None, at, term });
                self.world.common.held.lock().push((holding.name.clone(), token));
                (holding.mode, holding.token) = (to, token);
                Ok(())
            }
            Err(why) => {
                if token == holding.token && holding.is_held() {
                    let (name, at) = (holding.name.clone(), self.pen.now());
                    self.pen.note(Note::Kept { name, token, by, at });
                }
                self.refused(&asking, asked, why)
            }
        }
    }

    /// A transaction that has begun before the lock was taken sees what there was under it before, or is refused.
    pub(super) fn late(&mut self) -> Result<(), Error> {
        let options = self.options_of_txn();
        let mut txn = self.world.store.begin_with(options)?;
        let asking = Asking { lease: None, ..self.asking() };
        let Some(mut holding) = self.take(asking)? else { return Ok(()) };
        let of = (holding.name.clone(), holding.token);
        let deed = if self.dice.one_in(3) { Deed::Appends } else { Deed::Reads };
        let fence = holding.guard()?.fence();
        let fenced = txn.fence(&fence);
        let done = fenced.and_then(|()| self.write(&mut txn, &of, deed)).and_then(|number| {
            let committed = txn.commit().map(|commit| commit.commit_ts);
            self.answered(number, &of, committed)
        });
        self.let_go(holding)?;
        done
    }

    /// A transaction under a lock of its own.
    pub(super) fn transact(&mut self) -> Result<(), Error> {
        let asking = Asking { lease: None, ..self.asking() };
        let (options, store) = (self.options_of_txn(), self.world.store);
        let lock = self.options(&asking);
        let asked = self.asked(&asking);
        let (why, name) = (asked.tick.to_string(), asking.name.as_str());
        let (mut held, mut last) = (None, None);
        let pauses = self.dice.one_in(8);
        let done: Result<(), Error> = store.transact_with_lock(name, lock.reason(why.as_str()), options, |txn| {
            let at = self.pen.now();
            if let Some((number, _, _)) = last.take() {
                self.pen.note(Note::NotCommitted { number });
            }
            let Some(token) = held.or_else(|| self.own_token(name, &why)) else { return Ok(()) };
            if held.replace(token).is_none() {
                self.pen.note(Note::Returned { request: asked.tick, token, id: None, at, term: None });
                self.world.common.held.lock().push((asking.name.clone(), token));
            }
            let marked = self.write(txn, &(asking.name.clone(), token), Deed::Appends)?;
            last = Some((marked, format!("m/{}.{marked}", self.who.session), txn.start_ts()));
            if pauses {
                self.pause();
            }
            self.pen.ending(&asking.name, token);
            Ok(())
        });
        match (done, last) {
            (Ok(()), Some((number, marker, start_ts))) => {
                let row = self.world.rows.row_key(stored(&marker));
                match committed_at(self.world.engine, &row, start_ts) {
                    Some(ts) => self.pen.note(Note::Committed { number, ts: ts.to_u64() }),
                    None => return Ok(()),
                }
                Ok(())
            }
            (Ok(()), None) => Ok(()),
            (Err(why), last) => {
                if let Some((number, _, _)) = last.filter(|_| !matches!(why.kind(), ErrorKind::Undetermined(_))) {
                    self.pen.note(Note::NotCommitted { number });
                }
                match why.kind() {
                    ErrorKind::LockNotAvailable(_) | ErrorKind::Cancelled(_) => self.refused(&asking, asked, why),
                    _ => Err(why),
                }
            }
        }
    }

    /// The token of the lock that was taken for this.
    fn own_token(&self, name: &str, why: &str) -> Option<u64> {
        let holders = self.world.store.lock_holders(name).ok()?;
        let own = holders.iter().find(|holder| holder.reason.as_deref() == Some(why))?;
        own.token.map(Timestamp::to_u64)
    }
}
