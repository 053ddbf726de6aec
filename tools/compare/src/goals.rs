//! The goals that percolite has set itself, measured line by line.
//!
//! This table is the whole definition: which work, against whom, and by how much. A line that names several stores is
//! against each round's best of them; one that says "each" is as many lines. Where less is better, a goal is met from its bar
//! downwards.

use std::cmp::Ordering;

use anyhow::Result;
use comfy_table::{Cell, Color, Table};
use serde::Serialize;

use crate::dice::Skew;
use crate::options::Arguments;
use crate::peer::Kind;
use crate::rounds::{self, Journal, Plan};
use crate::spec::{Conditions, Measured, Setting};
use crate::statistics::{Contestant, Outcomes, Spread};
use crate::workload::{BulkLoad, HotRow, How, Reads, Transfers, Workload};

const OTHERS: [Kind; 4] = [Kind::Fjall, Kind::Redb, Kind::Lmdb, Kind::Sqlite];
const PEERS: [Kind; 7] =
    [Kind::RocksOptimistic, Kind::RocksTransaction, Kind::Fjall, Kind::Redb, Kind::Lmdb, Kind::Sqlite, Kind::Surrealkv];
const MANY_VERSIONS: u64 = 1_000_000;

/// One line.
pub struct Goal {
    pub work: String,
    pub against: String,
    pub required: f64,
    pub stretch: f64,
    figure: Figure,
    ours: Contestant,
    theirs: Vec<Contestant>,
}

/// What is compared.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Figure {
    /// Operations a second.
    Rate,
    /// Bytes that the disk was sent for each byte committed: less is better.
    Written,
}

impl Figure {
    fn of(self, measured: &Measured) -> Option<f64> {
        match self {
            Self::Rate => Some(measured.rate),
            Self::Written => measured.disk_per_byte.or(measured.dirtied_per_byte),
        }
    }

    /// The order of two ratios, the better one last.
    fn order(self, one: f64, other: f64) -> Ordering {
        match self {
            Self::Rate => one.total_cmp(&other),
            Self::Written => other.total_cmp(&one),
        }
    }
}

impl Goal {
    fn new(setting: Setting, against: &str, theirs: &[Kind], required: f64, stretch: f64) -> Self {
        Self {
            work: setting.to_string(),
            against: against.to_owned(),
            required,
            stretch,
            figure: Figure::Rate,
            ours: Contestant { setting: setting.clone(), store: Kind::Percolite },
            theirs: theirs.iter().map(|&store| Contestant { setting: setting.clone(), store }).collect(),
        }
    }
}

/// The table.
pub fn table() -> Vec<Goal> {
    let surrealkv = &[Kind::Surrealkv];
    let best = "the best peer";
    let mut goals = vec![
        Goal::new(transfer(true, 2, 10_000, 1), "RocksDB TransactionDB", &[Kind::RocksTransaction], 0.95, 1.1),
        Goal::new(transfer(true, 2, 10_000, 16), "surrealkv", surrealkv, 1.1, 1.3),
        Goal::new(transfer(true, 2, 10_000, 64), "surrealkv", surrealkv, 1.3, 1.8),
    ];
    for clients in [16, 64] {
        let one = |store: Kind| Goal::new(transfer(true, 2, 10_000, clients), store.name(), &[store], 4.0, 6.0);
        goals.extend(OTHERS.map(one));
    }
    goals.extend([16, 64].map(|clients| Goal::new(transfer(true, 2, 10, clients), best, &PEERS, 6.0, 12.0)));
    goals.push(Goal::new(transfer(true, 4, 100, 64), best, &PEERS, 4.0, 7.0));
    let by_zipf = Transfers { accounts: 10_000, touched: 2, skew: Skew::Zipf };
    goals.push(Goal::new(setting(Workload::Transfers(by_zipf), true, 64), best, &PEERS, 4.0, 7.0));
    goals.extend([1, 16].map(|clients| Goal::new(transfer(false, 2, 10_000, clients), best, &PEERS, 2.5, 4.0)));

    let mut written =
        Goal::new(transfer(true, 2, 10, 64), "RocksDB TransactionDB", &[Kind::RocksTransaction], 0.7, 0.5);
    written.figure = Figure::Written;
    written.work.push_str(", bytes written");
    goals.push(written);

    let mut two_phase = Goal::new(transfer(true, 2, 10_000, 16), "itself in one phase", &[Kind::Percolite], 0.5, 0.7);
    two_phase.ours.store = Kind::PercoliteTwoPhase;
    two_phase.work.push_str(", two phases");
    goals.push(two_phase);

    let rocks = &[Kind::Rocks];
    for (how, rows, required, stretch) in [(How::GetRecent, 10_000, 1.0, 1.3), (How::Get, 1_000_000, 0.9, 1.0)] {
        let get = |clients| Goal::new(reads(how, rows, clients), "RocksDB get", rocks, required, stretch);
        goals.extend([1, 2].map(get));
    }
    for rows in [10_000, 1_000_000] {
        goals.push(Goal::new(reads(How::Scan, rows, 1), "RocksDB iterator", rocks, 0.75, 0.9));
    }
    let load = setting(Workload::BulkLoad(BulkLoad { rows: 1_000_000 }), false, 1);
    goals.push(Goal::new(load, "RocksDB WriteBatch", rocks, 0.9, 1.3));

    let hot = |versions| setting(Workload::HotRow(HotRow { versions }), false, 1);
    let mut hot_row = Goal::new(hot(MANY_VERSIONS), "the same row with one", &[], 0.8, 0.95);
    hot_row.theirs = vec![Contestant { setting: hot(1), store: Kind::Percolite }];
    goals.push(hot_row);
    goals
}

