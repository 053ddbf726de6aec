//! One history of a store that a simulated process has for itself: a few lives, each ended by a power cut or a clean close,
//! and then a look at what is left.

mod closing;
mod keeper;
mod lockers;
mod process;
mod promises;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use percolite::engine::Engine;
use percolite::engine::local::LocalEngine;
use percolite::engine::machine::{SimMachine, SimMachineStorage};
use percolite::{Builder, Durability, ErrorKind, HistoryRetention, Keyspace, Store};

use self::keeper::Keeper;
use self::lockers::Notes;
use self::process::end_of;
use super::engine::{Dead, Scheduled, is_dead};
use super::plan::{CLIENT, Crash, Focus, LIVES_MAX, Plan, WATCHER};
use super::runtime::SimRuntime;
use super::scheduler::Scheduler;
use super::sink::Book;
use super::thinking::Thinking;
use super::{Mode, Seen, hours};
use crate::client::{BESIDE, Client, Ended, Past, ROWS, Sink as _, Who, keeping, unless_too_old};
use crate::dice::Dice;
use crate::invariants::{digest, keyspaces, structure};
use crate::mutex::Common;
use crate::mutex::after::no_rows;
use crate::restores::Restores;
use crate::violation::Broken;

/// No life takes longer.
const LIFE_MAX: Duration = Duration::from_secs(3600);

/// See the [module](self).
pub struct Embedded<'a> {
    scheduler: &'a Arc<Scheduler>,
    machine: SimMachine,
    book: Book,
    plan: &'a Plan,
    dice: Dice,
    broken: Arc<Mutex<Vec<Broken>>>,
    seen: Seen,
    sessions: u64,
    past: Past,
    restores: Arc<Mutex<Restores>>,
    /// Whether this life keeps all of its own past.
    keeps: bool,
    /// The newest timestamp that late clients were handed.
    handed_out: Arc<AtomicU64>,
    /// What was noted of locks, and what the lockers of this life share.
    notes: Notes,
    common: Arc<Common>,
}

type Process = Arc<Scheduled<LocalEngine<SimMachineStorage>>>;

impl<'a> Embedded<'a> {
    /// A history that has not begun.
    pub fn new(scheduler: &'a Arc<Scheduler>, plan: &'a Plan, dice: Dice) -> Self {
        Self {
            scheduler,
            machine: SimMachine::new(),
            book: Book::default(),
            plan,
            dice,
            broken: Arc::default(),
            seen: Seen::default(),
            sessions: 0,
            past: Past::default(),
            restores: Arc::default(),
            keeps: false,
            handed_out: Arc::default(),
            notes: Notes::default(),
            common: Arc::default(),
        }
    }

    /// Lives all lives.
    pub fn run(mut self) -> (Book, Seen, Vec<Broken>) {
        let mut life = 0;
        while life < self.plan.lives || (life < LIVES_MAX && !self.seen.is_enough()) {
            self.live(life);
            self.seen.tried = self.book.tried() + self.notes.asked();
            if self.scheduler.stuck().is_some() {
                break;
            }
            life += 1;
        }
        if self.scheduler.stuck().is_none() {
            self.look_back(life);
        }
        if let Some(what) = self.scheduler.stuck() {
            self.breaks("I12 progress", what);
        }
        let broken = std::mem::take(&mut *self.broken.lock());
        self.seen.notes = self.notes.all();
        self.seen.lost = self.machine.lost_frames();
        (self.book, self.seen, broken)
    }

    fn live(&mut self, life: u32) {
        let dead = Dead::default();
        if self.dice.one_in(4) {
            self.cut_an_opening();
        }
        let shown = if life > 0 && self.dice.one_in(3) { self.look_only() } else { None };
        let patience = if Plan::may_crash(life) { self.plan_crash(&dead, life) } else { None };
        if let Some(engine) = self.process(&dead) {
            let below = self.hand_down(&engine, &dead);
            self.live_on(life, &engine, &dead, (shown, patience));
            self.end(below);
        }
        self.scheduler.unwatch();
        if is_dead(&dead) {
            self.seen.crashes += 1;
        }
        self.notes.gone(life, self.scheduler.now());
    }

