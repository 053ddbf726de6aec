//! A client that takes locks, in every way that there is.

use std::time::Duration;

use percolite::engine::Engine;
use percolite::runtime::Env;
use percolite::{
    CancelToken, Error, ErrorKind, Keyspace, KeyspaceId, LockGuard, LockMode, LockOptions, LockWaitPolicy, Store,
    Timestamp,
};

use super::note::{Moment, Notary, Note, Term, nanos};
use super::{Common, LEASE_MAX_MS, MOST, NAMES, PERMITS};
use crate::client::Who;
use crate::dice::Dice;

/// A wait that ends so much later than it should is one that has not ended by itself.
const LATE: Duration = Duration::from_secs(60);

const CATALOG: KeyspaceId = KeyspaceId(0);
/// No lease is shorter.
const LEASE_MIN: Duration = Duration::from_millis(100);

/// What a locker lives in.
#[derive(Clone, Copy)]
pub struct World<'a> {
    /// The store.
    pub store: &'a Store,
    /// To look up when a transaction was committed.
    pub engine: &'a dyn Engine,
    /// Where it writes.
    pub rows: &'a Keyspace,
    /// Its clocks are the store's.
    pub runtime: &'a dyn Env,
    /// Where it notes what happens.
    pub notary: &'a dyn Notary,
    /// Those beside it.
    pub common: &'a Common,
}

/// What notes are written with.
#[derive(Clone, Copy)]
pub struct Pen<'a> {
    /// Whose store it is.
    pub world: World<'a>,
    /// In which life.
    pub life: u32,
}

impl Pen<'_> {
    /// This moment.
    pub fn now(&self) -> Moment {
        let time = nanos(self.world.runtime.elapsed());
        Moment { life: self.life, time, tick: self.world.notary.tick() }
    }

    /// Enters something.
    pub fn note(&self, note: Note) {
        self.world.notary.note(note);
    }

    /// Notes that a grant is about to be ended; the answer is the number of this attempt.
    pub fn ending(&self, name: &str, token: u64) -> u64 {
        let (at, common) = (self.now(), self.world.common);
        common.held.lock().retain(|(_, other)| *other != token);
        common.over.lock().push((name.to_owned(), token));
        self.note(Note::Ending { name: name.into(), token, by: at.tick, at });
        at.tick
    }

    /// Notes that a grant was found to be over already by `by`, an attempt that may have been about to end it.
    pub fn not_there(&self, name: &str, token: u64, by: u64) {
        let at = self.now();
        self.note(Note::NotThere { name: name.into(), token, by, at });
    }
}

/// A client that takes locks at random and notes what its calls return.
pub struct Locker<'a> {
    pub(super) world: World<'a>,
    pub(super) pen: Pen<'a>,
    pub(super) who: Who,
    pub(super) dice: Dice,
    /// Longest pause, in milliseconds.
    pub(super) pauses_ms: usize,
}

/// A lock in hand. That it is about to be dropped is noted first.
pub(super) struct Holding<'a> {
    pub pen: Pen<'a>,
    pub name: String,
    pub mode: LockMode,
    pub token: u64,
    /// Its time at least.
    pub lease: Option<Duration>,
    guard: Option<LockGuard>,
}

impl Holding<'_> {
    pub fn is_held(&self) -> bool {
        self.guard.as_ref().is_some_and(LockGuard::is_held)
    }

    /// Puts the guard where any locker may drop it.
    pub fn put_on_shelf(&mut self) {
        let guard = self.guard.take();
        let shelved = guard.map(|guard| (self.name.clone(), self.token, guard));
        self.pen.world.common.shelf.lock().extend(shelved);
    }

    /// The answer is whether it was still there.
    pub fn take_back(&mut self) -> bool {
        self.guard = self.pen.world.common.back_off_shelf(self.token);
        self.guard.is_some()
    }

    pub fn guard(&mut self) -> Result<&mut LockGuard, Error> {
        self.guard.as_mut().ok_or_else(|| ErrorKind::Cancelled("the guard is elsewhere".into()).into())
    }
}

