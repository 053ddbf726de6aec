//! The page: one file of HTML with everything in it.
//!
//! Text goes through `maud`, which escapes it: keys and values of a broken store end up here. Only two things are written
//! as they are, the style sheet and the drawings, and neither has a word of the evidence in it.

use maud::{DOCTYPE, Markup, PreEscaped, html};
use percolite::crashtest::CrashPoint;

use crate::evidence::Evidence;
use crate::outcome::{Failure, Outcome};

use super::grid::{self, Coverage};
use super::plot::{self, Plot};
use super::verdict::{Verdict, word_of};
use super::words::{count, number, story, time};
use crate::outcome::float;

const STYLE: &str = include_str!("style.css");

/// The page.
pub fn page(evidence: &Evidence) -> anyhow::Result<String> {
    let verdict = Verdict::of(evidence);
    let coverage = Coverage::of(evidence);
    let layer = |name: &str| evidence.layers.iter().find(|layer| layer.layer == name);
    let (kill, sweep) = (layer("kill"), layer("walsweep"));
    let recovery = drawing(kill, plot::recovery(kill)?, &RECOVERY_KEY);
    let staircase = drawing(sweep, plot::staircase(sweep)?, &STAIRCASE_KEY);
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { "percolite-crashtest: " (verdict.word()) }
                style { (PreEscaped(STYLE)) }
            }
            body {
                header { (headline(evidence, &verdict)) }
                main {
                    (tiles(evidence, &coverage))
                    (failures(evidence))
                    (layers(&evidence.layers))
                    (gaps(evidence))
                    (section("Kill points", KILL_POINTS, coverage.map()))
                    div.pair {
                        (section("Recovery", RECOVERY, recovery))
                        (section("Log sweep", STAIRCASE, staircase))
                    }
                    (section("Mutants", MUTANTS, grid::mutants(evidence)))
                    (throughput(&evidence.layers))
                    (other_figures(&evidence.layers))
                }
            }
        }
    };
    Ok(page.into_string())
}

const KILL_POINTS: &str = "How often each point of the code was passed, by place, and how often a process died at it. \
    Beside it, or on pointing at its name, is the promise that holds there.";
const RECOVERY: &str = "How long a store took to open after its process was killed.";
const RECOVERY_KEY: [(&str, &str); 2] = [("blue", "one recovery"), ("red", "median")];
const STAIRCASE: &str = "What is there when the log is cut; it should never be less than was acknowledged.";
const STAIRCASE_KEY: [(&str, &str); 2] = [("blue", "recovered after the cut"), ("red", "acknowledged below it")];
const MUTANTS: &str = "Known mistakes, each switched on alone: how long each layer took to find it, and in how many \
    of its cases. Layers are tried from the left until one has found it, or all of them.";

fn headline(evidence: &Evidence, verdict: &Verdict) -> Markup {
    let Evidence { version, began, command, .. } = evidence;
    html! {
        h1.good[verdict.held()].bad[!verdict.held()] {
            span.word { (verdict.word()) } " " (verdict.sentence())
        }
        dl {
            div { dt { "began" } dd { time datetime=(began) { (began) } } }
            div { dt { "took" } dd { (time(evidence.seconds)) } }
            div { dt { "version" } dd { (version) } }
            div { dt { "command" } dd { code { (command) } } }
        }
    }
}

fn tiles(evidence: &Evidence, coverage: &Coverage) -> Markup {
    let sum = |of: fn(&Outcome) -> u64| count(evidence.layers.iter().map(of).sum());
    let failures: usize = evidence.layers.iter().map(|layer| layer.failures.len()).sum();
    let killed = evidence.mutants.iter().filter(|mutant| mutant.layer.is_some()).count();
    let tile = |value: String, name: &str, bad: bool| html! { div.tile.bad[bad] { dd { (value) } dt { (name) } } };
    html! {
        dl.tiles {
            (tile(count(failures as u64), "failures", failures > 0))
            (tile(sum(|layer| layer.cases), "cases", false))
            (tile(sum(|layer| layer.transactions), "transactions", false))
            (tile(sum(|layer| layer.acknowledged), "commits acknowledged", false))
            (tile(sum(|layer| layer.unanswered), "unanswered commits found", false))
            (tile(format!("{} of {}", coverage.points_hit(), CrashPoint::ALL.len()), "points visited", false))
            @if evidence.mutants.is_empty() {
                (tile("not run".into(), "mutants", false))
            } @else {
                (tile(format!("{killed} of {}", evidence.mutants.len()), "mutants killed", killed < evidence.mutants.len()))
            }
        }
    }
}

/// A part of the page, which says so if it was not run.
fn section(title: &str, about: &str, content: Option<Markup>) -> Markup {
    html! {
        section {
            h2 { (title) }
            p.about { (about) }
            @if let Some(content) = content { (content) } @else { p.absent { "This was not run." } }
        }
    }
}

/// A layer may run without the figures that are drawn.
fn drawing(layer: Option<&Outcome>, plot: Option<Plot>, key: &[(&str, &str)]) -> Option<Markup> {
    let has_run = layer.is_some_and(|layer| layer.cases > 0);
    plot.map(|plot| figure(&plot, key)).or_else(|| has_run.then(|| html! { p.absent { "This was not measured." } }))
}

