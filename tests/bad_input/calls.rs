//! Single calls that make no sense, or come too late.

use std::ops::Bound;

use percolite::{Error, ErrorKind, Existing, KEYSPACE_NAME_MAX_BYTES, Store, VALUE_MAX_BYTES};

fn is_invalid(why: &Error) -> bool {
    matches!(why.kind(), ErrorKind::InvalidArgument(_))
}

#[test]
fn what_is_too_large_is_refused_and_the_transaction_goes_on() {
    let store = Store::builder().transaction_max_bytes(VALUE_MAX_BYTES + 1000).stream_at_bytes(usize::MAX).in_memory();
    let store = store.unwrap();
    let rows = store.keyspace("rows").unwrap();
    let mut txn = store.begin().unwrap();
    txn.put(&rows, "small", "v").unwrap();
    let mut value = vec![7; VALUE_MAX_BYTES + 1];
    let refused = |why: Error, what: &str| {
        assert!(matches!(why.kind(), ErrorKind::TooLarge { .. }), "{why}");
        assert!(why.to_string().starts_with(what), "{why}");
    };
    refused(
        txn.put(&rows, "large", &value).unwrap_err(),
        "a value of 33554433 bytes exceeds the limit of 33554432 bytes",
    );
    refused(txn.insert(&rows, "large", &value).unwrap_err(), "a value of 33554433 bytes");
    value.pop();
    txn.put(&rows, "largest", &value).unwrap();
    refused(txn.put(&rows, "one more", vec![1; 1000]).unwrap_err(), "a transaction of ");
    assert_eq!([txn.get(&rows, "large").unwrap(), txn.get(&rows, "one more").unwrap()], [None, None]);
    txn.commit().unwrap();
    let snapshot = store.snapshot().unwrap();
    assert_eq!(snapshot.get(&rows, "largest").unwrap().as_ref(), Some(&value));
    let keys: Vec<_> = snapshot.range(&rows, ..).map(|row| row.unwrap().0).collect();
    assert_eq!(keys, [&b"largest"[..], b"small"]);
}

/// More than are looked for one by one.
fn many_keys() -> impl Iterator<Item = [u8; 1]> {
    (0..20).map(|key| [key])
}

#[test]
fn everything_answers_closed_after_close() {
    let store = Store::in_memory().unwrap();
    let rows = store.keyspace("rows").unwrap();
    store.transact(|txn| (0..200_u8).try_for_each(|key| txn.put(&rows, [key], "v"))).unwrap();
    let (mut txn, other, snapshot) = (store.begin().unwrap(), store.begin().unwrap(), store.snapshot().unwrap());
    txn.put(&rows, "k", "v").unwrap();
    let savepoint = txn.savepoint();
    let mut scan = snapshot.range(&rows, ..);
    scan.next().unwrap().unwrap();
    let at = (snapshot.read_ts(), txn.owner());
    store.clone().close().unwrap();

    let answers = [
        store.begin().map(drop),
        store.snapshot().map(drop),
        store.snapshot_at(at.0).map(drop),
        store.sync(),
        store.keyspace("rows").map(drop),
        store.existing_keyspace("rows").map(drop),
        store.keyspaces().map(drop),
        store.drop_keyspace("rows"),
        store.transact(|txn| txn.put(&rows, "k", "v")),
        store.locks().map(drop),
        store.resolve_orphans().map(drop),
        store.txn_status(&rows.row_of("k"), at.0, at.1).map(drop),
        store.verify(|_| ()).map(drop),
        store.checkpoint("copy"),
        store.restore(&b""[..], Existing::Refuse, |_| ()).map(drop),
        snapshot.get(&rows, "k").map(drop),
        snapshot.multi_get(&rows, many_keys()).map(drop),
        snapshot.keyspaces().map(drop),
        snapshot.versions(&rows, "k").map(drop),
        snapshot.dump(Vec::new(), |_| ()).map(drop),
        snapshot.range(&rows, ..).next().unwrap().map(drop),
        // What it had read ahead may come first.
        scan.find_map(Result::err).map_or(Ok(()), Err),
        txn.get(&rows, "k").map(drop),
        txn.multi_get(&rows, many_keys()).map(drop),
        txn.put(&rows, "k", "w"),
        txn.delete(&rows, "k"),
        txn.get_for_update(&rows, "k").map(drop),
        txn.prefix(&rows, "k").next().unwrap().map(drop),
        txn.commit().map(drop),
        other.commit().map(drop),
    ];
    for (number, answer) in answers.into_iter().enumerate() {
        let why = answer.expect_err(&format!("call {number}"));
        assert!(matches!(why.kind(), ErrorKind::Closed(_)), "call {number}: {why}");
        assert!(why.to_string().contains("closed by its user"), "call {number}: {why}");
    }
    let _ = savepoint;
    store.close().unwrap();
}

