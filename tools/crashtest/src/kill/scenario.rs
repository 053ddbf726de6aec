//! What a store has to live through so that it can be killed at a point.
//!
//! A point in a commit is reached by committing. A point in recovery needs something to recover from: an earlier life, killed
//! with locks left behind. What happens once in a life, such as opening, is met a second time by dying there twice. In the
//! end every store is killed once more while it recovers: two crashes in a row have found what one did not, in others.

use std::path::Path;

use percolite::crashtest::CrashPoint;

use super::case::{Case, Durability, Nth, Protocol};
use crate::dice::Dice;
use crate::doom::Fatal;
use crate::life::{Life, Promise};
use crate::points::{Leaves, leaves};
use crate::workload::{self, Workload};

/// Until the life's point, or its time, has come.
const ENDLESS: usize = 0;

/// Of so many steps of a client that keeps the store one makes a copy, or restores.
const KEEPS: usize = 4;

/// One life, and whether the visit that it dies at is still to be found out.
#[derive(Debug)]
pub struct Step {
    /// The life.
    pub life: Life,
    /// Whether it dies at the last visit of its point, which a run without a kill has to find.
    pub last: bool,
    /// How many acknowledged commits the store must have had until then, in all its lives, for the case to count.
    pub least: u64,
    /// Whether this is where the case wants it to die.
    pub wanted: bool,
}

/// How a point is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// By clients at work, again and again.
    Working,
    /// By creating the store.
    Creating,
    /// By closing it.
    Closing,
    /// By opening it, once in a life.
    Opening,
    /// By recovering from an earlier life, once in a life.
    RecoveringOnce,
    /// By recovering from an earlier life, for every lock.
    Recovering,
}

fn way(point: CrashPoint) -> Way {
    use CrashPoint as P;
    match point {
        P::CreateBefore | P::CreateDone => Way::Creating,
        P::CloseSynced | P::CloseDone => Way::Closing,
        P::WalResumed | P::OpenBefore | P::OpenReserved | P::OpenScanned | P::SweepDone => Way::Opening,
        P::SafePointBefore | P::SafePointDurable | P::TxnRecordGcBetween => Way::RecoveringOnce,
        P::ResolveLockSeen
        | P::ResolveStatusKnown
        | P::ResolveBeforeRollback
        | P::ResolvePrimaryRolledBack
        | P::ResolveBeforeRollForward
        | P::ResolveDone
        | P::SweepBetween => Way::Recovering,
        _ => Way::Working,
    }
}

/// The lives of a case, the last of which is not judged but killed in recovery.
///
/// # Errors
/// Those of the table of points.
pub fn steps(case: &Case, folder: &Path, mutant: Option<&str>, dice: &mut Dice) -> anyhow::Result<Vec<Step>> {
    let mut plan = Plan::new(case, folder, mutant, dice);
    let times = match case.nth {
        Nth::First => 1,
        Nth::Second => 2,
        Nth::Last => 3,
    };
    match way(case.point) {
        Way::Working => {
            plan.drop_among_orphans();
            let after = plan.some_acknowledgements();
            let life = Life { after, transactions: ENDLESS, ..plan.life(true) };
            plan.at_nth_visit(life);
        }
        Way::Recovering => {
            plan.leave_orphans();
            // The sweep asks once for each transaction; clients ask for every lock that they meet.
            let sweep = case.nth == Nth::First || case.point == CrashPoint::SweepBetween;
            let life = Life { sweep, ..plan.life(true) };
            plan.at_nth_visit(life);
        }
        Way::Creating => {
            plan.once(0);
            for _ in 1..times {
                // A store that is there is opened past the point where its creation ends; one that never was has no commits.
                if case.point == CrashPoint::CreateDone {
                    plan.leave_something();
                }
                plan.once(0);
            }
            plan.leave_something();
        }
        Way::Closing => {
            for _ in 0..times {
                let after = plan.some_acknowledgements();
                plan.once(after);
            }
        }
        Way::Opening => {
            for _ in 0..times {
                plan.leave_something();
                plan.once(0);
            }
        }
        Way::RecoveringOnce => {
            for _ in 0..times {
                plan.leave_orphans();
                plan.once(0);
            }
        }
    }
    plan.recover()?;
    Ok(plan.steps)
}

struct Plan<'a> {
    case: &'a Case,
    common: Life,
    dice: &'a mut Dice,
    steps: Vec<Step>,
}

