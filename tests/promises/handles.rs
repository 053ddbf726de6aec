//! Handles: one type for what is read from, `Debug` of each, errors that can be cloned.

use std::error::Error as _;
use std::sync::Arc;

use percolite::{Keyspace, LockOptions, Readable, Reader, Store, TxnOptions};

fn all_keys(reader: Reader<'_>, rows: &Keyspace) -> Vec<Vec<u8>> {
    reader.range(rows, ..).unwrap().keys().map(Result::unwrap).collect()
}

#[test]
fn a_reader_reads_what_it_was_made_of() {
    let store = Store::in_memory().unwrap();
    let rows = store.keyspace("rows").unwrap();
    let put = |key: &str| store.transact(|txn| txn.put(&rows, key, key)).unwrap();
    put("a");
    let snapshot = store.snapshot().unwrap();
    let mut txn = store.begin().unwrap();
    txn.put(&rows, "own", "").unwrap();
    put("b");
    let shown = [
        (Reader::from(&store), vec!["a", "b"]),
        (Reader::from(&snapshot), vec!["a"]),
        (Reader::from(&txn), vec!["a", "own"]),
    ];
    for (reader, shown) in shown {
        let keys: Vec<Vec<u8>> = shown.iter().map(|key| key.as_bytes().to_vec()).collect();
        assert_eq!(all_keys(reader, &rows), keys, "{reader:?}");
        for key in ["a", "b", "own"] {
            let is_shown = shown.contains(&key);
            assert_eq!(reader.contains_key(&rows, key).unwrap(), is_shown, "{reader:?}");
            assert_eq!(reader.get(&rows, key).unwrap().is_some(), is_shown, "{reader:?}");
            assert_eq!(reader.prefix(&rows, key).unwrap().count(), usize::from(is_shown), "{reader:?}");
        }
        let several = reader.multi_get(&rows, ["a", "b", "own"]).unwrap();
        assert_eq!(several.iter().flatten().count(), shown.len(), "{reader:?}");
    }
}

#[test]
fn a_box_of_any_source_is_read_by_untyped_and_typed_calls() {
    let store = Store::in_memory().unwrap();
    let rows = store.keyspace("rows").unwrap();
    let typed = rows.clone().typed::<u8, u8>();
    store.transact(|txn| typed.put(txn, &1, &10)).unwrap();
    let mut txn = store.begin().unwrap();
    typed.put(&mut txn, &2, &20).unwrap();
    let sources: [(Box<dyn Readable + Send + Sync>, usize); 4] = [
        (Box::new(store.clone()), 1),
        (Box::new(store.snapshot().unwrap()), 1),
        (Box::new(Arc::new(store.snapshot().unwrap())), 1),
        (Box::new(txn), 2),
    ];
    for (source, count) in &sources {
        assert_eq!(all_keys(source.reader(), &rows).len(), *count);
        assert_eq!(typed.get(source, &1).unwrap(), Some(10));
        assert_eq!(typed.range(&**source, ..).unwrap().count(), *count);
    }
}

/// Whether every public type has `Debug` is checked by the compiler:
/// `missing_debug_implementations`.
#[test]
fn debug_of_a_handle_names_it_and_shows_no_data() {
    let store = Store::in_memory().unwrap();
    let rows = store.keyspace("rows").unwrap();
    let mut txn = store.begin_with(TxnOptions::with_label("transfer")).unwrap();
    txn.put(&rows, "key-of-a-row", "value-of-a-row").unwrap();
    let shown = [
        (format!("{store:?}"), "Store"),
        (format!("{txn:?}"), "Txn"),
        (format!("{:?}", txn.range(&rows, ..)), "Scan"),
        (format!("{:?}", txn.range(&rows, ..).keys()), "Keys"),
        (format!("{:?}", store.snapshot().unwrap()), "Snapshot"),
        (format!("{:?}", store.row_locks().unwrap()), "RowLocks"),
        (format!("{:?}", store.lock_with("job", LockOptions::exclusive()).unwrap()), "LockGuard"),
        (format!("{:?}", store.sequence(&rows, "numbers").unwrap()), "Sequence"),
        (format!("{:?}", Store::builder()), "Builder"),
        (format!("{:?}", rows.typed::<u8, u8>().range(&txn, ..).unwrap()), "TypedScan"),
    ];
    for (text, name) in shown {
        assert!(text.starts_with(name), "{text}");
        assert!(!text.contains("-of-a-row"), "{text}");
    }
    let text = format!("{txn:?}");
    assert!(text.contains("\"transfer\"") && text.contains("buffered_rows: 1"), "{text}");
}

#[test]
fn a_cloned_error_is_the_same_error() {
    let store = Store::in_memory().unwrap();
    let rows = store.keyspace("rows").unwrap();
    let loser = {
        let mut loser = store.begin().unwrap();
        store.transact(|txn| txn.put(&rows, "k", "first")).unwrap();
        loser.put(&rows, "k", "second").unwrap();
        loser
    };
    let error = loser.commit().unwrap_err();
    let clone = error.clone();
    assert!(clone.is_retryable() && clone.conflict() == error.conflict());
    assert_eq!((clone.kind(), clone.to_string()), (error.kind(), error.to_string()));
    assert_eq!(clone.source().is_some(), error.source().is_some());
}
