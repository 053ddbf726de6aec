//! Failing disks: a write, a sync, a rename or the creation of a file fails below the store, or the
//! disk is full.
//!
//! A store that cannot continue must return the error and then refuse everything until it is opened
//! again: after a failed sync the state of the disk is unknown, and a later successful sync proves
//! nothing. No store may hang. After the next opening, without the fault, everything acknowledged
//! must be there. A fault can also kill the process inside RocksDB or inside the log, where there
//! is no crash point. After a failed read the store may go on, but the call must return the error.
//!
//! In many cases an incarnation without a fault comes first, so that faults hit existing stores as
//! well as new ones. The case names the call that fails. If the process makes fewer calls, an
//! earlier call is tried, so that every case hits its fault site. A case that never hits its site
//! is a failure.

pub mod fault;
pub mod sites;

use std::collections::BTreeMap;
use std::fmt;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::str::FromStr;
use std::time::Duration;

use percolite::Durability;
use rustix::process::Signal;

use self::fault::{Errno, Fault, File, Syscall};
use self::sites::{FaultSite, StoreAge};
use crate::child::{ChildConfig, DurabilityMode, check_large_commits, count_large_commits, workload_for};
use crate::client_log::ClientLog;
use crate::disk::Disk;
use crate::event_pipe::{Call, ChildMonitor, Received};
use crate::interrupt;
use crate::layer_args::{LayerArgs, copy_dir, save_failure, scratch_dir};
use crate::layer_result::{Failure, LayerResult, TableProgress};
use crate::rng::SeededRng;
use crate::verify_store::{StoreUnderTest, verify};
use crate::violation::Violation;
use crate::workload;

const LAYER: &str = "io-errors";
/// A process that sends no event for this time hangs.
const HANG_TIMEOUT: Duration = Duration::from_secs(30);
const QUICK_HANG_TIMEOUT: Duration = Duration::from_secs(10);
/// How many passes through the case list a full run makes.
const PASSES: u64 = 7;
/// One case with a full disk follows this many faults.
const DISK_FULL_EVERY: usize = 5;
/// How many attempts a case has to hit its call.
const ATTEMPTS: u32 = 8;
/// The space that is freed after the disk was full.
const BALLAST_KIB: u64 = 64 << 10;
/// The size of the largest disk that a case may fill.
const KIB_MAX: u64 = 64 << 10;
const BALLAST: &str = "ballast";
/// Errors after which the store must be opened again.
const EXPECTED_ERRORS: &[&str] = &["Closed", "Undetermined", "Io"];

/// What is injected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Injection {
    /// System calls of one kind fail.
    Fault(Fault),
    /// The disk has this many KiB.
    DiskFull(u64),
    /// The disk has this many KiB, and more after it was full.
    DiskFullThenFree(u64),
}

/// A case of this layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Case {
    /// The seed of the clients.
    pub seed: u64,
    /// What is injected.
    pub injection: Injection,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.injection {
            Injection::Fault(fault) => write!(f, "{LAYER}:{}/{fault}", self.seed),
            Injection::DiskFull(kib) => write!(f, "{LAYER}:{}/full.{kib}", self.seed),
            Injection::DiskFullThenFree(kib) => write!(f, "{LAYER}:{}/full-then-free.{kib}", self.seed),
        }
    }
}

impl FromStr for Case {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "invalid case {text:?}; expected {LAYER}:SEED/CALL.FILE.ERROR.N, as in {LAYER}:1/write.log.EIO.3, \
                 {LAYER}:SEED/full.KIB or {LAYER}:SEED/full-then-free.KIB, with 1 to {KIB_MAX} KiB"
            )
        };
        let (seed, injection) = text
            .strip_prefix(LAYER)
            .and_then(|rest| rest.strip_prefix(':'))
            .and_then(|rest| rest.split_once('/'))
            .ok_or_else(wrong)?;
        let kib = |kib: &str| kib.parse().ok().filter(|kib| (1..=KIB_MAX).contains(kib)).ok_or_else(wrong);
        let injection = match injection.split_once('.') {
            Some(("full", size)) => Injection::DiskFull(kib(size)?),
            Some(("full-then-free", size)) => Injection::DiskFullThenFree(kib(size)?),
            _ => Injection::Fault(sites::check(injection.parse()?)?),
        };
        Ok(Self { seed: seed.parse().map_err(|_| wrong())?, injection })
    }
}

