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

use crate::evidence::{Evidence, MutantResult, Tried};
use crate::interrupt;
use crate::layers::Layer;
use crate::outcome::Outcome;

/// Those of which `quick` tries each: one that the simulation's embedded mode must find, one of its shared mode, one of the
/// pipeline, one of durability, one of recovery.
pub const QUICK: &[Mutant] = &[
    Mutant::SkipConflictCheck,
    Mutant::NoRollbackRecord,
    Mutant::LockCheckAfterSnapshot,
    Mutant::AcknowledgeBeforeSync,
    Mutant::ResolveDropsStatus,
];

/// One that no layer can find, and tests of the log do: its own refusal after a failure lies below the storage's, which comes first.
pub const ELSEWHERE: &[Mutant] = &[Mutant::AppendsAfterFailure];

/// How often to look whether a process has ended.
const POLL: Duration = Duration::from_millis(5);

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
pub fn run(args: &MutantsArgs, told: &dyn Fn(&MutantResult)) -> anyhow::Result<Evidence> {
    let named = |name: &String| Mutant::from_name(name).with_context(|| format!("there is no mutant {name:?}"));
    let mut mutants = args.mutants.iter().map(named).collect::<anyhow::Result<Vec<_>>>()?;
    if mutants.is_empty() {
        mutants = Mutant::ALL.iter().copied().filter(|mutant| !ELSEWHERE.contains(mutant)).collect();
    }
    let mut evidence = Evidence::begin("mutants");
    for layer in Layer::ALL {
        let Some(outcome) = quick_run(*layer, None)? else { return Ok(evidence) };
        let is_good = outcome.is_good();
        anyhow::ensure!(is_good, "{} finds something without a mutant: {:?}", layer.name(), outcome.failures);
        evidence.add(outcome);
    }
    for mutant in mutants {
        let Some(result) = try_one(mutant, args.all_layers)? else { break };
        told(&result);
        evidence.mutants.push(result);
    }
    Ok(evidence)
}

/// Runs a mutant through the layers until one finds it, or through all; nothing comes of it at an
/// [interrupt].
///
/// # Errors
/// A program that cannot be started.
pub fn try_one(mutant: Mutant, all_layers: bool) -> anyhow::Result<Option<MutantResult>> {
    let mut result = MutantResult {
        mutant: mutant.name().into(),
        text: mutant.description().into(),
        layer: None,
        promise: None,
        seconds: 0.0,
        replay: None,
        tried: Vec::new(),
    };
    for layer in Layer::ALL {
        let began = Instant::now();
        let Some(outcome) = quick_run(*layer, Some(mutant))? else { return Ok(None) };
        if outcome.skipped.is_some() && outcome.failures.is_empty() {
            continue;
        }
        let seconds = began.elapsed().as_secs_f64();
        let first = outcome.failures.first();
        result.tried.push(Tried {
            layer: layer.name().into(),
            found: outcome.failures.len() as u64,
            cases: outcome.cases,
            seconds,
            replay: first.map(|failure| failure.replay.clone()),
        });
        if result.layer.is_none() {
            result.seconds += seconds;
            if let Some(failure) = first {
                result.layer = Some(layer.name().into());
                result.promise = failure.broken.first().map(|broken| broken.promise.clone());
                result.replay = Some(failure.replay.clone());
            }
        }
        if result.layer.is_some() && !all_layers {
            break;
        }
    }
    Ok(Some(result))
}

/// A layer as `quick` runs it, in a process of its own: a mutant may do anything to the one that it is in. Nothing, if it was
/// interrupted.
fn quick_run(layer: Layer, mutant: Option<Mutant>) -> anyhow::Result<Option<Outcome>> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("evidence.json");
    let mut errors = tempfile::tempfile()?;
    let mut command = Command::new(std::env::current_exe()?);
    command.args([layer.name(), "--quick", "--json"]).arg(&file);
    command.stdout(Stdio::null()).stderr(errors.try_clone()?);
    if let Some(mutant) = mutant {
        command.args(["--stop", "--mutant", mutant.name()]);
    }
    end_of(&mut command).with_context(|| format!("cannot run {}", layer.name()))?;
    if interrupt::came() {
        return Ok(None);
    }
    let evidence: Option<Evidence> = std::fs::read(&file).ok().and_then(|text| serde_json::from_slice(&text).ok());
    let Some(mut evidence) = evidence else {
        let mut said = String::new();
        errors.rewind()?;
        errors.read_to_string(&mut said)?;
        anyhow::bail!("{} has said nothing: {said}", layer.name());
    };
    anyhow::ensure!(!evidence.interrupted, "somebody has interrupted {}", layer.name());
    evidence.layers.pop().with_context(|| format!("{} has nothing to say", layer.name())).map(Some)
}

/// Waits for a process, and hands an interrupt on to it: it has its own to clean up.
fn end_of(command: &mut Command) -> anyhow::Result<ExitStatus> {
    // A Ctrl-C of the terminal does not come to it, so that there is never a second one.
    let mut child = command.process_group(0).spawn()?;
    let mut told = false;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if interrupt::came() && !told {
            kill_process(Pid::from_child(&child), Signal::TERM)?;
            told = true;
        }
        std::thread::sleep(POLL);
    }
}
