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
mod parent;
mod run;
mod scenario;
mod verify;

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use anyhow::Context as _;
use parking_lot::Mutex;
use percolite::crashtest::{Mutant, enable_mutant};

use crate::interrupt;
use crate::layer_args::{LayerArgs, RunClock};
use crate::layer_result::{LayerResult, TableProgress};

pub use case::{Case, all_cases, quick_cases};

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
    pub fail_fast: bool,
}

impl Config {
    /// This program, in a folder of temporary files, two cases at a time.
    ///
    /// # Errors
    /// The system does not say which program this is.
    pub fn new() -> anyhow::Result<Self> {
        let program = std::env::current_exe().context("which program is this?")?;
        let folder = std::env::temp_dir().join(format!("percolite-kill-{}", std::process::id()));
        Ok(Self { program, folder, jobs: 2, mutant: None, fail_fast: false })
    }
}

/// Runs so many cases, or as many as the clock allows.
fn run_cases(
    config: &Config,
    clock: RunClock,
    enough: u64,
    case: impl Fn(u64) -> Case + Sync,
) -> anyhow::Result<LayerResult> {
    // The judge is this process.
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
                        Err(why) => {
                            stop.store(true, Ordering::SeqCst);
                            *first_error.lock() = Some(why.context(case.to_string()));
                        }
                    }
                }
            });
        }
    });
    enable_mutant(None);
    if let Some(why) = first_error.into_inner() {
        return Err(why);
    }
    // Only if nothing is kept in it.
    let _ = std::fs::remove_dir(&config.folder);
    Ok(LayerResult { seconds: clock.seconds(), ..total.into_inner() })
}

/// Runs the case of this name.
///
/// # Errors
/// There is no such case, and those of the harness.
pub fn run_case(config: &Config, name: &str) -> anyhow::Result<LayerResult> {
    let case: Case = name.parse()?;
    run_cases(config, LayerArgs::default().clock(), 1, |_| case)
}

/// Does what is ordered: every point once in each protocol, every case, or as many as there is time for, from where an
/// earlier turn has left off.
///
/// # Errors
/// Those of the harness, not of the store.
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
    // A case that did not come to its point is not done.
    let rotation = Some(TableProgress { done: outcome.cases, total: of });
    Ok(LayerResult { progress: rotation, ..outcome })
}
