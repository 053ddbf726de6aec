//! `run`: any workloads on any stores, each compared with percolite.

use anyhow::{Result, ensure};
use clap::{Args, ValueEnum};

use crate::args::CommonArgs;
use crate::generator::Skew;
use crate::peer::StoreKind;
use crate::rounds::{self, Plan, ResultsFile};
use crate::spec::Setting;
use crate::statistics::Entry;
use crate::summary::{Summary, summarize};
use crate::workload::{
    BulkLoad, Counters, HotRow, Index, LongSnapshot, Mix, ReadKind, Reads, ReadsDuringLoad, TimeTravel, Transfers,
    Workload, Ycsb,
};

/// The workloads of the command line.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum WorkloadName {
    /// Read and write a few accounts
    Transfers,
    /// Transfers beside snapshots that stay open for ten seconds
    LongSnapshot,
    /// YCSB A: half reads, half updates
    YcsbA,
    /// YCSB B: 95 % reads, 5 % updates
    YcsbB,
    /// YCSB C: reads
    YcsbC,
    /// YCSB D: 95 % reads of the newest rows, 5 % inserts
    YcsbD,
    /// YCSB E: 95 % scans, 5 % inserts
    YcsbE,
    /// YCSB F: half reads, half read-modify-writes
    YcsbF,
    /// Insert a record and its index entry
    Index,
    /// Increment a counter
    Counters,
    /// Load sorted rows into an empty store
    BulkLoad,
    /// Point reads
    Get,
    /// Point reads of rows written since the store was opened
    GetRecent,
    /// Reads of 16 rows at a time
    MultiGet,
    /// Scans of 100 rows
    Scan,
    /// Scans of 10,000 rows
    LongScan,
    /// Point reads at earlier timestamps
    TimeTravel,
    /// Point reads during a load
    ReadsDuringLoad,
    /// Reads of one row with `--rows` versions (percolite only)
    HotRow,
}

#[derive(Args)]
pub struct RunArgs {
    /// The workloads
    #[arg(required = true)]
    pub workloads: Vec<WorkloadName>,
    /// Only these stores [default: all that support the workload]
    #[arg(long, value_delimiter = ',')]
    pub stores: Vec<StoreKind>,
    /// Numbers of concurrent clients
    #[arg(long, value_delimiter = ',', default_values_t = [1, 16, 64], value_parser = clap::value_parser!(u64).range(1..=256))]
    pub clients: Vec<u64>,
    /// Numbers of rows: accounts, counters, versions
    #[arg(long, value_delimiter = ',', default_values_t = [10_000], value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    pub rows: Vec<u64>,
    /// Rows that a transfer reads and writes
    #[arg(long, default_value_t = 2)]
    pub rows_per_transfer: usize,
    /// Distribution of the rows, unless the workload defines it
    #[arg(long, default_value = "uniform")]
    pub skew: Skew,
    /// Acknowledge commits before they survive a power cut
    #[arg(long)]
    pub buffered: bool,
}

impl RunArgs {
    /// Every supported combination, each once.
    pub fn entries(&self) -> Result<Vec<Entry>> {
        let mut all = Vec::new();
        for &name in &self.workloads {
            for &rows in &self.rows {
                for &clients in &self.clients {
                    let work = self.work(name, rows);
                    let clients = if work.is_single_run() { 1 } else { clients };
                    let setting = Setting { work, clients, durable: !self.buffered };
                    let supports = |store: &StoreKind| setting.work.supports(*store);
                    let chosen = if self.stores.is_empty() { StoreKind::value_variants() } else { &self.stores };
                    let one = |&store: &StoreKind| Entry { setting: setting.clone(), store };
                    let stores: Vec<Entry> = chosen.iter().filter(|store| supports(store)).map(one).collect();
                    ensure!(!stores.is_empty(), "none of the stores supports this: {}", setting.work);
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

    fn work(&self, name: WorkloadName, rows: u64) -> Workload {
        let skew = self.skew;
        let ycsb = |mix| Workload::Ycsb(Ycsb { mix, rows });
        let reads = |kind| Workload::Reads(Reads { rows, kind, skew });
        match name {
            WorkloadName::Transfers => {
                Workload::Transfers(Transfers { accounts: rows, rows_per_transfer: self.rows_per_transfer, skew })
            }
            WorkloadName::LongSnapshot => Workload::LongSnapshot(LongSnapshot {
                transfers: Transfers { accounts: rows, rows_per_transfer: self.rows_per_transfer, skew },
            }),
            WorkloadName::YcsbA => ycsb(Mix::A),
            WorkloadName::YcsbB => ycsb(Mix::B),
            WorkloadName::YcsbC => ycsb(Mix::C),
            WorkloadName::YcsbD => ycsb(Mix::D),
            WorkloadName::YcsbE => ycsb(Mix::E),
            WorkloadName::YcsbF => ycsb(Mix::F),
            WorkloadName::Index => Workload::Index(Index {}),
            WorkloadName::Counters => Workload::Counters(Counters { counters: rows, skew }),
            WorkloadName::BulkLoad => Workload::BulkLoad(BulkLoad { rows }),
            WorkloadName::Get => reads(ReadKind::Get),
            WorkloadName::GetRecent => reads(ReadKind::GetRecent),
            WorkloadName::MultiGet => reads(ReadKind::MultiGet),
            WorkloadName::Scan => reads(ReadKind::Scan),
            WorkloadName::LongScan => reads(ReadKind::LongScan),
            WorkloadName::TimeTravel => Workload::TimeTravel(TimeTravel { rows }),
            WorkloadName::ReadsDuringLoad => Workload::ReadsDuringLoad(ReadsDuringLoad { rows }),
            WorkloadName::HotRow => Workload::HotRow(HotRow { versions: rows }),
        }
    }
}

/// Runs the measurements. `None` if the run was interrupted.
pub fn run(run: &RunArgs, args: &CommonArgs, results: &mut ResultsFile) -> Result<Option<(Plan, Vec<Summary>)>> {
    let entries = run.entries()?;
    let plan = Plan { entries, conditions: args.conditions(), rounds: args.rounds() };
    let scratch = args.scratch_dir()?;
    if !rounds::run(&plan, &scratch, results)? {
        return Ok(None);
    }
    let summaries = summarize(&plan.entries, &results.outcomes, &plan.conditions, plan.rounds);
    Ok(Some((plan, summaries)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unsupported_stores_are_left_out() {
        let args = |stores: &[StoreKind]| RunArgs {
            workloads: vec![WorkloadName::TimeTravel],
            stores: stores.to_vec(),
            clients: vec![1],
            rows: vec![10],
            rows_per_transfer: 2,
            skew: Skew::Uniform,
            buffered: false,
        };
        let stores: Vec<StoreKind> = args(&[]).entries().unwrap().iter().map(|one| one.store).collect();
        assert_eq!(stores, [StoreKind::Percolite, StoreKind::PercoliteTwoPhase, StoreKind::Surrealkv]);
        assert!(args(&[StoreKind::Redb]).entries().is_err());
    }
}
