//! A history of one simulated process: a few incarnations, and then a final verification. Each
//! incarnation ends with a power cut, a kill or a clean close.

mod backup_client;
mod checks;
mod closing;
mod lock_clients;
mod process;
mod txn_clients;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use percolite::engine::Engine;
use percolite::engine::local::LocalEngine;
use percolite::engine::machine::{SimMachine, SimMachineStorage};
use percolite::internal::coordinator::HistoryRetention;
use percolite::{Builder, Durability, ErrorKind, Keyspace, Store};

use self::lock_clients::LockEvents;
use self::process::crash_machine;
use self::txn_clients::Incarnation;
use super::engine::{ProcessDead, ScheduledEngine, is_dead};
use super::plan::{Crash, Focus, INCARNATIONS_MAX, SimPlan};
use super::recorder::SimRecorder;
use super::runtime::SimRuntime;
use super::scheduler::Scheduler;
use super::{Mode, SimStats, clock_offset_ms};
use crate::client::{Client, ClientId, ROWS, SECOND, SharedDigests, TxnEnd, with_retention};
use crate::invariants::{check_structure, digest, keyspace_ids};
use crate::lock_workload::SharedLocks;
use crate::lock_workload::final_checks::check_no_lease_rows;
use crate::restores::Restores;
use crate::rng::SeededRng;
use crate::violation::Violation;

/// An incarnation whose history retention is at least this keeps all of its history: no incarnation
/// takes longer in virtual time.
const INCARNATION_TIME_MAX: Duration = Duration::from_secs(3600);

/// See the [module](self).
pub struct Embedded<'a> {
    scheduler: &'a Arc<Scheduler>,
    machine: SimMachine,
    recorder: SimRecorder,
    plan: &'a SimPlan,
    rng: SeededRng,
    violations: Arc<Mutex<Vec<Violation>>>,
    stats: SimStats,
    sessions: u64,
    history_digests: SharedDigests,
    restores: Arc<Mutex<Restores>>,
    /// Whether this incarnation keeps all of its history.
    keeps_all_history: bool,
    /// The newest start timestamp of the clients that continued while the store was being closed.
    handed_out: Arc<AtomicU64>,
    /// Lock events, and what the lock clients of this incarnation share.
    lock_events: LockEvents,
    shared_locks: Arc<SharedLocks>,
}

type Process = Arc<ScheduledEngine<LocalEngine<SimMachineStorage>>>;

impl<'a> Embedded<'a> {
    /// A history before its start.
    pub fn new(scheduler: &'a Arc<Scheduler>, plan: &'a SimPlan, rng: SeededRng) -> Self {
        Self {
            scheduler,
            machine: SimMachine::new(),
            recorder: SimRecorder::default(),
            plan,
            rng,
            violations: Arc::default(),
            stats: SimStats::default(),
            sessions: 0,
            history_digests: SharedDigests::default(),
            restores: Arc::default(),
            keeps_all_history: false,
            handed_out: Arc::default(),
            lock_events: LockEvents::default(),
            shared_locks: Arc::default(),
        }
    }

    /// Runs all incarnations.
    pub fn run(mut self) -> (SimRecorder, SimStats, Vec<Violation>) {
        let mut incarnation = 0;
        while incarnation < self.plan.incarnations || (incarnation < INCARNATIONS_MAX && !self.stats.is_enough()) {
            self.run_incarnation(incarnation);
            self.stats.attempted = self.recorder.attempted() + self.lock_events.requests();
            if self.scheduler.deadlock().is_some() {
                break;
            }
            incarnation += 1;
        }
        if self.scheduler.deadlock().is_none() {
            self.final_incarnation(incarnation);
        }
        if let Some(what) = self.scheduler.deadlock() {
            self.report("progress", what);
        }
        let violations = std::mem::take(&mut *self.violations.lock());
        self.stats.lock_events = self.lock_events.all();
        self.stats.lost_frames = self.machine.lost_frames();
        (self.recorder, self.stats, violations)
    }

