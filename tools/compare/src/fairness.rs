//! `fairness`: stores under far more clients than rows.
//!
//! From 1 to 256 clients make transfers between ten rows, and two bystanders make transfers between
//! rows of their own. There are four requirements: 256 clients commit almost as many transfers per
//! second as the best number of clients does, no transaction needs many attempts, no client
//! starves, and the bystanders are hardly slower.
//!
//! The measurements run in [`crate::rounds`], so ratios are those within a round. The command also
//! runs [`crate::stalls`], another kind of overload.

use anyhow::{Result, ensure};
use comfy_table::{Cell, CellAlignment, Color, Table};
use serde::Serialize;

use crate::args::CommonArgs;
use crate::format::{count, time};
use crate::generator::Skew;
use crate::peer::StoreKind;
use crate::rounds::{self, Plan, ResultsFile};
use crate::spec::{Conditions, Metrics, Setting};
use crate::statistics::{Entry, Outcomes, Spread};
use crate::workload::{Bystanders, Transfers, Workload};

const CLIENTS: [u64; 9] = [1, 2, 4, 8, 16, 32, 64, 128, MAX_CLIENTS];
const MAX_CLIENTS: u64 = 256;
const BYSTANDERS: u64 = 2;

const MIN_GOODPUT: Bar = Bar::AtLeast(0.8);
const MAX_ATTEMPTS: Bar = Bar::AtMost(3.0);
const MIN_SLOWEST_SHARE: Bar = Bar::AtLeast(0.3);
const MAX_BYSTANDER_SLOWDOWN: Bar = Bar::AtMost(2.0);

/// The bound that a value has to meet.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Bar {
    AtLeast(f64),
    AtMost(f64),
}

impl Bar {
    fn is_met(self, value: f64) -> bool {
        match self {
            Self::AtLeast(bar) => value >= bar,
            Self::AtMost(bar) => value <= bar,
        }
    }
}

impl std::fmt::Display for Bar {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        match self {
            Self::AtLeast(bar) => write!(f, "at least {bar}"),
            Self::AtMost(bar) => write!(f, "at most {bar}"),
        }
    }
}

/// One requirement and its result.
#[derive(Serialize)]
pub struct Requirement {
    pub what: String,
    pub store: StoreKind,
    pub bar: Bar,
    /// Median and range of the rounds that have a value; `None` if no round has one.
    pub value: Option<Spread>,
    pub met: bool,
    /// The first failure of the store.
    pub failed: Option<String>,
}

impl Requirement {
    /// The requirement is met if the median of the values meets the bar and the store has not
    /// failed in any round.
    pub fn new(what: &str, store: StoreKind, bar: Bar, values: Vec<f64>, failed: Option<String>) -> Self {
        let value = Spread::of(values);
        let met = failed.is_none() && value.is_some_and(|value| bar.is_met(value.median));
        Self { what: what.to_owned(), store, bar, value, met, failed }
    }

    /// Only percolite must meet the requirements; for other stores they are only shown.
    pub fn is_missed_by_percolite(&self) -> bool {
        self.store == StoreKind::Percolite && !self.met
    }
}

/// The metrics of one store at one setting.
#[derive(Serialize)]
pub struct StoreLine {
    pub title: String,
    pub setting: Setting,
    pub store: StoreKind,
    /// Transfers per second.
    pub rate: Option<Spread>,
    pub attempts_p50: Option<Spread>,
    pub attempts_p99: Option<Spread>,
    pub attempts_max: Option<Spread>,
    /// The operations of the slowest client, divided by the mean.
    pub slowest_share: Option<Spread>,
    /// Latencies in microseconds.
    pub p50: Option<Spread>,
    pub p95: Option<Spread>,
    pub p99: Option<Spread>,
    pub failed: Option<String>,
}

/// The results of the command.
#[derive(Serialize)]
pub struct FairnessResults {
    pub requirements: Vec<Requirement>,
    pub lines: Vec<StoreLine>,
}

fn hot(store: StoreKind, clients: u64) -> Entry {
    let work = Workload::Transfers(Transfers { accounts: 10, rows_per_transfer: 2, skew: Skew::Uniform });
    Entry { setting: Setting { work, clients, durable: true }, store }
}

fn bystanders(store: StoreKind, contending: u64) -> Entry {
    let work = Workload::Bystanders(Bystanders { contending });
    Entry { setting: Setting { work, clients: BYSTANDERS, durable: true }, store }
}

/// All measurements; those of one setting are adjacent.
fn entries(stores: &[StoreKind]) -> Vec<Entry> {
    let hot_rows = CLIENTS.iter().flat_map(|&clients| stores.iter().map(move |&store| hot(store, clients)));
    let contended = [0, MAX_CLIENTS]
        .into_iter()
        .flat_map(|contending| stores.iter().map(move |&store| bystanders(store, contending)));
    hot_rows.chain(contended).collect()
}

