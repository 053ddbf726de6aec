//! What errors say, and what is refused.

use percolite::engine::sim::SimStorage;
use percolite::{CommitProtocol, ErrorKind, KEY_MAX_BYTES, Store};

#[test]
fn a_key_that_no_row_can_have_is_refused_by_reads_as_by_writes() {
    let store = Store::in_memory().unwrap();
    let rows = store.keyspace("rows").unwrap();
    let (mut txn, snapshot) = (store.begin().unwrap(), store.snapshot().unwrap());
    let long = vec![b'k'; KEY_MAX_BYTES + 1];
    let text = format!("a key of {} bytes exceeds the limit of {KEY_MAX_BYTES} bytes", long.len());
    let answers =
        [txn.put(&rows, &long, ""), txn.get(&rows, &long).map(drop), snapshot.contains(&rows, &long).map(drop)];
    for why in answers.map(Result::unwrap_err) {
        assert!(matches!(why.kind(), ErrorKind::TooLarge { .. }), "{why}");
        assert_eq!(why.to_string(), text);
    }
    for why in [txn.put(&rows, "", ""), txn.get(&rows, "").map(drop), snapshot.get(&rows, "").map(drop)] {
        let why = why.unwrap_err();
        assert!(matches!(why.kind(), ErrorKind::InvalidArgument(_)), "{why}");
    }
    // Longer keys than any row's may bound a range.
    txn.put(&rows, "k", "v").unwrap();
    assert_eq!(txn.range(&rows, Vec::new()..long).count(), 1);
}

#[test]
fn only_what_is_undetermined_says_that_it_may_have_happened() {
    let may_have = "may or may not";
    for protocol in [CommitProtocol::Auto, CommitProtocol::TwoPhase] {
        let memory = SimStorage::new();
        let store = Store::builder().protocol(protocol).sweep(false).open_sim(&memory).unwrap();
        let rows = store.keyspace("rows").unwrap();
        let mut txn = store.begin().unwrap();
        txn.put(&rows, "a", "").unwrap();
        txn.put(&rows, "b", "").unwrap();
        memory.fail_write(1);
        let why = txn.commit().unwrap_err();
        match why.kind() {
            // In two phases it is a lock that could not be written.
            ErrorKind::Io(_) => assert!(protocol == CommitProtocol::TwoPhase && !why.to_string().contains(may_have)),
            ErrorKind::Undetermined(_) => assert!(why.to_string().contains(may_have), "{why}"),
            other => panic!("{other:?}"),
        }
        for why in [store.begin().map(drop), store.snapshot().map(drop)].map(Result::unwrap_err) {
            assert!(matches!(why.kind(), ErrorKind::Closed(_)), "{why}");
            assert!(!why.to_string().contains(may_have), "{why}");
        }
    }
}

#[test]
fn a_failed_sync_speaks_of_no_transaction() {
    let memory = SimStorage::new();
    let store = Store::builder().durability(percolite::Durability::Buffered).open_sim(&memory).unwrap();
    let rows = store.keyspace("rows").unwrap();
    store.sync().unwrap();
    memory.fail_sync(1);
    store.transact(|txn| txn.put(&rows, "k", "v")).unwrap();
    let why = store.sync().unwrap_err();
    assert!(matches!(why.kind(), ErrorKind::Undetermined(_)), "{why}");
    assert!(!why.to_string().contains("transaction"), "{why}");
}

#[test]
fn opening_that_fails_speaks_of_no_transaction() {
    let memory = SimStorage::new();
    memory.fail_sync(1);
    let Err(why) = Store::builder().open_sim(&memory) else { panic!("it was opened") };
    assert_eq!(why.to_string(), "the engine failed: the simulated disk has failed to sync");
}
