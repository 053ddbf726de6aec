//! How often each store really syncs: the same run, short and long, under strace.
//!
//! With one client nobody can share a sync, so a store that acknowledges durable commits makes at least one for each. With several
//! a sync can serve one commit of each, since none of them goes on before it has returned, and no more; so fewer are wrong, and as many
//! are no proof, since not everybody shares them as well as that. What
//! differs between the two runs is what the additional commits cost; opening, closing and preparing are in both. A sync that
//! a file was opened with (`O_DSYNC`, as LMDB does it for its meta page) is no system call of its own and is not seen.

use std::collections::BTreeMap;
use std::fs;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};
use comfy_table::Table;
use serde::Serialize;

use crate::child::Scratch;
use crate::dice::Skew;
use crate::peer::Kind;
use crate::spec::{Conditions, Outcome, Setting};
use crate::statistics::Contestant;
use crate::workload::{Transfers, Workload};

/// Commits, of all clients together.
const SHORT: u64 = 160;
const LONG: u64 = 1760;
const MANY_CLIENTS: u64 = 16;
/// One, but for a few commits of the longer run; with several clients, but for how each run begins and ends.
const ENOUGH: f64 = 0.99;
const ENOUGH_OF_MANY: f64 = 0.8;
/// Of all calls that have something written, these make it durable.
const CALLS: &str = "trace=fsync,fdatasync";

type Calls = BTreeMap<String, u64>;

/// What one store did.
#[derive(Serialize)]
pub struct Syncs {
    pub store: Kind,
    pub durable: bool,
    pub clients: u64,
    /// Each call, for a commit.
    pub per_commit: BTreeMap<String, f64>,
    pub failed: Option<String>,
}

impl Syncs {
    fn sum(&self) -> f64 {
        // The sum of nothing is -0.
        self.per_commit.values().sum::<f64>().max(0.0)
    }

    /// Whether it did what it was asked for.
    #[allow(clippy::cast_precision_loss, reason = "a few clients")]
    pub fn is_right(&self) -> bool {
        let enough = if self.clients == 1 { ENOUGH } else { ENOUGH_OF_MANY };
        self.failed.is_none() && (!self.durable || self.sum() >= enough / self.clients as f64)
    }
}

/// Why it cannot be told on this machine, if it cannot.
pub fn skipped() -> Option<String> {
    let works = Command::new("strace").args(["-c", "-o", "/dev/null", "true"]).stderr(Stdio::null()).status();
    match works {
        Ok(status) if status.success() => None,
        Ok(status) => Some(format!("strace cannot trace here ({status})")),
        Err(why) => Some(format!("strace does not run: {why}")),
    }
}

/// `None` if the run was interrupted.
pub fn run(stores: &[Kind], conditions: &Conditions, scratch: &Scratch) -> Result<Option<Vec<Syncs>>> {
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
                    Some(Err(why)) => failed = Some(why),
                }
            }
            let per_commit = match &counts[..] {
                [short, long] => difference(short, long),
                _ => BTreeMap::new(),
            };
            all.push(Syncs { store, durable, clients, per_commit, failed });
        }
    }
    Ok(Some(all))
}

/// The calls of a run, or how it failed.
fn count(
    store: Kind,
    durable: bool,
    clients: u64,
    conditions: &Conditions,
    scratch: &Scratch,
) -> Result<Option<Result<Calls, String>>> {
    let work = Workload::Transfers(Transfers { accounts: 1000, touched: 2, skew: Skew::Uniform });
    let contestant = Contestant { setting: Setting { work, clients, durable }, store };
    let (counts, spec) = (scratch.path("counts"), contestant.spec(conditions, 0));
    let name = counts.to_str().context("the folder's name is no text")?;
    let outcome = scratch.run_with(&spec, &["strace", "-f", "--seccomp-bpf", "-c", "-o", name, "-e", CALLS])?;
    Ok(match outcome {
        None => None,
        Some(Outcome::Failed(why)) => Some(Err(why)),
        Some(Outcome::Measured(_)) => Some(Ok(parse(&fs::read_to_string(&counts)?)?)),
    })
}

/// The table of `strace -c`: share, seconds, microseconds a call, calls, perhaps errors, name. Nothing of what was asked
/// for, and it is empty.
fn parse(table: &str) -> Result<Calls> {
    let mut calls = Calls::new();
    for line in table.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            [share, _, _, count, .., name] if share.parse::<f64>().is_ok() && name != "total" => {
                let Ok(count) = count.parse() else { bail!("strace says {line:?}") };
                calls.insert(name.to_owned(), count);
            }
            _ => {}
        }
    }
    Ok(calls)
}

#[allow(clippy::cast_precision_loss, reason = "thousands of calls")]
fn difference(short: &Calls, long: &Calls) -> BTreeMap<String, f64> {
    let of = |calls: &Calls, name: &str| calls.get(name).copied().unwrap_or_default() as f64;
    let names = short.keys().chain(long.keys());
    let a_commit = |name: &String| (of(long, name) - of(short, name)) / (LONG - SHORT) as f64;
    names.map(|name| (name.clone(), a_commit(name))).filter(|(_, calls)| *calls > 0.0).collect()
}

/// As people read it.
pub fn show(all: &[Syncs]) -> Table {
    let mut table = Table::new();
    table.load_preset(comfy_table::presets::UTF8_HORIZONTAL_ONLY);
    table.set_header(["commits", "clients", "store", "syncs a commit", "by"]);
    for one in all {
        let by: Vec<String> = one.per_commit.iter().map(|(name, calls)| format!("{calls:.3} {name}")).collect();
        let sum = match &one.failed {
            Some(why) => format!("failed: {why}"),
            None if one.is_right() => format!("{:.3}", one.sum()),
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
    fn calls_are_read_from_the_table() {
        let calls = parse(TABLE).unwrap();
        assert_eq!(calls, Calls::from([("fdatasync".to_owned(), 1106), ("fsync".to_owned(), 10)]));
        assert!(parse("").unwrap().is_empty());
    }

    #[test]
    fn durable_is_who_syncs_at_every_commit() {
        let syncs = |durable, clients, calls| Syncs {
            store: Kind::Redb,
            durable,
            clients,
            per_commit: BTreeMap::from([("fdatasync".to_owned(), calls)]),
            failed: None,
        };
        assert!(syncs(true, 1, 1.0).is_right() && syncs(true, 4, 0.24).is_right() && syncs(false, 1, 0.0).is_right());
        assert!(!syncs(true, 1, 0.5).is_right() && !syncs(true, 4, 0.19).is_right());
    }

    #[test]
    fn what_both_runs_have_is_no_part_of_a_commit() {
        let calls = |count| Calls::from([("fdatasync".to_owned(), count), ("fsync".to_owned(), 7)]);
        assert_eq!(
            difference(&calls(106), &calls(106 + LONG - SHORT)),
            BTreeMap::from([("fdatasync".to_owned(), 1.0)])
        );
    }
}
