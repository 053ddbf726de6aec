//! The configuration of a case's processes: what its point needs, and at random otherwise.

use std::path::Path;

use percolite::crashtest::CrashPoint;

use super::case::{Case, Durability, Protocol, Visit};
use crate::child::{ChildConfig, DurabilityMode};
use crate::rng::SeededRng;
use crate::workload::{self, Workload};

/// If the point is in a checkpoint, one step of the first client in this many makes a checkpoint.
/// If it is in a restore, one step in this many restores a dump.
const MAINTENANCE_EVERY: usize = 4;

/// The configuration that the incarnations of a case have in common.
pub fn random_config(case: &Case, store_dir: &Path, mutant: Option<&str>, rng: &mut SeededRng) -> ChildConfig {
    use CrashPoint as P;
    let workload = workload_for(case, rng);
    let large = workload.name() == workload::LARGE.name();
    let is_about_gc = matches!(case.point, P::GcBefore | P::GcDone | P::HistoryFloorRaised);
    // `lock.grant-ended` and `lock.drained` are reached only if a grant ends while a commit fenced
    // by it is in progress. A commit mostly takes microseconds, but longer while the writer starts
    // a segment or waits for a flush. So cases of these points flush continuously.
    let delays_commits = matches!(case.point, P::LockGrantEnded | P::LockDrained);
    // A flush must not run beside the copy of the tables.
    let copies = case.point.name().starts_with("checkpoint.");
    let flushes = delays_commits || copies || case.point.name().starts_with("flush.");
    let restores = matches!(case.point, P::RestoreBetween | P::RestoreAll | P::RestoreNamed);
    let defaults = ChildConfig {
        store_dir: store_dir.into(),
        two_phase: case.protocol == Protocol::TwoPhase,
        durability_mode: match case.durability {
            Durability::Sync => DurabilityMode::Sync,
            Durability::Buffered => DurabilityMode::Buffered,
        },
        workload: workload.name().into(),
        clients: 3 + rng.below(3),
        transactions: transactions(case, large),
        lock_clients: if is_lock_point(case.point) { 6 } else { [0, 0, 0, 2][rng.below(4)] },
        stay_open: false,
        history_ms: history_ms(case.point, large, rng),
        drop_every: drop_every(case.point, flushes, rng),
        checkpoint_every: if copies { MAINTENANCE_EVERY } else { 0 },
        restore_every: if restores { MAINTENANCE_EVERY } else { 0 },
        clock_speed: clock_speed(case.point, rng),
        // Small buffers force continuous flushes.
        write_buffer_bytes: if flushes || rng.one_in(3) { 256 << 10 } else { 128 << 20 },
        filler_bytes: if delays_commits || copies {
            20 << 10
        } else if flushes {
            4 << 10
        } else {
            0
        },
        long_value_every: [0, 2, 8][rng.below(3)],
        // Some transactions commit long after their reads, when GC has run. If the conflict set has
        // evicted a deletion with which they conflict, only its tombstone shows the conflict, and
        // GC must have kept it.
        think_ms: if is_about_gc { 40 } else { 0 },
        large_transaction_bytes: if needs_large_transaction(case.point) || restores && rng.one_in(2) {
            4000
        } else {
            16 << 20
        },
        conflict_set_rows: if is_about_gc { 4 } else { [4, 4096][rng.below(2)] },
        mutant: mutant.map(str::to_owned),
        ..ChildConfig::default()
    };
    // Lock clients need a clock of normal speed, because the ends of leases are checked by it. A
    // faster clock goes back between two incarnations: each begins at the real time.
    let lock_clients = if defaults.clock_speed == 1 { defaults.lock_clients } else { 0 };
    ChildConfig { lock_clients, ..defaults }
}

/// [`ChildConfig::transactions`]: enough for the point to be reached.
fn transactions(case: &Case, large: bool) -> usize {
    use CrashPoint as P;
    match (case.point, case.durability) {
        _ if large => 10,
        (P::GcBefore | P::GcDone | P::HistoryFloorRaised, _) => 80,
        // The background worker reaches these points, at fixed intervals. Buffered commits are
        // faster, so there must be more of them.
        (P::KeyspaceDropped | P::KeyspaceDataDeleted, Durability::Buffered) => 800,
        (P::OracleReservationBefore | P::OracleReservationDurable, Durability::Buffered) => 800,
        (P::KeyspaceDropped | P::KeyspaceDataDeleted, Durability::Sync) => 80,
        (P::LockGrantEnded | P::LockDrained, _) => 240,
        _ => 40,
    }
}

