//! `syncs`: how often each store syncs, by a short and a long run under strace.
//!
//! Both runs include open, close and preparation, so the difference between them is the cost of the
//! additional commits.
//!
//! With one client no sync can be shared, so a store with durable commits makes at least one per
//! commit. With several clients, a sync can cover at most one commit of each client, since a client
//! waits until its commit is durable. Fewer syncs than this therefore mean that commits are not
//! durable. More syncs prove nothing, since not every store shares syncs that well.
//!
//! Writes to a file opened with `O_DSYNC`, such as those of LMDB's meta page, sync without a
//! separate system call, so strace does not count these syncs.

use std::collections::BTreeMap;
use std::fs;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};
use comfy_table::Table;
use serde::Serialize;

use crate::child::ScratchDir;
use crate::generator::Skew;
use crate::peer::StoreKind;
use crate::spec::{Conditions, Outcome, Setting};
use crate::statistics::Entry;
use crate::workload::{Transfers, Workload};

/// The commits of the short and of the long run, of all clients together.
const SHORT: u64 = 160;
const LONG: u64 = 1760;
const MANY_CLIENTS: u64 = 16;
/// With one client, the minimum of syncs per commit. With several clients, the minimum of syncs per
/// group, which has one commit of each client. Both are below 1 to allow for the start and the end
/// of a run.
const MIN_SYNCS_PER_COMMIT: f64 = 0.99;
const MIN_SYNCS_PER_GROUP: f64 = 0.8;
/// The system calls that make writes durable.
const TRACED_CALLS: &str = "trace=fsync,fdatasync";

type CallCounts = BTreeMap<String, u64>;

/// The syncs of one store.
#[derive(Serialize)]
pub struct SyncCounts {
    pub store: StoreKind,
    pub durable: bool,
    pub clients: u64,
    /// How often each system call was made per commit.
    pub per_commit: BTreeMap<String, f64>,
    pub failed: Option<String>,
}

impl SyncCounts {
    fn sum(&self) -> f64 {
        // The sum of no numbers is -0, which would be printed.
        self.per_commit.values().sum::<f64>().max(0.0)
    }

    /// Whether durable commits are synced.
    #[allow(clippy::cast_precision_loss, reason = "a few clients")]
    pub fn is_ok(&self) -> bool {
        let enough = if self.clients == 1 { MIN_SYNCS_PER_COMMIT } else { MIN_SYNCS_PER_GROUP };
        self.failed.is_none() && (!self.durable || self.sum() >= enough / self.clients as f64)
    }
}

/// Why syncs cannot be counted on this machine; `None` if they can.
pub fn unavailable() -> Option<String> {
    let works = Command::new("strace").args(["-c", "-o", "/dev/null", "true"]).stderr(Stdio::null()).status();
    match works {
        Ok(status) if status.success() => None,
        Ok(status) => Some(format!("strace cannot trace processes on this machine: {status}")),
        Err(error) => Some(format!("cannot run strace: {error}")),
    }
}

/// Counts the syncs of each store. `None` if the run was interrupted.
pub fn run(stores: &[StoreKind], conditions: &Conditions, scratch: &ScratchDir) -> Result<Option<Vec<SyncCounts>>> {
    let mut all = Vec::new();
    for (durable, clients) in [(true, 1), (true, MANY_CLIENTS), (false, 1)] {
        for &store in stores {
            let mut counts = Vec::new();
            let mut failed = None;
            for commits in [SHORT, LONG] {
                let conditions = Conditions { operations: Some(commits / clients), ..conditions.clone() };
                match count(store, durable, clients, &conditions, scratch)? {
                    None => return Ok(None),
                    Some(Ok(calls)) => counts.push(calls),
                    Some(Err(error)) => failed = Some(error),
                }
            }
            let per_commit = match &counts[..] {
                [short, long] => difference(short, long),
                _ => BTreeMap::new(),
            };
            all.push(SyncCounts { store, durable, clients, per_commit, failed });
        }
    }
    Ok(Some(all))
}

