//! The incarnations of a store that lead to a kill at a crash point.
//!
//! A point in a commit is reached by committing. A point in recovery needs something to recover: an
//! earlier incarnation that was killed with locks left. A point that occurs once in an incarnation,
//! such as one of opening, is reached a second time by killing two incarnations there. In the end
//! every store is killed once more during recovery, because two crashes in a row have found bugs in
//! other stores.

use std::path::Path;

use percolite::crashtest::CrashPoint;

use super::case::{Case, Protocol, Visit};
use super::child_config::random_config;
use crate::child::ChildConfig;
use crate::points::{LeftState, left_state_of};
use crate::rng::SeededRng;
use crate::self_kill::KillAt;
use crate::workload;

/// No limit of transactions: clients run until the kill or the end of the run time.
const UNBOUNDED: usize = 0;

/// One incarnation of a case.
#[derive(Debug)]
pub struct Incarnation {
    /// The configuration of its process.
    pub config: ChildConfig,
    /// Whether the process is killed at the last visit of its point. A run without a kill shows
    /// which visit is the last.
    pub find_last_visit: bool,
    /// The attempt counts only if this incarnation and the earlier ones together had at least this
    /// many acknowledged commits.
    pub min_acks: u64,
    /// Whether this is the kill that the case is about.
    pub is_target: bool,
    /// Whether the newest checkpoint takes the store's place before this incarnation.
    pub opens_checkpoint: bool,
}

/// How a point is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HowReached {
    /// By running clients, repeatedly.
    Running,
    /// By creating the store.
    Creating,
    /// By closing the store.
    Closing,
    /// By opening the store, once in an incarnation.
    Opening,
    /// By opening a checkpoint, once in an incarnation.
    OpeningCheckpoint,
    /// By recovery, once in an incarnation.
    RecoveringOnce,
    /// By recovery, once for every lock.
    Recovering,
}

fn how_reached(point: CrashPoint) -> HowReached {
    use CrashPoint as P;
    match point {
        P::CreateBefore | P::CreateDone => HowReached::Creating,
        P::CloseSynced | P::CloseDone => HowReached::Closing,
        P::WalResumed | P::OpenBefore | P::OpenReserved | P::OpenScanned | P::SweepDone => HowReached::Opening,
        P::CheckpointLeasesCleared => HowReached::OpeningCheckpoint,
        P::SafePointBefore | P::SafePointDurable | P::TxnRecordGcBetween => HowReached::RecoveringOnce,
        P::ResolveLockSeen
        | P::ResolveStatusKnown
        | P::ResolveBeforeRollback
        | P::ResolvePrimaryRolledBack
        | P::ResolveBeforeRollForward
        | P::ResolveDone
        | P::SweepBetween => HowReached::Recovering,
        _ => HowReached::Running,
    }
}

/// The incarnations of a case; the last one is killed during recovery.
///
/// # Errors
/// An invalid table of crash points.
pub fn plan_incarnations(
    case: &Case,
    store_dir: &Path,
    mutant: Option<&str>,
    rng: &mut SeededRng,
) -> anyhow::Result<Vec<Incarnation>> {
    let mut plan = Plan::new(case, store_dir, mutant, rng);
    let times: usize = match case.visit {
        Visit::First => 1,
        Visit::Second => 2,
        Visit::Last => 3,
    };
    match how_reached(case.point) {
        HowReached::Running => {
            plan.drop_keyspace_with_orphans();
            let after = plan.random_acks();
            let config = ChildConfig { after_acks: after, transactions: UNBOUNDED, ..plan.next_config(true) };
            plan.kill_at_visit(config);
        }
        HowReached::Recovering => {
            plan.leave_orphan_locks();
            // The sweep resolves each transaction once, so it may reach the point only once. For
            // later visits the sweep is off, unless the point is part of the sweep. Without
            // the sweep, clients resolve every lock that they find.
            let sweep = case.visit == Visit::First || case.point == CrashPoint::SweepBetween;
            let config = ChildConfig { background_resolve: sweep, ..plan.next_config(true) };
            plan.kill_at_visit(config);
        }
        HowReached::Creating => {
            plan.kill_at_first_visit(0);
            for _ in 1..times {
                // `create.before` is reached only while there is no store, so the incarnations
                // killed there follow each other directly. `create.done` is reached in every
                // opening, so between two incarnations killed there comes one with commits.
                if case.point == CrashPoint::CreateDone {
                    plan.leave_any_state();
                }
                plan.kill_at_first_visit(0);
            }
            plan.leave_any_state();
        }
        HowReached::Closing => {
            for _ in 0..times {
                let after = plan.random_acks();
                plan.kill_at_first_visit(after);
            }
        }
        HowReached::Opening => {
            for _ in 0..times {
                plan.leave_any_state();
                plan.kill_at_first_visit(0);
            }
        }
        HowReached::OpeningCheckpoint => plan.kill_while_opening_a_checkpoint(times),
        HowReached::RecoveringOnce => {
            for _ in 0..times {
                plan.leave_orphan_locks();
                plan.kill_at_first_visit(0);
            }
        }
    }
    plan.kill_in_recovery()?;
    Ok(plan.incarnations)
}

