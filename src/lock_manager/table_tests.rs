//! Cycles in the wait-for graph of named locks.

use super::super::grant::Requester;
use super::super::metrics::LockMetrics;
use super::super::request::RequestHandle;
use super::*;
use crate::env::SystemEnv;
use crate::lock_manager::LockManager;
use crate::observe::Metrics;
use crate::waiter::Waiter;

const CLOCK: LockTableContext<'static> =
    LockTableContext { now: Duration::ZERO, opened_at: (Duration::ZERO, 0), pid: 1, application_name: None };

fn manager() -> Arc<LockManager> {
    Arc::new(LockManager::new(7, LockMetrics::new(Arc::new(Metrics::new(0)))))
}

/// A request of the task `by`.
fn ask(manager: &Arc<LockManager>, by: &str, name: &str) -> RequestHandle {
    let owner = || Requester {
        origin: RequestOrigin::Here { thread: std::thread::current(), task: Some(by.into()) },
        reason: None,
        requested_at: Duration::ZERO,
    };
    let waiter = || Arc::new(Waiter::new(&SystemEnv::default()));
    let grant = manager.request(name, LockMode::Exclusive, owner, None, (Duration::ZERO, Some(&waiter))).unwrap();
    RequestHandle::new(manager, grant, false)
}

fn of_name(manager: &LockManager, name: &str) -> Vec<EntryWithWaiter> {
    manager.shard(name).get(name).map(|entry| seen(&entry.queue, &CLOCK)).unwrap_or_default()
}

#[test]
fn a_cycle_of_three_is_found_once_until_a_wait_ends() {
    let manager = manager();
    let _held: Vec<_> = ["a", "b", "c"].map(|name| ask(&manager, name, name)).into();
    let outside = ask(&manager, "d", "a");
    let waits: Vec<_> = [("a", "b"), ("b", "c"), ("c", "a")].map(|(by, name)| ask(&manager, by, name)).into();
    let mut ids: Vec<u64> = waits.iter().chain([&outside]).map(|wait| wait.grant().id).collect();
    ids.sort_unstable();
    // Each of the tasks `a`, `b` and `c` holds the lock of its name, and waits for the next one's.
    // Task `c` waits behind `d` in the queue of lock `a`, so `d` is in the cycle.
    let cycles = manager.table(&CLOCK).wait_cycles;
    assert_eq!(cycles.len(), 1, "{cycles:?}");
    let mut cycle = cycles[0].clone();
    cycle.sort_unstable();
    assert_eq!(cycle, ids);
    drop(outside);
    assert_eq!(manager.table(&CLOCK).wait_cycles.iter().map(Vec::len).collect::<Vec<_>>(), [3]);
    drop(waits);
    assert_eq!(manager.table(&CLOCK).wait_cycles, Vec::<Vec<u64>>::new());
}

#[test]
fn a_cycle_across_two_snapshots_is_not_reported() {
    let manager = manager();
    let (_a, _b) = (ask(&manager, "one", "a"), ask(&manager, "two", "b"));
    let waits_for_a = ask(&manager, "two", "a");
    let mut seen = of_name(&manager, "a");
    drop(waits_for_a);
    let _waits_for_b = ask(&manager, "one", "b");
    seen.extend(of_name(&manager, "b"));
    assert_eq!(find_cycles(&seen).len(), 1, "the two snapshots together have a cycle");
    let mut snapshot_taken = false;
    let confirmed = confirmed_cycles(&seen, || {
        snapshot_taken = true;
        manager.snapshot(&CLOCK)
    });
    assert!(snapshot_taken && confirmed.is_empty(), "{confirmed:?}");

    // Task `two` requests `a` again, so there is a cycle now. The cycle in `seen` has the dropped
    // request of `two` instead of this one, so it is not confirmed.
    let _waits_again = ask(&manager, "two", "a");
    assert!(confirmed_cycles(&seen, || manager.snapshot(&CLOCK)).is_empty());
    assert_eq!(confirmed_cycles(&manager.snapshot(&CLOCK), || manager.snapshot(&CLOCK)).len(), 1);
}

#[test]
fn threads_with_the_same_name_are_distinct_in_cycles() {
    let manager = manager();
    let ask = |name: &'static str| {
        let manager = Arc::clone(&manager);
        let ask = move || {
            let owner = || Requester {
                origin: RequestOrigin::Here { thread: std::thread::current(), task: None },
                reason: None,
                requested_at: Duration::ZERO,
            };
            let waiter = || Arc::new(Waiter::new(&SystemEnv::default()));
            let grant =
                manager.request(name, LockMode::Exclusive, owner, None, (Duration::ZERO, Some(&waiter))).unwrap();
            RequestHandle::new(&manager, grant, false)
        };
        std::thread::Builder::new().name("worker".into()).spawn(ask).unwrap().join().unwrap()
    };
    let (_held, waits) = (ask("a"), ask("a"));
    assert!(!waits.grant().is_granted());
    let table = manager.table(&CLOCK);
    assert_eq!(table.entries[0].holder, table.entries[1].holder);
    assert!(table.wait_cycles.is_empty(), "{:?}", table.wait_cycles);
}

/// The first requests of a queue by their modes, and the number of the grant that waits to be
/// converted.
#[test]
fn holders_alone_are_shown_as_in_the_whole_queue() {
    use LockMode::{Exclusive, Semaphore, Shared};
    let queues: [(&[LockMode], Option<u64>); 7] = [
        (&[Exclusive], None),
        (&[Exclusive, Shared, Shared, Exclusive, Shared], None),
        (&[Exclusive, Exclusive, Shared, Shared], None),
        (&[Shared, Shared, Exclusive, Shared], None),
        (&[Shared, Shared, Shared], Some(2)),
        (&[Shared, Shared, Shared, Exclusive, Shared], Some(2)),
        (&[Semaphore(2), Semaphore(2), Semaphore(2), Exclusive], None),
    ];
    for (modes, converting) in queues {
        let mut queue = LockQueue::default();
        let grant = |id: u64, mode| {
            let origin = RequestOrigin::Here { thread: std::thread::current(), task: None };
            let owner = Requester { origin, reason: None, requested_at: Duration::ZERO };
            Arc::new(Grant::new("a".into(), id, mode, owner, None))
        };
        for (id, mode) in (1..).zip(modes) {
            queue.request(id, *mode, grant(id, *mode));
        }
        if let Some(id) = converting {
            queue.upgrade(id, grant(id, Exclusive));
        }
        let mut all = entries(&queue, &CLOCK);
        all.retain(|entry| entry.state != LockState::Waiting);
        assert_eq!(holders(&queue, &CLOCK, usize::MAX, |_| true), all, "{modes:?}");
        assert_eq!(holders(&queue, &CLOCK, 1, |_| true), all[..1], "{modes:?}");
        for entry in &all {
            assert_eq!(
                holders(&queue, &CLOCK, 1, |grant| grant.id == entry.id),
                std::slice::from_ref(entry),
                "{modes:?}"
            );
        }
    }
}
