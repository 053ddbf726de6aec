//! Invalid calls: the error names the mistake, nothing changes, and other calls still work.

mod stores;

use std::time::Duration;

use percolite::engine::sim::SimStorage;
use percolite::{
    CancelToken, Error, ErrorKind, Fence, LockGuard, LockLostReason, LockMode, LockOptions, LockTable, LockWaitPolicy,
    MAX_LOCK_REASON_BYTES, Result, Store, Timestamp, Txn, TxnOptions,
};

use crate::hooked_store::{World, assert_lost};

const DAY: Duration = Duration::from_secs(24 * 3600);
const HOUR: Duration = Duration::from_secs(3600);

/// The call must return `InvalidArgument` with a text that contains `word`.
#[track_caller]
fn assert_refused<T>(answer: Result<T>, word: &str) {
    let error = answer.err().expect("the call succeeded");
    assert!(matches!(error.kind(), ErrorKind::InvalidArgument(_)), "{error}");
    assert!(error.to_string().contains(word), "{word:?} is missing: {error}");
}

/// The lock table without its times, so that a refused call can be shown to change nothing. The
/// remaining lease time changes by itself. The start of a grant is computed from two clocks, so it
/// may differ by a millisecond.
fn grants(store: &Store) -> LockTable {
    let mut table = store.lock_table().unwrap();
    for entry in &mut table.entries {
        (entry.lease_remaining, entry.since) = (None, std::time::UNIX_EPOCH);
    }
    table
}

/// The call must be refused for each argument and change nothing, and other locks must still work.
#[track_caller]
fn all_refused<A, T>(store: &Store, word: &str, arguments: impl IntoIterator<Item = A>, call: impl Fn(A) -> Result<T>) {
    let before = grants(store);
    for argument in arguments {
        assert_refused(call(argument), word);
        assert_eq!(grants(store), before);
    }
    drop(store.lock("another name").unwrap());
    let acquired = store.lock_stats().acquired();
    drop(store.lock_with("another name", LockOptions::shared()).unwrap());
    assert_eq!(store.lock_stats().acquired(), acquired + 1);
}

#[test]
fn every_call_refuses_invalid_names() {
    let store = Store::in_memory().unwrap();
    let bad = [String::new(), "n".repeat(256), "ü".repeat(128), "a\nb".into(), "\0".into(), "\u{7f}".into()];
    let token = store.lock("n").unwrap().token();
    let refused = |call: &dyn Fn(&str) -> Result<()>| all_refused(&store, "name", &bad, |name| call(name));
    refused(&|name| store.lock(name).map(drop));
    refused(&|name| store.try_lock(name).map(drop));
    refused(&|name| store.lock_with(name, LockOptions::semaphore(2)).map(drop));
    refused(&|name| store.transact_with_lock(name, LockOptions::exclusive(), TxnOptions::default(), |_| Ok(())));
    refused(&|name| store.lock_holders(name).map(drop));
    refused(&|name| store.attach_lock(name, token).map(drop));
    refused(&|name| store.force_unlock(name, token).map(drop));
    refused(&|name| store.get_lock(name, HOUR).map(drop));
    refused(&|name| store.release_lock(name, token).map(drop));
    refused(&|name| store.is_free_lock(name).map(drop));
}

#[test]
fn the_longest_and_strangest_names_are_valid() {
    let memory = SimStorage::new();
    let names = ["n".into(), "n".repeat(255), "ü".repeat(127), " ".into(), "lock/../\"'".into(), "\u{202e}".into()];
    let store = Store::builder().open_in_memory(&memory).unwrap();
    let tokens = names.each_ref().map(|name: &String| store.get_lock(name, HOUR).unwrap().expect("the lock is free"));
    store.close().unwrap();
    let store = Store::builder().open_in_memory(&memory).unwrap();
    for (name, token) in names.iter().zip(tokens) {
        assert_eq!(store.lock_holders(name).unwrap()[0].token, Some(token), "{name:?}");
        assert!(store.release_lock(name, token).unwrap());
    }
}

