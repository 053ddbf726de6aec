//! Wall clocks that are wrong or jump, and commits that take longer than the TTL of their locks.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use percolite::Timestamp;
use percolite::internal::local_oracle::{CLOCK_JUMP_MAX_MS, LocalOracle, RESERVATION_MS};
use percolite::internal::protocol::{OwnerLiveness, Prewrite, TxnStatus};
use percolite::row::TxnId;

use crate::driver::{put, ts, txn};
use crate::environment::{Clock, Environment, HOUR_MS, TTL_MS, assert_conflict, some, spawn};
use crate::hooked_engine::{Act, Gate, commits, locks};

pub fn a_clock_set_back_an_hour_breaks_no_order(environment: &Environment) {
    let mut last = Timestamp::ZERO;
    for (round, step) in [0, -HOUR_MS, -HOUR_MS, 3 * HOUR_MS, -HOUR_MS].into_iter().enumerate() {
        environment.clock.step(step);
        let store = environment.open();
        for before in 0..round {
            assert_eq!(store.get(&format!("k{before}")), some("v"), "round {round}");
        }
        let txn = store.begin().unwrap();
        assert!(txn.start_ts() > last && txn.read_ts() >= last, "round {round}: {} {last}", txn.start_ts());
        drop(txn);
        last = store.put(&format!("k{round}"), "v").commit_ts;
        // The clock is also set back while the store is open.
        environment.clock.step(-HOUR_MS);
        let later = store.put("again", "v").commit_ts;
        assert!(later > last);
        last = later;
    }
}

pub fn a_time_to_live_saturates(environment: &Environment) {
    let driver = environment.driver();
    let far = TxnId { start_ts: Timestamp::from_millis(1_700_000_000_000), ..txn(1) };
    driver.prewrite(&Prewrite { ttl_ms: u64::MAX, read_ts: ts(1), ..put(far, "k", "v") }).unwrap();
    let held = driver.lock("k");
    for current_ts in [ts(0), far.start_ts, Timestamp::MAX] {
        let liveness = OwnerLiveness::ByTtl { current_ts, push_above: None };
        assert_eq!(driver.check(far, "k", liveness), Ok(TxnStatus::Pending), "checked at {current_ts}");
    }
    assert_eq!(driver.lock("k"), held);
    // The lock has expired 51 ms after its start, and not at 50 ms. By a clock that is still before
    // the start it has not expired, either.
    let t = TxnId { start_ts: Timestamp::from_millis(1000), ..txn(2) };
    driver.prewrite(&Prewrite { ttl_ms: 50, ..put(t, "j", "v") }).unwrap();
    let at = |millis| OwnerLiveness::ByTtl { current_ts: Timestamp::from_millis(millis), push_above: None };
    assert_eq!([0, 1050].map(|now| driver.check(t, "j", at(now)).unwrap()), [TxnStatus::Pending; 2]);
    assert_eq!(driver.check(t, "j", at(1051)), Ok(TxnStatus::RolledBack));
}

pub fn a_reader_with_a_wrong_clock_aborts_no_writer(environment: &Environment) {
    let writer = environment.open();
    writer.put_all(&["a", "b"], "old");
    let (gate, barrier) = Gate::closed();
    let primary = writer.row("a");
    writer.hooks.on_write(move |groups| {
        if commits(groups, &primary) {
            barrier.pass();
        }
        Act::Pass
    });
    let (store, rows) = (writer.store.clone(), writer.rows.clone());
    let commit = spawn(move || {
        let mut txn = store.begin().unwrap();
        txn.put(&rows, "a", "new").unwrap();
        txn.put(&rows, "b", "new").unwrap();
        txn.commit()
    });
    gate.wait_for_arrival();
    for step in [HOUR_MS, -HOUR_MS] {
        let clock = Arc::new(Clock::default());
        clock.step(step);
        let reader = environment.try_open_by(environment.builder(), Arc::default(), TTL_MS, clock).unwrap();
        assert_eq!([reader.get("a"), reader.get("b")], [some("old"), some("old")]);
        let mut rival = reader.begin().unwrap();
        rival.put(&reader.rows, "b", "rival").unwrap();
        assert_conflict(rival.commit());
    }
    gate.open();
    commit.join().unwrap();
    assert_eq!([writer.get("a"), writer.get("b")], [some("new"), some("new")]);
}

