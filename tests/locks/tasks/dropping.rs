//! Z3b: each call is dropped at each of its polls, before and after the wake that would lead to the next one, while it goes on, while it
//! has no thread, and while it waits for a sync.

use std::future::Future;
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use percolite::{AsyncLockGuard, AsyncStore, LockMode, LockOptions, LockWaitPolicy, Result, Txn, TxnOptions};
use tokio::runtime::Runtime;

use super::common::{Busy, NAME, PATIENCE, Steps, assert_free, both_runtimes, eventually, forever};
use crate::stops::{Worker, World, spawn};
use crate::tap::Gate;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Call {
    /// Behind a holder.
    Lock,
    /// Behind a holder whose commit is not durable.
    LockOfDebtor,
    /// Behind a holder.
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
        Self::LockOfDebtor,
        Self::LockWithLease,
        Self::Upgrade,
        Self::UpgradeOfLease,
        Self::DowngradeOfLease,
        Self::Renew,
        Self::Release,
        Self::LockTransact,
    ];

    /// What the guard is that it is called of.
    fn of(self) -> Option<LockOptions> {
        match self {
            Self::Upgrade => Some(LockOptions::shared()),
            Self::UpgradeOfLease => Some(LockOptions::shared().lease(LEASE)),
            Self::DowngradeOfLease | Self::Renew | Self::Release => Some(LockOptions::exclusive().lease(LEASE)),
            _ => None,
        }
    }

    /// What another one holds when it begins.
    fn behind(self) -> Option<LockOptions> {
        match self {
            Self::Lock | Self::LockOfDebtor | Self::LockWithLease | Self::LockTransact => {
                Some(LockOptions::exclusive())
            }
            Self::Upgrade | Self::UpgradeOfLease => Some(LockOptions::shared()),
            _ => None,
        }
    }

    /// How many polls it takes where nothing holds it up.
    fn polls(self) -> usize {
        match self {
            Self::DowngradeOfLease | Self::Renew | Self::Release | Self::Lock | Self::LockOfDebtor | Self::Upgrade => 2,
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
            Self::Lock | Self::LockOfDebtor => taking(store, LockOptions::exclusive()),
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
/// What is held up does not go on by itself.
const A_WHILE: Duration = Duration::from_millis(50);

/// What holds a call up.
#[derive(Clone, Copy, Debug, PartialEq)]
enum HeldUp {
    Nowhere,
    /// No thread is free.
    ByThreads,
    /// The disk takes its time.
    BySync,
}

struct Scene {
    world: World,
    store: AsyncStore,
}

/// Goes on when it is dropped.
enum Holding {
    Nothing,
    Threads(#[allow(dead_code, reason = "for its end")] Busy),
    Sync(#[allow(dead_code, reason = "for its end")] Gate),
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

    fn hold_up(&self, how: HeldUp, runtime: &Runtime) -> Holding {
        match how {
            HeldUp::Nowhere => Holding::Nothing,
            HeldUp::ByThreads => Holding::Threads(Busy::begin(runtime)),
            HeldUp::BySync => Holding::Sync(self.world.stop_syncs(crate::tap::Act::Pass)),
        }
    }

    /// A commit under the guard that is visible, and durable when the sync has come.
    fn commit_under(&self, guard: &AsyncLockGuard) -> Worker<Result<()>> {
        let (World { store, rows, .. }, fence) = (self.world.clone(), guard.fence());
        let commit = spawn(move || {
            let mut txn = store.begin()?;
            txn.fence(&fence)?;
            txn.put(&rows, "debt", "")?;
            txn.commit().map(drop)
        });
        eventually("it is visible", || self.world.get("debt").is_some());
        commit
    }
}

/// How far a call has come.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Came {
    /// As far as it was to.
    There,
    /// To where it is held up.
    Up,
    Through,
}

/// Polls so often, each time when it was woken, and once more waits for the wake if it is to.
fn walk(
    steps: &mut Steps<'_, Result<()>>,
    polls: usize,
    woken: bool,
    patience: Duration,
    first: impl FnOnce(),
) -> Came {
    let mut first = Some(first);
    for number in 1..=polls {
        if let Poll::Ready(answer) = steps.poll() {
            answer.unwrap();
            return Came::Through;
        }
        if let Some(first) = first.take() {
            first();
        }
        if (number < polls || woken) && !steps.is_woken_within(patience) {
            return Came::Up;
        }
    }
    Came::There
}

/// Drops the call there, and looks at what is left. Answers how far it has come.
fn drop_at(call: Call, held_up: HeldUp, polls: usize, woken: bool, runtime: &Runtime) -> Came {
    let scene = Scene::new();
    let mut own = call.of().map(|options| scene.take(options));
    let behind = call.behind().map(|options| scene.take(options));
    let holding = scene.hold_up(held_up, runtime);
    let debtor = behind.as_ref().filter(|_| call == Call::LockOfDebtor).map(|guard| scene.commit_under(guard));
    let came = {
        let mut steps = Steps::new(call.begin(&scene, &mut own));
        let patience = if held_up == HeldUp::Nowhere { PATIENCE } else { A_WHILE };
        walk(&mut steps, polls, woken, patience, || drop(behind))
    };
    if held_up == HeldUp::ByThreads && call.mode_after().is_none() && (polls > 0 || own.is_none()) {
        // What has not begun is taken back at once, not when there is a thread for it.
        assert!(scene.world.store.lock_table().unwrap().entries.is_empty(), "{call:?} {polls} {woken}");
    }
    drop(holding);
    if let Some(debtor) = debtor {
        debtor.join().unwrap();
    }
    if let Some(mut guard) = own {
        assert!(guard.is_held(), "{call:?} {held_up:?} {polls} {woken}: the guard is lost");
        if let Some(mode) = call.mode_after() {
            let mut again = Some(guard);
            Steps::new(call.begin(&scene, &mut again)).end().unwrap();
            guard = again.unwrap();
            assert_eq!(guard.entry().mode, mode, "{call:?} {held_up:?} {polls} {woken}");
        }
        drop(guard);
    }
    assert_free(&scene.store, &scene.world.memory);
    assert_eq!(scene.world.get("a"), scene.world.get("b"), "half of a transaction");
    came
}

#[test]
fn dropping_at_any_poll_leaves_nothing_queued() {
    for runtime in both_runtimes(1) {
        let _inside = runtime.enter();
        for call in Call::ALL {
            for held_up in [HeldUp::Nowhere, HeldUp::ByThreads, HeldUp::BySync] {
                let mut polls = 0;
                let came = loop {
                    let came = [false, true].map(|woken| drop_at(call, held_up, polls, woken, &runtime))[1];
                    if polls > 0 && came != Came::There {
                        break came;
                    }
                    polls += 1;
                };
                // A thread may be through with its part before the call looks for it.
                let through = came == Came::Through && (1..=call.polls()).contains(&polls);
                assert!(through || held_up != HeldUp::Nowhere, "{call:?} {came:?} {polls}");
            }
        }
    }
}

#[test]
fn dropping_a_blocked_call_leaves_nothing() {
    for runtime in both_runtimes(1) {
        let _inside = runtime.enter();
        for call in Call::ALL {
            let by_threads = drop_at(call, HeldUp::ByThreads, usize::MAX, false, &runtime);
            let by_sync = drop_at(call, HeldUp::BySync, usize::MAX, false, &runtime);
            let [needs_a_thread, needs_a_sync] = match call {
                // With a thread for the debtor's commit the disk is in time.
                Call::LockOfDebtor => [false, true],
                Call::Lock | Call::Upgrade => [false, false],
                _ => [true, true],
            };
            assert_eq!((by_threads == Came::Up, by_sync == Came::Up), (needs_a_thread, needs_a_sync), "{call:?}");
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
