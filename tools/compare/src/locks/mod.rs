//! `locks`: the cost of named locks, beside their alternatives.
//!
//! Each round runs every benchmark once, percolite and its baseline in turn, and ratios are those
//! within a round. [`uncontended`] has one thread, [`handover`] threads and tasks that pass a lock
//! on, [`durable`] operations with a sync, and [`probe`] instructions and memory. [`postgres`] runs
//! a PostgreSQL server as a baseline.

mod durable;
mod handover;
mod postgres;
mod probe;
mod uncontended;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result};
use clap::Args;
use comfy_table::{CellAlignment, Table};
use percolite::{Durability, Store};
use serde::Serialize;
use tempfile::TempDir;

pub use self::probe::{Probe, run_probe};

use crate::interrupt;
use crate::statistics::Spread;

#[derive(Args)]
pub struct LocksArgs {
    /// Three short rounds, with a tenth of the names
    #[arg(long)]
    quick: bool,
    /// Number of rounds [default: 15, quick 3]
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    rounds: Option<u64>,
    /// Only benchmarks whose names contain this text
    #[arg(long)]
    only: Option<String>,
    /// Directory of PostgreSQL's programs [default: Debian's newest]; without one its benchmark is
    /// skipped
    #[arg(long, value_name = "DIR")]
    postgres: Option<PathBuf>,
    /// Where to create the temporary stores [default: the system's temporary directory]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Print one JSON document instead of a table
    #[arg(long)]
    json: bool,
}

/// The bound that the median has to meet.
#[derive(Clone, Copy, Serialize)]
#[serde(rename_all = "snake_case")]
enum Goal {
    AtMost(f64),
    AtLeast(f64),
    None,
}

impl Goal {
    fn is_met(self, result: f64) -> bool {
        match self {
            Self::AtMost(most) => result <= most,
            Self::AtLeast(min) => result >= min,
            Self::None => true,
        }
    }
}

/// One benchmark.
struct Benchmark<'a> {
    name: String,
    goal: Goal,
    /// The value and, if there is one, the baseline; the result is then their ratio.
    measure: Box<dyn FnMut() -> Result<(f64, Option<f64>)> + 'a>,
}

impl<'a> Benchmark<'a> {
    fn ratio(name: impl Into<String>, goal: Goal, mut measure: impl FnMut() -> Result<(f64, f64)> + 'a) -> Self {
        Self {
            name: name.into(),
            goal,
            measure: Box::new(move || measure().map(|(value, baseline)| (value, Some(baseline)))),
        }
    }

    fn single(name: impl Into<String>, goal: Goal, mut value: impl FnMut() -> Result<f64> + 'a) -> Self {
        Self { name: name.into(), goal, measure: Box::new(move || value().map(|value| (value, None))) }
    }
}

/// The result of one benchmark.
#[derive(Serialize)]
struct BenchmarkResult {
    name: String,
    value: Spread,
    baseline: Option<Spread>,
    /// Value divided by baseline; without a baseline the value.
    result: Spread,
    goal: Goal,
    is_met: bool,
}

/// The directory of a run, and how much each benchmark does.
struct BenchEnv {
    dir: TempDir,
    names: u64,
    iterations: u64,
    time: Duration,
}

impl BenchEnv {
    fn open(&self, name: &str, durability: Durability) -> Result<Store> {
        Ok(Store::builder().durability(durability).open(self.dir.path().join(name))?)
    }

    fn path(&self) -> &Path {
        self.dir.path()
    }
}