impl<'a> Plan<'a> {
    fn new(case: &'a Case, folder: &Path, mutant: Option<&str>, dice: &'a mut Dice) -> Self {
        use CrashPoint as P;
        let workload = workload_for(case, dice);
        let large = workload.name() == workload::LARGE.name();
        let collects = matches!(case.point, P::GcBefore | P::GcDone | P::HistoryFloorRaised);
        // A commit has to be under way when its lock is taken away. Mostly it is for a microsecond, and for longer while the writer
        // begins a segment, or waits for a hand-down.
        let is_held_up = matches!(case.point, P::LockGrantEnded | P::LockDrained);
        let hands_down = is_held_up || case.point.name().starts_with("hand-down.");
        let restores = matches!(case.point, P::RestoreBetween | P::RestoreAll | P::RestoreNamed);
        let common = Life {
            folder: folder.into(),
            two_phase: case.protocol == Protocol::TwoPhase,
            promise: match (case.durability, case.point) {
                (Durability::Sync, _) => Promise::Sync,
                (Durability::Buffered, _) => Promise::Buffered,
            },
            workload: workload.name().into(),
            clients: 3 + dice.below(3),
            transactions: match (case.point, case.durability) {
                _ if large => 10,
                (P::GcBefore | P::GcDone | P::HistoryFloorRaised, _) => 80,
                // The background has to come round a few times.
                (P::KeyspaceDropped | P::KeyspaceDataDeleted, Durability::Buffered) => 800,
                (P::OracleReservationBefore | P::OracleReservationDurable, Durability::Buffered) => 800,
                (P::KeyspaceDropped | P::KeyspaceDataDeleted, Durability::Sync) => 80,
                (P::LockGrantEnded | P::LockDrained, _) => 240,
                _ => 40,
            },
            lockers: if is_of_locks(case.point) { 6 } else { [0, 0, 0, 2][dice.below(4)] },
            lingers: false,
            history_ms: match case.point {
                P::HistoryFloorRaised => Some(1),
                // The lives before have a clock that runs faster, and history would last until this one's has come so far.
                P::KeyspaceDropped | P::KeyspaceDataDeleted if large => None,
                _ => [None, None, Some(0), Some(20), Some(1 << 30)][dice.below(5)],
            },
            drops: match case.point {
                P::KeyspaceCreated | P::KeyspaceDropped | P::KeyspaceDataDeleted => 6,
                // The filler is in the keyspace beside.
                _ if hands_down => 0,
                _ => [0, 0, 20][dice.below(3)],
            },
            copies: if matches!(case.point, P::CheckpointBeforeMarker | P::CheckpointDone) { KEEPS } else { 0 },
            restores: if restores { KEEPS } else { 0 },
            speed: match case.point {
                point if is_of_locks(point) => 1,
                P::OracleReservationBefore | P::OracleReservationDurable => 500,
                P::GcBefore | P::GcDone | P::HistoryFloorRaised | P::KeyspaceDropped | P::KeyspaceDataDeleted => 50,
                _ => [1, 1, 50][dice.below(3)],
            },
            // With small buffers generations are handed down all the time.
            write_buffers: if hands_down || dice.one_in(3) { 256 << 10 } else { 128 << 20 },
            filler: if is_held_up {
                20 << 10
            } else if hands_down {
                4 << 10
            } else {
                0
            },
            long_values: [0, 2, 8][dice.below(3)],
            // Some commit long after they have read, behind the collector's back, and what memory has forgotten by then only
            // the records of deletions say.
            thinks_ms: if collects { 40 } else { 0 },
            stream_at_bytes: if streams(case.point) || restores && dice.one_in(2) { 4000 } else { 16 << 20 },
            conflict_slots: if collects { 4 } else { [4, 4096][dice.below(2)] },
            mutant: mutant.map(str::to_owned),
            ..Life::default()
        };
        // The next life's clock would be behind this one's.
        let lockers = if common.speed == 1 { common.lockers } else { 0 };
        let common = Life { lockers, ..common };
        Self { case, common, dice, steps: Vec::new() }
    }

    /// A life at which the case's point, or another, is still to be set.
    fn life(&mut self, wanted: bool) -> Life {
        let number = u32::try_from(self.steps.len()).unwrap_or_default();
        let fatal = if wanted { vec![fatal(self.case.point, 1)] } else { Vec::new() };
        Life { number, seed: self.dice.bits(), fatal, ..self.common.clone() }
    }

    fn some_acknowledgements(&mut self) -> u64 {
        let large = self.common.workload == workload::LARGE.name();
        let least = if self.common.thinks_ms > 0 { 60 } else { 1 };
        least + self.dice.below(if large { 3 } else { 40 }) as u64
    }

