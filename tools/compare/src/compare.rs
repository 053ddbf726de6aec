//! `run`: any workloads on any stores, all against percolite.

use anyhow::{Result, ensure};
use clap::{Args, ValueEnum};
use comfy_table::{CellAlignment, Table};
use serde::Serialize;

use crate::dice::Skew;
use crate::options::Arguments;
use crate::peer::Kind;
use crate::rounds::{self, Journal, Plan};
use crate::spec::{Conditions, Measured, Setting};
use crate::statistics::{Contestant, Outcomes, Spread};
use crate::workload::{
    BulkLoad, Counters, HotRow, How, Index, LongSnapshot, Mix, Reads, ReadsDuringLoad, TimeTravel, Transfers, Workload,
    Ycsb,
};

/// A workload's name.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Name {
    /// Reads a few accounts and writes them
    Transfers,
    /// The same, beside snapshots that are held for ten seconds
    LongSnapshot,
    YcsbA,
    YcsbB,
    YcsbC,
    YcsbD,
    YcsbE,
    YcsbF,
    /// Inserts a record and its index entry
    Index,
    /// Adds one to a counter
    Counters,
    /// Sorted rows into an empty store
    BulkLoad,
    /// Point reads
    Get,
    /// Point reads of rows that were written since the store was opened
    GetRecent,
    /// 16 rows at a time
    MultiGet,
    /// 100 rows at a time
    Scan,
    /// 10,000 rows at a time
    LongScan,
    /// Point reads of the past
    TimeTravel,
    /// Point reads while rows are loaded
    ReadsDuringLoad,
    /// Reads of a row of which `--rows` versions are kept (percolite alone)
    HotRow,
}

/// Which workloads, and with what.
#[derive(Args)]
pub struct Choice {
    /// Which workloads
    #[arg(required = true)]
    pub workloads: Vec<Name>,
    /// Only these stores [default: all that can do the workload]
    #[arg(long, value_delimiter = ',')]
    pub stores: Vec<Kind>,
    /// How many clients at a time
    #[arg(long, value_delimiter = ',', default_values_t = [1, 16, 64], value_parser = clap::value_parser!(u64).range(1..=256))]
    pub clients: Vec<u64>,
    /// How many rows there are: accounts, counters, versions
    #[arg(long, value_delimiter = ',', default_values_t = [10_000], value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    pub rows: Vec<u64>,
    /// How many rows a transfer reads and writes
    #[arg(long, default_value_t = 2)]
    pub touched: usize,
    /// How rows are chosen, where the workload does not say
    #[arg(long, default_value = "uniform")]
    pub skew: Skew,
    /// Commits are acknowledged before they would survive a power cut
    #[arg(long)]
    pub buffered: bool,
}

impl Choice {
    /// Everything in every combination that makes sense.
    pub fn contestants(&self) -> Result<Vec<Contestant>> {
        let mut all = Vec::new();
        for &name in &self.workloads {
            for &rows in &self.rows {
                for &clients in &self.clients {
                    let work = self.work(name, rows);
                    let clients = if work.is_one_piece() { 1 } else { clients };
                    let setting = Setting { work, clients, durable: !self.buffered };
                    let suits = |store: &Kind| setting.work.suits(*store);
                    let chosen = if self.stores.is_empty() { Kind::value_variants() } else { &self.stores };
                    let one = |&store: &Kind| Contestant { setting: setting.clone(), store };
                    let stores: Vec<Contestant> = chosen.iter().filter(|store| suits(store)).map(one).collect();
                    ensure!(!stores.is_empty(), "none of the stores can do this: {}", setting.work);
                    stores.into_iter().for_each(|one| {
                        if !all.contains(&one) {
                            all.push(one);
                        }
                    });
                }
            }
        }
        Ok(all)
    }

    fn work(&self, name: Name, rows: u64) -> Workload {
        let skew = self.skew;
        let ycsb = |mix| Workload::Ycsb(Ycsb { mix, rows });
        let reads = |how| Workload::Reads(Reads { rows, how, skew });
        match name {
            Name::Transfers => Workload::Transfers(Transfers { accounts: rows, touched: self.touched, skew }),
            Name::LongSnapshot => Workload::LongSnapshot(LongSnapshot {
                transfers: Transfers { accounts: rows, touched: self.touched, skew },
            }),
            Name::YcsbA => ycsb(Mix::A),
            Name::YcsbB => ycsb(Mix::B),
            Name::YcsbC => ycsb(Mix::C),
            Name::YcsbD => ycsb(Mix::D),
            Name::YcsbE => ycsb(Mix::E),
            Name::YcsbF => ycsb(Mix::F),
            Name::Index => Workload::Index(Index {}),
            Name::Counters => Workload::Counters(Counters { counters: rows, skew }),
            Name::BulkLoad => Workload::BulkLoad(BulkLoad { rows }),
            Name::Get => reads(How::Get),
            Name::GetRecent => reads(How::GetRecent),
            Name::MultiGet => reads(How::MultiGet),
            Name::Scan => reads(How::Scan),
            Name::LongScan => reads(How::LongScan),
            Name::TimeTravel => Workload::TimeTravel(TimeTravel { rows }),
            Name::ReadsDuringLoad => Workload::ReadsDuringLoad(ReadsDuringLoad { rows }),
            Name::HotRow => Workload::HotRow(HotRow { versions: rows }),
        }
    }
}

