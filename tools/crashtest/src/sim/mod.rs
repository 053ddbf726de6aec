//! Seeded simulation of the real protocol and the real core: many threads, one turn at a time, on a machine in memory whose
//! crashes lose what was not synced. The log's disk tears and reorders, the tables below it flush when they like, and hand-downs and
//! openings are cut off like everything else. Where several processes share one engine, it is a map in memory without a core.
//!
//! A seed decides everything: the workload, how many lives, who runs when, where the crash comes and how much it takes, what
//! the clock says, what the network does. Two modes: *embedded*, where one process has the engine for itself and dies as a
//! whole, and *shared*, where several processes use one engine through bad networks and die one by one. A third, *mutex*, is embedded,
//! and has [lockers](crate::mutex) beside its clients.

pub mod campaign;
mod embedded;
mod engine;
mod plan;
mod runtime;
mod scheduler;
mod shared;
mod sink;
mod thinking;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use percolite::CommitProtocol;
use percolite::crashtest::CrashPoint;

use crate::checker::check;
use crate::counter::miscounted;
use crate::dice::Dice;
use crate::fenced::{self, fold};
use crate::history::Line;
use crate::ledger::Ledger;
use crate::mutex::note::Note;
use crate::violation::Broken;

pub use plan::TRANSACTIONS_MIN;
use plan::{Focus, Plan};
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
    Mutex,
}

/// What was seen while it ran.
#[derive(Default)]
pub struct Seen {
    /// Buffered commits that were told before a crash, by number.
    told: BTreeMap<u64, u64>,
    /// Frames of the log that crashes took.
    lost: u64,
    /// Write skew where nothing forbids it.
    skewed: Arc<AtomicU64>,
    /// Commits that nobody was told of and that were there.
    settled: usize,
    /// How many transactions clients tried, without those that looked at what was left.
    tried: u64,
    /// How many lives ended with a crash.
    crashes: u64,
    /// What was noted of locks.
    notes: Vec<Note>,
}

impl Seen {
    /// Whether it was enough for the history to count.
    fn is_enough(&self) -> bool {
        self.crashes > 0 && self.tried >= TRANSACTIONS_MIN
    }
}

/// One history, run and judged.
pub struct Run {
    /// Equal in every run of the seed.
    pub digest: u64,
    /// Whether it had a crash and transactions enough to count.
    pub counts: bool,
    /// How many transactions there were.
    pub transactions: usize,
    /// How many were acknowledged as committed.
    pub committed: usize,
    /// Batches that crashes took.
    pub lost: u64,
    /// How often write skew was seen where nothing forbids it.
    pub skewed: u64,
    /// Commits that nobody was told of and that were there.
    pub settled: usize,
    /// Turns.
    pub steps: u64,
    /// How often each point was visited.
    pub hits: HashMap<CrashPoint, u64>,
    /// What is wrong.
    pub broken: Vec<Broken>,
    /// What happened, if it was asked for.
    pub trace: Vec<String>,
    /// What the seed had decided.
    pub plan: String,
    /// The history.
    pub ledger: Ledger,
    /// What was noted of locks.
    pub notes: Vec<Note>,
    /// How many commits under locks were not fenced, and how many of them were out of turn.
    pub unfenced: (u64, u64),
}

impl Run {
    /// The lines of the history.
    pub fn lines(&self) -> impl Iterator<Item = Line> {
        self.ledger.lines()
    }
}

/// Runs the history of a seed and judges it.
pub fn run(mode: Mode, seed: u64, trace: bool) -> Run {
    let mut dice = Dice::new(seed);
    let plan = Plan::new(mode, &mut dice);
    let scheduler = Scheduler::adopt(dice.split(), trace);
    match dice.below(if mode == Mode::Mutex { 4 } else { 0 }) {
        1 => scheduler.pause_at_locks(),
        2 | 3 => scheduler.stall_often(plan::LOCKER, 30),
        _ => {}
    }
    if let Some((threads, once_in)) = plan.focus.and_then(Focus::stalls) {
        scheduler.stall_often(threads, once_in);
    }
    let (book, seen, mut broken) = match plan.mode {
        Mode::Embedded | Mode::Mutex => embedded::Embedded::new(&scheduler, &plan, dice).run(),
        Mode::Shared => shared::Shared::new(&scheduler, &plan, dice).run(),
    };
    Scheduler::release();
    let ledger = book.ledger().clone();
    broken.extend(miscounted(&ledger));
    match ledger.history() {
        Ok(history) => broken.extend(Broken::found_by_checker(&check(&history))),
        Err(why) => broken.push(Broken::new("harness", why.to_string())),
    }
    let (is_enough, records) = (seen.is_enough(), fold(&seen.notes));
    broken.extend(fenced::check(&records));
    let late = fenced::out_of_turn(&records.held, &records.unfenced, &[]).len();
    Run {
        unfenced: (records.unfenced.len() as u64, late as u64),
        notes: seen.notes,
        digest: scheduler.digest(),
        counts: is_enough,
        transactions: ledger.entries().count(),
        committed: ledger.acknowledged(),
        lost: seen.lost,
        skewed: seen.skewed.load(std::sync::atomic::Ordering::SeqCst),
        settled: seen.settled,
        steps: scheduler.steps(),
        hits: scheduler.hits(),
        broken,
        trace: scheduler.take_trace(),
        plan: format!("{plan:#?}"),
        ledger,
    }
}

fn other(protocol: CommitProtocol) -> CommitProtocol {
    match protocol {
        CommitProtocol::Auto => CommitProtocol::TwoPhase,
        CommitProtocol::TwoPhase => CommitProtocol::Auto,
    }
}

/// How far a clock is off, in milliseconds: up to three hours either way.
fn hours(dice: &mut Dice) -> i64 {
    const MOST: i64 = 3 * 3_600_000;
    i64::try_from(dice.below(usize::try_from(2 * MOST).unwrap_or(usize::MAX))).unwrap_or_default() - MOST
}
