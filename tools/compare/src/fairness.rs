//! Fairness: what becomes of a store when far more clients want the same few rows than can have them.
//!
//! Transfers between ten rows by ever more clients, and, on rows of their own, two bystanders who have nothing to do with
//! it. What is asked for is that the crowd gets about as much done as fewer would, that nobody in it tries for ever or comes
//! away with next to nothing, and that the bystanders hardly notice. Each cell is one of [`crate::rounds`], so ratios
//! are those within a round; of the stalls, which are another kind of overload, see [`crate::stalls`].

use anyhow::{Result, ensure};
use comfy_table::{Cell, CellAlignment, Color, Table};
use serde::Serialize;

use crate::compare::{count, time};
use crate::dice::Skew;
use crate::options::Arguments;
use crate::peer::Kind;
use crate::rounds::{self, Journal, Plan};
use crate::spec::{Conditions, Measured, Setting};
use crate::statistics::{Contestant, Outcomes, Spread};
use crate::workload::{Bystanders, Transfers, Workload};

const CLIENTS: [u64; 9] = [1, 2, 4, 8, 16, 32, 64, 128, CROWD];
const CROWD: u64 = 256;
const BYSTANDERS: u64 = 2;

const GOODPUT: Bar = Bar::AtLeast(0.8);
const ATTEMPTS: Bar = Bar::AtMost(3.0);
const SLOWEST: Bar = Bar::AtLeast(0.3);
const BYSTANDING: Bar = Bar::AtMost(2.0);

/// What a figure is held against.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Bar {
    AtLeast(f64),
    AtMost(f64),
}

