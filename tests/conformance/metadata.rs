//! The store's metadata: named entries, the safe point, the GC queue and the transaction records.

use std::sync::atomic::{AtomicBool, Ordering};

use percolite::Timestamp;
use percolite::row::{CellChange, RowChange, RowKey, TxnRecord};

use crate::common::{
    Pace, Subject, change, deletion, make, put, put_status, put_version, put_write, row, ts, txn_record_pages,
};

fn set(engine: &Subject, entries: &[(&str, Option<&str>)]) {
    let entries: Vec<_> = entries
        .iter()
        .map(|(name, value)| ((*name).to_owned(), value.map(|value| value.as_bytes().to_vec())))
        .collect();
    engine.write_meta(&entries).unwrap();
}

fn names(engine: &Subject, prefix: &str) -> Vec<String> {
    engine.scan_meta(prefix).unwrap().into_iter().map(|(name, _)| name).collect()
}

pub fn entries_are_listed_by_prefix_in_order(engine: &Subject) {
    let all = ["a", "a/", "a/1", "a/10", "a/2", "a0", "b", "b/\u{7f}", "b/\u{e9}", "b/\u{10ffff}", "c"];
    let mut shuffled: Vec<_> = all.iter().map(|name| (*name, Some(*name))).collect();
    shuffled.rotate_left(4);
    shuffled.reverse();
    set(engine, &shuffled);
    for prefix in ["", "a", "a/", "a/1", "b", "b/", "b/\u{10ffff}", "c", "d", "a/2/"] {
        let expected: Vec<&str> = all.into_iter().filter(|name| name.starts_with(prefix)).collect();
        assert_eq!(names(engine, prefix), expected, "prefix {prefix:?}");
    }
    for (name, value) in engine.scan_meta("").unwrap() {
        assert_eq!(name.as_bytes(), value);
        assert_eq!(engine.get_meta(&name).unwrap(), Some(value));
    }
    assert_eq!(engine.get_meta("a/3").unwrap(), None);
    set(engine, &[("a/1", None), ("a/2", Some("")), ("nothing", None)]);
    assert_eq!(names(engine, "a/"), ["a/", "a/10", "a/2"]);
    assert_eq!(engine.get_meta("a/2").unwrap(), Some(Vec::new()), "an empty entry is an entry");
    // A row is no metadata entry, whatever its key is.
    make(&**engine, [put_write("a/9", put(20))]);
    assert_eq!(names(engine, "a/"), ["a/", "a/10", "a/2"]);
}

pub fn entries_are_set_all_or_none(engine: &Subject) {
    const ROUNDS_MAX: u64 = 1_000_000;
    const CHANGES: u64 = 15;
    let done = AtomicBool::new(false);
    let mut round = 0;
    let pace = Pace::default();
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let (mut changes, mut last) = (0, Vec::new());
            while changes < CHANGES && !done.load(Ordering::Relaxed) {
                let found = engine.scan_meta("pair/").unwrap();
                let names: Vec<&str> = found.iter().map(|(name, _)| name.as_str()).collect();
                assert!(matches!(names[..], [] | ["pair/a", "pair/b", "pair/even" | "pair/odd"]), "{names:?}");
                assert!(found.windows(2).all(|pair| pair[0].1 == pair[1].1), "{found:?}");
                pace.looked();
                changes += u64::from(found != last);
                last = found;
            }
            assert_eq!(changes, CHANGES, "the reader saw too few rounds");
        });
        while round < ROUNDS_MAX && !reader.is_finished() || round % 2 == 1 {
            let value = Some(round.to_string());
            let (new, old) = if round % 2 == 0 { ("pair/even", "pair/odd") } else { ("pair/odd", "pair/even") };
            let value = value.as_deref();
            set(engine, &[("pair/b", value), (new, value), (old, None), ("pair/a", value)]);
            round += 1;
            if round % 7 == 0 {
                pace.wait(|| reader.is_finished());
            }
        }
        done.store(true, Ordering::Relaxed);
        reader.join().unwrap();
    });
    assert_eq!(names(engine, "pair/"), ["pair/a", "pair/b", "pair/odd"]);
}

pub fn the_safe_point_never_decreases(engine: &Subject) {
    assert_eq!(engine.safe_point().unwrap(), Timestamp::ZERO);
    let steps =
        [(0, 0), (10, 10), (5, 10), (10, 10), (300, 300), (299, 300), (0, 300), (u64::MAX, u64::MAX), (7, u64::MAX)];
    for (to, expected) in steps {
        engine.advance_safe_point(ts(to)).unwrap();
        assert_eq!(engine.safe_point().unwrap(), ts(expected), "after a step to {to}");
        assert_eq!(engine.read_row(&row("a"), ts(1)).unwrap().safe_point, ts(expected));
    }
}

