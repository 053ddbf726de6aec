//! Many seeds, on several threads.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use anyhow::Context as _;
use clap::Args;
use parking_lot::Mutex;
use percolite::crashtest::{CrashPoint, enable_mutant};

use super::{Mode, Scheduler, SimResult, TRANSACTIONS_MIN};
use crate::history::Line;
use crate::interrupt;
use crate::layer_args::{LayerArgs, save_failure_with};
use crate::layer_result::{Failure, LayerResult};
use crate::points::Environment;
use crate::violation::Violation;

/// One history in so many is run twice, and must be the same. An odd number, so that both modes are.
const RERUN_EVERY: u64 = 49;
/// Of so many histories one may have too few transactions or no crash, and is checked without being counted. A plan that makes
/// more of them is broken.
const DISCARDED_EVERY: u64 = 100;
/// What of a failing history is kept on the way to its end.
const FAILURES_MAX: usize = 20;
/// A figure: how often each history has seen write skew where nothing forbids it.
const SKEW: &str = "write skew";
/// A figure: how many histories of each round had too few transactions or no crash.
const DISCARDED: &str = "histories that do not count";

/// One history in so many is of locks.
const LOCKS_EVERY: u64 = 6;
/// Figures: commits under locks that were not fenced, and those of them that came out of turn.
const UNFENCED: &str = "commits that were not fenced";
const OUT_OF_LOCK_ORDER: &str = "commits that were not fenced, out of turn";
/// A run with so many histories of locks has come to every point of theirs, and has seen what happens without fences.
const LOCK_HISTORIES_MIN: u64 = 200;

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
    pub common: LayerArgs,
    /// Only this mode; otherwise one in six is of locks, and the others are embedded and shared in turn.
    #[arg(long)]
    pub mode: Option<Mode>,
    /// How many histories that count: with at least 50 transactions and a crash.
    #[arg(long)]
    pub count: Option<u64>,
}

/// Which history stands at a place if no mode is asked for. One in so many is of locks, the others take turns.
pub fn history_at(number: u64) -> (Mode, u64) {
    let locks = number / LOCKS_EVERY;
    if number.is_multiple_of(LOCKS_EVERY) {
        return (Mode::Locks, locks);
    }
    let seed = number - locks;
    (if seed.is_multiple_of(2) { Mode::Embedded } else { Mode::Shared }, seed)
}

/// The words that repeat a history.
pub fn case_name(mode: Mode, seed: u64) -> String {
    match mode {
        Mode::Embedded => format!("sim:embedded/{seed}"),
        Mode::Shared => format!("sim:shared/{seed}"),
        Mode::Locks => format!("sim:locks/{seed}"),
    }
}

/// Runs what is ordered.
///
/// # Errors
/// When the words of a case name none.
pub fn run(args: &LayerArgs) -> anyhow::Result<LayerResult> {
    run_with(&SimArgs { common: args.clone(), mode: None, count: None })
}

/// Runs what is ordered, of one mode or of both.
///
/// # Errors
/// When the words of a case name none.
pub fn run_with(args: &SimArgs) -> anyhow::Result<LayerResult> {
    let common = &args.common;
    if common.case.is_some() {
        return replay(common).map(|rerun| rerun.outcome);
    }
    enable_mutant(common.mutant);
    Scheduler::install_hooks();
    let clock = common.clock();
    let enough = args.count.unwrap_or(if common.quick { QUICK_HISTORIES } else { HISTORIES });
    let mut total = LayerResult::new("sim");
    let (mut started, mut discarded) = (0, 0);
    while clock.allows(total.cases, enough) && !common.should_stop(&total) && !too_many(discarded, started) {
        let count = if common.time.is_some() { ROUND } else { ROUND.min(enough - total.cases) };
        let found = round(args, common.seed + started, count);
        (started, discarded) = (started + count, discarded + found.discarded);
        total.count(DISCARDED, found.discarded);
        total.add(found.outcome);
    }
    enable_mutant(None);
    total.seconds = clock.seconds();
    if common.mutant.is_none() {
        if too_many(discarded, started) {
            let how = format!("{discarded} of {started} have less than {TRANSACTIONS_MIN} transactions or no crash");
            total.failures.push(harness_failure(how));
        }
        total.failures.extend(check_lock_coverage(&total));
        if total.cases >= QUICK_HISTORIES && total.metrics[SKEW].iter().sum::<f64>() == 0.0 {
            total.failures.push(harness_failure("write skew, which nothing forbids, was never seen".into()));
        }
    }
    Ok(total)
}

/// What a run with locks must have come to, and must have seen.
fn check_lock_coverage(total: &LayerResult) -> Vec<Failure> {
    let unfenced = total.metrics.get(UNFENCED).map_or(0, Vec::len) as u64;
    if unfenced < LOCK_HISTORIES_MIN {
        return Vec::new();
    }
    let visits = total.visits.get(&Environment::SimEmbedded.to_string());
    let missed = [CrashPoint::LockGrantEnded, CrashPoint::LockHandedOver]
        .into_iter()
        .filter(|point| visits.and_then(|points| points.get(point.name())).is_none_or(|visits| *visits == 0));
    let missed = missed.map(|point| format!("{} was never hit in {unfenced} histories of locks", point.name()));
    let lost = total.metrics.get(OUT_OF_LOCK_ORDER).into_iter().flatten().sum::<f64>();
    let never = (lost <= 0.0).then(|| "no commit without a fence came out of turn: nothing needed a fence".to_owned());
    missed.chain(never).map(harness_failure).collect()
}

