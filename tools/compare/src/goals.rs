//! `goals`: percolite's performance goals against other stores.
//!
//! [`table`] defines each goal: the work, the baselines and the required ratio. With several
//! baselines, percolite is compared in each round with the best baseline of that round. Of written
//! bytes less is better, so their ratio must be at most the required one.

use std::cmp::Ordering;

use anyhow::Result;
use comfy_table::{Cell, Color, Table};
use serde::Serialize;

use crate::args::CommonArgs;
use crate::generator::Skew;
use crate::peer::StoreKind;
use crate::rounds::{self, Plan, ResultsFile};
use crate::spec::{Conditions, Metrics, Setting};
use crate::statistics::{Entry, Outcomes, Spread};
use crate::workload::{BulkLoad, HotRow, ReadKind, Reads, Transfers, Workload};

const OTHER_PEERS: [StoreKind; 4] = [StoreKind::Fjall, StoreKind::Redb, StoreKind::Lmdb, StoreKind::Sqlite];
const PEERS: [StoreKind; 7] = [
    StoreKind::RocksOptimistic,
    StoreKind::RocksTransaction,
    StoreKind::Fjall,
    StoreKind::Redb,
    StoreKind::Lmdb,
    StoreKind::Sqlite,
    StoreKind::Surrealkv,
];
const MANY_VERSIONS: u64 = 1_000_000;

/// One goal.
pub struct Goal {
    pub work: String,
    pub against: String,
    pub required: f64,
    pub stretch: f64,
    metric: Metric,
    subject: Entry,
    baselines: Vec<Entry>,
}

/// The compared metric.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Metric {
    /// Operations per second.
    Rate,
    /// Bytes written to the disk per committed byte: less is better.
    Written,
}

impl Metric {
    fn of(self, measured: &Metrics) -> Option<f64> {
        match self {
            Self::Rate => Some(measured.rate),
            Self::Written => measured.write_amplification.or(measured.dirtied_amplification),
        }
    }

    /// Orders two values of the metric, or two ratios of such values, the better one last.
    fn order(self, one: f64, other: f64) -> Ordering {
        match self {
            Self::Rate => one.total_cmp(&other),
            Self::Written => other.total_cmp(&one),
        }
    }
}

impl Goal {
    fn new(setting: Setting, against: &str, baselines: &[StoreKind], required: f64, stretch: f64) -> Self {
        Self {
            work: setting.to_string(),
            against: against.to_owned(),
            required,
            stretch,
            metric: Metric::Rate,
            subject: Entry { setting: setting.clone(), store: StoreKind::Percolite },
            baselines: baselines.iter().map(|&store| Entry { setting: setting.clone(), store }).collect(),
        }
    }
}

