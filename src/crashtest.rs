//! The interface to the crash harness: crash points, at which a run can be stopped.
//!
//! This module exists only with the feature `crashtest`, which only the harness in
//! `tools/crashtest` enables. In any other build `crash_point!` expands to nothing.
//!
//! A crash point (TiKV: `fail_point!`) is a place in the code with a promise that must be kept if
//! everything stops there. The harness kills the process at that place, or crashes the simulated
//! machine, and then checks the promise.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

macro_rules! crash_point {
    ($point:ident $(if $condition:expr)?) => {
        if true $(&& $condition)? {
            $crate::crashtest::reach($crate::crashtest::CrashPoint::$point);
        }
    };
}

/// Lets the harness's scheduler switch threads here. Otherwise it can switch only where a thread
/// locks a mutex or calls the environment. So this is used between two steps with neither of these
/// in between.
macro_rules! yield_point {
    ($(if $condition:expr)?) => {
        if true $(&& $condition)? {
            $crate::crashtest::before_lock($crate::crashtest::LockAttempt::First);
        }
    };
}

macro_rules! crash_points {
    ($($variant:ident $name:literal $promise:literal)*) => {
        /// A place at which a run can be stopped; its description is the promise that must be kept
        /// there.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum CrashPoint {
            $(#[doc = $promise] $variant,)*
        }

        impl CrashPoint {
            /// All crash points.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// The name, as the harness prints and parses it.
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// The promise.
            pub fn description(self) -> &'static str {
                match self { $(Self::$variant => $promise,)* }
            }

            /// The crash point with this name.
            pub fn from_name(name: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|one| one.name() == name)
            }
        }
    };
}

