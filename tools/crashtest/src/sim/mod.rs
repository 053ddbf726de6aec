//! Seeded simulation of the real protocol: many threads, one turn at a time, on an engine in memory whose crashes lose what
//! was not synced.
//!
//! A seed decides everything: the workload, how many lives, who runs when, where the crash comes and how much it takes, what
//! the clock says, what the network does. Two modes: *embedded*, where one process has the engine for itself and dies as a
//! whole, and *shared*, where several processes use one engine through bad networks and die one by one.

pub mod campaign;
mod embedded;
mod engine;
mod runtime;
mod scheduler;
mod shared;
mod sink;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use percolite::crashtest::Point;
use percolite::{CommitProtocol, Durability};

use crate::checker::check;
use crate::client::Habits;
use crate::dice::Dice;
use crate::history::Line;
use crate::violation::Broken;
use crate::workload::{self, Workload};

pub use scheduler::Scheduler;

/// How the processes of a history relate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, clap::ValueEnum, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// One process has the engine for itself.
    Embedded,
    /// Several share it.
    Shared,
}

/// What a seed has decided before anything runs.
#[allow(clippy::struct_excessive_bools)] // Each is a choice of its own.
pub struct Plan {
    mode: Mode,
    workload: &'static dyn Workload,
    clients: usize,
    /// Of all lives and clients together.
    transactions: usize,
    lives: u32,
    protocol: CommitProtocol,
    mixed: bool,
    durability: Durability,
    sweep: bool,
    conflict_slots: usize,
    /// The most rows that the engine changes at once.
    group_rows: usize,
    admission: usize,
    long_values: usize,
    clock_steps: bool,
    /// How long a silent process is waited for, and whether it may be cut off for a while.
    ttl_ms: u64,
    cut_off: bool,
    drops: bool,
    /// Whether each life begins by dropping a keyspace and waiting until its space is given back.
    clears: bool,
    failing_disk: bool,
    /// From where on a transaction streams.
    stream_at_bytes: usize,
    /// Where it may crash, and at which visit at most.
    points: Vec<Point>,
    visits: usize,
}

impl Plan {
    fn new(mode: Mode, dice: &mut Dice) -> Self {
        let protocol = if dice.one_in(2) { CommitProtocol::TwoPhase } else { CommitProtocol::Auto };
        let workloads = workload::ALL;
        let mut plan = Self {
            mode,
            workload: *dice.pick(workloads).unwrap_or(&workloads[0]),
            clients: 3 + dice.below(3),
            transactions: 54 + dice.below(20),
            lives: 1 + u32::try_from(dice.below(3)).unwrap_or_default(),
            protocol,
            mixed: dice.one_in(4),
            durability: if dice.one_in(3) { Durability::Buffered } else { Durability::Sync },
            sweep: !dice.one_in(3),
            conflict_slots: [1, 4, 64, 4096][dice.below(4)],
            group_rows: [usize::MAX, usize::MAX, 2, 3][dice.below(4)],
            admission: 2 + dice.below(6),
            long_values: [0, 2, 8][dice.below(3)],
            clock_steps: dice.one_in(3),
            ttl_ms: [10, 30, 500][dice.below(3)],
            cut_off: dice.one_in(2),
            drops: dice.one_in(3),
            failing_disk: dice.one_in(6),
            clears: false,
            points: Point::ALL.to_vec(),
            visits: [1, 3, 40][dice.below(3)],
            stream_at_bytes: if dice.one_in(4) { [1, 200, 1000][dice.below(3)] } else { 16 << 20 },
        };
        if plan.drops && dice.one_in(3) {
            // Committed, with rows locked whose primary may lie in the keyspace that the next life drops first of all. Its
            // space must not be given back before those are resolved.
            plan.clears = true;
            plan.points = vec![Point::CommitPrimary, Point::CommitBetween, Point::StreamCommitted];
            plan.protocol = CommitProtocol::TwoPhase;
            (plan.lives, plan.sweep) = (3, dice.one_in(2));
        }
        plan
    }

    fn habits(&self) -> Habits {
        Habits { protocol: self.protocol, durability: self.durability, long_values: self.long_values }
    }
}

/// What was seen while it ran.
#[derive(Default)]
pub struct Seen {
    /// Buffered commits that were told before a crash, by number.
    told: BTreeMap<u64, u64>,
    /// Batches that crashes took.
    lost: Arc<AtomicU64>,
    /// Write skew where nothing forbids it.
    skewed: Arc<AtomicU64>,
    /// Commits that nobody was told of and that were there.
    settled: usize,
}

/// One history, run and judged.
pub struct Run {
    /// Equal in every run of the seed.
    pub digest: u64,
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
    pub hits: HashMap<Point, u64>,
    /// What is wrong.
    pub broken: Vec<Broken>,
    /// What happened, if it was asked for.
    pub trace: Vec<String>,
    /// The history.
    pub lines: Vec<Line>,
}

/// Runs the history of a seed and judges it.
pub fn run(mode: Mode, seed: u64, trace: bool) -> Run {
    let mut dice = Dice::new(seed);
    let plan = Plan::new(mode, &mut dice);
    let scheduler = Scheduler::adopt(dice.split(), trace);
    let (book, seen, mut broken) = match plan.mode {
        Mode::Embedded => embedded::Embedded::new(&scheduler, &plan, dice).run(),
        Mode::Shared => shared::Shared::new(&scheduler, &plan, dice).run(),
    };
    Scheduler::release();
    let ledger = book.ledger();
    match ledger.history() {
        Ok(history) => broken.extend(Broken::found_by_checker(&check(&history))),
        Err(why) => broken.push(Broken::new("harness", why.to_string())),
    }
    Run {
        digest: scheduler.digest(),
        transactions: ledger.entries().count(),
        committed: ledger.acknowledged(),
        lost: seen.lost.load(std::sync::atomic::Ordering::SeqCst),
        skewed: seen.skewed.load(std::sync::atomic::Ordering::SeqCst),
        settled: seen.settled,
        steps: scheduler.steps(),
        hits: scheduler.hits(),
        broken,
        trace: scheduler.take_trace(),
        lines: ledger.lines().collect(),
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