    /// A life on an engine that is open.
    fn live_on(&mut self, life: u32, engine: &Process, dead: &Dead, (shown, patience): (Option<u64>, Option<u64>)) {
        let disk_fails = self.plan.failing_disk && Plan::may_crash(life) && self.dice.one_in(2);
        let before = self.before_opening(life);
        if let Some(store) = self.open(engine, dead) {
            self.check_shown(shown, &store, dead);
            self.opened(&store, engine, dead, before);
            if disk_fails && !is_dead(dead) {
                self.plan_fault(engine);
            }
            self.clients(&store, engine, dead, life, (disk_fails, patience));
            let must = !Plan::may_crash(life) && self.seen.crashes == 0;
            if !is_dead(dead) && (must || self.dice.one_in(3)) {
                self.scheduler.unwatch();
                self.crash(dead);
            }
            if disk_fails && !is_dead(dead) {
                self.check_failed(&store, engine, dead);
            }
            let durable_ts = store.stats().durable_ts;
            // The power may also go while it closes.
            let closed = self.close(store, engine, dead, (life, disk_fails));
            self.scheduler.unwatch();
            if disk_fails && !is_dead(dead) {
                self.crash(dead);
            }
            self.check_timestamps();
            if is_dead(dead) {
                if self.plan.durability == Durability::Buffered {
                    // What is seen there need not be durable.
                    self.past.moments.lock().clear();
                }
                let mut ledger = self.book.ledger();
                self.seen.told.extend(ledger.told());
                ledger.lose(life, durable_ts);
            } else if let Err(why) = closed {
                self.breaks("closes", why.to_string());
            }
        }
    }

    /// Has the power go in this life; the answer is within how many pauses when it does not come of itself.
    fn plan_crash(&mut self, dead: &Dead, life: u32) -> Option<u64> {
        let Crash { due, at_last } = self.plan.crash(&mut self.dice, life > 0);
        let choice = self.dice.bits();
        let (machine, dead, is_kill) = (self.machine.clone(), Arc::clone(dead), self.dice.one_in(4));
        let (book, notes, scheduler) = (self.book.clone(), self.notes.clone(), Arc::clone(self.scheduler));
        let act = move |_| {
            dead.store(true, Ordering::SeqCst);
            book.crashed();
            notes.gone(life, scheduler.now());
            end_of(&machine, is_kill, choice);
        };
        self.scheduler.watch(due, Arc::new(act));
        at_last
    }

    fn crash(&mut self, dead: &Dead) {
        let choice = self.dice.bits();
        dead.store(true, Ordering::SeqCst);
        self.scheduler.tell("crash");
        self.book.crashed();
        let is_kill = self.dice.one_in(3);
        end_of(&self.machine, is_kill, choice);
    }

    fn open(&mut self, engine: &Process, dead: &Dead) -> Option<Store> {
        if self.plan.mode != Mode::Mutex && self.dice.one_in(3) {
            self.step_clock();
        }
        // A crash may have taken the drop back.
        self.past.dropped.lock().clear();
        let keep = self.dice.pick(&self.plan.history).copied().unwrap_or_default();
        self.keeps = matches!(keep, HistoryRetention::For(time) if time >= LIFE_MAX);
        let builder = self.plan.age_max.into_iter().fold(Store::builder(), Builder::max_snapshot_age);
        let store = keeping(builder, keep)
            .runtime(SimRuntime::new(self.scheduler, 0))
            .durability(self.plan.durability)
            .commit_protocol(self.plan.protocol)
            .background_resolve(self.plan.sweep)
            .conflict_cache_rows(self.plan.conflict_slots)
            .admission_limit(self.plan.admission)
            .large_transaction_bytes(self.plan.stream_at_bytes)
            .open_engine(Process::clone(engine) as Arc<dyn Engine>);
        match store {
            Ok(store) => Some(store),
            Err(_) if is_dead(dead) => None,
            Err(why) => {
                self.breaks("opens again", why.to_string());
                None
            }
        }
    }

    fn both_keyspaces(&self, store: &Store, dead: &Dead, may_fail: bool) -> Option<(Keyspace, Keyspace)> {
        let both = || store.keyspace(BESIDE).and_then(|beside| Ok((beside, store.keyspace(ROWS)?)));
        let mut opened = both();
        // Making one is a transaction, and a thread may stand still for longer than the age limit.
        while self.plan.age_max.is_some()
            && matches!(&opened, Err(why) if matches!(why.kind(), ErrorKind::SnapshotTooOld(_)))
        {
            opened = both();
        }
        match opened {
            Ok(both) => Some(both),
            Err(why) => {
                if !is_dead(dead) && !may_fail {
                    self.breaks("opens again", why.to_string());
                }
                None
            }
        }
    }