pub fn the_gc_queue_is_ordered_and_bounded(engine: &Subject) {
    assert_eq!(engine.gc_candidates(None, Timestamp::MAX, 10).unwrap(), []);
    let deleted = [(300, "a"), (20, "z"), (20, "b"), (255, "c"), (256, "b"), (65_536, "\0"), (21, "")];
    for (at, key) in deleted {
        make(&**engine, [put_write(key, deletion(at)), put_write("put", put(at))]);
    }
    // A row that was written again after its deletion stays in the queue.
    make(&**engine, [put_write("c", put(400))]);
    let mut all: Vec<_> = deleted.iter().map(|(at, key)| (ts(*at), row(key))).collect();
    all.sort();
    for upto in [0, 19, 20, 21, 255, 256, 299, 300, 65_535, 65_536, u64::MAX] {
        for limit in [1, 2, 3, 6, 7, 8, usize::MAX] {
            let mut expected: Vec<_> = all.iter().filter(|(at, _)| *at <= ts(upto)).cloned().collect();
            expected.truncate(limit);
            assert_eq!(engine.gc_candidates(None, ts(upto), limit).unwrap(), expected, "{limit} up to {upto}");
        }
    }
    for after in &all {
        let expected: Vec<_> = all.iter().filter(|entry| *entry > after).cloned().collect();
        assert_eq!(engine.gc_candidates(Some(after), Timestamp::MAX, 10).unwrap(), expected, "after {after:?}");
        let first: Vec<_> = expected.into_iter().take(1).collect();
        assert_eq!(engine.gc_candidates(Some(after), Timestamp::MAX, 1).unwrap(), first, "one after {after:?}");
    }
    let absent = (ts(21), row("m"));
    assert_eq!(engine.gc_candidates(Some(&absent), ts(255), 10).unwrap(), [(ts(255), row("c"))]);
    assert_eq!(engine.gc_candidates(Some(&all[3]), ts(20), 10).unwrap(), [], "the range is empty");
    // Other metadata is not in the queue.
    set(engine, &[("gb", Some("x")), ("gc", Some("x")), ("gc0", Some("x"))]);
    assert_eq!(engine.gc_candidates(None, Timestamp::MAX, 100).unwrap(), all);
}

pub fn txn_records_are_listed_by_row_below_a_timestamp(engine: &Subject) {
    let all = |before, limit| txn_record_pages(&**engine, before, limit);
    assert_eq!(all(Timestamp::MAX, 10).0, []);
    let ended = [("b", 10), ("a\0", 30), ("b", 30), ("a", 20), ("b", 20), ("", 256), ("c", 255)];
    for (key, at) in ended {
        let status = if at == 20 { TxnRecord::RolledBack } else { TxnRecord::Committed(ts(at + 1)) };
        make(&**engine, [put_status(key, at, status), put_version("d", put(at + 1))]);
        make(&**engine, [put_version(key, put(at + 1))]);
    }
    let sorted = |mut rows: Vec<(RowKey, Timestamp)>| {
        rows.sort();
        rows
    };
    for before in [0, 10, 11, 20, 21, 30, 31, 255, 256, 257, u64::MAX] {
        let below = ended.iter().filter(|(_, at)| *at < before).map(|(key, at)| (row(key), ts(*at)));
        let expected = sorted(below.collect());
        let found = all(ts(before), 1000).0;
        assert!(found.is_sorted_by_key(|(row, _)| row.clone()), "{found:?}");
        assert_eq!(sorted(found.clone()), expected, "before {before}");
        for limit in [1, 2, 3, 6, 7, 8] {
            let (paged, pages) = all(ts(before), limit);
            assert_eq!(paged, found);
            assert!(pages >= ended.len() / limit, "{pages} pages of {limit}");
        }
    }
    make(&**engine, [RowChange { txn_record: CellChange::Delete, ..change("b", 20) }]);
    assert_eq!(all(ts(31), 100).0.len(), 4);
}

pub fn a_limit_of_zero_lists_nothing(engine: &Subject) {
    make(&**engine, [put_write("a", deletion(20)), put_status("a", 19, TxnRecord::RolledBack)]);
    assert_eq!(engine.gc_candidates(None, Timestamp::MAX, 0).unwrap(), [], "the limit is zero");
}

pub fn gc_done_removes_the_queue_entry(engine: &Subject) {
    make(&**engine, [put_write("a", deletion(20)), put_write("b", deletion(20)), put_write("c", deletion(30))]);
    make(&**engine, [put_write("a", deletion(40))]);
    let list = || engine.gc_candidates(None, Timestamp::MAX, 10).unwrap();
    assert_eq!(list(), [(ts(20), row("a")), (ts(20), row("b")), (ts(30), row("c")), (ts(40), row("a"))]);
    let gc_done = |key: &str, at: u64| RowChange { gc_done: vec![ts(at)], ..change(key, 0) };
    make(&**engine, [gc_done("a", 20)]);
    assert_eq!(
        list(),
        [(ts(20), row("b")), (ts(30), row("c")), (ts(40), row("a"))],
        "only the entry of that row and timestamp"
    );
    assert_eq!(engine.read_row(&row("a"), ts(0)).unwrap().write, Some(deletion(40)), "the tombstone itself stays");
    make(&**engine, [gc_done("c", 29), gc_done("x", 30)]);
    assert_eq!(list().len(), 3, "an entry that is not in the queue cannot be removed");
    make(&**engine, [RowChange { write: CellChange::Delete, ..gc_done("c", 30) }, gc_done("b", 20)]);
    assert_eq!(list(), [(ts(40), row("a"))]);
    assert_eq!(engine.read_row(&row("c"), ts(0)).unwrap().write, None);
}