    fn run_incarnation(&mut self, incarnation: u32) {
        let dead = ProcessDead::default();
        if self.rng.one_in(4) {
            self.crash_while_opening();
        }
        let digest_before = if incarnation > 0 && self.rng.one_in(3) { self.open_read_only() } else { None };
        let deadline_yields = if SimPlan::may_crash(incarnation) { self.plan_crash(&dead, incarnation) } else { None };
        if let Some(engine) = self.start_process(&dead) {
            let flusher = self.spawn_flusher(&engine, &dead);
            self.run_open(incarnation, &engine, &dead, (digest_before, deadline_yields));
            self.stop_flusher(flusher);
        }
        self.scheduler.cancel_trigger();
        if is_dead(&dead) {
            self.stats.crashes += 1;
        }
        self.lock_events.record_gone(incarnation, self.scheduler.now());
    }

    /// Runs an incarnation on an open engine.
    fn run_open(
        &mut self,
        incarnation: u32,
        engine: &Process,
        dead: &ProcessDead,
        (digest_before, deadline_yields): (Option<u64>, Option<u64>),
    ) {
        let disk_fails = self.plan.failing_disk && SimPlan::may_crash(incarnation) && self.rng.one_in(2);
        let before = self.before_opening(incarnation);
        if let Some(store) = self.open(engine, dead) {
            self.check_read_only_digest(digest_before, &store, dead);
            self.check_leases(&store, engine, dead, before);
            if disk_fails && !is_dead(dead) {
                self.plan_fault(engine);
            }
            self.run_clients(&store, engine, dead, incarnation, (disk_fails, deadline_yields));
            let must = !SimPlan::may_crash(incarnation) && self.stats.crashes == 0;
            if !is_dead(dead) && (must || self.rng.one_in(3)) {
                self.scheduler.cancel_trigger();
                self.crash(dead);
            }
            if disk_fails && !is_dead(dead) {
                self.check_failed(&store, engine, dead);
            }
            let durable_ts = store.stats().durable_ts;
            // The crash may also come during closing.
            let closed = self.close(store, engine, dead, (incarnation, disk_fails));
            self.scheduler.cancel_trigger();
            if disk_fails && !is_dead(dead) {
                self.crash(dead);
            }
            self.check_timestamps();
            if is_dead(dead) {
                if self.plan.durability == Durability::Buffered {
                    // A crash may have lost buffered commits that the recorded digests include.
                    self.history_digests.digests.lock().clear();
                }
                let mut client_log = self.recorder.log();
                self.stats.acknowledged.extend(client_log.acknowledged_commits());
                client_log.allow_loss(incarnation, durable_ts);
            } else if let Err(error) = closed {
                self.report("the store closes", error.to_string());
            }
        }
    }

    /// Plans the crash of this incarnation, a power cut or a kill. Returns within how many yields
    /// it comes once it is due.
    fn plan_crash(&mut self, dead: &ProcessDead, incarnation: u32) -> Option<u64> {
        let Crash { trigger, deadline_yields } = self.plan.crash(&mut self.rng, incarnation > 0);
        let choice = self.rng.bits();
        let (machine, dead, is_kill) = (self.machine.clone(), Arc::clone(dead), self.rng.one_in(4));
        let (shared_recorder, lock_events, scheduler) =
            (self.recorder.clone(), self.lock_events.clone(), Arc::clone(self.scheduler));
        let act = move |_| {
            dead.store(true, Ordering::SeqCst);
            shared_recorder.record_crash();
            lock_events.record_gone(incarnation, scheduler.now());
            crash_machine(&machine, is_kill, choice);
        };
        self.scheduler.set_trigger(trigger, Arc::new(act));
        deadline_yields
    }

    fn crash(&mut self, dead: &ProcessDead) {
        let choice = self.rng.bits();
        dead.store(true, Ordering::SeqCst);
        self.scheduler.trace("crash");
        self.recorder.record_crash();
        let is_kill = self.rng.one_in(3);
        crash_machine(&self.machine, is_kill, choice);
    }

