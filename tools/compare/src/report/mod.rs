//! The report of a run, and its HTML page: one self-contained file.

mod plot;

use anyhow::Result;
use maud::{DOCTYPE, Markup, PreEscaped, html};
use serde::Serialize;

use crate::fairness::Requirement;
use crate::goals::GoalResult;
use crate::spec::Conditions;
use crate::statistics::Spread;
use crate::summary::{Summary, columns, row};

const STYLE: &str = include_str!("style.css");

/// The report of a run, for `--json` and the page.
#[derive(Serialize)]
pub struct RunReport {
    pub at: String,
    pub cores: usize,
    /// The load average of the last minute at the end of the run. If it is well above the number of
    /// clients, other processes were running.
    pub load: String,
    pub command: String,
    pub conditions: Conditions,
    pub rounds: u64,
    /// Empty unless the command was `goals`.
    pub goals: Vec<GoalResult>,
    /// Empty unless the command was `fairness`.
    pub requirements: Vec<Requirement>,
    pub summaries: Vec<Summary>,
}

impl RunReport {
    pub fn new(conditions: Conditions, rounds: u64, goals: Vec<GoalResult>, summaries: Vec<Summary>) -> Result<Self> {
        let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
        Ok(Self {
            at: jiff::Zoned::now().strftime("%F %T %Z").to_string(),
            cores: std::thread::available_parallelism()?.get(),
            load: load.split_whitespace().next().unwrap_or("unknown").to_owned(),
            command: std::env::args().skip(1).collect::<Vec<_>>().join(" "),
            conditions,
            rounds,
            goals,
            requirements: Vec::new(),
            summaries,
        })
    }
}

/// The HTML page.
pub fn page(report: &RunReport) -> Result<String> {
    let works = report
        .summaries
        .chunk_by(|one, next| one.setting.work == next.setting.work && one.setting.durable == next.setting.durable);
    let works = works.map(work).collect::<Result<Vec<Markup>>>()?;
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { "percolite-compare" }
                style { (PreEscaped(STYLE)) }
            }
            body {
                header { (headline(report)) }
                main {
                    @if !report.goals.is_empty() { (goals(&report.goals)) }
                    @if !report.requirements.is_empty() { (requirements(&report.requirements)) }
                    @for work in works { (work) }
                }
            }
        }
    };
    Ok(page.into_string())
}

fn headline(report: &RunReport) -> Markup {
    let Conditions { value_bytes, cache_bytes, write_buffer_bytes, memory_bytes, warm_up_millis, millis, .. } =
        report.conditions;
    let memory = format!(
        "cache {} MiB, write buffers {} MiB, limit {} MiB",
        cache_bytes >> 20,
        write_buffer_bytes >> 20,
        memory_bytes >> 20
    );
    let times = format!("{} rounds of {millis} ms, after a warm-up of {warm_up_millis} ms", report.rounds);
    html! {
        h1 { "percolite compared with other stores" }
        dl {
            div { dt { "when" } dd { (report.at) } }
            div { dt { "cores" } dd { (report.cores) } }
            div { dt { "load average at the end" } dd { (report.load) } }
            div { dt { "method" } dd { (times) } }
            div { dt { "values" } dd { (value_bytes) " bytes" } }
            div { dt { "memory per store" } dd { (memory) } }
            div { dt { "command" } dd { code { (report.command) } } }
        }
        p.about {
            "Ratios are medians of the ratios within rounds, with the minimum and the maximum. Latencies, rates and bytes \
             are medians of the rounds; memory is the maximum resident memory, including mapped files."
        }
    }
}

fn met(is_met: bool) -> Markup {
    html! { td.text.good[is_met].bad[!is_met] { (if is_met { "yes" } else { "no" }) } }
}

fn or_none(spread: Option<Spread>) -> String {
    spread.map_or_else(|| "-".to_owned(), |spread| spread.to_string())
}

fn requirements(requirements: &[Requirement]) -> Markup {
    let missed = requirements.iter().filter(|one| one.is_missed_by_percolite()).count();
    html! {
        section {
            h2 { "Requirements" }
            p.about { (missed) " missed by percolite." }
            div.wide { table {
                thead { tr {
                    th scope="col" { "requirement" }
                    th.text scope="col" { "store" }
                    th.number scope="col" { "value" }
                    th.text scope="col" { "bar" }
                    th.text scope="col" { "met" }
                } }
                tbody { @for one in requirements { tr {
                    th scope="row" { (one.what) }
                    td.text { (one.store.name()) @if let Some(error) = &one.failed { p.bad { "failed: " (error) } } }
                    td.number { (or_none(one.value)) }
                    td.text { (one.bar) }
                    (met(one.met))
                } } }
            } }
        }
    }
}

