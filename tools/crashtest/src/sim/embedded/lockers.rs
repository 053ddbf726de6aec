//! The clients that take locks by name, and what is asked of the store about them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use percolite::engine::Engine;
use percolite::runtime::Env;
use percolite::{Error, Keyspace, Store};

use super::super::Mode;
use super::super::engine::{Dead, is_dead};
use super::super::plan::LOCKER;
use super::super::runtime::SimRuntime;
use super::super::scheduler::ThreadId;
use super::{Embedded, Process};
use crate::client::Who;
use crate::fenced::fold;
use crate::mutex::note::{Moment, Notary, Note};
use crate::mutex::{LOCKED, Locker, Pen, World, after};
use crate::violation::Broken;

/// A locker that has noted nothing for so long waits for ever: no pause, no patience and no lease is as long.
const SILENT: Duration = Duration::from_secs(300);
/// The first pause between two looks, and how often it is as long again.
const LOOKS: Duration = Duration::from_millis(50);
/// Between two lives, in milliseconds.
const PAUSES_MS: [usize; 4] = [1, 100, 600, 3000];

/// What all lives have noted of locks.
#[derive(Clone, Default)]
pub struct Notes {
    notes: Arc<Mutex<Vec<Note>>>,
    ticks: Arc<AtomicU64>,
}

impl Notes {
    /// All of it.
    pub fn all(&self) -> Vec<Note> {
        self.notes.lock().clone()
    }

    fn of(&self, dead: &Dead) -> OfProcess {
        OfProcess { notes: self.clone(), dead: Arc::clone(dead) }
    }

    /// How many requests there were.
    pub fn asked(&self) -> u64 {
        self.notes.lock().iter().filter(|note| matches!(note, Note::Asked { .. })).count() as u64
    }

    fn moment(&self, life: u32, now: Duration) -> Moment {
        after::moment(life, now, self.ticks.fetch_add(1, Ordering::SeqCst) + 1)
    }

    /// Enters that a life has ended.
    pub fn gone(&self, life: u32, now: Duration) {
        let at = self.moment(life, now);
        self.notes.lock().push(Note::Gone(at));
    }
}

/// What a dead process says is not entered.
struct OfProcess {
    notes: Notes,
    dead: Dead,
}

impl Notary for OfProcess {
    fn tick(&self) -> u64 {
        self.notes.ticks.fetch_add(1, Ordering::SeqCst) + 1
    }

    fn note(&self, note: Note) {
        if !is_dead(&self.dead) {
            self.notes.notes.lock().push(note);
        }
    }
}

/// What was so before a store was opened.
pub struct Before(Moment, u64);

