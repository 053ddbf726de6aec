//! Circles of waits.

use super::super::counters::LockCounters;
use super::super::grant::Owner;
use super::super::request::Request;
use super::*;
use crate::observe::Counters;
use crate::runtime::System;
use crate::waiter::Waiter;

const CLOCK: Clock<'static> = Clock { now: Duration::ZERO, set: (Duration::ZERO, 0), pid: 1, label: None };

fn heads() -> Arc<Heads> {
    Arc::new(Heads::new(7, LockCounters::new(Arc::new(Counters::new(0)))))
}

/// What the task `by` asks for.
fn ask(heads: &Arc<Heads>, by: &str, name: &str) -> Request {
    let owner = || Owner {
        by: Asker::Here { thread: std::thread::current(), task: Some(by.into()) },
        why: None,
        asked: Duration::ZERO,
    };
    let waiter = || Arc::new(Waiter::new(&System::default()));
    let grant = heads.ask(name, LockMode::Exclusive, owner, None, (Duration::ZERO, Some(&waiter))).unwrap();
    Request::new(heads, grant, false)
}

fn of_name(heads: &Heads, name: &str) -> Vec<Seen> {
    heads.shard(name).get(name).map(|entry| seen(&entry.head, &CLOCK)).unwrap_or_default()
}

#[test]
fn a_circle_of_three_is_found_once_and_is_gone_with_one_of_its_waits() {
    let heads = heads();
    let _held: Vec<_> = ["a", "b", "c"].map(|name| ask(&heads, name, name)).into();
    let outside = ask(&heads, "d", "a");
    let waits: Vec<_> = [("a", "b"), ("b", "c"), ("c", "a")].map(|(by, name)| ask(&heads, by, name)).into();
    let mut ids: Vec<u64> = waits.iter().chain([&outside]).map(|wait| wait.grant().id).collect();
    ids.sort_unstable();
    // c waits behind d in the queue, so d is in the circle.
    let cycles = heads.table(&CLOCK).cycles;
    assert_eq!(cycles.len(), 1, "{cycles:?}");
    let mut cycle = cycles[0].clone();
    cycle.sort_unstable();
    assert_eq!(cycle, ids);
    drop(outside);
    assert_eq!(heads.table(&CLOCK).cycles.iter().map(Vec::len).collect::<Vec<_>>(), [3]);
    drop(waits);
    assert_eq!(heads.table(&CLOCK).cycles, Vec::<Vec<u64>>::new());
}

#[test]
fn a_circle_put_together_from_two_moments_is_not_listed() {
    let heads = heads();
    let (_a, _b) = (ask(&heads, "one", "a"), ask(&heads, "two", "b"));
    let waits_for_a = ask(&heads, "two", "a");
    let mut seen = of_name(&heads, "a");
    drop(waits_for_a);
    let _waits_for_b = ask(&heads, "one", "b");
    seen.extend(of_name(&heads, "b"));
    assert_eq!(cycles(&seen).len(), 1, "the two looks together show one");
    let mut looked_again = false;
    let standing = standing_cycles(&seen, || {
        looked_again = true;
        heads.seen(&CLOCK)
    });
    assert!(looked_again && standing.is_empty(), "{standing:?}");

    // With the second wait asked for once more it is one, of other requests.
    let _waits_again = ask(&heads, "two", "a");
    assert!(standing_cycles(&seen, || heads.seen(&CLOCK)).is_empty());
    assert_eq!(standing_cycles(&heads.seen(&CLOCK), || heads.seen(&CLOCK)).len(), 1);
}

#[test]
fn threads_of_one_name_are_not_one_in_circles() {
    let heads = heads();
    let ask = |name: &'static str| {
        let heads = Arc::clone(&heads);
        let ask = move || {
            let owner = || Owner {
                by: Asker::Here { thread: std::thread::current(), task: None },
                why: None,
                asked: Duration::ZERO,
            };
            let waiter = || Arc::new(Waiter::new(&System::default()));
            let grant = heads.ask(name, LockMode::Exclusive, owner, None, (Duration::ZERO, Some(&waiter))).unwrap();
            Request::new(&heads, grant, false)
        };
        std::thread::Builder::new().name("worker".into()).spawn(ask).unwrap().join().unwrap()
    };
    let (_held, waits) = (ask("a"), ask("a"));
    assert!(!waits.grant().is_granted());
    let table = heads.table(&CLOCK);
    assert_eq!(table.entries[0].holder, table.entries[1].holder);
    assert!(table.cycles.is_empty(), "{:?}", table.cycles);
}
