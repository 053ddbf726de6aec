//! Reads of history.

use std::time::{Duration, SystemTime};

use percolite::{CommitProtocol, Durability, ErrorKind, Store, Timestamp, TxnOptions, Value};

use crate::support::{Dice, Home};
use crate::{HOUR, State, delete, homes, put, state_at, values, with_retention};

const SHORT: usize = 7;
/// The length of a value that is stored out of line.
const LONG: usize = 5000;

#[test]
fn every_timestamp_reads_as_it_was_committed() {
    for home in homes() {
        let seed = std::process::id() as u64;
        println!("seed {seed}");
        let mut dice = Dice(seed);
        let mut state = State::new();
        let mut timestamps: Vec<(Timestamp, State)> = Vec::new();
        for incarnation in 0..4 {
            let store = home.open(with_retention(HOUR).large_transaction_bytes(20_000));
            let rows = store.keyspace("rows").unwrap();
            if incarnation == 0 {
                timestamps.push((store.snapshot().unwrap().read_ts(), State::new()));
            }
            for _ in 0..60 {
                let protocol = if dice.one_in(2) { CommitProtocol::TwoPhase } else { CommitProtocol::Auto };
                let durability = if dice.one_in(2) { Durability::Buffered } else { Durability::Sync };
                let options = TxnOptions::default().commit_protocol(protocol).durability(durability);
                let mut txn = store.begin_with(options).unwrap();
                let mut next = state.clone();
                for _ in 0..1 + dice.below(8) {
                    let key = vec![b'a' + dice.below(6) as u8];
                    if dice.one_in(4) {
                        txn.delete(&rows, &key).unwrap();
                        next.remove(&key);
                    } else {
                        let length = if dice.one_in(3) { LONG } else { SHORT };
                        let value: Vec<u8> = dice.next().to_be_bytes().iter().copied().cycle().take(length).collect();
                        txn.put(&rows, &key, &value).unwrap();
                        next.insert(key, value.into());
                    }
                }
                if dice.one_in(6) {
                    txn.rollback().unwrap();
                } else {
                    state = next;
                    timestamps.push((txn.commit().unwrap().commit_ts, state.clone()));
                }
                let (at, then) = &timestamps[dice.below(timestamps.len())];
                assert_eq!(state_at(&store, &rows, *at), *then, "at {at}");
            }
            for pair in timestamps.windows(2) {
                let [(at, then), (next, _)] = pair else { unreachable!() };
                assert_eq!(state_at(&store, &rows, *at), *then, "at {at}");
                assert_eq!(state_at(&store, &rows, next.previous()), *then, "just before {next}");
            }
            for key in ["a", "b", "c", "d", "e", "f"] {
                let mut expected: Vec<Option<&Value>> =
                    timestamps.iter().map(|(_, state)| state.get(key.as_bytes())).collect();
                expected.dedup();
                expected.reverse();
                let mut found = values(&store, &rows, key);
                // `found` also has versions that change nothing: a put of an equal value, and a
                // delete of an absent row.
                found.dedup();
                if found.last() != Some(&None) {
                    found.push(None);
                }
                assert_eq!(found, expected.into_iter().map(|value| value.cloned()).collect::<Vec<_>>(), "{key}");
            }
            let verified = store.verify(|_| {}).unwrap();
            assert_eq!(verified.issues, [], "{verified:?}");
        }
    }
}

#[test]
fn versions_of_a_row_are_listed_newest_first() {
    for home in homes() {
        let store = home.open(with_retention(HOUR));
        let rows = store.keyspace("rows").unwrap();
        assert_eq!(values(&store, &rows, "k"), []);
        let first = put(&store, &rows, "k", "1");
        put(&store, &rows, "l", "not of this row");
        let second = put(&store, &rows, "k", [7; LONG]);
        let between = store.snapshot().unwrap();
        let third = delete(&store, &rows, "k");
        let mut txn = store.begin().unwrap();
        txn.put(&rows, "k", "not committed").unwrap();
        let versions: Vec<_> = txn.versions(&rows, "k").unwrap().map(Result::unwrap).collect();
        let listed: Vec<_> = versions.iter().map(|version| (version.commit_ts, version.value.as_deref())).collect();
        assert_eq!(listed, [(third, None), (second, Some(&[7; LONG][..])), (first, Some(&b"1"[..]))]);
        assert!(versions.iter().all(|version| version.start_ts < version.commit_ts));
        let owners: std::collections::BTreeSet<_> = versions.iter().map(|version| version.owner_id).collect();
        assert_eq!(owners.len(), 3);
        assert_eq!(
            between.versions(&rows, "k").unwrap().map(|version| version.unwrap().commit_ts).collect::<Vec<_>>(),
            [second, first]
        );
        assert!(matches!(txn.versions(&rows, "").map(drop).unwrap_err().kind(), ErrorKind::InvalidArgument(_)));
    }
}

#[test]
fn history_includes_large_transactions_still_locked() {
    for home in homes() {
        let store = home.open(with_retention(HOUR).large_transaction_bytes(10_000));
        let rows = store.keyspace("rows").unwrap();
        let key = |number: usize| format!("{number:05}");
        let before = store.transact(|txn| (0..3000).try_for_each(|number| txn.put(&rows, key(number), "before")));
        before.unwrap();
        let before = store.snapshot().unwrap().read_ts();
        let mut large = store.begin().unwrap();
        for number in 0..3000 {
            large.put(&rows, key(number), "after").unwrap();
        }
        let after = large.commit().unwrap().commit_ts;
        for _ in 0..2 {
            for (at, value) in [(before, "before"), (after.previous(), "before"), (after, "after")] {
                let state = state_at(&store, &rows, at);
                assert_eq!(state.len(), 3000);
                assert!(state.values().all(|found| found == value.as_bytes()), "at {at}");
            }
            assert_eq!(values(&store, &rows, &key(2999)), [Some("after".into()), Some("before".into())]);
            crate::wait(&store, "the lock cleanup does not end", |stats| stats.cleanup_pending == 0);
        }
    }
}