#[test]
fn a_name_that_is_not_allowed_is_refused_before_anything_is_made() {
    let store = Store::in_memory().unwrap();
    let long = "n".repeat(KEYSPACE_NAME_MAX_BYTES + 1);
    for name in ["", "a\nb", "a\0", "\u{7f}", "\u{9b}31m", &long] {
        let why = store.keyspace(name).unwrap_err();
        assert!(is_invalid(&why) && why.to_string().contains("1 to 255 bytes"), "{name:?}: {why}");
        for why in [store.existing_keyspace(name).map(drop), store.drop_keyspace(name)].map(Result::unwrap_err) {
            assert_eq!(*why.kind(), ErrorKind::NoSuchKeyspace(name.into()));
        }
    }
    assert!(store.keyspaces().unwrap().is_empty());
    let mut allowed = vec!["..", "/", "name/x", "next", "dropped/0000000001", " ", "\u{1f600}", &long[1..]];
    for name in &allowed {
        store.keyspace(name).unwrap();
    }
    allowed.sort_unstable();
    assert_eq!(store.keyspaces().unwrap(), allowed);
}

#[test]
fn a_keyspace_of_another_store_is_refused() {
    let (store, other) = (Store::in_memory().unwrap(), Store::in_memory().unwrap());
    let (own, foreign) = (store.keyspace("rows").unwrap(), other.keyspace("rows").unwrap());
    let (mut txn, snapshot) = (store.begin().unwrap(), store.snapshot().unwrap());
    for why in [
        txn.put(&foreign, "k", "v").unwrap_err(),
        txn.get(&foreign, "k").unwrap_err(),
        txn.multi_get(&foreign, many_keys()).unwrap_err(),
        snapshot.get(&foreign, "k").unwrap_err(),
        snapshot.multi_get(&foreign, many_keys()).unwrap_err(),
        snapshot.range(&foreign, ..).next().unwrap().unwrap_err(),
    ] {
        assert!(is_invalid(&why) && why.to_string().contains("belongs to another store"), "{why}");
    }
    txn.put(&own, "k", "v").unwrap();
    txn.commit().unwrap();
    assert_eq!(other.snapshot().unwrap().range(&foreign, ..).count(), 0);
}

#[test]
fn a_range_that_starts_after_its_end_is_empty() {
    let store = Store::in_memory().unwrap();
    let rows = store.keyspace("rows").unwrap();
    store.transact(|txn| ["a", "b", "c"].iter().try_for_each(|key| txn.put(&rows, key, "v"))).unwrap();
    let (mut txn, snapshot) = (store.begin().unwrap(), store.snapshot().unwrap());
    // Own writes are laid over by other means than the store's rows are read.
    ["a", "b", "d"].iter().for_each(|key| txn.put(&rows, key, "own").unwrap());
    let excluded = |from, to| (Bound::Excluded(from), Bound::Excluded(to));
    for range in
        [excluded("c", "a"), excluded("b", "b"), excluded("z", ""), (Bound::Included("c"), Bound::Included("a"))]
    {
        assert_eq!((txn.range(&rows, range).count(), txn.range(&rows, range).rev().count()), (0, 0), "{range:?}");
        assert_eq!(
            (snapshot.range(&rows, range).count(), snapshot.range(&rows, range).rev().count()),
            (0, 0),
            "{range:?}"
        );
    }
    assert_eq!((txn.range(&rows, "c".."a").count(), txn.range(&rows, "b".."b").count()), (0, 0));
    assert_eq!((txn.range(&rows, "c"..="a").count(), txn.range(&rows, .."").count()), (0, 0));
    assert_eq!(txn.range(&rows, "b"..="b").count(), 1);
}