    /// A life that dies at the visit that the case asks for.
    fn at_nth_visit(&mut self, mut life: Life) {
        let last = self.case.nth == Nth::Last;
        let least = if last { life.after.min(1) } else { life.after };
        if last {
            // The run without a kill must come to an end, and counts all visits.
            (life.after, life.transactions) = (0, self.common.transactions);
        } else if self.case.nth == Nth::Second {
            life.fatal = vec![fatal(self.case.point, 2)];
        }
        self.step(life, last, least, true);
    }

    /// A life that dies at its first visit of the case's point, after so many acknowledged commits of its own.
    fn once(&mut self, after: u64) {
        let life = Life { after, ..self.life(true) };
        self.step(life, false, after, true);
    }

    /// A life with at least so many acknowledged commits.
    fn step(&mut self, life: Life, last: bool, least: u64, wanted: bool) {
        let before = self.steps.last().map_or(0, |step| step.least);
        self.steps.push(Step { life, last, least: before + least, wanted });
    }

    /// Lives that leave rows locked whose primary may lie in the keyspace beside, and lives that drop it before anybody has
    /// asked there: a store that gives its space back then forgets how those transactions ended.
    fn drop_among_orphans(&mut self) {
        let large = self.common.workload == workload::LARGE.name();
        if !large || !matches!(self.case.point, CrashPoint::KeyspaceDropped | CrashPoint::KeyspaceDataDeleted) {
            return;
        }
        for _ in 0..3 {
            let drops = std::mem::take(&mut self.common.drops);
            self.dies_at_work(Protocol::TwoPhase, &[CrashPoint::CommitBetween]);
            self.common.drops = drops;
            let fatal = vec![fatal(CrashPoint::SweepDone, 1)];
            let life = self.life(false);
            let life = Life { fatal, clients: 1, transactions: 6, drops: 1, speed: 500, sweep: false, ..life };
            self.step(life, false, 0, false);
        }
    }

    /// A life that dies at work.
    fn leave_something(&mut self) {
        if self.case.protocol == Protocol::TwoPhase {
            return self.leave_orphans();
        }
        let points =
            [CrashPoint::GroupWritten, CrashPoint::GroupPublished, CrashPoint::CommitDone, CrashPoint::CommitTs];
        self.dies_at_work(self.case.protocol, &points);
    }

    /// A life that dies with rows locked. That takes two phases, also where the case's own lives go on in one.
    fn leave_orphans(&mut self) {
        let points: &[CrashPoint] = match self.case.point {
            CrashPoint::ResolveBeforeRollForward if self.common.workload == workload::LARGE.name() => {
                &[CrashPoint::CommitBetween]
            }
            CrashPoint::ResolveBeforeRollForward => &[CrashPoint::CommitPrimary],
            CrashPoint::ResolvePrimaryRolledBack if self.case.nth != Nth::First => &[CrashPoint::PrewriteAll],
            CrashPoint::ResolvePrimaryRolledBack => &[CrashPoint::PrewritePrimary, CrashPoint::PrewriteAll],
            // More than clients can resolve before the sweep has begun.
            CrashPoint::SweepBetween => &[CrashPoint::PrewriteBetween, CrashPoint::CommitBetween],
            _ if way(self.case.point) == Way::Recovering && self.case.nth != Nth::First => {
                &[CrashPoint::PrewriteAll, CrashPoint::CommitPrimary]
            }
            _ => &[CrashPoint::PrewritePrimary, CrashPoint::PrewriteAll, CrashPoint::CommitPrimary],
        };
        self.dies_at_work(Protocol::TwoPhase, points);
    }

    fn dies_at_work(&mut self, protocol: Protocol, points: &[CrashPoint]) {
        let point = *self.dice.pick(points).unwrap_or(&points[0]);
        let after = self.some_acknowledgements();
        let life = Life {
            two_phase: protocol == Protocol::TwoPhase,
            after,
            transactions: ENDLESS,
            fatal: vec![fatal(point, 1)],
            ..self.life(false)
        };
        self.step(life, false, after, false);
    }

    /// A life that dies in recovery. Where the table says that recovery must come to the point, it dies there and nowhere
    /// else, and in every attempt at the same; otherwise wherever it comes first.
    fn recover(&mut self) -> anyhow::Result<()> {
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
        // What is to come once nothing is left to resolve lies behind the first end of the sweep.
        let mut dice = Dice::new(self.case.seed);
        let late = dice.one_in(4);
        let point = *dice.pick(if late { &LATE } else { &EARLY }).unwrap_or(&P::SweepDone);
        let mut at = vec![fatal(point, 1)];
        if !self.left()?.leads_to(point) {
            at.extend([fatal(P::SweepDone, if late { 2 } else { 1 }), fatal(P::CloseSynced, 1)]);
        }
        // Without a sweep the clients meet the locks.
        let sweep = late || dice.one_in(2);
        // Leases are left as they are.
        let life = Life { fatal: at, sweep, transactions: 10, lockers: 0, ..self.life(false) };
        self.step(life, false, 0, false);
        Ok(())
    }

