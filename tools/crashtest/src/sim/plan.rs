//! What a seed decides before the run, and when a history counts.

use std::sync::LazyLock;
use std::time::Duration;

use percolite::crashtest::CrashPoint;
use percolite::engine::MAX_PAGE_BYTES;
use percolite::internal::coordinator::HistoryRetention;
use percolite::{CommitProtocol, Durability};

use super::scheduler::{LONG_STALL, ROUND_STALL, Trigger};
use super::{BACKGROUND_THREAD, Mode, other_protocol};
use crate::client::{ClientConfig, SECOND_EVERY};
use crate::points::{Environment, PointRow, table};
use crate::rng::SeededRng;
use crate::workload::{self, Workload};

/// Name prefixes of client threads, and of the client that mostly reads.
pub const CLIENT: &str = "client";
pub const READER: &str = "reader";
/// The name prefix of threads that take locks.
pub const LOCK_CLIENT: &str = "lock client";
/// A history counts if it had a crash and its clients attempted at least this many transactions.
/// Requests for named locks count as transactions.
pub const TRANSACTIONS_MIN: u64 = 50;
/// In embedded histories, incarnations from this number on can crash only when their clients have
/// ended, so that the clients attempt enough transactions.
const CRASHES_MAX: u32 = 6;
/// A history that does not count after this many incarnations is given up: a few in ten thousand.
pub const INCARNATIONS_MAX: u32 = CRASHES_MAX + 4;
/// One history in this many has transactions with many rows; such a history takes long to run.
const LARGE_EVERY: usize = 60;
/// One embedded history in this many has a [`Focus`].
const FOCUSED_EVERY: usize = 2;
/// A snapshot age limit shorter than the longest stall, so that a snapshot expires while its thread
/// is stalled.
const SHORT_AGE_LIMIT: Duration = Duration::from_millis(30);
/// The default of `large_transaction_bytes`; simulated transactions are smaller.
const NEVER_LARGE: usize = 16 << 20;

/// Crash points around a sync. Soon after them commits are acknowledged. A crash a few yields later
/// shows most of the violations that a crash can cause.
const AROUND_A_SYNC: [CrashPoint; 3] =
    [CrashPoint::SyncReturned, CrashPoint::SyncPublished, CrashPoint::GroupPublished];

const LOCK_POINTS: [CrashPoint; 7] = [
    CrashPoint::LockGrantEnded,
    CrashPoint::LockDrained,
    CrashPoint::LockToken,
    CrashPoint::LockLeaseDurable,
    CrashPoint::LockRenewed,
    CrashPoint::LockReleased,
    CrashPoint::LockHandedOver,
];

/// The table of crash points; empty if it is invalid, which the check of the run against the table
/// reports.
static POINTS: LazyLock<Vec<PointRow>> = LazyLock::new(|| table().unwrap_or_default());

/// What a seed decides before the run.
#[derive(Clone, Debug)]
#[allow(clippy::struct_excessive_bools, reason = "independent choices")]
pub struct SimPlan {
    pub mode: Mode,
    pub workload: &'static dyn Workload,
    pub clients: usize,
    /// The number of transactions of all incarnations and clients together.
    pub transactions: u64,
    /// The least number of incarnations; more follow until the history counts.
    pub incarnations: u32,
    pub protocol: CommitProtocol,
    pub mixed_configs: bool,
    pub durability: Durability,
    pub background_resolve: bool,
    pub conflict_set_rows: usize,
    /// The maximum number of rows that one batch of the engine may have.
    pub batch_rows_max: usize,
    pub admission_limit: usize,
    /// How long a sync takes.
    pub sync_time: Duration,
    pub long_value_every: usize,
    pub clock_steps: bool,
    /// One transaction in this many waits before it commits; 0: none.
    pub think_every: usize,
    /// Whether one of the clients mostly reads.
    pub has_reader: bool,
    /// In shared histories: the TTL of locks, and whether networks are partitioned for a while.
    pub ttl_ms: u64,
    pub partitions: bool,
    pub drops_keyspaces: bool,
    /// Whether keyspaces are renamed, too.
    pub renames: bool,
    /// The focus of the history, if it has one.
    pub focus: Option<Focus>,
    /// The size of a memtable in bytes.
    pub memtable_bytes: usize,
    /// The page limits of the engine: cells and bytes.
    pub page_limits: (usize, usize),
    /// Whether clients continue while the store is closed.
    pub closes_while_busy: bool,
    pub failing_disk: bool,
    /// Whether one of the clients restores dumps.
    pub restores: bool,
    /// The size from which a transaction is large.
    pub large_transaction_bytes: usize,
    /// The age limit of snapshots.
    pub max_snapshot_age: Option<Duration>,
    /// The history retentions: each incarnation has a random one of them.
    pub retention: [HistoryRetention; 3],
    /// The crash points at which a crash may come, and the highest visit at which it does.
    pub crash_points: Vec<CrashPoint>,
    pub visits_max: usize,
    /// The number of lock clients, their steps in an incarnation, and their longest pause in
    /// milliseconds.
    pub lock_clients: usize,
    pub lock_steps: u64,
    pub lock_pause_max_ms: usize,
}