struct Plan<'a> {
    case: &'a Case,
    defaults: ChildConfig,
    rng: &'a mut SeededRng,
    incarnations: Vec<Incarnation>,
}

impl<'a> Plan<'a> {
    fn new(case: &'a Case, store_dir: &Path, mutant: Option<&str>, rng: &'a mut SeededRng) -> Self {
        let defaults = random_config(case, store_dir, mutant, rng);
        Self { case, defaults, rng, incarnations: Vec::new() }
    }

    /// The configuration of the next incarnation.
    fn next_config(&mut self, is_target: bool) -> ChildConfig {
        let number = u32::try_from(self.incarnations.len()).unwrap_or_default();
        let kill_at = if is_target { vec![kill_at(self.case.point, 1)] } else { Vec::new() };
        ChildConfig { incarnation: number, seed: self.rng.bits(), kill_at, ..self.defaults.clone() }
    }

    /// Adds an incarnation that makes checkpoints of a store with leases, and others that are
    /// killed when they open the newest one.
    fn kill_while_opening_a_checkpoint(&mut self, times: usize) {
        let after = self.random_acks();
        let kill_at = vec![kill_at(CrashPoint::CheckpointDone, 1)];
        let config = ChildConfig { kill_at, after_acks: after, transactions: UNBOUNDED, ..self.next_config(false) };
        self.push(config, false, after, false);
        // Leases of the original are not to come back, and leases of the copy would look alike.
        (self.defaults.lock_clients, self.defaults.checkpoint_every) = (0, 0);
        for time in 0..times {
            self.kill_at_first_visit(0);
            let added = self.incarnations.last_mut();
            added.into_iter().for_each(|incarnation| incarnation.opens_checkpoint = time == 0);
        }
    }

    fn random_acks(&mut self) -> u64 {
        let large = self.defaults.workload == workload::LARGE.name();
        let min_acks = if self.defaults.think_ms > 0 { 60 } else { 1 };
        min_acks + self.rng.below(if large { 3 } else { 40 }) as u64
    }

    /// Adds an incarnation that is killed at the visit that the case names.
    fn kill_at_visit(&mut self, mut config: ChildConfig) {
        let find_last_visit = self.case.visit == Visit::Last;
        let min_acks = if find_last_visit { config.after_acks.min(1) } else { config.after_acks };
        if find_last_visit {
            // The run without a kill must end by itself, so its transactions have a limit. It must
            // count all visits, so `after_acks` is zero.
            (config.after_acks, config.transactions) = (0, self.defaults.transactions);
        } else if self.case.visit == Visit::Second {
            config.kill_at = vec![kill_at(self.case.point, 2)];
        }
        self.push(config, find_last_visit, min_acks, true);
    }

    /// Adds an incarnation that is killed at the first visit after this many acknowledged commits
    /// of its own.
    fn kill_at_first_visit(&mut self, after: u64) {
        let config = ChildConfig { after_acks: after, ..self.next_config(true) };
        self.push(config, false, after, true);
    }