    /// What the lives so far are sure to have left.
    fn left(&self) -> anyhow::Result<Leaves> {
        self.steps.iter().try_fold(Leaves::Nothing, |left, step| {
            let point = step.life.fatal.first().and_then(|at| CrashPoint::from_name(&at.point));
            Ok(point.map_or(Ok(Leaves::Nothing), leaves)?.after(left))
        })
    }
}

/// Whether only clients that take locks come to the point.
fn is_of_locks(point: CrashPoint) -> bool {
    point.name().starts_with("lock.")
}

/// Whether only a transaction that streams comes to the point.
fn streams(point: CrashPoint) -> bool {
    use CrashPoint as P;
    matches!(
        point,
        P::LargeBetween | P::LargeAllLocked | P::LargeCommitted | P::CleanupForward | P::CleanupBack | P::CleanupDone
    )
}

fn fatal(point: CrashPoint, visit: u64) -> Fatal {
    Fatal { point: point.name().into(), visit }
}

fn workload_for(case: &Case, dice: &mut Dice) -> &'static dyn Workload {
    use CrashPoint as P;
    match case.point {
        // One phase makes no locks of its own, and a small transaction leaves but one to be rolled forward.
        P::ResolveBeforeRollForward if case.nth == Nth::Second && case.protocol == Protocol::Auto => {
            return workload::LARGE;
        }
        // More rows than are changed at once: only so there are locks when a conflict is found.
        P::PrewriteBetween | P::PrewriteConflict | P::CommitBetween => return workload::LARGE,
        P::RollbackBetween | P::RollbackWritten => return workload::LARGE,
        P::KeyspaceDataDeleted | P::SweepBetween => return workload::LARGE,
        point if streams(point) => return workload::LARGE,
        P::KeyspaceDropped if dice.one_in(2) => return workload::LARGE,
        P::GcBefore | P::GcDone | P::HistoryFloorRaised => {
            if let Some(deletes) = workload::named(["set", "index"][dice.below(2)]) {
                return deletes;
            }
        }
        // A few large transactions seldom have a commit under way when a lock's grant ends.
        P::LockGrantEnded | P::LockDrained => {}
        _ if dice.one_in(8) => return workload::LARGE,
        _ => {}
    }
    *dice.pick(workload::ALL).unwrap_or(&workload::LARGE)
}

#[cfg(test)]
mod tests {
    use super::super::case::all;
    use super::*;

    fn recovery(case: &Case, attempt: u64) -> (Vec<Fatal>, Leaves) {
        let mut dice = Dice::new(case.seed ^ (attempt << 56));
        let mut steps = steps(case, Path::new("store"), None, &mut dice).unwrap();
        let last = steps.pop().unwrap();
        let left = steps.iter().fold(Leaves::Nothing, |left, step| {
            leaves(CrashPoint::from_name(&step.life.fatal[0].point).unwrap()).unwrap().after(left)
        });
        (last.life.fatal, left)
    }

    #[test]
    fn a_recovery_that_must_come_to_a_point_dies_nowhere_else() {
        let cases = all(1).unwrap();
        let mut must = 0;
        for case in &cases {
            let (fatal, left) = recovery(case, 0);
            let sure = left.leads_to(CrashPoint::from_name(&fatal[0].point).unwrap());
            assert_eq!(fatal.len() == 1, sure, "{case}: {fatal:?} after {left:?}");
            must += usize::from(sure);
            assert_eq!(recovery(case, 3).0[0], fatal[0], "{case}");
        }
        assert!(must > cases.len() / 3, "{must} of {}", cases.len());
    }

    #[test]
    fn a_store_has_acknowledged_something_before_it_is_killed_unless_it_is_being_created() {
        for case in all(1).unwrap() {
            let steps = steps(&case, Path::new("store"), None, &mut Dice::new(case.seed)).unwrap();
            let wanted: Vec<u64> = steps.iter().filter(|step| step.wanted).map(|step| step.least).collect();
            let is_new = |at: usize| match case.point {
                CrashPoint::CreateBefore => true,
                CrashPoint::CreateDone => at == 0,
                _ => false,
            };
            assert!(wanted.iter().enumerate().all(|(at, least)| (*least > 0) != is_new(at)), "{case}: {wanted:?}");
        }
    }
}