/// [`ChildConfig::history_ms`]: at random, unless the point depends on the history.
fn history_ms(point: CrashPoint, large: bool, rng: &mut SeededRng) -> Option<u64> {
    use CrashPoint as P;
    match point {
        P::HistoryFloorRaised => Some(1),
        // With large transactions some incarnations of these cases have a faster clock, and their
        // commits are in the future of the other incarnations. A history would keep dropped data
        // until the slower clock has caught up.
        P::KeyspaceDropped | P::KeyspaceDataDeleted if large => None,
        _ => [None, None, Some(0), Some(20), Some(1 << 30)][rng.below(5)],
    }
}

/// [`ChildConfig::drop_every`]: at random, unless the point is one of drops or flushes.
fn drop_every(point: CrashPoint, flushes: bool, rng: &mut SeededRng) -> usize {
    use CrashPoint as P;
    match point {
        P::KeyspaceCreated | P::KeyspaceDropped | P::KeyspaceDataDeleted => 6,
        // No drops: they would remove the filler rows, which are in the second keyspace.
        _ if flushes => 0,
        _ => [0, 0, 20][rng.below(3)],
    }
}

/// [`ChildConfig::clock_speed`]: fast if the point comes only after some time.
fn clock_speed(point: CrashPoint, rng: &mut SeededRng) -> u32 {
    use CrashPoint as P;
    match point {
        point if is_lock_point(point) => 1,
        P::OracleReservationBefore | P::OracleReservationDurable => 500,
        P::GcBefore | P::GcDone | P::HistoryFloorRaised | P::KeyspaceDropped | P::KeyspaceDataDeleted => 50,
        _ => [1, 1, 50][rng.below(3)],
    }
}

/// Whether lock clients are needed to reach the point, or to make it matter.
fn is_lock_point(point: CrashPoint) -> bool {
    point.name().starts_with("lock.") || point == CrashPoint::CheckpointLeasesCleared
}

/// Whether only a large transaction reaches the point.
fn needs_large_transaction(point: CrashPoint) -> bool {
    use CrashPoint as P;
    matches!(
        point,
        P::LargeBetween | P::LargeAllLocked | P::LargeCommitted | P::CleanupForward | P::CleanupBack | P::CleanupDone
    )
}

fn workload_for(case: &Case, rng: &mut SeededRng) -> &'static dyn Workload {
    use CrashPoint as P;
    match case.point {
        // The case needs two locks to roll forward. A large transaction leaves them; a small one
        // may leave only one, and the one-phase commits of this protocol leave none.
        P::ResolveBeforeRollForward if case.visit == Visit::Second && case.protocol == Protocol::Auto => {
            return workload::LARGE;
        }
        // These points come between two batches, or when a batch conflicts after an earlier one has
        // locked rows. So a transaction needs more rows than fit into one batch.
        P::PrewriteBetween | P::PrewriteConflict | P::CommitBetween => return workload::LARGE,
        P::RollbackBetween | P::RollbackWritten => return workload::LARGE,
        P::KeyspaceDataDeleted | P::SweepBetween => return workload::LARGE,
        point if needs_large_transaction(point) => return workload::LARGE,
        P::KeyspaceDropped if rng.one_in(2) => return workload::LARGE,
        P::GcBefore | P::GcDone | P::HistoryFloorRaised => {
            if let Some(deletes) = workload::named(["set", "index"][rng.below(2)]) {
                return deletes;
            }
        }
        // Here the large workload is never chosen: its few transactions seldom have a commit in
        // progress when a grant ends.
        P::LockGrantEnded | P::LockDrained => {}
        _ if rng.one_in(8) => return workload::LARGE,
        _ => {}
    }
    *rng.pick(workload::ALL).unwrap_or(&workload::LARGE)
}
