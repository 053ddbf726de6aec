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
//! | `life` | what parent and child tell each other |
//! | `child`, `clock` | the process that dies, and its clocks |
//! | `parent` | starting it and hearing it out |
//! | `run`, `judge` | a case from its first life to its verdict |

mod case;
mod child;
mod clock;
mod judge;
mod life;
mod parent;
mod run;
mod scenario;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use percolite::crashtest::{Mutant, Point, mutate};

use crate::outcome::{Failure, Outcome};
use crate::points::{Gaps, gaps};
use crate::violation::Broken;
use run::{Hits, Ran};

pub use case::{Case, all, quick};
pub use child::ChildArgs;

/// How cases are run.
#[derive(Clone, Debug)]
pub struct Config {
    /// The program whose subcommand `kill-child` is the child.
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
pub fn run(config: &Config, cases: &[Case], demand: Demand) -> anyhow::Result<Outcome> {
    let began = Instant::now();
    // The judge is this process.
    mutate(config.mutant);
    let total = Mutex::new(Ran { outcome: Outcome::of("kill"), ..Ran::default() });
    let (next, stop, first_error) = (AtomicUsize::new(0), AtomicBool::new(false), Mutex::new(None));
    std::thread::scope(|scope| {
        for _ in 0..config.jobs.max(1) {
            scope.spawn(|| {
                while let Some(case) = cases.get(next.fetch_add(1, Ordering::SeqCst)) {
                    if stop.load(Ordering::SeqCst) {
                        break;
                    }
                    match run::run_case(config, case) {
                        Ok(ran) => {
                            stop.fetch_or(config.stop && !ran.outcome.failures.is_empty(), Ordering::SeqCst);
                            add(&mut total.lock().unwrap_or_else(PoisonError::into_inner), ran);
                        }
                        Err(why) => {
                            stop.store(true, Ordering::SeqCst);
                            *first_error.lock().unwrap_or_else(PoisonError::into_inner) =
                                Some(why.context(case.to_string()));
                        }
                    }
                }
            });
        }
    });
    mutate(None);
    if let Some(why) = first_error.into_inner().unwrap_or_else(PoisonError::into_inner) {
        return Err(why);
    }
    let Ran { mut outcome, deaths, visits } = total.into_inner().unwrap_or_else(PoisonError::into_inner);
    if !stop.load(Ordering::SeqCst) {
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
/// There is no such case, and those of [`run`].
pub fn run_case(config: &Config, name: &str) -> anyhow::Result<Outcome> {
    run(config, &[name.parse()?], Demand::Nothing)
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

/// `percolite-crashtest kill`: kill a process at every point and judge what it leaves.
#[derive(Debug, clap::Args)]
pub struct KillArgs {
    /// Every point once, instead of at every visit, in every protocol and durability.
    #[arg(long)]
    quick: bool,
    /// Go on with fresh seeds for so long: 90s, 10m, 4h.
    #[arg(long = "for", value_name = "TIME", value_parser = duration)]
    time: Option<Duration>,
    /// The first seed.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// How many cases run at a time.
    #[arg(long, default_value_t = 2)]
    jobs: usize,
    /// Where stores are put, and kept if something is wrong with them.
    #[arg(long)]
    folder: Option<PathBuf>,
    /// Only this case.
    #[arg(long)]
    case: Option<String>,
    /// Print the outcome as JSON.
    #[arg(long)]
    json: bool,
    /// Switch a mistake on.
    #[arg(long, hide = true, value_parser = mutant)]
    mutant: Option<Mutant>,
    /// Stop at the first failure.
    #[arg(long, hide = true)]
    stop: bool,
}

impl KillArgs {
    /// Kills, judges, and prints what came of it.
    ///
    /// # Errors
    /// Those of [`run`].
    pub fn run(&self) -> anyhow::Result<ExitCode> {
        let mut config = Config::new()?;
        (config.jobs, config.mutant, config.stop) = (self.jobs, self.mutant, self.stop);
        if let Some(folder) = &self.folder {
            config.folder.clone_from(folder);
        }
        let outcome = match &self.case {
            Some(case) => run_case(&config, case)?,
            None => self.rounds(&config)?,
        };
        if self.json {
            println!("{}", serde_json::to_string_pretty(&outcome)?);
        } else {
            show(&outcome);
        }
        Ok(if outcome.is_good() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    fn rounds(&self, config: &Config) -> anyhow::Result<Outcome> {
        let began = Instant::now();
        let mut total = Outcome::of("kill");
        for seed in self.seed.. {
            let (cases, demand) = if self.quick || self.time.is_some() {
                (quick(seed)?, Demand::Points)
            } else {
                (all(seed)?, Demand::PointsAndProtocols)
            };
            total.add(run(config, &cases, demand)?);
            let more = self.time.is_some_and(|time| began.elapsed() < time);
            if !more || (self.stop && !total.failures.is_empty()) {
                break;
            }
        }
        Ok(total)
    }
}

fn show(outcome: &Outcome) {
    for failure in &outcome.failures {
        println!("{}", failure.replay);
        for broken in failure.broken.iter().take(5) {
            println!("    {broken}");
        }
        if let Some(kept) = &failure.kept {
            println!("    kept in {}", kept.display());
        }
    }
    println!(
        "kill: {} cases, {} transactions, {} acknowledged, {} committed unanswered, {} failures, {:.1} s",
        outcome.cases,
        outcome.transactions,
        outcome.acknowledged,
        outcome.unanswered,
        outcome.failures.len(),
        outcome.seconds
    );
}

fn mutant(name: &str) -> Result<Mutant, String> {
    Mutant::named(name).ok_or_else(|| "no such mutant".to_owned())
}

fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("not a time such as 90s, 10m or 4h: {text}");
    let unit = text.chars().next_back().ok_or_else(wrong)?;
    let count: u64 = text.trim_end_matches(unit).parse().map_err(|_| wrong())?;
    match unit {
        's' => Ok(Duration::from_secs(count)),
        'm' => Ok(Duration::from_secs(count * 60)),
        'h' => Ok(Duration::from_secs(count * 3600)),
        _ => Err(wrong()),
    }
}
