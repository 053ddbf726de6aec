//! One case, from its first incarnation to its result.

use std::fs::{self, File};
use std::io::{BufWriter, Write as _};
use std::path::Path;

use anyhow::Context as _;
use percolite::crashtest::CrashPoint;
use percolite::mutants::Mutant;

use super::Config;
use super::case::{Case, Protocol};
use super::parent::run_child;
use super::scenario::{Incarnation, plan_incarnations};
use super::verify::{log_of_checkpoint, verify_checkpoints, verify_killed};
use crate::checkpoints::{Checkpoint, checkpoint_path, is_store};
use crate::child::ChildConfig;
use crate::client_log::ClientLog;
use crate::interrupt;
use crate::layer_args::copy_dir;
use crate::layer_result::{Failure, LayerResult};
use crate::lock_workload::final_checks;
use crate::points::{LeftState, left_state_of};
use crate::report::{RECOVERY_LOCKS, RECOVERY_SECONDS};
use crate::restores::Restores;
use crate::rng::SeededRng;
use crate::self_kill::{KillAt, Visits};
use crate::verify_store::{SMALL_STORE, StoreReport, open_engine, verify_restored};
use crate::violation::Violation;
use crate::workload;

/// How many attempts a case has: threads are not deterministic, so a case that has not reached its
/// point is tried again with other choices.
const ATTEMPTS: u64 = 5;

/// Runs a case. After a failure the directory of the case is kept. It has the store before and
/// after its verification, the history and a log.
///
/// # Errors
/// Errors of the harness, not of the store.
pub fn run_case(config: &Config, case: &Case) -> anyhow::Result<LayerResult> {
    let case_dir = config.dir.join(case.to_string().replace([':', '/'], "-"));
    let mut outcome = LayerResult::new("kill");
    let (mut violations, mut missed) = (Vec::new(), Vec::new());
    for number in 0..ATTEMPTS {
        if case_dir.exists() {
            fs::remove_dir_all(&case_dir).context("the directory of an earlier run")?;
        }
        fs::create_dir_all(&case_dir).with_context(|| case_dir.display().to_string())?;
        let mut this = Attempt {
            config,
            case,
            case_dir: &case_dir,
            number,
            outcome: &mut outcome,
            client_log: ClientLog::default(),
        };
        let result = match this.run() {
            Err(_) if interrupt::is_requested() => {
                fs::remove_dir_all(&case_dir).context("the case's directory")?;
                return Ok(LayerResult::new("kill"));
            }
            result => result?,
        };
        match result {
            AttemptResult::Missed(points) => missed = points,
            AttemptResult::Checked(found) => {
                violations = found;
                outcome.cases = 1;
                outcome.count("attempts", number + 1);
                break;
            }
        }
    }
    if outcome.cases == 0 {
        let details = format!("no kill at {} in {ATTEMPTS} attempts", missed.join(" or "));
        violations.push(Violation::new("harness: crash point table", details));
    }
    if violations.is_empty() {
        fs::remove_dir_all(&case_dir).context("the case's directory")?;
    } else {
        let mutant = config.mutant.map(|mutant| format!(" --mutant {}", mutant.name())).unwrap_or_default();
        let replay = format!("percolite-crashtest replay {case}{mutant}");
        for one in &violations {
            append_log(&case_dir.join("log.txt"), &one.to_string())?;
        }
        outcome.failures.push(Failure { replay, violations, saved_in: Some(case_dir) });
    }
    Ok(outcome)
}

enum AttemptResult {
    /// The process was not killed at any of these points, or only after too few acknowledged
    /// commits.
    Missed(Vec<String>),
    /// The case has a result: its violations.
    Checked(Vec<Violation>),
}

struct Attempt<'a> {
    config: &'a Config,
    case: &'a Case,
    case_dir: &'a Path,
    number: u64,
    outcome: &'a mut LayerResult,
    client_log: ClientLog,
}

