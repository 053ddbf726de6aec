//! The HTML page: one file with everything in it.
//!
//! `maud` escapes all text, because keys and values of a damaged store end up here. Only the style
//! sheet and the drawings are inserted verbatim, and neither contains text of the run report.

use maud::{DOCTYPE, Markup, PreEscaped, html};
use percolite::crashtest::CrashPoint;

use crate::layer_result::{Failure, LayerResult};
use crate::run_report::RunReport;

use super::coverage::{self, Coverage};
use super::format::{count, number, time, truncate};
use super::plot::{self, Plot};
use super::run_result::{RunResult, layer_word};
use crate::layer_result::float;

const STYLE: &str = include_str!("style.css");

/// The page.
pub fn page(run: &RunReport) -> anyhow::Result<String> {
    let result = RunResult::of(run);
    let coverage = Coverage::of(run);
    let layer = |name: &str| run.layers.iter().find(|layer| layer.layer == name);
    let (kill, sweep) = (layer("kill"), layer("log-damage"));
    let recovery = drawing(kill, plot::recovery(kill)?, &RECOVERY_KEY);
    let staircase = drawing(sweep, plot::staircase(sweep)?, &STAIRCASE_KEY);
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { "percolite-crashtest: " (result.word()) }
                style { (PreEscaped(STYLE)) }
            }
            body {
                header { (headline(run, &result)) }
                main {
                    (tiles(run, &coverage))
                    (failures(run))
                    (layers(&run.layers))
                    (gaps(run))
                    (section("Crash points", KILL_POINTS, coverage.map()))
                    div.pair {
                        (section("Recovery", RECOVERY, recovery))
                        (section("Log truncation", STAIRCASE, staircase))
                    }
                    (section("Mutants", MUTANTS, coverage::mutants(run)))
                    (throughput(&run.layers))
                    (other_metrics(&run.layers))
                }
            }
        }
    };
    Ok(page.into_string())
}

const KILL_POINTS: &str = "Visits and kills of each crash point, by environment. \
    Hover over a name for its invariant.";
const RECOVERY: &str = "The time to open a store after its process was killed.";
const RECOVERY_KEY: [(&str, &str); 2] = [("blue", "one recovery"), ("red", "median")];
const STAIRCASE: &str =
    "Transactions recovered after truncating the log at each offset; never fewer than were acknowledged.";
const STAIRCASE_KEY: [(&str, &str); 2] = [("blue", "recovered"), ("red", "acknowledged")];
const MUTANTS: &str = "Mutation tests: the time until each layer found a known mistake, and in how many \
    of its cases. Layers run from left to right until one has found it.";

fn headline(run: &RunReport, result: &RunResult) -> Markup {
    let RunReport { version, started: began, command, .. } = run;
    html! {
        h1.good[result.passed()].bad[!result.passed()] {
            span.word { (result.word()) } " " (result.summary())
        }
        dl {
            div { dt { "began" } dd { time datetime=(began) { (began) } } }
            div { dt { "took" } dd { (time(run.seconds)) } }
            div { dt { "version" } dd { (version) } }
            div { dt { "command" } dd { code { (command) } } }
        }
    }
}

fn tiles(run: &RunReport, coverage: &Coverage) -> Markup {
    let sum = |of: fn(&LayerResult) -> u64| count(run.layers.iter().map(of).sum());
    let failures: usize = run.layers.iter().map(|layer| layer.failures.len()).sum();
    let found = run.mutants.iter().filter(|mutant| mutant.found_by.is_some()).count();
    let tile = |value: String, name: &str, bad: bool| html! { div.tile.bad[bad] { dd { (value) } dt { (name) } } };
    html! {
        dl.tiles {
            (tile(count(failures as u64), "failures", failures > 0))
            (tile(sum(|layer| layer.cases), "cases", false))
            (tile(sum(|layer| layer.transactions), "transactions", false))
            (tile(sum(|layer| layer.acknowledged), "commits acknowledged", false))
            (tile(sum(|layer| layer.unacknowledged_commits), "unacknowledged commits found", false))
            (tile(format!("{} of {}", coverage.points_hit(), CrashPoint::ALL.len()), "points visited", false))
            @if run.mutants.is_empty() {
                (tile("not run".into(), "mutants", false))
            } @else {
                (tile(format!("{found} of {}", run.mutants.len()), "mutants found", found < run.mutants.len()))
            }
        }
    }
}

/// A section of the page; without content it says that the test was not run.
fn section(title: &str, about: &str, content: Option<Markup>) -> Markup {
    html! {
        section {
            h2 { (title) }
            p.about { (about) }
            @if let Some(content) = content { (content) } @else { p.absent { "Not run." } }
        }
    }
}

