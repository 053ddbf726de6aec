//! Many seeds, on several threads.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use anyhow::Context as _;
use clap::Args;
use parking_lot::Mutex;
use percolite::crashtest::{CrashPoint, enable_mutant};

use super::{Mode, Run, Scheduler, TRANSACTIONS_MIN};
use crate::history::Line;
use crate::interrupt;
use crate::order::{Order, keep_with};
use crate::outcome::{Failure, Outcome};
use crate::points::Place;
use crate::violation::Broken;

/// One history in so many is run twice, and must be the same. An odd number, so that both modes are.
const TWICE_EVERY: u64 = 49;
/// Of so many histories one may have too few transactions or no crash, and is checked without being counted. A plan that makes
/// more of them is broken.
const UNCOUNTED_EVERY: u64 = 100;
/// What of a failing history is kept on the way to its end.
const FAILURES_KEPT: usize = 20;
/// A figure: how often each history has seen write skew where nothing forbids it.
const SKEW: &str = "write skew";
/// A figure: how many histories of each round had too few transactions or no crash.
const UNCOUNTED: &str = "histories that do not count";

/// One history in so many is of locks.
const LOCKS_EVERY: u64 = 6;
/// Figures: commits under locks that were not fenced, and those of them that came out of turn.
const UNFENCED: &str = "commits that were not fenced";
const OUT_OF_TURN: &str = "commits that were not fenced, out of turn";
/// A run with so many histories of locks has come to every point of theirs, and has seen what happens without fences.
const LOCKS_ENOUGH: u64 = 200;

/// How many histories a quick run has, and how many another.
pub const QUICK_HISTORIES: u64 = 12_000;
const HISTORIES: u64 = 24_000;
/// How many are run between two looks at the clock.
const ROUND: u64 = 500;

/// Simulates histories from seeds, crashes included, and checks each.
#[derive(Args, Clone, Debug)]
pub struct SimArgs {
    /// What all layers can be asked.
    #[command(flatten)]
    pub order: Order,
    /// Only this mode; otherwise one in six is of locks, and the others are embedded and shared in turn.
    #[arg(long)]
    pub mode: Option<Mode>,
    /// How many histories that count: with at least 50 transactions and a crash.
    #[arg(long)]
    pub count: Option<u64>,
}

/// Which history stands at a place if no mode is asked for. One in so many is of locks, the others take turns.
pub fn nth(number: u64) -> (Mode, u64) {
    let locks = number / LOCKS_EVERY;
    if number.is_multiple_of(LOCKS_EVERY) {
        return (Mode::Mutex, locks);
    }
    let seed = number - locks;
    (if seed.is_multiple_of(2) { Mode::Embedded } else { Mode::Shared }, seed)
}

/// The words that repeat a history.
pub fn case(mode: Mode, seed: u64) -> String {
    match mode {
        Mode::Embedded => format!("sim:embedded/{seed}"),
        Mode::Shared => format!("sim:shared/{seed}"),
        Mode::Mutex => format!("sim:mutex/{seed}"),
    }
}

/// Runs what is ordered.
///
/// # Errors
/// When the words of a case name none.
pub fn run(order: &Order) -> anyhow::Result<Outcome> {
    run_with(&SimArgs { order: order.clone(), mode: None, count: None })
}

/// Runs what is ordered, of one mode or of both.
///
/// # Errors
/// When the words of a case name none.
pub fn run_with(args: &SimArgs) -> anyhow::Result<Outcome> {
    let order = &args.order;
    if order.case.is_some() {
        return replay(order).map(|again| again.outcome);
    }
    enable_mutant(order.mutant);
    Scheduler::install_hooks();
    let clock = order.clock();
    let enough = args.count.unwrap_or(if order.quick { QUICK_HISTORIES } else { HISTORIES });
    let mut total = Outcome::of("sim");
    let (mut begun, mut uncounted) = (0, 0);
    while clock.allows(total.cases, enough) && !order.is_enough(&total) && !too_many(uncounted, begun) {
        let count = if order.time.is_some() { ROUND } else { ROUND.min(enough - total.cases) };
        let found = round(args, order.seed + begun, count);
        (begun, uncounted) = (begun + count, uncounted + found.uncounted);
        total.count(UNCOUNTED, found.uncounted);
        total.add(found.outcome);
    }
    enable_mutant(None);
    total.seconds = clock.seconds();
    if order.mutant.is_none() {
        if too_many(uncounted, begun) {
            let how = format!("{uncounted} of {begun} have less than {TRANSACTIONS_MIN} transactions or no crash");
            total.failures.push(of_the_harness(how));
        }
        total.failures.extend(locks_missed(&total));
        if total.cases >= QUICK_HISTORIES && total.figures[SKEW].iter().sum::<f64>() == 0.0 {
            total.failures.push(of_the_harness("write skew, which nothing forbids, was never seen".into()));
        }
    }
    Ok(total)
}