fn check(store: StoreKind, outcomes: &Outcomes, conditions: &Conditions, rounds: u64) -> Vec<Requirement> {
    let overloaded = hot(store, MAX_CLIENTS);
    let (alone, contended) = (bystanders(store, 0), bystanders(store, MAX_CLIENTS));
    let failed = |one: &Entry| outcomes.failure(one, conditions, rounds).map(str::to_owned);
    let of_overloaded = |value: fn(&Metrics) -> Option<f64>| {
        outcomes.metrics(&overloaded, conditions, rounds).into_iter().filter_map(value).collect()
    };
    let all = CLIENTS.map(|clients| hot(store, clients));
    let p95 = |one: &Entry, round| Some(outcomes.get(one, conditions, round)?.metrics()?.p95);
    let waits = (0..rounds).filter_map(|round| Some(p95(&contended, round)? / p95(&alone, round)?)).collect();
    vec![
        Requirement::new(
            "commits of 256 clients / best number of clients",
            store,
            MIN_GOODPUT,
            outcomes.ratios(&overloaded, &all, conditions, rounds),
            all.iter().find_map(failed),
        ),
        Requirement::new(
            "attempts p99, 256 clients",
            store,
            MAX_ATTEMPTS,
            of_overloaded(|one| one.attempts.map(|attempts| as_float(attempts.p99))),
            failed(&overloaded),
        ),
        Requirement::new(
            "slowest of 256 clients / mean",
            store,
            MIN_SLOWEST_SHARE,
            of_overloaded(Metrics::slowest_share),
            failed(&overloaded),
        ),
        Requirement::new(
            "bystanders' p95 beside 256 clients / alone",
            store,
            MAX_BYSTANDER_SLOWDOWN,
            waits,
            failed(&contended).or_else(|| failed(&alone)),
        ),
    ]
}

#[allow(clippy::cast_precision_loss, reason = "attempts of one transaction")]
fn as_float(attempts: u64) -> f64 {
    attempts as f64
}

fn line(entry: &Entry, outcomes: &Outcomes, conditions: &Conditions, rounds: u64) -> StoreLine {
    let measured = outcomes.metrics(entry, conditions, rounds);
    let spread =
        |value: fn(&Metrics) -> Option<f64>| Spread::of(measured.iter().filter_map(|one| value(one)).collect());
    StoreLine {
        title: entry.setting.to_string(),
        setting: entry.setting.clone(),
        store: entry.store,
        rate: spread(|one| Some(one.rate)),
        attempts_p50: spread(|one| one.attempts.map(|attempts| as_float(attempts.p50))),
        attempts_p99: spread(|one| one.attempts.map(|attempts| as_float(attempts.p99))),
        attempts_max: spread(|one| one.attempts.map(|attempts| as_float(attempts.max))),
        slowest_share: spread(Metrics::slowest_share),
        p50: spread(|one| Some(one.p50)),
        p95: spread(|one| Some(one.p95)),
        p99: spread(|one| Some(one.p99)),
        failed: outcomes.failure(entry, conditions, rounds).map(str::to_owned),
    }
}

/// Measures and checks. `None` if the run was interrupted.
pub fn run(
    stores: &[StoreKind],
    args: &CommonArgs,
    results: &mut ResultsFile,
) -> Result<Option<(Plan, FairnessResults)>> {
    ensure!(!stores.contains(&StoreKind::Rocks), "{} has no transactions", StoreKind::Rocks.name());
    let plan = Plan { entries: entries(stores), conditions: args.conditions(), rounds: args.rounds() };
    let scratch = args.scratch_dir()?;
    if !rounds::run(&plan, &scratch, results)? {
        return Ok(None);
    }
    let (outcomes, conditions, rounds) = (&results.outcomes, &plan.conditions, plan.rounds);
    let fairness = FairnessResults {
        requirements: stores.iter().flat_map(|&store| check(store, outcomes, conditions, rounds)).collect(),
        lines: plan.entries.iter().map(|one| line(one, outcomes, conditions, rounds)).collect(),
    };
    Ok(Some((plan, fairness)))
}

