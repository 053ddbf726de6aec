//! Known mistakes, switched on one at a time: what the harness is worth.
//!
//! The configuration is the one of `quick`, unchanged, with its seeds: it is run without a mutant first and must be green.
//! Then each mutant goes through the layers, cheapest first, until one finds it. One that no layer finds is a hole in the
//! harness.

use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;

use anyhow::Context as _;
use clap::Args;
use percolite::crashtest::Mutant;

use crate::evidence::{Evidence, MutantResult};
use crate::layers::Layer;
use crate::outcome::Outcome;

/// Those of which `quick` tries each: one that the simulation's embedded mode must find, one of its shared mode, one of the
/// pipeline, one of durability, one of recovery.
pub const QUICK: &[Mutant] = &[
    Mutant::SkipConflictCheck,
    Mutant::NoRollbackRecord,
    Mutant::UnappliedReadLate,
    Mutant::AcknowledgeBeforeSync,
    Mutant::RecoveryForgets,
];

/// Switches known mistakes on, one at a time, and sees whether `quick` finds each.
#[derive(Args, Clone, Debug)]
pub struct MutantsArgs {
    /// Only these.
    pub mutants: Vec<String>,
    /// Write the evidence to this file.
    #[arg(long)]
    pub json: Option<PathBuf>,
}

/// Tries the mutants that were asked for, or all.
///
/// # Errors
/// An unknown mutant; a harness that finds something without one; a program that cannot be started.
pub fn run(args: &MutantsArgs, told: &dyn Fn(&MutantResult)) -> anyhow::Result<Evidence> {
    let named = |name: &String| Mutant::named(name).with_context(|| format!("there is no mutant {name:?}"));
    let mut mutants = args.mutants.iter().map(named).collect::<anyhow::Result<Vec<_>>>()?;
    if mutants.is_empty() {
        mutants = Mutant::ALL.to_vec();
    }
    let mut evidence = Evidence::begin("mutants");
    for layer in Layer::ALL {
        let outcome = quick_run(*layer, None)?;
        anyhow::ensure!(outcome.is_good(), "{} finds something without a mutant: {:?}", layer.name(), outcome.failures);
        evidence.layers.push(outcome);
    }
    for mutant in mutants {
        let result = try_one(mutant)?;
        told(&result);
        evidence.mutants.push(result);
    }
    Ok(evidence)
}

/// Runs a mutant through the layers until one finds it.
///
/// # Errors
/// A program that cannot be started.
pub fn try_one(mutant: Mutant) -> anyhow::Result<MutantResult> {
    let began = Instant::now();
    let mut result = MutantResult {
        mutant: mutant.name().into(),
        text: mutant.text().into(),
        layer: None,
        promise: None,
        seconds: 0.0,
        found: Vec::new(),
        replay: None,
    };
    for layer in Layer::ALL {
        let outcome = quick_run(*layer, Some(mutant))?;
        if outcome.skipped.is_some() {
            continue;
        }
        result.found.push((layer.name().into(), outcome.failures.len() as u64, outcome.cases));
        if let Some(failure) = outcome.failures.first() {
            result.layer = Some(layer.name().into());
            result.promise = failure.broken.first().map(|broken| broken.promise.clone());
            result.replay = Some(failure.replay.clone());
            break;
        }
    }
    result.seconds = began.elapsed().as_secs_f64();
    Ok(result)
}

/// A layer as `quick` runs it, in a process of its own: a mutant may do anything to the one that it is in.
fn quick_run(layer: Layer, mutant: Option<Mutant>) -> anyhow::Result<Outcome> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("outcome.json");
    let mut command = Command::new(std::env::current_exe()?);
    command.args([layer.name(), "--quick", "--json"]).arg(&file);
    if let Some(mutant) = mutant {
        command.args(["--stop", "--mutant", mutant.name()]);
    }
    let ran = command.output().with_context(|| format!("cannot start {}", layer.name()))?;
    let text = std::fs::read(&file)
        .with_context(|| format!("{} has said nothing: {}", layer.name(), String::from_utf8_lossy(&ran.stderr)))?;
    Ok(serde_json::from_slice(&text)?)
}
