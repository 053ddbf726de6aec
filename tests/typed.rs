//! Typed keys and values: order, prefixes, bytes on disk, and bytes that do not decode.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that cannot go on fails")]
#![allow(clippy::pedantic, missing_docs, reason = "style of a library, not of its tests")]

use std::collections::{BTreeMap, HashMap};
use std::fmt::Debug;
use std::ops::Bound;

use percolite::{Error, ErrorKind, Keyspace, MAX_KEY_BYTES, Readable, Store, TypedKeyspace, TypedScan};
use proptest::prelude::*;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

type Key = (String, i32, Option<bool>);

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
enum Value {
    Old(u8),
    New { name: String, parts: Vec<f32>, by_name: HashMap<String, i64> },
}

fn open() -> (Store, Keyspace) {
    let store = Store::in_memory().unwrap();
    let rows = store.keyspace("rows").unwrap();
    (store, rows)
}

fn collect<K, V>(scan: percolite::Result<TypedScan<K, V>>) -> Vec<(K, V)>
where
    K: Serialize + DeserializeOwned,
    V: Serialize + DeserializeOwned,
{
    scan.unwrap().map(Result::unwrap).collect()
}

fn any_key() -> impl Strategy<Value = Key> {
    ("[\\x00\\x01ab]{0,2}", -2..3_i32, any::<Option<bool>>())
}

proptest! {
    #[test]
    fn rows_are_those_of_a_sorted_map(
        rows in prop::collection::btree_map(any_key(), any::<u16>(), 0..30), from in any_key(), to in any_key(),
    ) {
        let (store, keyspace) = open();
        let typed: TypedKeyspace<Key, u16> = keyspace.typed();
        store.transact(|txn| {
            rows.iter().try_for_each(|(key, value)| typed.put(txn, key, value))?;
            check(&typed, txn, &rows, &from, &to);
            Ok::<_, Error>(())
        }).unwrap();
        check(&typed, &store.snapshot().unwrap(), &rows, &from, &to);
        check(&typed, &store, &rows, &from, &to);
    }
}

fn check(typed: &TypedKeyspace<Key, u16>, reader: &impl Readable, rows: &BTreeMap<Key, u16>, from: &Key, to: &Key) {
    let some = |keep: &dyn Fn(&Key) -> bool| -> Vec<(Key, u16)> {
        rows.iter().filter(|(key, _)| keep(key)).map(|(key, value)| (key.clone(), *value)).collect()
    };
    assert_eq!(collect(typed.range(reader, ..)), some(&|_| true));
    assert_eq!(collect(typed.range(reader, from.clone()..to.clone())), some(&|key| from <= key && key < to));
    let open = (Bound::Excluded(from.clone()), Bound::Included(to.clone()));
    assert_eq!(collect(typed.range(reader, open)), some(&|key| from < key && key <= to));
    let mut backwards: Vec<_> = typed.range(reader, from.clone()..).unwrap().rev().map(Result::unwrap).collect();
    backwards.reverse();
    assert_eq!(backwards, some(&|key| from <= key));
    assert_eq!(collect(typed.prefix(reader, (from.0.as_str(),))), some(&|key| key.0 == from.0));
    assert_eq!(collect(typed.prefix(reader, (&from.0, &from.1))), some(&|key| (&key.0, key.1) == (&from.0, from.1)));
    let within = |range: &dyn Fn(&i32) -> bool| some(&|key| key.0 == from.0 && range(&key.1));
    let (prefix, low, high) = ((from.0.as_str(),), from.1, to.1);
    assert_eq!(collect(typed.prefix_range(reader, prefix, ..)), within(&|_| true));
    assert_eq!(collect(typed.prefix_range(reader, prefix, low..high)), within(&|part| (low..high).contains(part)));
    assert_eq!(collect(typed.prefix_range(reader, prefix, low..=high)), within(&|part| (low..=high).contains(part)));
    assert_eq!(collect(typed.prefix_range(reader, prefix, ..=high)), within(&|part| *part <= high));
    let open = (Bound::Excluded(low), Bound::Unbounded);
    assert_eq!(collect(typed.prefix_range(reader, prefix, open)), within(&|part| *part > low));
    let last = (Bound::Excluded(from.2), Bound::Included(to.2));
    assert_eq!(
        collect(typed.prefix_range(reader, (&from.0, &from.1), last)),
        some(&|key| (&key.0, key.1) == (&from.0, from.1) && from.2 < key.2 && key.2 <= to.2)
    );
    let keys = |scan: percolite::Result<TypedScan<Key, u16>>| scan.unwrap().keys().map(Result::unwrap);
    assert!(keys(typed.range(reader, ..)).eq(rows.keys().cloned()));
    assert!(keys(typed.range(reader, ..)).rev().eq(rows.keys().rev().cloned()));
    assert_eq!(typed.multi_get(reader, [from, to]).unwrap(), [rows.get(from).copied(), rows.get(to).copied()]);
    assert_eq!(typed.contains_key(reader, from).unwrap(), rows.contains_key(from));
}