crash_points! {
    OracleReservationBefore "oracle.reservation-before" "no timestamp above the durable reservation has been handed out"
    OracleReservationDurable "oracle.reservation-durable" "a durable reservation of which no timestamp was handed out is skipped by the next incarnation"
    StartTs "begin.start-ts" "a transaction that only has a start timestamp leaves nothing behind"
    PrewriteBefore "prewrite.before" "no row is locked: the transaction leaves nothing behind"
    PrewritePrimary "prewrite.primary" "the primary is locked: the transaction is rolled back"
    PrewriteBetween "prewrite.between" "some rows are locked: the transaction is rolled back, all of its locks are removed"
    PrewriteConflict "prewrite.conflict" "a conflict with some rows locked: those locks are removed, nothing was committed"
    PrewriteAll "prewrite.all" "every row is locked and no status is recorded: the transaction is rolled back"
    CommitTs "commit.ts" "a commit timestamp alone commits nothing"
    CommitPrimary "commit.primary" "committed at the primary with rows still locked: all are rolled forward"
    CommitBetween "commit.between" "some secondaries are versions: the others are rolled forward"
    CommitSecondaries "commit.secondaries" "no lock is left and the transaction is committed"
    CommitDone "commit.done" "as durable as requested, not acknowledged: the transaction is committed"
    OnePhaseBefore "one-phase.before" "nothing of the transaction is written"
    GroupBefore "group.before" "a commit group that is not written changes nothing; none of its commits is acknowledged"
    GroupWritten "group.written" "written and not visible: whole in the log, or cut off with all that follows it"
    GroupPublished "group.published" "visible and not durable: other transactions may read it; it is not acknowledged"
    RollbackBefore "rollback.before" "the transaction's own locks are left: they are rolled back"
    RollbackBetween "rollback.between" "some locks are removed: the others are rolled back too"
    RollbackWritten "rollback.written" "the locks are removed and nothing of the transaction is visible"
    ResolveLockSeen "resolve.lock-seen" "an orphan lock stays until another resolver removes it"
    ResolveStatusKnown "resolve.status-known" "the transaction's status is final; any resolver may apply it"
    ResolveBeforeRollback "resolve.before-rollback" "the primary is not rolled back yet: the next resolver does it"
    ResolvePrimaryRolledBack "resolve.primary-rolled-back" "the primary is rolled back: every secondary will be"
    ResolveBeforeRollForward "resolve.before-roll-forward" "the row stays locked, and the next resolver rolls it forward"
    ResolveDone "resolve.done" "the row is resolved; resolving it again changes nothing"
    LargeBetween "large.between" "a large transaction that is not committing yet has locked some rows: it is rolled back"
    LargeAllLocked "large.all-locked" "all rows of a large transaction are locked and no status is recorded: it is rolled back"
    LargeCommitted "large.committed" "committed at the primary, not acknowledged: it is committed"
    CleanupForward "cleanup.forward" "a large transaction is partly rolled forward: the rest follows"
    CleanupBack "cleanup.back" "a large transaction is partly rolled back: the rest follows"
    CleanupDone "cleanup.done" "no lock of a large transaction is left, its record still is"
    SweepBetween "sweep.between" "some orphan locks are resolved, the others are left"
    SweepDone "sweep.done" "no orphan lock is left, the transaction records still are"
    SafePointBefore "safe-point.before" "every transaction record exists"
    SafePointDurable "safe-point.durable" "records below the safe point may be removed, late requests are refused by it"
    TxnRecordGcBetween "txn-record-gc.between" "some records of finished transactions are removed"
    HistoryFloorRaised "history.floor-raised" "reads below the history's floor are refused, and all their versions still exist"
    GcBefore "gc.before" "the tombstone exists"
    GcDone "gc.done" "the tombstone is removed and the row stays deleted"
    HeartbeatBefore "heartbeat.before" "the lock's TTL is unchanged"
    HeartbeatDone "heartbeat.done" "the lock's TTL is extended"
    OpenBefore "open.before" "trying to open changes nothing"
    OpenReserved "open.reserved" "timestamps of this incarnation begin above those of all earlier ones"
    OpenScanned "open.scanned" "orphan locks are found and not resolved"
    CreateBefore "create.before" "a store whose creation was cut short is created again"
    CreateDone "create.done" "an empty store exists"
    SyncBefore "sync.before" "what is visible is not durable, and not acknowledged"
    WalResumed "wal.resumed" "the first segment of an incarnation is durable, and frames after the end of the last one are never read again"
    FlushMemtableSwitched "flush.memtable-switched" "the next segment is being written, and nothing of the one before is in the tables"
    FlushBatch "flush.batch" "part of a memtable is in the tables, perhaps synced: all of it is written again"
    FlushStripe "flush.stripe" "a memtable is in the tables up to the sequence of a snapshot, perhaps synced: all of it is written again"
    FlushWritten "flush.written" "all of a memtable and the flushed sequence are in the tables, perhaps synced, all columns together"
    FlushTablesSynced "flush.tables-synced" "a memtable is durable in the tables, and its segment is still there: it is not read again"
    FlushSegmentRemoved "flush.segment-removed" "the segment of a memtable that is in the tables is removed"
    SyncReturned "sync.returned" "durable, and the durable timestamp does not say so yet"
    SyncPublished "sync.published" "the durable timestamp says so, and no commit is acknowledged yet"
    KeyspaceCreated "keyspace.created" "the keyspace is in the catalog, as durable as any commit"
    KeyspaceDropped "keyspace.dropped" "the keyspace is dropped and its rows still exist: they are never visible again"
    KeyspaceDataDeleted "keyspace.data-deleted" "the rows are deleted, the list of dropped keyspaces still has their keyspace"
    RestoreBetween "restore.between" "some rows of a dump are there, in keyspaces without a name: they are invisible and will be deleted"
    RestoreAll "restore.all" "all rows of a dump are there, in keyspaces without a name: they are invisible and will be deleted"
    RestoreNamed "restore.named" "every restored keyspace is there, durably, and what they replaced is not"
    CheckpointFlushed "checkpoint.flushed" "the tables have all that a copy must have, no flush changes them, and nothing is copied yet"
    CheckpointBeforeMarker "checkpoint.before-marker" "all of a copy is there but its marker: it is no store"
    CheckpointDone "checkpoint.done" "the copy is a store, with everything acknowledged before it began"
    CheckpointLeasesCleared "checkpoint.leases-cleared" "a copy has no lease of the original, and still says that it is fresh: the next opening looks again"
    LockGrantEnded "lock.grant-ended" "a lock's grant has ended with fenced commits decided and not visible: the next holder sees them"
    LockDrained "lock.drained" "what was decided before the end of the grant is visible, and no later commit fenced by it is accepted"
    LockToken "lock.token" "the next grant has its token: above every commit fenced by the one before"
    LockLeaseDurable "lock.lease-durable" "the row of a lease is durable, and its call has not returned: it is held until it expires"
    LockRenewed "lock.renewed" "a lease is renewed, durably"
    LockReleased "lock.released" "the row of a lease is deleted, durably"
    LockHandedOver "lock.handed-over" "a lock was granted again in memory and the row of the previous lease still exists: it is held until it expires"
    CloseSynced "close.synced" "everything is durable; the next incarnation begins above the reservation"
    CloseDone "close.done" "closed"
}

