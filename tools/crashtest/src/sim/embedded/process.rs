//! A process on the simulated machine: its opening, its flusher thread, and its crash.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use percolite::engine::local::LocalEngine;
use percolite::engine::machine::{MachineFault, SimMachine};

use super::super::engine::{ProcessDead, ScheduledEngine, is_dead};
use super::super::scheduler::ThreadId;
use super::{Embedded, Process};

/// The interval between two runs of the flusher while there is work, and the longest one without
/// work.
const FLUSH_INTERVAL: Duration = Duration::from_micros(200);
const FLUSH_INTERVAL_MAX: Duration = Duration::from_millis(500);

impl Embedded<'_> {
    /// Opens the machine as a separate process and cuts the power at a random call.
    pub(super) fn crash_while_opening(&mut self) {
        self.machine.fail_from(1 + self.rng.below(80) as u64, self.rng.bits());
        drop(self.machine.open(self.plan.memtable_bytes, self.rng.bits()));
        self.machine.crash(self.rng.bits());
    }

    /// Opens the machine; `None` if the crash came during the opening.
    pub(super) fn start_process(&mut self, dead: &ProcessDead) -> Option<Process> {
        let storage = match self.machine.open(self.plan.memtable_bytes, self.rng.bits()) {
            Ok(storage) => storage,
            Err(_) if is_dead(dead) => return None,
            Err(error) => {
                self.report("the store opens", error.to_string());
                return None;
            }
        };
        let (cells, bytes) = self.plan.page_limits;
        let engine = Arc::new(LocalEngine::new(storage, true).with_page_limits(cells, bytes));
        let scheduler = Arc::clone(self.scheduler);
        let scheduled = ScheduledEngine::new(engine, scheduler, Arc::clone(dead), self.plan.batch_rows_max);
        Some(Arc::new(scheduled.with_slow_syncs(self.plan.sync_time)))
    }

    /// Starts the thread that flushes memtables.
    pub(super) fn spawn_flusher(&self, engine: &Process, dead: &ProcessDead) -> Option<(ThreadId, Arc<AtomicBool>)> {
        let stop = Arc::new(AtomicBool::new(false));
        let (scheduler, engine, dead) = (Arc::clone(self.scheduler), Arc::clone(engine), Arc::clone(dead));
        let should_stop = Arc::clone(&stop);
        let work = move || {
            let (mut written, mut pause) = (0, FLUSH_INTERVAL);
            while !should_stop.load(Ordering::SeqCst) && !is_dead(&dead) {
                let has_work = engine.engine().storage().run_background_once(&mut written);
                pause = if has_work { FLUSH_INTERVAL } else { (pause * 2).min(FLUSH_INTERVAL_MAX) };
                scheduler.sleep(pause);
            }
        };
        match self.scheduler.spawn("flusher", Box::new(work)) {
            Ok(thread) => Some((thread, stop)),
            Err(error) => {
                self.report("harness", error.to_string());
                None
            }
        }
    }

    pub(super) fn stop_flusher(&self, flusher: Option<(ThreadId, Arc<AtomicBool>)>) {
        if let Some((thread, stop)) = flusher {
            stop.store(true, Ordering::SeqCst);
            self.scheduler.join(thread);
        }
    }

    /// Makes a random fault occur at one of the machine's next calls, or the oracle's next
    /// reservation fail.
    pub(super) fn plan_fault(&mut self, engine: &Process) {
        let Some(fault) = self.rng.pick(&MachineFault::ALL).copied().filter(|_| !self.rng.one_in(5)) else {
            engine.fail_reservation();
            return;
        };
        let is_table_fault = matches!(
            fault,
            MachineFault::TableWriteApplied | MachineFault::TableWriteRejected | MachineFault::TableSync
        );
        let nth = 1 + self.rng.below(if is_table_fault { 5 } else { 40 }) as u64;
        self.machine.fail(fault, nth, self.rng.bits());
    }
}

/// Cuts the power, or kills only the process.
pub fn crash_machine(machine: &SimMachine, is_kill: bool, choice: u64) {
    if is_kill {
        machine.kill(choice);
    } else {
        machine.crash(choice);
    }
}