/// All goals.
pub fn table() -> Vec<Goal> {
    let surrealkv = &[StoreKind::Surrealkv];
    let best = "the best peer";
    let mut goals = vec![
        Goal::new(transfer(true, 2, 10_000, 1), "RocksDB TransactionDB", &[StoreKind::RocksTransaction], 0.95, 1.1),
        Goal::new(transfer(true, 2, 10_000, 16), "surrealkv", surrealkv, 1.1, 1.3),
        Goal::new(transfer(true, 2, 10_000, 64), "surrealkv", surrealkv, 1.3, 1.8),
    ];
    for clients in [16, 64] {
        let one = |store: StoreKind| Goal::new(transfer(true, 2, 10_000, clients), store.name(), &[store], 4.0, 6.0);
        goals.extend(OTHER_PEERS.map(one));
    }
    goals.extend([16, 64].map(|clients| Goal::new(transfer(true, 2, 10, clients), best, &PEERS, 6.0, 12.0)));
    goals.push(Goal::new(transfer(true, 4, 100, 64), best, &PEERS, 4.0, 7.0));
    let by_zipf = Transfers { accounts: 10_000, rows_per_transfer: 2, skew: Skew::Zipf };
    goals.push(Goal::new(setting(Workload::Transfers(by_zipf), true, 64), best, &PEERS, 4.0, 7.0));
    goals.extend([1, 16].map(|clients| Goal::new(transfer(false, 2, 10_000, clients), best, &PEERS, 2.5, 4.0)));

    let mut written =
        Goal::new(transfer(true, 2, 10, 64), "RocksDB TransactionDB", &[StoreKind::RocksTransaction], 0.7, 0.5);
    written.metric = Metric::Written;
    written.work.push_str(", bytes written");
    goals.push(written);

    let mut two_phase =
        Goal::new(transfer(true, 2, 10_000, 16), "percolite in one phase", &[StoreKind::Percolite], 0.5, 0.7);
    two_phase.subject.store = StoreKind::PercoliteTwoPhase;
    two_phase.work.push_str(", two phases");
    goals.push(two_phase);

    let rocks = &[StoreKind::Rocks];
    for (kind, rows, required, stretch) in
        [(ReadKind::GetRecent, 10_000, 1.0, 1.3), (ReadKind::Get, 1_000_000, 0.9, 1.0)]
    {
        let get = |clients| Goal::new(reads(kind, rows, clients), "RocksDB get", rocks, required, stretch);
        goals.extend([1, 2].map(get));
    }
    for rows in [10_000, 1_000_000] {
        goals.push(Goal::new(reads(ReadKind::Scan, rows, 1), "RocksDB iterator", rocks, 0.75, 0.9));
    }
    let load = setting(Workload::BulkLoad(BulkLoad { rows: 1_000_000 }), false, 1);
    goals.push(Goal::new(load, "RocksDB WriteBatch", rocks, 0.9, 1.3));

    let hot = |versions| setting(Workload::HotRow(HotRow { versions }), false, 1);
    let mut hot_row = Goal::new(hot(MANY_VERSIONS), "one version", &[], 0.8, 0.95);
    hot_row.baselines = vec![Entry { setting: hot(1), store: StoreKind::Percolite }];
    goals.push(hot_row);
    goals
}

fn setting(work: Workload, durable: bool, clients: u64) -> Setting {
    Setting { work, clients, durable }
}

fn transfer(durable: bool, rows_per_transfer: usize, accounts: u64, clients: u64) -> Setting {
    setting(Workload::Transfers(Transfers { accounts, rows_per_transfer, skew: Skew::Uniform }), durable, clients)
}

fn reads(kind: ReadKind, rows: u64, clients: u64) -> Setting {
    setting(Workload::Reads(Reads { rows, kind, skew: Skew::Uniform }), false, clients)
}

/// The measurements of the goals, each once, grouped by setting.
pub fn entries(goals: &[Goal]) -> Vec<Entry> {
    let all = || goals.iter().flat_map(|goal| std::iter::once(&goal.subject).chain(&goal.baselines));
    let mut settings: Vec<&Setting> = Vec::new();
    for one in all() {
        if !settings.contains(&&one.setting) {
            settings.push(&one.setting);
        }
    }
    let mut sorted: Vec<Entry> = Vec::new();
    for setting in settings {
        for one in all().filter(|one| one.setting == *setting) {
            if !sorted.contains(one) {
                sorted.push(one.clone());
            }
        }
    }
    sorted
}

/// The result of one goal.
#[derive(Serialize)]
pub struct GoalResult {
    pub work: String,
    pub against: String,
    pub required: f64,
    pub stretch: f64,
    /// percolite's value divided by that of the best baseline; `None` if no round has both.
    pub ratio: Option<Spread>,
    pub required_met: bool,
    pub stretch_met: bool,
    /// The failures of percolite and of the baselines.
    pub failures: Vec<String>,
}