#[test]
fn transact_with_commit_returns_the_timestamp_of_its_version() {
    for home in homes() {
        let store = home.open(with_retention(HOUR));
        let rows = store.keyspace("rows").unwrap();
        put(&store, &rows, "k", "first");
        let mut attempts = 0;
        let (value, commit) = store
            .transact_with_commit(TxnOptions::default(), |txn| {
                attempts += 1;
                let value = format!("attempt {attempts}");
                txn.put(&rows, "k", &value)?;
                if attempts == 1 {
                    // The first attempt conflicts, so the returned timestamp must be that of the
                    // second attempt.
                    put(&store, &rows, "k", "conflicting");
                }
                Ok::<_, percolite::Error>(value)
            })
            .unwrap();
        put(&store, &rows, "k", "last");
        assert_eq!((value.as_str(), commit.durable), ("attempt 2", true));
        let value_at = |at: Timestamp| store.snapshot_at(at).unwrap().get(&rows, "k").unwrap();
        assert_eq!(value_at(commit.commit_ts), Some("attempt 2".into()));
        assert_eq!(value_at(commit.commit_ts.previous()), Some("conflicting".into()));
        let versions: Vec<_> = store.snapshot().unwrap().versions(&rows, "k").unwrap().map(Result::unwrap).collect();
        assert_eq!((versions[1].commit_ts, &versions[1].value), (commit.commit_ts, &Some("attempt 2".into())));
    }
}

#[test]
fn a_time_of_day_reads_what_was_committed_before_it() {
    let store = Home::embedded().open(with_retention(HOUR));
    let rows = store.keyspace("rows").unwrap();
    put(&store, &rows, "k", "old");
    std::thread::sleep(Duration::from_millis(20));
    let noon = SystemTime::now();
    std::thread::sleep(Duration::from_millis(20));
    put(&store, &rows, "k", "new");
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(store.snapshot_at(noon).unwrap().get(&rows, "k").unwrap(), Some("old".into()));
    let now = store.snapshot_at(SystemTime::now()).unwrap();
    assert_eq!(now.get(&rows, "k").unwrap(), Some("new".into()));
    put(&store, &rows, "k", "newer");
    assert_eq!(now.get(&rows, "k").unwrap(), Some("new".into()), "the snapshot has changed");
}

#[test]
fn unreadable_timestamps_are_refused() {
    let refusal = |store: &Store, at: Timestamp| store.snapshot_at(at).map(drop).unwrap_err().kind().clone();
    for home in homes() {
        let store = home.open(Store::builder());
        let now = store.snapshot().unwrap().read_ts();
        assert!(matches!(refusal(&store, now), ErrorKind::InvalidArgument(text) if text.contains("no history")));
        assert_eq!(store.stats().history_start_ts, None);
        drop(store);

        let store = home.open(with_retention(HOUR));
        let from = store.stats().history_start_ts.unwrap();
        store.snapshot_at(from).unwrap();
        assert!(matches!(refusal(&store, from.previous()), ErrorKind::SnapshotTooOld(_)));
        assert!(matches!(refusal(&store, Timestamp::ZERO), ErrorKind::SnapshotTooOld(_)));
        let future = SystemTime::now() + Duration::from_secs(60);
        for at in [Timestamp::MAX, future.into()] {
            assert!(matches!(refusal(&store, at), ErrorKind::InvalidArgument(text) if text.contains("future")));
        }
        store.clone().close().unwrap();
        assert!(matches!(refusal(&store, from), ErrorKind::Closed(_)));
    }
    let home = Home::shared();
    for builder in [Store::builder(), with_retention(HOUR)] {
        let shared = home.open(builder);
        let now = shared.snapshot().unwrap().read_ts();
        for at in [Timestamp::ZERO, now, Timestamp::MAX] {
            assert!(matches!(refusal(&shared, at), ErrorKind::InvalidArgument(text) if text.contains("shared engine")));
        }
        assert_eq!(shared.stats().history_start_ts, None);
    }
}

#[cfg(feature = "rocks")]
#[test]
fn a_read_only_store_reads_its_history() {
    let home = Home::rocks();
    let store = home.open(with_retention(HOUR));
    let rows = store.keyspace("rows").unwrap();
    let first = put(&store, &rows, "k", "1");
    put(&store, &rows, "k", "2");
    drop((store, rows));
    let store = home.open(Store::builder().read_only(true));
    let rows = store.existing_keyspace("rows").unwrap();
    assert_eq!(store.snapshot_at(first).unwrap().get(&rows, "k").unwrap(), Some("1".into()));
    assert_eq!(store.snapshot_at(SystemTime::now()).unwrap().get(&rows, "k").unwrap(), Some("2".into()));
    assert_eq!(values(&store, &rows, "k"), [Some("2".into()), Some("1".into())]);
    for at in [Timestamp::ZERO, Timestamp::MAX] {
        store.snapshot_at(at).map(drop).unwrap_err();
    }
}
