//! The summary on the terminal, printed at the end of every run.
//!
//! The result comes first and again last, because the last line stays visible.

use std::fmt::Write as _;
use std::io::{self, Write as _};

use comfy_table::presets::UTF8_FULL_CONDENSED;
use comfy_table::{CellAlignment, ColumnConstraint, Table};
use indexmap::IndexSet;

use crate::layer_result::{Failure, LayerResult};
use crate::layers::Layer;
use crate::run_report::{MutantResult, RunReport};
use crate::terminal_table;

use super::format::{count, plural, time, truncate};
use super::run_result::{RunResult, layer_word};

/// Prints the summary; a closed pipe is no error.
pub fn print(run: &RunReport) {
    let _ = io::stdout().write_all(summary(run).as_bytes());
}

/// The text of the summary.
pub fn summary(run: &RunReport) -> String {
    let mut out = String::new();
    // Writing to a string does not fail.
    let _ = write_summary(&mut out, run);
    // Values of a damaged store must not control the terminal.
    out.replace(|c: char| c.is_control() && c != '\n', "\u{fffd}")
}

fn write_summary(out: &mut String, run: &RunReport) -> std::fmt::Result {
    let result = RunResult::of(run);
    let line = format!("{}: {}", result.word(), result.summary());
    writeln!(out, "{line}")?;
    let RunReport { version, started: began, command, .. } = run;
    writeln!(out, "{command}, version {version}, began {began}, took {}", time(run.seconds))?;
    if !run.layers.is_empty() {
        writeln!(out, "\n{}", layers(&run.layers))?;
        writeln!(out, "lost: unsynced data, in the layer's unit; unacked: commits found without an acknowledgement.")?;
    }
    if !run.mutants.is_empty() {
        writeln!(out, "\n{}", mutants(&run.mutants))?;
        writeln!(out, "Time until each layer found the mutant; no: not found; –: not run.")?;
    }
    for mutant in &run.mutants {
        let first = mutant.replay.iter().chain(mutant.trials.iter().filter_map(|trial| trial.replay.as_ref()));
        let lines: IndexSet<&String> = first.collect();
        for line in lines {
            writeln!(out, "  {}: {line}", mutant.mutant)?;
        }
    }
    if !run.coverage_gaps.is_empty() {
        writeln!(out, "\n{}:", plural(run.coverage_gaps.len(), "gap"))?;
    }
    for gap in &run.coverage_gaps {
        writeln!(out, "  {gap}")?;
    }
    for layer in &run.layers {
        for (index, failure) in layer.failures.iter().enumerate() {
            writeln!(out, "\n{}, failure {} of {}:", layer.layer, index + 1, layer.failures.len())?;
            write_failure(out, failure)?;
        }
    }
    writeln!(out, "\n{line}")
}

fn write_failure(out: &mut String, failure: &Failure) -> std::fmt::Result {
    for violation in &failure.violations {
        writeln!(out, "  invariant: {}", violation.invariant)?;
        writeln!(out, "  details:   {}", truncate(&violation.details).replace('\n', "\n             "))?;
    }
    writeln!(out, "  replay:    {}", failure.replay)?;
    if let Some(path) = &failure.saved_in {
        writeln!(out, "  saved in:  {}", path.display())?;
    }
    Ok(())
}

fn layers(layers: &[LayerResult]) -> Table {
    let numbers = ["cases", "txns", "acked", "lost", "unacked", "kills", "failed", "time"];
    let mut table = table(&["layer"], &numbers, &["result"]);
    // On a narrow terminal only the texts of the last two columns, time and result, are broken over
    // lines, because they have spaces.
    for column in table.column_iter_mut().take(numbers.len()) {
        column.set_constraint(ColumnConstraint::ContentWidth);
    }
    for column in table.column_iter_mut().skip(1).take(numbers.len()) {
        column.set_padding((0, 1));
    }
    for layer in layers {
        let reasons: Vec<String> = layer.skipped.iter().cloned().chain(layer.caveats()).collect();
        let reason = if reasons.is_empty() { String::new() } else { format!(" ({})", reasons.join("; ")) };
        table.add_row([
            layer.layer.clone(),
            count(layer.cases),
            count(layer.transactions),
            count(layer.acknowledged),
            count(layer.unsynced_lost),
            count(layer.unacknowledged_commits),
            count(layer.kills()),
            count(layer.failures.len() as u64),
            time(layer.seconds),
            layer_word(layer).to_owned() + &reason,
        ]);
    }
    table
}

fn mutants(mutants: &[MutantResult]) -> Table {
    // Layers that no mutant was tried in would only take the width of the others.
    let was_run = |layer: &&str| mutants.iter().flat_map(|mutant| &mutant.trials).any(|trial| trial.layer == **layer);
    let layers: Vec<&str> = Layer::ALL.iter().map(|layer| layer.name()).filter(was_run).collect();
    let mut table = table(&["mutant"], &layers, &["invariant"]);
    for mutant in mutants {
        let found = layers.iter().map(|layer| {
            let trial = mutant.trials.iter().find(|trial| trial.layer == *layer);
            trial.map_or("–".into(), |trial| if trial.found > 0 { time(trial.seconds) } else { "no".into() })
        });
        let invariant = mutant.invariant.clone().unwrap_or_default();
        let result = if mutant.found_by.is_some() { invariant } else { "SURVIVED".into() };
        table.add_row([mutant.mutant.clone()].into_iter().chain(found).chain([result]));
    }
    table
}

fn table(left: &[&str], right: &[&str], after: &[&str]) -> Table {
    let mut table = terminal_table::table(UTF8_FULL_CONDENSED);
    table.set_header([left, right, after].concat());
    // A name that is broken over two lines cannot be copied.
    for column in table.column_iter_mut().take(left.len()) {
        column.set_constraint(ColumnConstraint::ContentWidth);
    }
    for column in table.column_iter_mut().skip(left.len()).take(right.len()) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}