impl Attempt<'_> {
    fn run(&mut self) -> anyhow::Result<AttemptResult> {
        let mut rng = SeededRng::new(self.case.seed ^ (self.number << 56));
        let (store, log) = (self.case_dir.join("store"), self.case_dir.join("log.txt"));
        let incarnations = plan_incarnations(self.case, &store, self.config.mutant.map(Mutant::name), &mut rng)?;
        let count = u32::try_from(incarnations.len()).unwrap_or_default();
        let mut name = "";
        let (mut checkpoints, mut restores) = (Vec::new(), Restores::default());
        let (mut lock_events, mut is_checkpoint) = (Vec::new(), false);
        let (mut acknowledged, mut target_acks) = (0, Vec::new());
        for mut incarnation in incarnations {
            if incarnation.opens_checkpoint {
                if !self.open_newest_checkpoint(&store, &mut checkpoints)? {
                    return Ok(AttemptResult::Missed(vec!["a checkpoint with leases".into()]));
                }
                // The locks of the original are not those of its copy.
                (lock_events, is_checkpoint) = (Vec::new(), true);
            }
            if incarnation.find_last_visit && !self.find_last_visit(&mut incarnation, &log)? {
                return Ok(AttemptResult::Missed(vec![self.case.point.name().into()]));
            }
            let config = &incarnation.config;
            let child = run_child(&self.config.program, config, &mut self.client_log, &log)?;
            self.record_visits(config, &child.visits);
            acknowledged += child.acknowledged;
            checkpoints.extend(child.checkpoints.into_iter().map(|copy| (config.incarnation, copy)));
            restores.append(child.restores);
            lock_events.extend(child.lock_events);
            lock_events.extend(final_checks::store_gone(&lock_events));
            let so_far = format!("{acknowledged} acknowledged of at least {}", incarnation.min_acks);
            append_log(&log, &format!("{config:?}: {:?}, {so_far}", child.killed_at))?;
            if !child.violations.is_empty() {
                self.save_history()?;
                return Ok(AttemptResult::Checked(child.violations));
            }
            if !child.killed_at.is_some_and(|at| config.kill_at.contains(&at) && acknowledged >= incarnation.min_acks) {
                return Ok(AttemptResult::Missed(config.kill_at.iter().map(|at| at.point.clone()).collect()));
            }
            if self.case.point == CrashPoint::CheckpointLeasesCleared && incarnation.is_target && has_lease_row(&store)?
            {
                let what = "leases of the original are left in a copy when they are cleared".to_owned();
                return Ok(AttemptResult::Checked(vec![Violation::new("lock: cleanup", what)]));
            }
            if incarnation.is_target {
                target_acks.push((incarnation.min_acks, acknowledged));
            }
            name = workload::named(&config.workload).map_or("", |workload| workload.name());
        }
        let workload = workload::named(name).context("unknown workload")?;
        copy_dir(&store, &self.case_dir.join("killed-store")).context("the killed store")?;
        let mut violations = Vec::new();
        if left_state_of(self.case.point)? == LeftState::Lease {
            violations.extend(check_lease_row(&self.case_dir.join("killed-store"))?);
        }
        violations.extend(verify_checkpoints(*self.case, workload, &store, checkpoints, count));
        if restores.any_started() {
            violations.extend(check_restored(&store, &self.case_dir.join("restored"), &restores)?);
        }
        let client_log = std::mem::take(&mut self.client_log);
        let mut report = verify_killed(store, *self.case, workload, (client_log, lock_events), (count, is_checkpoint));
        self.client_log = std::mem::take(&mut report.client_log);
        violations.append(&mut report.violations);
        self.outcome.acknowledged += acknowledged;
        self.count_kills(&target_acks);
        self.count_recovery(&report);
        if !violations.is_empty() {
            self.save_history()?;
        }
        Ok(AttemptResult::Checked(violations))
    }

    /// Puts the newest complete checkpoint in the place of the store. Returns `false` if there is
    /// none with the row of a lease.
    fn open_newest_checkpoint(
        &mut self,
        store: &Path,
        checkpoints: &mut Vec<(u32, Checkpoint)>,
    ) -> anyhow::Result<bool> {
        let Some((incarnation, checkpoint)) = checkpoints.pop() else { return Ok(false) };
        let copy = checkpoint_path(store, checkpoint.number);
        if !is_store(&copy, &checkpoint).is_ok_and(|is_store| is_store) || !has_lease_row(&copy)? {
            return Ok(false);
        }
        fs::rename(store, store.with_extension("original")).context("the original of a checkpoint")?;
        fs::rename(&copy, store).context("a checkpoint")?;
        self.client_log = log_of_checkpoint(store, checkpoint.client_log, incarnation)?;
        Ok(true)
    }

    /// Counts the kills at the case's point. `target_acks` has for each kill how many acknowledged
    /// commits had to precede it at least, and how many did.
    fn count_kills(&mut self, target_acks: &[(u64, u64)]) {
        for (least, acknowledged) in target_acks {
            self.outcome.count_hit(&self.case.protocol.environment().to_string(), self.case.point.name());
            self.outcome.count("acknowledged before the kill", *acknowledged);
            self.outcome.count("acknowledged before the kill, at least", *least);
        }
    }

    fn count_recovery(&mut self, report: &StoreReport) {
        self.outcome.transactions += self.client_log.entries().count() as u64;
        self.outcome.unacknowledged_commits += report.unacknowledged_commits;
        self.outcome.count(RECOVERY_LOCKS, report.locks);
        self.outcome.metric(RECOVERY_SECONDS, report.recovery_time.as_secs_f64());
    }

    /// Runs the incarnation without a kill, on a copy of the store, to count the visits of the
    /// point. Then plans the kill at the last visit. With another timing there may be fewer visits,
    /// so each further attempt of the case halves the number. Returns whether there was any visit.
    fn find_last_visit(&mut self, incarnation: &mut Incarnation, log: &Path) -> anyhow::Result<bool> {
        let store_dir = self.case_dir.join("run-without-kill");
        if store_dir.exists() {
            fs::remove_dir_all(&store_dir)?;
        }
        if incarnation.config.store_dir.exists() {
            copy_dir(&incarnation.config.store_dir, &store_dir).context("the store before its last incarnation")?;
        }
        let config = ChildConfig { store_dir: store_dir.clone(), kill_at: Vec::new(), ..incarnation.config.clone() };
        let child = run_child(&self.config.program, &config, &mut ClientLog::default(), log)?;
        self.record_visits(&config, &child.visits);
        fs::remove_dir_all(&store_dir).context("the directory of a run without a kill")?;
        let visits = child.visits.get(self.case.point.name()).copied().unwrap_or_default();
        let visit = (visits >> self.number).max(visits.min(1));
        append_log(log, &format!("{config:?}: without a kill, {visits} visits, {} acknowledged", child.acknowledged))?;
        incarnation.config.kill_at = vec![KillAt { point: self.case.point.name().into(), visit }];
        Ok(visit > 0)
    }

    fn record_visits(&mut self, config: &ChildConfig, visits: &Visits) {
        let place = Protocol::from(config).environment().to_string();
        for (name, count) in visits {
            self.outcome.count_visits(&place, name, *count);
        }
    }

    fn save_history(&self) -> anyhow::Result<()> {
        let mut file = BufWriter::new(File::create(self.case_dir.join("history.jsonl")).context("the history")?);
        self.client_log.lines().try_for_each(|line| line.write(&mut file)).context("the history")?;
        file.flush().context("the history")
    }
}

