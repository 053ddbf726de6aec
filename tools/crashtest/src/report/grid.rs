//! The coloured tables: which points were visited where, and which mutants were found by what.
//!
//! They are tables and not drawings: a reader who cannot see the colours has the numbers, and a screen reader has headers.
//! A colour stands for a power of ten, so that the legend says exactly what a colour means.

use std::collections::{BTreeMap, BTreeSet};

use indexmap::IndexSet;
use maud::{Markup, html};
use percolite::crashtest::CrashPoint;

use crate::evidence::{Evidence, MutantResult, Tried};
use crate::layers::Layer;
use crate::outcome::{Counts, Outcome};

use super::words::{count, time};

/// From one visit to a million and more.
const COLOURS: usize = 7;

type Places<'a> = BTreeMap<&'a str, BTreeMap<&'a str, u64>>;

/// How often each point was visited in each place, and was the last one of a process.
pub struct Coverage<'a> {
    /// Visits by place, then by point.
    places: Places<'a>,
    /// Deaths, in the same way.
    deaths: Places<'a>,
}

impl<'a> Coverage<'a> {
    /// Of all layers.
    pub fn of(evidence: &'a Evidence) -> Self {
        Self { places: sum(evidence, |layer| &layer.visits), deaths: sum(evidence, |layer| &layer.hits) }
    }

    /// How many of the points of this program were visited at all.
    pub fn points_hit(&self) -> usize {
        let is_hit =
            |point: &&CrashPoint| self.places.values().any(|points| points.get(point.name()).is_some_and(|&n| n > 0));
        CrashPoint::ALL.iter().filter(is_hit).count()
    }

    /// The points of this program in their order, then those that only the evidence knows.
    fn rows(&self) -> Vec<(&'a str, &'a str)> {
        let mut strangers: BTreeSet<&str> = self.places.values().flat_map(|points| points.keys().copied()).collect();
        let known = CrashPoint::ALL.iter().map(|point| (point.name(), point.description()));
        let mut rows: Vec<_> = known.inspect(|(name, _)| _ = strangers.remove(name)).collect();
        rows.extend(strangers.into_iter().map(|name| (name, "not a point of this version")));
        rows
    }

    /// The map; nothing if no place has reported.
    pub fn map(&self) -> Option<Markup> {
        if self.places.is_empty() {
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
                        @for place in self.places.keys() {
                            th scope="col" { (place) }
                            @if self.deaths.contains_key(place) { th scope="col" { "died there" } }
                        }
                        th.promise scope="col" { "what holds there" }
                    } }
                    tbody {
                        @for (name, promise) in self.rows() {
                            tr {
                                th scope="row" title=(promise) { (name) }
                                @for (place, points) in &self.places {
                                    (cell(points.get(name).copied()))
                                    @if let Some(deaths) = self.deaths.get(place) { (cell(deaths.get(name).copied())) }
                                }
                                td.promise { (promise) }
                            }
                        }
                    }
                }
            }
        })
    }
}

fn sum<'a>(evidence: &'a Evidence, counts: fn(&'a Outcome) -> &'a Counts) -> Places<'a> {
    let mut places = Places::new();
    for (place, points) in evidence.layers.iter().flat_map(counts) {
        let known = places.entry(place).or_default();
        for (point, count) in points {
            *known.entry(point).or_default() += count;
        }
    }
    places
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

/// Which layers found which mutant, how soon, and in how many of the cases tried.
pub fn mutants(evidence: &Evidence) -> Option<Markup> {
    if evidence.mutants.is_empty() {
        return None;
    }
    let tried = evidence.mutants.iter().flat_map(|mutant| &mutant.tried).map(|tried| tried.layer.as_str());
    let layers: IndexSet<&str> = Layer::ALL.iter().map(|layer| layer.name()).chain(tried).collect();
    Some(html! {
        p.legend {
            span.cell.found { "1.2 s" } " found, the first time after so long "
            span.cell.missed { "no" } " in none of its cases "
            span.cell.absent { "–" } " not tried"
        }
        div.wide {
            table.grid {
                thead { tr {
                    th scope="col" { "mutant" }
                    @for layer in &layers { th scope="col" { (layer) } }
                    th.text scope="col" { "promise broken, and the first of each layer to replay" }
                } }
                tbody { @for mutant in &evidence.mutants { (mutant_row(mutant, &layers)) } }
            }
        }
    })
}

fn mutant_row(mutant: &MutantResult, layers: &IndexSet<&str>) -> Markup {
    html! {
        tr {
            th scope="row" title=(mutant.text) { (mutant.mutant) }
            @for name in layers {
                @match mutant.tried.iter().find(|tried| tried.layer == *name) {
                    None => { td.cell.absent { "–" } }
                    Some(Tried { found: 0, cases, .. }) => { td.cell.missed { "no" br; small { "0 of " (count(*cases)) } } }
                    Some(Tried { found, cases, seconds, .. }) => {
                        td.cell.found { (time(*seconds)) br; small { (count(*found)) " of " (count(*cases)) } }
                    }
                }
            }
            td.text {
                @if mutant.layer.is_none() { strong.bad { "SURVIVED" } ": " (mutant.text) }
                @if let Some(promise) = &mutant.promise { (promise) }
                @let replays: IndexSet<&String> =
                    mutant.replay.iter().chain(mutant.tried.iter().filter_map(|tried| tried.replay.as_ref())).collect();
                @for replay in replays { br; code { (replay) } }
            }
        }
    }
}
