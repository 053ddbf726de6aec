//! Rare races, forced to happen.

use std::cell::Cell;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::{Scope, ScopedJoinHandle, ThreadId, current};
use std::time::Duration;

use percolite::engine::sim::SimStorage;
use percolite::engine::unreliable::{Faults, FaultyEngine};
use percolite::env::{Env, JoinHandle, Parker, SystemEnv};
use percolite::{CommitProtocol, Durability, Keyspace, Store, Txn, TxnOptions, TxnStatus};

use crate::common::{Run, wait_until};
use crate::support::Home;

/// A thread reaches the place where it is to be paused within this time.
const REACHED_WITHIN: Duration = Duration::from_secs(60);

/// A place in the store's code where a thread can be paused, because the code calls the runtime or
/// the engine there.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    /// A transaction begins and has its read view.
    Begins,
    /// A submission is about to enter the commit pipeline.
    Submits,
    /// The engine has applied changes, and its call has not returned.
    Applied,
    /// A sync is done, and its call has not returned.
    Synced,
}

/// A runtime that pauses one thread, when the thread reaches a place for the `times`-th time.
#[derive(Default)]
struct PausingEnv {
    system: SystemEnv,
    pause: Mutex<Option<PausePoint>>,
}

struct PausePoint {
    thread: ThreadId,
    place: Place,
    times: usize,
    reached: Sender<()>,
    go: Receiver<()>,
}

/// A paused thread, which resumes when this value is dropped.
struct PausedThread<'scope, T> {
    thread: ScopedJoinHandle<'scope, T>,
    go: Sender<()>,
}

impl PausingEnv {
    fn reach(&self, place: Place) {
        let mut pause = self.pause.lock().unwrap();
        let Some(point) = pause.as_mut().filter(|pause| pause.thread == current().id() && pause.place == place) else {
            return;
        };
        point.times -= 1;
        if point.times == 0 {
            let point = pause.take().unwrap();
            drop(pause);
            point.reached.send(()).unwrap();
            // Resumes on a message or when the sender is dropped.
            let _ = point.go.recv();
        }
    }

    /// Runs `work` in a thread of its own. Returns when that thread has reached the place for the
    /// `times`-th time.
    fn run<'scope, T: Send + 'scope>(
        self: &Arc<Self>,
        scope: &'scope Scope<'scope, '_>,
        (place, times): (Place, usize),
        work: impl FnOnce() -> T + Send + 'scope,
    ) -> PausedThread<'scope, T> {
        let (reached, reaches) = channel();
        let (go, goes) = channel();
        let own = Arc::clone(self);
        let thread = scope.spawn(move || {
            *own.pause.lock().unwrap() = Some(PausePoint { thread: current().id(), place, times, reached, go: goes });
            work()
        });
        reaches.recv_timeout(REACHED_WITHIN).expect("the thread does not reach the place");
        PausedThread { thread, go }
    }
}

impl<T> PausedThread<'_, T> {
    fn finish(self) -> T {
        drop(self.go);
        self.thread.join().unwrap()
    }
}

impl Env for PausingEnv {
    fn unix_millis(&self) -> u64 {
        self.system.unix_millis()
    }
    fn elapsed(&self) -> Duration {
        self.system.elapsed()
    }
    fn random(&self) -> u64 {
        self.reach(Place::Begins);
        self.system.random()
    }
    fn sleep(&self, duration: Duration) {
        self.system.sleep(duration);
    }
    fn parker(&self) -> Arc<dyn Parker> {
        self.reach(Place::Submits);
        Arc::new(ShortParker(self.system.parker()))
    }
    fn spawn(&self, name: &str, work: Box<dyn FnOnce() + Send>) -> std::io::Result<Box<dyn JoinHandle>> {
        self.system.spawn(name, work)
    }
}

/// Shortens all waits, so that periodic work runs often.
struct ShortParker(Arc<dyn Parker>);

const PARK_MAX: Duration = Duration::from_millis(2);

impl Parker for ShortParker {
    fn park(&self, at_most: Option<Duration>) {
        self.0.park(at_most.map(|at_most| at_most.min(PARK_MAX)));
    }
    fn unpark(&self) {
        self.0.unpark();
    }
}

