//! Mutation tests: known mistakes, enabled one at a time, that the harness must find.
//!
//! The configuration and the seeds are those of `quick`. Each layer first runs without a mutant and
//! must pass. Each mutant then runs through the layers, until a layer finds it: first the one that
//! its patch names, then the others, cheapest first. A mutant that no layer finds is a gap in the
//! harness, except for those in [`UNIT_TEST_ONLY`].

use std::io::{Read as _, Seek as _};
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use clap::Args;
use percolite::mutants::Mutant;
use rustix::process::{Pid, Signal, kill_process};

use crate::interrupt;
use crate::layer_result::{Failure, LayerResult};
use crate::layers::Layer;
use crate::run_report::{MutantResult, MutantTrial, RunReport};
use crate::violation::Violation;

/// The mutants of `quick`: one each for the simulation's embedded mode, its shared mode, the commit
/// pipeline, durability, and recovery.
pub const QUICK_MUTANTS: &[&str] = &[
    "skip-conflict-check",
    "no-rollback-record",
    "lock-check-after-snapshot",
    "acknowledge-before-sync",
    "resolve-drops-status",
];

/// Mutants that only unit tests of the library find. `appends-after-failure` lets the log write
/// after a failure, but no layer gets there: the storage above the log refuses first.
pub const UNIT_TEST_ONLY: &[&str] = &["appends-after-failure"];

/// The exit code of a Rust program whose main thread panics.
const EXIT_CODE_OF_A_PANIC: i32 = 101;

/// The interval between two checks whether a process has ended.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Run mutation tests: enable known mistakes one at a time and check that `quick` finds each.
#[derive(Args, Clone, Debug)]
pub struct MutantsArgs {
    /// Mutants to run; default: all but those that only unit tests of the library find.
    pub mutants: Vec<String>,
    /// Run each mutant through all layers, even after one has found it.
    #[arg(long)]
    pub all_layers: bool,
    /// Write the run report to this file, as JSON.
    #[arg(long)]
    pub json: Option<PathBuf>,
}

/// The mutant with this name.
///
/// # Errors
/// An unknown mutant.
pub fn named(name: &str) -> anyhow::Result<Mutant> {
    Mutant::from_name(name).with_context(|| format!("unknown mutant {name:?}"))
}

/// Runs the selected mutants, or all.
///
/// # Errors
/// An unknown mutant, a failure without a mutant, or a program that cannot be started.
pub fn run(args: &MutantsArgs, on_result: &dyn Fn(&MutantResult)) -> anyhow::Result<RunReport> {
    let mut mutants = args.mutants.iter().map(|name| named(name)).collect::<anyhow::Result<Vec<_>>>()?;
    if mutants.is_empty() {
        mutants = Mutant::all().filter(|mutant| !UNIT_TEST_ONLY.contains(&mutant.name())).collect();
    }
    let mut report = RunReport::start("mutants");
    for layer in Layer::ALL {
        let Some(outcome) = run_quick_layer(*layer, None)? else { return Ok(report) };
        let is_good = outcome.passed();
        anyhow::ensure!(is_good, "{} fails without a mutant: {:?}", layer.name(), outcome.failures);
        report.add(outcome);
    }
    for mutant in mutants {
        let Some(result) = try_one(mutant, args.all_layers)? else { break };
        on_result(&result);
        report.mutants.push(result);
    }
    Ok(report)
}

