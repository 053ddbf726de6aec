//! Merges several runs: counts are added, failures are collected.
//!
//! What any run found is kept: failures and gaps are collected, and a mutant is found if any run
//! found it. A layer counts as skipped only if no run has run it.

use indexmap::IndexMap;

use crate::run_report::{MutantResult, MutantTrial, RunReport};

/// Removes repeated reports, whatever their file names; returns how many were removed.
pub fn once(parts: Vec<RunReport>) -> anyhow::Result<(Vec<RunReport>, usize)> {
    let all = parts.len();
    let mut existing = IndexMap::new();
    for part in parts {
        existing.entry(serde_json::to_string(&part)?).or_insert(part);
    }
    let once: Vec<RunReport> = existing.into_values().collect();
    let duplicates = all - once.len();
    Ok((once, duplicates))
}

/// The sum of several runs, in the given order.
pub fn merge(parts: Vec<RunReport>) -> RunReport {
    let mut whole = RunReport::default();
    for part in parts {
        join(&mut whole.version, &part.version, ", ");
        join(&mut whole.command, &part.command, "; ");
        if whole.started.is_empty() || part.started < whole.started {
            whole.started = part.started;
        }
        whole.seconds += part.seconds;
        whole.interrupted |= part.interrupted;
        part.layers.into_iter().for_each(|outcome| whole.add(outcome));
        for mutant in part.mutants {
            match whole.mutants.iter_mut().find(|existing| existing.mutant == mutant.mutant) {
                Some(existing) => add_mutant(existing, mutant),
                None => whole.mutants.push(mutant),
            }
        }
        for gap in part.coverage_gaps {
            if !whole.coverage_gaps.contains(&gap) {
                whole.coverage_gaps.push(gap);
            }
        }
    }
    whole
}

fn join(all: &mut String, one: &str, between: &str) {
    if all.is_empty() {
        one.clone_into(all);
    } else if all.split(between).all(|existing| existing != one) {
        *all = format!("{all}{between}{one}");
    }
}

fn add_tried(existing: &mut MutantTrial, other: MutantTrial) {
    existing.found += other.found;
    existing.cases += other.cases;
    if existing.replay.is_none() {
        existing.seconds += other.seconds;
        existing.replay = other.replay;
    }
}

/// Keeps the first finding. Until a run has found the mutant, the times of the runs are added.
fn add_mutant(existing: &mut MutantResult, other: MutantResult) {
    for trial in other.trials {
        match existing.trials.iter_mut().find(|one| one.layer == trial.layer) {
            Some(one) => add_tried(one, trial),
            None => existing.trials.push(trial),
        }
    }
    if existing.found_by.is_some() {
        return;
    }
    existing.seconds += other.seconds;
    existing.found_by = other.found_by;
    existing.invariant = other.invariant;
    existing.replay = other.replay;
}