/// The number of missed goals; `None` if the run was interrupted.
pub fn run(args: &LocksArgs) -> Result<Option<usize>> {
    let within = args.dir.clone().unwrap_or_else(std::env::temp_dir);
    let dir = tempfile::Builder::new().prefix("percolite-locks-").tempdir_in(within)?;
    let (names, iterations, time) = if args.quick { (10_000, 20_000, 300) } else { (100_000, 100_000, 1000) };
    let env = BenchEnv { dir, names, iterations, time: Duration::from_millis(time) };
    let rounds = args.rounds.unwrap_or(if args.quick { 3 } else { 15 });
    let server = postgres::Server::start(args.postgres.as_deref(), env.path())?;
    let mut benchmarks = uncontended::benchmarks(&env, server.as_ref())?;
    benchmarks.extend(handover::benchmarks(&env)?);
    benchmarks.extend(durable::benchmarks(&env)?);
    benchmarks.extend(probe::benchmarks(&env));
    if let Some(only) = &args.only {
        benchmarks.retain(|benchmark| benchmark.name.contains(only.as_str()));
    }
    let mut measured = vec![Vec::new(); benchmarks.len()];
    for _ in 0..rounds {
        for (benchmark, measured) in benchmarks.iter_mut().zip(&mut measured) {
            if interrupt::interrupted() {
                return Ok(None);
            }
            measured.push((benchmark.measure)().with_context(|| benchmark.name.clone())?);
        }
    }
    let results: Vec<BenchmarkResult> = benchmarks
        .into_iter()
        .zip(measured)
        .map(|(benchmark, measured)| result(benchmark, &measured))
        .collect::<Result<_>>()?;
    if args.json {
        println!("{}", serde_json::to_string_pretty(&results)?);
    } else {
        println!("{}", show(&results));
        if server.is_none() {
            println!("PostgreSQL was not found, so its benchmark was skipped");
        }
    }
    Ok(Some(results.iter().filter(|result| !result.is_met).count()))
}

fn result(benchmark: Benchmark<'_>, measured: &[(f64, Option<f64>)]) -> Result<BenchmarkResult> {
    let spread = |results: Vec<f64>| Spread::of(results).context("no rounds");
    let value = spread(measured.iter().map(|(value, _)| *value).collect())?;
    let ratios: Vec<f64> = measured.iter().filter_map(|(value, baseline)| Some(value / (*baseline)?)).collect();
    let baseline = Spread::of(measured.iter().filter_map(|(_, baseline)| *baseline).collect());
    let result = Spread::of(ratios).unwrap_or(value);
    Ok(BenchmarkResult {
        name: benchmark.name,
        value,
        baseline,
        result,
        goal: benchmark.goal,
        is_met: benchmark.goal.is_met(result.median),
    })
}

fn show(results: &[BenchmarkResult]) -> Table {
    let mut table = Table::new();
    table.load_preset(comfy_table::presets::UTF8_HORIZONTAL_ONLY);
    table.set_header(["benchmark", "value", "baseline", "result (min..max)", "goal", "met"]);
    for one in results {
        let goal = match one.goal {
            Goal::AtMost(most) => format!("≤ {most}"),
            Goal::AtLeast(min) => format!("≥ {min}"),
            Goal::None => String::new(),
        };
        let met = match one.goal {
            Goal::None => "",
            _ if one.is_met => "yes",
            _ => "NO",
        };
        let baseline = one.baseline.map_or_else(String::new, |baseline| format!("{:.1}", baseline.median));
        let value = format!("{:.1}", one.value.median);
        table.add_row([one.name.clone(), value, baseline, one.result.to_string(), goal, met.to_owned()]);
    }
    table.column_iter_mut().skip(1).take(4).for_each(|column| column.set_cell_alignment(CellAlignment::Right));
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_medians_of_ratios() {
        let benchmark = Benchmark::ratio("one", Goal::AtMost(2.0), || Ok((1.0, 1.0)));
        let one = result(benchmark, &[(4.0, Some(2.0)), (1.0, Some(1.0)), (30.0, Some(10.0))]).unwrap();
        assert_eq!((one.result.median, one.is_met), (2.0, true));
        let benchmark = Benchmark::single("one", Goal::AtLeast(2.0), || Ok(1.0));
        let one = result(benchmark, &[(1.0, None), (3.0, None), (1.5, None)]).unwrap();
        assert_eq!((one.result.median, one.is_met, one.baseline.is_none()), (1.5, false, true));
    }
}
