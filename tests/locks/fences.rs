//! F1 to F4: fences and tokens.

mod paused;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

use percolite::engine::sim::SimStorage;
use percolite::{Commit, CommitProtocol, ErrorKind, LockOptions, LostReason, Result, Store, TxnOptions};

use crate::stops::{Dice, PATIENCE, Worker, World, assert_lost, buffered, eventually, is_lost, some, spawn};
use crate::tap::{Act, Gate, commits};

const PROTOCOLS: [CommitProtocol; 2] = [CommitProtocol::Auto, CommitProtocol::TwoPhase];

#[test]
fn f1_a_what_is_forced_away_inside_of_the_closure_writes_nothing() {
    let world = World::open();
    let World { store, rows, .. } = &world;
    let guard = store.lock("n").unwrap();
    let (mut attempts, mut token) = (0, guard.token());
    let answer: Result<()> = store.transact(|txn| {
        attempts += 1;
        txn.fence(&guard.fence())?;
        txn.put(rows, "under a guard", "")?;
        assert!(store.force_unlock("n", token)?);
        Ok(())
    });
    assert_lost(answer, token, LostReason::Forced);
    let answer: Result<()> = store.lock_transact("n", LockOptions::exclusive(), TxnOptions::default(), |txn| {
        attempts += 1;
        token = world.token_of("n");
        txn.put(rows, "under the call", "")?;
        assert!(store.force_unlock("n", token)?);
        Ok(())
    });
    assert_lost(answer, token, LostReason::Forced);
    assert_eq!(attempts, 2, "what is lost was tried again");
    assert_eq!((world.get("under a guard"), world.get("under the call"), world.row_locks()), (None, None, 0));
    assert!(store.lock("n").unwrap().token() > token);
}

#[test]
fn f1_b_what_was_decided_before_the_end_stands_and_the_next_holder_begins_with_it() {
    for protocol in PROTOCOLS {
        decided_before_the_end(protocol, false);
        decided_before_the_end(protocol, true);
    }
}

fn decided_before_the_end(protocol: CommitProtocol, forced: bool) {
    let world = World::open();
    let guard = world.store.lock("n").unwrap();
    let (token, fence) = (guard.token(), guard.fence());
    let gate = world.stop_commit("k");
    let commit = {
        let World { store, rows, .. } = world.clone();
        spawn(move || -> Result<Commit> {
            let mut txn = store.begin_with(buffered(protocol))?;
            txn.fence(&fence)?;
            txn.put(&rows, "k", "first")?;
            txn.commit()
        })
    };
    gate.wait_for_arrival();
    if forced {
        assert!(world.store.force_unlock("n", token).unwrap());
    }
    drop(guard);
    let next = {
        let world = world.clone();
        spawn(move || {
            let guard = world.store.lock("n").unwrap();
            (world.get("k"), guard.token())
        })
    };
    eventually("the next one has it in memory", || world.store.lock_table().unwrap().held == 1);
    std::thread::sleep(Duration::from_millis(50));
    assert!(!next.is_finished(), "it has not waited for what was decided");
    gate.open();
    let committed = commit.join().unwrap().ts;
    let (seen, next_token) = next.join();
    assert_eq!(seen, some("first"));
    assert!(token < committed && committed < next_token, "{token} {committed} {next_token}");
}

/// Commits under fences that it is sent, and says what has become of each.
fn committer(world: &World, fences: std::sync::mpsc::Receiver<(percolite::Fence, u64)>) -> Committer {
    let (answers, answer) = channel();
    let begun = Arc::new(AtomicU64::new(0));
    let (World { store, rows, .. }, begins) = (world.clone(), Arc::clone(&begun));
    let thread = spawn(move || {
        while let Ok((fence, round)) = fences.recv() {
            let commit = || -> Result<Commit> {
                let mut txn = store.begin_with(buffered(CommitProtocol::Auto))?;
                let fenced = txn.fence(&fence).and_then(|()| txn.put(&rows, "k", round.to_string()));
                begins.store(round, Ordering::SeqCst);
                fenced.and_then(|()| txn.commit())
            };
            if answers.send(commit()).is_err() {
                return;
            }
        }
    });
    Committer { begun, answer, thread }
}

struct Committer {
    begun: Arc<AtomicU64>,
    answer: std::sync::mpsc::Receiver<Result<Commit>>,
    thread: Worker<()>,
}

