//! Modes: which requests are granted, and in which order. `src/lock_manager` also tests every
//! history of up to six requests, concurrency, and waiters that leave.

use std::time::Duration;

use percolite::{
    CancelToken, ErrorKind, LockGuard, LockLostReason, LockMode, LockOptions, LockState, LockWaitPolicy, Store,
};

use crate::support::{Asking, NO_REQUESTS, asks, entries, held, is_invalid, queue, until, within_limit};
use LockMode::{Exclusive, Semaphore, Shared};

const NAME: &str = "name";

fn options(mode: LockMode) -> LockOptions {
    match mode {
        Shared => LockOptions::shared(),
        Semaphore(most) => LockOptions::semaphore(most),
        _ => LockOptions::exclusive(),
    }
}

fn ask(store: &Store, mode: LockMode) -> Asking {
    asks(store, NAME, options(mode))
}

fn take(store: &Store, mode: LockMode) -> LockGuard {
    store.lock_with(NAME, options(mode).wait(LockWaitPolicy::NoWait)).unwrap()
}

fn is_held_by_others(store: &Store, mode: LockMode) -> bool {
    let refused = store.lock_with(NAME, options(mode).wait(LockWaitPolicy::NoWait)).err();
    refused.is_some_and(|error| matches!(error.kind(), ErrorKind::LockNotAvailable(_)))
}

fn wakes(store: &Store) -> u64 {
    store.lock_stats().wakeups
}

fn lost(error: &percolite::Error) -> Option<LockLostReason> {
    if let ErrorKind::LockLost(lost) = error.kind() { Some(lost.reason) } else { None }
}

/// Queues the requests behind an exclusive holder and returns the batches in which they are
/// granted. A batch lists requests by their positions in the queue. The request at position
/// `leaves` is cancelled while it waits.
fn served(queued: &[LockMode], leaves: Option<usize>) -> Vec<Vec<usize>> {
    let store = Store::in_memory().unwrap();
    let first = take(&store, Exclusive);
    let cancel = CancelToken::default();
    let of_place = |(place, mode): (usize, &LockMode)| {
        let options = if leaves == Some(place) { options(*mode).cancel_token(&cancel) } else { options(*mode) };
        asks(&store, NAME, options)
    };
    let asking: Vec<Asking> = queued.iter().enumerate().map(of_place).collect();
    let ids: Vec<u64> = asking.iter().map(Asking::id).collect();
    assert_eq!(queue(&store, NAME), ids);
    if let Some(place) = leaves {
        cancel.cancel();
        assert!(matches!(asking[place].refused().kind(), ErrorKind::Cancelled(_)));
        assert_eq!(wakes(&store), 0, "the cancellation grants no request");
    }
    let mut guards = vec![first];
    let mut batches = Vec::new();
    loop {
        drop(guards);
        let granted: Vec<usize> =
            held(&store, NAME).iter().map(|id| ids.iter().position(|other| other == id).unwrap()).collect();
        if granted.is_empty() {
            assert_eq!(store.lock_table().unwrap().entries, []);
            return batches;
        }
        guards = granted.iter().map(|place| asking[*place].granted()).collect();
        batches.push(granted);
    }
}

#[test]
fn six_shared_requests_are_granted_without_a_wake() {
    let store = Store::in_memory().unwrap();
    let guards: Vec<LockGuard> = (0..6).map(|_| take(&store, Shared)).collect();
    assert!(guards.iter().all(LockGuard::is_held));
    assert_eq!((held(&store, NAME).len(), queue(&store, NAME).len()), (6, 0));
    assert!(is_held_by_others(&store, Exclusive));
    let stats = store.lock_stats();
    assert_eq!((stats.shared.acquired, stats.shared.waits, stats.wakeups), (6, 0, 0));
    drop(guards);
    assert_eq!((held(&store, NAME).len(), wakes(&store)), (0, 0));
    drop(take(&store, Exclusive));
}

