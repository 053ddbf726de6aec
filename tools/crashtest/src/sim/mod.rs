//! Seeded simulation of the real protocol and the real core: many threads, one turn at a time, on a machine in memory whose
//! crashes lose what was not synced. The log's disk tears and reorders, the tables below it flush when they like, and hand-downs and
//! openings are cut off like everything else. Where several processes share one engine, it is a map in memory without a core.
//!
//! A seed decides everything: the workload, how many lives, who runs when, where the crash comes and how much it takes, what
//! the clock says, what the network does. Two modes: *embedded*, where one process has the engine for itself and dies as a
//! whole, and *shared*, where several processes use one engine through bad networks and die one by one. A third, *mutex*, is embedded,
//! and has [lockers](crate::mutex) beside its clients.

mod embedded;
mod engine;
mod plan;
mod recorder;
pub mod runner;
mod runtime;
mod scheduler;
mod shared;
mod think_time;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use percolite::CommitProtocol;
use percolite::crashtest::CrashPoint;

use crate::checker::check;
use crate::client_log::ClientLog;
use crate::counter_check::check_counter;
use crate::history::Line;
use crate::lock_checker::{self, replay};
use crate::lock_workload::event::LockEvent;
use crate::rng::SeededRng;
use crate::violation::Violation;

pub use plan::TRANSACTIONS_MIN;
use plan::{Focus, SimPlan};
pub use scheduler::Scheduler;

/// How the processes of a history relate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, clap::ValueEnum, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// One process has the engine for itself.
    Embedded,
    /// Several share it.
    Shared,
    /// One process has the engine for itself, and its clients take locks by name.
    Locks,
}

/// What was seen while it ran.
#[derive(Default)]
pub struct SimStats {
    /// Buffered commits that were told before a crash, by number.
    acknowledged: BTreeMap<u64, u64>,
    /// Frames of the log that crashes took.
    lost_frames: u64,
    /// Write skew where nothing forbids it.
    write_skews: Arc<AtomicU64>,
    /// Commits that nobody was told of and that were there.
    unacknowledged_commits: usize,
    /// How many transactions clients tried, without those that looked at what was left.
    attempted: u64,
    /// How many lives ended with a crash.
    crashes: u64,
    /// What was noted of locks.
    lock_events: Vec<LockEvent>,
}

impl SimStats {
    /// Whether it was enough for the history to count.
    fn is_enough(&self) -> bool {
        self.crashes > 0 && self.attempted >= TRANSACTIONS_MIN
    }
}

/// One history, run and judged.
pub struct SimResult {
    /// Equal in every run of the seed.
    pub digest: u64,
    /// Whether it had a crash and transactions enough to count.
    pub is_valid: bool,
    /// How many transactions there were.
    pub transactions: usize,
    /// How many were acknowledged as committed.
    pub committed: usize,
    /// Batches that crashes took.
    pub lost_frames: u64,
    /// How often write skew was seen where nothing forbids it.
    pub write_skews: u64,
    /// Commits that nobody was told of and that were there.
    pub unacknowledged_commits: usize,
    /// Turns.
    pub steps: u64,
    /// How often each point was visited.
    pub hits: HashMap<CrashPoint, u64>,
    /// What is wrong.
    pub violations: Vec<Violation>,
    /// What happened, if it was asked for.
    pub trace: Vec<String>,
    /// What the seed had decided.
    pub plan: String,
    /// The history.
    pub client_log: ClientLog,
    /// What was noted of locks.
    pub lock_events: Vec<LockEvent>,
    /// How many commits under locks were not fenced, and how many of them were out of turn.
    pub unfenced: (u64, u64),
}

impl SimResult {
    /// The lines of the history.
    pub fn lines(&self) -> impl Iterator<Item = Line> {
        self.client_log.lines()
    }
}

/// Runs the history of a seed and judges it.
pub fn run(mode: Mode, seed: u64, trace: bool) -> SimResult {
    let mut rng = SeededRng::new(seed);
    let plan = SimPlan::new(mode, &mut rng);
    let scheduler = Scheduler::new_on_current_thread(rng.split(), trace);
    match rng.below(if mode == Mode::Locks { 4 } else { 0 }) {
        1 => scheduler.yield_at_locks(),
        2 | 3 => scheduler.stall_often(plan::LOCK_CLIENT, 30),
        _ => {}
    }
    if let Some((threads, once_in)) = plan.focus.and_then(Focus::stalls) {
        scheduler.stall_often(threads, once_in);
    }
    let (recorder, stats, mut violations) = match plan.mode {
        Mode::Embedded | Mode::Locks => embedded::Embedded::new(&scheduler, &plan, rng).run(),
        Mode::Shared => shared::Shared::new(&scheduler, &plan, rng).run(),
    };
    Scheduler::detach();
    let client_log = recorder.log().clone();
    violations.extend(check_counter(&client_log));
    match client_log.history() {
        Ok(history) => violations.extend(Violation::found_by_checker(&check(&history))),
        Err(why) => violations.push(Violation::new("harness", why.to_string())),
    }
    let (is_enough, records) = (stats.is_enough(), replay(&stats.lock_events));
    violations.extend(lock_checker::check(&records));
    let out_of_order = lock_checker::fencing_violations(&records.grants, &records.unfenced, &[]).len();
    SimResult {
        unfenced: (records.unfenced.len() as u64, out_of_order as u64),
        lock_events: stats.lock_events,
        digest: scheduler.digest(),
        is_valid: is_enough,
        transactions: client_log.entries().count(),
        committed: client_log.acknowledged(),
        lost_frames: stats.lost_frames,
        write_skews: stats.write_skews.load(std::sync::atomic::Ordering::SeqCst),
        unacknowledged_commits: stats.unacknowledged_commits,
        steps: scheduler.steps(),
        hits: scheduler.hits(),
        violations,
        trace: scheduler.take_trace(),
        plan: format!("{plan:#?}"),
        client_log,
    }
}

fn other_protocol(protocol: CommitProtocol) -> CommitProtocol {
    match protocol {
        CommitProtocol::Auto => CommitProtocol::TwoPhase,
        CommitProtocol::TwoPhase => CommitProtocol::Auto,
    }
}

/// How far a clock is off, in milliseconds: up to three hours either way.
fn clock_offset_ms(rng: &mut SeededRng) -> i64 {
    const MOST: i64 = 3 * 3_600_000;
    i64::try_from(rng.below(usize::try_from(2 * MOST).unwrap_or(usize::MAX))).unwrap_or_default() - MOST
}
