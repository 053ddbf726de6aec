//! Races that threads would lose once in a million times, made to happen.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::{Scope, ScopedJoinHandle, ThreadId, current};
use std::time::Duration;

use percolite::engine::sim::SimStorage;
use percolite::runtime::{Joined, Parker, Runtime, System};
use percolite::{CommitProtocol, Durability, Store, TxnOptions};

use crate::common::Run;
use crate::support::Home;

/// A place in the store's code where a thread can be held: it asks the runtime for something there.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    /// A transaction begins; it has its view already.
    Begins,
    /// Changes are about to be handed to the commit pipeline.
    Submits,
}

/// A runtime that holds one thread at the `n`-th time it comes to a place.
#[derive(Default)]
struct Holding {
    system: System,
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

impl Runtime for Holding {
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
        self.system.parker()
    }
    fn spawn(&self, name: &str, work: Box<dyn FnOnce() + Send>) -> std::io::Result<Box<dyn Joined>> {
        self.system.spawn(name, work)
    }
}

fn two_phases() -> TxnOptions {
    TxnOptions { protocol: Some(CommitProtocol::TwoPhase), ..TxnOptions::default() }
}

/// A two-phase transaction is past its commit point and then finishes, while others have committed on its primary: what it
/// does last must not make the store forget them.
#[test]
fn a_commit_that_finishes_late_hides_no_conflict() {
    let _run = Run::begin("races::a_commit_that_finishes_late_hides_no_conflict");
    let runtime = Arc::new(Holding::default());
    let store = Store::builder().runtime(Arc::clone(&runtime) as Arc<dyn Runtime>).in_memory().unwrap();
    let rows = store.keyspace("rows").unwrap();
    let mut slow = store.begin_with(two_phases()).unwrap();
    slow.put(&rows, "a", "slow").unwrap();
    slow.put(&rows, "b", "slow").unwrap();
    std::thread::scope(|scope| {
        // It submits its locks, its commit point, and then the rest.
        let slow = runtime.run(scope, (Place::Submits, 3), || slow.commit());
        assert_eq!(store.locks().unwrap().count(), 1, "it is not where it should be");
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

/// Somebody looks a keyspace's name up just before it is dropped, and gets a handle just after.
#[test]
fn a_handle_found_while_its_keyspace_was_dropped_is_of_no_use() {
    let _run = Run::begin("races::a_handle_found_while_its_keyspace_was_dropped_is_of_no_use");
    let runtime = Arc::new(Holding::default());
    let store = Store::builder().runtime(Arc::clone(&runtime) as Arc<dyn Runtime>).in_memory().unwrap();
    let dropped = store.keyspace("rows").unwrap();
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

/// A reader's snapshot shows a lock that a crash has left. Others resolve it, and overwrite the row and the primary, before
/// the reader comes to it.
#[test]
fn a_reader_with_an_old_snapshot_meets_a_lock_that_is_long_resolved() {
    let _run = Run::begin("races::a_reader_with_an_old_snapshot_meets_a_lock_that_is_long_resolved");
    for (home, lost) in [Home::embedded, Home::shared].into_iter().flat_map(|home| [(home, 1), (home, 2)]) {
        let home = home();
        let memory: &SimStorage = match &home {
            Home::Embedded(memory) => memory,
            Home::Shared(server) => &server.memory,
            #[cfg(feature = "rocks")]
            Home::Rocks(_) => unreachable!(),
        };
        let store = home.open(Store::builder());
        let rows = store.keyspace("rows").unwrap();
        let old = store.transact(|txn| {
            txn.put(&rows, "a", "old")?;
            txn.put(&rows, "b", "old")
        });
        old.unwrap();
        store.sync().unwrap();
        let buffered = TxnOptions { durability: Some(Durability::Buffered), ..two_phases() };
        let new = store.transact_with(buffered, |txn| {
            txn.put(&rows, "a", "new")?;
            txn.put(&rows, "b", "new")
        });
        new.unwrap();
        // Without the last batch the second row stays locked; without the last two nothing says that it was committed.
        let crash = memory.crash(memory.unsynced() - lost);
        assert_eq!(crash.lost, lost);
        drop((store, rows));

        for sweep in [false, true] {
            let store = home.open(Store::builder().sweep(sweep));
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
                store.resolve_orphans().unwrap();
            }
            assert_eq!(reader.get(&rows, "b").unwrap(), expected, "{}, {lost} lost", home.is_shared());
            let scanned: Vec<_> = reader.range(&rows, ..).map(|row| row.unwrap().1).collect();
            assert_eq!(scanned, vec![expected.clone().unwrap(); 2]);
            let back: Vec<_> = reader.range(&rows, ..).rev().map(|row| row.unwrap().1).collect();
            assert_eq!(back, scanned);
        }
    }
}