#[test]
fn each_end_of_an_exclusive_grant_wakes_only_the_next() {
    let store = Store::in_memory().unwrap();
    let mut guard = take(&store, Exclusive);
    let asking: Vec<Asking> = (0..5).map(|_| ask(&store, Exclusive)).collect();
    let ids: Vec<u64> = asking.iter().map(Asking::id).collect();
    for (place, next) in asking.iter().enumerate() {
        let before = guard.token();
        assert_eq!(wakes(&store), place as u64);
        drop(guard);
        assert_eq!(wakes(&store), place as u64 + 1);
        assert_eq!((held(&store, NAME), queue(&store, NAME)), (vec![ids[place]], ids[place + 1..].to_vec()));
        guard = next.granted();
        assert!(guard.token() > before);
        assert!(asking[place + 1..].iter().all(|other| other.answer().is_none()));
    }
    drop(guard);
    assert_eq!(wakes(&store), 5);
}

#[test]
fn shared_request_queues_behind_a_waiting_exclusive() {
    let store = Store::in_memory().unwrap();
    let reader = take(&store, Shared);
    let writer = ask(&store, Exclusive);
    let second = ask(&store, Shared);
    assert_eq!(queue(&store, NAME), [writer.id(), second.id()]);
    assert!(is_held_by_others(&store, Shared));
    drop(reader);
    assert_eq!((held(&store, NAME), queue(&store, NAME)), (vec![writer.id()], vec![second.id()]));
    drop(writer.granted());
    assert_eq!(second.granted().entry().mode, Shared);
}

#[test]
fn shared_waiters_are_granted_as_one_batch() {
    let batches = served(&[Shared, Exclusive, Shared, Exclusive, Shared], None);
    assert_eq!(batches, [vec![0, 2, 4], vec![1], vec![3]]);
}

#[test]
fn the_first_waiter_leaves_without_a_trace() {
    let batches = served(&[Exclusive, Shared, Exclusive, Shared], Some(0));
    assert_eq!(batches, [vec![1, 3], vec![2]]);
    // Requests that only the cancelled one blocked are granted immediately.
    let store = Store::in_memory().unwrap();
    let reader = take(&store, Shared);
    let cancel = CancelToken::default();
    let first = asks(&store, NAME, LockOptions::exclusive().cancel_token(&cancel));
    let (second, third) = (ask(&store, Shared), ask(&store, Exclusive));
    cancel.cancel();
    assert!(matches!(first.refused().kind(), ErrorKind::Cancelled(_)));
    assert_eq!(held(&store, NAME), [reader.entry().id, second.id()]);
    assert_eq!((queue(&store, NAME), wakes(&store)), (vec![third.id()], 1));
}

#[test]
fn a_waiter_in_the_middle_leaves_without_a_trace() {
    let batches = served(&[Shared, Exclusive, Shared, Exclusive, Shared], Some(2));
    assert_eq!(batches, [vec![0, 4], vec![1], vec![3]]);
    let batches = served(&[Semaphore(2), Semaphore(2), Exclusive, Semaphore(2)], Some(2));
    assert_eq!(batches, [vec![0, 1], vec![3]]);
}

#[test]
fn the_last_waiter_leaves_without_a_trace() {
    let batches = served(&[Exclusive, Shared, Exclusive], Some(2));
    assert_eq!(batches, [vec![0], vec![1]]);
    // If the only waiting request leaves, the name is free once the holder releases it.
    let batches = served(&[Exclusive], Some(0));
    assert_eq!(batches, Vec::<Vec<usize>>::new());
}

#[test]
fn a_fourth_request_of_a_semaphore_of_three_waits() {
    let store = Store::in_memory().unwrap();
    let mut permits: Vec<LockGuard> = (0..3).map(|_| take(&store, Semaphore(3))).collect();
    assert!(is_held_by_others(&store, Semaphore(3)));
    let fourth = ask(&store, Semaphore(3));
    assert_eq!((held(&store, NAME).len(), queue(&store, NAME)), (3, vec![fourth.id()]));
    drop(permits.remove(1));
    assert_eq!((held(&store, NAME).len(), wakes(&store)), (3, 1));
    let fourth = fourth.granted();
    assert!(is_held_by_others(&store, Semaphore(3)));
    drop(fourth);
    permits.push(take(&store, Semaphore(3)));
    assert_eq!(held(&store, NAME).len(), 3);
}