/// Runs a mutant through the layers until one finds it, or through all. `None` after an
/// [interrupt].
///
/// # Errors
/// The program cannot be started.
pub fn try_one(mutant: Mutant, all_layers: bool) -> anyhow::Result<Option<MutantResult>> {
    let mut result = MutantResult {
        mutant: mutant.name().into(),
        description: mutant.description().into(),
        found_by: None,
        invariant: None,
        seconds: 0.0,
        replay: None,
        trials: Vec::new(),
    };
    let mut layers = Layer::ALL.to_vec();
    layers.sort_by_key(|layer| mutant.layer() != Some(layer.name()));
    for layer in layers {
        let started = Instant::now();
        let Some(outcome) = run_quick_layer(layer, Some(mutant))? else { return Ok(None) };
        if outcome.skipped.is_some() && outcome.failures.is_empty() {
            continue;
        }
        let seconds = started.elapsed().as_secs_f64();
        let first = outcome.failures.first();
        result.trials.push(MutantTrial {
            layer: layer.name().into(),
            found: outcome.failures.len() as u64,
            cases: outcome.cases,
            seconds,
            replay: first.map(|failure| failure.replay.clone()),
        });
        if result.found_by.is_none() {
            result.seconds += seconds;
            if let Some(failure) = first {
                result.found_by = Some(layer.name().into());
                result.invariant = failure.violations.first().map(|broken| broken.invariant.clone());
                result.replay = Some(failure.replay.clone());
            }
        }
        if result.found_by.is_some() && !all_layers {
            break;
        }
    }
    Ok(Some(result))
}

/// Runs a layer as `quick` does, in a process of its own, because a mutant may do anything to its
/// process. `None` after an interrupt.
fn run_quick_layer(layer: Layer, mutant: Option<Mutant>) -> anyhow::Result<Option<LayerResult>> {
    let dir = tempfile::tempdir()?;
    let file = dir.path().join("run.json");
    let mut errors = tempfile::tempfile()?;
    let mut command = Command::new(std::env::current_exe()?);
    command.args([layer.name(), "--quick", "--json"]).arg(&file);
    command.stdout(Stdio::null()).stderr(errors.try_clone()?);
    if let Some(mutant) = mutant {
        command.args(["--fail-fast", "--mutant", mutant.name()]);
    }
    let status = wait_with_interrupt(&mut command).with_context(|| format!("cannot run {}", layer.name()))?;
    if interrupt::is_requested() {
        return Ok(None);
    }
    let report: Option<RunReport> = std::fs::read(&file).ok().and_then(|text| serde_json::from_slice(&text).ok());
    let Some(mut report) = report else {
        let mut stderr = String::new();
        errors.rewind()?;
        errors.read_to_string(&mut stderr)?;
        let has_died = status.code().is_none_or(|code| code == EXIT_CODE_OF_A_PANIC);
        if let Some(mutant) = mutant.filter(|_| has_died) {
            return Ok(Some(died(layer, mutant, &stderr)));
        }
        anyhow::bail!("{} wrote no report: {stderr}", layer.name());
    };
    anyhow::ensure!(!report.interrupted, "{} was interrupted", layer.name());
    report.layers.pop().with_context(|| format!("the report of {} has no layer", layer.name())).map(Some)
}

/// The result of a layer whose process a mutant has ended: by an assertion of the store, or because
/// the main thread of a simulation was part of a hang.
fn died(layer: Layer, mutant: Mutant, stderr: &str) -> LayerResult {
    let details = stderr.lines().rev().take(3).collect::<Vec<_>>().into_iter().rev().collect::<Vec<_>>().join("; ");
    let violations = vec![Violation::new("the process stays alive", details)];
    let replay = format!("percolite-crashtest {} --quick --mutant {}", layer.name(), mutant.name());
    let mut outcome = LayerResult::new(layer.name());
    outcome.failures.push(Failure { replay, violations, saved_in: None });
    outcome
}

/// Waits for a process and forwards an interrupt to it, so that it can clean up.
fn wait_with_interrupt(command: &mut Command) -> anyhow::Result<ExitStatus> {
    // In its own process group the child gets no Ctrl-C from the terminal. Otherwise the forwarded
    // signal would be a second one, after which the child does not clean up.
    let mut child = command.process_group(0).spawn()?;
    let mut on_result = false;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if interrupt::is_requested() && !on_result {
            kill_process(Pid::from_child(&child), Signal::TERM)?;
            on_result = true;
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Otherwise the name would change nothing.
    #[test]
    #[cfg(feature = "rocks")]
    fn a_patch_names_a_layer_that_exists() {
        let names: Vec<_> = Layer::ALL.iter().map(|layer| layer.name()).collect();
        for mutant in Mutant::all() {
            let layer = mutant.layer();
            assert!(layer.is_none_or(|layer| names.contains(&layer)), "{}: {layer:?}", mutant.name());
        }
    }
}
