//! The coloured tables: visits of crash points by environment, and mutants by layer.
//!
//! They are tables, not drawings: the numbers can be read without colours, and screen readers get
//! headers. Each colour stands for a power of ten, so that the legend can state exactly what it
//! means.

use std::collections::{BTreeMap, BTreeSet};

use indexmap::IndexSet;
use maud::{Markup, html};
use percolite::crashtest::CrashPoint;

use crate::layer_result::{Counts, LayerResult};
use crate::layers::Layer;
use crate::run_report::{MutantResult, MutantTrial, RunReport};

use super::format::{count, time};

/// The number of colours, one for each power of ten from one visit to a million and more.
const COLOURS: usize = 7;

type Environments<'a> = BTreeMap<&'a str, BTreeMap<&'a str, u64>>;

/// Visits of each crash point in each environment, and kills there.
pub struct Coverage<'a> {
    /// Visits by environment and crash point.
    environments: Environments<'a>,
    /// Kills by environment and crash point.
    kills: Environments<'a>,
}

impl<'a> Coverage<'a> {
    /// The coverage of all layers.
    pub fn of(run: &'a RunReport) -> Self {
        Self { environments: sum(run, |layer| &layer.visits), kills: sum(run, |layer| &layer.hits) }
    }

    /// How many crash points of this version were visited.
    pub fn points_hit(&self) -> usize {
        let is_hit = |point: &&CrashPoint| {
            self.environments.values().any(|points| points.get(point.name()).is_some_and(|&n| n > 0))
        };
        CrashPoint::ALL.iter().filter(is_hit).count()
    }

    /// The crash points of this version in their order, then others from the report.
    fn rows(&self) -> Vec<(&'a str, &'a str)> {
        let mut unknown: BTreeSet<&str> =
            self.environments.values().flat_map(|points| points.keys().copied()).collect();
        let known = CrashPoint::ALL.iter().map(|point| (point.name(), point.description()));
        let mut rows: Vec<_> = known.inspect(|(name, _)| _ = unknown.remove(name)).collect();
        rows.extend(unknown.into_iter().map(|name| (name, "not a crash point of this version")));
        rows
    }

    /// The table; `None` if no environment has reported.
    pub fn map(&self) -> Option<Markup> {
        if self.environments.is_empty() {
            return None;
        }
        Some(html! {
            p.legend {
                span.cell.absent { "–" } " not reported "
                span.cell.zero { "0" } " never visited "
                @for colour in 0..COLOURS {
                    span.cell.{ "heat" (colour) } { (legend(colour)) } " "
                }
                " times"
            }
            div.wide {
                table.grid {
                    thead { tr {
                        th scope="col" { "point" }
                        @for environment in self.environments.keys() {
                            th scope="col" { (environment) }
                            @if self.kills.contains_key(environment) { th scope="col" { "kills" } }
                        }
                        th.invariant scope="col" { "invariant" }
                    } }
                    tbody {
                        @for (name, invariant) in self.rows() {
                            tr {
                                th scope="row" title=(invariant) { (name) }
                                @for (environment, points) in &self.environments {
                                    (cell(points.get(name).copied()))
                                    @if let Some(kills) = self.kills.get(environment) { (cell(kills.get(name).copied())) }
                                }
                                td.invariant { (invariant) }
                            }
                        }
                    }
                }
            }
        })
    }
}

fn sum<'a>(run: &'a RunReport, counts: fn(&'a LayerResult) -> &'a Counts) -> Environments<'a> {
    let mut environments = Environments::new();
    for (environment, points) in run.layers.iter().flat_map(counts) {
        let known = environments.entry(environment).or_default();
        for (point, count) in points {
            *known.entry(point).or_default() += count;
        }
    }
    environments
}

fn cell(visits: Option<u64>) -> Markup {
    match visits {
        None => html! { td.cell.absent { "–" } },
        Some(0) => html! { td.cell.zero { "0" } },
        Some(visits) => {
            let colour = (visits.ilog10() as usize).min(COLOURS - 1);
            html! { td.cell.{ "heat" (colour) } { (count(visits)) } }
        }
    }
}

fn legend(colour: usize) -> String {
    let names = ["1–9", "10–99", "100–999", "1,000+", "10,000+", "100,000+", "1,000,000+"];
    names.get(colour).copied().unwrap_or_default().into()
}

/// Which layers found which mutant, after what time, and in how many cases.
pub fn mutants(run: &RunReport) -> Option<Markup> {
    if run.mutants.is_empty() {
        return None;
    }
    let trial = run.mutants.iter().flat_map(|mutant| &mutant.trials).map(|trial| trial.layer.as_str());
    let layers: IndexSet<&str> = Layer::ALL.iter().map(|layer| layer.name()).chain(trial).collect();
    Some(html! {
        p.legend {
            span.cell.found { "1.2 s" } " found after this time "
            span.cell.missed { "no" } " not found "
            span.cell.absent { "–" } " not tried"
        }
        div.wide {
            table.grid {
                thead { tr {
                    th scope="col" { "mutant" }
                    @for layer in &layers { th scope="col" { (layer) } }
                    th.text scope="col" { "violated invariant, and the first replay of each layer" }
                } }
                tbody { @for mutant in &run.mutants { (mutant_row(mutant, &layers)) } }
            }
        }
    })
}

fn mutant_row(mutant: &MutantResult, layers: &IndexSet<&str>) -> Markup {
    html! {
        tr {
            th scope="row" title=(mutant.description) { (mutant.mutant) }
            @for name in layers {
                @match mutant.trials.iter().find(|trial| trial.layer == *name) {
                    None => { td.cell.absent { "–" } }
                    Some(MutantTrial { found: 0, cases, .. }) => { td.cell.missed { "no" br; small { "0 of " (count(*cases)) } } }
                    Some(MutantTrial { found, cases, seconds, .. }) => {
                        td.cell.found { (time(*seconds)) br; small { (count(*found)) " of " (count(*cases)) } }
                    }
                }
            }
            td.text {
                @if mutant.found_by.is_none() { strong.bad { "SURVIVED" } ": " (mutant.description) }
                @if let Some(invariant) = &mutant.invariant { (invariant) }
                @let replays: IndexSet<&String> =
                    mutant.replay.iter().chain(mutant.trials.iter().filter_map(|trial| trial.replay.as_ref())).collect();
                @for replay in replays { br; code { (replay) } }
            }
        }
    }
}
