//! `Txn::try_commit` and `Txn::restart`: conflicts of callers that begin and commit themselves.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use percolite::{ErrorKind, FailedCommit, Keyspace, Result, RetryPolicy, Store, Txn, TxnOptions};

fn open() -> (Store, Keyspace) {
    let store = Store::in_memory().unwrap();
    let rows = store.keyspace("rows").unwrap();
    (store, rows)
}

fn add_one(txn: &mut Txn, rows: &Keyspace) -> Result<()> {
    let before = txn.get(rows, "hot")?.map_or(0, |value| u64::from_be_bytes(value.try_into().unwrap()));
    txn.put(rows, "hot", (before + 1).to_be_bytes())
}

fn count(store: &Store, rows: &Keyspace) -> u64 {
    store.get(rows, "hot").unwrap().map_or(0, |value| u64::from_be_bytes(value.try_into().unwrap()))
}

/// Commits that failed because another one was first.
fn failed<const N: usize>(store: &Store, rows: &Keyspace, options: TxnOptions) -> [FailedCommit; N] {
    let losers: [Txn; N] = std::array::from_fn(|_| {
        let mut txn = store.begin_with(options).unwrap();
        add_one(&mut txn, rows).unwrap();
        txn
    });
    store.transact(|txn| add_one(txn, rows)).unwrap();
    losers.map(|loser| {
        let failed = loser.try_commit().unwrap_err();
        assert!(failed.error().is_retryable(), "{failed}");
        failed
    })
}

#[test]
fn engines_that_begin_and_commit_themselves_lose_no_update() {
    const THREADS: u64 = 8;
    const ROUNDS: u64 = 200;
    let (store, rows) = open();
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                for _ in 0..ROUNDS {
                    let mut txn = store.begin().unwrap();
                    loop {
                        add_one(&mut txn, &rows).unwrap();
                        match txn.try_commit() {
                            Ok(_) => break,
                            Err(failed) => txn = failed.restart().unwrap(),
                        }
                    }
                }
            });
        }
    });
    assert_eq!(count(&store, &rows), THREADS * ROUNDS);
}

#[test]
fn a_restart_waits_for_the_restarted_transaction_in_front_of_it() {
    let (store, rows) = open();
    let [first, second] = failed(&store, &rows, TxnOptions::default());
    let mut first = first.restart().unwrap();
    let is_committing = Arc::new(AtomicBool::new(false));
    let behind = std::thread::spawn({
        let (rows, is_committing) = (rows.clone(), Arc::clone(&is_committing));
        move || {
            let mut second = second.restart().unwrap();
            assert!(is_committing.load(Ordering::SeqCst), "the restart did not wait");
            add_one(&mut second, &rows).unwrap();
            second.commit().map(drop)
        }
    });
    // Gives a restart that does not wait the time to show it.
    std::thread::sleep(Duration::from_millis(100));
    add_one(&mut first, &rows).unwrap();
    is_committing.store(true, Ordering::SeqCst);
    first.commit().unwrap();
    behind.join().unwrap().unwrap();
    assert_eq!(count(&store, &rows), 3);
}

#[test]
fn a_restarted_transaction_that_ends_in_any_way_lets_the_next_one_begin() {
    let ends: [fn(Txn); 4] = [
        drop,
        |txn| txn.rollback().unwrap(),
        |txn| assert!(txn.commit().unwrap().durable),
        |txn| drop(txn.restart().unwrap()),
    ];
    for end in ends {
        let (store, rows) = open();
        let [first, second] = failed(&store, &rows, TxnOptions::default());
        end(first.restart().unwrap());
        drop(second.restart().unwrap());
        assert_eq!(store.latencies().admission_wait.count(), 0, "the second one had to wait");
    }
}

#[test]
fn a_thread_that_waits_for_itself_goes_on() {
    let (store, rows) = open();
    let [first, second] = failed(&store, &rows, TxnOptions::default());
    let mut first = first.restart().unwrap();
    // Its place in the queue is behind `first`, which this thread has to end.
    let mut second = second.restart().unwrap();
    add_one(&mut first, &rows).unwrap();
    add_one(&mut second, &rows).unwrap();
    first.commit().unwrap();
    second.commit().unwrap_err();
    assert_eq!(count(&store, &rows), 2);
}

#[test]
fn restarts_end_at_the_limits_of_the_retry_policy() {
    let (store, rows) = open();
    let attempts = RetryPolicy::default().max_attempts(2);
    let [once] = failed(&store, &rows, TxnOptions::default().retry_policy(attempts));
    let mut again = once.restart().unwrap();
    add_one(&mut again, &rows).unwrap();
    store.transact(|txn| txn.put(&rows, "other", "")).unwrap();
    // The queue of the row is left by a thread that does not ask for it.
    let mut rival = store.begin().unwrap();
    add_one(&mut rival, &rows).unwrap();
    rival.commit().unwrap();
    let error = again.try_commit().unwrap_err().restart().unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::RetriesExhausted { attempts: 2, .. }), "{error}");
    assert_eq!(error.conflict().unwrap().row, rows.row_key("hot"));

    let no_time = RetryPolicy::default().timeout(Duration::ZERO);
    let [late] = failed(&store, &rows, TxnOptions::default().retry_policy(no_time));
    let error = late.restart().unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::RetriesExhausted { attempts: 1, .. }), "{error}");
}

#[test]
fn a_restart_keeps_the_options_and_none_of_the_writes() {
    let (store, rows) = open();
    let mut txn = store.begin_with(TxnOptions::with_label("restarted")).unwrap();
    txn.put(&rows, "written", "").unwrap();
    let old = txn.start_ts();
    let txn = txn.restart().unwrap();
    assert!(txn.start_ts() > old && txn.get(&rows, "written").unwrap().is_none());
    let active = store.active_transactions();
    assert_eq!(active.iter().map(|active| active.label).collect::<Vec<_>>(), [Some("restarted")]);
    txn.commit().unwrap();
    assert_eq!(store.range(&rows, ..).unwrap().count(), 0);
}

#[test]
fn other_errors_are_returned_instead_of_a_restart() {
    let (store, rows) = open();
    let mut txn = store.begin().unwrap();
    txn.put(&rows, "k", "v").unwrap();
    store.drop_keyspace("rows").unwrap();
    let failed = txn.try_commit().unwrap_err();
    assert!(matches!(failed.error().kind(), ErrorKind::KeyspaceNotFound(_)), "{failed}");
    let error = failed.restart().unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::KeyspaceNotFound(_)), "{error}");

    let commit = |txn: Txn| -> Result<percolite::Commit> { Ok(txn.try_commit()?) };
    let txn = store.begin().unwrap();
    store.clone().close().unwrap();
    assert!(matches!(commit(txn).unwrap_err().kind(), ErrorKind::Closed(_)));
}

/// A large transaction meets its conflict before the commit.
#[test]
fn a_large_transaction_restarts_after_a_conflict_of_a_write() {
    let store = Store::builder().large_transaction_bytes(4 << 10).in_memory().unwrap();
    let rows = store.keyspace("rows").unwrap();
    let fill = |txn: &mut Txn| -> Result<()> {
        (0..100_u8).try_for_each(|number| txn.put(&rows, [number], vec![number; 100]))
    };
    let mut txn = store.begin().unwrap();
    store.transact(|other| other.put(&rows, [0], "first")).unwrap();
    assert!(fill(&mut txn).unwrap_err().is_retryable());
    let mut txn = txn.restart().unwrap();
    fill(&mut txn).unwrap();
    txn.commit().unwrap();
    assert_eq!(store.range(&rows, ..).unwrap().count(), 100);
}