proptest! {
    #[test]
    fn deletions_are_those_of_a_sorted_map(
        rows in prop::collection::btree_map(any_key(), any::<u16>(), 0..30), from in any_key(), to in any_key(),
    ) {
        let (store, keyspace) = open();
        let typed: TypedKeyspace<Key, u16> = keyspace.typed();
        store.transact(|txn| rows.iter().try_for_each(|(key, value)| typed.put(txn, key, value))).unwrap();
        let mut txn = store.begin().unwrap();
        let mut left = rows.clone();
        left.retain(|key, _| key.0 != from.0);
        prop_assert_eq!(typed.delete_prefix(&mut txn, (&from.0,)).unwrap(), (rows.len() - left.len()) as u64);
        prop_assert!(collect(typed.range(&txn, ..)).into_iter().eq(left.clone()));
        let before = left.len();
        left.retain(|key, _| !(&from..=&to).contains(&key));
        prop_assert_eq!(typed.delete_range(&mut txn, from..=to).unwrap(), (before - left.len()) as u64);
        txn.commit().unwrap();
        prop_assert!(collect(typed.range(&store, ..)).into_iter().eq(left));
    }
}

/// Parts whose bytes are all 0xff have no successor.
#[test]
fn a_range_within_a_prefix_ends_at_the_last_key_of_all() {
    let (store, rows) = open();
    let typed = rows.typed::<(u8, u8, u8), ()>();
    let keys = [(254, 255, 255), (255, 254, 0), (255, 255, 0), (255, 255, 255)];
    store.transact(|txn| keys.iter().try_for_each(|key| typed.put(txn, key, &()))).unwrap();
    let within = |range: (Bound<u8>, Bound<u8>)| {
        typed.prefix_range(&store, (&255_u8,), range).unwrap().keys().map(Result::unwrap).collect::<Vec<_>>()
    };
    assert_eq!(within((Bound::Included(255), Bound::Included(255))), keys[2..]);
    assert_eq!(within((Bound::Included(255), Bound::Unbounded)), keys[2..]);
    assert_eq!(within((Bound::Excluded(254), Bound::Unbounded)), keys[2..]);
    assert_eq!(within((Bound::Excluded(255), Bound::Unbounded)), []);
    assert_eq!(within((Bound::Unbounded, Bound::Excluded(255))), keys[1..2]);
}