impl Embedded<'_> {
    /// To be called before a life's store is opened.
    pub(super) fn before_opening(&mut self, life: u32) -> Before {
        if self.plan.mode == Mode::Mutex && life > 0 {
            let pause = PAUSES_MS[self.dice.below(PAUSES_MS.len())];
            self.scheduler.advance(Duration::from_millis(self.dice.below(pause) as u64));
            // By hours, either way; while lockers run it is not set.
            self.step_clock();
        }
        Before(self.notes.moment(life, self.scheduler.now()), self.scheduler.unix_millis())
    }

    /// Asks a store that was opened just now for the leases of earlier lives.
    pub(super) fn opened(&mut self, store: &Store, engine: &Process, dead: &Dead, Before(before, wall): Before) {
        if self.plan.mode != Mode::Mutex {
            return;
        }
        self.common = Arc::new(self.common.next());
        let (notary, life) = (self.notes.of(dead), before.life);
        let now = self.notes.moment(life, self.scheduler.now());
        notary.note(Note::Opened(before, now, (wall, self.scheduler.unix_millis())));
        let asked = store.keyspace(LOCKED).and_then(|rows| {
            let runtime = SimRuntime::new(self.scheduler, 0);
            let common = Arc::clone(&self.common);
            let (engine, rows): (&dyn Engine, &Keyspace) = (&**engine, &rows);
            let world = World { store, engine, rows, runtime: &*runtime, notary: &notary, common: &common };
            after::ask_for_leases(&Pen { world, life }, &self.notes.all(), &mut self.dice)
        });
        match asked {
            Ok(broken) => self.broken.lock().extend(broken.into_iter().filter(|_| !is_dead(dead))),
            Err(why) => self.unless_dead(dead, "a lease outlives its process", &why),
        }
    }

    fn unless_dead(&self, dead: &Dead, promise: &'static str, why: &Error) {
        if !is_dead(dead) {
            self.breaks(promise, why.to_string());
        }
    }

    /// Begins the threads that take locks.
    pub(super) fn lockers(
        &mut self,
        store: &Store,
        engine: &Process,
        dead: &Dead,
        life: u32,
        at_last: Option<u64>,
    ) -> Vec<ThreadId> {
        if self.plan.mode != Mode::Mutex {
            return Vec::new();
        }
        let Ok(rows) = store.keyspace(LOCKED) else { return Vec::new() };
        let turns = self.plan.turns;
        let left = Arc::new(AtomicU64::new(turns * self.plan.lockers as u64 / 4));
        let mut threads = Vec::new();
        for _ in 0..self.plan.lockers {
            self.sessions += 1;
            let mut dice = self.dice.split();
            let who = Who { session: self.sessions, life, habits: self.plan.habits_of_client(&mut dice) };
            let (store, engine, rows, dead) = (store.clone(), Arc::clone(engine), rows.clone(), Arc::clone(dead));
            let (notary, common, left) = (self.notes.of(&dead), Arc::clone(&self.common), Arc::clone(&left));
            let (broken, scheduler) = (Arc::clone(&self.broken), Arc::clone(self.scheduler));
            let runtime: Arc<dyn Env> = SimRuntime::new(self.scheduler, 0);
            let pauses_ms = self.plan.pauses_ms;
            let work = move || {
                let world = World {
                    store: &store,
                    engine: &*engine,
                    rows: &rows,
                    runtime: &*runtime,
                    notary: &notary,
                    common: &common,
                };
                let mut locker = Locker::new(world, who, dice, pauses_ms);
                for turn in 0..turns {
                    if let Err(why) = locker.turn() {
                        if !is_dead(&dead) {
                            broken.lock().push(Broken::new("locks, or an error for no reason", why.to_string()));
                        }
                        break;
                    }
                    if is_dead(&dead) {
                        break;
                    }
                    let is_late = turn >= turns * 3 / 4;
                    if let Some(pauses) = at_last.filter(|_| is_late && left.fetch_sub(1, Ordering::SeqCst) == 1) {
                        scheduler.hurry(pauses);
                    }
                }
            };
            match self.scheduler.spawn(&format!("{LOCKER} {}", self.sessions), Box::new(work)) {
                Ok(thread) => threads.push(thread),
                Err(why) => self.breaks("harness", why.to_string()),
            }
        }
        threads
    }

    /// Waits for those threads. One that waits for ever is reported, and its wait is ended by closing the store.
    pub(super) fn await_lockers(&self, threads: Vec<ThreadId>, store: &Store, dead: &Dead) {
        let (mut looks, mut silent) = (LOOKS, Duration::ZERO);
        let mut noted = self.notes.ticks.load(Ordering::SeqCst);
        while threads.iter().any(|thread| !self.scheduler.has_ended(*thread)) && self.scheduler.stuck().is_none() {
            self.scheduler.sleep(looks);
            let now = self.notes.ticks.load(Ordering::SeqCst);
            (noted, silent) = (now, if now == noted { silent + looks } else { Duration::ZERO });
            if silent > SILENT {
                if !is_dead(dead) {
                    let table = store.lock_table().map(|table| table.entries);
                    self.breaks("I6 each wait ends", format!("no locker has done anything for {silent:?}: {table:?}"));
                }
                // That ends every grant and every wait.
                let _ = store.clone().close();
                break;
            }
            looks = (2 * looks).min(SILENT / 4);
        }
        for thread in threads {
            self.scheduler.join(thread);
        }
    }

    /// When no locks are taken any more in this life.
    pub(super) fn check_locks(&self, store: &Store, engine: &Process, dead: &Dead, life: u32) {
        let (Mode::Mutex, Ok(rows)) = (self.plan.mode, store.keyspace(LOCKED)) else { return };
        let (notary, runtime) = (self.notes.of(dead), SimRuntime::new(self.scheduler, 0));
        let world =
            World { store, engine: &**engine, rows: &rows, runtime: &*runtime, notary: &notary, common: &self.common };
        self.common.clear(&Pen { world, life });
        let broken = after::wakes(store, self.common.counts()).into_iter().chain(after::only_leases(store));
        let broken: Vec<Broken> = broken.collect();
        self.broken.lock().extend(broken.into_iter().filter(|_| !is_dead(dead)));
    }

    /// In the end: how open commits have ended, and whether anything is left.
    pub(super) fn settle_locks(&self, store: &Store, engine: &Process) -> Result<(), String> {
        if self.plan.mode != Mode::Mutex {
            return Ok(());
        }
        let rows = store.keyspace(LOCKED).map_err(|why| why.to_string())?;
        let ended = after::settle(&fold(&self.notes.all()).open, &**engine, &rows);
        self.notes.notes.lock().extend(ended);
        let left = after::nothing_left(store).map_err(|why| why.to_string())?;
        self.broken.lock().extend(left);
        Ok(())
    }
}