fn too_many(discarded: u64, started: u64) -> bool {
    discarded > started / DISCARDED_EVERY
}

fn harness_failure(how: String) -> Failure {
    let violations = vec![Violation::new("harness: valid histories", how)];
    Failure { replay: "percolite-crashtest sim".into(), violations, saved_in: None }
}

/// What came of some seeds.
struct Round {
    /// Of the histories that count, and of those that broke a promise.
    outcome: LayerResult,
    /// How many do not count.
    discarded: u64,
}

/// A few hundred seeds, on as many threads as there are cores.
fn round(args: &SimArgs, first: u64, count: u64) -> Round {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let (next, stop) = (AtomicU64::new(first), AtomicBool::new(false));
    let total = Mutex::new(Round { outcome: LayerResult::new("sim"), discarded: 0 });
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) && !interrupt::is_requested() {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= first + count {
                        break;
                    }
                    let (mode, seed) = args.mode.map_or_else(|| history_at(seed), |mode| (mode, seed));
                    let found = run_and_check(mode, seed);
                    stop.fetch_or(args.common.fail_fast && !found.violations.is_empty(), Ordering::Relaxed);
                    let mut total = total.lock();
                    if found.is_valid || !found.violations.is_empty() {
                        add(&mut total.outcome, &args.common, mode, seed, found);
                    } else {
                        total.discarded += 1;
                    }
                }
            });
        }
    });
    total.into_inner()
}

/// A history that was run again.
pub struct Replay {
    /// What came of it.
    pub outcome: LayerResult,
    /// Every step.
    pub trace: Vec<String>,
    /// The history.
    pub lines: Vec<Line>,
}

/// Runs one case again, with its trace.
///
/// # Errors
/// When the words name no case.
pub fn replay(args: &LayerArgs) -> anyhow::Result<Replay> {
    Scheduler::install_hooks();
    let case = args.case.as_deref().unwrap_or_default();
    let parts = case.strip_prefix("sim:").and_then(|case| case.split_once('/'));
    let (mode, seed) = parts.with_context(|| {
        format!("{case:?} is no case of sim: write sim:embedded/SEED, sim:shared/SEED or sim:locks/SEED")
    })?;
    let mode = match mode {
        "embedded" => Mode::Embedded,
        "shared" => Mode::Shared,
        "locks" => Mode::Locks,
        other => anyhow::bail!("{other:?} is neither `embedded` nor `shared` nor `mutex`"),
    };
    let seed = seed.parse().with_context(|| format!("{seed:?} is no seed"))?;
    enable_mutant(args.mutant);
    let mut found = super::run(mode, seed, true);
    let (trace, lines) = (std::mem::take(&mut found.trace), found.lines().collect());
    let mut outcome = LayerResult::new("sim");
    add(&mut outcome, args, mode, seed, found);
    enable_mutant(None);
    Ok(Replay { outcome, trace, lines })
}

fn run_and_check(mode: Mode, seed: u64) -> SimResult {
    let mut found = super::run(mode, seed, false);
    if seed.is_multiple_of(RERUN_EVERY) {
        let rerun = super::run(mode, seed, false);
        if rerun.digest != found.digest || !rerun.lines().eq(found.lines()) {
            found.violations.push(Violation::new("harness", "the same seed ran differently the second time"));
        }
    }
    found
}

fn add(outcome: &mut LayerResult, args: &LayerArgs, mode: Mode, seed: u64, found: SimResult) {
    outcome.cases += 1;
    outcome.transactions += found.transactions as u64;
    outcome.acknowledged += found.committed as u64;
    outcome.unsynced_lost += found.lost_frames;
    outcome.unacknowledged_commits += found.unacknowledged_commits as u64;
    outcome.count(SKEW, found.write_skews);
    if mode == Mode::Locks {
        outcome.count(UNFENCED, found.unfenced.0);
        outcome.count(OUT_OF_LOCK_ORDER, found.unfenced.1);
    }
    let environment = match mode {
        Mode::Embedded | Mode::Locks => Environment::SimEmbedded,
        Mode::Shared => Environment::SimShared,
    };
    for (point, visits) in found.hits {
        outcome.count_visits(&environment.to_string(), point.name(), visits);
    }
    if !found.violations.is_empty() && outcome.failures.len() < FAILURES_MAX {
        let rerun = super::run(mode, seed, true);
        let more = |dir: &Path| {
            std::fs::write(dir.join("plan.txt"), &found.plan)?;
            let events: Vec<String> = found.lock_events.iter().map(|event| format!("{event:?}")).collect();
            std::fs::write(dir.join("lock-events.txt"), events.join("\n"))?;
            std::fs::write(dir.join("trace.txt"), rerun.trace.join("\n"))
        };
        outcome.failures.push(save_failure_with(
            args,
            &case_name(mode, seed),
            Some(&found.client_log),
            found.violations,
            more,
        ));
    }
}
