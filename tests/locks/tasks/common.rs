//! Runtimes, futures that the test polls itself, and checks after each test.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use percolite::engine::sim::SimStorage;
use percolite::{AsyncLockGuard, AsyncStore, LockOptions, LockWaitPolicy, Result, Store};
use tokio::runtime::{Builder, Runtime};

use crate::hooked_store::World;
pub use crate::hooked_store::{TIMEOUT, eventually};
use crate::support::rows;

/// A `current_thread` runtime and a multi-threaded one, each with at most `blocking_threads`
/// blocking threads.
pub fn both_runtimes(blocking_threads: usize) -> [Runtime; 2] {
    [Builder::new_current_thread(), Builder::new_multi_thread()].map(|mut builder| {
        builder.worker_threads(2).max_blocking_threads(blocking_threads).enable_time().build().unwrap()
    })
}

/// Runs the test as a task of each runtime in turn, with a new store in memory for each. A test
/// that hangs fails.
#[track_caller]
pub fn on_both<F: Future<Output = ()>>(test: impl Fn(AsyncStore) -> F) {
    for runtime in both_runtimes(8) {
        let store = in_memory();
        let test = test(store.clone());
        runtime.block_on(async { tokio::time::timeout(TIMEOUT, test).await.expect("the test hangs") });
        assert_nothing_left(&store);
    }
}

/// Runs the test as a task of each runtime in turn, with a new [`World`] for each.
#[track_caller]
pub fn in_worlds<F: Future<Output = ()>>(test: impl Fn(World, AsyncStore) -> F) {
    for runtime in both_runtimes(8) {
        let world = World::open();
        let store = AsyncStore::from(world.store.clone());
        let memory = world.memory.clone();
        runtime.block_on(async {
            tokio::time::timeout(TIMEOUT, test(world, store)).await.expect("the test hangs");
        });
        eventually("no lease row is left", || rows::names(&memory.exclusive_engine()).is_empty());
    }
}

/// Runs the test once for each runtime, on this thread and in the runtime's context. The test polls
/// its futures itself.
pub fn beside_worlds(test: impl Fn(&World, &AsyncStore)) {
    for runtime in both_runtimes(40) {
        let _inside = runtime.enter();
        let world = World::open();
        let store = AsyncStore::from(world.store.clone());
        test(&world, &store);
        eventually("no lease row is left", || rows::names(&world.memory.exclusive_engine()).is_empty());
    }
}

/// A store and its memory.
pub struct InMemory {
    store: AsyncStore,
    memory: SimStorage,
}

impl std::ops::Deref for InMemory {
    type Target = AsyncStore;

    fn deref(&self) -> &AsyncStore {
        &self.store
    }
}

pub fn in_memory() -> InMemory {
    let memory = SimStorage::new();
    InMemory { store: Store::builder().open_in_memory(&memory).unwrap().into(), memory }
}

pub const NAME: &str = "n";

pub fn forever(options: LockOptions) -> LockOptions {
    options.wait(LockWaitPolicy::Forever)
}

/// A future that the test polls. It counts its wakes.
pub struct Steps<'a, T> {
    future: Pin<Box<dyn Future<Output = T> + Send + 'a>>,
    wakes: Arc<Wakes>,
    seen: u64,
}

#[derive(Default)]
struct Wakes {
    count: Mutex<u64>,
    changed: Condvar,
}

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        *self.count.lock().unwrap() += 1;
        self.changed.notify_all();
    }
}

impl<'a, T> Steps<'a, T> {
    pub fn new(future: impl Future<Output = T> + Send + 'a) -> Self {
        Self { future: Box::pin(future), wakes: Arc::default(), seen: 0 }
    }

    /// A future that was polled once and waits.
    #[track_caller]
    pub fn waiting(future: impl Future<Output = T> + Send + 'a) -> Self {
        let mut steps = Self::new(future);
        assert!(steps.poll().is_pending(), "it does not wait");
        steps
    }

