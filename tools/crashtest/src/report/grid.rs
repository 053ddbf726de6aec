//! The coloured tables: which points were visited where, and which mutants were found by what.
//!
//! They are tables and not drawings: a reader who cannot see the colours has the numbers, and a screen reader has headers.
//! A colour stands for a power of ten, so that the legend says exactly what a colour means.

use std::collections::{BTreeMap, BTreeSet};

use maud::{Markup, html};
use percolite::crashtest::Point;

use crate::evidence::{Evidence, MutantResult};

use super::words::{count, time};

/// From one visit to a million and more.
const COLOURS: usize = 7;

/// How often each point was visited in each place.
pub struct Coverage<'a> {
    /// By place, then by point.
    places: BTreeMap<&'a str, BTreeMap<&'a str, u64>>,
}

impl<'a> Coverage<'a> {
    /// Of all layers.
    pub fn of(evidence: &'a Evidence) -> Self {
        let mut places: BTreeMap<&str, BTreeMap<&str, u64>> = BTreeMap::new();
        for (place, points) in evidence.layers.iter().flat_map(|layer| &layer.visits) {
            let known = places.entry(place).or_default();
            for (point, visits) in points {
                *known.entry(point).or_default() += visits;
            }
        }
        Self { places }
    }

    /// How many of the points of this program were visited at all.
    pub fn points_hit(&self) -> usize {
        let is_hit =
            |point: &&Point| self.places.values().any(|points| points.get(point.name()).is_some_and(|&n| n > 0));
        Point::ALL.iter().filter(is_hit).count()
    }

    /// The points of this program in their order, then those that only the evidence knows.
    fn rows(&self) -> Vec<(&'a str, &'a str)> {
        let mut strangers: BTreeSet<&str> = self.places.values().flat_map(|points| points.keys().copied()).collect();
        let known = Point::ALL.iter().map(|point| (point.name(), point.text()));
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
                " visits"
            }
            div.wide {
                table.grid {
                    thead { tr {
                        th scope="col" { "point" }
                        @for place in self.places.keys() { th scope="col" { (place) } }
                        th.promise scope="col" { "what holds there" }
                    } }
                    tbody {
                        @for (name, promise) in self.rows() {
                            tr {
                                th scope="row" title=(promise) { (name) }
                                @for points in self.places.values() { (cell(points.get(name).copied())) }
                                td.promise { (promise) }
                            }
                        }
                    }
                }
            }
        })
    }
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

/// Which layers found which mutant, in how many of the cases tried.
pub fn mutants(evidence: &Evidence) -> Option<Markup> {
    if evidence.mutants.is_empty() {
        return None;
    }
    let mut layers: Vec<&str> = Vec::new();
    for (layer, ..) in evidence.mutants.iter().flat_map(|mutant| &mutant.found) {
        if !layers.contains(&layer.as_str()) {
            layers.push(layer);
        }
    }
    Some(html! {
        p.legend {
            span.cell.found { "3 / 9" } " found in 3 of 9 cases "
            span.cell.missed { "0 / 9" } " in none "
            span.cell.absent { "–" } " not tried"
        }
        div.wide {
            table.grid {
                thead { tr {
                    th scope="col" { "mutant" }
                    @for layer in &layers { th scope="col" { (layer) } }
                    th scope="col" { "time to kill" }
                    th.text scope="col" { "killed by, promise, replay line" }
                } }
                tbody { @for mutant in &evidence.mutants { (mutant_row(mutant, &layers)) } }
            }
        }
    })
}

fn mutant_row(mutant: &MutantResult, layers: &[&str]) -> Markup {
    html! {
        tr {
            th scope="row" title=(mutant.text) { (mutant.mutant) }
            @for name in layers {
                @match mutant.found.iter().find(|(layer, ..)| layer == name) {
                    None => { td.cell.absent { "–" } }
                    Some((_, 0, of)) => { td.cell.missed { "0 / " (count(*of)) } }
                    Some((_, found, of)) => { td.cell.found { (count(*found)) " / " (count(*of)) } }
                }
            }
            @if let Some(layer) = &mutant.layer {
                td.number { (time(mutant.seconds)) }
                td.text {
                    (layer) @if let Some(promise) = &mutant.promise { ": " (promise) }
                    @if let Some(replay) = &mutant.replay { br; code { (replay) } }
                }
            } @else {
                td.number { "over " (time(mutant.seconds)) }
                td.text { strong.bad { "SURVIVED" } ": " (mutant.text) }
            }
        }
    }
}