impl Drop for Holding<'_> {
    fn drop(&mut self) {
        if let Some(guard) = self.guard.take() {
            self.pen.ending(&self.name, self.token);
            drop(guard);
        }
    }
}

/// How a lock is asked for.
pub(super) struct Asking {
    pub name: String,
    pub mode: LockMode,
    pub wait: LockWaitPolicy,
    /// Its time, and whether it is not renewed.
    pub lease: Option<(Duration, bool)>,
}

impl<'a> Locker<'a> {
    /// A locker whose pauses are not longer than that, in milliseconds.
    pub fn new(world: World<'a>, who: Who, dice: Dice, pauses_ms: usize) -> Self {
        Self { world, pen: Pen { world, life: who.life }, who, dice, pauses_ms }
    }

    /// Does something.
    ///
    /// # Errors
    /// Those that a correct store does not return here.
    pub fn turn(&mut self) -> Result<(), Error> {
        let done = match self.dice.below(20) {
            0..=8 => self.hold(),
            9..=11 => self.transact(),
            12 | 13 => self.force(),
            14 => self.misuse(),
            15 => self.get_lock(),
            16 => self.take_up(),
            17 => {
                self.clear_shelf();
                Ok(())
            }
            18 => {
                let cancel = self.world.common.cancels.lock().pop();
                cancel.iter().for_each(CancelToken::cancel);
                Ok(())
            }
            _ => self.late(),
        };
        done.or_else(may_happen)
    }

    /// Drops a guard that another locker, which is about to commit, has put where any may drop it.
    fn clear_shelf(&mut self) {
        if let Some((name, token, guard)) = self.world.common.off_shelf(self.dice.below(8)) {
            self.pen.ending(&name, token);
            drop(guard);
        }
    }

    pub(super) fn asking(&mut self) -> Asking {
        let is_permit = self.dice.one_in(5);
        let name = if is_permit { PERMITS } else { self.dice.pick(&NAMES).copied().unwrap_or(PERMITS) };
        let mode = match (is_permit, self.dice.below(5)) {
            (_, 0 | 1) => LockMode::Exclusive,
            (false, 2) => LockMode::Exclusive,
            (true, _) => LockMode::Semaphore(MOST),
            (false, _) => LockMode::Shared,
        };
        let lease = (!is_permit && self.dice.one_in(3)).then(|| {
            let time = Duration::from_millis([100, 150, 300, LEASE_MAX_MS][self.dice.below(4)]);
            (time, self.dice.one_in(2))
        });
        Asking { name: name.into(), mode, wait: self.wait(), lease }
    }

    pub(super) fn wait(&mut self) -> LockWaitPolicy {
        match self.dice.below(4) {
            0 => LockWaitPolicy::NoWait,
            1 => LockWaitPolicy::Forever,
            _ => LockWaitPolicy::Timeout(Duration::from_millis(self.dice.below(600) as u64)),
        }
    }

    pub(super) fn options(&mut self, asking: &Asking) -> LockOptions {
        let options = match asking.mode {
            LockMode::Shared => LockOptions::shared(),
            LockMode::Semaphore(most) => LockOptions::semaphore(most),
            _ => LockOptions::exclusive(),
        };
        let mut options = options.wait(asking.wait);
        if let Some((time, once)) = asking.lease {
            options = options.lease(time);
            options = if once { options.once() } else { options };
        }
        if self.dice.one_in(3) {
            let cancel = CancelToken::default();
            options = options.cancel_token(&cancel);
            self.world.common.cancels.lock().push(cancel);
        }
        options
    }

    pub(super) fn asked(&self, asking: &Asking) -> Moment {
        let at = self.pen.now();
        let (name, at_once) = (asking.name.clone(), asking.wait == LockWaitPolicy::NoWait);
        self.pen.note(Note::Asked { request: at.tick, name, mode: asking.mode, at_once, at });
        at
    }