#[test]
fn f1_c_a_token_is_never_below_a_commit_of_the_holder_before() {
    let (world, mut dice) = (World::open(), Dice::new());
    let under_way = Arc::new(AtomicBool::new(false));
    let (row, flag) = (world.rows.row_of("k"), Arc::clone(&under_way));
    world.tap.on_write(move |groups| {
        if commits(groups, &row) {
            flag.store(true, Ordering::SeqCst);
            std::thread::yield_now();
            flag.store(false, Ordering::SeqCst);
        }
        Act::Pass
    });
    let (sends, fences) = channel();
    let Committer { begun, answer, thread } = committer(&world, fences);
    let (mut met, mut last) = (0, None);
    let mut guard = world.store.lock("n").unwrap();
    for round in 1..=10_000 {
        let token = guard.token();
        sends.send((guard.fence(), round)).unwrap();
        while begun.load(Ordering::SeqCst) < round && !thread.is_finished() {
            std::thread::yield_now();
        }
        (0..dice.below(8)).for_each(|_| std::thread::yield_now());
        drop(guard);
        // The leader stands between its decision and the engine, and the grant has ended.
        met += u64::from(under_way.load(Ordering::SeqCst));
        guard = world.store.lock("n").unwrap();
        let seen = world.get("k");
        match answer.recv_timeout(PATIENCE).unwrap() {
            Ok(Commit { ts, .. }) => {
                assert!(token < ts && ts < guard.token(), "round {round}: {token} {ts} {}", guard.token());
                last = Some(round.to_string());
            }
            Err(why) => assert!(is_lost(&why), "{why}"),
        }
        assert_eq!(seen, last, "round {round}");
    }
    assert!(met > 0, "no end has met a commit under way");
    drop(sends);
    thread.join();
}

/// Writers of other rows, until it is dropped.
struct Writers {
    stop: Arc<AtomicBool>,
    written: Arc<AtomicU64>,
}

impl Writers {
    fn begin(world: &World, count: usize) -> Self {
        let this = Self { stop: Arc::default(), written: Arc::default() };
        for number in 0..count {
            let (world, stop, written) = (world.clone(), Arc::clone(&this.stop), Arc::clone(&this.written));
            spawn(move || {
                while !stop.load(Ordering::SeqCst) {
                    world.put(&format!("of writer {number}"), "").unwrap();
                    written.fetch_add(1, Ordering::SeqCst);
                }
            });
        }
        this
    }

    /// Waits until what they do is visible that they begin from here on.
    fn write(&self) {
        let before = self.written.load(Ordering::SeqCst);
        // One more for each of those that may have committed before this.
        eventually("others write", || self.written.load(Ordering::SeqCst) > before + 16);
    }
}

impl Drop for Writers {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
    }
}

#[test]
fn f1_d_a_snapshot_from_before_the_grant_is_refused() {
    let world = World::open();
    let World { store, rows, .. } = &world;
    let writers = Writers::begin(&world, 16);

    let mut old = store.begin().unwrap();
    writers.write();
    let guard = store.lock("n").unwrap();
    let why = old.fence(&guard.fence()).unwrap_err();
    assert!(matches!(why.kind(), ErrorKind::SnapshotTooOld(_)), "{why}");
    let mut new = store.begin().unwrap();
    new.fence(&guard.fence()).unwrap();
    drop((guard, new));

    let mut attempts = 0;
    let why = store
        .transact(|txn| -> Result<()> {
            attempts += 1;
            writers.write();
            let guard = store.lock("n")?;
            txn.fence(&guard.fence())?;
            txn.put(rows, "inside", "")
        })
        .unwrap_err();
    assert!(matches!(why.kind(), ErrorKind::InvalidArgument(_)), "{why}");
    assert!(why.to_string().contains("lock_transact"), "{why}");
    assert_eq!((attempts, world.get("inside")), (1, None));
}

#[test]
fn f2_a_a_reader_that_has_lost_its_lock_is_told_at_its_end() {
    let world = World::open();
    world.put("k", "before").unwrap();
    let read = |end: &dyn Fn(percolite::LockGuard)| {
        let guard = world.store.lock("n").unwrap();
        let (token, mut txn) = (guard.token(), world.store.begin().unwrap());
        txn.fence(&guard.fence()).unwrap();
        assert!(txn.get(&world.rows, "k").unwrap().is_some());
        end(guard);
        (txn.commit(), token)
    };
    let (answer, token) = read(&drop);
    assert_lost(answer, token, LostReason::Released);
    let (answer, token) = read(&|guard| assert!(world.store.force_unlock("n", guard.token()).unwrap()));
    assert_lost(answer, token, LostReason::Forced);
    let held = std::cell::RefCell::new(None);
    read(&|guard| drop(held.replace(Some(guard)))).0.expect("its lock stands");
    assert_eq!((world.get("k"), world.row_locks()), (some("before"), 0));
}