/// What one store did at one setting.
#[derive(Serialize)]
pub struct Summary {
    pub setting: Setting,
    /// What the setting is called.
    pub title: String,
    pub store: Kind,
    /// Operations a second.
    pub rate: Option<Spread>,
    /// percolite's rate over this one's, within a round.
    pub percolite_over_it: Option<Spread>,
    /// Medians of the rounds.
    pub median: Option<Measured>,
    pub failed: Option<String>,
}

/// What a run came to.
pub fn summarize(
    contestants: &[Contestant],
    outcomes: &Outcomes,
    conditions: &Conditions,
    rounds: u64,
) -> Vec<Summary> {
    let one = |contestant: &Contestant| {
        let all = outcomes.measured(contestant, conditions, rounds);
        let median =
            |of: fn(&Measured) -> f64| Spread::of(all.iter().map(|one| of(one)).collect()).map(|spread| spread.median);
        let median_of = |of: fn(&Measured) -> Option<f64>| {
            Spread::of(all.iter().filter_map(|one| of(one)).collect()).map(|spread| spread.median)
        };
        let ours = Contestant { store: Kind::Percolite, ..contestant.clone() };
        let against = std::slice::from_ref(contestant);
        Summary {
            title: contestant.setting.to_string(),
            setting: contestant.setting.clone(),
            store: contestant.store,
            rate: Spread::of(all.iter().map(|one| one.rate).collect()),
            percolite_over_it: Spread::of(outcomes.ratios(&ours, against, conditions, rounds)),
            median: (!all.is_empty()).then(|| Measured {
                rate: median(|one| one.rate).unwrap_or_default(),
                operations: all.iter().map(|one| one.operations).sum(),
                commits: all.iter().map(|one| one.commits).sum(),
                aborts_per_commit: median_of(|one| one.aborts_per_commit),
                processor: median(|one| one.processor).unwrap_or_default(),
                p50: median(|one| one.p50).unwrap_or_default(),
                p95: median(|one| one.p95).unwrap_or_default(),
                p99: median(|one| one.p99).unwrap_or_default(),
                p999: median(|one| one.p999).unwrap_or_default(),
                disk_per_byte: median_of(|one| one.disk_per_byte),
                dirtied_per_byte: median_of(|one| one.dirtied_per_byte),
                loaded_beside: median_of(|one| one.loaded_beside),
                peak_bytes: all.iter().map(|one| one.peak_bytes).max().unwrap_or_default(),
                ..Measured::default()
            }),
            failed: outcomes.failure(contestant, conditions, rounds).map(str::to_owned),
        }
    };
    contestants.iter().map(one).collect()
}

/// Measures. `None` if the run was interrupted.
pub fn run(choice: &Choice, arguments: &Arguments, journal: &mut Journal) -> Result<Option<(Plan, Vec<Summary>)>> {
    let contestants = choice.contestants()?;
    let plan = Plan { contestants, conditions: arguments.conditions(), rounds: arguments.rounds() };
    let scratch = arguments.scratch()?;
    if !rounds::run(&plan, &scratch, journal)? {
        return Ok(None);
    }
    let summaries = summarize(&plan.contestants, &journal.outcomes, &plan.conditions, plan.rounds);
    Ok(Some((plan, summaries)))
}

/// The heads of the columns of figures. The last one is for what more clients loaded meanwhile, where there are such.
const COLUMNS: [&str; 11] = [
    "a second",
    "least..greatest",
    "percolite over it",
    "aborts/commit",
    "processor",
    "p50",
    "p99",
    "p99.9",
    "written/byte",
    "peak memory",
    "loaded beside",
];