/// A drawing, or "No data." if the layer has run without the metrics for it.
fn drawing(layer: Option<&LayerResult>, plot: Option<Plot>, key: &[(&str, &str)]) -> Option<Markup> {
    let has_run = layer.is_some_and(|layer| layer.cases > 0);
    plot.map(|plot| figure(&plot, key)).or_else(|| has_run.then(|| html! { p.absent { "No data." } }))
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

fn failures(run: &RunReport) -> Markup {
    let all: Vec<_> = run.layers.iter().flat_map(|layer| layer.failures.iter().map(move |one| (layer, one))).collect();
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
            @for violation in &failure.violations {
                h3 { (layer) ": " (violation.invariant) }
                pre { (truncate(&violation.details)) }
            }
            @if failure.violations.is_empty() { h3 { (layer) } }
            p { "Replay:" }
            pre.replay { (failure.replay) }
            @if let Some(path) = &failure.saved_in { p { "Saved in " code { (path.display()) } } }
        }
    }
}

fn layers(layers: &[LayerResult]) -> Markup {
    let about = "Lost data is counted in each layer's own unit. Kills are those at the intended point.";
    let columns =
        ["cases", "transactions", "acknowledged", "unsynced lost", "unacked found", "kills", "failures", "time"];
    let row = |layer: &LayerResult| {
        html! {
            th scope="row" { (layer.layer) }
            @let LayerResult { cases, transactions, acknowledged, unsynced_lost, unacknowledged_commits, .. } = layer;
            @for value in [*cases, *transactions, *acknowledged, *unsynced_lost, *unacknowledged_commits, layer.kills()] {
                td.number { (count(value)) }
            }
            td.number { (count(layer.failures.len() as u64)) }
            td.number { (time(layer.seconds)) }
            td.text {
                strong.good[layer.passed() && layer.skipped.is_none()].bad[!layer.passed()] { (layer_word(layer)) }
                @for error in layer.skipped.iter().cloned().chain(layer.caveats()) { " (" (error) ")" }
            }
        }
    };
    let table = html! {
        div.wide { table {
            thead { tr {
                th scope="col" { "layer" }
                @for column in columns { th.number scope="col" { (column) } }
                th.text scope="col" { "result" }
            } }
            tbody { @for layer in layers { tr { (row(layer)) } } }
        } }
    };
    section("Layers", about, (!layers.is_empty()).then_some(table))
}

fn gaps(run: &RunReport) -> Markup {
    html! {
        @if !run.coverage_gaps.is_empty() {
            section {
                h2 { "Gaps" }
                p.about { "Crash points that were expected and not hit, or hit unexpectedly." }
                ul { @for gap in &run.coverage_gaps { li.bad { (gap) } } }
            }
        }
    }
}

fn throughput(layers: &[LayerResult]) -> Markup {
    let ran: Vec<_> = layers.iter().filter(|layer| layer.seconds > 0.0 && layer.cases > 0).collect();
    let table = html! {
        div.wide { table {
            thead { tr {
                th scope="col" { "layer" }
                th.number scope="col" { "cases per minute" }
                th.number scope="col" { "transactions per second" }
                th.number scope="col" { "time per case" }
            } }
            tbody { @for layer in &ran { tr {
                th scope="row" { (layer.layer) }
                td.number { (number(float(layer.cases) * 60.0 / layer.seconds)) }
                td.number { (number(float(layer.transactions) / layer.seconds)) }
                td.number { (time(layer.seconds / float(layer.cases))) }
            } } }
        } }
    };
    section("Throughput", "Wall-clock time on the machine of the run.", (!ran.is_empty()).then_some(table))
}

fn other_metrics(layers: &[LayerResult]) -> Markup {
    let drawn =
        [plot::RECOVERY_LOCKS, plot::RECOVERY_SECONDS, plot::LOG_OFFSET, plot::LOG_ACKNOWLEDGED, plot::LOG_RECOVERED];
    let all = layers.iter().flat_map(|layer| layer.metrics.iter().map(move |(name, values)| (layer, name, values)));
    let shown: Vec<_> = all.filter(|(_, name, values)| !drawn.contains(&name.as_str()) && !values.is_empty()).collect();
    let table = html! {
        div.wide { table {
            thead { tr {
                th scope="col" { "metric" }
                th.text scope="col" { "layer" }
                @for column in ["values", "min", "median", "max", "sum"] { th.number scope="col" { (column) } }
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
    html! { @if !shown.is_empty() { (section("Other metrics", "As each layer reports them.", Some(table))) } }
}
