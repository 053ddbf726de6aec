//! The seam of the crash harness: named points at which a run can be stopped, and known mistakes that can be switched on.
//!
//! All of it exists only with the feature `crashtest`, which nothing but the harness in `tools/crashtest` asks for: in
//! any other build `crash_point!` is nothing and `mutated!` is `false`.
//!
//! A point is a place in the code with a promise: what must hold if everything stops right there. The harness kills the
//! process there, or crashes the simulated machine, and then asks the store to keep the promise. A mutant is a mistake that
//! others have made in stores like this one; the harness shows its worth by finding each of them.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

macro_rules! crash_point {
    ($point:ident $(if $condition:expr)?) => {
        if true $(&& $condition)? {
            $crate::crashtest::reach($crate::crashtest::Point::$point);
        }
    };
}

macro_rules! mutated {
    ($mutant:ident) => {
        $crate::crashtest::is_on($crate::crashtest::Mutant::$mutant)
    };
}

/// Lets the harness's scheduler switch threads between two steps that no lock and no call lies between.
macro_rules! may_switch {
    ($(if $condition:expr)?) => {
        if true $(&& $condition)? {
            $crate::crashtest::before_lock($crate::crashtest::Attempt::First);
        }
    };
}

macro_rules! named {
    ($(#[$about:meta])* $kind:ident { $($variant:ident $name:literal $text:literal)* }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum $kind {
            $(#[doc = $text] $variant,)*
        }

        impl $kind {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// Its name, as the harness prints and reads it.
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// What there is to say about it.
            pub fn text(self) -> &'static str {
                match self { $(Self::$variant => $text,)* }
            }

            /// The one of this name.
            pub fn named(name: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|one| one.name() == name)
            }
        }
    };
}