/// The system calls of a run, or its failure.
fn count(
    store: StoreKind,
    durable: bool,
    clients: u64,
    conditions: &Conditions,
    scratch: &ScratchDir,
) -> Result<Option<Result<CallCounts, String>>> {
    let work = Workload::Transfers(Transfers { accounts: 1000, rows_per_transfer: 2, skew: Skew::Uniform });
    let entry = Entry { setting: Setting { work, clients, durable }, store };
    let (counts, spec) = (scratch.path("counts"), entry.spec(conditions, 0));
    let name = counts.to_str().context("the name of the directory is not UTF-8")?;
    let outcome = scratch.run_with(&spec, &["strace", "-f", "--seccomp-bpf", "-c", "-o", name, "-e", TRACED_CALLS])?;
    Ok(match outcome {
        None => None,
        Some(Outcome::Failed(error)) => Some(Err(error)),
        Some(Outcome::Measured(_)) => Some(Ok(parse(&fs::read_to_string(&counts)?)?)),
    })
}

/// Parses the table of `strace -c`: share, seconds, microseconds per call, calls, sometimes errors,
/// name. The table is empty if none of the calls was made.
fn parse(table: &str) -> Result<CallCounts> {
    let mut calls = CallCounts::new();
    for line in table.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            [share, _, _, count, .., name] if share.parse::<f64>().is_ok() && name != "total" => {
                let Ok(count) = count.parse() else { bail!("cannot parse strace's line {line:?}") };
                calls.insert(name.to_owned(), count);
            }
            _ => {}
        }
    }
    Ok(calls)
}

#[allow(clippy::cast_precision_loss, reason = "thousands of calls")]
fn difference(short: &CallCounts, long: &CallCounts) -> BTreeMap<String, f64> {
    let of = |calls: &CallCounts, name: &str| calls.get(name).copied().unwrap_or_default() as f64;
    let names = short.keys().chain(long.keys());
    let a_commit = |name: &String| (of(long, name) - of(short, name)) / (LONG - SHORT) as f64;
    names.map(|name| (name.clone(), a_commit(name))).filter(|(_, calls)| *calls > 0.0).collect()
}

pub fn show(all: &[SyncCounts]) -> Table {
    let mut table = Table::new();
    table.load_preset(comfy_table::presets::UTF8_HORIZONTAL_ONLY);
    table.set_header(["commits", "clients", "store", "syncs/commit", "calls"]);
    for one in all {
        let by: Vec<String> = one.per_commit.iter().map(|(name, calls)| format!("{calls:.3} {name}")).collect();
        let sum = match &one.failed {
            Some(error) => format!("failed: {error}"),
            None if one.is_ok() => format!("{:.3}", one.sum()),
            None => format!("{:.3}: NOT DURABLE", one.sum()),
        };
        let (commits, clients) = (if one.durable { "durable" } else { "buffered" }, one.clients.to_string());
        table.add_row([commits, &clients, one.store.name(), &sum, &by.join(", ")]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "\
% time     seconds  usecs/call     calls    errors syscall
------ ----------- ----------- --------- --------- ----------------
 99.20    0.123456         117      1106           fdatasync
  0.80    0.000990          99        10         2 fsync
------ ----------- ----------- --------- --------- ----------------
100.00    0.124446         111      1116         2 total
";

    #[test]
    fn the_table_of_strace_is_parsed() {
        let calls = parse(TABLE).unwrap();
        assert_eq!(calls, CallCounts::from([("fdatasync".to_owned(), 1106), ("fsync".to_owned(), 10)]));
        assert!(parse("").unwrap().is_empty());
    }

    #[test]
    fn durable_means_a_sync_per_commit() {
        let syncs = |durable, clients, calls| SyncCounts {
            store: StoreKind::Redb,
            durable,
            clients,
            per_commit: BTreeMap::from([("fdatasync".to_owned(), calls)]),
            failed: None,
        };
        assert!(syncs(true, 1, 1.0).is_ok() && syncs(true, 4, 0.24).is_ok() && syncs(false, 1, 0.0).is_ok());
        assert!(!syncs(true, 1, 0.5).is_ok() && !syncs(true, 4, 0.19).is_ok());
    }

    #[test]
    fn common_calls_are_not_counted() {
        let calls = |count| CallCounts::from([("fdatasync".to_owned(), count), ("fsync".to_owned(), 7)]);
        assert_eq!(
            difference(&calls(106), &calls(106 + LONG - SHORT)),
            BTreeMap::from([("fdatasync".to_owned(), 1.0)])
        );
    }
}
