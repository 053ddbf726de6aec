//! Dropped futures: each call is dropped at each of its polls, before and after the wake that leads
//! to the next poll. The tests cover calls that nothing blocks, calls without a free blocking
//! thread, and calls whose sync does not return.

use std::future::Future;
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use percolite::{AsyncLockGuard, AsyncStore, LockMode, LockOptions, LockWaitPolicy, Result, Txn, TxnOptions};
use tokio::runtime::Runtime;

use super::common::{Busy, NAME, Steps, TIMEOUT, assert_free, both_runtimes, eventually, forever};
use crate::hooked_engine::Gate;
use crate::hooked_store::{Worker, World, spawn};

#[derive(Clone, Copy, Debug, PartialEq)]
enum Call {
    /// `lock_with`, which waits for another holder.
    Lock,
    /// `lock_with`, which waits for another holder, and then for that holder's commit to be
    /// durable.
    LockBehindUnsyncedCommit,
    /// `lock_with` for a lease, which waits for another holder.
    LockWithLease,
    Upgrade,
    UpgradeOfLease,
    DowngradeOfLease,
    Renew,
    Release,
    LockTransact,
}

impl Call {
    const ALL: [Self; 9] = [
        Self::Lock,
        Self::LockBehindUnsyncedCommit,
        Self::LockWithLease,
        Self::Upgrade,
        Self::UpgradeOfLease,
        Self::DowngradeOfLease,
        Self::Renew,
        Self::Release,
        Self::LockTransact,
    ];

    /// The options of the guard that the call is made on.
    fn of(self) -> Option<LockOptions> {
        match self {
            Self::Upgrade => Some(LockOptions::shared()),
            Self::UpgradeOfLease => Some(LockOptions::shared().lease(LEASE)),
            Self::DowngradeOfLease | Self::Renew | Self::Release => Some(LockOptions::exclusive().lease(LEASE)),
            _ => None,
        }
    }

    /// The options of the other holder that has the lock when the call begins.
    fn behind(self) -> Option<LockOptions> {
        match self {
            Self::Lock | Self::LockBehindUnsyncedCommit | Self::LockWithLease | Self::LockTransact => {
                Some(LockOptions::exclusive())
            }
            Self::Upgrade | Self::UpgradeOfLease => Some(LockOptions::shared()),
            _ => None,
        }
    }

    /// The number of polls of the call if nothing blocks it.
    fn polls(self) -> usize {
        match self {
            Self::DowngradeOfLease
            | Self::Renew
            | Self::Release
            | Self::Lock
            | Self::LockBehindUnsyncedCommit
            | Self::Upgrade => 2,
            Self::LockWithLease | Self::UpgradeOfLease | Self::LockTransact => 3,
        }
    }

    fn mode_after(self) -> Option<LockMode> {
        match self {
            Self::Upgrade | Self::UpgradeOfLease | Self::Renew => Some(LockMode::Exclusive),
            Self::DowngradeOfLease => Some(LockMode::Shared),
            _ => None,
        }
    }

    fn begin<'a>(self, scene: &'a Scene, own: &'a mut Option<AsyncLockGuard>) -> Calling<'a> {
        let store = &scene.store;
        match self {
            Self::Lock | Self::LockBehindUnsyncedCommit => taking(store, LockOptions::exclusive()),
            Self::LockWithLease => taking(store, LockOptions::exclusive().lease(LEASE)),
            Self::Upgrade | Self::UpgradeOfLease => Box::pin(own.as_mut().unwrap().upgrade(LockWaitPolicy::Forever)),
            Self::DowngradeOfLease => Box::pin(own.as_mut().unwrap().downgrade()),
            Self::Renew => Box::pin(own.as_ref().unwrap().renew(2 * LEASE)),
            Self::Release => Box::pin(async { own.take().unwrap().release().await }),
            Self::LockTransact => {
                let rows = scene.world.rows.clone();
                let work = move |txn: &mut Txn| ["a", "b"].iter().try_for_each(|key| txn.put(&rows, key, "v"));
                Box::pin(store.transact_with_lock(NAME, forever(LockOptions::exclusive()), TxnOptions::default(), work))
            }
        }
    }
}