fn two_phases() -> TxnOptions {
    TxnOptions::default().commit_protocol(CommitProtocol::TwoPhase)
}

fn open(runtime: &Arc<PausingEnv>) -> (Store, Keyspace) {
    let store = Store::builder().env(Arc::clone(runtime) as Arc<dyn Env>).in_memory().unwrap();
    let rows = store.keyspace("rows").unwrap();
    (store, rows)
}

/// A two-phase transaction that is about to commit.
fn two_rows(store: &Store, rows: &Keyspace) -> Txn {
    let mut txn = store.begin_with(two_phases()).unwrap();
    txn.put(rows, "a", "slow").unwrap();
    txn.put(rows, "b", "slow").unwrap();
    txn
}

/// A two-phase transaction is paused after its commit point, and another one commits on its
/// primary. After the paused transaction has finished, the store must still find conflicts with the
/// other commit.
#[test]
fn a_commit_that_finishes_late_hides_no_conflict() {
    let _run = Run::begin("races::a_commit_that_finishes_late_hides_no_conflict");
    let runtime = Arc::new(PausingEnv::default());
    // With larger batches no change would follow the commit point.
    let row_by_row = SimStorage::new().exclusive_engine().with_batch_rows_max(2);
    let builder = Store::builder().env(Arc::clone(&runtime) as Arc<dyn Env>);
    let store = builder.open_engine(Arc::new(row_by_row)).unwrap();
    let rows = store.keyspace("rows").unwrap();
    let slow = two_rows(&store, &rows);
    std::thread::scope(|scope| {
        // The submissions of `slow` are the lock of each row, the commit point, and then the other
        // row.
        let slow = runtime.run(scope, (Place::Submits, 4), || slow.commit());
        assert_eq!(store.row_locks().unwrap().count(), 1, "it is not paused after its commit point");
        let (mut first, mut second) = (store.begin().unwrap(), store.begin().unwrap());
        for txn in [&mut first, &mut second] {
            assert_eq!(txn.get(&rows, "a").unwrap().unwrap(), b"slow");
            assert_eq!(txn.get(&rows, "b").unwrap().unwrap(), b"slow");
        }
        first.put(&rows, "a", "first").unwrap();
        second.put(&rows, "a", "second").unwrap();
        first.commit().unwrap();
        slow.finish().unwrap();
        assert!(second.commit().is_err_and(|error| error.is_retryable()), "an update is lost");
    });
}

/// A list of locks is as of one snapshot, whatever commits while it is read.
#[test]
fn locks_and_their_statuses_are_listed_as_of_one_snapshot() {
    let _run = Run::begin("races::locks_and_their_statuses_are_listed_as_of_one_snapshot");
    let runtime = Arc::new(PausingEnv::default());
    let (store, rows) = open(&runtime);
    let slow = two_rows(&store, &rows);
    std::thread::scope(|scope| {
        // `slow` has submitted its locks but not its commit point.
        let slow = runtime.run(scope, (Place::Submits, 2), || slow.commit());
        let listed = store.row_locks().unwrap();
        slow.finish().unwrap();
        let points: Vec<_> = listed.map(|lock| lock.unwrap().txn_status).collect();
        assert_eq!(points, [TxnStatus::Pending; 2]);
        assert_eq!(store.row_locks().unwrap().count(), 0);
    });
}

/// A keyspace is looked up just before it is dropped, and the handle is returned just after.
#[test]
fn a_handle_found_during_a_drop_cannot_be_written_to() {
    let _run = Run::begin("races::a_handle_found_during_a_drop_cannot_be_written_to");
    let runtime = Arc::new(PausingEnv::default());
    let (store, dropped) = open(&runtime);
    std::thread::scope(|scope| {
        let late = runtime.run(scope, (Place::Begins, 1), || store.keyspace("rows"));
        store.drop_keyspace("rows").unwrap();
        // The call fails, or returns a new keyspace, or a handle that is marked as dropped.
        if let Ok(found) = late.finish() {
            let put = store.transact(|txn| txn.put(&found, "a", "1"));
            assert!(
                found.id() != dropped.id() || put.is_err(),
                "a commit into a keyspace that was dropped before it began"
            );
        }
    });
}