/// Checks the outcomes against the goals. If percolite failed in any round, the goal is missed; a
/// baseline counts in the rounds in which it did not fail.
pub fn check(goals: &[Goal], outcomes: &Outcomes, conditions: &Conditions, rounds: u64) -> Vec<GoalResult> {
    let check_goal = |goal: &Goal| {
        let metric = |measured: &Metrics| goal.metric.of(measured);
        let order = |one: &f64, other: &f64| goal.metric.order(*one, *other);
        let ratio = Spread::of(outcomes.ratios_of(&goal.subject, &goal.baselines, conditions, rounds, metric, order));
        let failed = |one: &Entry| outcomes.failure(one, conditions, rounds);
        let has_failed = failed(&goal.subject).is_some();
        let is_met = |bar: f64| !has_failed && ratio.is_some_and(|ratio| order(&ratio.median, &bar).is_ge());
        let failures = std::iter::once(&goal.subject)
            .chain(&goal.baselines)
            .filter_map(|one| Some(format!("{}: {}", one.store.name(), failed(one)?)))
            .collect();
        GoalResult {
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
    goals.iter().map(check_goal).collect()
}

/// Measures and checks all goals. `None` if the run was interrupted.
pub fn run(args: &CommonArgs, results: &mut ResultsFile) -> Result<Option<(Plan, Vec<GoalResult>)>> {
    let goals = table();
    let plan = Plan { entries: entries(&goals), conditions: args.conditions(), rounds: args.rounds() };
    let scratch = args.scratch_dir()?;
    if !rounds::run(&plan, &scratch, results)? {
        return Ok(None);
    }
    let results = check(&goals, &results.outcomes, &plan.conditions, plan.rounds);
    Ok(Some((plan, results)))
}

pub fn show(results: &[GoalResult]) -> Table {
    let mut table = Table::new();
    table.load_preset(comfy_table::presets::UTF8_HORIZONTAL_ONLY);
    table.set_header(["goal", "against", "ratio (min..max)", "required", "met", "stretch", "met"]);
    let met = |is_met| {
        if is_met { Cell::new("yes").fg(Color::Green) } else { Cell::new("NO").fg(Color::Red) }
    };
    for one in results {
        let mut ratio = one.ratio.map_or_else(|| "-".to_owned(), |ratio| ratio.to_string());
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
    use crate::fixtures;
    use crate::spec::{Outcome, ResultLine};

    fn line(entry: &Entry, rate: f64) -> ResultLine {
        fixtures::line(entry, 0, rate)
    }

    #[test]
    fn measurements_are_unique_and_grouped() {
        let all = entries(&table());
        let groups: Vec<_> =
            all.chunk_by(|one, next| one.setting == next.setting).map(|group| &group[0].setting).collect();
        for (place, setting) in groups.iter().enumerate() {
            assert!(!groups[..place].contains(setting), "{setting}");
        }
        for (place, one) in all.iter().enumerate() {
            assert!(!all[..place].contains(one), "{one:?}");
            assert!(one.setting.work.supports(one.store), "{one:?}");
        }
    }

    #[test]
    fn goals_are_met_at_their_bar_and_missed_on_failure() {
        let goals = table();
        let goal = &goals[..1];
        let check = |subject: Outcome| {
            let mut outcomes = Outcomes::default();
            outcomes.add(line(&goal[0].baselines[0], 100.0));
            outcomes.add(ResultLine { spec: goal[0].subject.spec(&fixtures::conditions(), 0), outcome: subject });
            let results = super::check(goal, &outcomes, &fixtures::conditions(), 1);
            (results[0].required_met, results[0].stretch_met)
        };
        let rate = |rate| Outcome::Measured(Metrics { rate, ..Metrics::default() });
        assert_eq!(check(rate(94.9)), (false, false));
        assert_eq!(check(rate(95.0)), (true, false));
        assert_eq!(check(rate(110.1)), (true, true));
        assert_eq!(check(Outcome::Failed("wrong".into())), (false, false));
    }

    #[test]
    fn fewer_written_bytes_are_better() {
        let goals = table();
        let goal = goals.iter().position(|goal| goal.metric == Metric::Written).unwrap();
        let goal = &goals[goal..=goal];
        let check = |subject: f64| {
            let mut outcomes = Outcomes::default();
            for (one, written) in [(&goal[0].subject, subject), (&goal[0].baselines[0], 10.0)] {
                let measured = Metrics { rate: 1.0, write_amplification: Some(written), ..Metrics::default() };
                let outcome = Outcome::Measured(measured);
                outcomes.add(ResultLine { spec: one.spec(&fixtures::conditions(), 0), outcome });
            }
            let results = super::check(goal, &outcomes, &fixtures::conditions(), 1);
            (results[0].required_met, results[0].stretch_met)
        };
        assert_eq!((check(7.1), check(7.0), check(5.0)), ((false, false), (true, false), (true, true)));
    }

    #[test]
    fn goals_without_results_are_missed() {
        let results = check(&table(), &Outcomes::default(), &fixtures::conditions(), 3);
        assert!(results.iter().all(|one| !one.required_met && !one.stretch_met));
    }
}