named! {
    /// A place at which a run can be stopped; its text is the promise that holds there.
    Point {
        LeaseBefore "lease.before" "no timestamp above the durable lease has been handed out"
        LeaseDurable "lease.durable" "a durable lease of which nothing was handed out is skipped by the next life"
        StartTs "begin.start-ts" "a transaction that only has a name leaves nothing behind"
        PrewriteBefore "prewrite.before" "no row is locked: the transaction never was"
        PrewritePrimary "prewrite.primary" "the primary is locked: the transaction is rolled back"
        PrewriteBetween "prewrite.between" "some rows are locked: the transaction is rolled back, all of its locks go"
        PrewriteConflict "prewrite.conflict" "a conflict with some rows locked: those locks go, nothing was committed"
        PrewriteAll "prewrite.all" "every row is locked and nothing decided: the transaction is rolled back"
        CommitTs "commit.ts" "a commit timestamp alone commits nothing"
        CommitPrimary "commit.primary" "committed at the primary with rows still locked: all are rolled forward"
        CommitBetween "commit.between" "some secondaries are versions: the others are rolled forward"
        CommitSecondaries "commit.secondaries" "no lock is left and the commit stands"
        CommitDone "commit.done" "as durable as was asked for, and not acknowledged: the commit stands"
        OnePhaseBefore "one-phase.before" "nothing of the transaction is written"
        BatchBefore "batch.before" "a batch that is not written changes nothing, and nobody in it was answered"
        BatchWritten "batch.written" "written and not visible: whole in the log, or cut off with everything behind it"
        BatchPublished "batch.published" "visible and not durable: others may read it, nobody is told"
        RollBackBefore "roll-back.before" "the transaction's own locks are left: they are rolled back"
        RollBackBetween "roll-back.between" "some locks are gone: the others are rolled back too"
        RollBackWritten "roll-back.written" "the locks are gone and nothing of the transaction is seen"
        ResolveLockSeen "resolve.lock-seen" "an orphan's lock stays until somebody else resolves it"
        ResolveVerdict "resolve.verdict" "the verdict stands, whoever carries it out"
        ResolveBeforeBack "resolve.before-back" "the primary is not rolled back yet: the next resolver does it"
        ResolvePrimaryBack "resolve.primary-back" "the primary is rolled back: every secondary will be"
        ResolveBeforeForward "resolve.before-forward" "the row stays locked, and the next resolver rolls it forward"
        ResolveDone "resolve.done" "the row is resolved; resolving it again changes nothing"
        StreamBetween "stream.between" "a transaction that is still being written has locked some rows: it is rolled back"
        StreamAll "stream.all" "all rows of a large transaction are locked and nothing decided: it is rolled back"
        StreamCommitted "stream.committed" "committed at the primary, and nobody has been told: it stands"
        EndingForward "ending.forward" "a large transaction is partly rolled forward: the rest follows"
        EndingBack "ending.back" "a large transaction is partly rolled back: the rest follows"
        EndingDone "ending.done" "no lock of a large transaction is left, its record still is"
        SweepBetween "sweep.between" "some orphans are resolved, the others wait"
        SweepDone "sweep.done" "no orphan is left, their records still are"
        SafePointBefore "safe-point.before" "every record is there"
        SafePointDurable "safe-point.durable" "records below the safe point may go, late requests are refused by it"
        ForgetBetween "forget.between" "some records of ended transactions are gone"
        HistoryFloor "history.floor" "moments below the floor are refused, and nothing of them is gone yet"
        CollectBefore "collect.before" "the record of a deletion is there"
        CollectDone "collect.done" "the record of a deletion is gone and the row stays deleted"
        HeartbeatBefore "heartbeat.before" "the lock's life ends as it was"
        HeartbeatDone "heartbeat.done" "the lock lives longer"
        OpenBefore "open.before" "nothing is changed by trying to open"
        OpenLeased "open.leased" "timestamps of this life begin above those of all earlier ones"
        OpenScanned "open.scanned" "orphans are known and not resolved"
        CreateBefore "create.before" "a store whose creation was cut short is created again"
        CreateDone "create.done" "an empty store is there"
        SyncBefore "sync.before" "what is visible is not durable, and nobody was told that it is"
        LifeBegun "log.life-begun" "the first segment of a life is durable, and what lies beyond the end of the last life is never read again"
        HandDownFrozen "hand-down.frozen" "the next segment is being written, and nothing of the one before is in the tables"
        HandDownBatch "hand-down.batch" "a part of a generation is in the tables, perhaps flushed: all of it is written again"
        HandDownSlice "hand-down.slice" "a generation is in the tables up to the sequence of a view, perhaps flushed: all of it is written again"
        HandDownWritten "hand-down.written" "all of a generation and its position are in the tables, perhaps flushed, all columns together"
        HandDownFlushed "hand-down.flushed" "a generation is durable in the tables, and its segment is still there: it is not read again"
        HandDownFreed "hand-down.freed" "the segment of a generation that is in the tables is gone"
        SyncReturned "sync.returned" "durable, and the watermark does not say so yet"
        SyncPublished "sync.published" "the watermark says so, and nobody is told yet"
        KeyspaceCreated "keyspace.created" "the keyspace is in the catalog, as durable as any commit"
        KeyspaceDropped "keyspace.dropped" "the keyspace is gone and its rows are not: they are never seen again"
        KeyspaceErased "keyspace.erased" "the rows are gone, the list of what to erase still names them"
        RestoreBetween "restore.between" "some rows of a dump are there, in keyspaces without a name: nobody sees them, they are erased"
        RestoreAll "restore.all" "all rows of a dump are there and none has a name: nobody sees them, they are erased"
        RestoreNamed "restore.named" "every restored keyspace is there, durably, and what they replaced is not"
        CheckpointUnmarked "checkpoint.unmarked" "all of a copy is there but its marker: it is no store"
        CheckpointDone "checkpoint.done" "the copy is a store, with everything acknowledged before it was begun"
        LockEnded "lock.ended" "a lock's grant is over with fenced commits decided and not visible: they are seen by the next holder"
        LockDrained "lock.drained" "what was decided before the end of the grant is visible, and nothing fenced by it is decided any more"
        LockToken "lock.token" "the next grant has its token: above every commit fenced by the one before"
        LockLeased "lock.leased" "the row of a lease is durable, and its call has not returned: it is held until its time is over"
        LockRenewed "lock.renewed" "a lease is renewed, durably"
        LockReleased "lock.released" "the row of a lease is gone, durably"
        LockHandedOver "lock.handed-over" "a lock was handed on in memory and the row of the lease before it is still there: it is held until its time is over"
        CloseSynced "close.synced" "everything is durable; the next life begins above the lease"
        CloseDone "close.done" "closed"
    }
}