/// The heads of the columns that a table of these has.
pub fn columns(group: &[Summary]) -> &'static [&'static str] {
    let has_loaded = |one: &Summary| one.median.as_ref().is_some_and(|median| median.loaded_beside.is_some());
    let without = COLUMNS.len() - 1;
    if group.iter().any(has_loaded) { &COLUMNS } else { &COLUMNS[..without] }
}

fn written(median: &Measured) -> Option<String> {
    let to_disk = median.disk_per_byte.map(|ratio| format!("{ratio:.1}"));
    to_disk.or_else(|| median.dirtied_per_byte.map(|ratio| format!("{ratio:.1} dirtied")))
}

/// A store's figures, as they stand below [`columns`]; there may be fewer of those.
pub fn figures(summary: &Summary) -> [String; COLUMNS.len()] {
    let or_none = |text: Option<String>| text.unwrap_or_default();
    let (rate, median) = (summary.rate, summary.median.as_ref());
    [
        or_none(rate.map(|rate| count(rate.median))),
        or_none(rate.map(|rate| format!("{}..{}", count(rate.least), count(rate.greatest)))),
        or_none(summary.percolite_over_it.map(|ratio| ratio.to_string())),
        or_none(median.and_then(|one| one.aborts_per_commit).map(|aborts| format!("{aborts:.3}"))),
        or_none(median.map(|one| time(one.processor))),
        or_none(median.map(|one| time(one.p50))),
        or_none(median.map(|one| time(one.p99))),
        or_none(median.map(|one| time(one.p999))),
        or_none(median.and_then(written)),
        or_none(median.map(|one| format!("{} MiB", one.peak_bytes >> 20))),
        or_none(median.and_then(|one| one.loaded_beside).map(|rate| format!("{}/s", count(rate)))),
    ]
}

/// A table for each setting, as people read them.
pub fn show(summaries: &[Summary]) -> Vec<(String, Table)> {
    let groups = summaries.chunk_by(|one, next| one.setting == next.setting);
    let table = |group: &[Summary]| {
        let mut table = Table::new();
        table.load_preset(comfy_table::presets::UTF8_HORIZONTAL_ONLY);
        let columns = columns(group);
        table.set_header(std::iter::once(&"store").chain(columns));
        for summary in group {
            let mut cells = vec![summary.store.name().to_owned()];
            match &summary.failed {
                Some(why) => cells.push(format!("FAILED: {why}")),
                None => cells.extend(figures(summary).into_iter().take(columns.len())),
            }
            table.add_row(cells);
        }
        for column in table.column_iter_mut().skip(1) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        let first = group.first().map(|one| (one.title.clone(), one.setting.work.unit()));
        (first.map_or_else(String::new, |(title, unit)| format!("{title}: {unit} a second")), table)
    };
    groups.map(table).collect()
}

/// With three digits that mean something.
pub fn count(number: f64) -> String {
    match number {
        _ if number >= 9_999_500.0 => format!("{:.1} M", number / 1e6),
        _ if number >= 999_500.0 => format!("{:.2} M", number / 1e6),
        _ if number >= 9_995.0 => format!("{:.1} k", number / 1e3),
        _ if number >= 999.5 => format!("{:.2} k", number / 1e3),
        _ if number >= 99.5 => format!("{number:.0}"),
        _ => format!("{number:.1}"),
    }
}

/// As much of it as means something.
pub fn time(micros: f64) -> String {
    match micros {
        _ if micros >= 1e6 => format!("{:.2} s", micros / 1e6),
        _ if micros >= 1e3 => format!("{:.2} ms", micros / 1e3),
        _ if micros >= 10.0 => format!("{micros:.0} µs"),
        _ => format!("{micros:.2} µs"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_short() {
        let cases = [
            (12_345_678.0, "12.3 M"),
            (1_234_567.0, "1.23 M"),
            (45_678.0, "45.7 k"),
            (9_999.0, "10.0 k"),
            (99.96, "100"),
            (1.25, "1.2"),
        ];
        for (number, text) in cases {
            assert_eq!(count(number), text);
        }
    }

    #[test]
    fn stores_that_cannot_do_a_workload_are_left_out() {
        let choice = |stores: &[Kind]| Choice {
            workloads: vec![Name::TimeTravel],
            stores: stores.to_vec(),
            clients: vec![1],
            rows: vec![10],
            touched: 2,
            skew: Skew::Uniform,
            buffered: false,
        };
        let stores: Vec<Kind> = choice(&[]).contestants().unwrap().iter().map(|one| one.store).collect();
        assert_eq!(stores, [Kind::Percolite, Kind::PercoliteTwoPhase, Kind::Surrealkv]);
        assert!(choice(&[Kind::Redb]).contestants().is_err());
    }
}