/// Situations that chance brings about too seldom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Focus {
    /// A crash leaves locked rows of committed transactions, with the primary in the keyspace that
    /// the next incarnation drops first. The keyspace has the status of these transactions, so its
    /// data must not be deleted before the locks are resolved.
    DropWithOrphans,
    /// A keyspace is dropped as soon as a large transaction has its primary there, and the power is
    /// cut when the keyspace's data is deleted.
    DeleteDuringLarge,
    /// History is read while its retention is short.
    ShortHistory,
    /// Snapshots expire during a commit that overwrites a row which was deleted after the snapshot.
    ExpireDuringCommit,
}

impl Focus {
    const ALL: [Self; 4] =
        [Self::DropWithOrphans, Self::DeleteDuringLarge, Self::ShortHistory, Self::ExpireDuringCommit];

    /// Which threads are stalled, by the prefix of their names, once in how many of their yields,
    /// and for how long at most.
    pub fn stalls(self) -> Option<(&'static str, usize, (usize, Duration))> {
        match self {
            Self::DropWithOrphans => None,
            Self::DeleteDuringLarge => Some((BACKGROUND_THREAD, 40, LONG_STALL)),
            // Garbage collection must have time to remove what a stalled reader is about to read.
            Self::ShortHistory => Some((READER, 4, ROUND_STALL)),
            Self::ExpireDuringCommit => Some((CLIENT, 25, LONG_STALL)),
        }
    }
}

/// The crash of an incarnation.
#[derive(Clone, Copy, Debug)]
pub struct Crash {
    pub trigger: Trigger,
    /// After three quarters of the transactions were attempted, a crash that has not come yet comes
    /// within this many yields.
    pub deadline_yields: Option<u64>,
}

impl SimPlan {
    pub fn new(mode: Mode, rng: &mut SeededRng) -> Self {
        let protocol = if rng.one_in(2) { CommitProtocol::TwoPhase } else { CommitProtocol::Auto };
        let workloads = workload::ALL;
        let mut plan = Self {
            mode,
            workload: *rng.pick(workloads).unwrap_or(&workloads[0]),
            clients: 3 + rng.below(3),
            transactions: TRANSACTIONS_MIN + 4 + rng.below(20) as u64,
            incarnations: 1 + u32::try_from(rng.below(3)).unwrap_or_default(),
            protocol,
            mixed_configs: rng.one_in(4),
            durability: if rng.one_in(3) { Durability::Buffered } else { Durability::Sync },
            background_resolve: !rng.one_in(3),
            conflict_set_rows: [1, 4, 64, 4096][rng.below(4)],
            batch_rows_max: [usize::MAX, usize::MAX, 2, 3][rng.below(4)],
            admission_limit: 2 + rng.below(6),
            sync_time: Duration::from_micros([0, 0, 300, 1000][rng.below(4)]),
            long_value_every: [0, 2, 8][rng.below(3)],
            clock_steps: rng.one_in(3),
            think_every: [0, 0, 8][rng.below(3)],
            has_reader: rng.one_in(2),
            ttl_ms: [10, 30, 500][rng.below(3)],
            partitions: rng.one_in(2),
            drops_keyspaces: rng.one_in(3),
            renames: false,
            failing_disk: rng.one_in(6),
            restores: rng.one_in(4),
            focus: None,
            memtable_bytes: [2000, 20_000, 1 << 20][rng.below(3)],
            page_limits: if rng.one_in(4) { (usize::MAX, MAX_PAGE_BYTES) } else { (2, 64) },
            closes_while_busy: rng.one_in(2),
            crash_points: Vec::new(),
            visits_max: [1, 3, 40][rng.below(3)],
            max_snapshot_age: None,
            retention: if rng.one_in(3) { random_retention(rng) } else { [HistoryRetention::Unchanged; 3] },
            large_transaction_bytes: if rng.one_in(4) { [1, 200, 1000][rng.below(3)] } else { NEVER_LARGE },
            lock_clients: 0,
            lock_steps: 0,
            lock_pause_max_ms: 0,
        };
        if plan.think_every > 0 && rng.one_in(2) {
            plan.max_snapshot_age = Some(Duration::from_millis(100 + rng.below(1000) as u64));
        }
        if mode == Mode::Locks {
            plan.use_locks(rng);
            return plan;
        }
        if rng.one_in(LARGE_EVERY) {
            plan.workload = workload::RARELY_LARGE;
            plan.batch_rows_max = usize::MAX;
        }
        plan.renames = plan.drops_keyspaces && rng.one_in(3);
        if mode == Mode::Embedded && rng.one_in(FOCUSED_EVERY) {
            plan.focus_on(*rng.pick(&Focus::ALL).unwrap_or(&Focus::DropWithOrphans), rng);
        }
        plan.crash_points = match plan.focus {
            Some(Focus::DropWithOrphans) => {
                vec![CrashPoint::CommitPrimary, CrashPoint::CommitBetween, CrashPoint::LargeCommitted]
            }
            Some(Focus::DeleteDuringLarge) => vec![CrashPoint::KeyspaceDataDeleted],
            _ => POINTS.iter().filter(|row| plan.reaches(row)).map(|row| row.point).collect(),
        };
        plan
    }

