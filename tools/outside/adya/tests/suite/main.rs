//! `adya`'s workloads, with crashes while they run, judged by `adya`.
//!
//! Commits are durable, so every history must keep strong snapshot isolation: a transaction sees
//! everything that was acknowledged before it began, across kills and power cuts. `ROUNDS` is the
//! number of runs of each kind (1), `SEED` the first seed.

#![allow(clippy::unwrap_used, clippy::panic, missing_docs, reason = "a test that cannot continue fails")]

#[path = "../../../../crashtest/src/disk/mod.rs"]
#[allow(dead_code, reason = "the small disks are for another use")]
mod disk;
mod server;

use std::time::Duration;

use adya::r#gen::{GenOpts, Kind};
use adya::run::RunOpts;
use adya::{History, Opts, Valid, Workload};

use crate::server::{Crashes, Server, Setting};

const PROTOCOLS: [&[&str]; 3] = [&[], &["--two-phase"], &["--large"]];

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).map_or(default, |text| text.parse().unwrap())
}

/// The verdict on one run: whether it is valid, and what was found.
fn run(setting: &Setting, kind: Kind, seed: u64) -> Option<(bool, u64)> {
    let server = match Server::start(setting, seed) {
        Ok(server) => server,
        Err(reason) => {
            println!("SKIPPED, {:?}: {reason}", setting.crashes);
            return None;
        }
    };
    let opts = RunOpts {
        processes: 8,
        txns: if setting.crashes == Crashes::None { 2000 } else { usize::MAX },
        time_limit: (setting.crashes != Crashes::None).then_some(Duration::from_secs(3)),
        r#gen: GenOpts { kind, ..GenOpts::default() },
        seed,
        nemesis: None,
    };
    let (history, stats, crashes) = server.run(&opts);
    let workload = if kind == Kind::ListAppend { Workload::ListAppend } else { Workload::RwRegister };
    let opts = Opts { models: vec!["strong-snapshot-isolation".into()], ..Opts::default() };
    let report = adya::check(&History::from_json(&history).unwrap(), workload, &opts);
    println!(
        "{kind:?} {:?} {:?} SEED={seed}: {:?}; {} committed, {} refused, {} unknown, {crashes} crashes; {:?}",
        setting.options, setting.crashes, report.valid, stats.ok, stats.fail, stats.info, report.anomaly_types
    );
    if report.valid != Valid::True {
        let path = std::env::temp_dir().join(format!("adya-{seed}.jsonl"));
        std::fs::write(&path, &history).unwrap();
        println!("the history is in {}", path.display());
    }
    assert!(stats.ok > 100, "only {} transactions committed", stats.ok);
    Some((report.valid == Valid::True, crashes))
}

fn all_are_valid(kind: Kind, crashes: Crashes) {
    let mut total = 0;
    for options in PROTOCOLS {
        for round in 0..number("ROUNDS", 1) {
            let seed = number("SEED", u64::from(std::process::id())) + round;
            let setting = Setting { options: options.to_vec(), crashes };
            let Some((valid, crashed)) = run(&setting, kind, seed) else { return };
            assert!(valid, "{setting:?}, SEED={seed}");
            total += crashed;
        }
    }
    assert!(crashes == Crashes::None || total > 5, "only {total} crashes");
}

#[test]
fn list_append_is_valid() {
    all_are_valid(Kind::ListAppend, Crashes::None);
}

#[test]
fn list_append_is_valid_with_kills() {
    all_are_valid(Kind::ListAppend, Crashes::Kills);
}

#[test]
fn list_append_is_valid_with_power_cuts() {
    all_are_valid(Kind::ListAppend, Crashes::PowerCuts);
}

#[test]
fn rw_register_is_valid() {
    all_are_valid(Kind::RwRegister, Crashes::None);
}

#[test]
fn rw_register_is_valid_with_kills() {
    all_are_valid(Kind::RwRegister, Crashes::Kills);
}

#[test]
fn rw_register_is_valid_with_power_cuts() {
    all_are_valid(Kind::RwRegister, Crashes::PowerCuts);
}

/// A kill takes nothing that was acknowledged, durable or not.
#[test]
fn buffered_commits_are_valid_with_kills() {
    let setting = Setting { options: vec!["--buffered"], crashes: Crashes::Kills };
    let seed = number("SEED", u64::from(std::process::id()));
    let (valid, _) = run(&setting, Kind::ListAppend, seed).unwrap();
    assert!(valid, "SEED={seed}");
}

/// The verdict means something: a store that loses updates is found.
#[test]
fn lost_updates_are_found() {
    let setting = Setting { options: vec!["--lose-updates"], crashes: Crashes::None };
    let (valid, _) = run(&setting, Kind::ListAppend, number("SEED", u64::from(std::process::id()))).unwrap();
    assert!(!valid);
}

/// The power cuts mean something: they take buffered commits, and this is found.
#[test]
fn buffered_commits_are_lost_by_power_cuts() {
    let setting = Setting { options: vec!["--buffered"], crashes: Crashes::PowerCuts };
    let seed = number("SEED", u64::from(std::process::id()));
    let found = (0..3).any(|round| match run(&setting, Kind::ListAppend, seed + round) {
        Some((valid, _)) => !valid,
        None => true,
    });
    assert!(found, "three runs with power cuts lost nothing");
}
