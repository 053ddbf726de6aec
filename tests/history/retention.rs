//! How long history stays readable, and what GC removes.

use std::sync::Arc;
use std::time::Duration;

use percolite::engine::sim::SimStorage;
use percolite::{Builder, Durability, ErrorKind, Store, Timestamp};

use crate::clock::Clock;
use crate::support::{Dice, Home};
use crate::{HOUR, State, delete, homes, put, values, wait, with_retention};

fn with(clock: &Arc<Clock>, builder: Builder) -> Builder {
    builder.env(Arc::<Clock>::clone(clock))
}

#[test]
fn gc_removes_only_versions_older_than_the_history() {
    for home in homes() {
        let clock = Arc::new(Clock::default());
        let store = home.open(with(&clock, with_retention(HOUR)));
        let rows = store.keyspace("rows").unwrap();
        for round in 0..20 {
            put(&store, &rows, "hot", format!("{round}").repeat(if round % 2 == 0 { 1 } else { 2000 }));
        }
        let left_alone = put(&store, &rows, "cold", "cold");
        delete(&store, &rows, "hot");
        let old = store.snapshot().unwrap().read_ts();
        clock.pass(HOUR + Duration::from_secs(60));
        let newer = [put(&store, &rows, "hot", "new"), put(&store, &rows, "hot", "newest")];
        wait(&store, "GC removes nothing", |stats| stats.gc_versions >= 20);
        let from = store.stats().history_start_ts.unwrap();
        assert!(from >= old && from < newer[0], "{from}");
        // The tombstone stays, because at the start of the history the row is deleted.
        assert_eq!(values(&store, &rows, "hot"), [Some("newest".into()), Some("new".into()), None]);
        assert_eq!(values(&store, &rows, "cold"), [Some("cold".into())]);
        assert_eq!(store.snapshot_at(from).unwrap().get(&rows, "cold").unwrap(), Some("cold".into()));
        assert!(matches!(store.snapshot_at(left_alone).map(drop).unwrap_err().kind(), ErrorKind::SnapshotTooOld(_)));
        let verified = store.verify(|_| {}).unwrap();
        assert_eq!(verified.issues, []);
        // Out-of-line values were removed with their versions.
        assert_eq!(verified.out_of_line_values, 0, "{verified:?}");
        drop((store, rows));
        // The next incarnation has the same history.
        let store = home.open(with(&clock, with_retention(HOUR)));
        let rows = store.existing_keyspace("rows").unwrap();
        assert_eq!(store.stats().history_start_ts, Some(from));
        assert_eq!(values(&store, &rows, "hot").len(), 3);
        store.snapshot_at(left_alone).map(drop).unwrap_err();
    }
}

#[test]
fn a_historical_snapshot_is_readable_until_the_age_limit() {
    for home in homes() {
        let clock = Arc::new(Clock::default());
        let store = home.open(with(&clock, with_retention(Duration::ZERO).max_snapshot_age(HOUR)));
        let rows = store.keyspace("rows").unwrap();
        let first = put(&store, &rows, "k", [1; 5000]);
        let held = store.snapshot_at(first).unwrap();
        for round in 0..10 {
            put(&store, &rows, "k", [round; 5000]);
        }
        wait(&store, "GC removes nothing", |stats| stats.gc_versions >= 9);
        assert!(matches!(store.snapshot_at(first).map(drop).unwrap_err().kind(), ErrorKind::SnapshotTooOld(_)));
        assert_eq!(held.get(&rows, "k").unwrap(), Some([1; 5000].into()));
        // The view of `held` and the newest view are open.
        assert!(store.stats().open_views >= 2);
        clock.pass(2 * HOUR);
        wait(&store, "the snapshot does not expire", |_| held.get(&rows, "k").is_err());
        assert!(matches!(held.get(&rows, "k").unwrap_err().kind(), ErrorKind::SnapshotTooOld(_)));
    }
}

#[test]
fn a_clock_set_forward_costs_no_history() {
    let clock = Arc::new(Clock::default());
    let store = Home::embedded().open(with(&clock, with_retention(HOUR)));
    let rows = store.keyspace("rows").unwrap();
    let first = put(&store, &rows, "k", "1");
    put(&store, &rows, "k", "2");
    clock.jump(100 * HOUR);
    put(&store, &rows, "k", "3");
    delete(&store, &rows, "k");
    // Time for a round of GC.
    std::thread::sleep(Duration::from_millis(1200));
    assert_eq!(store.stats().gc_versions, 0);
    assert_eq!(store.snapshot_at(first).unwrap().get(&rows, "k").unwrap(), Some("1".into()));
}

