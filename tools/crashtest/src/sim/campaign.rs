//! Many seeds, on several threads.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use clap::Args;
use indicatif::ProgressBar;

use super::{Mode, Run, Scheduler, run};
use crate::outcome::{Failure, Outcome};
use crate::violation::Broken;

/// One history in so many is run twice, and must be the same.
const TWICE_EVERY: u64 = 50;
/// What of a failing history is kept on the way to its end.
const FAILURES_KEPT: usize = 20;

/// Simulates histories from seeds, crashes included, and checks each.
#[derive(Args, Clone, Debug)]
pub struct SimArgs {
    /// Only this mode; otherwise even seeds are embedded and odd ones shared.
    #[arg(long)]
    pub mode: Option<Mode>,
    /// The first seed.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// How many seeds.
    #[arg(long, default_value_t = 5000)]
    pub count: u64,
    /// How many threads; otherwise as many as there are cores.
    #[arg(long)]
    pub threads: Option<usize>,
    /// Stop at the first failure.
    #[arg(long)]
    pub stop: bool,
}

/// Which mode a seed stands for if none is asked for.
pub fn mode_of(seed: u64) -> Mode {
    if seed.is_multiple_of(2) { Mode::Embedded } else { Mode::Shared }
}

/// The words that repeat a history.
pub fn case(mode: Mode, seed: u64) -> String {
    match mode {
        Mode::Embedded => format!("sim:embedded/{seed}"),
        Mode::Shared => format!("sim:shared/{seed}"),
    }
}

/// Runs the seeds.
///
/// # Errors
/// None of the store's; those are failures.
pub fn campaign(args: &SimArgs, bar: &ProgressBar) -> anyhow::Result<Outcome> {
    Scheduler::listen();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = args.threads.unwrap_or(cores).max(1);
    let (next, stop) = (AtomicU64::new(args.seed), AtomicBool::new(false));
    let total = Mutex::new((Outcome::of("sim"), BTreeMap::new()));
    let began = Instant::now();
    bar.set_length(args.count);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= args.seed + args.count {
                        break;
                    }
                    let mode = args.mode.unwrap_or_else(|| mode_of(seed));
                    let found = judge(mode, seed);
                    if args.stop && !found.broken.is_empty() {
                        stop.store(true, Ordering::Relaxed);
                    }
                    let mut total = total.lock().unwrap_or_else(PoisonError::into_inner);
                    add(&mut total, mode, seed, found);
                    bar.inc(1);
                }
            });
        }
    });
    bar.finish_and_clear();
    let (mut outcome, skewed) = total.into_inner().unwrap_or_else(PoisonError::into_inner);
    outcome.seconds = began.elapsed().as_secs_f64();
    outcome.figures.insert("histories a minute".into(), vec![per_minute(outcome.cases, began.elapsed())]);
    outcome.figures.insert("write skew seen".into(), vec![skewed.values().sum::<u64>() as f64]);
    Ok(outcome)
}

/// Runs one case again, with its trace.
///
/// # Errors
/// When the words name no case.
pub fn replay(case: &str) -> anyhow::Result<(Outcome, Vec<String>)> {
    Scheduler::listen();
    let (mode, seed) = case.split_once('/').context("sim:MODE/SEED")?;
    let mode = match mode {
        "embedded" => Mode::Embedded,
        "shared" => Mode::Shared,
        other => anyhow::bail!("{other:?} is neither `embedded` nor `shared`"),
    };
    let seed = seed.parse().with_context(|| format!("{seed:?} is no seed"))?;
    let mut found = run(mode, seed, true);
    let trace = std::mem::take(&mut found.trace);
    let mut total = (Outcome::of("sim"), BTreeMap::new());
    add(&mut total, mode, seed, found);
    Ok((total.0, trace))
}

fn judge(mode: Mode, seed: u64) -> Run {
    let mut found = run(mode, seed, false);
    if seed.is_multiple_of(TWICE_EVERY) {
        let again = run(mode, seed, false);
        if again.digest != found.digest {
            found.broken.push(Broken::new("harness", "the same seed ran differently the second time"));
        }
    }
    found
}

fn add(total: &mut (Outcome, BTreeMap<u64, u64>), mode: Mode, seed: u64, found: Run) {
    let (outcome, skewed) = total;
    outcome.cases += 1;
    outcome.transactions += found.transactions as u64;
    outcome.acknowledged += found.committed as u64;
    outcome.lost += found.lost;
    outcome.unanswered += found.settled as u64;
    skewed.insert(seed, found.skewed);
    let place = match mode {
        Mode::Embedded => "sim, embedded",
        Mode::Shared => "sim, shared",
    };
    for (point, visits) in found.hits {
        outcome.visit(place, point.name(), visits);
    }
    if !found.broken.is_empty() && outcome.failures.len() < FAILURES_KEPT {
        outcome.failures.push(Failure { replay: case(mode, seed), broken: found.broken, kept: None });
    }
}

fn per_minute(cases: u64, took: Duration) -> f64 {
    cases as f64 * 60.0 / took.as_secs_f64().max(1e-9)
}
