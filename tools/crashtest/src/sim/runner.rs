//! Runs many seeds on several threads.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use anyhow::Context as _;
use clap::Args;
use parking_lot::Mutex;
use percolite::crashtest::CrashPoint;
use percolite::mutants::enable_mutant;

use super::{Mode, Scheduler, SimResult, TRANSACTIONS_MIN};
use crate::history::Line;
use crate::interrupt;
use crate::layer_args::{LayerArgs, save_failure_with};
use crate::layer_result::{Failure, LayerResult};
use crate::points::Environment;
use crate::violation::Violation;

/// One seed in this many runs twice, and both runs must have the same digest. The number is odd, so
/// the multiples alternate between embedded histories, which have the even seeds, and shared ones.
const RERUN_EVERY: u64 = 49;
/// One history in this many may have too few transactions or no crash. Such a history is checked
/// but not counted. If there are more of them, the run fails, because the plan is wrong.
const DISCARDED_EVERY: u64 = 100;
/// How many failures are saved.
const FAILURES_MAX: usize = 20;
/// The metric: the number of write skews in each history. Snapshot isolation permits them.
const SKEW: &str = "write skew";
/// The metric: how many histories of a round had too few transactions or no crash.
const DISCARDED: &str = "discarded histories";

/// One history in this many is of locks.
const LOCKS_EVERY: u64 = 6;
/// The metrics: unfenced commits under locks, and the violations of the lock order that
/// [`fencing_violations`](crate::lock_checker::fencing_violations) finds in them.
const UNFENCED: &str = "unfenced commits";
const OUT_OF_LOCK_ORDER: &str = "unfenced commits that violated the lock order";
/// A run with at least this many lock histories must have visited `lock.grant-ended` and
/// `lock.handed-over`. At least one unfenced commit must have violated the lock order: otherwise
/// the fences were not tested.
const LOCK_HISTORIES_MIN: u64 = 200;

/// The number of histories of a quick run, and of a full one.
pub const QUICK_HISTORIES: u64 = 12_000;
const HISTORIES: u64 = 24_000;
/// Histories between two checks of the time limit.
const ROUND: u64 = 500;

/// Simulate seeded histories with crashes and check each.
#[derive(Args, Clone, Debug)]
pub struct SimArgs {
    /// The options of all layers.
    #[command(flatten)]
    pub common: LayerArgs,
    /// Only this mode; default: one history in six is of locks, the others alternate between
    /// embedded and shared.
    #[arg(long)]
    pub mode: Option<Mode>,
    /// How many histories that count: with at least 50 transactions and a crash.
    #[arg(long)]
    pub count: Option<u64>,
}

/// The mode and the seed of the n-th history, if no mode is given.
pub fn history_at(number: u64) -> (Mode, u64) {
    let locks = number / LOCKS_EVERY;
    if number.is_multiple_of(LOCKS_EVERY) {
        return (Mode::Locks, locks);
    }
    let seed = number - locks;
    (if seed.is_multiple_of(2) { Mode::Embedded } else { Mode::Shared }, seed)
}

/// The name of a case.
pub fn case_name(mode: Mode, seed: u64) -> String {
    match mode {
        Mode::Embedded => format!("sim:embedded/{seed}"),
        Mode::Shared => format!("sim:shared/{seed}"),
        Mode::Locks => format!("sim:locks/{seed}"),
    }
}

/// Runs the layer.
///
/// # Errors
/// An invalid case.
pub fn run(args: &LayerArgs) -> anyhow::Result<LayerResult> {
    run_with(&SimArgs { common: args.clone(), mode: None, count: None })
}

/// Runs the layer, in one mode or in all.
///
/// # Errors
/// An invalid case.
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
            let how = format!(
                "{discarded} of {started} histories have less than {TRANSACTIONS_MIN} transactions or no crash"
            );
            total.failures.push(harness_failure(how));
        }
        total.failures.extend(check_lock_coverage(&total));
        if total.cases >= QUICK_HISTORIES && total.metrics[SKEW].iter().sum::<f64>() == 0.0 {
            total.failures.push(harness_failure("write skew, which snapshot isolation permits, never occurred".into()));
        }
    }
    Ok(total)
}

/// Checks that a run with enough lock histories has tested handovers and fences.
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
    let never =
        (lost <= 0.0).then(|| "no unfenced commit violated the lock order: the fences were not tested".to_owned());
    missed.chain(never).map(harness_failure).collect()
}

fn too_many(discarded: u64, started: u64) -> bool {
    discarded > started / DISCARDED_EVERY
}

fn harness_failure(how: String) -> Failure {
    let violations = vec![Violation::new("harness: valid histories", how)];
    Failure { replay: "percolite-crashtest sim".into(), violations, saved_in: None }
}

/// The result of some seeds.
struct Round {
    /// The result of the histories that count or that failed.
    outcome: LayerResult,
    /// The number of histories that do not count.
    discarded: u64,
}

/// Runs a few hundred seeds, with a thread for each core.
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

/// A case that was run again.
pub struct Replay {
    /// The result.
    pub outcome: LayerResult,
    /// Every step.
    pub trace: Vec<String>,
    /// The lines of the history.
    pub lines: Vec<Line>,
}

/// Runs one case again, with its trace.
///
/// # Errors
/// An invalid case.
pub fn replay(args: &LayerArgs) -> anyhow::Result<Replay> {
    Scheduler::install_hooks();
    let case = args.case.as_deref().unwrap_or_default();
    let parts = case.strip_prefix("sim:").and_then(|case| case.split_once('/'));
    let (mode, seed) = parts.with_context(|| {
        format!("invalid case {case:?}; expected sim:embedded/SEED, sim:shared/SEED or sim:locks/SEED")
    })?;
    let mode = match mode {
        "embedded" => Mode::Embedded,
        "shared" => Mode::Shared,
        "locks" => Mode::Locks,
        other => anyhow::bail!("invalid mode {other:?}; expected embedded, shared or locks"),
    };
    let seed = seed.parse().with_context(|| format!("invalid seed {seed:?}"))?;
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
            found.violations.push(Violation::new("harness", "a second run of the seed was different"));
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