#[test]
fn an_exclusive_request_waits_for_all_permits() {
    let store = Store::in_memory().unwrap();
    let permits: Vec<LockGuard> = (0..3).map(|_| take(&store, Semaphore(3))).collect();
    let alone = ask(&store, Exclusive);
    for (released, permit) in permits.into_iter().enumerate() {
        assert_eq!((held(&store, NAME).len(), queue(&store, NAME)), (3 - released, vec![alone.id()]));
        drop(permit);
    }
    assert_eq!(held(&store, NAME), [alone.id()]);
    let alone = alone.granted();
    assert!(is_held_by_others(&store, Semaphore(3)));
    drop(alone);
}

#[test]
fn other_limits_and_shared_do_not_mix_with_a_semaphore() {
    let store = Store::in_memory().unwrap();
    let refused = |mode| is_invalid(&store.lock_with(NAME, options(mode)).unwrap_err());
    let permit = take(&store, Semaphore(3));
    assert!(refused(Semaphore(4)) && refused(Semaphore(2)) && refused(Shared));
    assert_eq!((held(&store, NAME), queue(&store, NAME)), (vec![permit.entry().id], vec![]));
    drop(permit);

    // A waiting semaphore request fixes the limit, too, and prevents a downgrade of the exclusive
    // holder.
    let mut holder = take(&store, Exclusive);
    let waiting = ask(&store, Semaphore(3));
    assert!(refused(Semaphore(4)) && refused(Shared));
    let token = holder.token();
    assert!(is_invalid(&holder.downgrade().unwrap_err()));
    assert!(holder.is_held() && holder.token() == token && holder.entry().mode == Exclusive);
    drop(holder);
    drop(waiting.granted());

    let reader = take(&store, Shared);
    assert!(refused(Semaphore(3)));
    drop(reader);
    drop(take(&store, Semaphore(4)));
}

#[test]
fn semaphore_requests_are_fifo() {
    let store = Store::in_memory().unwrap();
    let mut permits: Vec<LockGuard> = (0..3).map(|_| take(&store, Semaphore(3))).collect();
    let asking: Vec<Asking> =
        [Semaphore(3), Exclusive, Semaphore(3), Semaphore(3)].map(|mode| ask(&store, mode)).into();
    let ids: Vec<u64> = asking.iter().map(Asking::id).collect();
    drop(permits.pop());
    assert_eq!(queue(&store, NAME), ids[1..]);
    drop((permits.pop(), permits.pop()));
    // Two permits are free, but later requests do not pass the exclusive one.
    assert_eq!((held(&store, NAME), queue(&store, NAME)), (vec![ids[0]], ids[1..].to_vec()));
    drop(asking[0].granted());
    assert_eq!((held(&store, NAME), queue(&store, NAME)), (vec![ids[1]], ids[2..].to_vec()));
    drop(asking[1].granted());
    assert_eq!(held(&store, NAME), ids[2..]);
    assert_eq!(wakes(&store), 4);
}