thread_local! {
    /// The number of unsynced batches when this thread last called `pause` in [`open_pausing`]. If
    /// the number has changed since, the engine has applied changes or synced them.
    static UNSYNCED: Cell<u64> = const { Cell::new(0) };
}

/// A store whose threads can also be paused at [`Place::Applied`] and [`Place::Synced`].
fn open_pausing(runtime: &Arc<PausingEnv>, memory: &SimStorage) -> Store {
    let (seen, pausing) = (memory.clone(), Arc::clone(runtime));
    let pause = move |_| {
        let now = seen.unsynced();
        let before = UNSYNCED.replace(now);
        if now > before {
            pausing.reach(Place::Applied);
        } else if now == 0 && before > 0 {
            pausing.reach(Place::Synced);
        }
    };
    let always = Faults { delays: 1000, ..Faults::default() };
    let engine = Arc::new(FaultyEngine::with_pause(memory.exclusive_engine(), always, 1, Arc::new(pause)));
    Store::builder().env(Arc::clone(runtime) as Arc<dyn Env>).open_engine(engine).unwrap()
}

/// A commit is applied but not yet visible, because its leader is paused. A transaction that
/// conflicts with this commit must wait until the commit is visible: retries with an older read
/// view would use up all attempts.
#[test]
fn an_invisible_commit_does_not_use_up_retries() {
    let _run = Run::begin("races::an_invisible_commit_does_not_use_up_retries");
    let runtime = Arc::new(PausingEnv::default());
    let store = open_pausing(&runtime, &SimStorage::new());
    let rows = store.keyspace("rows").unwrap();
    // Once a value is out of line, a committer reads its rows before it submits them. So the second
    // committer finds the conflict while the leader is paused.
    store.transact_with(two_phases(), |txn| txn.put(&rows, "long", [0; 300])).unwrap();
    store.sync().unwrap();
    let first = store.begin().unwrap();
    std::thread::scope(|scope| {
        let (mut first, keyspace) = (first, rows.clone());
        let first = runtime.run(scope, (Place::Applied, 1), move || {
            first.put(&keyspace, "row", "first").unwrap();
            first.commit()
        });
        let second = scope.spawn(|| store.transact(|txn| txn.put(&rows, "row", "second")));
        std::thread::sleep(Duration::from_millis(100));
        first.finish().unwrap();
        second.join().unwrap().unwrap();
    });
    assert_eq!(store.snapshot().unwrap().get(&rows, "row").unwrap().unwrap(), b"second");
}

/// A commit that is applied after a sync has ended, but before the call of the sync returns, is not
/// made durable by that sync.
#[test]
fn a_sync_covers_no_later_commit() {
    let _run = Run::begin("races::a_sync_covers_no_later_commit");
    let runtime = Arc::new(PausingEnv::default());
    let memory = SimStorage::new();
    let store = open_pausing(&runtime, &memory);
    let rows = store.keyspace("rows").unwrap();
    let mut first = store.begin().unwrap();
    first.put(&rows, "first", "1").unwrap();
    std::thread::scope(|scope| {
        let first = runtime.run(scope, (Place::Synced, 1), || first.commit());
        let buffered = TxnOptions::default().durability(Durability::Buffered);
        store.transact_with(buffered, |txn| txn.put(&rows, "second", "2")).unwrap();
        assert!(memory.unsynced() > 0);
        first.finish().unwrap();
    });
    // A snapshot shows every acknowledged commit and only durable ones, so this snapshot must sync
    // the second commit.
    assert!(store.snapshot().unwrap().contains_key(&rows, "second").unwrap());
    memory.crash(0);
    drop((store, rows));
    let store = Store::builder().open_in_memory(&memory).unwrap();
    let rows = store.keyspace("rows").unwrap();
    let found = store.snapshot().unwrap().multi_get(&rows, ["first", "second"]).unwrap();
    assert_eq!(found, [Some("1".into()), Some("2".into())]);
}