    pub fn poll(&mut self) -> Poll<T> {
        self.seen = self.wakes();
        self.future.as_mut().poll(&mut Context::from_waker(&Waker::from(Arc::clone(&self.wakes))))
    }

    pub fn wakes(&self) -> u64 {
        *self.wakes.count.lock().unwrap()
    }

    /// Whether the future is woken within this time, or was woken since its last poll.
    pub fn is_woken_within(&self, at_most: Duration) -> bool {
        let count = self.wakes.count.lock().unwrap();
        let slept = |count: &mut u64| *count == self.seen;
        !self.wakes.changed.wait_timeout_while(count, at_most, slept).unwrap().1.timed_out()
    }

    /// The future's result, which must be ready at the first poll after a wake.
    #[track_caller]
    pub fn answer(&mut self) -> T {
        assert!(self.wakes() > self.seen, "it was not woken");
        match self.poll() {
            Poll::Ready(answer) => answer,
            Poll::Pending => panic!("it was woken without a result"),
        }
    }

    /// The future's result, after any number of polls.
    #[track_caller]
    pub fn end(&mut self) -> T {
        loop {
            if let Poll::Ready(answer) = self.poll() {
                return answer;
            }
            assert!(self.is_woken_within(TIMEOUT), "the future does not complete");
        }
    }
}

/// A request that waits for the lock.
#[track_caller]
pub fn waits(store: &AsyncStore, options: LockOptions) -> Steps<'_, Result<AsyncLockGuard>> {
    Steps::waiting(store.lock_with(NAME, forever(options)))
}

/// A lock that is granted without a wait for another holder.
#[track_caller]
pub fn takes(store: &AsyncStore, options: LockOptions) -> AsyncLockGuard {
    // The request may need a blocking thread when the oracle's reservation is used up.
    Steps::new(store.lock_with(NAME, forever(options))).end().unwrap()
}

/// Waits asynchronously for an effect of other threads and tasks.
#[track_caller]
pub fn until(what: &'static str, mut holds: impl FnMut() -> bool) -> impl Future<Output = ()> {
    let end = std::time::Instant::now() + TIMEOUT;
    async move {
        while !holds() {
            assert!(std::time::Instant::now() < end, "not in time: {what}");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

pub fn waiting(store: &AsyncStore) -> usize {
    store.store().lock_table().unwrap().waiting
}

/// Checks that no lock is held or waited for, that no lease row is left, and that the lock can be
/// taken.
#[track_caller]
pub fn assert_nothing_left(InMemory { store, memory }: &InMemory) {
    assert_free(store, memory);
}

/// [`assert_nothing_left`] for a store that is open on this memory.
#[track_caller]
pub fn assert_free(store: &AsyncStore, memory: &SimStorage) {
    eventually("nothing is left", || store.store().lock_table().unwrap().entries.is_empty());
    assert!(store.store().is_free_lock(NAME).unwrap());
    // This request deletes the row of an expired lease. Rows of dropped guards are deleted in the
    // background.
    drop(store.store().try_lock(NAME).unwrap().expect("the lock is free"));
    eventually("no row is left", || rows::names(&memory.exclusive_engine()).is_empty());
    eventually("no row is locked", || store.store().row_locks().unwrap().count() == 0);
}

pub fn has_row(memory: &SimStorage, name: &str) -> bool {
    rows::has_row(&memory.exclusive_engine(), name)
}

/// Occupies the only blocking thread of a runtime until this value is dropped.
pub struct Busy(Option<std::sync::mpsc::Sender<()>>);

impl Busy {
    pub fn begin(runtime: &Runtime) -> Self {
        let (resumes, resume) = std::sync::mpsc::channel::<()>();
        let (begins, begun) = std::sync::mpsc::channel();
        runtime.spawn_blocking(move || {
            begins.send(()).unwrap();
            let _ended = resume.recv();
        });
        begun.recv_timeout(TIMEOUT).expect("the runtime runs no task");
        Self(Some(resumes))
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.take();
    }
}