/// Checks that the killed process has left the row of a lease, for crash points at which this row
/// is durable.
fn check_lease_row(store_dir: &Path) -> anyhow::Result<Option<Violation>> {
    let is_left = has_lease_row(store_dir)?;
    Ok((!is_left).then(|| Violation::new("harness: crash point table", "no lease is left".to_owned())))
}

/// Whether the store has the row of a lease. A copy of it is opened, so that it stays as it is.
fn has_lease_row(store_dir: &Path) -> anyhow::Result<bool> {
    let copy = store_dir.with_file_name("leases");
    copy_dir(store_dir, &copy).context("a store with leases")?;
    let rows = final_checks::lease_rows(open_engine(&copy, SMALL_STORE)?.storage())?;
    fs::remove_dir_all(&copy).context("a store with leases")?;
    Ok(!rows.is_empty())
}

/// Checks the restored keyspaces on a copy of the store, so that the store stays as it was killed.
fn check_restored(store_dir: &Path, copy: &Path, restores: &Restores) -> anyhow::Result<Vec<Violation>> {
    copy_dir(store_dir, copy).context("the store with restored keyspaces")?;
    let result = verify_restored(copy, restores);
    fs::remove_dir_all(copy).context("the store with restored keyspaces")?;
    Ok(result.unwrap_or_else(|error| vec![Violation::new("the store opens", error.to_string())]))
}

fn append_log(log: &Path, line: &str) -> anyhow::Result<()> {
    let mut log = File::options().create(true).append(true).open(log).context("the log")?;
    writeln!(log, "{line}").context("the log")
}