#[test]
fn every_call_of_a_transaction_has_its_typed_one() {
    let (store, rows) = open();
    let typed = rows.typed::<String, Value>();
    let new = Value::New { name: "ä".into(), parts: vec![1.5, -0.0], by_name: [("x".into(), -1)].into() };
    let mut txn = store.begin().unwrap();
    typed.insert(&mut txn, "a", &Value::Old(1)).unwrap();
    let error = typed.insert(&mut txn, "a", &new).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::AlreadyExists(_)), "{error}");
    assert_eq!(typed.get_for_update(&mut txn, "a").unwrap(), Some(Value::Old(1)));
    typed.put(&mut txn, "a", &new).unwrap();
    typed.put(&mut txn, "b", &new).unwrap();
    typed.delete(&mut txn, "b").unwrap();
    txn.commit().unwrap();
    let snapshot = store.snapshot().unwrap();
    assert_eq!(typed.get(&snapshot, "a").unwrap(), Some(new));
    assert_eq!(typed.get(&snapshot, "b").unwrap(), None);
}

/// Never edit a line: rows on disk have these bytes.
#[test]
fn golden_bytes_of_rows() {
    let (store, rows) = open();
    let typed = rows.clone().typed::<(String, i16), Value>();
    let new = Value::New { name: "n".into(), parts: vec![1.0], by_name: [("x".into(), -1)].into() };
    store
        .transact(|txn| {
            typed.put(txn, &("a\0".into(), -1), &Value::Old(7))?;
            typed.put(txn, &("a\0".into(), 1), &new)
        })
        .unwrap();
    let stored: Vec<_> = store.snapshot().unwrap().range(&rows, ..).map(Result::unwrap).collect();
    assert_eq!((stored[0].key(), stored[0].value()), (&b"a\0\xff\0\x01\x7f\xff"[..], &b"\x01\x00\x07"[..]));
    let value = b"\x01\x01\x01n\x01\x00\x00\x80\x3f\x01\x01x\x01";
    assert_eq!((stored[1].key(), stored[1].value()), (&b"a\0\xff\0\x01\x80\x01"[..], &value[..]));
    assert_eq!(stored.len(), 2);
}

#[test]
fn a_typed_read_on_a_store_is_of_the_newest_state() {
    let (store, rows) = open();
    let typed = rows.typed::<String, u64>();
    let put = |number: u64| store.transact(|txn| typed.put(txn, "k", &number)).unwrap();
    put(1);
    assert_eq!(typed.get(&store, "k").unwrap(), Some(1));
    let scan = typed.range(&store, ..);
    put(2);
    assert_eq!(typed.get(&store, "k").unwrap(), Some(2));
    assert_eq!(collect(scan), [("k".to_owned(), 1)]);
    store.clone().close().unwrap();
    let refusals = [
        typed.get(&store, "k").map(drop),
        typed.contains_key(&store, "k").map(drop),
        typed.multi_get(&store, ["k"]).map(drop),
        typed.range(&store, ..).map(drop),
    ];
    for refused in refusals {
        assert!(matches!(refused.unwrap_err().kind(), ErrorKind::Closed(_)));
    }
}

#[track_caller]
fn assert_is_corruption<T: Debug>(outcome: percolite::Result<T>, naming: &str) {
    let error = outcome.unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Corruption(_)), "{error}");
    assert!(error.to_string().contains(naming), "{error}");
    assert!(error.to_string().contains("\"rows\""), "{error}");
}

