//! Known mistakes, switched on one at a time: what the harness is worth.
//!
//! The configuration is the one of `quick`, unchanged, with its seeds: it is run without a mutant first and must be green.
//! Then each mutant goes through the layers, cheapest first, until one finds it, or through all. One that no layer finds is a
//! hole in the harness, but for [`ELSEWHERE`].

use std::io::{Read as _, Seek as _};
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use clap::Args;
use percolite::crashtest::Mutant;
use rustix::process::{Pid, Signal, kill_process};

use crate::interrupt;
use crate::layer_result::LayerResult;
use crate::layers::Layer;
use crate::run_report::{MutantResult, MutantTrial, RunReport};

/// Those of which `quick` tries each: one that the simulation's embedded mode must find, one of its shared mode, one of the
/// pipeline, one of durability, one of recovery.
pub const QUICK_MUTANTS: &[Mutant] = &[
    Mutant::SkipConflictCheck,
    Mutant::NoRollbackRecord,
    Mutant::LockCheckAfterSnapshot,
    Mutant::AcknowledgeBeforeSync,
    Mutant::ResolveDropsStatus,
];

/// One that no layer can find, and tests of the log do: its own refusal after a failure lies below the storage's, which comes first.
pub const UNIT_TEST_ONLY: &[Mutant] = &[Mutant::AppendsAfterFailure];

/// How often to look whether a process has ended.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Switches known mistakes on, one at a time, and sees whether `quick` finds each.
#[derive(Args, Clone, Debug)]
pub struct MutantsArgs {
    /// Only these; otherwise all but those that only tests of the library can find.
    pub mutants: Vec<String>,
    /// Go through all layers with each, also when one has found it.
    #[arg(long)]
    pub all_layers: bool,
    /// Write the evidence to this file.
    #[arg(long)]
    pub json: Option<PathBuf>,
}

/// Tries the mutants that were asked for, or all.
///
/// # Errors
/// An unknown mutant; a harness that finds something without one; a program that cannot be started.
pub fn run(args: &MutantsArgs, on_result: &dyn Fn(&MutantResult)) -> anyhow::Result<RunReport> {
    let named = |name: &String| Mutant::from_name(name).with_context(|| format!("there is no mutant {name:?}"));
    let mut mutants = args.mutants.iter().map(named).collect::<anyhow::Result<Vec<_>>>()?;
    if mutants.is_empty() {
        mutants = Mutant::ALL.iter().copied().filter(|mutant| !UNIT_TEST_ONLY.contains(mutant)).collect();
    }
    let mut report = RunReport::start("mutants");
    for layer in Layer::ALL {
        let Some(outcome) = run_quick_layer(*layer, None)? else { return Ok(report) };
        let is_good = outcome.passed();
        anyhow::ensure!(is_good, "{} finds something without a mutant: {:?}", layer.name(), outcome.failures);
        report.add(outcome);
    }
    for mutant in mutants {
        let Some(result) = try_one(mutant, args.all_layers)? else { break };
        on_result(&result);
        report.mutants.push(result);
    }
    Ok(report)
}

/// Runs a mutant through the layers until one finds it, or through all; nothing comes of it at an
/// [interrupt].
///
/// # Errors
/// A program that cannot be started.
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
    for layer in Layer::ALL {
        let started = Instant::now();
        let Some(outcome) = run_quick_layer(*layer, Some(mutant))? else { return Ok(None) };
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

/// A layer as `quick` runs it, in a process of its own: a mutant may do anything to the one that it is in. Nothing, if it was
/// interrupted.
fn run_quick_layer(layer: Layer, mutant: Option<Mutant>) -> anyhow::Result<Option<LayerResult>> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("run.json");
    let mut errors = tempfile::tempfile()?;
    let mut command = Command::new(std::env::current_exe()?);
    command.args([layer.name(), "--quick", "--json"]).arg(&file);
    command.stdout(Stdio::null()).stderr(errors.try_clone()?);
    if let Some(mutant) = mutant {
        command.args(["--fail-fast", "--mutant", mutant.name()]);
    }
    wait_with_interrupt(&mut command).with_context(|| format!("cannot run {}", layer.name()))?;
    if interrupt::is_requested() {
        return Ok(None);
    }
    let report: Option<RunReport> = std::fs::read(&file).ok().and_then(|text| serde_json::from_slice(&text).ok());
    let Some(mut report) = report else {
        let mut stderr = String::new();
        errors.rewind()?;
        errors.read_to_string(&mut stderr)?;
        anyhow::bail!("{} has said nothing: {stderr}", layer.name());
    };
    anyhow::ensure!(!report.interrupted, "somebody has interrupted {}", layer.name());
    report.layers.pop().with_context(|| format!("{} has nothing to say", layer.name())).map(Some)
}

/// Waits for a process, and hands an interrupt on to it: it has its own to clean up.
fn wait_with_interrupt(command: &mut Command) -> anyhow::Result<ExitStatus> {
    // A Ctrl-C of the terminal does not come to it, so that there is never a second one.
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