#[test]
fn a_sole_shared_lock_becomes_exclusive_with_a_new_token() {
    let store = Store::in_memory().unwrap();
    let mut guard = take(&store, Shared);
    let (token, fence, id) = (guard.token(), guard.fence(), guard.entry().id);
    guard.upgrade(LockWaitPolicy::NoWait).unwrap();
    assert!(guard.token() > token);
    let info = guard.entry();
    assert_eq!((info.mode, info.state, info.id, info.token), (Exclusive, LockState::Held, id, Some(guard.token())));
    assert!(is_held_by_others(&store, Shared));
    let mut txn = store.begin().unwrap();
    assert_eq!(lost(&txn.fence(&fence).unwrap_err()), Some(LockLostReason::Converted));
    txn.fence(&guard.fence()).unwrap();
    let stats = store.lock_stats();
    assert_eq!((stats.shared.acquired, stats.exclusive.acquired, stats.exclusive.waits), (1, 1, 0));
    // A second upgrade changes nothing, and is not counted.
    let token = guard.token();
    guard.upgrade(LockWaitPolicy::NoWait).unwrap();
    assert_eq!((guard.token(), store.lock_stats().exclusive.acquired), (token, 1));
    drop(guard);
    assert_eq!(held(&store, NAME), NO_REQUESTS);
}

#[test]
fn second_upgrader_gets_deadlock_and_stays_shared() {
    let store = Store::in_memory().unwrap();
    let state = store.keyspace("state").unwrap();
    let (mut first, mut second) = (take(&store, Shared), take(&store, Shared));
    let (token, fence, id) = (second.token(), second.fence(), first.entry().id);
    let converting = std::thread::spawn(move || first.upgrade(LockWaitPolicy::Forever).map(|()| first));
    until("the conversion", || entries(&store, NAME)[0].state == LockState::Converting);
    let second = within_limit(move || {
        let error = second.upgrade(LockWaitPolicy::Forever).unwrap_err();
        let ErrorKind::Deadlock(held) = error.kind() else { unreachable!("{error}") };
        assert_eq!((held.mode, held.holders.len()), (Exclusive, 2));
        second
    });
    assert!(second.is_held() && second.token() == token);
    let mut txn = store.begin().unwrap();
    txn.fence(&fence).unwrap();
    txn.put(&state, "by", "the second").unwrap();
    txn.commit().unwrap();
    assert!(!converting.is_finished());
    let stats = store.lock_stats();
    assert_eq!((stats.deadlocks, stats.exclusive.waits, stats.exclusive.acquired, stats.wakeups), (1, 1, 0, 0));

    // A conversion is granted before the requests in the queue.
    let queued = ask(&store, Exclusive);
    drop(second);
    let first = within_limit(move || converting.join().unwrap()).unwrap();
    assert_eq!((held(&store, NAME), queue(&store, NAME)), (vec![id], vec![queued.id()]));
    assert!(first.token() > token && first.entry().mode == Exclusive);
    let stats = store.lock_stats();
    assert_eq!((stats.exclusive.acquired, stats.exclusive.wait_time.count(), stats.wakeups), (1, 1, 1));
}

#[test]
fn a_downgrade_grants_the_shared_requests_at_the_front() {
    let store = Store::in_memory().unwrap();
    let mut guard = take(&store, Exclusive);
    let asking: Vec<Asking> = [Shared, Shared, Exclusive].map(|mode| ask(&store, mode)).into();
    let (token, id, ids) = (guard.token(), guard.entry().id, asking.iter().map(Asking::id).collect::<Vec<_>>());
    guard.downgrade().unwrap();
    assert!(guard.token() > token && guard.entry().mode == Shared);
    assert_eq!((held(&store, NAME), queue(&store, NAME)), (vec![id, ids[0], ids[1]], vec![ids[2]]));
    assert_eq!(wakes(&store), 2);
    let stats = store.lock_stats();
    assert_eq!((stats.exclusive.acquired, stats.shared.waits), (1, 2));
    let shared = [guard, asking[0].granted(), asking[1].granted()];
    assert_eq!(store.lock_stats().shared.acquired, 3);
    for guard in shared {
        assert!(asking[2].answer().is_none());
        drop(guard);
    }
    assert!(asking[2].granted().token() > token);
}

