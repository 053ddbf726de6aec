//! Rows of leases that are not what was written, and very many of them.

#[cfg_attr(not(feature = "rocks"), allow(unused_imports, reason = "for cases that need it"))]
use std::sync::Arc;
#[cfg_attr(not(feature = "rocks"), allow(unused_imports, reason = "for cases that need it"))]
use std::time::{Duration, Instant};

use percolite::engine::sim::SimStorage;
use percolite::engine::storage::{Batch, Column, Storage};
use percolite::engine::{Engine, Group};
use percolite::row::{Edit, RowChange, TxnId, Value, WriteRecord};
use percolite::{ErrorKind, LostReason, OwnerId, Result, Store, Timestamp};

use super::{assert_about, assert_lost, has_row, lease, left, open, row_of};
use crate::support::clocks::{Clocks, HOUR, THEN};

/// The row of one exclusive lease of an hour, as the golden bytes in the library say.
fn row_bytes(token: Timestamp, since_ms: u64) -> Vec<u8> {
    let mut bytes = vec![1, 1, 0, 253];
    bytes.extend(token.to_u64().to_le_bytes());
    bytes.push(253);
    bytes.extend(since_ms.to_le_bytes());
    bytes.push(252);
    bytes.extend(3_600_000_u32.to_le_bytes());
    bytes.extend([42, 0, 4]);
    bytes.extend(b"main");
    bytes.push(0);
    bytes
}

/// What an ordinary transaction that was committed at `commit_ts` would have left.
fn change(name: &str, commit_ts: Timestamp, value: Vec<u8>) -> RowChange {
    let start_ts = Timestamp::from_u64(commit_ts.to_u64() - 1);
    let txn = TxnId { start_ts, owner: OwnerId::new(7, 7) };
    let version = WriteRecord { commit_ts, txn, value: Some(Value::Inline(value.into())), held_at: None };
    RowChange { write: Edit::Put(version), ..RowChange::new(row_of(name), start_ts) }
}

#[track_caller]
fn assert_corruption<T>(answer: Result<T>, name: &str) {
    let why = answer.err().expect("the row is damaged");
    assert!(matches!(why.kind(), ErrorKind::Corruption(_)), "{why}");
    assert!(why.to_string().contains(name), "{why}");
}

fn check_damaged(store: &Store, token: Timestamp) {
    assert_corruption(store.lock("bad"), "bad");
    assert_corruption(store.try_lock("bad"), "bad");
    assert_corruption(store.lock_with("bad", lease(HOUR)), "bad");
    assert_corruption(store.get_lock("bad", HOUR), "bad");
    assert_corruption(store.release_lock("bad", token), "bad");
    assert_corruption(store.is_free_lock("bad"), "bad");
    assert_corruption(store.resume_lock("bad", token), "bad");
    assert_corruption(store.lock_holders("bad"), "bad");
}

#[test]
fn l4_d_a_damaged_row_closes_its_name_and_nothing_else() {
    // Once the row as the store keeps it, and once what the row says.
    for whole_cell in [true, false] {
        let memory = SimStorage::new();
        let clocks = Clocks::new();
        let store = open(&memory, &clocks);
        let tokens = ["a", "bad", "good"].map(|name| store.get_lock(name, HOUR).unwrap().unwrap());
        store.close().unwrap();
        if whole_cell {
            let mut batch = memory.batch(0);
            batch.put(Column::Write, row_of("bad").as_bytes(), b"\x01nonsense");
            memory.write(batch).unwrap();
        } else {
            let mut bytes = row_bytes(tokens[1], THEN);
            bytes.truncate(bytes.len() - 3);
            let groups = [Group::Changes(vec![change("bad", tokens[2], bytes)])];
            memory.embedded().apply(&groups).unwrap();
        }
        for _ in 0..2 {
            let store = open(&memory, &clocks);
            check_damaged(&store, tokens[1]);
            for (name, token) in [("a", tokens[0]), ("good", tokens[2])] {
                assert_eq!(store.lock_holders(name).unwrap()[0].token, Some(token));
                assert_about(left(&store, name), HOUR);
            }
            drop(store.lock_with("other", lease(HOUR)).unwrap());
            let problems = store.verify(|_| ()).unwrap().problems;
            assert!(problems.iter().any(|problem| problem.to_string().contains("lock/bad")), "{problems:?}");
            store.close().unwrap();
        }
        let store = open(&memory, &clocks);
        assert!(store.release_lock("good", tokens[2]).unwrap());
        assert!(store.force_unlock("bad", Timestamp::from_u64(12345)).unwrap(), "any token");
        assert!(!has_row(&memory.embedded(), "bad"));
        assert!(!store.force_unlock("bad", Timestamp::from_u64(12345)).unwrap());
        assert_lost(store.resume_lock("bad", tokens[1]), LostReason::NotHeld);
        let token = store.get_lock("bad", HOUR).unwrap().unwrap();
        memory.crash(0);
        let store = open(&memory, &clocks);
        assert_eq!(store.lock_holders("bad").unwrap()[0].token, Some(token));
        assert_eq!(store.verify(|_| ()).unwrap().problems, []);
    }
}

/// The later one took the name over.
#[test]
fn of_two_leases_in_a_row_that_exclude_each_other_the_later_one_stands() {
    let memory = SimStorage::new();
    let clocks = Clocks::new();
    let store = open(&memory, &clocks);
    let tokens = ["one", "two"].map(|name| store.get_lock(name, HOUR).unwrap().unwrap());
    store.close().unwrap();
    let (one, two) = (row_bytes(tokens[0], THEN), row_bytes(tokens[1], THEN));
    let both = [&[1, 2], &one[2..], &two[2..]].concat();
    memory.embedded().apply(&[Group::Changes(vec![change("both", tokens[1], both)])]).unwrap();
    let store = open(&memory, &clocks);
    assert_lost(store.resume_lock("both", tokens[0]), LostReason::NotHeld);
    assert_eq!(store.resume_lock("both", tokens[1]).unwrap().token(), tokens[1]);
}

#[cfg(feature = "rocks")]
#[test]
fn l4_e_a_hundred_thousand_leases_open_soon_and_are_held() {
    const MANY: usize = 100_000;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store");
    let clocks = Clocks::new();
    let open = || {
        let began = Instant::now();
        (clocks.builder().open(&path).unwrap(), began.elapsed())
    };
    let (store, _) = open();
    let token = store.get_lock("first", HOUR).unwrap().unwrap();
    store.close().unwrap();
    let (store, without) = open();
    store.close().unwrap();
    let engine: Arc<dyn Engine> = clocks.builder().rocks(&path).unwrap();
    for some in (0..MANY).collect::<Vec<_>>().chunks(1000) {
        let changes = some.iter().map(|at| change(&format!("job {at:06}"), token, row_bytes(token, THEN)));
        engine.apply(&[Group::Changes(changes.collect())]).unwrap();
    }
    engine.sync().unwrap();
    drop(engine);
    let (store, with) = open();
    // The figure is one second; a busy machine may take longer.
    assert!(with < without + Duration::from_secs(20), "{without:?} without leases, {with:?} with them");
    assert_eq!(store.lock_table().unwrap().held, MANY + 1);
    for at in (0..MANY).step_by(997) {
        let name = format!("job {at:06}");
        assert_eq!(store.lock_holders(&name).unwrap()[0].token, Some(token));
        assert!(store.try_lock(&name).unwrap().is_none());
    }
    assert_eq!(store.resume_lock("job 000007", token).unwrap().token(), token);
    clocks.pass(HOUR);
    assert!(store.try_lock("job 000008").unwrap().is_some());
}
