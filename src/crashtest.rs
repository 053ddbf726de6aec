//! The interface to the crash harness: crash points, at which a run can be stopped, and mutants,
//! known mistakes that can be switched on.
//!
//! This module exists only with the feature `crashtest`, which only the harness in
//! `tools/crashtest` enables. In any other build `crash_point!` expands to nothing and `mutated!`
//! to `false`.
//!
//! A crash point (TiKV: `fail_point!`) is a place in the code with a promise that must be kept if
//! everything stops there. The harness kills the process at that place, or crashes the simulated
//! machine, and then checks the promise. A mutant is a mistake that similar stores have made. The
//! harness must find each mutant, which shows that its checks work.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

macro_rules! crash_point {
    ($point:ident $(if $condition:expr)?) => {
        if true $(&& $condition)? {
            $crate::crashtest::reach($crate::crashtest::CrashPoint::$point);
        }
    };
}

macro_rules! mutated {
    ($mutant:ident) => {
        $crate::crashtest::is_enabled($crate::crashtest::Mutant::$mutant)
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

macro_rules! named_enum {
    ($(#[$about:meta])* $kind:ident { $($variant:ident $name:literal $text:literal)* }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum $kind {
            $(#[doc = $text] $variant,)*
        }

        impl $kind {
            /// All variants.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// The name, as the harness prints and parses it.
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// The description: the promise of a crash point, the mistake of a mutant.
            pub fn description(self) -> &'static str {
                match self { $(Self::$variant => $text,)* }
            }

            /// The variant with this name.
            pub fn from_name(name: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|one| one.name() == name)
            }
        }
    };
}

named_enum! {
    /// A place at which a run can be stopped; its description is the promise that must be kept
    /// there.
    CrashPoint {
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
        CheckpointBeforeMarker "checkpoint.before-marker" "all of a copy is there but its marker: it is no store"
        CheckpointDone "checkpoint.done" "the copy is a store, with everything acknowledged before it began"
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
}

named_enum! {
    /// A known mistake; its description says which.
    Mutant {
        SkipConflictCheck "skip-conflict-check" "the leader treats every row as unchanged"
        ConflictOnStartTs "conflict-on-start-ts" "conflicts are judged on `start_ts` instead of `read_ts`"
        EqualTimestampNotSeen "equal-timestamp-not-seen" "a version committed exactly at the reader's timestamp is not seen"
        ReaderIgnoresLocks "reader-ignores-locks" "readers never read the lock column"
        ReadsLatest "reads-latest" "reads show the newest state instead of the snapshot"
        EarlyCommitTs "early-commit-ts" "the commit timestamp is allocated before the last prewrite"
        SecondariesFirst "secondaries-first" "secondaries are committed before the primary"
        AcknowledgeBeforeSync "acknowledge-before-sync" "commits are acknowledged when they are visible"
        FlushesUnsynced "flushes-unsynced" "a memtable is flushed before its segment of the log is durable"
        SegmentRemovedEarly "segment-removed-early" "a segment is removed before its memtable is durable in the tables"
        FlushedSequenceFirst "flushed-sequence-first" "the flushed sequence is written with the first batch of a flush"
        TombstonesNotFlushed "tombstones-not-flushed" "a flush leaves tombstones out"
        StripesShowEnd "stripes-show-end" "a snapshot within a memtable gets the tables as they are after the whole flush"
        SegmentDirNotSynced "segment-dir-not-synced" "the directory is not synced after a segment was created"
        SplitColumns "split-columns" "the lock column is written in a batch of its own"
        ReplacedVersionDroppedEarly "replaced-version-dropped-early" "a commit drops the version that it replaces before it is durable itself"
        RollbackWithoutPrimary "rollback-without-primary" "an orphan lock is rolled back without reading its primary"
        NoRollbackRecord "no-rollback-record" "a rollback leaves no record"
        ForwardAtWrongTs "forward-at-wrong-ts" "rolling forward makes up a commit timestamp"
        StaleStatus "stale-status" "a status read earlier is used without making it final"
        LatePrewriteAccepted "late-prewrite-accepted" "a prewrite that comes after its transaction's end locks the row"
        TtlOnClientClock "ttl-on-client-clock" "a lock's TTL is measured on the client's wall clock"
        TimestampsReused "timestamps-reused" "the oracle ignores its reservation when the store is opened"
        GcTakesLiveVersion "gc-takes-live-version" "garbage collection removes the newest version whatever it is"
        GcTooEarly "gc-too-early" "garbage collection removes tombstones that active transactions must see"
        BlindRetry "blind-retry" "an undetermined commit is treated as a conflict and retried"
        SyncErrorIgnored "sync-error-ignored" "a failed sync is repeated, and its success is trusted"
        UndeterminedAsConflict "undetermined-as-conflict" "a commit whose write failed is reported as aborted"
        SavepointLeaks "savepoint-leaks" "writes undone by a savepoint are committed"
        ResolveDropsStatus "resolve-drops-status" "resolving one row removes the record of the transaction's status"
        WrittenSampledAfterSync "written-sampled-after-sync" "the timestamp that a sync makes durable is sampled after the sync"
        SnapshotAtVisible "snapshot-at-visible" "snapshots show what is not durable"
        UndurableReadsAnswered "undurable-reads-answered" "calls return although what they read is not durable"
        AnySyncAcknowledges "any-sync-acknowledges" "any sync that returns acknowledges every waiting commit"
        LockCheckAfterSnapshot "lock-check-after-snapshot" "whether locks matter is read after the snapshot is opened"
        LargeLocksUnseen "large-locks-unseen" "writers do not check for the locks of large transactions"
        CleanupEndsEarly "cleanup-ends-early" "a large transaction's record is removed before its last lock"
        LargeUndoLost "large-undo-lost" "rolling back to a savepoint ignores rows locked since"
        ReadsBelowHistoryFloor "reads-below-history-floor" "timestamps below the history's floor can be read, whatever is left of them"
        HistoryFloorNotPersisted "history-floor-not-persisted" "the floor of the history rises in memory only"
        HistoryShowsLaterLocks "history-shows-later-locks" "historical reads show locks of transactions committed later"
        ReplacedVersionNotKept "replaced-version-not-kept" "rolling forward keeps no history"
        DropLeavesOrphans "drop-leaves-orphans" "a keyspace is deleted while orphan locks elsewhere have their primary in it"
        DropLeavesCleanups "drop-leaves-cleanups" "a keyspace is deleted while a large transaction with its primary in it still has locks"
        DropCheckedOnce "drop-checked-once" "whether primaries in a dropped keyspace may still be read is not checked again after the drop's timestamp is allocated"
        ShortPageEndsSweep "short-page-ends-sweep" "the sweep treats a page with fewer locks than its limit as the last"
        ShortPageEndsCleanup "short-page-ends-cleanup" "the cleanup of a large transaction treats a page with fewer locks than its limit as the last"
        FramesAfterBreakIgnored "frames-after-break-ignored" "valid frames after a break are never searched for"
        LaterSegmentsNotQuarantined "later-segments-not-quarantined" "of a damaged segment and those after it only the damaged one is quarantined"
        TailNotRewritten "tail-not-rewritten" "an incarnation begins without rewriting what the last one may have failed to sync"
        AppendsAfterFailure "appends-after-failure" "the log continues after a write or sync that failed"
        HistoryFloorRaisedEarly "history-floor-raised-early" "the floor of the history may rise before a historical view is taken"
        OracleUsableAfterClose "oracle-usable-after-close" "closing records the newest timestamp, and others are handed out after it"
        OwnBoundsIncluded "own-bounds-included" "a scan shows a transaction's own row at a bound that is excluded"
        MultiGetIgnoresLocks "multi-get-ignores-locks" "reading several rows in one call never reads the lock column"
        ExpiredWriterCommits "expired-writer-commits" "a transaction whose snapshot has expired commits"
        VisibleTakenForNewest "visible-taken-for-newest" "the newest visible commit is treated as the newest of all"
        RangeCommitIgnored "range-commit-ignored" "a commit of many rows does not count for rows that are in the conflict set"
        PermitLeaked "permit-leaked" "a permit is returned only while there are conflicts"
        TrailingLocksUnseen "trailing-locks-unseen" "a scan misses locks after the last version"
        CursorKeepsEnd "cursor-keeps-end" "a scan's iterator continues to the end bound that it was opened with"
        TokenReused "token-reused" "every grant has the same token"
        TokenBeforeDrain "token-before-drain" "a grant's token is allocated before what was decided under the one before is published"
        MinReadTsBeforeDrain "min-read-ts-before-drain" "what a fenced transaction has to see is recorded before the drain"
        NoDrainAfterEnd "no-drain-after-end" "a grant does not wait for the commits decided under the one before"
        FenceAtBegin "fence-at-begin" "a fence is checked when it is added to a transaction, and not at commit"
        FenceIgnoresMinReadTs "fence-ignores-min-read-ts" "a fenced transaction may have begun before the grant"
        GuardBeforeDurable "guard-before-durable" "a guard is returned before what was committed under the one before is durable"
        LockQueueDroppedEarly "lock-queue-dropped-early" "a lock queue is removed with its last request, whatever its last grant has left"
        ConvertKeepsFence "convert-keeps-fence" "fences from before a conversion hold after it"
        ExpiredWaiterGranted "expired-waiter-granted" "a request that timed out is treated as granted"
        WakeAll "wake-all" "the end of a grant wakes every request that waits for the lock"
        WakeBeforeGrant "wake-before-grant" "a granted request is woken before the grant is recorded"
        CancelledRequestKept "cancelled-request-kept" "a cancelled request stays in the queue"
        QueueJumped "queue-jumped" "a request that is compatible with the grants does not queue"
        SecondUpgraderWaits "second-upgrader-waits" "two holders of a shared lock that upgrade wait for each other"
        ReleasedByName "released-by-name" "a lock is released by its name, whatever the token"
        LeaseReturnedEarly "lease-returned-early" "the release of a lease returns before its row is deleted"
        LeaseRowLater "lease-row-later" "the row of a lease is not durable when the guard is returned"
        LeaseOnTimestamps "lease-on-timestamps" "leases are measured by the oracle's timestamps"
        LeaseNotReadAtOpen "lease-not-read-at-open" "leases of earlier incarnations are not loaded"
        TimerNotPassedOn "timer-not-passed-on" "a request that reaches the front of the queue does not watch the previous lease"
        LockOnlyNotEncoded "lock-only-not-encoded" "the inline encoding drops the timestamp of the last lock-only commit"
    }
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

static CRASH_HOOK: OnceLock<CrashHook> = OnceLock::new();
static LOCK_HOOK: OnceLock<LockHook> = OnceLock::new();
static MUTANT: AtomicUsize = AtomicUsize::new(usize::MAX);

/// Sets the callback of all crash points in this process; only the first call has an effect.
pub fn set_crash_hook(hook: CrashHook) {
    let _ = CRASH_HOOK.set(hook);
}

/// Sets the callback of all mutexes of stores in this process; only the first call has an effect.
pub fn set_lock_hook(hook: LockHook) {
    let _ = LOCK_HOOK.set(hook);
}

/// Switches one mutant on for the whole process, or all of them off.
pub fn enable_mutant(mutant: Option<Mutant>) {
    let index = mutant.map_or(usize::MAX, |mutant| mutant as usize);
    MUTANT.store(index, Ordering::SeqCst);
}

pub(crate) fn reach(point: CrashPoint) {
    if let Some(hook) = CRASH_HOOK.get() {
        hook(point);
    }
}

pub(crate) fn before_lock(attempt: LockAttempt) -> bool {
    LOCK_HOOK.get().is_some_and(|hook| hook(attempt))
}

pub(crate) fn is_enabled(mutant: Mutant) -> bool {
    MUTANT.load(Ordering::Relaxed) == mutant as usize
}