/// Runs the layer.
///
/// # Errors
/// An invalid case, and errors of the harness.
pub fn run(args: &LayerArgs) -> anyhow::Result<LayerResult> {
    let mut outcome = LayerResult::new(LAYER);
    let clock = args.clock();
    if let Some(case) = &args.case {
        let case: Case = case.parse().map_err(anyhow::Error::msg)?;
        let lacking = match case.injection {
            Injection::Fault(_) => missing_strace(),
            Injection::DiskFull(_) | Injection::DiskFullThenFree(_) => missing_disks(),
        };
        match lacking {
            Some(reason) => outcome.skipped = Some(reason),
            None => run_case(args, case, &mut outcome)?,
        }
    } else {
        let all = all_cases()?;
        let possible = possible_cases(&all, &mut outcome);
        let of = possible.len() as u64;
        let enough = if args.quick { of } else { PASSES * of };
        let mut done = 0;
        while of > 0 && clock.allows(done, enough) && !args.should_stop(&outcome) {
            let next = &possible[usize::try_from((args.skip + done) % of)?];
            run_case(args, plan_case(next.as_ref(), args.seed.wrapping_add(done)), &mut outcome)?;
            done += 1;
        }
        if let Some(violations) = check_large_commits(&outcome) {
            outcome.failures.push(Failure { replay: args.replay(LAYER), violations: vec![violations], saved_in: None });
        }
        // The progress through the list is reported only if every case of it can be run here.
        outcome.progress = (possible.len() == all.len()).then_some(TableProgress { done, total: of });
    }
    outcome.seconds = clock.seconds();
    Ok(outcome)
}

/// All cases: every fault site with each of its errors, and full disks (`None`) in between.
fn all_cases() -> anyhow::Result<Vec<Option<(FaultSite, Errno)>>> {
    let faults = sites::all_cases()?;
    Ok(faults.chunks(DISK_FULL_EVERY).flat_map(|some| some.iter().cloned().map(Some).chain([None])).collect())
}

/// The cases that this machine can run; the others are reported as not run.
fn possible_cases(all: &[Option<(FaultSite, Errno)>], outcome: &mut LayerResult) -> Vec<Option<(FaultSite, Errno)>> {
    let mut possible = all.to_vec();
    if let Some(reason) = missing_strace() {
        possible.retain(Option::is_none);
        outcome.not_run.push(format!("SKIPPED injected faults: {reason}"));
    }
    if let Some(reason) = missing_disks() {
        possible.retain(Option::is_some);
        outcome.not_run.push(format!("SKIPPED full disks: {reason}"));
    }
    if possible.is_empty() {
        outcome.skipped = Some(std::mem::take(&mut outcome.not_run).join("; "));
    }
    possible
}

/// Why no fault can be injected here.
fn missing_strace() -> Option<String> {
    Command::new("strace").arg("--version").output().err().map(|error| format!("strace: {error}"))
}

/// Why no disk can be filled here.
fn missing_disks() -> Option<String> {
    Disk::tmpfs(1000).err()
}

/// The case for the next entry of the list; a full disk for `None`.
fn plan_case(next: Option<&(FaultSite, Errno)>, seed: u64) -> Case {
    let mut rng = SeededRng::new(seed);
    let Some((place, errno)) = next else {
        let kib = 1000 + rng.below(9000) as u64;
        return Case {
            seed,
            injection: if rng.one_in(2) { Injection::DiskFull(kib) } else { Injection::DiskFullThenFree(kib) },
        };
    };
    let (nth, onwards) = (1 + rng.below(place.first_calls), *errno != Errno::Kill && rng.one_in(2));
    let fault = Fault { syscall: place.syscall, file: place.file, errno: *errno, nth, persistent: onwards };
    Case { seed, injection: Injection::Fault(fault) }
}

