//! Power cuts: a store on a real file system that stops at a random time and loses unsynced data.
//!
//! A store has a few incarnations on one disk. In each incarnation clients run in a child process
//! until the power cut: the file system is shut down without writing its journal, the process is
//! killed, and the file system is mounted again. Then a copy of the store is opened and verified:
//! every commit acknowledged as durable must be there, and other commits may be lost from the end
//! only. The next incarnation continues with the original store.
//!
//! A power cut without a loss proves nothing. So just before each cut the harness appends unsynced
//! bytes to a synced file and creates a file without a sync, and counts how often they are lost. In
//! addition the log of the store must be shorter after some cut than before it.
//!
//! [`logs`] constructs what a power cut does rarely: the second-to-last segment of the log loses
//! its end, and the last one does not.

mod control;
pub mod logs;

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

use percolite::Durability;

use crate::child::{ChildConfig, DurabilityMode, SYNC_EVERY, check_large_commits, count_large_commits, workload_for};
use crate::client_log::ClientLog;
use crate::disk::Disk;
use crate::event_pipe::{ChildMonitor, Received};
use crate::interrupt;
use crate::layer_args::{LayerArgs, RunClock, copy_dir, save_failure, scratch_dir};
use crate::layer_result::LayerResult;
use crate::lock_workload::event::LockEvent;
use crate::lock_workload::final_checks;
use crate::log_parser::{segments, valid_length};
use crate::restores::Restores;
use crate::rng::SeededRng;
use crate::verify_store::{StoreReport, StoreUnderTest, verify, verify_restored};
use crate::violation::Violation;
use crate::workload;

const LAYER: &str = "powercut";
const DISK_KIB: u64 = 96 << 10;
const QUICK_CUTS: u64 = 20;
const CUTS: u64 = 200;
/// Disks whose seed has one of these remainders modulo 5 flush continuously, and their clients
/// never sync.
const FLUSH_HEAVY: [u64; 2] = [2, 4];
/// The number of power cuts of one disk; the last disk of a run may have fewer.
const INCARNATIONS: u32 = 4;
/// A process that sends no event for this time hangs.
const HANG_TIMEOUT: Duration = Duration::from_secs(30);

/// A case of this layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Case {
    /// A disk whose power is cut a few times.
    Disk(u64),
    /// A log with a damaged segment.
    Log(u64),
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Disk(seed) => write!(f, "{LAYER}:{seed}"),
            Self::Log(seed) => write!(f, "{LAYER}:log-{seed}"),
        }
    }
}

impl FromStr for Case {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("invalid case {text:?}; expected {LAYER}:SEED or {LAYER}:log-SEED");
        let case = text.strip_prefix(LAYER).and_then(|rest| rest.strip_prefix(':')).ok_or_else(wrong)?;
        match case.strip_prefix("log-") {
            Some(seed) => seed.parse().map(Self::Log).map_err(|_| wrong()),
            None => case.parse().map(Self::Disk).map_err(|_| wrong()),
        }
    }
}

/// Runs the layer.
///
/// # Errors
/// An invalid case, and errors of the harness.
pub fn run(args: &LayerArgs) -> anyhow::Result<LayerResult> {
    percolite::mutants::enable_mutant(args.mutant);
    let mut outcome = LayerResult::new(LAYER);
    let clock = args.clock();
    match args.case.as_deref().map(str::parse).transpose().map_err(anyhow::Error::msg)? {
        Some(Case::Disk(seed)) => run_disk(args, seed, INCARNATIONS, &mut outcome),
        Some(Case::Log(seed)) => logs::run_log(args, seed, &mut outcome),
        None => {
            run_all(args, clock, &mut outcome);
            if outcome.skipped.is_none() && outcome.failures.is_empty() && !interrupt::is_requested() {
                require_losses(args, &mut outcome);
            }
        }
    }
    outcome.seconds = clock.seconds();
    Ok(outcome)
}

fn run_all(args: &LayerArgs, clock: RunClock, outcome: &mut LayerResult) {
    let enough = if args.quick { QUICK_CUTS } else { CUTS };
    let mut seed = args.seed;
    while clock.allows(outcome.cases, enough) && outcome.skipped.is_none() && !args.should_stop(outcome) {
        let left = if args.time.is_some() { u64::from(INCARNATIONS) } else { enough - outcome.cases };
        run_disk(args, seed, INCARNATIONS.min(u32::try_from(left).unwrap_or(INCARNATIONS)), outcome);
        seed += 1;
    }
    // Damaged logs need no disk of their own.
    for seed in args.seed..args.seed + if args.quick { 1 } else { 4 } {
        if !args.should_stop(outcome) {
            logs::run_log(args, seed, outcome);
        }
    }
}

