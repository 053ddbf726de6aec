//! What a seed decides before anything runs, and what a history must have had to count.

use std::sync::LazyLock;
use std::time::Duration;

use percolite::crashtest::CrashPoint;
use percolite::engine::PAGE_BYTES_MAX;
use percolite::{CommitProtocol, Durability, HistoryRetention};

use super::scheduler::Due;
use super::{Mode, other};
use crate::client::{BESIDE_EVERY, Habits};
use crate::dice::Dice;
use crate::points::{Entry, Place, table};
use crate::workload::{self, Workload};

/// What threads of clients are called, and that of one that mostly looks.
pub const CLIENT: &str = "client";
pub const WATCHER: &str = "watcher";
/// What threads that take locks are called.
pub const LOCKER: &str = "locker";
/// How many transactions a history must have tried, beside a crash, to count.
pub const TRANSACTIONS_MIN: u64 = 50;
/// How many lives may end with a crash in the end; one that comes later is left alone, so that every history comes to an end.
const CRASHES_MAX: u32 = 6;
/// After so many lives a history that still does not count is given up: a few in ten thousand.
pub const LIVES_MAX: u32 = CRASHES_MAX + 4;
/// One history in so many has transactions of many rows, which take long.
const LARGE_EVERY: usize = 60;
/// One history in so many is arranged for something.
const FOCUSED_EVERY: usize = 2;
/// Less than a thread is stalled.
const SOON_TOO_OLD: Duration = Duration::from_millis(30);
/// From where on a transaction streams, unless it is to do so early.
const STREAMS_LATE: usize = 16 << 20;

/// Most of what a crash can break it breaks right after a sync, when people have just been told something.
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

/// The table of points. Without one the crashes come anywhere, and whoever holds the run against the table says why.
static POINTS: LazyLock<Vec<Entry>> = LazyLock::new(|| table().unwrap_or_default());

/// What a seed has decided before anything runs.
#[derive(Debug)]
#[allow(clippy::struct_excessive_bools, reason = "each is a choice of its own")]
pub struct Plan {
    pub mode: Mode,
    pub workload: &'static dyn Workload,
    pub clients: usize,
    /// Of all lives and clients together.
    pub transactions: u64,
    /// How many there are at least; there are more until the history counts.
    pub lives: u32,
    pub protocol: CommitProtocol,
    pub mixed: bool,
    pub durability: Durability,
    pub sweep: bool,
    pub conflict_slots: usize,
    /// The most rows that the engine changes at once.
    pub group_rows: usize,
    pub admission: usize,
    /// How long the disk takes for a sync.
    pub sync_takes: Duration,
    pub long_values: usize,
    pub clock_steps: bool,
    /// One transaction in so many thinks before it commits; 0: none does.
    pub thinks: usize,
    /// Whether one of the clients mostly looks at what the others do.
    pub watches: bool,
    /// How long a silent process is waited for, and whether it may be cut off for a while.
    pub ttl_ms: u64,
    pub cut_off: bool,
    pub drops: bool,
    /// Whether keyspaces are renamed, too.
    pub renames: bool,
    /// What the history is arranged for, if it is not left to chance.
    pub focus: Option<Focus>,
    /// How many bytes of memory a generation has when it is full.
    pub generation: usize,
    /// When the engine ends a page: cells and bytes.
    pub pages: (usize, usize),
    /// Whether clients go on while the store is closed.
    pub closes_early: bool,
    pub failing_disk: bool,
    /// Whether one of the clients restores dumps.
    pub restores: bool,
    /// From where on a transaction streams.
    pub stream_at_bytes: usize,
    /// How long somebody who thinks may read what is no longer the newest.
    pub age_max: Option<Duration>,
    /// What each life is asked to keep of the past, in turn.
    pub history: [HistoryRetention; 3],
    /// Where it may crash, and at which visit at most.
    pub points: Vec<CrashPoint>,
    pub visits: usize,
    /// How many threads take locks, how often each does something in a life, and its longest pause in milliseconds.
    pub lockers: usize,
    pub turns: u64,
    pub pauses_ms: usize,
}