#[test]
fn a_reason_of_255_bytes_is_shown_and_a_longer_one_refused() {
    let store = Store::in_memory().unwrap();
    let reason = "w".repeat(MAX_LOCK_REASON_BYTES);
    let guard = store.lock_with("n", LockOptions::exclusive().reason(&*reason)).unwrap();
    assert_eq!((MAX_LOCK_REASON_BYTES, guard.entry().reason), (255, Some(reason)));
    let long = ["w".repeat(256), "ü".repeat(128)];
    all_refused(&store, "256", &long, |reason| store.lock_with("other", LockOptions::shared().reason(reason)));
}

#[test]
fn leases_of_100_ms_to_366_days_are_valid_and_no_others() {
    let store = Store::in_memory().unwrap();
    let ms = Duration::from_millis;
    let (shortest, longest) = (ms(100), 366 * DAY);
    let bad = [Duration::ZERO, ms(99), ms(100) - Duration::from_nanos(1), longest + ms(1), 367 * DAY, Duration::MAX];
    let leased = |lease| LockOptions::exclusive().lease(lease);
    all_refused(&store, "lease", bad, |lease| store.lock_with("n", leased(lease)));
    all_refused(&store, "lease", bad, |lease| store.get_lock("n", lease));
    for lease in [shortest, longest] {
        let guard = store.lock_with("n", leased(lease).auto_renew(false)).unwrap();
        assert!(guard.entry().lease_remaining.unwrap() <= lease);
        guard.release().unwrap();
    }
    let guard = store.lock_with("n", leased(HOUR)).unwrap();
    all_refused(&store, "lease", bad, |lease| guard.renew(lease));
    let left = guard.entry().lease_remaining.unwrap();
    assert!((HOUR / 2..=HOUR).contains(&left), "{left:?}");
    guard.renew(longest).unwrap();
    let bare = store.lock("bare").unwrap();
    all_refused(&store, "without a lease", [HOUR], |lease| bare.renew(lease));
    assert!(bare.is_held());
}

#[test]
fn incompatible_options_are_refused() {
    let store = Store::in_memory().unwrap();
    let lock = |options| store.lock_with("n", options);
    all_refused(&store, "semaphore", [LockOptions::semaphore(0)], lock);
    all_refused(
        &store,
        "lease",
        [LockOptions::exclusive().auto_renew(false), LockOptions::semaphore(2).auto_renew(false)],
        lock,
    );
    let leased = LockOptions::semaphore(2).lease(HOUR);
    all_refused(&store, "semaphore cannot be leased", [leased.clone(), leased.auto_renew(false)], lock);
    let leased = [LockOptions::exclusive().lease(HOUR), LockOptions::shared().lease(HOUR).auto_renew(false)];
    let calls = std::cell::Cell::new(0);
    let transact = |options| -> Result<()> {
        store.transact_with_lock("n", options, TxnOptions::default(), |_| {
            calls.set(calls.get() + 1);
            Ok(())
        })
    };
    all_refused(&store, "does not support leases", leased, transact);
    assert_eq!(calls.get(), 0);
}

#[test]
fn requests_of_an_incompatible_kind_are_refused() {
    let store = Store::in_memory().unwrap();
    let lock = |options: LockOptions| store.lock_with("n", options.wait(LockWaitPolicy::NoWait));
    let permit = lock(LockOptions::semaphore(3)).unwrap();
    all_refused(&store, "semaphore of 3", [LockOptions::semaphore(2), LockOptions::semaphore(u32::MAX)], lock);
    all_refused(&store, "semaphore of 3", [LockOptions::shared(), LockOptions::shared().lease(HOUR)], lock);
    let more = [lock(LockOptions::semaphore(3)).unwrap(), lock(LockOptions::semaphore(3)).unwrap()];
    drop((permit, more));
    let shared = lock(LockOptions::shared()).unwrap();
    all_refused(&store, "shared", [LockOptions::semaphore(1), LockOptions::semaphore(3)], lock);
    drop(shared);
    // A free name does not keep the mode of an earlier grant, so either mode is granted.
    drop(lock(LockOptions::semaphore(1)).unwrap());
    drop(lock(LockOptions::shared()).unwrap());
}