/// The table of the measurements.
pub fn show_lines(lines: &[StoreLine]) -> Table {
    let mut table = new_table(&[
        "work",
        "store",
        "commits/s (min..max)",
        "attempts p50/p99/max",
        "slowest/mean",
        "p50",
        "p95",
        "p99",
    ]);
    for line in lines {
        let mut cells = vec![line.title.clone(), line.store.name().to_owned()];
        let median =
            |value: Option<Spread>, show: fn(f64) -> String| value.map_or_else(String::new, |one| show(one.median));
        match &line.failed {
            Some(error) => cells.push(format!("FAILED: {error}")),
            None => cells.extend([
                line.rate.map_or_else(String::new, |rate| {
                    format!("{} ({}..{})", count(rate.median), count(rate.min), count(rate.max))
                }),
                format!(
                    "{}/{}/{}",
                    median(line.attempts_p50, |attempts| attempts.to_string()),
                    median(line.attempts_p99, |attempts| attempts.to_string()),
                    line.attempts_max.map_or_else(String::new, |most| most.max.to_string()),
                ),
                line.slowest_share.map_or_else(String::new, |share| share.to_string()),
                median(line.p50, time),
                median(line.p95, time),
                median(line.p99, time),
            ]),
        }
        table.add_row(cells);
    }
    for column in table.column_iter_mut().skip(2) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

/// The table of the requirements.
pub fn show(requirements: &[Requirement]) -> Table {
    let mut table = new_table(&["required", "store", "value (min..max)", "bar", "met"]);
    for one in requirements {
        let mut value = one.value.map_or_else(|| "-".to_owned(), |value| value.to_string());
        if let Some(error) = &one.failed {
            value.push_str("\nfailed: ");
            value.push_str(error);
        }
        let met = if one.met { Cell::new("yes").fg(Color::Green) } else { Cell::new("NO").fg(Color::Red) };
        table.add_row([Cell::new(&one.what), Cell::new(one.store.name()), Cell::new(value), Cell::new(one.bar), met]);
    }
    table
}

fn new_table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_preset(comfy_table::presets::UTF8_HORIZONTAL_ONLY);
    table.set_header(header.iter().copied());
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures;
    use crate::spec::{Attempts, Outcome, ResultLine};

    fn add(outcomes: &mut Outcomes, entry: &Entry, outcome: Outcome) {
        outcomes.add(ResultLine { spec: entry.spec(&fixtures::conditions(), 0), outcome });
    }

    /// Which requirements are met if 256 clients have the metrics `overloaded`, and the bystanders
    /// beside them a p95 of `bystanding` microseconds. Any smaller number of clients makes 100
    /// commits per second, and bystanders alone have a p95 of 1 ms.
    fn met(overloaded: Metrics, bystanding: f64) -> Vec<bool> {
        let mut outcomes = Outcomes::default();
        let store = StoreKind::Percolite;
        for clients in CLIENTS.into_iter().filter(|&clients| clients != MAX_CLIENTS) {
            outcomes.add(fixtures::line(&hot(store, clients), 0, 100.0));
        }
        add(&mut outcomes, &hot(store, MAX_CLIENTS), Outcome::Measured(overloaded));
        for (contending, p95) in [(0, 1000.0), (MAX_CLIENTS, bystanding)] {
            let measured = Metrics { p95, ..Metrics::default() };
            add(&mut outcomes, &bystanders(store, contending), Outcome::Measured(measured));
        }
        check(store, &outcomes, &fixtures::conditions(), 1).iter().map(|one| one.met).collect()
    }

    fn overloaded(rate: f64, p99: u64, by_client: Vec<u64>) -> Metrics {
        let attempts = Some(Attempts { p50: 1, p99, max: 99 });
        Metrics { rate, attempts, by_client, ..Metrics::default() }
    }

    #[test]
    fn requirements_are_met_up_to_their_bar() {
        assert_eq!(met(overloaded(80.0, 3, vec![30, 170]), 2000.0), [true; 4]);
        assert_eq!(met(overloaded(79.9, 3, vec![30, 170]), 2000.0), [false, true, true, true]);
        assert_eq!(met(overloaded(80.0, 4, vec![30, 170]), 2000.0), [true, false, true, true]);
        assert_eq!(met(overloaded(80.0, 3, vec![29, 171]), 2000.0), [true, true, false, true]);
        assert_eq!(met(overloaded(80.0, 3, vec![30, 170]), 2000.1), [true, true, true, false]);
    }

    #[test]
    fn a_starved_client_has_no_share() {
        assert_eq!(overloaded(80.0, 1, vec![0, 100, 100]).slowest_share(), Some(0.0));
        assert_eq!(overloaded(80.0, 1, vec![0, 0]).slowest_share(), None);
        assert_eq!(overloaded(80.0, 1, vec![50, 150]).slowest_share(), Some(0.5));
    }

    #[test]
    fn missing_or_failed_results_miss() {
        let store = StoreKind::Percolite;
        let checked = check(store, &Outcomes::default(), &fixtures::conditions(), 3);
        assert!(checked.iter().all(Requirement::is_missed_by_percolite));

        let mut outcomes = Outcomes::default();
        add(&mut outcomes, &hot(store, MAX_CLIENTS), Outcome::Measured(overloaded(80.0, 1, vec![1, 1])));
        let failed = Outcome::Failed("wrong sum".into());
        outcomes.add(ResultLine { spec: hot(store, MAX_CLIENTS).spec(&fixtures::conditions(), 1), outcome: failed });
        assert!(check(store, &outcomes, &fixtures::conditions(), 2).iter().all(|one| !one.met));
    }

    #[test]
    fn measurements_are_unique() {
        let all = entries(&[StoreKind::Percolite, StoreKind::Redb]);
        assert_eq!(all.len(), 22);
        for (place, one) in all.iter().enumerate() {
            assert!(!all[..place].contains(one), "{one:?}");
        }
    }
}