/// The child process in which the fault is injected.
fn child_config(args: &LayerArgs, case: Case, store_dir: PathBuf, rng: &mut SeededRng) -> ChildConfig {
    // A store writes tables only if clients write much.
    let (is_full, writes_tables) = match case.injection {
        Injection::Fault(fault) => {
            (false, fault.file != File::Log || matches!(fault.syscall, Syscall::Create | Syscall::Delete))
        }
        Injection::DiskFull(_) | Injection::DiskFullThenFree(_) => (true, true),
    };
    let (workload, stream_at_bytes) = workload_for(case.seed, rng);
    let is_large = workload == workload::LARGE.name();
    let modes = [DurabilityMode::Sync, DurabilityMode::Sync, DurabilityMode::Buffered, DurabilityMode::Mixed];
    ChildConfig {
        store_dir,
        incarnation: 1,
        workload: workload.into(),
        large_transaction_bytes: stream_at_bytes,
        two_phase: rng.one_in(2),
        durability_mode: *rng.pick(&modes).unwrap_or(&DurabilityMode::Sync),
        clients: 3,
        transactions: match (is_full, is_large) {
            (true, _) => 0,
            (false, true) => 8,
            (false, false) => 40,
        },
        long_value_every: [0, 2, 8][rng.below(3)],
        history_ms: [None, Some(20)][rng.below(2)],
        // So small that buffers are flushed to tables during the run.
        write_buffer_bytes: if is_full { 4 << 20 } else { 1 << 20 },
        filler_bytes: if writes_tables { [40 << 10, 20 << 10][rng.below(2)] } else { 0 },
        seed: rng.bits(),
        mutant: args.mutant.map(|mutant| mutant.name().into()),
        ..ChildConfig::default()
    }
}

/// Runs a case. After each attempt that did not hit the call, tries an earlier call.
fn run_case(args: &LayerArgs, case: Case, outcome: &mut LayerResult) -> anyhow::Result<()> {
    let mut tried = case;
    for _ in 0..ATTEMPTS {
        if attempt(args, tried, outcome)? {
            if let Injection::Fault(fault) = tried.injection {
                outcome.count_hit(&sites::errno_key(fault.errno), &sites::name(fault.syscall, fault.file));
            }
            return Ok(());
        }
        if interrupt::is_requested() {
            return Ok(());
        }
        if let Injection::Fault(fault) = &mut tried.injection {
            fault.nth = (fault.nth / 2).max(1);
        }
    }
    let details = format!("no call hit {case} in {ATTEMPTS} attempts");
    let violations = vec![Violation::new("harness: fault site table", details)];
    outcome.failures.push(Failure { replay: args.replay(&case.to_string()), violations, saved_in: None });
    Ok(())
}

/// Runs an attempt and verifies the store. Returns whether the fault was hit.
fn attempt(args: &LayerArgs, case: Case, outcome: &mut LayerResult) -> anyhow::Result<bool> {
    let mut rng = SeededRng::new(case.seed);
    let place = scratch_dir()?;
    let store_dir = place.path().join("store");
    let mut config = child_config(args, case, store_dir.clone(), &mut rng);
    let mut client_log = ClientLog::default();
    let strace_log = place.path().join("strace.log");
    let disk = small_disk(case.injection)?;
    let command = match (case.injection, &disk) {
        (Injection::Fault(fault), _) => {
            if needs_old_store(fault, case.seed)? {
                client_log = fault_free_run(&config, fault)?;
            }
            config.strace_log = Some(strace_log.clone());
            fault.command(&config.arguments()?, &store_dir, &strace_log)
        }
        (injection, Some(disk)) => {
            if matches!(injection, Injection::DiskFullThenFree(_)) {
                std::fs::write(disk.proc_path().join(BALLAST), vec![1; usize::try_from(BALLAST_KIB << 10)?])?;
            }
            config.store_dir = disk.path().join("store");
            disk.command(&config.arguments()?)
        }
        (_, None) => return Ok(false),
    };
    let silence = if args.quick { QUICK_HANG_TIMEOUT } else { HANG_TIMEOUT };
    let mut child = ChildMonitor::start(command, client_log)?;
    let is_done = |received: &Received| {
        received.done || matches!(case.injection, Injection::DiskFullThenFree(_)) && !received.failed.is_empty()
    };
    let responded = child.wait(silence, is_done);
    let fault_log = || std::fs::read_to_string(&strace_log).unwrap_or_default();
    // The disk gets free space again, so RocksDB may recover in the background. The process may be
    // killed during this recovery.
    if let (Injection::DiskFullThenFree(_), Some(disk)) = (case.injection, &disk) {
        std::fs::remove_file(disk.proc_path().join(BALLAST))?;
    }
    let patience = [2_000, 30_000, 300_000][rng.below(3)];
    std::thread::sleep(Duration::from_micros(rng.below(patience) as u64));
    let (received, status) = child.end();
    // Only a fault that was logged before the last commit must make a call fail: a later fault may
    // come when the last commit is already complete.
    let early = fault_log().get(..received.fault_log_length).map(str::to_owned).unwrap_or_default();
    let before_last_commit = matches!(case.injection, Injection::Fault(fault) if fault.was_injected(&early));
    if interrupt::is_requested() {
        return Ok(false);
    }
    if let Some(disk) = disk {
        copy_dir(&disk.proc_path().join("store"), &store_dir)?;
    }
    let happened = was_hit(case.injection, &received, responded, &fault_log());
    // A process that ended by itself before its work was done has crashed.
    let crashed = status.filter(|status| responded && !received.done && status.signal() != Some(Signal::KILL.as_raw()));
    if happened || crashed.is_some() {
        verify_case(args, case, &config, received, before_last_commit, responded, crashed, &store_dir, outcome)?;
    } else {
        outcome.count("faults that were not hit", 1);
    }
    Ok(happened)
}