#[test]
fn history_can_be_disabled_and_enabled_again() {
    for home in homes() {
        let open = |builder: Builder| {
            let store = home.open(builder);
            let rows = store.keyspace("rows").unwrap();
            (store, rows)
        };
        let (store, rows) = open(with_retention(HOUR));
        let first = put(&store, &rows, "k", [1; 5000]);
        put(&store, &rows, "k", "2");
        drop((store, rows));

        // A store that is opened without the option keeps its retention.
        let (store, rows) = open(Store::builder());
        assert_eq!(store.snapshot_at(first).unwrap().get(&rows, "k").unwrap(), Some([1; 5000].into()));
        drop((store, rows));

        let (store, rows) = open(Store::builder().disable_history());
        assert_eq!(values(&store, &rows, "k"), [Some("2".into())]);
        wait(&store, "GC does not remove the old history", |stats| stats.gc_versions == 1);
        put(&store, &rows, "k", "3");
        assert_eq!(store.verify(|_| {}).unwrap().history_entries, 0);
        drop((store, rows));

        let (store, rows) = open(with_retention(HOUR));
        assert!(matches!(store.snapshot_at(first).map(drop).unwrap_err().kind(), ErrorKind::SnapshotTooOld(_)));
        assert_eq!(values(&store, &rows, "k"), [Some("3".into())]);
        let third = store.snapshot().unwrap().read_ts();
        put(&store, &rows, "k", "4");
        assert_eq!(store.snapshot_at(third).unwrap().get(&rows, "k").unwrap(), Some("3".into()));
    }
}

#[test]
fn a_dropped_keyspace_is_readable_while_its_history_lasts() {
    for home in homes() {
        let clock = Arc::new(Clock::default());
        let store = home.open(with(&clock, with_retention(HOUR)));
        let rows = store.keyspace("rows").unwrap();
        let first = put(&store, &rows, "k", "1");
        store.drop_keyspace("rows").unwrap();
        // Long enough for the background to delete the rows if it ignored the history.
        std::thread::sleep(Duration::from_millis(1200));
        assert_eq!(store.snapshot_at(first).unwrap().get(&rows, "k").unwrap(), Some("1".into()));
        assert!(matches!(
            store.snapshot().unwrap().get(&rows, "k").unwrap_err().kind(),
            ErrorKind::KeyspaceNotFound(_)
        ));
        clock.pass(2 * HOUR);
        put(&store, &store.keyspace("other").unwrap(), "k", "v");
        let began = std::time::Instant::now();
        while store.verify(|_| {}).unwrap().versions > 5 || store.snapshot_at(first).is_ok() {
            assert!(began.elapsed() < Duration::from_secs(60), "{:?}", store.verify(|_| {}).unwrap());
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// Crashes that lose unsynced commits, with a very short retention, so that GC always has work.
#[test]
fn every_readable_timestamp_is_complete_after_a_crash() {
    let mut readable = 0;
    for seed in 0..12 {
        let memory = SimStorage::new();
        let mut dice = Dice(seed + 1);
        let mut timestamps: Vec<(Timestamp, State)> = Vec::new();
        for incarnation in 0..4 {
            let builder = with_retention(Duration::from_millis(3)).durability(Durability::Buffered);
            let store = builder.open_in_memory(&memory).unwrap();
            let rows = store.keyspace("rows").unwrap();
            let mut state: State =
                store.snapshot().unwrap().range(&rows, ..).map(|row| row.unwrap().into_parts()).collect();
            let survived =
                state.get(&b"commits"[..]).map_or(0, |number| u64::from_be_bytes(number[..].try_into().unwrap()));
            timestamps.truncate(survived as usize);
            for (at, then) in &timestamps {
                match store.snapshot_at(*at) {
                    Ok(snapshot) => {
                        let found: State = snapshot.range(&rows, ..).map(|row| row.unwrap().into_parts()).collect();
                        assert_eq!(found, *then, "seed {seed}, incarnation {incarnation}, at {at}");
                        readable += 1;
                    }
                    Err(error) => assert!(matches!(error.kind(), ErrorKind::SnapshotTooOld(_)), "{error}"),
                }
            }
            for _ in 0..40 {
                let key = [b'a' + dice.below(4) as u8];
                let mut txn = store.begin().unwrap();
                let value = dice.next().to_be_bytes();
                if dice.one_in(4) {
                    txn.delete(&rows, key).unwrap();
                    state.remove(&key[..]);
                } else {
                    txn.put(&rows, key, value).unwrap();
                    state.insert(key.to_vec(), value.into());
                }
                let number = timestamps.len() as u64 + 1;
                txn.put(&rows, "commits", number.to_be_bytes()).unwrap();
                state.insert(b"commits".to_vec(), number.to_be_bytes().into());
                timestamps.push((txn.commit().unwrap().commit_ts, state.clone()));
                if dice.one_in(10) {
                    store.sync().unwrap();
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
            if dice.one_in(2) {
                wait(&store, "GC removes nothing", |stats| stats.gc_versions > 0);
            }
            memory.crash(dice.next());
        }
    }
    assert!(readable > 100, "{readable} timestamps were read");
}