fn goals(goals: &[GoalResult]) -> Markup {
    let missed = goals.iter().filter(|goal| !goal.required_met).count();
    html! {
        section {
            h2 { "Goals" }
            p.about { (missed) " of " (goals.len()) " required goals missed." }
            div.wide { table {
                thead { tr {
                    th scope="col" { "goal" }
                    th.text scope="col" { "against" }
                    th.number scope="col" { "ratio" }
                    th.number scope="col" { "required" }
                    th.text scope="col" { "met" }
                    th.number scope="col" { "stretch" }
                    th.text scope="col" { "met" }
                } }
                tbody { @for goal in goals { tr {
                    th scope="row" { (goal.work) }
                    td.text { (goal.against) @for failure in &goal.failures { p.bad { "failed: " (failure) } } }
                    td.number { (or_none(goal.ratio)) }
                    td.number { (goal.required) }
                    (met(goal.required_met))
                    td.number { (goal.stretch) }
                    (met(goal.stretch_met))
                } } }
            } }
        }
    }
}

/// One workload: a chart over the numbers of clients if there are several, and a table for each
/// number.
fn work(summaries: &[Summary]) -> Result<Markup> {
    let Some(first) = summaries.first() else { return Ok(html! {}) };
    let drawing = plot::rates(summaries)?;
    let title = first.title.split(", 1 client").next().unwrap_or(&first.title);
    let title = title.rsplit_once(", ").filter(|(_, end)| end.ends_with("clients")).map_or(title, |(before, _)| before);
    let settings = summaries.chunk_by(|one, next| one.setting == next.setting);
    Ok(html! {
        section {
            h2 { (title) }
            @if let Some(svg) = drawing {
                value {
                    p.legend {
                        @for (store, color) in plot::legend(summaries) {
                            span.key style={ "background:" (color) } {} " " (store) " "
                        }
                    }
                    div.wide { div.drawing role="img" aria-label={ (first.setting.work.unit()) " per second by number of clients" } { (PreEscaped(svg)) } }
                }
            }
            @for group in settings { (setting(group)) }
        }
    })
}

fn setting(group: &[Summary]) -> Markup {
    let Some(first) = group.first() else { return html! {} };
    let best = group.iter().filter_map(|one| Some(one.rate?.median)).fold(f64::MIN_POSITIVE, f64::max);
    let columns = columns(group);
    let percent = |rate: f64| format!("width:{:.1}%", rate / best * 100.0);
    html! {
        h3 { (first.setting.clients) @if first.setting.clients == 1 { " client" } @else { " clients" } ", " (first.setting.work.unit()) " per second" }
        div.wide { table {
            thead { tr {
                th scope="col" { "store" }
                th.bars scope="col" {}
                @for column in columns { th.number scope="col" { (column) } }
            } }
            tbody { @for one in group { tr {
                th scope="row" { (one.store.name()) }
                @if let Some(error) = &one.failed {
                    td.text.bad colspan=(columns.len() + 1) { "failed: " (error) }
                } @else {
                    td.bars { @if let Some(rate) = one.rate {
                        div.bar style={ (percent(rate.median)) ";background:" (plot::color(one.store)) } {}
                    } }
                    @for value in row(one).iter().take(columns.len()) { td.number { (value) } }
                }
            } } }
        } }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures;
    use crate::peer::StoreKind;
    use crate::spec::{Outcome, ResultLine};
    use crate::statistics::{Entry, Outcomes};
    use crate::summary::summarize;

    #[test]
    fn a_page_has_every_store_and_failure() {
        let mut outcomes = Outcomes::default();
        let mut entries = Vec::new();
        for clients in [1, 64] {
            for (place, store) in StoreKind::TRANSACTIONAL.into_iter().enumerate() {
                let mut one = fixtures::entry(store);
                one.setting.clients = clients;
                if store == StoreKind::Sqlite {
                    let failed = Outcome::Failed("<wrong sum>".into());
                    outcomes.add(ResultLine { spec: one.spec(&fixtures::conditions(), 0), outcome: failed });
                } else {
                    outcomes.add(fixtures::line(&one, 0, 100.0 * (place as f64 + 1.0)));
                }
                entries.push(one);
            }
        }
        let entries: Vec<Entry> = entries;
        let summaries = summarize(&entries, &outcomes, &fixtures::conditions(), 1);
        let goals = crate::goals::check(&crate::goals::table(), &outcomes, &fixtures::conditions(), 1);
        let mut report = RunReport::new(fixtures::conditions(), 1, goals, summaries).unwrap();
        let bar = crate::fairness::Bar::AtMost(3.0);
        report.requirements = vec![Requirement::new("attempts", StoreKind::Percolite, bar, vec![4.0], None)];
        let page = page(&report).unwrap();
        for store in StoreKind::TRANSACTIONAL {
            assert!(page.contains(store.name()), "{store:?}");
        }
        assert!(page.contains("&lt;wrong sum&gt;") && page.contains("<svg"));
        assert!(page.contains("1 missed by percolite.") && page.contains("at most 3"));
    }
}