/// The disk that the case fills.
fn small_disk(injection: Injection) -> anyhow::Result<Option<Disk>> {
    let disk = match injection {
        Injection::Fault(_) => None,
        Injection::DiskFull(kib) => Some(Disk::tmpfs(kib)),
        Injection::DiskFullThenFree(kib) => Some(Disk::tmpfs(kib + BALLAST_KIB)),
    };
    disk.transpose().map_err(|error| anyhow::anyhow!("cannot mount a small disk: {error}"))
}

fn needs_old_store(fault: Fault, seed: u64) -> anyhow::Result<bool> {
    Ok(match sites::store_for(fault)? {
        StoreAge::New => false,
        StoreAge::Old => true,
        StoreAge::Any => !seed.is_multiple_of(2),
    })
}

fn was_hit(injection: Injection, received: &Received, responded: bool, fault_log: &str) -> bool {
    match injection {
        Injection::Fault(fault) if fault.errno == Errno::Kill => !received.done && fault.was_injected(fault_log),
        Injection::Fault(fault) => fault.was_injected(fault_log),
        Injection::DiskFull(_) | Injection::DiskFullThenFree(_) => !received.failed.is_empty() || !responded,
    }
}

/// Runs an incarnation without a fault, before the faulty one.
fn fault_free_run(config: &ChildConfig, fault: Fault) -> anyhow::Result<ClientLog> {
    let mut config = ChildConfig { incarnation: 0, ..config.clone() };
    // Only reading and deleting tables need a long run: there must be tables, and they are deleted
    // by a compaction, which needs several of them.
    if !matches!((fault.syscall, fault.file), (Syscall::Delete | Syscall::Read, File::Table)) {
        (config.transactions, config.filler_bytes) = (10.min(config.transactions), 0);
    }
    // The fault must hit the creation of a file, but `strace` counts the opening of an existing one
    // as well. A large buffer avoids flushes, so that this run leaves few files to open.
    if fault.syscall == Syscall::Create {
        config.write_buffer_bytes = 128 << 20;
    }
    let mut child = ChildMonitor::start(config.command()?, ClientLog::default())?;
    child.wait(HANG_TIMEOUT, |received| received.done);
    Ok(child.end().0.client_log)
}