fn figure(plot: &Plot, key: &[(&str, &str)]) -> Markup {
    html! {
        figure {
            p.legend { @for (colour, name) in key { span.line.{ (colour) } {} " " (name) " " } }
            div.wide { div.drawing role="img" aria-label=(plot.text) { (PreEscaped(&plot.svg)) } }
            figcaption { (plot.text) }
        }
    }
}

fn failures(evidence: &Evidence) -> Markup {
    let all: Vec<_> =
        evidence.layers.iter().flat_map(|layer| layer.failures.iter().map(move |one| (layer, one))).collect();
    html! {
        section {
            h2 { "Failures" }
            @if all.is_empty() { p { "None." } }
            @for (layer, failure) in all { (one_failure(&layer.layer, failure)) }
        }
    }
}

fn one_failure(layer: &str, failure: &Failure) -> Markup {
    html! {
        article.failure {
            @for broken in &failure.broken {
                h3 { (layer) ": " (broken.promise) }
                pre { (story(&broken.how)) }
            }
            @if failure.broken.is_empty() { h3 { (layer) } }
            p { "Replay:" }
            pre.replay { (failure.replay) }
            @if let Some(kept) = &failure.kept { p { "Kept in " code { (kept.display()) } } }
        }
    }
}

fn layers(layers: &[Outcome]) -> Markup {
    let about = "What was lost is counted in each layer's own unit; deaths are kills at a point, where it was to be.";
    let columns =
        ["cases", "transactions", "acknowledged", "unsynced lost", "unanswered found", "deaths", "failures", "time"];
    let row = |layer: &Outcome| {
        html! {
            th scope="row" { (layer.layer) }
            @let Outcome { cases, transactions, acknowledged, lost, unanswered, .. } = layer;
            @for value in [*cases, *transactions, *acknowledged, *lost, *unanswered, layer.died()] {
                td.number { (count(value)) }
            }
            td.number { (count(layer.failures.len() as u64)) }
            td.number { (time(layer.seconds)) }
            td.text {
                strong.good[layer.is_good() && layer.skipped.is_none()].bad[!layer.is_good()] { (word_of(layer)) }
                @for why in layer.skipped.iter().cloned().chain(layer.reservations()) { " (" (why) ")" }
            }
        }
    };
    let table = html! {
        div.wide { table {
            thead { tr {
                th scope="col" { "layer" }
                @for column in columns { th.number scope="col" { (column) } }
                th.text scope="col" { "verdict" }
            } }
            tbody { @for layer in layers { tr { (row(layer)) } } }
        } }
    };
    section("Layers", about, (!layers.is_empty()).then_some(table))
}

fn gaps(evidence: &Evidence) -> Markup {
    html! {
        @if !evidence.gaps.is_empty() {
            section {
                h2 { "Gaps" }
                p.about { "Where the table of points and this run disagree." }
                ul { @for gap in &evidence.gaps { li.bad { (gap) } } }
            }
        }
    }
}

fn throughput(layers: &[Outcome]) -> Markup {
    let ran: Vec<_> = layers.iter().filter(|layer| layer.seconds > 0.0 && layer.cases > 0).collect();
    let table = html! {
        div.wide { table {
            thead { tr {
                th scope="col" { "layer" }
                th.number scope="col" { "cases a minute" }
                th.number scope="col" { "transactions a second" }
                th.number scope="col" { "time a case" }
            } }
            tbody { @for layer in &ran { tr {
                th scope="row" { (layer.layer) }
                td.number { (number(float(layer.cases) * 60.0 / layer.seconds)) }
                td.number { (number(float(layer.transactions) / layer.seconds)) }
                td.number { (time(layer.seconds / float(layer.cases))) }
            } } }
        } }
    };
    section("Throughput", "By the clock, on the machine that ran it.", (!ran.is_empty()).then_some(table))
}

fn other_figures(layers: &[Outcome]) -> Markup {
    let drawn = [
        plot::RECOVERY_LOCKS,
        plot::RECOVERY_SECONDS,
        plot::SWEEP_OFFSET,
        plot::SWEEP_ACKNOWLEDGED,
        plot::SWEEP_RECOVERED,
    ];
    let all = layers.iter().flat_map(|layer| layer.figures.iter().map(move |(name, values)| (layer, name, values)));
    let shown: Vec<_> = all.filter(|(_, name, values)| !drawn.contains(&name.as_str()) && !values.is_empty()).collect();
    let table = html! {
        div.wide { table {
            thead { tr {
                th scope="col" { "figure" }
                th.text scope="col" { "layer" }
                @for column in ["values", "least", "median", "greatest", "sum"] { th.number scope="col" { (column) } }
            } }
            tbody { @for (layer, name, values) in &shown { tr {
                th scope="row" { (name) }
                td.text { (layer.layer) }
                td.number { (count(values.len() as u64)) }
                td.number { (number(values.iter().copied().fold(f64::INFINITY, f64::min))) }
                td.number { (number(plot::median(values))) }
                td.number { (number(values.iter().copied().fold(f64::NEG_INFINITY, f64::max))) }
                td.number { (number(values.iter().sum())) }
            } } }
        } }
    };
    html! { @if !shown.is_empty() { (section("Other figures", "As each layer reports them.", Some(table))) } }
}