impl Bar {
    fn is_met(self, figure: f64) -> bool {
        match self {
            Self::AtLeast(bar) => figure >= bar,
            Self::AtMost(bar) => figure <= bar,
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

/// One line of what is asked for.
#[derive(Serialize)]
pub struct Requirement {
    pub what: String,
    pub store: Kind,
    pub bar: Bar,
    /// `None` if no round has a figure.
    pub figure: Option<Spread>,
    pub met: bool,
    /// How the store failed in a round, if it did.
    pub failed: Option<String>,
}

impl Requirement {
    /// The median decides, but a store that has failed in any round has missed everything.
    pub fn new(what: &str, store: Kind, bar: Bar, figures: Vec<f64>, failed: Option<String>) -> Self {
        let figure = Spread::of(figures);
        let met = failed.is_none() && figure.is_some_and(|figure| bar.is_met(figure.median));
        Self { what: what.to_owned(), store, bar, figure, met, failed }
    }

    /// Others are there to be looked at.
    pub fn is_missed_by_percolite(&self) -> bool {
        self.store == Kind::Percolite && !self.met
    }
}

/// What one store did at one setting.
#[derive(Serialize)]
pub struct Line {
    pub title: String,
    pub setting: Setting,
    pub store: Kind,
    /// Transfers a second.
    pub rate: Option<Spread>,
    pub attempts_p50: Option<Spread>,
    pub attempts_p99: Option<Spread>,
    pub attempts_max: Option<Spread>,
    /// What the slowest client did, of the mean.
    pub slowest: Option<Spread>,
    /// In microseconds.
    pub p50: Option<Spread>,
    pub p95: Option<Spread>,
    pub p99: Option<Spread>,
    pub failed: Option<String>,
}

/// All that was found.
#[derive(Serialize)]
pub struct Found {
    pub requirements: Vec<Requirement>,
    pub lines: Vec<Line>,
}

fn hot(store: Kind, clients: u64) -> Contestant {
    let work = Workload::Transfers(Transfers { accounts: 10, touched: 2, skew: Skew::Uniform });
    Contestant { setting: Setting { work, clients, durable: true }, store }
}

fn bystanders(store: Kind, others: u64) -> Contestant {
    let work = Workload::Bystanders(Bystanders { others });
    Contestant { setting: Setting { work, clients: BYSTANDERS, durable: true }, store }
}

/// Settings by which stores are compared stand together.
fn contestants(stores: &[Kind]) -> Vec<Contestant> {
    let crowds = CLIENTS.iter().flat_map(|&clients| stores.iter().map(move |&store| hot(store, clients)));
    let beside = [0, CROWD].into_iter().flat_map(|others| stores.iter().map(move |&store| bystanders(store, others)));
    crowds.chain(beside).collect()
}

fn judge(store: Kind, outcomes: &Outcomes, conditions: &Conditions, rounds: u64) -> Vec<Requirement> {
    let crowd = hot(store, CROWD);
    let (alone, beside) = (bystanders(store, 0), bystanders(store, CROWD));
    let failed = |one: &Contestant| outcomes.failure(one, conditions, rounds).map(str::to_owned);
    let of_crowd = |figure: fn(&Measured) -> Option<f64>| {
        outcomes.measured(&crowd, conditions, rounds).into_iter().filter_map(figure).collect()
    };
    let all = CLIENTS.map(|clients| hot(store, clients));
    let p95 = |one: &Contestant, round| Some(outcomes.get(one, conditions, round)?.measured()?.p95);
    let waits = (0..rounds).filter_map(|round| Some(p95(&beside, round)? / p95(&alone, round)?)).collect();
    vec![
        Requirement::new(
            "goodput of 256 clients, of the best number of clients",
            store,
            GOODPUT,
            outcomes.ratios(&crowd, &all, conditions, rounds),
            all.iter().find_map(failed),
        ),
        Requirement::new(
            "99th percentile of attempts, 256 clients",
            store,
            ATTEMPTS,
            of_crowd(|one| one.attempts.map(|attempts| small(attempts.p99))),
            failed(&crowd),
        ),
        Requirement::new(
            "the slowest of 256 clients, of the mean",
            store,
            SLOWEST,
            of_crowd(Measured::slowest_share),
            failed(&crowd),
        ),
        Requirement::new(
            "95th percentile of bystanders beside 256 others, of that alone",
            store,
            BYSTANDING,
            waits,
            failed(&beside).or_else(|| failed(&alone)),
        ),
    ]
}

#[allow(clippy::cast_precision_loss, reason = "attempts of one transaction")]
fn small(attempts: u64) -> f64 {
    attempts as f64
}

fn line(contestant: &Contestant, outcomes: &Outcomes, conditions: &Conditions, rounds: u64) -> Line {
    let measured = outcomes.measured(contestant, conditions, rounds);
    let spread =
        |figure: fn(&Measured) -> Option<f64>| Spread::of(measured.iter().filter_map(|one| figure(one)).collect());
    Line {
        title: contestant.setting.to_string(),
        setting: contestant.setting.clone(),
        store: contestant.store,
        rate: spread(|one| Some(one.rate)),
        attempts_p50: spread(|one| one.attempts.map(|attempts| small(attempts.p50))),
        attempts_p99: spread(|one| one.attempts.map(|attempts| small(attempts.p99))),
        attempts_max: spread(|one| one.attempts.map(|attempts| small(attempts.max))),
        slowest: spread(Measured::slowest_share),
        p50: spread(|one| Some(one.p50)),
        p95: spread(|one| Some(one.p95)),
        p99: spread(|one| Some(one.p99)),
        failed: outcomes.failure(contestant, conditions, rounds).map(str::to_owned),
    }
}

/// Measures and judges. `None` if the run was interrupted.
pub fn run(stores: &[Kind], arguments: &Arguments, journal: &mut Journal) -> Result<Option<(Plan, Found)>> {
    ensure!(!stores.contains(&Kind::Rocks), "{} has no transactions", Kind::Rocks.name());
    let plan =
        Plan { contestants: contestants(stores), conditions: arguments.conditions(), rounds: arguments.rounds() };
    let scratch = arguments.scratch()?;
    if !rounds::run(&plan, &scratch, journal)? {
        return Ok(None);
    }
    let (outcomes, conditions, rounds) = (&journal.outcomes, &plan.conditions, plan.rounds);
    let found = Found {
        requirements: stores.iter().flat_map(|&store| judge(store, outcomes, conditions, rounds)).collect(),
        lines: plan.contestants.iter().map(|one| line(one, outcomes, conditions, rounds)).collect(),
    };
    Ok(Some((plan, found)))
}

/// What was measured, as people read it.
pub fn show_lines(lines: &[Line]) -> Table {
    let mut table = new_table(&[
        "work",
        "store",
        "a second (least..greatest)",
        "attempts p50/p99/most",
        "slowest of mean",
        "p50",
        "p95",
        "p99",
    ]);
    for line in lines {
        let mut cells = vec![line.title.clone(), line.store.name().to_owned()];
        let median =
            |figure: Option<Spread>, show: fn(f64) -> String| figure.map_or_else(String::new, |one| show(one.median));
        match &line.failed {
            Some(why) => cells.push(format!("FAILED: {why}")),
            None => cells.extend([
                line.rate.map_or_else(String::new, |rate| {
                    format!("{} ({}..{})", count(rate.median), count(rate.least), count(rate.greatest))
                }),
                format!(
                    "{}/{}/{}",
                    median(line.attempts_p50, |attempts| attempts.to_string()),
                    median(line.attempts_p99, |attempts| attempts.to_string()),
                    line.attempts_max.map_or_else(String::new, |most| most.greatest.to_string()),
                ),
                line.slowest.map_or_else(String::new, |share| share.to_string()),
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

/// What is asked for, as people read it.
pub fn show(requirements: &[Requirement]) -> Table {
    let mut table = new_table(&["required", "store", "figure (least..greatest)", "bar", "met"]);
    for one in requirements {
        let mut figure = one.figure.map_or_else(|| "none".to_owned(), |figure| figure.to_string());
        if let Some(why) = &one.failed {
            figure.push_str("\nfailed: ");
            figure.push_str(why);
        }
        let met = if one.met { Cell::new("yes").fg(Color::Green) } else { Cell::new("NO").fg(Color::Red) };
        table.add_row([Cell::new(&one.what), Cell::new(one.store.name()), Cell::new(figure), Cell::new(one.bar), met]);
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
    use crate::spec::{Attempts, Line as Kept, Outcome};
    use crate::testing;

    fn add(outcomes: &mut Outcomes, contestant: &Contestant, outcome: Outcome) {
        outcomes.add(Kept { spec: contestant.spec(&testing::conditions(), 0), outcome });
    }

    /// Whether each is met by a store of this crowd, of 100 a second with fewer clients and 1 ms for bystanders alone.
    fn met(crowd: Measured, bystanding: f64) -> Vec<bool> {
        let mut outcomes = Outcomes::default();
        let store = Kind::Percolite;
        for clients in CLIENTS.into_iter().filter(|&clients| clients != CROWD) {
            outcomes.add(testing::line(&hot(store, clients), 0, 100.0));
        }
        add(&mut outcomes, &hot(store, CROWD), Outcome::Measured(crowd));
        for (others, p95) in [(0, 1000.0), (CROWD, bystanding)] {
            let measured = Measured { p95, ..Measured::default() };
            add(&mut outcomes, &bystanders(store, others), Outcome::Measured(measured));
        }
        judge(store, &outcomes, &testing::conditions(), 1).iter().map(|one| one.met).collect()
    }

    fn crowd(rate: f64, p99: u64, by_client: Vec<u64>) -> Measured {
        let attempts = Some(Attempts { p50: 1, p99, max: 99 });
        Measured { rate, attempts, by_client, ..Measured::default() }
    }

    #[test]
    fn each_requirement_is_met_up_to_its_bar_and_no_further() {
        assert_eq!(met(crowd(80.0, 3, vec![30, 170]), 2000.0), [true; 4]);
        assert_eq!(met(crowd(79.9, 3, vec![30, 170]), 2000.0), [false, true, true, true]);
        assert_eq!(met(crowd(80.0, 4, vec![30, 170]), 2000.0), [true, false, true, true]);
        assert_eq!(met(crowd(80.0, 3, vec![29, 171]), 2000.0), [true, true, false, true]);
        assert_eq!(met(crowd(80.0, 3, vec![30, 170]), 2000.1), [true, true, true, false]);
    }

    #[test]
    fn a_crowd_of_which_one_gets_nothing_is_unfair() {
        assert_eq!(crowd(80.0, 1, vec![0, 100, 100]).slowest_share(), Some(0.0));
        assert_eq!(crowd(80.0, 1, vec![0, 0]).slowest_share(), None);
        assert_eq!(crowd(80.0, 1, vec![50, 150]).slowest_share(), Some(0.5));
    }

    #[test]
    fn what_has_no_figures_or_failed_once_is_missed() {
        let store = Kind::Percolite;
        let judged = judge(store, &Outcomes::default(), &testing::conditions(), 3);
        assert!(judged.iter().all(Requirement::is_missed_by_percolite));

        let mut outcomes = Outcomes::default();
        add(&mut outcomes, &hot(store, CROWD), Outcome::Measured(crowd(80.0, 1, vec![1, 1])));
        let failed = Outcome::Failed("the sum is wrong".into());
        outcomes.add(Kept { spec: hot(store, CROWD).spec(&testing::conditions(), 1), outcome: failed });
        assert!(judge(store, &outcomes, &testing::conditions(), 2).iter().all(|one| !one.met));
    }

    #[test]
    fn no_cell_is_measured_twice() {
        let all = contestants(&[Kind::Percolite, Kind::Redb]);
        assert_eq!(all.len(), 22);
        for (place, one) in all.iter().enumerate() {
            assert!(!all[..place].contains(one), "{one:?}");
        }
    }
}