/// What comes about too seldom where all is left to chance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Focus {
    /// Transactions are committed, with rows locked whose primary lies in the keyspace that the next life drops first of all. Its
    /// space must not be given back before those are resolved.
    Clears,
    /// A keyspace is dropped as soon as a large transaction has its primary there, and the power goes when it is erased.
    Erases,
    /// The past is looked at while little of it is kept.
    Remembers,
    /// Transactions grow too old while they commit, and what they overwrite was deleted meanwhile.
    Expires,
}

impl Focus {
    const ALL: [Self; 4] = [Self::Clears, Self::Erases, Self::Remembers, Self::Expires];

    /// The threads, by what their names begin with, that are to make no progress for long and often, while the others do: once in
    /// so many steps.
    pub fn stalls(self) -> Option<(&'static str, usize)> {
        match self {
            Self::Clears => None,
            Self::Erases => Some(("percolite-sweep", 40)),
            Self::Remembers => Some((WATCHER, 10)),
            Self::Expires => Some((CLIENT, 25)),
        }
    }
}

/// When a life's crash is due.
#[derive(Clone, Copy, Debug)]
pub struct Crash {
    pub due: Due,
    /// If it has not come when three of four of the life's transactions were tried, it comes within so many pauses.
    pub at_last: Option<u64>,
}

impl Plan {
    pub fn new(mode: Mode, dice: &mut Dice) -> Self {
        let protocol = if dice.one_in(2) { CommitProtocol::TwoPhase } else { CommitProtocol::Auto };
        let workloads = workload::ALL;
        let mut plan = Self {
            mode,
            workload: *dice.pick(workloads).unwrap_or(&workloads[0]),
            clients: 3 + dice.below(3),
            transactions: TRANSACTIONS_MIN + 4 + dice.below(20) as u64,
            lives: 1 + u32::try_from(dice.below(3)).unwrap_or_default(),
            protocol,
            mixed: dice.one_in(4),
            durability: if dice.one_in(3) { Durability::Buffered } else { Durability::Sync },
            sweep: !dice.one_in(3),
            conflict_slots: [1, 4, 64, 4096][dice.below(4)],
            group_rows: [usize::MAX, usize::MAX, 2, 3][dice.below(4)],
            admission: 2 + dice.below(6),
            sync_takes: Duration::from_micros([0, 0, 300, 1000][dice.below(4)]),
            long_values: [0, 2, 8][dice.below(3)],
            clock_steps: dice.one_in(3),
            thinks: [0, 0, 8][dice.below(3)],
            watches: dice.one_in(2),
            ttl_ms: [10, 30, 500][dice.below(3)],
            cut_off: dice.one_in(2),
            drops: dice.one_in(3),
            renames: false,
            failing_disk: dice.one_in(6),
            restores: dice.one_in(4),
            focus: None,
            generation: [2000, 20_000, 1 << 20][dice.below(3)],
            pages: if dice.one_in(4) { (usize::MAX, PAGE_BYTES_MAX) } else { (2, 64) },
            closes_early: dice.one_in(2),
            points: Vec::new(),
            visits: [1, 3, 40][dice.below(3)],
            age_max: None,
            history: if dice.one_in(3) { history(dice) } else { [HistoryRetention::Unchanged; 3] },
            stream_at_bytes: if dice.one_in(4) { [1, 200, 1000][dice.below(3)] } else { STREAMS_LATE },
            lockers: 0,
            turns: 0,
            pauses_ms: 0,
        };
        if plan.thinks > 0 && dice.one_in(2) {
            plan.age_max = Some(Duration::from_millis(100 + dice.below(1000) as u64));
        }
        if mode == Mode::Mutex {
            plan.take_locks(dice);
            return plan;
        }
        if dice.one_in(LARGE_EVERY) {
            plan.workload = workload::SELDOM_LARGE;
            plan.group_rows = usize::MAX;
        }
        plan.renames = plan.drops && dice.one_in(3);
        if mode == Mode::Embedded && dice.one_in(FOCUSED_EVERY) {
            plan.focus_on(*dice.pick(&Focus::ALL).unwrap_or(&Focus::Clears), dice);
        }
        plan.points = match plan.focus {
            Some(Focus::Clears) => {
                vec![CrashPoint::CommitPrimary, CrashPoint::CommitBetween, CrashPoint::LargeCommitted]
            }
            Some(Focus::Erases) => vec![CrashPoint::KeyspaceDataDeleted],
            _ => POINTS.iter().filter(|entry| plan.comes_to(entry)).map(|entry| entry.point).collect(),
        };
        plan
    }