named! {
    /// A known mistake; its text says which.
    Mutant {
        SkipConflictCheck "skip-conflict-check" "the combiner takes every row for unchanged"
        ConflictOnStartTs "conflict-on-start-ts" "conflicts are judged on `start_ts` instead of `read_ts`"
        SeesOneLess "sees-one-less" "a version committed exactly at the reader's timestamp is not seen"
        ReaderIgnoresLocks "reader-ignores-locks" "readers never look at the lock column"
        ReadsLatest "reads-latest" "reads show the newest state instead of the snapshot"
        EarlyCommitTs "early-commit-ts" "the commit timestamp is taken before the last prewrite"
        SecondariesFirst "secondaries-first" "secondaries are committed before the primary"
        AcknowledgeBeforeSync "acknowledge-before-sync" "commits are acknowledged when they are visible"
        HandsDownUnsynced "hands-down-unsynced" "a generation goes into the tables before its part of the log is durable"
        FreesEarly "frees-early" "a segment is removed before its generation is durable in the tables"
        PositionFirst "position-first" "the tables' position is written with the first batch of a hand-down"
        DeletionsNotHandedDown "deletions-not-handed-down" "a hand-down leaves deletions out"
        SlicesShowEnd "slices-show-end" "a view within a generation gets the tables as they are after all of its hand-down"
        SegmentUnnamed "segment-unnamed" "the folder is not synced after a segment was made"
        SplitColumns "split-columns" "the lock column is written in a batch of its own"
        ReplacedGoesEarly "replaced-goes-early" "a commit drops the version that it replaces before it is durable itself"
        BackWithoutAsking "back-without-asking" "an orphan's lock is rolled back without asking its primary"
        NoRollbackRecord "no-rollback-record" "rolling back leaves no record"
        ForwardAtWrongTs "forward-at-wrong-ts" "rolling forward makes up a commit timestamp"
        StaleStatus "stale-status" "a verdict read earlier is used without making it final"
        LateLockAccepted "late-lock-accepted" "a prewrite that comes after its transaction's end locks the row"
        TtlOnOwnClock "ttl-on-own-clock" "a lock's life is measured on the client's wall clock"
        TimestampsReused "timestamps-reused" "the oracle forgets its lease when the store is opened"
        CollectsLiveVersion "collects-live-version" "collection takes the newest version whatever it is"
        CollectsTooEarly "collects-too-early" "collection takes deletions that live transactions must know of"
        BlindRetry "blind-retry" "a commit without an answer is taken for a conflict and tried again"
        SyncErrorIgnored "sync-error-ignored" "a failed sync is repeated and believed"
        UndeterminedAsConflict "undetermined-as-conflict" "a commit whose write failed is reported as aborted"
        SavepointLeaks "savepoint-leaks" "what a savepoint took back is committed"
        RecoveryForgets "recovery-forgets" "resolving one row takes away what says how the transaction ended"
        DurableSampledLate "durable-sampled-late" "the durable watermark is sampled after the sync"
        SnapshotAtVisible "snapshot-at-visible" "snapshots show what is not durable"
        ReadsNotConfirmed "reads-not-confirmed" "answers are given though what they were computed from is not durable"
        AnySyncAcknowledges "any-sync-acknowledges" "any sync that returns answers everybody who waits"
        UnappliedReadLate "unapplied-read-late" "whether locks matter is read after the view is opened"
        StreamedLocksUnseen "streamed-locks-unseen" "writers do not look for the locks of transactions that stream"
        StreamEndsEarly "stream-ends-early" "a large transaction's record goes before its last lock"
        StreamUndoLost "stream-undo-lost" "going back to a savepoint forgets what was streamed since"
        ForgottenMomentsRead "forgotten-moments-read" "moments before the history can be read, whatever is left of them"
        FloorNotKept "floor-not-kept" "the beginning of the history moves in memory only"
        PastShowsLater "past-shows-later" "the past shows locks of transactions committed later"
        ReplacedNotKept "replaced-not-kept" "rolling forward keeps no history"
        DropLeavesOrphans "drop-leaves-orphans" "a keyspace is erased while orphan locks elsewhere have their primary in it"
        DropLeavesEndings "drop-leaves-endings" "a keyspace is erased while a large transaction with its primary in it still has locks"
        DropAskedOnce "drop-asked-once" "whether a dropped keyspace may still be asked about is not asked again once the drop is known"
        ShortPageEndsSweep "short-page-ends-sweep" "the sweep takes a page with fewer locks than its limit for the last"
        ShortPageEndsStream "short-page-ends-stream" "the clean-up of a large transaction takes a page with fewer locks than its limit for the last"
        WitnessIgnored "witness-ignored" "whole frames beyond a break are never looked for"
        LaterLogsNotKept "later-logs-not-kept" "of a damaged segment and those after it only the damaged one is kept"
        NotWrittenAgain "not-written-again" "a life begins without writing again what the last one may have failed to sync"
        AppendsAfterFailure "appends-after-failure" "the log goes on after a write or sync that failed"
        FloorReleasedEarly "floor-released-early" "the floor of the history may rise before a view of the past is taken"
        OracleLeftOpen "oracle-left-open" "closing notes the newest timestamp, and others are handed out after it"
        OwnBoundsIncluded "own-bounds-included" "a scan shows a transaction's own row at a bound that is excluded"
        MultiGetIgnoresLocks "multi-get-ignores-locks" "reading several rows at once never looks at the lock column"
        ExpiredWriterCommits "expired-writer-commits" "a transaction whose snapshot has expired commits"
        NewestIsVisible "newest-is-visible" "the newest visible commit is taken for the newest of all"
        LargeCommitForgotten "large-commit-forgotten" "a commit of many rows does not count for those that were remembered before"
        PermitKept "permit-kept" "a permit is given back only while there are conflicts"
        LocksBeyondUnseen "locks-beyond-unseen" "a scan passes over locks behind the last version"
        BookmarkKeepsEnd "bookmark-keeps-end" "a scan's iterator goes on to where it was to end when it was opened"
        TokenReused "token-reused" "every grant has the same token"
        TokenBeforeDrain "token-before-drain" "a grant's token is drawn before what was decided under the one before is published"
        FloorBeforeDrain "floor-before-drain" "what a fenced transaction has to see is noted before the drain"
        NoDrainAfterEnd "no-drain-after-end" "a grant does not wait for the commits decided under the one before"
        FenceAtBegin "fence-at-begin" "whether a lock is held is looked at when a transaction is fenced, and not when it commits"
        FenceIgnoresFloor "fence-ignores-floor" "a fenced transaction may have begun before the grant"
        GuardBeforeDurable "guard-before-durable" "a guard is returned before what was committed under the one before is durable"
        HeadForgotten "head-forgotten" "a lock head goes with its last request, whatever its last grant has left"
        ConvertKeepsFence "convert-keeps-fence" "fences of before a conversion hold after it"
        ExpiredWaiterGranted "expired-waiter-granted" "a request whose patience is over is treated as granted"
        WakeAll "wake-all" "the end of a grant wakes every request that waits for the lock"
        WakeBeforeGrant "wake-before-grant" "a granted request is woken before the grant is noted"
        RequestKept "request-kept" "a request that is given up stays in the queue"
        QueueJumped "queue-jumped" "a request that is compatible with the grants does not queue"
        SecondUpgraderWaits "second-upgrader-waits" "two holders of a shared lock that upgrade wait for each other"
        ReleasedByName "released-by-name" "a lock is released by its name, whatever the token"
        LeaseReturnedEarly "lease-returned-early" "the end of a lease is returned before its row is gone"
        LeaseRowLater "lease-row-later" "the row of a lease is not durable when the guard is returned"
        LeaseOnTimestamps "lease-on-timestamps" "leases go by the timestamps of the oracle"
        LeaseNotReadAtOpen "lease-not-read-at-open" "leases of earlier lives are not looked for"
        TimerNotPassedOn "timer-not-passed-on" "a request that comes to the front of the queue does not look at the lease before it"
        HoldNotEncoded "hold-not-encoded" "the record that is done by hand forgets that the row was held since"
    }
}