    /// Adds an incarnation that needs `min_acks` acknowledged commits more than the earlier ones
    /// need.
    fn push(&mut self, config: ChildConfig, find_last_visit: bool, min_acks: u64, is_target: bool) {
        let before = self.incarnations.last().map_or(0, |incarnation| incarnation.min_acks);
        let min_acks = before + min_acks;
        self.incarnations.push(Incarnation { config, find_last_visit, min_acks, is_target, opens_checkpoint: false });
    }

    /// Only for the points of a dropped keyspace, and only with large transactions: adds
    /// incarnations that leave locked rows whose primary may be in the second keyspace, and others
    /// that drop this keyspace before the locks are resolved. A store that deletes the keyspace's
    /// data too early loses the status of the transactions that hold the locks.
    fn drop_keyspace_with_orphans(&mut self) {
        let large = self.defaults.workload == workload::LARGE.name();
        if !large || !matches!(self.case.point, CrashPoint::KeyspaceDropped | CrashPoint::KeyspaceDataDeleted) {
            return;
        }
        for _ in 0..3 {
            let drops = std::mem::take(&mut self.defaults.drop_every);
            self.kill_while_running(Protocol::TwoPhase, &[CrashPoint::CommitBetween]);
            self.defaults.drop_every = drops;
            let kill_at = vec![kill_at(CrashPoint::SweepDone, 1)];
            let config = self.next_config(false);
            let config = ChildConfig {
                kill_at,
                clients: 1,
                transactions: 6,
                drop_every: 1,
                clock_speed: 500,
                background_resolve: false,
                ..config
            };
            self.push(config, false, 0, false);
        }
    }

    /// Adds an incarnation that is killed while clients run.
    fn leave_any_state(&mut self) {
        if self.case.protocol == Protocol::TwoPhase {
            return self.leave_orphan_locks();
        }
        let points =
            [CrashPoint::GroupWritten, CrashPoint::GroupPublished, CrashPoint::CommitDone, CrashPoint::CommitTs];
        self.kill_while_running(self.case.protocol, &points);
    }

    /// Adds an incarnation that is killed with locked rows. This incarnation commits in two phases
    /// even if the case does not, because one-phase commits leave no locks.
    fn leave_orphan_locks(&mut self) {
        let points: &[CrashPoint] = match self.case.point {
            CrashPoint::ResolveBeforeRollForward if self.defaults.workload == workload::LARGE.name() => {
                &[CrashPoint::CommitBetween]
            }
            CrashPoint::ResolveBeforeRollForward => &[CrashPoint::CommitPrimary],
            CrashPoint::ResolvePrimaryRolledBack if self.case.visit != Visit::First => &[CrashPoint::PrewriteAll],
            CrashPoint::ResolvePrimaryRolledBack => &[CrashPoint::PrewritePrimary, CrashPoint::PrewriteAll],
            // A kill between two batches leaves more locks than clients can resolve before the
            // sweep begins.
            CrashPoint::SweepBetween => &[CrashPoint::PrewriteBetween, CrashPoint::CommitBetween],
            _ if how_reached(self.case.point) == HowReached::Recovering && self.case.visit != Visit::First => {
                &[CrashPoint::PrewriteAll, CrashPoint::CommitPrimary]
            }
            _ => &[CrashPoint::PrewritePrimary, CrashPoint::PrewriteAll, CrashPoint::CommitPrimary],
        };
        self.kill_while_running(Protocol::TwoPhase, points);
    }

    fn kill_while_running(&mut self, protocol: Protocol, points: &[CrashPoint]) {
        let point = *self.rng.pick(points).unwrap_or(&points[0]);
        let after = self.random_acks();
        let config = ChildConfig {
            two_phase: protocol == Protocol::TwoPhase,
            after_acks: after,
            transactions: UNBOUNDED,
            kill_at: vec![kill_at(point, 1)],
            ..self.next_config(false)
        };
        self.push(config, false, after, false);
    }