type Calling<'a> = Pin<Box<dyn Future<Output = Result<()>> + Send + 'a>>;

fn taking(store: &AsyncStore, options: LockOptions) -> Calling<'_> {
    Box::pin(async { store.lock_with(NAME, forever(options)).await.map(drop) })
}

const LEASE: Duration = Duration::from_secs(60);
/// A call that is not woken for this time counts as blocked.
const A_WHILE: Duration = Duration::from_millis(50);

/// What blocks a call.
#[derive(Clone, Copy, Debug, PartialEq)]
enum BlockedBy {
    Nothing,
    /// No blocking thread is free.
    Threads,
    /// The sync does not return.
    Sync,
}

struct Scene {
    world: World,
    store: AsyncStore,
}

/// Unblocks the call when dropped.
enum Holding {
    Nothing,
    Threads(#[allow(dead_code, reason = "dropped to unblock")] Busy),
    Sync(#[allow(dead_code, reason = "dropped to unblock")] Gate),
}

impl Scene {
    fn new() -> Self {
        let world = World::open();
        let store = AsyncStore::from(world.store.clone());
        Self { world, store }
    }

    fn take(&self, options: LockOptions) -> AsyncLockGuard {
        Steps::new(self.store.lock_with(NAME, forever(options))).end().unwrap()
    }

    fn block(&self, how: BlockedBy, runtime: &Runtime) -> Holding {
        match how {
            BlockedBy::Nothing => Holding::Nothing,
            BlockedBy::Threads => Holding::Threads(Busy::begin(runtime)),
            BlockedBy::Sync => Holding::Sync(self.world.stop_syncs(crate::hooked_engine::Act::Pass)),
        }
    }

    /// Makes a commit that the guard fences. It is visible when this function returns, and durable
    /// after its sync.
    fn commit_under(&self, guard: &AsyncLockGuard) -> Worker<Result<()>> {
        let (World { store, rows, .. }, fence) = (self.world.clone(), guard.fence());
        let commit = spawn(move || {
            let mut txn = store.begin()?;
            txn.fence(&fence)?;
            txn.put(&rows, "unsynced", "")?;
            txn.commit().map(drop)
        });
        eventually("the commit is visible", || self.world.get("unsynced").is_some());
        commit
    }
}

/// The progress of a call.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Progress {
    /// The call was polled as often as requested.
    Reached,
    /// The call was not woken in time.
    Blocked,
    Finished,
}

/// Polls the call up to `polls` times: the first time immediately, and then after each wake. With
/// `woken` it also waits for the wake after the last poll. Calls `first` after the first poll.
fn poll_until(
    steps: &mut Steps<'_, Result<()>>,
    polls: usize,
    woken: bool,
    timeout: Duration,
    first: impl FnOnce(),
) -> Progress {
    let mut first = Some(first);
    for number in 1..=polls {
        if let Poll::Ready(answer) = steps.poll() {
            answer.unwrap();
            return Progress::Finished;
        }
        if let Some(first) = first.take() {
            first();
        }
        if (number < polls || woken) && !steps.is_woken_within(timeout) {
            return Progress::Blocked;
        }
    }
    Progress::Reached
}

/// Drops the call after `polls` polls and checks that nothing is left. Returns the call's progress.
fn drop_at(call: Call, blocked_by: BlockedBy, polls: usize, woken: bool, runtime: &Runtime) -> Progress {
    let scene = Scene::new();
    let mut own = call.of().map(|options| scene.take(options));
    let behind = call.behind().map(|options| scene.take(options));
    let holding = scene.block(blocked_by, runtime);
    let unsynced =
        behind.as_ref().filter(|_| call == Call::LockBehindUnsyncedCommit).map(|guard| scene.commit_under(guard));
    let progress = {
        let mut steps = Steps::new(call.begin(&scene, &mut own));
        let timeout = if blocked_by == BlockedBy::Nothing { TIMEOUT } else { A_WHILE };
        poll_until(&mut steps, polls, woken, timeout, || drop(behind))
    };
    if blocked_by == BlockedBy::Threads && call.mode_after().is_none() && (polls > 0 || own.is_none()) {
        // The dropped call leaves no entry in the lock table, although no blocking thread is free.
        assert!(scene.world.store.lock_table().unwrap().entries.is_empty(), "{call:?} {polls} {woken}");
    }
    drop(holding);
    if let Some(unsynced) = unsynced {
        unsynced.join().unwrap();
    }
    if let Some(mut guard) = own {
        assert!(guard.is_held(), "{call:?} {blocked_by:?} {polls} {woken}: the guard is lost");
        if let Some(mode) = call.mode_after() {
            let mut again = Some(guard);
            Steps::new(call.begin(&scene, &mut again)).end().unwrap();
            guard = again.unwrap();
            assert_eq!(guard.entry().mode, mode, "{call:?} {blocked_by:?} {polls} {woken}");
        }
        drop(guard);
    }
    assert_free(&scene.store, &scene.world.memory);
    assert_eq!(scene.world.get("a"), scene.world.get("b"), "half of a transaction");
    progress
}

#[test]
fn dropping_at_any_poll_leaves_nothing_queued() {
    for runtime in both_runtimes(1) {
        let _inside = runtime.enter();
        for call in Call::ALL {
            for blocked_by in [BlockedBy::Nothing, BlockedBy::Threads, BlockedBy::Sync] {
                let mut polls = 0;
                let progress = loop {
                    let progress = [false, true].map(|woken| drop_at(call, blocked_by, polls, woken, &runtime))[1];
                    if polls > 0 && progress != Progress::Reached {
                        break progress;
                    }
                    polls += 1;
                };
                // A thread may finish its part before the next poll, so the call may need fewer
                // polls than `call.polls()`.
                let finished = progress == Progress::Finished && (1..=call.polls()).contains(&polls);
                assert!(finished || blocked_by != BlockedBy::Nothing, "{call:?} {progress:?} {polls}");
            }
        }
    }
}

#[test]
fn dropping_a_blocked_call_leaves_nothing() {
    for runtime in both_runtimes(1) {
        let _inside = runtime.enter();
        for call in Call::ALL {
            let by_threads = drop_at(call, BlockedBy::Threads, usize::MAX, false, &runtime);
            let by_sync = drop_at(call, BlockedBy::Sync, usize::MAX, false, &runtime);
            let [needs_a_thread, needs_a_sync] = match call {
                // The holder's commit runs on a thread of the test, so it needs no blocking thread
                // of the runtime. Only its sync can block the call.
                Call::LockBehindUnsyncedCommit => [false, true],
                Call::Lock | Call::Upgrade => [false, false],
                _ => [true, true],
            };
            assert_eq!(
                (by_threads == Progress::Blocked, by_sync == Progress::Blocked),
                (needs_a_thread, needs_a_sync),
                "{call:?}"
            );
        }
    }
}

#[test]
fn a_call_that_is_never_polled_requests_nothing() {
    for runtime in both_runtimes(1) {
        let _inside = runtime.enter();
        for call in [Call::Lock, Call::LockWithLease, Call::LockTransact] {
            let scene = Scene::new();
            let mut none = None;
            let calling = call.begin(&scene, &mut none);
            assert!(scene.world.store.lock_table().unwrap().entries.is_empty());
            drop(calling);
            let stats = scene.world.store.lock_stats();
            assert_eq!((stats.exclusive.acquired, stats.exclusive.cancelled), (0, 0));
        }
    }
}
