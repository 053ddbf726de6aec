//! The table on the terminal, which `quick`, `soak`, `mutants` and `report` end with.
//!
//! The verdict comes first and once more last, because what is last is what a terminal shows.

use std::fmt::Write as _;
use std::io::{self, Write as _};

use comfy_table::presets::UTF8_FULL_CONDENSED;
use comfy_table::{CellAlignment, Table};
use indexmap::IndexSet;

use crate::evidence::{Evidence, MutantResult};
use crate::layers::Layer;
use crate::outcome::{Failure, Outcome};
use crate::screen;

use super::verdict::{Verdict, word_of};
use super::words::{count, some, story, time};

/// Prints what was shown; a reader who has seen enough, as `head` has, is no error.
pub fn print(evidence: &Evidence) {
    let _ = io::stdout().write_all(summary(evidence).as_bytes());
}

/// What [`print`] prints.
pub fn summary(evidence: &Evidence) -> String {
    let mut told = String::new();
    // Writing to a string does not fail.
    let _ = tell(&mut told, evidence);
    // Values come from a store that may be broken, and must not steer the terminal.
    told.replace(|c: char| c.is_control() && c != '\n', "\u{fffd}")
}

fn tell(told: &mut String, evidence: &Evidence) -> std::fmt::Result {
    let verdict = Verdict::of(evidence);
    let line = format!("{}: {}", verdict.word(), verdict.sentence());
    writeln!(told, "{line}")?;
    let Evidence { version, began, command, .. } = evidence;
    writeln!(told, "{command}, version {version}, began {began}, took {}", time(evidence.seconds))?;
    if !evidence.layers.is_empty() {
        writeln!(told, "\n{}", layers(&evidence.layers))?;
        writeln!(
            told,
            "lost: not synced and gone, in the layer's unit; found: committed though nobody had been told."
        )?;
    }
    if !evidence.mutants.is_empty() {
        writeln!(told, "\n{}", mutants(&evidence.mutants))?;
        writeln!(told, "Time until each layer found it; no: it did not, –: it was not tried.")?;
    }
    for mutant in &evidence.mutants {
        let first = mutant.replay.iter().chain(mutant.tried.iter().filter_map(|tried| tried.replay.as_ref()));
        let lines: IndexSet<&String> = first.collect();
        for line in lines {
            writeln!(told, "  {}: {line}", mutant.mutant)?;
        }
    }
    if !evidence.gaps.is_empty() {
        writeln!(told, "\n{}:", some(evidence.gaps.len(), "gap"))?;
    }
    for gap in &evidence.gaps {
        writeln!(told, "  {gap}")?;
    }
    for layer in &evidence.layers {
        for (index, failure) in layer.failures.iter().enumerate() {
            writeln!(told, "\n{}, failure {} of {}:", layer.layer, index + 1, layer.failures.len())?;
            tell_failure(told, failure)?;
        }
    }
    writeln!(told, "\n{line}")
}

fn tell_failure(told: &mut String, failure: &Failure) -> std::fmt::Result {
    for broken in &failure.broken {
        writeln!(told, "  broken:  {}", broken.promise)?;
        writeln!(told, "  how:     {}", story(&broken.how).replace('\n', "\n           "))?;
    }
    writeln!(told, "  replay:  {}", failure.replay)?;
    if let Some(kept) = &failure.kept {
        writeln!(told, "  kept in: {}", kept.display())?;
    }
    Ok(())
}

fn layers(layers: &[Outcome]) -> Table {
    let numbers = ["cases", "txns", "acked", "lost", "found", "deaths", "failures", "time"];
    let mut table = table(&["layer"], &numbers, &["verdict"]);
    for layer in layers {
        let reasons: Vec<String> = layer.skipped.iter().cloned().chain(layer.reservations()).collect();
        let reason = if reasons.is_empty() { String::new() } else { format!(" ({})", reasons.join("; ")) };
        table.add_row([
            layer.layer.clone(),
            count(layer.cases),
            count(layer.transactions),
            count(layer.acknowledged),
            count(layer.lost),
            count(layer.unanswered),
            count(layer.died()),
            count(layer.failures.len() as u64),
            time(layer.seconds),
            word_of(layer).to_owned() + &reason,
        ]);
    }
    table
}

fn mutants(mutants: &[MutantResult]) -> Table {
    let layers: Vec<&str> = Layer::ALL.iter().map(|layer| layer.name()).collect();
    let mut table = table(&["mutant"], &layers, &["promise"]);
    for mutant in mutants {
        let found = layers.iter().map(|layer| {
            let tried = mutant.tried.iter().find(|tried| tried.layer == *layer);
            tried.map_or("–".into(), |tried| if tried.found > 0 { time(tried.seconds) } else { "no".into() })
        });
        let promise = mutant.promise.clone().unwrap_or_default();
        let verdict = if mutant.layer.is_some() { promise } else { "SURVIVED".into() };
        table.add_row([mutant.mutant.clone()].into_iter().chain(found).chain([verdict]));
    }
    table
}

fn table(left: &[&str], right: &[&str], after: &[&str]) -> Table {
    let mut table = screen::table(UTF8_FULL_CONDENSED);
    table.set_header([left, right, after].concat());
    for column in table.column_iter_mut().skip(left.len()).take(right.len()) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}