fn setting(work: Workload, durable: bool, clients: u64) -> Setting {
    Setting { work, clients, durable }
}

fn transfer(durable: bool, touched: usize, accounts: u64, clients: u64) -> Setting {
    setting(Workload::Transfers(Transfers { accounts, touched, skew: Skew::Uniform }), durable, clients)
}

fn reads(how: How, rows: u64, clients: u64) -> Setting {
    setting(Workload::Reads(Reads { rows, how, skew: Skew::Uniform }), false, clients)
}

/// What has to be measured for them, each once, what belongs together side by side.
pub fn contestants(goals: &[Goal]) -> Vec<Contestant> {
    let all = || goals.iter().flat_map(|goal| std::iter::once(&goal.ours).chain(&goal.theirs));
    let mut settings: Vec<&Setting> = Vec::new();
    for one in all() {
        if !settings.contains(&&one.setting) {
            settings.push(&one.setting);
        }
    }
    let mut sorted: Vec<Contestant> = Vec::new();
    for setting in settings {
        for one in all().filter(|one| one.setting == *setting) {
            if !sorted.contains(one) {
                sorted.push(one.clone());
            }
        }
    }
    sorted
}

/// What came out for one line.
#[derive(Serialize)]
pub struct Judged {
    pub work: String,
    pub against: String,
    pub required: f64,
    pub stretch: f64,
    /// `None` if one side has no figure in any round.
    pub ratio: Option<Spread>,
    pub required_met: bool,
    pub stretch_met: bool,
    /// Stores that failed in a round.
    pub failures: Vec<String>,
}

/// Holds outcomes against the goals. A store of ours that failed in any round has missed its goal; a peer that did counts
/// where it did not.
pub fn judge(goals: &[Goal], outcomes: &Outcomes, conditions: &Conditions, rounds: u64) -> Vec<Judged> {
    let judge_one = |goal: &Goal| {
        let figure = |measured: &Measured| goal.figure.of(measured);
        let order = |one: &f64, other: &f64| goal.figure.order(*one, *other);
        let ratio = Spread::of(outcomes.ratios_of(&goal.ours, &goal.theirs, conditions, rounds, figure, order));
        let failed = |one: &Contestant| outcomes.failure(one, conditions, rounds);
        let we_failed = failed(&goal.ours).is_some();
        let is_met = |bar: f64| !we_failed && ratio.is_some_and(|ratio| order(&ratio.median, &bar).is_ge());
        let failures = std::iter::once(&goal.ours)
            .chain(&goal.theirs)
            .filter_map(|one| Some(format!("{}: {}", one.store.name(), failed(one)?)))
            .collect();
        Judged {
            work: goal.work.clone(),
            against: goal.against.clone(),
            required: goal.required,
            stretch: goal.stretch,
            ratio,
            required_met: is_met(goal.required),
            stretch_met: is_met(goal.stretch),
            failures,
        }
    };
    goals.iter().map(judge_one).collect()
}