    fn open(&mut self, engine: &Process, dead: &ProcessDead) -> Option<Store> {
        if self.plan.mode != Mode::Locks && self.rng.one_in(3) {
            self.step_clock();
        }
        // A crash may have undone the drop of a keyspace.
        self.history_digests.dropped.lock().clear();
        let retention = self.rng.pick(&self.plan.retention).copied().unwrap_or_default();
        self.keeps_all_history = matches!(retention, HistoryRetention::For(time) if time >= INCARNATION_TIME_MAX);
        let builder = self.plan.max_snapshot_age.into_iter().fold(Store::builder(), Builder::max_snapshot_age);
        let store = with_retention(builder, retention)
            .env(SimRuntime::new(self.scheduler, 0))
            .durability(self.plan.durability)
            .commit_protocol(self.plan.protocol)
            .background_resolve(self.plan.background_resolve)
            .conflict_set_rows(self.plan.conflict_set_rows)
            .admission_limit(self.plan.admission_limit)
            .large_transaction_bytes(self.plan.large_transaction_bytes)
            .open_engine(Process::clone(engine) as Arc<dyn Engine>);
        match store {
            Ok(store) => Some(store),
            Err(_) if is_dead(dead) => None,
            Err(error) => {
                self.report("the store opens", error.to_string());
                None
            }
        }
    }

    fn both_keyspaces(&self, store: &Store, dead: &ProcessDead, may_fail: bool) -> Option<(Keyspace, Keyspace)> {
        let both = || store.keyspace(SECOND).and_then(|second| Ok((second, store.keyspace(ROWS)?)));
        let mut opened = both();
        // Creating a keyspace is a transaction. If its thread is stalled for longer than the age
        // limit, the transaction fails and is repeated.
        while self.plan.max_snapshot_age.is_some()
            && matches!(&opened, Err(error) if matches!(error.kind(), ErrorKind::SnapshotTooOld(_)))
        {
            opened = both();
        }
        match opened {
            Ok(both) => Some(both),
            Err(error) => {
                if !is_dead(dead) && !may_fail {
                    self.report("the store opens", error.to_string());
                }
                None
            }
        }
    }

    /// Runs the clients of an incarnation, and checks the store when all of them have ended.
    fn run_clients(
        &mut self,
        store: &Store,
        engine: &Process,
        dead: &ProcessDead,
        number: u32,
        (may_fail, deadline_yields): (bool, Option<u64>),
    ) {
        if self.plan.focus == Some(Focus::DropWithOrphans) && store.drop_keyspace(SECOND).is_ok() {
            self.scheduler.sleep(Duration::from_millis(1500));
        }
        let Some((second, rows)) = self.both_keyspaces(store, dead, may_fail) else { return };
        self.check_restored(store, dead);
        let first_ts = store.begin().map(|txn| txn.start_ts());
        let incarnation = Incarnation {
            number,
            store: store.clone(),
            engine: Arc::clone(engine),
            dead: Arc::clone(dead),
            keyspaces: (rows, second),
            may_fail,
            deadline_yields,
        };
        let threads = self.spawn_txn_clients(&incarnation);
        let lock_threads = self.spawn_lock_clients(store, engine, dead, number, deadline_yields);
        for thread in threads {
            self.scheduler.join(thread);
        }
        self.await_lock_clients(lock_threads, store, dead);
        self.check_locks(store, engine, dead, number);
        if let Some(first_ts) = first_ts.ok().filter(|_| !is_dead(dead) && !may_fail) {
            self.check_after_clients(store, first_ts, dead);
        }
    }

    /// The final incarnation, without a crash: resolves everything, verifies it, and opens the
    /// store once more.
    fn final_incarnation(&mut self, incarnation: u32) {
        let outcome = self.resolve_and_verify(incarnation).and_then(|before| {
            let after = self.open_and_digest()?;
            if before != after {
                self.report("idempotent recovery", "a second opening changed the stored data");
            }
            Ok(())
        });
        if let Err(error) = outcome {
            self.report("the store opens", error);
        }
    }