    /// The term of a lease that was asked for at these moments.
    pub(super) fn term(&self, (from, wall): (Moment, u64), time: Duration, renews: bool) -> Term {
        let time_ms = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        Term { from, wall: (wall, self.world.runtime.unix_millis()), time_ms, renews }
    }

    /// Takes a lock; nothing if it was not to be had.
    pub(super) fn take(&mut self, asking: Asking) -> Result<Option<Holding<'a>>, Error> {
        let options = self.options(&asking);
        let wall = self.world.runtime.unix_millis();
        let asked = self.asked(&asking);
        match self.world.store.lock_with(&asking.name, options) {
            Ok(guard) => {
                let at = self.pen.now();
                let token = guard.token().to_u64();
                let term = asking.lease.map(|(time, once)| self.term((asked, wall), time, !once));
                self.pen.note(Note::Returned { request: asked.tick, token, id: Some(guard.entry().id), at, term });
                self.world.common.held.lock().push((asking.name.clone(), token));
                let lease = asking.lease.map(|(time, _)| time);
                Ok(Some(Holding {
                    pen: self.pen,
                    name: asking.name,
                    mode: asking.mode,
                    token,
                    lease,
                    guard: Some(guard),
                }))
            }
            Err(why) => self.refused(&asking, asked, why).map(|()| None),
        }
    }

    /// A wait has ended otherwise: not before its time, and not long after it.
    pub(super) fn refused(&self, asking: &Asking, asked: Moment, why: Error) -> Result<(), Error> {
        let took = Duration::from_nanos(self.pen.now().time.saturating_sub(asked.time));
        match (why.kind(), asking.wait) {
            (ErrorKind::LockNotAvailable(_), LockWaitPolicy::NoWait) => return Ok(()),
            (ErrorKind::LockNotAvailable(_), LockWaitPolicy::Timeout(time)) if took >= time && took < time + LATE => {
                self.world.common.counts.lock().timed_out += 1;
                return Ok(());
            }
            (ErrorKind::LockNotAvailable(held), wait) => {
                let what = format!("I6 each wait ends in time: refused after {took:?}, and not {wait:?}: {held}");
                return Err(ErrorKind::Corruption(what).into());
            }
            (ErrorKind::Cancelled(_), _) => self.world.common.counts.lock().stopped += 1,
            _ => {}
        }
        Err(why)
    }

    fn hold(&mut self) -> Result<(), Error> {
        let asking = self.asking();
        let Some(mut holding) = self.take(asking)? else { return Ok(()) };
        for _ in 0..=self.dice.below(3) {
            match self.under(holding) {
                Ok(Some(still)) => holding = still,
                ended => return ended.map(drop),
            }
        }
        self.let_go(holding)
    }

    /// Ends a grant, in one of the ways that there are.
    pub(super) fn let_go(&mut self, mut holding: Holding<'_>) -> Result<(), Error> {
        let (name, token) = (holding.name.clone(), holding.token);
        let Some(guard) = holding.guard.take() else { return Ok(()) };
        if holding.lease.is_some() && self.dice.one_in(3) {
            match guard.detach() {
                Ok(kept) => self.world.common.keep(&name, kept),
                Err(guard) => {
                    self.pen.not_there(&name, token, 0);
                    holding.guard = Some(guard);
                }
            }
            return Ok(());
        }
        let by = self.pen.ending(&name, token);
        if self.dice.one_in(2) {
            drop(guard);
            return Ok(());
        }
        guard.release()?;
        let at = self.pen.now();
        self.pen.note(Note::Released { name, token, by, at });
        Ok(())
    }

    /// Takes a lock away from its holder, by force or because its token is known.
    fn force(&mut self) -> Result<(), Error> {
        let known = self.world.common.held.lock().clone();
        let Some((name, token)) = known.get(self.dice.below(known.len().max(1))).cloned() else { return Ok(()) };
        self.end_by_token(&name, token)
    }

    fn end_by_token(&mut self, name: &str, token: u64) -> Result<(), Error> {
        let by = self.pen.ending(name, token);
        let at = Timestamp::from_u64(token);
        let ended = if self.dice.one_in(2) {
            self.world.store.force_unlock(name, at)?
        } else {
            self.world.store.release_lock(name, at)?
        };
        if ended {
            self.pen.note(Note::Over { name: name.into(), token });
        } else {
            self.pen.not_there(name, token, by);
        }
        Ok(())
    }

    /// A token that is over ends nothing.
    fn misuse(&mut self) -> Result<(), Error> {
        let known = self.world.common.over.lock().clone();
        let Some((name, token)) = known.get(self.dice.below(known.len().max(1))).cloned() else { return Ok(()) };
        let free = self.world.store.is_free_lock(&name)?;
        let before = self.world.store.lock_holders(&name)?;
        let is_held = before.iter().any(|holder| holder.token == Some(Timestamp::from_u64(token)));
        // One that is about to be ended may be there still, and one whose conversion has failed.
        if is_held || free {
            return Ok(());
        }
        if self.world.store.release_lock(&name, Timestamp::from_u64(token))? {
            let what = format!("I5 none ends another's grant: {token} of {name:?} was over, and has ended {before:?}");
            return Err(ErrorKind::Corruption(what).into());
        }
        Ok(())
    }

    /// As in other stores: a lease without a guard.
    fn get_lock(&mut self) -> Result<(), Error> {
        let (name, time) =
            (NAMES[self.dice.below(NAMES.len())], Duration::from_millis(100 * (1 + self.dice.below(8)) as u64));
        let asking = Asking {
            name: name.into(),
            mode: LockMode::Exclusive,
            wait: LockWaitPolicy::NoWait,
            lease: Some((time, true)),
        };
        let wall = self.world.runtime.unix_millis();
        let asked = self.asked(&asking);
        let Some(token) = self.world.store.get_lock(name, time)? else { return Ok(()) };
        let at = self.pen.now();
        let term = Some(self.term((asked, wall), time, false));
        self.pen.note(Note::Returned { request: asked.tick, token: token.to_u64(), id: None, at, term });
        self.world.common.held.lock().push((name.into(), token.to_u64()));
        self.world.common.keep(name, token);
        Ok(())
    }

    /// Goes on with a lease that was left, or ends it.
    fn take_up(&mut self) -> Result<(), Error> {
        let Some((name, token)) = self.world.common.kept.lock().pop() else { return Ok(()) };
        if self.dice.one_in(2) {
            return self.end_by_token(&name, token);
        }
        self.pen.note(Note::Resumed { name: name.clone(), token });
        match self.world.store.attach_lock(&name, Timestamp::from_u64(token)) {
            Ok(guard) => {
                let (mode, lease) = (guard.entry().mode, Some(LEASE_MIN));
                let holding = Holding { pen: self.pen, name, mode, token, lease, guard: Some(guard) };
                match self.under(holding)? {
                    Some(holding) => self.let_go(holding),
                    None => Ok(()),
                }
            }
            Err(why) if matches!(why.kind(), ErrorKind::LockLost(_)) => {
                self.pen.not_there(&name, token, 0);
                Ok(())
            }
            Err(why) => Err(why),
        }
    }

    pub(super) fn pause(&mut self) {
        let time = Duration::from_millis(self.dice.below(self.pauses_ms.max(1)) as u64);
        self.world.runtime.sleep(time);
    }
}

/// What a locker puts up with. Conflicts over the rows of leases are the store's own business.
fn may_happen(why: Error) -> Result<(), Error> {
    match why.kind() {
        ErrorKind::Conflict(conflict) if conflict.row.keyspace_id() == CATALOG => Err(why),
        ErrorKind::LockNotAvailable(_)
        | ErrorKind::LockLost(_)
        | ErrorKind::Deadlock(_)
        | ErrorKind::Cancelled(_)
        | ErrorKind::Conflict(_)
        | ErrorKind::RetriesExhausted { .. }
        | ErrorKind::SnapshotTooOld(_) => Ok(()),
        _ => Err(why),
    }
}
