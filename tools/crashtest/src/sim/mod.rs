//! Seeded simulation of the real store: many threads, of which one runs at a time, on a machine in
//! memory whose crashes lose unsynced data.
//!
//! The disk of the log tears and reorders writes, and the tables below the log flush at random.
//! Crashes also interrupt flushes and openings. Where several processes share one engine, the
//! engine is a map in memory, without a log and tables.
//!
//! The seed decides everything: the workload, the number of incarnations, the thread schedule, the
//! time of a crash and its losses, the clock, and the network. There are three modes. *Embedded*:
//! one process owns the engine and crashes as a whole. *Shared*: several processes use one engine
//! over bad networks and crash one by one. *Locks*: embedded, with
//! [lock clients](crate::lock_workload).

mod embedded;
mod engine;
mod plan;
mod recorder;
pub mod runner;
mod runtime;
mod scheduler;
mod shared;

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
pub use runtime::SimRuntime;
use scheduler::LONG_STALL;
pub use scheduler::{Scheduler, ThreadId, Trigger};

/// The name of the store's background thread, as in `coordinator/embedded`.
pub(crate) const BACKGROUND_THREAD: &str = "percolite-bg";

/// How the processes of a history use the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, clap::ValueEnum, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// One process owns the engine.
    Embedded,
    /// Several processes share the engine.
    Shared,
    /// One process owns the engine, and lock clients run beside its clients.
    Locks,
}

/// Statistics of a history.
#[derive(Default)]
pub struct SimStats {
    /// Commit timestamps acknowledged before a crash, by transaction number.
    acknowledged: BTreeMap<u64, u64>,
    /// Log frames that crashes removed.
    lost_frames: u64,
    /// Write skews, which snapshot isolation permits.
    write_skews: Arc<AtomicU64>,
    /// How many commits were found whose client had no acknowledgement.
    unacknowledged_commits: usize,
    /// Transactions that clients attempted, and their requests for named locks, both without those
    /// of the final checks.
    attempted: u64,
    /// Incarnations that ended with a crash.
    crashes: u64,
    /// Events of named locks.
    lock_events: Vec<LockEvent>,
}

impl SimStats {
    /// Whether the history counts: it has enough transactions and a crash.
    fn is_enough(&self) -> bool {
        self.crashes > 0 && self.attempted >= TRANSACTIONS_MIN
    }
}

/// The result of one history.
pub struct SimResult {
    /// A digest, equal in every run of the seed.
    pub digest: u64,
    /// Whether the history counts: it has enough transactions and a crash.
    pub is_valid: bool,
    /// The number of transactions.
    pub transactions: usize,
    /// The number of acknowledged commits.
    pub committed: usize,
    /// Log frames that crashes removed.
    pub lost_frames: u64,
    /// Write skews, which snapshot isolation permits.
    pub write_skews: u64,
    /// How many commits were found whose client had no acknowledgement.
    pub unacknowledged_commits: usize,
    /// Scheduler steps.
    pub steps: u64,
    /// Visits by crash point.
    pub hits: HashMap<CrashPoint, u64>,
    /// The violations.
    pub violations: Vec<Violation>,
    /// The trace, if requested.
    pub trace: Vec<String>,
    /// The plan of the seed.
    pub plan: String,
    /// The log of the clients.
    pub client_log: ClientLog,
    /// Events of named locks.
    pub lock_events: Vec<LockEvent>,
    /// Unfenced commits under locks, and how many violations the checks of fencing and visibility
    /// find in them, at most two for each commit. Fenced commits must have none.
    pub unfenced: (u64, u64),
}

impl SimResult {
    /// The lines of the history.
    pub fn lines(&self) -> impl Iterator<Item = Line> {
        self.client_log.lines()
    }
}

/// Runs and checks the history of a seed.
pub fn run(mode: Mode, seed: u64, trace: bool) -> SimResult {
    let mut rng = SeededRng::new(seed);
    let plan = SimPlan::new(mode, &mut rng);
    let scheduler = Scheduler::new_on_current_thread(rng.split(), trace);
    match rng.below(if mode == Mode::Locks { 4 } else { 0 }) {
        1 => scheduler.yield_at_locks(),
        2 | 3 => scheduler.stall_often(plan::LOCK_CLIENT, 30, LONG_STALL),
        _ => {}
    }
    if let Some((threads, once_in, longest)) = plan.focus.and_then(Focus::stalls) {
        scheduler.stall_often(threads, once_in, longest);
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
        Err(error) => violations.push(Violation::new("harness", error.to_string())),
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
        _ => CommitProtocol::Auto,
    }
}

/// A random clock offset of up to three hours either way, in milliseconds.
fn clock_offset_ms(rng: &mut SeededRng) -> i64 {
    const MOST: i64 = 3 * 3_600_000;
    i64::try_from(rng.below(usize::try_from(2 * MOST).unwrap_or(usize::MAX))).unwrap_or_default() - MOST
}