/// A callback for every crash point that is reached.
pub type CrashHook = Box<dyn Fn(CrashPoint) + Send + Sync>;

/// Whether a thread tries to lock a mutex for the first time, or again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockAttempt {
    /// The first attempt.
    First,
    /// Another attempt, after one that found the mutex locked.
    Retry,
}

/// A callback that runs before a mutex of the store is locked. It returns whether the harness
/// schedules the calling thread.
pub type LockHook = Box<dyn Fn(LockAttempt) -> bool + Send + Sync>;

/// A callback that runs work of an asynchronous call which may block, on another thread.
pub type BlockingHook = Box<dyn Fn(Box<dyn FnOnce() + Send>) + Send + Sync>;

static CRASH_HOOK: OnceLock<CrashHook> = OnceLock::new();
static LOCK_HOOK: OnceLock<LockHook> = OnceLock::new();
static BLOCKING_HOOK: OnceLock<BlockingHook> = OnceLock::new();
static LEADER_ROUNDS_MAX: AtomicUsize = AtomicUsize::new(crate::tunables::LEADER_ROUNDS_MAX);

/// Sets the callback of all crash points in this process; only the first call has an effect.
pub fn set_crash_hook(hook: CrashHook) {
    let _ = CRASH_HOOK.set(hook);
}

/// Sets the callback of all mutexes of stores in this process; only the first call has an effect.
pub fn set_lock_hook(hook: LockHook) {
    let _ = LOCK_HOOK.set(hook);
}

/// Sets the callback for blocking work in this process; only the first call has an effect.
pub fn set_blocking_hook(hook: BlockingHook) {
    let _ = BLOCKING_HOOK.set(hook);
}

/// Without a callback the work runs on this thread.
#[cfg(feature = "tokio")]
pub(crate) fn run_blocking(work: Box<dyn FnOnce() + Send>) {
    match BLOCKING_HOOK.get() {
        Some(hook) => hook(work),
        None => work(),
    }
}

/// Sets after how many rounds a commit leader transfers the leadership, in this process: with the
/// usual number, two threads would never see a transfer. Returns the number before.
pub fn set_leader_rounds_max(rounds: usize) -> usize {
    LEADER_ROUNDS_MAX.swap(rounds, Ordering::SeqCst)
}

pub(crate) fn leader_rounds_max() -> usize {
    LEADER_ROUNDS_MAX.load(Ordering::SeqCst)
}

pub(crate) fn reach(point: CrashPoint) {
    if let Some(hook) = CRASH_HOOK.get() {
        hook(point);
    }
}

pub(crate) fn before_lock(attempt: LockAttempt) -> bool {
    LOCK_HOOK.get().is_some_and(|hook| hook(attempt))
}