#[test]
fn a_semaphore_cannot_be_converted() {
    let store = Store::in_memory().unwrap();
    let guard = std::cell::RefCell::new(store.lock_with("n", LockOptions::semaphore(2)).unwrap());
    let token = guard.borrow().token();
    all_refused(&store, "semaphore", [LockWaitPolicy::NoWait, LockWaitPolicy::Forever], |wait| {
        guard.borrow_mut().upgrade(wait)
    });
    all_refused(&store, "semaphore", [()], |()| guard.borrow_mut().downgrade());
    let guard = guard.into_inner();
    assert_eq!((guard.is_held(), guard.token(), guard.entry().mode), (true, token, LockMode::Semaphore(2)));
}

fn put(txn: &mut Txn, world: &World, fence: &Fence, key: &str) -> Result<()> {
    txn.fence(fence)?;
    txn.put(&world.rows, key, "v")
}

#[test]
fn repeated_and_several_fences_each_count() {
    let world = World::open();
    let [one, other] = ["n", "m"].map(|name| world.store.lock(name).unwrap());
    let fences = [one.fence(), one.fence(), other.fence(), one.fence()];
    let fenced = |key: &str| {
        world.store.transact(|txn| {
            fences.iter().try_for_each(|fence| txn.fence(fence))?;
            txn.put(&world.rows, key, "v")
        })
    };
    fenced("held").unwrap();
    let mut txn = world.store.begin().unwrap();
    fences.iter().for_each(|fence| txn.fence(fence).unwrap());
    txn.put(&world.rows, "lost", "v").unwrap();
    let token = one.token();
    drop(one);
    assert_lost(txn.commit(), token, LockLostReason::Released);
    assert_lost(fenced("lost"), token, LockLostReason::Released);
    assert_eq!((world.get("held").as_deref(), world.get("lost")), (Some("v"), None));
    drop(other);
    // Both locks are free: nothing is left of the transactions that had several fences of a grant.
    drop(["n", "m"].map(|name| world.store.try_lock(name).unwrap().expect("the lock is free")));
}

#[test]
fn closure_panic_releases_the_lock_and_row_locks() {
    let world = World::open();
    for at in 1..=3 {
        let mut attempts = 0;
        let panics = std::panic::AssertUnwindSafe(|| {
            world.store.transact_with_lock("n", LockOptions::exclusive(), TxnOptions::default(), |txn| -> Result<()> {
                attempts += 1;
                txn.get_for_update(&world.rows, "k")?;
                txn.put(&world.rows, "k", "v")?;
                assert!(attempts < at, "on purpose");
                world.put("k", "another writer's").map(drop)
            })
        });
        let panic = std::panic::catch_unwind(panics).unwrap_err();
        assert_eq!(*panic.downcast::<&str>().unwrap(), "on purpose");
        assert_eq!(attempts, at);
        assert_eq!((world.store.lock_table().unwrap().entries.len(), world.row_locks()), (0, 0));
        assert_ne!(world.get("k").as_deref(), Some("v"));
        let guard = world.store.try_lock("n").unwrap().expect("the lock is free");
        world.store.transact(|txn| put(txn, &world, &guard.fence(), "other")).unwrap();
    }
}

#[test]
fn a_failed_closure_releases_the_lock() {
    let world = World::open();
    let failed = world.store.transact_with_lock("n", LockOptions::exclusive(), TxnOptions::default(), |txn| {
        txn.put(&world.rows, "k", "v")?;
        Err::<(), _>(Error::from(ErrorKind::InvalidArgument("the closure's own".into())))
    });
    assert!(failed.unwrap_err().to_string().contains("the closure's own"));
    assert_eq!((world.get("k"), world.row_locks()), (None, 0));
    drop(world.store.try_lock("n").unwrap().expect("the lock is free"));
}

