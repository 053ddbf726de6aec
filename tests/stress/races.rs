//! Races that threads would lose once in a million times, made to happen.

use std::cell::Cell;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::{Scope, ScopedJoinHandle, ThreadId, current};
use std::time::Duration;

use percolite::engine::sim::SimStorage;
use percolite::engine::unreliable::{Faults, FaultyEngine};
use percolite::runtime::{Env, JoinHandle, Parker, SystemEnv};
use percolite::{CommitProtocol, Durability, Keyspace, Store, TransactionStatus, Txn, TxnOptions};

use crate::common::{Run, wait_until};
use crate::support::Home;

/// A place in the store's code where a thread can be held: it asks the runtime for something there.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    /// A transaction begins; it has its view already.
    Begins,
    /// Changes are about to be handed to the commit pipeline.
    Submits,
    /// Changes are in the engine, and the store has not heard of it yet.
    Applied,
    /// A sync is done, and the store has not heard of it yet.
    Synced,
}

/// A runtime that holds one thread at the `n`-th time it comes to a place.
#[derive(Default)]
struct Holding {
    system: SystemEnv,
    hold: Mutex<Option<Hold>>,
}

struct Hold {
    thread: ThreadId,
    place: Place,
    times: usize,
    reached: Sender<()>,
    go: Receiver<()>,
}

/// A thread that is held, until this is told or dropped.
struct Held<'scope, T> {
    thread: ScopedJoinHandle<'scope, T>,
    go: Sender<()>,
}

impl Holding {
    fn came_to(&self, place: Place) {
        let mut hold = self.hold.lock().unwrap();
        let Some(held) = hold.as_mut().filter(|hold| hold.thread == current().id() && hold.place == place) else {
            return;
        };
        held.times -= 1;
        if held.times == 0 {
            let held = hold.take().unwrap();
            drop(hold);
            held.reached.send(()).unwrap();
            // Goes on when told, or when nobody is left to tell.
            let _ = held.go.recv();
        }
    }

    /// Runs `work` in a thread of its own up to the place.
    fn run<'scope, T: Send + 'scope>(
        self: &Arc<Self>,
        scope: &'scope Scope<'scope, '_>,
        (place, times): (Place, usize),
        work: impl FnOnce() -> T + Send + 'scope,
    ) -> Held<'scope, T> {
        let (reached, reaches) = channel();
        let (go, goes) = channel();
        let own = Arc::clone(self);
        let thread = scope.spawn(move || {
            *own.hold.lock().unwrap() = Some(Hold { thread: current().id(), place, times, reached, go: goes });
            work()
        });
        reaches.recv().expect("the thread has ended without coming to the place");
        Held { thread, go }
    }
}

impl<T> Held<'_, T> {
    fn finish(self) -> T {
        drop(self.go);
        self.thread.join().unwrap()
    }
}

impl Env for Holding {
    fn unix_millis(&self) -> u64 {
        self.system.unix_millis()
    }
    fn elapsed(&self) -> Duration {
        self.system.elapsed()
    }
    fn random(&self) -> u64 {
        self.came_to(Place::Begins);
        self.system.random()
    }
    fn sleep(&self, duration: Duration) {
        self.system.sleep(duration);
    }
    fn parker(&self) -> Arc<dyn Parker> {
        self.came_to(Place::Submits);
        Arc::new(Hasty(self.system.parker()))
    }
    fn spawn(&self, name: &str, work: Box<dyn FnOnce() + Send>) -> std::io::Result<Box<dyn JoinHandle>> {
        self.system.spawn(name, work)
    }
}

/// Waits shorter than it is told, so that what is done now and then is done often.
struct Hasty(Arc<dyn Parker>);

const HASTE: Duration = Duration::from_millis(2);

impl Parker for Hasty {
    fn park(&self, at_most: Option<Duration>) {
        self.0.park(at_most.map(|at_most| at_most.min(HASTE)));
    }
    fn unpark(&self) {
        self.0.unpark();
    }
}

fn two_phases() -> TxnOptions {
    TxnOptions { commit_protocol: Some(CommitProtocol::TwoPhase), ..TxnOptions::default() }
}

