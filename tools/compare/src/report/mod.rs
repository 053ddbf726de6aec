//! The evidence of a run, and the page that shows it: one file of HTML with everything in it.

mod plot;

use anyhow::Result;
use maud::{DOCTYPE, Markup, PreEscaped, html};
use serde::Serialize;

use crate::compare::{Summary, columns, figures};
use crate::fairness::Requirement;
use crate::goals::Judged;
use crate::spec::Conditions;
use crate::statistics::Spread;

const STYLE: &str = include_str!("style.css");

/// All that a run came to, as `--json` has it.
#[derive(Serialize)]
pub struct Evidence {
    pub at: String,
    pub cores: usize,
    /// The load of the last minute when the run was over: it was not alone if that is well above its clients.
    pub load: String,
    pub command: String,
    pub conditions: Conditions,
    pub rounds: u64,
    /// Empty unless the goals were run.
    pub goals: Vec<Judged>,
    /// Empty unless fairness was.
    pub requirements: Vec<Requirement>,
    pub summaries: Vec<Summary>,
}

impl Evidence {
    pub fn new(conditions: Conditions, rounds: u64, goals: Vec<Judged>, summaries: Vec<Summary>) -> Result<Self> {
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

/// The page.
pub fn page(evidence: &Evidence) -> Result<String> {
    let works = evidence
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
                header { (headline(evidence)) }
                main {
                    @if !evidence.goals.is_empty() { (goals(&evidence.goals)) }
                    @if !evidence.requirements.is_empty() { (requirements(&evidence.requirements)) }
                    @for work in works { (work) }
                }
            }
        }
    };
    Ok(page.into_string())
}

fn headline(evidence: &Evidence) -> Markup {
    let Conditions { value_bytes, cache_bytes, write_buffer_bytes, memory_bytes, warm_up_millis, millis, .. } =
        evidence.conditions;
    let memory = format!(
        "{} MiB for reading and {} MiB for writing, {} MiB at most",
        cache_bytes >> 20,
        write_buffer_bytes >> 20,
        memory_bytes >> 20
    );
    let times = format!("{} rounds of {millis} ms, behind {warm_up_millis} ms to warm up", evidence.rounds);
    html! {
        h1 { "percolite, compared" }
        dl {
            div { dt { "when" } dd { (evidence.at) } }
            div { dt { "cores" } dd { (evidence.cores) } }
            div { dt { "load at the end" } dd { (evidence.load) } }
            div { dt { "measured" } dd { (times) } }
            div { dt { "values" } dd { (value_bytes) " bytes" } }
            div { dt { "memory of each" } dd { (memory) } }
            div { dt { "command" } dd { code { (evidence.command) } } }
        }
        p.about {
            "Ratios are medians of those within each round, with the least and the greatest. Latencies, rates and bytes are medians of the rounds; \
             memory is the most that was seen, mapped files included."
        }
    }
}

fn met(is_met: bool) -> Markup {
    html! { td.text.good[is_met].bad[!is_met] { (if is_met { "yes" } else { "no" }) } }
}

fn or_none(spread: Option<Spread>) -> String {
    spread.map_or_else(|| "none".to_owned(), |spread| spread.to_string())
}

fn requirements(requirements: &[Requirement]) -> Markup {
    let missed = requirements.iter().filter(|one| one.is_missed_by_percolite()).count();
    html! {
        section {
            h2 { "Requirements" }
            p.about { (missed) " missed by percolite." }
            div.wide { table {
                thead { tr {
                    th scope="col" { "what" }
                    th.text scope="col" { "store" }
                    th.number scope="col" { "figure" }
                    th.text scope="col" { "required" }
                    th.text scope="col" { "met" }
                } }
                tbody { @for one in requirements { tr {
                    th scope="row" { (one.what) }
                    td.text { (one.store.name()) @if let Some(why) = &one.failed { p.bad { "failed: " (why) } } }
                    td.number { (or_none(one.figure)) }
                    td.text { (one.bar) }
                    (met(one.met))
                } } }
            } }
        }
    }
}

fn goals(goals: &[Judged]) -> Markup {
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

/// One workload: a drawing over the numbers of clients if there are several, and a table for each.
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
                figure {
                    p.legend {
                        @for (store, colour) in plot::key(summaries) {
                            span.key style={ "background:" (colour) } {} " " (store) " "
                        }
                    }
                    div.wide { div.drawing role="img" aria-label={ (first.setting.work.unit()) " a second by number of clients" } { (PreEscaped(svg)) } }
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
        h3 { (first.setting.clients) @if first.setting.clients == 1 { " client" } @else { " clients" } ", " (first.setting.work.unit()) " a second" }
        div.wide { table {
            thead { tr {
                th scope="col" { "store" }
                th.bars scope="col" {}
                @for column in columns { th.number scope="col" { (column) } }
            } }
            tbody { @for one in group { tr {
                th scope="row" { (one.store.name()) }
                @if let Some(why) = &one.failed {
                    td.text.bad colspan=(columns.len() + 1) { "failed: " (why) }
                } @else {
                    td.bars { @if let Some(rate) = one.rate {
                        div.bar style={ (percent(rate.median)) ";background:" (plot::colour(one.store)) } {}
                    } }
                    @for figure in figures(one).iter().take(columns.len()) { td.number { (figure) } }
                }
            } } }
        } }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::summarize;
    use crate::peer::Kind;
    use crate::spec::{Line, Outcome};
    use crate::statistics::{Contestant, Outcomes};
    use crate::testing;

    #[test]
    fn a_page_has_every_store_and_says_who_failed() {
        let mut outcomes = Outcomes::default();
        let mut contestants = Vec::new();
        for clients in [1, 64] {
            for (place, store) in Kind::TRANSACTIONAL.into_iter().enumerate() {
                let mut one = testing::contestant(store);
                one.setting.clients = clients;
                if store == Kind::Sqlite {
                    let failed = Outcome::Failed("<the sum is wrong>".into());
                    outcomes.add(Line { spec: one.spec(&testing::conditions(), 0), outcome: failed });
                } else {
                    outcomes.add(testing::line(&one, 0, 100.0 * (place as f64 + 1.0)));
                }
                contestants.push(one);
            }
        }
        let contestants: Vec<Contestant> = contestants;
        let summaries = summarize(&contestants, &outcomes, &testing::conditions(), 1);
        let judged = crate::goals::judge(&crate::goals::table(), &outcomes, &testing::conditions(), 1);
        let mut evidence = Evidence::new(testing::conditions(), 1, judged, summaries).unwrap();
        let bar = crate::fairness::Bar::AtMost(3.0);
        evidence.requirements = vec![Requirement::new("attempts", Kind::Percolite, bar, vec![4.0], None)];
        let page = page(&evidence).unwrap();
        for store in Kind::TRANSACTIONAL {
            assert!(page.contains(store.name()), "{store:?}");
        }
        assert!(page.contains("&lt;the sum is wrong&gt;") && page.contains("<svg"));
        assert!(page.contains("1 missed by percolite.") && page.contains("at most 3"));
    }
}