    /// Adds an incarnation that is killed during recovery, at a random point that is the same in
    /// every attempt of the case. Where recovery may miss this point, the process is killed at
    /// `sweep.done` or `close.synced` if it gets there first.
    fn kill_in_recovery(&mut self) -> anyhow::Result<()> {
        use CrashPoint as P;
        const EARLY: [CrashPoint; 13] = [
            P::WalResumed,
            P::FlushBatch,
            P::FlushTablesSynced,
            P::OpenReserved,
            P::OpenScanned,
            P::ResolveLockSeen,
            P::ResolveStatusKnown,
            P::ResolvePrimaryRolledBack,
            P::ResolveBeforeRollForward,
            P::ResolveDone,
            P::SweepBetween,
            P::SweepDone,
            P::OpenBefore,
        ];
        const LATE: [CrashPoint; 3] = [P::SafePointBefore, P::SafePointDurable, P::TxnRecordGcBetween];
        // The points in `LATE` come only after the first complete sweep of the locks.
        let mut rng = SeededRng::new(self.case.seed);
        let late = rng.one_in(4);
        let point = *rng.pick(if late { &LATE } else { &EARLY }).unwrap_or(&P::SweepDone);
        let mut at = vec![kill_at(point, 1)];
        if !self.left_state()?.recovery_reaches(point) {
            at.extend([kill_at(P::SweepDone, if late { 2 } else { 1 }), kill_at(P::CloseSynced, 1)]);
        }
        // Late points need the sweep. Otherwise it may be off: then clients resolve the locks that
        // they find.
        let sweep = late || rng.one_in(2);
        // No lock clients, so that the leases which were left stay as they are for the
        // verification.
        let config = ChildConfig {
            kill_at: at,
            background_resolve: sweep,
            transactions: 10,
            lock_clients: 0,
            ..self.next_config(false)
        };
        self.push(config, false, 0, false);
        Ok(())
    }

    /// What the incarnations planned so far certainly leave.
    fn left_state(&self) -> anyhow::Result<LeftState> {
        self.incarnations.iter().try_fold(LeftState::Nothing, |left_state, incarnation| {
            let point = incarnation.config.kill_at.first().and_then(|at| CrashPoint::from_name(&at.point));
            Ok(point.map_or(Ok(LeftState::Nothing), left_state_of)?.after(left_state))
        })
    }
}

fn kill_at(point: CrashPoint, visit: u64) -> KillAt {
    KillAt { point: point.name().into(), visit }
}

#[cfg(test)]
mod tests {
    use super::super::case::all_cases;
    use super::*;

    fn recovery(case: &Case, attempt: u64) -> (Vec<KillAt>, LeftState) {
        let mut rng = SeededRng::new(case.seed ^ (attempt << 56));
        let mut incarnations = plan_incarnations(case, Path::new("store"), None, &mut rng).unwrap();
        let find_last_visit = incarnations.pop().unwrap();
        let left_state = incarnations.iter().fold(LeftState::Nothing, |left_state, incarnation| {
            left_state_of(CrashPoint::from_name(&incarnation.config.kill_at[0].point).unwrap())
                .unwrap()
                .after(left_state)
        });
        (find_last_visit.config.kill_at, left_state)
    }

    #[test]
    fn recovery_is_killed_only_where_it_must_arrive() {
        let cases = all_cases(1).unwrap();
        let mut must = 0;
        for case in &cases {
            let (kill_at, left_state) = recovery(case, 0);
            let sure = left_state.recovery_reaches(CrashPoint::from_name(&kill_at[0].point).unwrap());
            assert_eq!(kill_at.len() == 1, sure, "{case}: {kill_at:?} after {left_state:?}");
            must += usize::from(sure);
            assert_eq!(recovery(case, 3).0[0], kill_at[0], "{case}");
        }
        assert!(must > cases.len() / 3, "{must} of {}", cases.len());
    }

    #[test]
    fn only_creation_is_killed_without_acknowledgements() {
        for case in all_cases(1).unwrap() {
            let incarnations =
                plan_incarnations(&case, Path::new("store"), None, &mut SeededRng::new(case.seed)).unwrap();
            let is_target: Vec<u64> = incarnations
                .iter()
                .filter(|incarnation| incarnation.is_target)
                .map(|incarnation| incarnation.min_acks)
                .collect();
            let is_new = |at: usize| match case.point {
                CrashPoint::CreateBefore => true,
                CrashPoint::CreateDone => at == 0,
                _ => false,
            };
            assert!(
                is_target.iter().enumerate().all(|(at, min_acks)| (*min_acks > 0) != is_new(at)),
                "{case}: {is_target:?}"
            );
        }
    }
}