/// Measures and judges. `None` if the run was interrupted.
pub fn run(arguments: &Arguments, journal: &mut Journal) -> Result<Option<(Plan, Vec<Judged>)>> {
    let goals = table();
    let plan =
        Plan { contestants: contestants(&goals), conditions: arguments.conditions(), rounds: arguments.rounds() };
    let scratch = arguments.scratch()?;
    if !rounds::run(&plan, &scratch, journal)? {
        return Ok(None);
    }
    let judged = judge(&goals, &journal.outcomes, &plan.conditions, plan.rounds);
    Ok(Some((plan, judged)))
}

/// As people read it.
pub fn show(judged: &[Judged]) -> Table {
    let mut table = Table::new();
    table.load_preset(comfy_table::presets::UTF8_HORIZONTAL_ONLY);
    table.set_header(["goal", "against", "ratio (least..greatest)", "required", "met", "stretch", "met"]);
    let met = |is_met| {
        if is_met { Cell::new("yes").fg(Color::Green) } else { Cell::new("NO").fg(Color::Red) }
    };
    for one in judged {
        let mut ratio = one.ratio.map_or_else(|| "none".to_owned(), |ratio| ratio.to_string());
        for failure in &one.failures {
            ratio.push_str("\nfailed: ");
            ratio.push_str(failure);
        }
        table.add_row([
            Cell::new(&one.work),
            Cell::new(&one.against),
            Cell::new(ratio),
            Cell::new(one.required),
            met(one.required_met),
            Cell::new(one.stretch),
            met(one.stretch_met),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::{Line, Outcome};
    use crate::testing;

    fn line(contestant: &Contestant, rate: f64) -> Line {
        testing::line(contestant, 0, rate)
    }

    #[test]
    fn no_cell_is_measured_twice_and_settings_stay_together() {
        let all = contestants(&table());
        let groups: Vec<_> =
            all.chunk_by(|one, next| one.setting == next.setting).map(|group| &group[0].setting).collect();
        for (place, setting) in groups.iter().enumerate() {
            assert!(!groups[..place].contains(setting), "{setting}");
        }
        for (place, one) in all.iter().enumerate() {
            assert!(!all[..place].contains(one), "{one:?}");
            assert!(one.setting.work.suits(one.store), "{one:?}");
        }
    }

    #[test]
    fn a_goal_is_met_from_its_bar_on_and_missed_by_a_store_that_failed() {
        let goals = table();
        let goal = &goals[..1];
        let judge = |ours: Outcome| {
            let mut outcomes = Outcomes::default();
            outcomes.add(line(&goal[0].theirs[0], 100.0));
            outcomes.add(Line { spec: goal[0].ours.spec(&testing::conditions(), 0), outcome: ours });
            let judged = super::judge(goal, &outcomes, &testing::conditions(), 1);
            (judged[0].required_met, judged[0].stretch_met)
        };
        let rate = |rate| Outcome::Measured(Measured { rate, ..Measured::default() });
        assert_eq!(judge(rate(94.9)), (false, false));
        assert_eq!(judge(rate(95.0)), (true, false));
        assert_eq!(judge(rate(110.1)), (true, true));
        assert_eq!(judge(Outcome::Failed("wrong".into())), (false, false));
    }

    #[test]
    fn of_bytes_written_less_is_better() {
        let goals = table();
        let goal = goals.iter().position(|goal| goal.figure == Figure::Written).unwrap();
        let goal = &goals[goal..=goal];
        let judge = |ours: f64| {
            let mut outcomes = Outcomes::default();
            for (one, written) in [(&goal[0].ours, ours), (&goal[0].theirs[0], 10.0)] {
                let measured = Measured { rate: 1.0, disk_per_byte: Some(written), ..Measured::default() };
                let outcome = Outcome::Measured(measured);
                outcomes.add(Line { spec: one.spec(&testing::conditions(), 0), outcome });
            }
            let judged = super::judge(goal, &outcomes, &testing::conditions(), 1);
            (judged[0].required_met, judged[0].stretch_met)
        };
        assert_eq!((judge(7.1), judge(7.0), judge(5.0)), ((false, false), (true, false), (true, true)));
    }

    #[test]
    fn a_goal_without_figures_is_missed() {
        let judged = judge(&table(), &Outcomes::default(), &testing::conditions(), 3);
        assert!(judged.iter().all(|one| !one.required_met && !one.stretch_met));
    }
}