    fn resolve_and_verify(&mut self, incarnation: u32) -> Result<u64, String> {
        let dead = ProcessDead::default();
        self.crash_while_opening();
        let engine = self.start_process(&dead).ok_or("the machine cannot be opened")?;
        let before = self.before_opening(incarnation);
        let Some(store) = self.open(&engine, &dead) else { return Err("the store cannot be opened".into()) };
        self.check_leases(&store, &engine, &dead, before);
        let (second, rows) = self.both_keyspaces(&store, &dead, false).ok_or("the keyspaces cannot be opened")?;
        store.resolve_orphan_locks().map_err(|error| format!("cannot resolve orphan locks: {error}"))?;
        {
            let mut client_log = self.recorder.log();
            let resolved = client_log.resolve_unknown(&*engine, &rows).map_err(|error| error.to_string())?;
            self.stats.unacknowledged_commits += resolved.committed;
            self.violations.lock().extend(resolved.violations);
            if let Some(hole) = client_log.find_gap(&self.stats.acknowledged) {
                drop(client_log);
                self.report("surviving prefix", hole);
            }
        }
        self.resolve_lock_commits(&store, &engine)?;
        let recorder = self.recorder.for_process(&dead);
        self.sessions += 1;
        let client_id = ClientId { session: self.sessions, incarnation, config: self.plan.client_config() };
        let both = (rows, Some(second));
        let mut client = Client::new((&store, &*engine), both, &recorder, client_id, self.rng.split())
            .with_history_digests(&self.history_digests);
        self.check_restored(&store, &dead);
        let mut checked = Ok(());
        if store.stats().history_start_ts.is_some() {
            // The background work gets time to remove history that is older than the retention. The
            // checks that follow fail if it removes more.
            self.scheduler.sleep(Duration::from_millis(1500));
            checked = client.recheck_all();
        }
        let checked = checked.and_then(|()| client.check_snapshot(self.plan.workload));
        if store.stats().history_start_ts.is_none() {
            self.check_deleted(&store, &engine);
        }
        let progress = client.lock_every_row();
        drop(client);
        if let Err(error) = checked {
            self.report("workload", error.to_string());
        }
        match progress {
            Ok(TxnEnd::Committed) => {}
            other => self.report("progress", format!("a transaction on every row: {other:?}")),
        }
        store.resolve_orphan_locks().map_err(|error| error.to_string())?;
        let keyspaces = keyspace_ids(&store).map_err(|error| error.to_string())?;
        store.close().map_err(|error| format!("the store cannot be closed: {error}"))?;
        let violations = check_structure(engine.engine().storage()).map_err(|error| error.to_string())?;
        self.violations.lock().extend(violations);
        if self.plan.mode == Mode::Locks {
            let rows = check_no_lease_rows(engine.engine().storage()).map_err(|error| error.to_string())?;
            self.violations.lock().extend(rows);
        }
        digest(engine.engine().storage(), &keyspaces).map_err(|error| error.to_string())
    }

    fn open_and_digest(&mut self) -> Result<u64, String> {
        let dead = ProcessDead::default();
        let engine = self.start_process(&dead).ok_or("the machine cannot be opened a second time")?;
        let Some(store) = self.open(&engine, &dead) else {
            return Err("the store cannot be opened a second time".into());
        };
        store.resolve_orphan_locks().map_err(|error| error.to_string())?;
        let keyspaces = keyspace_ids(&store).map_err(|error| error.to_string())?;
        store.close().map_err(|error| error.to_string())?;
        let digest = digest(engine.engine().storage(), &keyspaces).map_err(|error| error.to_string())?;
        self.check_log_files(&engine)?;
        Ok(digest)
    }

    fn step_clock(&mut self) {
        if self.plan.clock_steps {
            let by = clock_offset_ms(&mut self.rng);
            self.scheduler.step_clock(by);
        }
    }

    fn report(&self, invariant: &'static str, details: impl Into<String>) {
        self.violations.lock().push(Violation::new(invariant, details));
    }
}