fn open(runtime: &Arc<Holding>) -> (Store, Keyspace) {
    let store = Store::builder().runtime(Arc::clone(runtime) as Arc<dyn Env>).in_memory().unwrap();
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

/// A two-phase transaction is past its commit point and then finishes, while others have committed on its primary: what it
/// does last must not make the store forget them.
#[test]
fn a_commit_that_finishes_late_hides_no_conflict() {
    let _run = Run::begin("races::a_commit_that_finishes_late_hides_no_conflict");
    let runtime = Arc::new(Holding::default());
    // An engine that can change more together has nothing behind the commit point.
    let row_by_row = SimStorage::new().exclusive_engine().with_batch_rows_max(2);
    let builder = Store::builder().runtime(Arc::clone(&runtime) as Arc<dyn Env>);
    let store = builder.open_engine(Arc::new(row_by_row)).unwrap();
    let rows = store.keyspace("rows").unwrap();
    let slow = two_rows(&store, &rows);
    std::thread::scope(|scope| {
        // It submits its locks, its commit point, and then the rest.
        let slow = runtime.run(scope, (Place::Submits, 4), || slow.commit());
        assert_eq!(store.row_locks().unwrap().count(), 1, "it is not where it should be");
        let (mut first, mut second) = (store.begin().unwrap(), store.begin().unwrap());
        for txn in [&mut first, &mut second] {
            assert_eq!(txn.get(&rows, "a").unwrap().unwrap(), b"slow");
            assert_eq!(txn.get(&rows, "b").unwrap().unwrap(), b"slow");
        }
        first.put(&rows, "a", "first").unwrap();
        second.put(&rows, "a", "second").unwrap();
        first.commit().unwrap();
        slow.finish().unwrap();
        assert!(second.commit().is_err_and(|why| why.is_retryable()), "an update is lost");
    });
}

/// A list of locks shows one moment, however the store moves on while it is being read.
#[test]
fn locks_and_their_commit_points_are_listed_as_of_one_moment() {
    let _run = Run::begin("races::locks_and_their_commit_points_are_listed_as_of_one_moment");
    let runtime = Arc::new(Holding::default());
    let (store, rows) = open(&runtime);
    let slow = two_rows(&store, &rows);
    std::thread::scope(|scope| {
        // It has submitted its locks and not its commit point.
        let slow = runtime.run(scope, (Place::Submits, 2), || slow.commit());
        let listed = store.row_locks().unwrap();
        slow.finish().unwrap();
        let points: Vec<_> = listed.map(|lock| lock.unwrap().txn_status).collect();
        assert_eq!(points, [TransactionStatus::Pending; 2]);
        assert_eq!(store.row_locks().unwrap().count(), 0);
    });
}

/// Somebody looks a keyspace's name up just before it is dropped, and gets a handle just after.
#[test]
fn a_handle_found_while_its_keyspace_was_dropped_is_of_no_use() {
    let _run = Run::begin("races::a_handle_found_while_its_keyspace_was_dropped_is_of_no_use");
    let runtime = Arc::new(Holding::default());
    let (store, dropped) = open(&runtime);
    std::thread::scope(|scope| {
        let late = runtime.run(scope, (Place::Begins, 1), || store.keyspace("rows"));
        store.drop_keyspace("rows").unwrap();
        // Either it is told that there is none, or it gets a new one, or one that is marked as dropped.
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
    /// What the thread saw last in its test's memory.
    static UNSYNCED: Cell<u64> = const { Cell::new(0) };
}

/// A store whose threads can be held when the engine has done something and its answer is on the way.
fn open_holding(runtime: &Arc<Holding>, memory: &SimStorage) -> Store {
    let (seen, holds) = (memory.clone(), Arc::clone(runtime));
    let pause = move |_| {
        let now = seen.unsynced();
        let before = UNSYNCED.replace(now);
        if now > before {
            holds.came_to(Place::Applied);
        } else if now == 0 && before > 0 {
            holds.came_to(Place::Synced);
        }
    };
    let always = Faults { delays: 1000, ..Faults::default() };
    let engine = Arc::new(FaultyEngine::with_pause(memory.exclusive_engine(), always, 1, Arc::new(pause)));
    Store::builder().runtime(Arc::clone(runtime) as Arc<dyn Env>).open_engine(engine).unwrap()
}

/// A commit is applied and not yet visible, because the thread that leads has been put to sleep just then. Whoever meets it
/// waits for it to become visible instead of trying in vain, over and over, with the view from before.
#[test]
fn a_commit_on_its_way_does_not_use_up_the_attempts_of_others() {
    let _run = Run::begin("races::a_commit_on_its_way_does_not_use_up_the_attempts_of_others");
    let runtime = Arc::new(Holding::default());
    let store = open_holding(&runtime, &SimStorage::new());
    let rows = store.keyspace("rows").unwrap();
    // Once there are long values, a committer reads its rows before it hands them in.
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

/// A commit is applied while a sync is on its way back: that sync does not make it durable.
#[test]
fn a_sync_covers_nothing_that_came_after_it() {
    let _run = Run::begin("races::a_sync_covers_nothing_that_came_after_it");
    let runtime = Arc::new(Holding::default());
    let memory = SimStorage::new();
    let store = open_holding(&runtime, &memory);
    let rows = store.keyspace("rows").unwrap();
    let mut first = store.begin().unwrap();
    first.put(&rows, "first", "1").unwrap();
    std::thread::scope(|scope| {
        let first = runtime.run(scope, (Place::Synced, 1), || first.commit());
        let buffered = TxnOptions { durability: Some(Durability::Buffered), ..TxnOptions::default() };
        store.transact_with(buffered, |txn| txn.put(&rows, "second", "2")).unwrap();
        assert!(memory.unsynced() > 0);
        first.finish().unwrap();
    });
    // A snapshot shows only what is durable, and everything that was acknowledged: it has to see to the second one.
    assert!(store.snapshot().unwrap().contains_key(&rows, "second").unwrap());
    memory.crash(0);
    drop((store, rows));
    let store = Store::builder().open_in_memory(&memory).unwrap();
    let rows = store.keyspace("rows").unwrap();
    let found = store.snapshot().unwrap().multi_get(&rows, ["first", "second"]).unwrap();
    assert_eq!(found, [Some(b"1".to_vec()), Some(b"2".to_vec())]);
}

/// The record of a deletion is collected, but not while a transaction is open that began before it: that record may be all
/// that tells of its conflict.
#[test]
fn collection_hides_no_conflict_of_an_old_transaction() {
    let _run = Run::begin("races::collection_hides_no_conflict_of_an_old_transaction");
    let runtime: Arc<dyn Env> = Arc::new(Holding::default());
    // With one slot of memory the row itself has to say when it was committed.
    let store = Store::builder().runtime(runtime).conflict_cache_rows(1).in_memory().unwrap();
    let rows = store.keyspace("rows").unwrap();
    let put = |key: &str| store.transact(|txn| txn.put(&rows, key, "1")).unwrap();
    let delete = |key: &str| store.transact(|txn| txn.delete(&rows, key)).unwrap();
    put("old");
    put("older");
    delete("older");
    wait_until("a deletion is collected", || store.stats().gc_tombstones == 1);
    let mut old = store.begin().unwrap();
    old.put(&rows, "old", "2").unwrap();
    delete("old");
    put("another");
    // The collector comes by many times.
    std::thread::sleep(40 * HASTE);
    assert!(old.commit().is_err_and(|why| why.is_retryable()), "an update is lost");
    wait_until("the other deletion is collected", || store.stats().gc_tombstones == 2);
}

/// A store that was committed to in two phases and whose machine crashed, which lost so many batches: with the last the second
/// row stays locked, with the last two nothing says that it was committed.
fn interrupted(home: fn() -> Home, lost: u64) -> Home {
    // What the background syncs and writes comes when it likes. A crash that would lose other batches is of no use.
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
        let buffered = TxnOptions { durability: Some(Durability::Buffered), ..two_phases() };
        put_both(buffered, "new");
        let batches = memory.unsynced();
        let crash = memory.crash(batches.saturating_sub(lost));
        // The locks, the commit point, the second row; the background may have come after them.
        if synced == 0 && batches >= 3 && crash.lost == lost {
            return home;
        }
    }
    panic!("the background came in between, a hundred times");
}

/// A reader's snapshot shows a lock that a crash has left. Others resolve it, and overwrite the row and the primary, before
/// the reader comes to it.
#[test]
fn a_reader_with_an_old_snapshot_meets_a_lock_that_is_long_resolved() {
    let _run = Run::begin("races::a_reader_with_an_old_snapshot_meets_a_lock_that_is_long_resolved");
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
                        // The lock may be a live client's; its time has to run out.
                        break;
                    }
                    store.transact(|txn| txn.put(&rows, row, value)).unwrap();
                }
                store.resolve_orphan_locks().unwrap();
            }
            assert_eq!(reader.get(&rows, "b").unwrap(), expected, "{}, {lost} lost", home.is_shared());
            let scanned: Vec<_> = reader.range(&rows, ..).map(|row| row.unwrap().1).collect();
            assert_eq!(scanned, vec![expected.clone().unwrap(); 2]);
            let back: Vec<_> = reader.range(&rows, ..).rev().map(|row| row.unwrap().1).collect();
            assert_eq!(back, scanned);
        }
    }
}