pub fn a_clock_jump_aborts_no_transaction(environment: &Environment) {
    let store = environment.open();
    store.put_all(&["a", "b"], "old");
    for step in [HOUR_MS / 2, -HOUR_MS] {
        let mut txn = store.begin().unwrap();
        txn.put(&store.rows, "a", "new").unwrap();
        txn.put(&store.rows, "b", "new").unwrap();
        // The clock jumps before the commit. If the commit has two phases, it jumps again just
        // before the primary is locked.
        let (clock, primary) = (Arc::clone(&environment.clock), store.row("a"));
        store.hooks.on_write(move |groups| {
            if locks(groups, &primary) {
                clock.step(step);
            }
            Act::Pass
        });
        environment.clock.step(step);
        assert_eq!(store.get("a"), if step > 0 { some("old") } else { some("new") });
        txn.commit().unwrap();
        assert_eq!([store.get("a"), store.get("b")], [some("new"), some("new")]);
        assert_eq!((store.locks_left(), store.stats().locks_rolled_back), (0, 0));
    }
}

pub fn a_slow_commit_keeps_itself_alive(environment: &Environment) {
    let (writer, rival) = (environment.open(), environment.open());
    let keys = ["a", "b", "c", "d", "e", "f"];
    // Locking all rows takes four times the TTL of a lock.
    let (clock, rows, met) =
        (Arc::clone(&environment.clock), keys.map(|key| writer.row(key)), Arc::new(AtomicUsize::new(0)));
    let (store, rival_rows, count) = (rival.store.clone(), rival.rows.clone(), Arc::clone(&met));
    let started = AtomicBool::new(false);
    writer.hooks.on_write(move |groups| {
        let Some(place) = rows.iter().position(|row| locks(groups, row)) else { return Act::Pass };
        // The first row is prewritten once. Every later write that locks it is a heartbeat.
        if place == 0 && started.swap(true, Ordering::SeqCst) {
            return Act::Pass;
        }
        clock.step(TTL_MS as i64 * 2 / 3);
        if place > 0 {
            let mut txn = store.begin().unwrap();
            txn.put(&rival_rows, "a", "rival").unwrap();
            assert_conflict(txn.commit());
            count.fetch_add(1, Ordering::SeqCst);
        }
        Act::Pass
    });
    writer.put_all(&keys, "slow");
    assert!(met.load(Ordering::SeqCst) >= 5);
    for key in keys {
        assert_eq!(rival.get(key), some("slow"));
    }
}

pub fn a_reservation_follows_the_clock_a_day_at_most(_world: &Environment) {
    let now = 1_763_726_400_000;
    let oracle = LocalOracle::new(Timestamp::ZERO);
    oracle.reserve_until(oracle.first_reservation(now));
    oracle.next(now).unwrap();
    for far in [now * 2, u64::MAX] {
        assert!(oracle.next_reservation(far).millis() <= now + CLOCK_JUMP_MAX_MS + RESERVATION_MS);
        assert!(oracle.next(far).unwrap().millis() <= now + RESERVATION_MS);
    }
}

pub fn a_clock_years_ahead_is_followed_a_day_at_most(environment: &Environment) {
    let store = environment.open_with(environment.builder().max_snapshot_age(std::time::Duration::MAX));
    let before = store.put("k", "v").commit_ts.millis();
    environment.clock.step(HOUR_MS * 24 * 3650);
    for _ in 0..3 {
        store.put("k", "v");
    }
    let after = store.put("k", "v").commit_ts.millis();
    assert!(after > before, "timestamps do not advance");
    assert!(after <= before + 5 * (CLOCK_JUMP_MAX_MS + RESERVATION_MS), "{before} {after}");
    // When the clock is set right again, timestamps still increase and no row is lost.
    environment.clock.step(-HOUR_MS * 24 * 3650);
    assert!(store.put("k", "w").commit_ts.millis() >= after);
    assert_eq!(store.get("k"), some("w"));
}
