//! A process on the machine: how it opens what is there, the thread that hands down for it, and how it ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use percolite::engine::local::LocalEngine;
use percolite::engine::machine::{MachineFault, SimMachine};

use super::super::engine::{Dead, Scheduled, is_dead};
use super::super::scheduler::ThreadId;
use super::{Embedded, Process};

/// How often generations are handed down while there are some, and at last.
const HANDS_DOWN_EVERY: Duration = Duration::from_micros(200);
const HANDS_DOWN_WITHIN: Duration = Duration::from_millis(500);

impl Embedded<'_> {
    /// Another process opens what is on the machine, and the power goes at some call.
    pub(super) fn cut_an_opening(&mut self) {
        self.machine.fail_from(1 + self.dice.below(80) as u64, self.dice.bits());
        drop(self.machine.open(self.plan.generation, self.dice.bits()));
        self.machine.crash(self.dice.bits());
    }

    /// Opens what is on the machine; `None` if the power has gone meanwhile.
    pub(super) fn process(&mut self, dead: &Dead) -> Option<Process> {
        let layers = match self.machine.open(self.plan.generation, self.dice.bits()) {
            Ok(layers) => layers,
            Err(_) if is_dead(dead) => return None,
            Err(why) => {
                self.breaks("opens again", why.to_string());
                return None;
            }
        };
        let (cells, bytes) = self.plan.pages;
        let engine = Arc::new(LocalEngine::new(layers, true).with_page_limits(cells, bytes));
        let scheduler = Arc::clone(self.scheduler);
        let scheduled = Scheduled::new(engine, scheduler, Arc::clone(dead), self.plan.group_rows);
        Some(Arc::new(scheduled.with_slow_syncs(self.plan.sync_takes)))
    }

    /// Begins the thread that hands generations down, among the others.
    pub(super) fn hand_down(&self, engine: &Process, dead: &Dead) -> Option<(ThreadId, Arc<AtomicBool>)> {
        let over = Arc::new(AtomicBool::new(false));
        let (scheduler, engine, dead) = (Arc::clone(self.scheduler), Arc::clone(engine), Arc::clone(dead));
        let ends = Arc::clone(&over);
        let work = move || {
            let (mut written, mut pause) = (0, HANDS_DOWN_EVERY);
            while !ends.load(Ordering::SeqCst) && !is_dead(&dead) {
                let has_work = engine.engine().storage().run_background_once(&mut written);
                pause = if has_work { HANDS_DOWN_EVERY } else { (pause * 2).min(HANDS_DOWN_WITHIN) };
                scheduler.sleep(pause);
            }
        };
        match self.scheduler.spawn("hand-down", Box::new(work)) {
            Ok(thread) => Some((thread, over)),
            Err(why) => {
                self.breaks("harness", why.to_string());
                None
            }
        }
    }

    pub(super) fn end(&self, below: Option<(ThreadId, Arc<AtomicBool>)>) {
        if let Some((thread, over)) = below {
            over.store(true, Ordering::SeqCst);
            self.scheduler.join(thread);
        }
    }

    /// Something on the machine fails soon.
    pub(super) fn plan_fault(&mut self, engine: &Process) {
        let Some(fault) = self.dice.pick(&MachineFault::ALL).copied().filter(|_| !self.dice.one_in(5)) else {
            engine.fail_lease();
            return;
        };
        let of_tables = matches!(
            fault,
            MachineFault::TableWriteApplied | MachineFault::TableWriteRejected | MachineFault::TableSync
        );
        let nth = 1 + self.dice.below(if of_tables { 5 } else { 40 }) as u64;
        self.machine.fail(fault, nth, self.dice.bits());
    }
}

/// The power goes, or only the process dies.
pub fn end_of(machine: &SimMachine, is_kill: bool, choice: u64) {
    if is_kill {
        machine.kill(choice);
    } else {
        machine.crash(choice);
    }
}