/// GC removes tombstones, but none while a transaction that began before the deletion is open: the
/// tombstone may be the only evidence of a conflict.
#[test]
fn gc_hides_no_conflict_of_an_old_transaction() {
    let _run = Run::begin("races::gc_hides_no_conflict_of_an_old_transaction");
    let runtime: Arc<dyn Env> = Arc::new(PausingEnv::default());
    // With a conflict cache of one row, conflicts are found by reading the rows.
    let store = Store::builder().env(runtime).conflict_set_rows(1).in_memory().unwrap();
    let rows = store.keyspace("rows").unwrap();
    let put = |key: &str| store.transact(|txn| txn.put(&rows, key, "1")).unwrap();
    let delete = |key: &str| store.transact(|txn| txn.delete(&rows, key)).unwrap();
    put("old");
    put("older");
    delete("older");
    wait_until("GC removes a tombstone", || store.stats().gc_tombstones == 1);
    let mut old = store.begin().unwrap();
    old.put(&rows, "old", "2").unwrap();
    delete("old");
    put("another");
    // Time for many rounds of GC.
    std::thread::sleep(40 * PARK_MAX);
    assert!(old.commit().is_err_and(|error| error.is_retryable()), "an update is lost");
    wait_until("GC removes the other tombstone", || store.stats().gc_tombstones == 2);
}

/// The storage of a store that has made a two-phase commit, and then lost the last `lost` batches
/// of the commit in a crash. If one batch is lost, the second row stays locked. If two are lost,
/// the commit point is lost, too.
fn interrupted(home: fn() -> Home, lost: u64) -> Home {
    // The background may sync or write at any time. The crash may then lose other batches, and
    // another home is tried.
    for _ in 0..100 {
        let home = home();
        let memory = match &home {
            Home::Embedded(memory) | Home::RowByRow(memory) => memory,
            Home::Shared(server) => &server.memory,
            #[cfg(feature = "rocks")]
            Home::Rocks(_) => unreachable!(),
        };
        let store = home.open(Store::builder());
        let rows = store.keyspace("rows").unwrap();
        let put_both = |options, value| {
            let put = |txn: &mut Txn| {
                txn.put(&rows, "a", value)?;
                txn.put(&rows, "b", value)
            };
            store.transact_with(options, put).unwrap();
        };
        put_both(TxnOptions::default(), "old");
        store.sync().unwrap();
        let synced = memory.unsynced();
        let buffered = two_phases().durability(Durability::Buffered);
        put_both(buffered, "new");
        let batches = memory.unsynced();
        let crash = memory.crash(batches.saturating_sub(lost));
        // The commit consists of the locks, the commit point and the second row. Writes of the
        // background may follow these batches.
        if synced == 0 && batches >= 3 && crash.lost == lost {
            return home;
        }
    }
    panic!("the background wrote in between, a hundred times");
}

/// A transaction's snapshot has a lock that a crash left. Before the transaction reads the row,
/// other transactions resolve the lock and overwrite the row and the primary.
#[test]
fn an_old_snapshot_meets_an_already_resolved_lock() {
    let _run = Run::begin("races::an_old_snapshot_meets_an_already_resolved_lock");
    for (home, lost) in [Home::row_by_row, Home::shared].into_iter().flat_map(|home| [(home, 1), (home, 2)]) {
        let home = interrupted(home, lost);
        for sweep in [false, true] {
            let store = home.open(Store::builder().background_resolve(sweep));
            let rows = store.keyspace("rows").unwrap();
            let expected = store.begin().unwrap().get(&rows, "a").unwrap();
            let reader = store.begin().unwrap();
            for value in ["newer", "newest"] {
                for row in ["b", "a"] {
                    if home.is_shared() && lost == 2 {
                        // Until the lock expires, the client that it belongs to may be alive, and
                        // puts would conflict. So nothing is put.
                        break;
                    }
                    store.transact(|txn| txn.put(&rows, row, value)).unwrap();
                }
                store.resolve_orphan_locks().unwrap();
            }
            assert_eq!(reader.get(&rows, "b").unwrap(), expected, "{}, {lost} lost", home.is_shared());
            let scanned: Vec<_> = reader.range(&rows, ..).map(|row| row.unwrap().into_parts().1).collect();
            assert_eq!(scanned, vec![expected.clone().unwrap(); 2]);
            let back: Vec<_> = reader.range(&rows, ..).rev().map(|row| row.unwrap().into_parts().1).collect();
            assert_eq!(back, scanned);
        }
    }
}