    #[allow(clippy::too_many_lines, reason = "one history, from its first client to its last")]
    fn clients(
        &mut self,
        store: &Store,
        engine: &Process,
        dead: &Dead,
        life: u32,
        (may_fail, at_last): (bool, Option<u64>),
    ) {
        if self.plan.focus == Some(Focus::Clears) && store.drop_keyspace(BESIDE).is_ok() {
            self.scheduler.sleep(Duration::from_millis(1500));
        }
        let Some((beside, rows)) = self.both_keyspaces(store, dead, may_fail) else { return };
        self.check_restored(store, dead);
        let begun = store.begin().map(|txn| txn.start_ts());
        let workload = self.plan.workload;
        let mut threads = Vec::new();
        let (share, book) = (self.plan.share(life, self.book.tried()), self.book.clone());
        let enough = book.tried() + share * self.plan.clients as u64 * 3 / 4;
        for _ in 0..self.plan.clients {
            self.sessions += 1;
            let mut dice = self.dice.split();
            let habits = self.plan.habits_of_client(&mut dice);
            let (store, engine, rows, beside) = (store.clone(), Arc::clone(engine), rows.clone(), beside.clone());
            let (scheduler, sink, dead) = (Arc::clone(self.scheduler), self.book.of(dead), Arc::clone(dead));
            let (broken, session, first) = (Arc::clone(&self.broken), self.sessions, threads.is_empty());
            let (every, watches) = (self.plan.thinks, self.plan.watches && threads.len() == 1);
            let (drops, beside_every, book) = (self.plan.drops, self.plan.beside_every(), book.clone());
            let (restores, renames) = (self.plan.restores && first, self.plan.renames);
            let focus = self.plan.focus;
            let past = Arc::clone(&self.past);
            let (shows_durable, keeps) = (self.plan.durability == Durability::Sync, self.keeps);
            let keeper = Keeper {
                store: store.clone(),
                scheduler: Arc::clone(&scheduler),
                dead: Arc::clone(&dead),
                protocol: self.plan.protocol,
                restores: Arc::clone(&self.restores),
            };
            let clock_steps = self.plan.clock_steps && self.plan.mode != Mode::Mutex;
            let skewed = Arc::clone(&self.seen.skewed);
            let work = move || {
                let who = Who { session, life, habits };
                let keyspaces = (rows, Some(beside));
                let mut client = Client::new((&store, &*engine), keyspaces, &sink, who, dice.split())
                    .with_beside_every(beside_every)
                    .with_beside_first(focus == Some(Focus::Erases))
                    .with_past(&past)
                    .of_renamed(renames)
                    .of_durable(shows_durable)
                    .of_keeping(keeps);
                let thinking = Thinking { workload, scheduler: Arc::clone(&scheduler), every };
                let outcome = (|| {
                    if first && drops && dice.one_in(2) {
                        // Before anybody has met what an earlier life left locked.
                        unless_too_old(client.drop_beside())?;
                    }
                    if first {
                        client.attempt(|txn| workload.load(txn))?;
                    }
                    for _ in 0..share {
                        match dice.below(40) {
                            0 => scheduler.sleep(Duration::from_millis(dice.below(3000) as u64)),
                            1 if clock_steps => scheduler.step_clock(hours(&mut dice)),
                            2 if drops => client.replace_beside(false)?,
                            3..=5 if restores => unless_too_old(keeper.restore(sink.number()))?,
                            6..=8 if renames => client.replace_beside(true)?,
                            _ => {}
                        }
                        if watches && focus == Some(Focus::Remembers) {
                            client.look_back(workload)?;
                        } else if watches && dice.one_in(2) {
                            client.observe(workload)?;
                        } else {
                            client.run(&thinking)?;
                        }
                        if focus == Some(Focus::Erases) && client.has_written_beside() {
                            client.replace_beside(false)?;
                        }
                        if is_dead(&dead) {
                            break;
                        }
                        if let Some(pauses) = at_last.filter(|_| book.tried() >= enough) {
                            scheduler.hurry(pauses);
                        }
                    }
                    skewed.fetch_add(client.skewed(), Ordering::SeqCst);
                    Ok::<_, percolite::Error>(())
                })();
                match outcome {
                    Err(why) if !is_dead(&dead) && !may_fail => {
                        broken.lock().push(Broken::new("I8 workload, or an error for no reason", why.to_string()));
                    }
                    _ => {}
                }
            };
            let name = if watches { WATCHER } else { CLIENT };
            match self.scheduler.spawn(&format!("{name} {session}"), Box::new(work)) {
                Ok(thread) => threads.push(thread),
                Err(why) => self.breaks("harness", why.to_string()),
            }
        }
        let lockers = self.lockers(store, engine, dead, life, at_last);
        for thread in threads {
            self.scheduler.join(thread);
        }
        self.await_lockers(lockers, store, dead);
        self.check_locks(store, engine, dead, life);
        if let Some(begun) = begun.ok().filter(|_| !is_dead(dead) && !may_fail) {
            self.check_through(store, begun, dead);
        }
    }

