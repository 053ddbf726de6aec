//! A store in a child process that is killed at a crash point, and its recovery.
//!
//! The child runs clients and reports every request and answer to its parent through a pipe. At the
//! chosen visit of the chosen point it kills itself. A second child, which recovers the store, is
//! killed as well. Then the store is opened and verified. The kernel keeps what a killed process
//! has written, so no acknowledged commit may be lost, synced or not. Other layers remove unsynced
//! data, and so test durability.
//!
//! | file | content |
//! |---|---|
//! | `case` | the name of a case, and the list of cases |
//! | `scenario` | the incarnations that lead to a crash point |
//! | `parent` | starts a child and receives its events |
//! | `run`, `verify` | a case from its first incarnation to its result |

mod case;
mod child_config;
mod parent;
mod run;
mod scenario;
mod verify;

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use anyhow::Context as _;
use parking_lot::Mutex;
use percolite::mutants::{Mutant, enable_mutant};

use crate::interrupt;
use crate::layer_args::{LayerArgs, RunClock};
use crate::layer_result::{LayerResult, TableProgress};

pub use case::{Case, all_cases, quick_cases};

/// How cases are run.
#[derive(Clone, Debug)]
pub struct Config {
    /// The program whose subcommand `child` is the child process.
    pub program: PathBuf,
    /// The directory of the stores; the stores of failed cases stay there.
    pub dir: PathBuf,
    /// How many cases run concurrently.
    pub jobs: usize,
    /// The enabled mutant.
    pub mutant: Option<Mutant>,
    /// Whether to stop at the first failure.
    pub fail_fast: bool,
}

impl Config {
    /// The configuration that runs this program, two cases at a time, in a directory for temporary
    /// files.
    ///
    /// # Errors
    /// This program's path is unknown.
    pub fn new() -> anyhow::Result<Self> {
        let program = std::env::current_exe().context("cannot find the path of this program")?;
        let dir = std::env::temp_dir().join(format!("percolite-kill-{}", std::process::id()));
        Ok(Self { program, dir, jobs: 2, mutant: None, fail_fast: false })
    }
}

/// Runs this many cases, or as many as the time limit allows.
fn run_cases(
    config: &Config,
    clock: RunClock,
    enough: u64,
    case: impl Fn(u64) -> Case + Sync,
) -> anyhow::Result<LayerResult> {
    // The verification runs in this process, so it needs the mutant as well.
    enable_mutant(config.mutant);
    let total = Mutex::new(LayerResult::new("kill"));
    let (next, stop, first_error) = (AtomicU64::new(0), AtomicBool::new(false), Mutex::new(None));
    std::thread::scope(|scope| {
        for _ in 0..config.jobs.max(1) {
            scope.spawn(|| {
                while !stop.load(Ordering::SeqCst) && !interrupt::is_requested() {
                    let number = next.fetch_add(1, Ordering::SeqCst);
                    if !clock.allows(number, enough) {
                        break;
                    }
                    let case = case(number);
                    match run::run_case(config, &case) {
                        Ok(result) => {
                            stop.fetch_or(config.fail_fast && !result.failures.is_empty(), Ordering::SeqCst);
                            total.lock().add(result);
                        }
                        Err(_) if interrupt::is_requested() => {}
                        Err(error) => {
                            stop.store(true, Ordering::SeqCst);
                            *first_error.lock() = Some(error.context(case.to_string()));
                        }
                    }
                }
            });
        }
    });
    enable_mutant(None);
    if let Some(error) = first_error.into_inner() {
        return Err(error);
    }
    // A directory with a saved failure is not empty, so it stays.
    let _ = std::fs::remove_dir(&config.dir);
    Ok(LayerResult { seconds: clock.seconds(), ..total.into_inner() })
}

/// Runs the case with this name.
///
/// # Errors
/// An invalid case, and errors of the harness.
pub fn run_case(config: &Config, name: &str) -> anyhow::Result<LayerResult> {
    let case: Case = name.parse()?;
    run_cases(config, LayerArgs::default().clock(), 1, |_| case)
}

/// Runs the layer, beginning after the cases to skip. A quick run has one pass, any other run has
/// all cases. With a time limit a run has as many cases as there is time for.
///
/// # Errors
/// Errors of the harness, not of the store.
pub fn run(args: &LayerArgs) -> anyhow::Result<LayerResult> {
    let config = Config { mutant: args.mutant, fail_fast: args.fail_fast, ..Config::new()? };
    if let Some(case) = &args.case {
        return run_case(&config, case);
    }
    let cases = if args.quick { quick_cases(args.seed)? } else { all_cases(args.seed)? };
    let of = cases.len() as u64;
    let outcome = run_cases(&config, args.clock(), of, |number| {
        let at = usize::try_from((args.skip + number) % of).unwrap_or_default();
        Case { seed: case::seed_of(args.seed, number), ..cases[at] }
    })?;
    // A case that did not reach its point does not count.
    let rotation = Some(TableProgress { done: outcome.cases, total: of });
    Ok(LayerResult { progress: rotation, ..outcome })
}