    /// Turns the history into one of locks.
    fn use_locks(&mut self, rng: &mut SeededRng) {
        (self.lock_clients, self.lock_steps) = (3 + rng.below(2), 5 + rng.below(6) as u64);
        self.lock_pause_max_ms = [10, 100, 500][rng.below(3)];
        (self.clients, self.transactions, self.incarnations) =
            (1, 12, 2 + u32::try_from(rng.below(2)).unwrap_or_default());
        (self.drops_keyspaces, self.restores, self.failing_disk, self.closes_while_busy) = (false, false, false, false);
        (self.think_every, self.max_snapshot_age, self.retention) = (0, None, [HistoryRetention::Unchanged; 3]);
        (self.has_reader, self.clock_steps) = (false, rng.one_in(2));
        self.crash_points = LOCK_POINTS.into_iter().chain(AROUND_A_SYNC).collect();
    }

    fn focus_on(&mut self, focus: Focus, rng: &mut SeededRng) {
        self.focus = Some(focus);
        match focus {
            Focus::DropWithOrphans => {
                self.drops_keyspaces = true;
                self.protocol = CommitProtocol::TwoPhase;
                // Without small batches no committed transaction would be left with locked rows.
                self.batch_rows_max = 2;
                (self.incarnations, self.background_resolve) = (3, rng.one_in(2));
            }
            Focus::DeleteDuringLarge => {
                self.drops_keyspaces = true;
                (self.large_transaction_bytes, self.think_every, self.background_resolve) = (1, 0, true);
                (self.incarnations, self.visits_max, self.restores) = (3, 8, false);
                (self.durability, self.retention) = (Durability::Sync, [HistoryRetention::Unchanged; 3]);
            }
            Focus::ShortHistory => {
                let retention = HistoryRetention::For(Duration::from_millis([1, 5, 20][rng.below(3)]));
                (self.retention, self.has_reader, self.failing_disk) = ([retention; 3], true, false);
                // While clients think, garbage collection runs.
                self.think_every = 3;
            }
            Focus::ExpireDuringCommit => {
                self.workload = workload::SET;
                (self.conflict_set_rows, self.restores) = (1, false);
                (self.max_snapshot_age, self.retention) = (Some(SHORT_AGE_LIMIT), [HistoryRetention::Unchanged; 3]);
            }
        }
    }

    /// One transaction in this many also writes to the second keyspace.
    pub fn second_every(&self) -> usize {
        if self.has_drop_focus() { 2 } else { SECOND_EVERY }
    }

    /// The configuration of one client. With `mixed_configs` the clients differ at random.
    pub fn random_client_config(&self, rng: &mut SeededRng) -> ClientConfig {
        let config = self.client_config();
        if !self.mixed_configs {
            return config;
        }
        ClientConfig {
            protocol: if rng.one_in(2) { other_protocol(self.protocol) } else { self.protocol },
            durability: if rng.one_in(2) { Durability::Buffered } else { self.durability },
            ..config
        }
    }

    fn has_drop_focus(&self) -> bool {
        matches!(self.focus, Some(Focus::DropWithOrphans | Focus::DeleteDuringLarge))
    }

    pub fn client_config(&self) -> ClientConfig {
        ClientConfig { protocol: self.protocol, durability: self.durability, long_value_every: self.long_value_every }
    }

    /// Whether an embedded incarnation may have a disk fault, or crash before its clients have
    /// ended: only those with a number below `CRASHES_MAX` may.
    pub fn may_crash(incarnation: u32) -> bool {
        incarnation < CRASHES_MAX
    }

    /// How many transactions each client attempts in an incarnation, of those that are left.
    pub fn transactions_per_client(&self, incarnation: u32, tried: u64) -> u64 {
        let incarnations = u64::from(self.incarnations.saturating_sub(incarnation).max(1));
        self.transactions.saturating_sub(tried).div_ceil(self.clients as u64 * incarnations).max(2)
    }