#[test]
fn undecodable_bytes_are_corruption_that_names_the_key() {
    let (store, rows) = open();
    let typed = rows.clone().typed::<u16, String>();
    let put = |key: &[u8], value: &[u8]| store.transact(|txn| txn.put(&rows, key, value)).unwrap();
    put(b"\0\x01", b"\x01\x01v");
    put(b"\0\x02", b"\x01\x02v"); // too short
    put(b"\0\x03", b"\x01\x01vv"); // too long
    put(b"\0\x04", b"\x02\x01v"); // another format
    put(b"\0\x05", b""); // nothing
    put(b"\0\x06", b"\x01\xfd\xff\xff\xff\xff\xff\xff\xff\xff"); // a length beyond all memory
    put(b"\0\x07", b"\x01\xfc\xff\xff\xff\x7f"); // a length beyond the end of the bytes
    put(b"\0\x08x", b"\x01\x01v"); // a key that is too long
    put(b"\0\x09", b"\x01\x01w");
    let snapshot = store.snapshot().unwrap();
    for key in 2..8_u16 {
        assert_is_corruption(typed.get(&snapshot, &key), &format!("\\x00\\x0{key}"));
        assert_is_corruption(typed.get_for_update(&mut store.begin().unwrap(), &key), &format!("\\x00\\x0{key}"));
    }
    // Keys need no values, and only the key that is too long does not decode.
    let keys: Vec<_> = typed.range(&snapshot, ..).unwrap().keys().map(Result::ok).collect();
    assert_eq!(keys, [1, 2, 3, 4, 5, 6, 7, 0, 9].map(|key| Some(key).filter(|key| *key > 0)));
    assert_is_corruption(typed.range(&snapshot, 8..9).unwrap().keys().next().unwrap(), "\\x00\\x08x");
    // A scan continues after rows that do not decode, from either end.
    let mut scan = typed.range(&snapshot, ..).unwrap();
    assert_eq!(scan.next().unwrap().unwrap(), (1, "v".into()));
    assert_is_corruption(scan.next().unwrap(), "\\x00\\x02");
    assert_eq!(scan.next_back().unwrap().unwrap(), (9, "w".into()));
    assert_is_corruption(scan.next_back().unwrap(), "\\x00\\x08x");
    assert_eq!(scan.count(), 5);
}

#[test]
fn what_cannot_be_encoded_is_refused_and_changes_nothing() {
    #[derive(PartialEq, PartialOrd, Serialize, Deserialize)]
    struct Refuses(#[serde(serialize_with = "refuse")] u8);
    fn refuse<S: serde::Serializer>(_: &u8, _: S) -> Result<S::Ok, S::Error> {
        Err(serde::ser::Error::custom("on purpose"))
    }
    let (store, rows) = open();
    let mut txn = store.begin().unwrap();
    let invalid = |error: Error| {
        assert!(matches!(error.kind(), ErrorKind::InvalidArgument(_)), "{error}");
        error.to_string()
    };
    let values = rows.clone().typed::<u8, Refuses>();
    assert!(invalid(values.put(&mut txn, &1, &Refuses(1)).unwrap_err()).contains("on purpose"));
    let keys = rows.clone().typed::<Refuses, u8>();
    assert!(invalid(keys.put(&mut txn, &Refuses(1), &1).unwrap_err()).contains("on purpose"));
    invalid(keys.range(&txn, Refuses(1)..).err().unwrap());
    let maps = rows.clone().typed::<BTreeMap<u8, u8>, u8>();
    invalid(maps.get(&txn, &BTreeMap::new()).unwrap_err());
    // `()` encodes as no bytes, and a key must not be empty.
    invalid(rows.clone().typed::<(), u8>().put(&mut txn, &(), &1).unwrap_err());
    let long = "x".repeat(MAX_KEY_BYTES);
    let error = rows.clone().typed::<String, u8>().put(&mut txn, long.as_str(), &1).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::TooLarge { .. }), "{error}");
    txn.commit().unwrap();
    assert_eq!(store.snapshot().unwrap().range(&rows, ..).count(), 0);
}

#[test]
fn an_appended_enum_variant_keeps_old_rows_readable() {
    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    enum Before {
        A(u8),
    }
    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    enum After {
        A(u8),
        B,
    }
    let (store, rows) = open();
    let before = rows.clone().typed::<Before, Before>();
    store.transact(|txn| before.put(txn, &Before::A(1), &Before::A(2))).unwrap();
    let after = rows.typed::<After, After>();
    store.transact(|txn| after.put(txn, &After::B, &After::B)).unwrap();
    let snapshot = store.snapshot().unwrap();
    assert_eq!(collect(after.range(&snapshot, ..)), [(After::A(1), After::A(2)), (After::B, After::B)]);
}