    /// Hardly anything else is done.
    fn take_locks(&mut self, dice: &mut Dice) {
        (self.lockers, self.turns) = (3 + dice.below(2), 5 + dice.below(6) as u64);
        self.pauses_ms = [10, 100, 500][dice.below(3)];
        (self.clients, self.transactions, self.lives) = (1, 12, 2 + u32::try_from(dice.below(2)).unwrap_or_default());
        (self.drops, self.restores, self.failing_disk, self.closes_early) = (false, false, false, false);
        (self.thinks, self.age_max, self.history) = (0, None, [HistoryRetention::Unchanged; 3]);
        (self.watches, self.clock_steps) = (false, dice.one_in(2));
        self.points = LOCK_POINTS.into_iter().chain(AROUND_A_SYNC).collect();
    }

    fn focus_on(&mut self, focus: Focus, dice: &mut Dice) {
        self.focus = Some(focus);
        match focus {
            Focus::Clears => {
                self.drops = true;
                self.protocol = CommitProtocol::TwoPhase;
                // Row by row, or nobody could tell afterwards that it had been committed.
                self.group_rows = 2;
                (self.lives, self.sweep) = (3, dice.one_in(2));
            }
            Focus::Erases => {
                self.drops = true;
                (self.stream_at_bytes, self.thinks, self.sweep) = (1, 0, true);
                (self.lives, self.visits, self.restores) = (3, 8, false);
                (self.durability, self.history) = (Durability::Sync, [HistoryRetention::Unchanged; 3]);
            }
            Focus::Remembers => {
                let keep = HistoryRetention::For(Duration::from_millis([1, 5, 20][dice.below(3)]));
                (self.history, self.watches, self.failing_disk) = ([keep; 3], true, false);
            }
            Focus::Expires => {
                self.workload = workload::SET;
                (self.conflict_slots, self.restores) = (1, false);
                (self.age_max, self.history) = (Some(SOON_TOO_OLD), [HistoryRetention::Unchanged; 3]);
            }
        }
    }

    /// One transaction in so many also writes to the keyspace beside.
    pub fn beside_every(&self) -> usize {
        if self.drops_on_purpose() { 2 } else { BESIDE_EVERY }
    }

    /// Where clients commit in different ways, those of one of them.
    pub fn habits_of_client(&self, dice: &mut Dice) -> Habits {
        let habits = self.habits();
        if !self.mixed {
            return habits;
        }
        Habits {
            protocol: if dice.one_in(2) { other(self.protocol) } else { self.protocol },
            durability: if dice.one_in(2) { Durability::Buffered } else { self.durability },
            ..habits
        }
    }

    fn drops_on_purpose(&self) -> bool {
        matches!(self.focus, Some(Focus::Clears | Focus::Erases))
    }

    pub fn habits(&self) -> Habits {
        Habits { protocol: self.protocol, durability: self.durability, long_values: self.long_values }
    }

    /// Whether a life may crash: the later ones are there to bring the history to its end.
    pub fn may_crash(life: u32) -> bool {
        life < CRASHES_MAX
    }

    /// How many transactions each client tries in a life, of those that are left to do.
    pub fn share(&self, life: u32, tried: u64) -> u64 {
        let lives = u64::from(self.lives.saturating_sub(life).max(1));
        self.transactions.saturating_sub(tried).div_ceil(self.clients as u64 * lives).max(2)
    }