#[test]
fn upgrade_timeout_keeps_the_shared_grant() {
    let store = Store::in_memory().unwrap();
    let state = store.keyspace("state").unwrap();
    let (mut guard, other) = (take(&store, Shared), take(&store, Shared));
    let (token, fence, id) = (guard.token(), guard.fence(), guard.entry().id);
    let mut early = store.begin().unwrap();
    early.fence(&fence).unwrap();
    early.put(&state, "early", "1").unwrap();
    let upgrading = std::thread::spawn(move || {
        let error = guard.upgrade(LockWaitPolicy::Timeout(Duration::from_millis(300))).unwrap_err();
        (guard, error)
    });
    until("the conversion", || entries(&store, NAME)[0].state == LockState::Converting);
    // The waiting upgrade blocks shared requests.
    let queued = ask(&store, Shared);
    let (guard, error) = within_limit(move || upgrading.join().unwrap());
    let ErrorKind::LockNotAvailable(error) = error.kind() else { unreachable!("{error}") };
    assert_eq!((error.mode, error.queue_position), (Exclusive, 0));
    assert!(error.holders.iter().any(|holder| holder.id == other.entry().id));
    assert!(error.waited >= Duration::from_millis(300));
    assert_eq!(held(&store, NAME), [id, other.entry().id, queued.id()]);
    assert!(guard.is_held() && guard.token() == token && guard.entry().mode == Shared);
    early.commit().unwrap();
    let mut late = store.begin().unwrap();
    late.fence(&fence).unwrap();
    late.put(&state, "late", "1").unwrap();
    late.commit().unwrap();
    let stats = store.lock_stats();
    let exclusive = (stats.exclusive.acquired, stats.exclusive.waits, stats.exclusive.timeouts);
    assert_eq!((exclusive, stats.wakeups), ((0, 1, 1), 1));
}

#[test]
fn downgrade_invalidates_older_fences() {
    let store = Store::in_memory().unwrap();
    let state = store.keyspace("state").unwrap();
    let mut guard = take(&store, Exclusive);
    let fence = guard.fence();
    let mut txn = store.begin().unwrap();
    txn.fence(&fence).unwrap();
    txn.put(&state, "row", "written").unwrap();
    guard.downgrade().unwrap();
    let second = take(&store, Shared);
    assert_eq!(store.snapshot().unwrap().get(&state, "row").unwrap(), None);
    assert_eq!(lost(&txn.commit().unwrap_err()), Some(LockLostReason::Converted));
    assert_eq!(store.snapshot().unwrap().get(&state, "row").unwrap(), None);
    assert!(second.is_held() && guard.is_held());

    // The new grant has its own fence.
    let mut txn = store.begin().unwrap();
    assert_eq!(lost(&txn.fence(&fence).unwrap_err()), Some(LockLostReason::Converted));
    txn.fence(&guard.fence()).unwrap();
    txn.put(&state, "row", "shared").unwrap();
    txn.commit().unwrap();
}

#[test]
fn a_waiting_upgrade_is_lost_with_its_shared_lock() {
    let store = Store::in_memory().unwrap();
    let (mut guard, other) = (take(&store, Shared), take(&store, Shared));
    let token = guard.token();
    let upgrading = std::thread::spawn(move || guard.upgrade(LockWaitPolicy::Forever).unwrap_err());
    until("the conversion", || entries(&store, NAME)[0].state == LockState::Converting);
    assert!(store.force_unlock(NAME, token).unwrap());
    let error = within_limit(move || upgrading.join().unwrap());
    let ErrorKind::LockLost(error) = error.kind() else { unreachable!("{error}") };
    assert_eq!((error.reason, error.token), (LockLostReason::Forced, token));
    assert_eq!(held(&store, NAME), [other.entry().id]);

    // A waiting upgrade is also lost when the lease of its shared lock expires. It ends that lease
    // itself: there is no other request that could.
    let once = LockOptions::shared().lease(Duration::from_millis(200)).auto_renew(false);
    let mut leased = store.lock_with(NAME, once).unwrap();
    let error = within_limit(move || leased.upgrade(LockWaitPolicy::Forever).unwrap_err());
    assert_eq!(lost(&error), Some(LockLostReason::Expired));
    assert_eq!(held(&store, NAME), [other.entry().id]);
}
