//! What commits return, and what reads on the store return: rows of one state, as owned values.

use percolite::engine::sim::SimStorage;
use percolite::{Durability, ErrorKind, Keyspace, Store, Txn, TxnOptions};

/// More rows than one page of a scan has.
const ROWS: u32 = 3000;
/// Too long for a lock, so that two-phase commits store it out of line.
const LONG: usize = 1000;

fn with_durability(durability: Option<Durability>) -> TxnOptions {
    TxnOptions::default().durability(durability)
}

/// Reads a row with each reading call of the store; all calls must agree. Returns whether the row
/// has this value.
fn is_read_as(store: &Store, rows: &Keyspace, key: &str, value: &str) -> bool {
    let found = store.get(rows, key).unwrap();
    assert_eq!(store.multi_get(rows, [key, "absent"]).unwrap(), [found.clone(), None]);
    assert_eq!(store.contains_key(rows, key).unwrap(), found.is_some());
    let scans = [store.range(rows, key..=key).unwrap(), store.prefix(rows, key).unwrap()];
    for scan in scans {
        let values: Vec<_> = scan.map(|row| row.unwrap().into_parts().1).collect();
        assert_eq!(values, Vec::from_iter(found.clone()));
    }
    found.is_some_and(|found| found == value)
}

#[test]
fn a_read_on_the_store_sees_an_acknowledged_commit() {
    for default in [Durability::Sync, Durability::Buffered] {
        let store = Store::builder().durability(default).in_memory().unwrap();
        let rows = store.keyspace("rows").unwrap();
        std::thread::scope(|scope| {
            for thread in 0..3_u32 {
                let (store, rows) = (&store, &rows);
                scope.spawn(move || {
                    let key = format!("thread {thread}");
                    assert!(!store.contains_key(rows, &key).unwrap());
                    for number in 0..200_u32 {
                        let durability = [Durability::Sync, Durability::Buffered][number as usize % 2];
                        let options = with_durability(Some(durability));
                        store.transact_with(options, |txn| txn.put(rows, &key, number.to_string())).unwrap();
                        assert!(is_read_as(store, rows, &key, &number.to_string()), "{default:?}, {key}: {number}");
                    }
                    store.transact(|txn| txn.delete(rows, &key)).unwrap();
                    assert!(!store.contains_key(rows, &key).unwrap());
                });
            }
        });
    }
}

#[test]
fn what_a_read_on_the_store_has_shown_survives_a_power_cut() {
    for seed in 0..20 {
        let memory = SimStorage::new();
        let store = Store::builder().background_resolve(false).open_in_memory(&memory).unwrap();
        let rows = store.keyspace("rows").unwrap();
        store.transact_with(with_durability(Some(Durability::Buffered)), |txn| txn.put(&rows, "k", "v")).unwrap();
        assert_eq!(store.get(&rows, "k").unwrap(), Some("v".into()));
        memory.crash(seed);
        let store = Store::builder().open_in_memory(&memory).unwrap();
        let rows = store.existing_keyspace("rows").unwrap();
        assert_eq!(store.get(&rows, "k").unwrap(), Some("v".into()), "seed {seed}");
    }
}

#[test]
fn a_multi_get_on_the_store_is_of_one_state() {
    const ACCOUNTS: u8 = 8;
    let store = Store::builder().durability(Durability::Buffered).in_memory().unwrap();
    let accounts = store.keyspace("accounts").unwrap();
    store.transact(|txn| (0..ACCOUNTS).try_for_each(|account| txn.put(&accounts, [account], [100]))).unwrap();
    let read_all = || -> Vec<u8> {
        let balances = store.multi_get(&accounts, (0..ACCOUNTS).map(|account| [account])).unwrap();
        balances.into_iter().map(|balance| balance.expect("an account is missing")[0]).collect()
    };
    let transfers = |step: u8| {
        for turn in (0..ACCOUNTS).cycle().take(3000) {
            let transfer = |txn: &mut Txn| {
                let [from, to] = [[turn], [(turn + step) % ACCOUNTS]];
                let [payer, payee] = [from, to].map(|key| txn.get(&accounts, key).unwrap().unwrap()[0]);
                let amount = payer.min(u8::MAX - payee).min(7);
                txn.put(&accounts, from, [payer - amount])?;
                txn.put(&accounts, to, [payee + amount])
            };
            store.transact(transfer).unwrap();
        }
    };
    std::thread::scope(|scope| {
        let writers = [scope.spawn(|| transfers(1)), scope.spawn(|| transfers(3))];
        let (mut changes, mut last) = (0, read_all());
        while !writers.iter().all(std::thread::ScopedJoinHandle::is_finished) {
            let balances = read_all();
            let sum: u32 = balances.iter().copied().map(u32::from).sum();
            assert_eq!(sum, 100 * u32::from(ACCOUNTS), "torn: {balances:?}");
            changes += u32::from(balances != last);
            last = balances;
        }
        assert!(changes > 0, "the reader saw no change");
    });
}