    /// When a life that comes after a crash, or does not, is to crash.
    pub fn crash(&self, dice: &mut Dice, orphans: bool) -> Crash {
        let at_last = Some(1 + dice.below(300) as u64);
        let points: Vec<CrashPoint> =
            self.points.iter().copied().filter(|point| orphans || !is_of_recovery(*point)).collect();
        let point = match dice.below(6) {
            0 | 1 => None,
            2 | 3 if !self.drops_on_purpose() && self.mode != Mode::Shared => {
                let point = *dice.pick(&AROUND_A_SYNC).unwrap_or(&AROUND_A_SYNC[0]);
                let due = Due::CrashPoint(point, 1 + dice.below(20) as u64, dice.below(40) as u64);
                return Crash { due, at_last };
            }
            _ => dice.pick(&points).copied(),
        };
        let Some(point) = point else { return Crash { due: Due::Step(1 + dice.below(2500) as u64), at_last } };
        let visit = if is_once(point) { 1 } else { 1 + dice.below(self.visits) as u64 };
        // One of closing comes when all transactions are over, so nobody hurries.
        Crash { due: Due::CrashPoint(point, visit, 0), at_last: at_last.filter(|_| !is_of_closing(point)) }
    }

    /// Whether the table and the plan allow that a history comes to a point.
    fn comes_to(&self, entry: &Entry) -> bool {
        use CrashPoint as P;
        let can = |place| entry.places.contains(&place);
        match self.mode {
            Mode::Shared => can(Place::SimShared) && entry.point != P::KeyspaceCreated,
            Mode::Embedded | Mode::Mutex => {
                let is_two_phase = |protocol| protocol == CommitProtocol::TwoPhase || self.mixed;
                let locks = is_two_phase(self.protocol) || self.group_rows != usize::MAX;
                let auto = self.protocol == CommitProtocol::Auto || self.mixed;
                let by_protocol = auto && can(Place::KillAuto) || locks && can(Place::KillTwoPhase);
                let by_plan = match entry.point {
                    P::LargeBetween | P::LargeAllLocked | P::LargeCommitted => self.streams(),
                    P::CleanupForward | P::CleanupBack | P::CleanupDone => self.streams(),
                    P::KeyspaceDropped | P::KeyspaceDataDeleted => self.drops || self.restores,
                    P::RestoreBetween | P::RestoreAll | P::RestoreNamed => self.restores,
                    point if LOCK_POINTS.contains(&point) => self.lockers > 0,
                    P::HistoryFloorRaised => self.history.iter().any(|keep| matches!(keep, HistoryRetention::For(_))),
                    P::SweepBetween | P::SweepDone | P::SafePointBefore | P::SafePointDurable => self.sweep,
                    _ => true,
                };
                can(Place::SimEmbedded) && by_protocol && by_plan
            }
        }
    }

    fn streams(&self) -> bool {
        self.stream_at_bytes < STREAMS_LATE
    }
}

/// For no time at all, for less than a history takes, for ever, or not.
pub fn history(dice: &mut Dice) -> [HistoryRetention; 3] {
    if dice.one_in(4) {
        return [HistoryRetention::For(Duration::from_millis(1 << 30)); 3];
    }
    std::array::from_fn(|_| match dice.below(6) {
        0 => HistoryRetention::Unchanged,
        1 => HistoryRetention::Disabled,
        _ => HistoryRetention::For(Duration::from_millis([0, 1, 20, 3_600_000, 1 << 30][dice.below(5)])),
    })
}

/// Where one process has the engine for itself, these are met only by a life that finds something of an earlier one.
fn is_of_recovery(point: CrashPoint) -> bool {
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

/// Met once a life.
fn is_once(point: CrashPoint) -> bool {
    is_of_closing(point)
        || matches!(
            point,
            CrashPoint::WalResumed | CrashPoint::OpenBefore | CrashPoint::OpenReserved | CrashPoint::OpenScanned
        )
}

/// Met when its transactions are over.
fn is_of_closing(point: CrashPoint) -> bool {
    matches!(point, CrashPoint::CloseSynced | CrashPoint::CloseDone)
}