/// Requires that power cuts have lost something, since otherwise they prove nothing.
fn require_losses(args: &LayerArgs, outcome: &mut LayerResult) {
    let replay = args.replay(&Case::Disk(args.seed).to_string());
    if let Some(violation) = check_large_commits(outcome) {
        outcome.failures.push(crate::layer_result::Failure { replay, violations: vec![violation], saved_in: None });
    }
    for metric in [control::TAILS, control::ENTRIES, LOG_BYTES] {
        if sum(outcome, metric) <= 0.0 {
            let what = format!("{metric}: none in {} power cuts", outcome.cases);
            let failure = crate::layer_result::Failure {
                replay: args.replay(&Case::Disk(args.seed).to_string()),
                violations: vec![Violation::new("harness", what)],
                saved_in: None,
            };
            outcome.failures.push(failure);
        }
    }
}

const LOG_BYTES: &str = "lost bytes of the store's log";

fn sum(outcome: &LayerResult, metric: &str) -> f64 {
    outcome.metrics.get(metric).into_iter().flatten().sum()
}

/// The configuration from a seed; each incarnation gets a seed of its own.
fn plan_incarnations(seed: u64, args: &LayerArgs, disk: &Disk, rng: &mut SeededRng) -> ChildConfig {
    let (workload, large_transaction_bytes) = workload_for(seed, rng);
    let modes = [DurabilityMode::Sync, DurabilityMode::Sync, DurabilityMode::Buffered, DurabilityMode::Mixed];
    let small = rng.one_in(3);
    // If clients never sync the log, a power cut shows whether a flush syncs the segment before it
    // writes the tables.
    let unsynced = FLUSH_HEAVY.contains(&(seed % 5));
    ChildConfig {
        store_dir: disk.path().join("store"),
        incarnation: 0,
        workload: workload.into(),
        large_transaction_bytes,
        two_phase: seed.is_multiple_of(2),
        durability_mode: rng
            .pick(&modes)
            .map_or(DurabilityMode::Sync, |mode| if unsynced { DurabilityMode::Buffered } else { *mode }),
        clients: 2 + rng.below(4),
        transactions: 0,
        long_value_every: [0, 2, 8][rng.below(3)],
        history_ms: [None, Some(20)][rng.below(2)],
        // So small that buffers are flushed within an incarnation.
        write_buffer_bytes: if unsynced { 1 << 20 } else { 4 << 20 },
        filler_bytes: if small || unsynced { 30 << 10 } else { 0 },
        sync_every: if unsynced { 0 } else { SYNC_EVERY },
        seed: 0,
        mutant: args.mutant.map(|mutant| mutant.name().into()),
        restore_every: if rng.one_in(3) { 8 } else { 0 },
        lock_clients: [0, 3][rng.below(2)],
        ..ChildConfig::default()
    }
}

fn run_disk(args: &LayerArgs, seed: u64, incarnations: u32, outcome: &mut LayerResult) {
    let mut disk = match Disk::ext4(DISK_KIB) {
        Ok(disk) => disk,
        Err(error) => {
            outcome.skipped = Some(error);
            return;
        }
    };
    let mut rng = SeededRng::new(seed);
    let mut config = plan_incarnations(seed, args, &disk, &mut rng);
    let mut expected = Expected::default();
    for number in 0..incarnations {
        if interrupt::is_requested() {
            break;
        }
        config.incarnation = number;
        config.seed = rng.bits();
        let verified = cut_once(&mut disk, &config, &mut expected, &mut rng, outcome)
            .and_then(|()| verify_copy(&disk, &config, &expected));
        match verified {
            Ok(verified) => {
                outcome.cases += 1;
                outcome.unacknowledged_commits += verified.report.unacknowledged_commits;
                expected.client_log = verified.report.resolved_log.clone();
                if !verified.report.violations.is_empty() {
                    let Verified { report, saved } = verified;
                    let case = Case::Disk(seed).to_string();
                    let failure = save_failure(args, &case, saved.path(), Some(&report.client_log), report.violations);
                    outcome.failures.push(failure);
                    return;
                }
            }
            Err(_) if interrupt::is_requested() => return,
            Err(error) => {
                let violation = vec![Violation::new("harness", error)];
                let store_dir = disk.proc_path();
                outcome.failures.push(save_failure(args, &Case::Disk(seed).to_string(), &store_dir, None, violation));
                return;
            }
        }
    }
    outcome.transactions += expected.client_log.entries().count() as u64;
}

/// What the store must keep from all incarnations.
#[derive(Default)]
struct Expected {
    client_log: ClientLog,
    acknowledged: BTreeMap<u64, u64>,
    restores: Restores,
    lock_events: Vec<LockEvent>,
}