#[test]
fn a_scan_of_the_store_is_of_one_state_whatever_is_committed() {
    let store = Store::in_memory().unwrap();
    let rows = store.keyspace("rows").unwrap();
    store.transact(|txn| (0..ROWS).try_for_each(|row| txn.put(&rows, (2 * row).to_be_bytes(), "old"))).unwrap();
    let scan = |turn: u32| if turn < 2 { store.range(&rows, ..) } else { store.prefix(&rows, "") }.unwrap();
    for turn in 0..4 {
        let (mut scan, mut found) = (scan(turn), Vec::new());
        let backwards = turn % 2 == 1;
        while let Some(row) = if backwards { scan.next_back() } else { scan.next() } {
            let (key, value) = row.unwrap().into_parts();
            assert_eq!(value, if turn == 0 { "old" } else { "new" });
            found.push(key);
            if found.len() == 10 {
                // Overwrites, deletes and inserts rows, also beyond those that the scan has read by
                // now.
                store
                    .transact(|txn| {
                        (0..2 * ROWS).step_by(3).try_for_each(|row| txn.delete(&rows, row.to_be_bytes()))?;
                        (1..2 * ROWS).step_by(2).try_for_each(|row| txn.put(&rows, row.to_be_bytes(), "between"))
                    })
                    .unwrap();
            }
        }
        if backwards {
            found.reverse();
        }
        let expected: Vec<_> = (0..ROWS).map(|row| (2 * row).to_be_bytes().to_vec()).collect();
        assert!(found == expected, "turn {turn}: {} rows of {ROWS}", found.len());
        assert!(store.range(&rows, ..).unwrap().any(|row| row.unwrap().value() == b"between"));
        store
            .transact(|txn| {
                txn.delete_range(&rows, ..)?;
                (0..ROWS).try_for_each(|row| txn.put(&rows, (2 * row).to_be_bytes(), "new"))
            })
            .unwrap();
    }
}

#[test]
fn a_read_on_a_closed_store_returns_closed() {
    let store = Store::in_memory().unwrap();
    let rows = store.keyspace("rows").unwrap();
    store.transact(|txn| txn.put(&rows, "k", "v")).unwrap();
    store.clone().close().unwrap();
    let refusals = [
        store.get(&rows, "k").map(drop),
        store.multi_get(&rows, ["k"]).map(drop),
        store.multi_get(&rows, [""; 0]).map(drop),
        store.contains_key(&rows, "k").map(drop),
        store.range(&rows, ..).map(drop),
        store.prefix(&rows, "k").map(drop),
    ];
    for (call, refused) in refusals.into_iter().enumerate() {
        let error = refused.unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Closed(_)), "call {call}: {error}");
    }
}

#[test]
fn a_commit_says_whether_it_is_durable() {
    for default in [Durability::Sync, Durability::Buffered] {
        for asked in [None, Some(Durability::Sync), Some(Durability::Buffered)] {
            let store = Store::builder().durability(default).in_memory().unwrap();
            let rows = store.keyspace("rows").unwrap();
            let options = with_durability(asked);
            let durable = asked.unwrap_or(default) == Durability::Sync;
            let (answer, commit) =
                store.transact_with_commit(options, |txn| txn.put(&rows, "k", "v").map(|()| txn.start_ts())).unwrap();
            assert!(answer < commit.commit_ts);
            assert_eq!(commit.durable, durable, "{default:?} {asked:?}");
            assert!(!durable || store.stats().durable_ts >= commit.commit_ts);
            // A transaction that only reads.
            let read = |txn: &mut Txn| Ok::<_, percolite::Error>((txn.read_ts(), txn.contains_key(&rows, "k")?));
            let ((read_ts, found), commit) = store.transact_with_commit(options, read).unwrap();
            assert_eq!((commit.commit_ts, commit.durable, found), (read_ts, durable, true));
            let mut txn = store.begin_with(options).unwrap();
            txn.put(&rows, "k", "w").unwrap();
            assert_eq!(txn.commit().unwrap().durable, durable);
        }
    }
}

#[test]
fn values_and_rows_outlive_the_store() {
    let memory = SimStorage::new();
    let store = Store::builder().open_in_memory(&memory).unwrap();
    let rows = store.keyspace("rows").unwrap();
    let long = vec![7; LONG];
    store
        .transact(|txn| {
            txn.put(&rows, "long", &long)?;
            txn.put(&rows, "short", "v")
        })
        .unwrap();
    let mut txn = store.begin().unwrap();
    txn.put(&rows, "own", "of a transaction").unwrap();
    let values =
        [store.get(&rows, "long").unwrap(), store.get(&rows, "short").unwrap(), txn.get(&rows, "own").unwrap()];
    let scanned: Vec<_> = store.range(&rows, ..).unwrap().map(Result::unwrap).collect();
    drop(txn);
    store.close().unwrap();
    memory.crash(0);
    drop((rows, memory));
    assert_eq!(values, [Some(long.clone().into()), Some("v".into()), Some("of a transaction".into())]);
    let scanned: Vec<_> = scanned.iter().map(|row| (row.key(), row.value())).collect();
    assert_eq!(scanned, [(&b"long"[..], &long[..]), (b"short", b"v")]);
}