/// Called at every point with its name.
pub type Listener = Box<dyn Fn(Point) + Send + Sync>;

/// Whether a thread tries to take a lock for the first time, or has found it taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attempt {
    /// The first time.
    First,
    /// It was taken.
    Again,
}

/// Called before a lock of the store is taken; answers whether the calling thread is one that the harness schedules.
pub type LockListener = Box<dyn Fn(Attempt) -> bool + Send + Sync>;

static LISTENER: OnceLock<Listener> = OnceLock::new();
static LOCK_LISTENER: OnceLock<LockListener> = OnceLock::new();
static MUTANT: AtomicUsize = AtomicUsize::new(usize::MAX);

/// Has every point of this process call `listener`; only the first one counts.
pub fn listen(listener: Listener) {
    let _ = LISTENER.set(listener);
}

/// Has every lock of this process's stores call `listener` before it is taken; only the first one counts.
pub fn listen_to_locks(listener: LockListener) {
    let _ = LOCK_LISTENER.set(listener);
}

/// Switches one mistake on, for the whole process, or all off.
pub fn mutate(mutant: Option<Mutant>) {
    let index = mutant.map_or(usize::MAX, |mutant| mutant as usize);
    MUTANT.store(index, Ordering::SeqCst);
}

pub(crate) fn reach(point: Point) {
    if let Some(listener) = LISTENER.get() {
        listener(point);
    }
}

pub(crate) fn before_lock(attempt: Attempt) -> bool {
    LOCK_LISTENER.get().is_some_and(|listener| listener(attempt))
}

pub(crate) fn is_on(mutant: Mutant) -> bool {
    MUTANT.load(Ordering::Relaxed) == mutant as usize
}