/// One incarnation, until the disk is mounted again.
fn cut_once(
    disk: &mut Disk,
    config: &ChildConfig,
    expected: &mut Expected,
    rng: &mut SeededRng,
    outcome: &mut LayerResult,
) -> Result<(), String> {
    let arguments = config.arguments().map_err(|error| error.to_string())?;
    let client_log = std::mem::take(&mut expected.client_log);
    let acknowledged = client_log.acknowledged();
    let mut child = ChildMonitor::start(disk.command(&arguments), client_log)
        .map_err(|error| format!("cannot start the child: {error}"))?;
    // The cut mostly comes while clients run, and sometimes while the store opens.
    if !rng.one_in(6) {
        child.wait(HANG_TIMEOUT, |received| received.ready);
        if interrupt::is_requested() {
            return Err("interrupted".into());
        }
    }
    let until = Duration::from_micros(rng.below(150_000) as u64);
    std::thread::sleep(until);
    let before = child.received();
    if let Some(call) = before.failed.first() {
        return Err(format!("unexpected error: {}: {}", call.call, call.text));
    }
    drop(before);

    control::write(&disk.proc_path()).map_err(|error| format!("control files: {error}"))?;
    // In half of the cases the process is stopped, so that it writes nothing after the log is
    // measured. The log must be measured here, since its files cannot be read after the cut.
    if rng.one_in(2) {
        child.stop().map_err(|error| format!("cannot stop the process: {error}"))?;
    }
    let long = log_bytes(&disk.proc_path().join("store"));
    // A sync during ext4's shutdown may succeed although the new file length is lost: the kernel
    // checks for the shutdown when a sync begins. A real power cut has no such window, so
    // acknowledgements are ignored from here on.
    child.received().ignore_answers = true;
    disk.cut_power().map_err(|error| format!("cannot cut the power: {error}"))?;
    std::thread::sleep(Duration::from_micros(rng.below(10_000) as u64));
    let (received, _) = child.end();
    disk.remount()?;
    let short = log_bytes(&disk.proc_path().join("store"));

    let Received { mut client_log, durable_ts, large_commits, restores, lock_events, .. } = received;
    expected.lock_events.extend(lock_events);
    expected.lock_events.extend(final_checks::store_gone(&expected.lock_events));
    expected.restores.append(restores);
    count_large_commits(outcome, config, large_commits);
    outcome.acknowledged += (client_log.acknowledged() - acknowledged) as u64;
    expected.acknowledged.extend(client_log.acknowledged_commits());
    client_log.allow_loss(config.incarnation, percolite::Timestamp::from_u64(durable_ts));
    let lost = control::count(&disk.proc_path()).map_err(|error| format!("control files: {error}"))?;
    outcome.unsynced_lost += lost.tails + lost.entries;
    outcome.count(control::TAILS, lost.tails);
    outcome.count(control::ENTRIES, lost.entries);
    outcome.count(LOG_BYTES, long.saturating_sub(short));
    expected.client_log = client_log;
    Ok(())
}

struct Verified {
    report: StoreReport,
    saved: tempfile::TempDir,
}

/// Verifies a copy of the store. A second copy stays unchanged, to be saved after a violation.
fn verify_copy(disk: &Disk, config: &ChildConfig, expected: &Expected) -> Result<Verified, String> {
    let found = disk.proc_path().join("store");
    let (saved, copy) = (scratch_dir().map_err(text)?, scratch_dir().map_err(text)?);
    if found.is_dir() {
        copy_dir(&found, saved.path()).map_err(text)?;
        copy_dir(&found, copy.path()).map_err(text)?;
    }
    let workload = workload::named(&config.workload).ok_or("no such workload")?;
    let target = StoreUnderTest {
        store_dir: copy.path(),
        workload,
        config: config.client_config(Durability::Sync),
        incarnation: INCARNATIONS + 1,
        acknowledged: &expected.acknowledged,
        lock_events: &expected.lock_events,
        reopen: true,
        check_files: true,
        is_checkpoint: false,
        accept_loss: None,
    };
    let mut report = verify(&target, expected.client_log.clone());
    if let Some(error) = &report.open_error {
        report.violations.push(Violation::new("the store opens", error.to_string()));
    } else if expected.restores.any_started() {
        let verified = verify_restored(copy.path(), &expected.restores).map_err(|error| error.to_string())?;
        report.violations.extend(verified);
    }
    Ok(Verified { report, saved })
}

fn text(error: std::io::Error) -> String {
    error.to_string()
}

/// Bytes of frames in the segments of the log.
fn log_bytes(store_dir: &Path) -> u64 {
    let files = segments(store_dir).unwrap_or_default().into_iter();
    files.filter_map(|file| std::fs::read(file).ok()).map(|file| valid_length(&file) as u64).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn case_names_round_trip() {
        for case in [Case::Disk(7), Case::Log(3)] {
            assert_eq!(case.to_string().parse(), Ok(case));
        }
        assert!("powercut:7/8".parse::<Case>().is_err());
    }
}