#[allow(clippy::too_many_arguments, reason = "the facts about one incarnation")]
fn verify_case(
    args: &LayerArgs,
    case: Case,
    config: &ChildConfig,
    received: Received,
    before_last_commit: bool,
    responded: bool,
    crashed: Option<ExitStatus>,
    store_dir: &Path,
    outcome: &mut LayerResult,
) -> anyhow::Result<()> {
    let is_kill = matches!(case.injection, Injection::Fault(Fault { errno: Errno::Kill, .. }));
    let mut violations = if is_kill { Vec::new() } else { check_fail_stop(case, &received, before_last_commit) };
    if let Some(status) = crashed {
        violations.push(Violation::new("the process stays alive", format!("the process ended with {status}")));
    }
    if !responded {
        let after = received.failed.first().map_or("no call returned an error", |_| "after an error");
        violations.push(Violation::new("progress", format!("the store hangs: {after}")));
    }
    outcome.cases += 1;
    outcome.acknowledged += received.client_log.acknowledged() as u64;
    outcome.transactions += received.client_log.entries().count() as u64;
    count_large_commits(outcome, config, received.large_commits);
    outcome.count("calls after an error", received.calls_after_failure.len() as u64);
    let saved_copy = scratch_dir()?;
    if store_dir.is_dir() {
        copy_dir(store_dir, saved_copy.path())?;
    }
    let errors: BTreeMap<u64, u64> = received.client_log.acknowledged_commits();
    let target = StoreUnderTest {
        store_dir,
        workload: workload::named(&config.workload).ok_or_else(|| anyhow::anyhow!("unknown workload"))?,
        config: config.client_config(Durability::Sync),
        incarnation: 2,
        acknowledged: &errors,
        lock_events: &[],
        reopen: true,
        check_files: true,
        is_checkpoint: false,
        accept_loss: None,
    };
    let report = verify(&target, received.client_log);
    outcome.unacknowledged_commits += report.unacknowledged_commits;
    violations.extend(report.violations);
    if let Some(error) = report.open_error {
        violations.push(Violation::new("the store opens", error.to_string()));
    }
    if !violations.is_empty() {
        outcome.failures.push(save_failure(
            args,
            &case.to_string(),
            saved_copy.path(),
            Some(&report.client_log),
            violations,
        ));
    }
    Ok(())
}

/// Checks that the calls that failed, and all calls after the failure, return only
/// [`EXPECTED_ERRORS`]. If a system call failed, at least one of the errors must name the cause.
fn check_fail_stop(case: Case, received: &Received, before_last_commit: bool) -> Vec<Violation> {
    const INVARIANT: &str = "fail-stop";
    let mut violations = Vec::new();
    let is_fatal = matches!(case.injection, Injection::Fault(fault) if fault.stops_store());
    if is_fatal && before_last_commit && received.failed.is_empty() && received.done {
        violations.push(Violation::new(INVARIANT, "the log failed and no call returned an error"));
    }
    // A read that fails stops no store. It must only not answer with something else.
    let may_go_on = matches!(case.injection, Injection::Fault(Fault { syscall: Syscall::Read, .. }));
    for Call { call, kind, text } in received.failed.iter().chain(&received.calls_after_failure) {
        let is_expected = EXPECTED_ERRORS.contains(&kind.as_str()) || may_go_on && kind == "Ok";
        if !is_expected {
            violations.push(Violation::new(INVARIANT, format!("{call} returned {kind} after an error: {text}")));
        }
    }
    // Of two threads that fail concurrently, one may get a follow-up error. At least one call must
    // return the cause.
    let mut errors = received.failed.iter().chain(&received.calls_after_failure).peekable();
    if matches!(case.injection, Injection::Fault(_))
        && errors.peek().is_some()
        && !errors.any(|call| names_the_cause(&call.text))
    {
        violations.push(Violation::new(
            INVARIANT,
            format!("no call returned the cause: {}", received.failed.first().map_or("", |call| &call.text)),
        ));
    }
    violations
}

fn names_the_cause(text: &str) -> bool {
    ["Input/output error", "No space left"].iter().any(|cause| text.contains(cause))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn case_names_round_trip() {
        for (seed, next) in (1..).zip(all_cases().unwrap()) {
            let case = plan_case(next.as_ref(), seed);
            assert_eq!(case.to_string().parse(), Ok(case));
        }
        for text in [
            "write.log.EIO",
            "write.log.EIO.0",
            "write.log.EIO.65536",
            "write.log.EIO.3++",
            "write.directory.EIO.1",
            "full.0",
            "full-then-free.0",
            "full.99999999999",
            "full",
            "",
        ] {
            assert!(format!("io-errors:1/{text}").parse::<Case>().is_err(), "{text}");
        }
    }
}