#[test]
fn a_wrong_token_ends_no_grant() {
    let world = World::open();
    let store = &world.store;
    let leased = store.lock_with("leased", LockOptions::exclusive().lease(HOUR)).unwrap();
    let [one, other] = [(); 2].map(|()| store.lock_with("shared", LockOptions::shared()).unwrap());
    let before = grants(store);
    let tokens = [leased.token(), one.token(), other.token()];
    let near = tokens.iter().flat_map(|token| [token.previous(), token.next()]).filter(|near| !tokens.contains(near));
    for wrong in near.chain([Timestamp::ZERO, Timestamp::from_u64(u64::MAX)]) {
        for name in ["leased", "shared", "unused"] {
            assert!(!store.release_lock(name, wrong).unwrap(), "{name} {wrong}");
            assert!(!store.force_unlock(name, wrong).unwrap(), "{name} {wrong}");
            assert_lost_name(store.attach_lock(name, wrong), name, wrong);
        }
        assert_eq!(grants(store), before);
    }
    // The token of another name's grant does not release the lease.
    assert!(!store.release_lock("leased", one.token()).unwrap());
    assert!(store.force_unlock("shared", one.token()).unwrap());
    assert_eq!((one.is_held(), other.is_held(), leased.is_held()), (false, true, true));
    assert!(!store.force_unlock("shared", one.token()).unwrap());
}

#[track_caller]
fn assert_lost_name(answer: Result<LockGuard>, name: &str, token: Timestamp) {
    let error = answer.expect_err("the token is not of a lease");
    let ErrorKind::LockLost(lost) = error.kind() else { panic!("{error}") };
    assert_eq!((&lost.target, lost.token, lost.reason), (&name.into(), token, LockLostReason::UnknownToken));
}

#[test]
fn a_lock_with_a_guard_cannot_be_attached() {
    let store = Store::in_memory().unwrap();
    for options in [LockOptions::exclusive(), LockOptions::shared().lease(HOUR)] {
        let guard = store.lock_with("n", options).unwrap();
        all_refused(&store, "held by a guard", [guard.token()], |token| store.attach_lock("n", token));
        assert!(guard.is_held());
    }
}

#[test]
fn a_guard_without_a_lease_cannot_be_detached() {
    let store = Store::in_memory().unwrap();
    let guard = store.lock("n").unwrap();
    let token = guard.token();
    let guard = guard.detach().expect_err("the guard has no lease");
    assert_eq!((guard.token(), guard.is_held()), (token, true));
    drop(guard);
    assert!(store.is_free_lock("n").unwrap());
}

#[test]
fn the_longest_timeout_waits() {
    let store = Store::in_memory().unwrap();
    let held = store.lock("n").unwrap();
    std::thread::scope(|scope| {
        let options = LockOptions::exclusive().wait(LockWaitPolicy::Timeout(Duration::MAX));
        let waits = scope.spawn(|| store.lock_with("n", options).map(drop));
        crate::hooked_store::eventually("the request waits", || store.lock_table().unwrap().waiting == 1);
        assert!(!held.wait_lost(Duration::from_millis(1)));
        drop(held);
        waits.join().unwrap().unwrap();
    });
}

#[test]
fn cancelled_request_takes_a_free_lock_but_never_waits() {
    let store = Store::in_memory().unwrap();
    let cancel = CancelToken::default();
    cancel.cancel();
    cancel.cancel();
    let options = || LockOptions::exclusive().wait(LockWaitPolicy::Forever).cancel_token(&cancel);
    let guard = store.lock_with("n", options()).unwrap();
    let error = store.lock_with("n", options()).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Cancelled(_)), "{error}");
    assert!(error.to_string().contains("cancelled"), "{error}");
    assert_eq!(store.lock_table().unwrap().entries.len(), 1);
    drop(guard);
}

#[test]
fn guards_fences_and_cancel_tokens_are_send_and_sync() {
    fn is_send_and_sync<T: Send + Sync + 'static>() {}
    is_send_and_sync::<LockGuard>();
    is_send_and_sync::<Fence>();
    is_send_and_sync::<CancelToken>();
    is_send_and_sync::<LockOptions>();
    #[cfg(feature = "tokio")]
    is_send_and_sync::<percolite::AsyncLockGuard>();
}