#[test]
fn f2_b_two_phases_that_lose_their_lock_between_them_leave_nothing() {
    let world = World::open();
    let guard = world.store.lock("n").unwrap();
    let gate = world.stop_prewrite("a");
    let (World { store, rows, .. }, fence) = (world.clone(), guard.fence());
    let commit = spawn(move || -> Result<Commit> {
        let options = TxnOptions { protocol: Some(CommitProtocol::TwoPhase), ..TxnOptions::default() };
        let mut txn = store.begin_with(options)?;
        txn.fence(&fence)?;
        ["a", "b", "c"].iter().try_for_each(|key| txn.put(&rows, key, "written"))?;
        txn.commit()
    });
    // What locks the rows is decided. The commit point is not.
    gate.wait_for_arrival();
    let token = guard.token();
    drop(guard);
    gate.open();
    assert_lost(commit.join(), token, LostReason::Released);
    assert_eq!(["a", "b", "c"].map(|key| world.get(key)), [None, None, None]);
    assert_eq!(world.row_locks(), 0);
}

#[test]
fn f2_c_a_streamed_transaction_that_has_lost_its_lock_leaves_nothing() {
    let world = World::open_at(&SimStorage::new(), Store::builder().stream_at_bytes(1));
    let guard = world.store.lock("n").unwrap();
    let mut txn = world.store.begin().unwrap();
    txn.fence(&guard.fence()).unwrap();
    for number in 0..100 {
        txn.put(&world.rows, format!("row {number}"), "written").unwrap();
    }
    assert!(world.row_locks() > 0, "it does not stream");
    let token = guard.token();
    drop(guard);
    assert_lost(txn.commit(), token, LostReason::Released);
    assert!((0..100).all(|number| world.get(&format!("row {number}")).is_none()));
    eventually("no row is locked", || world.row_locks() == 0);
}

/// A fenced commit that lies in the queue until the sync of the gate ends.
fn deferred(
    world: &World,
    fence: percolite::Fence,
) -> Option<(Gate, Worker<Result<Commit>>, Vec<Worker<Result<Commit>>>)> {
    let (gate, waiting) = world.sync_of_many();
    let World { store, rows, .. } = world.clone();
    let late = spawn(move || -> Result<Commit> {
        let mut txn = store.begin()?;
        txn.fence(&fence)?;
        txn.put(&rows, "late", "written")?;
        txn.commit()
    });
    std::thread::sleep(Duration::from_millis(100));
    world.get("late").is_none().then_some((gate, late, waiting))
}

#[test]
fn f2_d_a_commit_that_loses_its_lock_while_it_is_deferred_is_not_made() {
    // A thread may stand still between making commits visible and having them wait; then too few wait for the sync.
    for _ in 0..20 {
        let world = World::open();
        let guard = world.store.lock("n").unwrap();
        let Some((gate, late, waiting)) = deferred(&world, guard.fence()) else { continue };
        assert!(!late.is_finished());
        let token = guard.token();
        drop(guard);
        gate.open();
        assert_lost(late.join(), token, LostReason::Released);
        for other in waiting {
            other.join().unwrap();
        }
        assert_eq!((world.get("late"), world.row_locks()), (None, 0));
        return;
    }
    panic!("nothing is deferred");
}

#[cfg(feature = "tokio")]
#[test]
fn f2_e_an_async_transaction_that_loses_its_lock_before_its_commit_point_leaves_nothing() {
    use percolite::AsyncStore;

    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let world = World::open();
    let store = AsyncStore::from(world.store.clone());
    let options = TxnOptions { protocol: Some(CommitProtocol::TwoPhase), ..TxnOptions::default() };
    let joined = |task: tokio::task::JoinHandle<Result<()>>| {
        runtime.block_on(async { tokio::time::timeout(PATIENCE, task).await.unwrap().unwrap() })
    };

    let guard = runtime.block_on(store.lock("n")).unwrap();
    let gate = world.stop_prewrite("a");
    let (with, rows, fence) = (store.clone(), world.rows.clone(), guard.fence());
    let task = runtime.spawn(async move {
        let work = move |txn: &mut percolite::Txn| {
            txn.fence(&fence)?;
            txn.put(&rows, "a", "")
        };
        with.transact_with::<_, percolite::Error, _>(options, work).await
    });
    gate.wait_for_arrival();
    let token = guard.token();
    runtime.block_on(guard.release()).unwrap();
    gate.open();
    assert_lost(joined(task), token, LostReason::Released);

    let gate = world.stop_prewrite("b");
    let (with, rows) = (store.clone(), world.rows.clone());
    let task = runtime.spawn(async move {
        let work = move |txn: &mut percolite::Txn| txn.put(&rows, "b", "");
        with.lock_transact::<_, percolite::Error, _>("n", LockOptions::exclusive(), options, work).await
    });
    gate.wait_for_arrival();
    let token = world.token_of("n");
    assert!(world.store.force_unlock("n", token).unwrap());
    gate.open();
    assert_lost(joined(task), token, LostReason::Forced);
    assert_eq!((world.get("a"), world.get("b"), world.row_locks()), (None, None, 0));
}