    /// A last life without a crash: everything is resolved, looked at, and opened once more.
    fn look_back(&mut self, life: u32) {
        let outcome = self.resolve_and_judge(life).and_then(|before| {
            let after = self.open_and_digest()?;
            if before != after {
                self.breaks("I11 recovery is idempotent", "opening again has changed what is stored");
            }
            Ok(())
        });
        if let Err(why) = outcome {
            self.breaks("opens again", why);
        }
    }

    fn resolve_and_judge(&mut self, life: u32) -> Result<u64, String> {
        let dead = Dead::default();
        self.cut_an_opening();
        let engine = self.process(&dead).ok_or("the machine does not open")?;
        let before = self.before_opening(life);
        let Some(store) = self.open(&engine, &dead) else { return Err("it does not open".into()) };
        self.opened(&store, &engine, &dead, before);
        let (beside, rows) = self.both_keyspaces(&store, &dead, false).ok_or("its keyspaces do not open")?;
        store.resolve_orphan_locks().map_err(|why| format!("orphans are not resolved: {why}"))?;
        {
            let mut ledger = self.book.ledger();
            let settled = ledger.settle(&*engine, &rows).map_err(|why| why.to_string())?;
            self.seen.settled += settled.committed;
            self.broken.lock().extend(settled.lost);
            if let Some(hole) = ledger.lost_in_the_middle(&self.seen.told) {
                drop(ledger);
                self.breaks("I2 a prefix survives", hole);
            }
        }
        self.settle_locks(&store, &engine)?;
        let sink = self.book.of(&dead);
        self.sessions += 1;
        let who = Who { session: self.sessions, life, habits: self.plan.habits() };
        let both = (rows, Some(beside));
        let mut client = Client::new((&store, &*engine), both, &sink, who, self.dice.split()).with_past(&self.past);
        self.check_restored(&store, &dead);
        let mut judged = Ok(());
        if store.stats().history_start_ts.is_some() {
            // The housekeeper may give up what nobody can need any more, and no more than that.
            self.scheduler.sleep(Duration::from_millis(1500));
            judged = client.remember_all();
        }
        let judged = judged.and_then(|()| client.observe(self.plan.workload));
        if store.stats().history_start_ts.is_none() {
            self.check_erased(&store, &engine);
        }
        let progress = client.touch_every_row();
        drop(client);
        if let Err(why) = judged {
            self.breaks("I8 workload", why.to_string());
        }
        match progress {
            Ok(Ended::Committed) => {}
            other => self.breaks("I12 progress", format!("a transaction on every row: {other:?}")),
        }
        store.resolve_orphan_locks().map_err(|why| why.to_string())?;
        let there = keyspaces(&store).map_err(|why| why.to_string())?;
        store.close().map_err(|why| format!("it does not close: {why}"))?;
        let broken = structure(engine.engine().storage()).map_err(|why| why.to_string())?;
        self.broken.lock().extend(broken);
        if self.plan.mode == Mode::Mutex {
            let rows = no_rows(engine.engine().storage()).map_err(|why| why.to_string())?;
            self.broken.lock().extend(rows);
        }
        digest(engine.engine().storage(), &there).map_err(|why| why.to_string())
    }

    fn open_and_digest(&mut self) -> Result<u64, String> {
        let dead = Dead::default();
        let engine = self.process(&dead).ok_or("the machine does not open again")?;
        let Some(store) = self.open(&engine, &dead) else { return Err("it does not open again".into()) };
        store.resolve_orphan_locks().map_err(|why| why.to_string())?;
        let there = keyspaces(&store).map_err(|why| why.to_string())?;
        store.close().map_err(|why| why.to_string())?;
        digest(engine.engine().storage(), &there).map_err(|why| why.to_string())
    }

    fn step_clock(&mut self) {
        if self.plan.clock_steps {
            let by = hours(&mut self.dice);
            self.scheduler.step_clock(by);
        }
    }

    fn breaks(&self, promise: &'static str, how: impl Into<String>) {
        self.broken.lock().push(Broken::new(promise, how));
    }
}