    /// Chooses the crash of an incarnation. `orphans` states whether there may be orphan locks.
    pub fn crash(&self, rng: &mut SeededRng, orphans: bool) -> Crash {
        let at_last = Some(1 + rng.below(300) as u64);
        let points: Vec<CrashPoint> =
            self.crash_points.iter().copied().filter(|point| orphans || !is_recovery_point(*point)).collect();
        let point = match rng.below(6) {
            0 | 1 => None,
            2 | 3 if !self.has_drop_focus() && self.mode != Mode::Shared => {
                let point = *rng.pick(&AROUND_A_SYNC).unwrap_or(&AROUND_A_SYNC[0]);
                let due = Trigger::CrashPoint(point, 1 + rng.below(20) as u64, rng.below(40) as u64);
                return Crash { trigger: due, deadline_yields: at_last };
            }
            _ => rng.pick(&points).copied(),
        };
        let Some(point) = point else {
            return Crash { trigger: Trigger::Step(1 + rng.below(2500) as u64), deadline_yields: at_last };
        };
        let visit = if is_once_per_incarnation(point) { 1 } else { 1 + rng.below(self.visits_max) as u64 };
        // Closing comes after all transactions. A deadline would bring the crash before it.
        Crash {
            trigger: Trigger::CrashPoint(point, visit, 0),
            deadline_yields: at_last.filter(|_| !is_close_point(point)),
        }
    }

    /// Whether the table and the plan allow a crash point in this history.
    fn reaches(&self, row: &PointRow) -> bool {
        use CrashPoint as P;
        let can = |environment| row.environments.contains(&environment);
        match self.mode {
            Mode::Shared => can(Environment::SimShared) && row.point != P::KeyspaceCreated,
            Mode::Embedded | Mode::Locks => {
                let is_two_phase = |protocol| protocol == CommitProtocol::TwoPhase || self.mixed_configs;
                let locks = is_two_phase(self.protocol) || self.batch_rows_max != usize::MAX;
                let auto = self.protocol == CommitProtocol::Auto || self.mixed_configs;
                let by_protocol = auto && can(Environment::KillAuto) || locks && can(Environment::KillTwoPhase);
                let by_plan = match row.point {
                    P::LargeBetween | P::LargeAllLocked | P::LargeCommitted => self.has_large_transactions(),
                    P::CleanupForward | P::CleanupBack | P::CleanupDone => self.has_large_transactions(),
                    P::KeyspaceDropped | P::KeyspaceDataDeleted => self.drops_keyspaces || self.restores,
                    P::RestoreBetween | P::RestoreAll | P::RestoreNamed => self.restores,
                    point if LOCK_POINTS.contains(&point) => self.lock_clients > 0,
                    P::HistoryFloorRaised => {
                        self.retention.iter().any(|retention| matches!(retention, HistoryRetention::For(_)))
                    }
                    P::SweepBetween | P::SweepDone | P::SafePointBefore | P::SafePointDurable => {
                        self.background_resolve
                    }
                    _ => true,
                };
                can(Environment::SimEmbedded) && by_protocol && by_plan
            }
        }
    }

    fn has_large_transactions(&self) -> bool {
        self.large_transaction_bytes < NEVER_LARGE
    }
}

/// Three retentions, either all longer than any run, or each a random one: none, short, long or
/// unchanged.
pub fn random_retention(rng: &mut SeededRng) -> [HistoryRetention; 3] {
    if rng.one_in(4) {
        return [HistoryRetention::For(Duration::from_millis(1 << 30)); 3];
    }
    std::array::from_fn(|_| match rng.below(6) {
        0 => HistoryRetention::Unchanged,
        1 => HistoryRetention::Disabled,
        _ => HistoryRetention::For(Duration::from_millis([0, 1, 20, 3_600_000, 1 << 30][rng.below(5)])),
    })
}

/// Points that an embedded incarnation reaches only if an earlier one has left locks.
fn is_recovery_point(point: CrashPoint) -> bool {
    use CrashPoint as P;
    matches!(
        point,
        P::ResolveLockSeen
            | P::ResolveStatusKnown
            | P::ResolveBeforeRollback
            | P::ResolvePrimaryRolledBack
            | P::ResolveBeforeRollForward
            | P::ResolveDone
            | P::SweepBetween
    )
}

/// Points that are reached once in an incarnation.
fn is_once_per_incarnation(point: CrashPoint) -> bool {
    is_close_point(point)
        || matches!(
            point,
            CrashPoint::WalResumed | CrashPoint::OpenBefore | CrashPoint::OpenReserved | CrashPoint::OpenScanned
        )
}

/// Points that are reached after all transactions.
fn is_close_point(point: CrashPoint) -> bool {
    matches!(point, CrashPoint::CloseSynced | CrashPoint::CloseDone)
}
