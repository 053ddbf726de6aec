//! A store over RocksDB in a process of its own, killed at a point of the protocol, and what the next process makes of it.
//!
//! The child runs clients and tells its parent through a pipe what it asks for and what it is answered. At the wanted visit of
//! the wanted point it kills itself; a second one, which recovers, is killed as well; then the store is opened and
//! judged. The kernel keeps what a killed process has written, so nothing that was acknowledged may be lost, whether
//! it was synced or not: this layer cannot tell one from the other, which is for the layers that take away what was not.
//!
//! | file | what |
//! |---|---|
//! | `case` | the name of a case, and which cases a run has |
//! | `scenario` | the lives that lead to a point |
//! | `parent` | starting the process that dies, and hearing it out |
//! | `run`, `judge` | a case from its first life to its verdict |

mod case;
mod judge;
mod parent;
mod run;
mod scenario;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

use anyhow::Context as _;
use parking_lot::Mutex;
use percolite::crashtest::{Mutant, Point, mutate};

use crate::interrupt;
use crate::order::Order;
use crate::outcome::{Failure, Outcome};
use crate::points::{Gaps, gaps};
use crate::violation::Broken;
use run::{Hits, Ran};

pub use case::{Case, all, quick};

/// How cases are run.
#[derive(Clone, Debug)]
pub struct Config {
    /// The program whose subcommand `life` is the child.
    pub program: PathBuf,
    /// Where stores are put, and kept if something is wrong with them.
    pub folder: PathBuf,
    /// How many cases run at a time.
    pub jobs: usize,
    /// A mistake that is switched on.
    pub mutant: Option<Mutant>,
    /// Whether the first failure is enough.
    pub stop: bool,
}

impl Config {
    /// This program, in a folder of temporary files, two cases at a time.
    ///
    /// # Errors
    /// The system does not say which program this is.
    pub fn new() -> anyhow::Result<Self> {
        let program = std::env::current_exe().context("which program is this?")?;
        let folder = std::env::temp_dir().join(format!("percolite-kill-{}", std::process::id()));
        Ok(Self { program, folder, jobs: 2, mutant: None, stop: false })
    }
}

/// Which points must have been died at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Demand {
    /// None.
    Nothing,
    /// Every point of the table, in some protocol.
    Points,
    /// Every point of the table in every protocol where it can occur.
    PointsAndProtocols,
}

/// Runs the cases, and holds them against the table of points.
///
/// # Errors
/// Those of the harness, not of the store.
pub fn run_cases(config: &Config, cases: &[Case], demand: Demand) -> anyhow::Result<Outcome> {
    let began = Instant::now();
    // The judge is this process.
    mutate(config.mutant);
    let total = Mutex::new(Ran { outcome: Outcome::of("kill"), ..Ran::default() });
    let (next, stop, first_error) = (AtomicUsize::new(0), AtomicBool::new(false), Mutex::new(None));
    std::thread::scope(|scope| {
        for _ in 0..config.jobs.max(1) {
            scope.spawn(|| {
                while let Some(case) = cases.get(next.fetch_add(1, Ordering::SeqCst)) {
                    if stop.load(Ordering::SeqCst) || interrupt::came() {
                        break;
                    }
                    match run::run_case(config, case) {
                        Ok(ran) => {
                            stop.fetch_or(config.stop && !ran.outcome.failures.is_empty(), Ordering::SeqCst);
                            add(&mut total.lock(), ran);
                        }
                        Err(_) if interrupt::came() => {}
                        Err(why) => {
                            stop.store(true, Ordering::SeqCst);
                            *first_error.lock() = Some(why.context(case.to_string()));
                        }
                    }
                }
            });
        }
    });
    mutate(None);
    if let Some(why) = first_error.into_inner() {
        return Err(why);
    }
    let Ran { mut outcome, deaths, visits } = total.into_inner();
    if !stop.load(Ordering::SeqCst) && !interrupt::came() {
        let broken = held_against_the_table(&deaths, &visits, demand)?;
        if !broken.is_empty() {
            let replay = "percolite-crashtest kill".to_owned();
            outcome.failures.push(Failure { replay, broken, kept: None });
        }
    }
    // Only if nothing is kept in it.
    let _ = std::fs::remove_dir(&config.folder);
    outcome.seconds = began.elapsed().as_secs_f64();
    Ok(outcome)
}

/// Runs the case of this name.
///
/// # Errors
/// There is no such case, and those of [`run_cases`].
pub fn run_case(config: &Config, name: &str) -> anyhow::Result<Outcome> {
    run_cases(config, &[name.parse()?], Demand::Nothing)
}

/// A process dies where the table says that it can, and is nowhere else.
fn held_against_the_table(deaths: &Hits, visits: &Hits, demand: Demand) -> anyhow::Result<Vec<Broken>> {
    let Gaps { mut missed, .. } = gaps(deaths)?;
    match demand {
        Demand::Nothing => missed.clear(),
        Demand::Points => {
            let died: BTreeSet<Point> = deaths.values().flat_map(|points| points.keys().copied()).collect();
            missed.retain(|(_, point)| !died.contains(point));
        }
        Demand::PointsAndProtocols => {}
    }
    let Gaps { unexpected, .. } = gaps(visits)?;
    Ok(Gaps { missed, unexpected }.broken())
}

fn add(total: &mut Ran, ran: Ran) {
    total.outcome.add(ran.outcome);
    for (sum, of_one) in [(&mut total.deaths, ran.deaths), (&mut total.visits, ran.visits)] {
        for (place, points) in of_one {
            for (point, count) in points {
                *sum.entry(place).or_default().entry(point).or_default() += count;
            }
        }
    }
}

/// Does what is ordered: every point once, every case, or rounds of them with fresh seeds.
///
/// # Errors
/// Those of the harness, not of the store.
pub fn run(order: &Order) -> anyhow::Result<Outcome> {
    let config = Config { mutant: order.mutant, stop: order.stop, ..Config::new()? };
    if let Some(case) = &order.case {
        return run_case(&config, case);
    }
    let clock = order.clock();
    let mut total = Outcome::of("kill");
    let mut rounds = 0;
    while clock.allows(rounds, 1) && !order.is_enough(&total) {
        let seed = order.seed + rounds;
        let (cases, demand) = if order.quick || order.time.is_some() {
            (quick(seed)?, Demand::Points)
        } else {
            (all(seed)?, Demand::PointsAndProtocols)
        };
        total.add(run_cases(&config, &cases, demand)?);
        rounds += 1;
    }
    Ok(total)
}