/// What a run with locks must have come to, and must have seen.
fn locks_missed(total: &Outcome) -> Vec<Failure> {
    let unfenced = total.figures.get(UNFENCED).map_or(0, Vec::len) as u64;
    if unfenced < LOCKS_ENOUGH {
        return Vec::new();
    }
    let visits = total.visits.get(&Place::SimEmbedded.to_string());
    let missed = [CrashPoint::LockGrantEnded, CrashPoint::LockHandedOver]
        .into_iter()
        .filter(|point| visits.and_then(|points| points.get(point.name())).is_none_or(|visits| *visits == 0));
    let missed = missed.map(|point| format!("{} was never hit in {unfenced} histories of locks", point.name()));
    let lost = total.figures.get(OUT_OF_TURN).into_iter().flatten().sum::<f64>();
    let never = (lost <= 0.0).then(|| "no commit without a fence came out of turn: nothing needed a fence".to_owned());
    missed.chain(never).map(of_the_harness).collect()
}

fn too_many(uncounted: u64, begun: u64) -> bool {
    uncounted > begun / UNCOUNTED_EVERY
}

fn of_the_harness(how: String) -> Failure {
    let broken = vec![Broken::new("harness: what a history must have", how)];
    Failure { replay: "percolite-crashtest sim".into(), broken, kept: None }
}

/// What came of some seeds.
struct Round {
    /// Of the histories that count, and of those that broke a promise.
    outcome: Outcome,
    /// How many do not count.
    uncounted: u64,
}

/// A few hundred seeds, on as many threads as there are cores.
fn round(args: &SimArgs, first: u64, count: u64) -> Round {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let (next, stop) = (AtomicU64::new(first), AtomicBool::new(false));
    let total = Mutex::new(Round { outcome: Outcome::of("sim"), uncounted: 0 });
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) && !interrupt::came() {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= first + count {
                        break;
                    }
                    let (mode, seed) = args.mode.map_or_else(|| nth(seed), |mode| (mode, seed));
                    let found = judge(mode, seed);
                    stop.fetch_or(args.order.stop && !found.broken.is_empty(), Ordering::Relaxed);
                    let mut total = total.lock();
                    if found.counts || !found.broken.is_empty() {
                        add(&mut total.outcome, &args.order, mode, seed, found);
                    } else {
                        total.uncounted += 1;
                    }
                }
            });
        }
    });
    total.into_inner()
}

/// A history that was run again.
pub struct Again {
    /// What came of it.
    pub outcome: Outcome,
    /// Every step.
    pub trace: Vec<String>,
    /// The history.
    pub lines: Vec<Line>,
}

/// Runs one case again, with its trace.
///
/// # Errors
/// When the words name no case.
pub fn replay(order: &Order) -> anyhow::Result<Again> {
    Scheduler::install_hooks();
    let case = order.case.as_deref().unwrap_or_default();
    let parts = case.strip_prefix("sim:").and_then(|case| case.split_once('/'));
    let (mode, seed) = parts.with_context(|| {
        format!("{case:?} is no case of sim: write sim:embedded/SEED, sim:shared/SEED or sim:mutex/SEED")
    })?;
    let mode = match mode {
        "embedded" => Mode::Embedded,
        "shared" => Mode::Shared,
        "mutex" => Mode::Mutex,
        other => anyhow::bail!("{other:?} is neither `embedded` nor `shared` nor `mutex`"),
    };
    let seed = seed.parse().with_context(|| format!("{seed:?} is no seed"))?;
    enable_mutant(order.mutant);
    let mut found = super::run(mode, seed, true);
    let (trace, lines) = (std::mem::take(&mut found.trace), found.lines().collect());
    let mut outcome = Outcome::of("sim");
    add(&mut outcome, order, mode, seed, found);
    enable_mutant(None);
    Ok(Again { outcome, trace, lines })
}

fn judge(mode: Mode, seed: u64) -> Run {
    let mut found = super::run(mode, seed, false);
    if seed.is_multiple_of(TWICE_EVERY) {
        let again = super::run(mode, seed, false);
        if again.digest != found.digest || !again.lines().eq(found.lines()) {
            found.broken.push(Broken::new("harness", "the same seed ran differently the second time"));
        }
    }
    found
}

fn add(outcome: &mut Outcome, order: &Order, mode: Mode, seed: u64, found: Run) {
    outcome.cases += 1;
    outcome.transactions += found.transactions as u64;
    outcome.acknowledged += found.committed as u64;
    outcome.lost += found.lost;
    outcome.unanswered += found.settled as u64;
    outcome.count(SKEW, found.skewed);
    if mode == Mode::Mutex {
        outcome.count(UNFENCED, found.unfenced.0);
        outcome.count(OUT_OF_TURN, found.unfenced.1);
    }
    let place = match mode {
        Mode::Embedded | Mode::Mutex => Place::SimEmbedded,
        Mode::Shared => Place::SimShared,
    };
    for (point, visits) in found.hits {
        outcome.visit(&place.to_string(), point.name(), visits);
    }
    if !found.broken.is_empty() && outcome.failures.len() < FAILURES_KEPT {
        let again = super::run(mode, seed, true);
        let more = |kept: &Path| {
            std::fs::write(kept.join("plan.txt"), &found.plan)?;
            let notes: Vec<String> = found.notes.iter().map(|note| format!("{note:?}")).collect();
            std::fs::write(kept.join("locks.txt"), notes.join("\n"))?;
            std::fs::write(kept.join("trace.txt"), again.trace.join("\n"))
        };
        outcome.failures.push(keep_with(order, &case(mode, seed), Some(&found.ledger), found.broken, more));
    }
}
