//! Scans over locks, over own writes, and over keys that are prefixes of each other.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Bound, ControlFlow};

use percolite::engine::storage::Column;
use percolite::{Keyspace, Row, Scan, Snapshot, Txn, Value};

use crate::environment::{Dice, Environment, Opened, long};
use crate::hooked_engine::{Act, commits};

type Model = BTreeMap<Vec<u8>, Value>;

fn rows(scan: impl Iterator<Item = percolite::Result<Row>>) -> Vec<(Vec<u8>, Value)> {
    scan.map(|row| row.unwrap().into_parts()).collect()
}

/// Reads all rows and returns them in order. Each step is drawn: it reads the next row from the
/// front, the next from the back, or up to four from the front with `visit`.
fn alternating(mut scan: Scan, dice: &mut Dice) -> Vec<(Vec<u8>, Value)> {
    let (mut front, mut back) = (Vec::new(), Vec::new());
    loop {
        let is_over = match dice.below(3) {
            0 => scan.next().map(|row| front.push(row.unwrap().into_parts())).is_none(),
            1 => scan.next_back().map(|row| back.push(row.unwrap().into_parts())).is_none(),
            _ => {
                let mut left = 1 + dice.below(4);
                let lent = scan.visit(|key, value| {
                    front.push((key.to_vec(), value.into()));
                    left -= 1;
                    if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
                });
                lent.unwrap().is_continue()
            }
        };
        if is_over {
            break;
        }
    }
    back.reverse();
    front.extend(back);
    front
}

fn key(number: u64) -> Vec<u8> {
    format!("k{number:05}").into_bytes()
}

/// Several pages of rows, many of them with orphan locks of a transaction that is committed and of
/// one that is not.
pub fn locks_at_page_borders_hide_nothing(environment: &Environment) {
    const ROWS: u64 = 1500;
    let mut dice = environment.dice();
    let mut model = Model::new();
    let before = environment.open();
    let mut txn = before.begin().unwrap();
    for number in (0..ROWS).filter(|_| dice.below(2) == 0) {
        txn.put(&before.rows, key(number), "old").unwrap();
        model.insert(key(number), "old".into());
    }
    txn.commit().unwrap();
    drop(before);

    // The two transactions have disjoint keys, so the second one resolves no lock of the first.
    let numbers: Vec<u64> = (0..ROWS).collect();
    let (uncommitted, committed): (Vec<u64>, Vec<u64>) = numbers.iter().partition(|number| *number % 7 < 3);
    let write = |numbers: &[u64], value: &'static str| {
        let numbers = numbers.to_vec();
        move |store: &crate::environment::Opened, txn: &mut Txn| {
            for number in &numbers {
                if number % 5 == 0 {
                    txn.delete(&store.rows, key(*number)).unwrap();
                } else {
                    txn.put(&store.rows, key(*number), value).unwrap();
                }
            }
        }
    };
    let lost_primary = key(uncommitted[0]);
    environment.leave_behind(write(&uncommitted, "lost"), move |groups, rows| {
        commits(groups, &rows.row_key(&lost_primary)).then_some(Act::Refuse)
    });
    let (primary, secondary) = (key(committed[0]), key(committed[1]));
    environment.leave_behind(write(&committed, "new"), move |groups, rows| {
        let late = commits(groups, &rows.row_key(&secondary)) && !commits(groups, &rows.row_key(&primary));
        late.then_some(Act::Refuse)
    });
    for number in committed {
        if number % 5 == 0 {
            model.remove(&key(number));
        } else {
            model.insert(key(number), "new".into());
        }
    }

    let expected: Vec<_> = model.into_iter().collect();
    let reversed: Vec<_> = expected.iter().rev().cloned().collect();
    let directions: [fn(&Snapshot, &Keyspace, &mut Dice) -> Vec<(Vec<u8>, Value)>; 3] = [
        |snapshot, keyspace, _| rows(snapshot.range(keyspace, ..)),
        |snapshot, keyspace, _| rows(snapshot.range(keyspace, ..).rev()),
        |snapshot, keyspace, dice| alternating(snapshot.range(keyspace, ..), dice),
    ];
    // Reads one snapshot in each direction twice: the first scan resolves the locks in the store,
    // but the snapshot still shows them to later scans.
    let store = environment.open_unswept();
    assert!(store.locks_left() > 1000);
    let snapshot = store.snapshot().unwrap();
    let start = dice.below(3) as usize;
    for turn in start..start + 6 {
        let seen = directions[turn % 3](&snapshot, &store.rows, &mut dice);
        let wanted = if turn % 3 == 1 { &reversed } else { &expected };
        assert!(seen == *wanted, "direction {}: {} rows of {}", turn % 3, seen.len(), wanted.len());
    }
    assert_eq!(rows(store.snapshot().unwrap().range(&store.rows, ..)), expected);
}

fn names(keys: impl Iterator<Item = percolite::Result<Vec<u8>>>) -> Vec<String> {
    keys.map(|key| String::from_utf8(key.unwrap()).unwrap()).collect()
}

/// Whatever asks only whether rows exist reads no value out of line: from versions, from own writes
/// in memory, and from those that a large transaction has locked in the store.
pub fn keys_are_read_without_long_values(environment: &Environment) {
    let store = environment.open_with(environment.builder().large_transaction_bytes(2 << 10));
    store.put_all(&["a", "b", "c"], long("x"));
    store.put("short", "1");
    store.delete("b");
    let snapshot = store.snapshot().unwrap();
    let before = store.hooks.long_values_read();
    assert_eq!(names(snapshot.range(&store.rows, ..).keys()), ["a", "c", "short"]);
    assert_eq!(names(snapshot.range(&store.rows, ..).keys().rev()), ["short", "c", "a"]);
    let mut both = snapshot.prefix(&store.rows, "").keys();
    assert_eq!(names([both.next_back().unwrap(), both.next().unwrap()].into_iter().chain(both)), ["short", "a", "c"]);
    assert!(snapshot.contains_key(&store.rows, "a").unwrap() && !snapshot.contains_key(&store.rows, "b").unwrap());

    let mut txn = store.begin().unwrap();
    assert!(txn.contains_key(&store.rows, "c").unwrap());
    txn.insert(&store.rows, "a", "2").unwrap_err();
    txn.put(&store.rows, "d", long("y")).unwrap();
    txn.delete(&store.rows, "a").unwrap();
    for letter in ["e", "f"] {
        txn.put(&store.rows, letter, long("y")).unwrap();
    }
    assert_eq!(names(txn.range(&store.rows, ..).keys()), ["c", "d", "e", "f", "short"]);
    assert_eq!(txn.delete_range(&store.rows, "c".."e").unwrap(), 2);
    assert_eq!(names(txn.range(&store.rows, ..).keys().rev()), ["short", "f", "e"]);
    drop(txn);
    assert_eq!(store.hooks.long_values_read(), before);
    assert_eq!(snapshot.get(&store.rows, "c").unwrap(), Some(long("x").into()));
    assert_eq!(rows(snapshot.range(&store.rows, ..)).len(), 3);
    assert_eq!(store.hooks.long_values_read(), before + 3, "the values of a and c, and c once more");
}

/// As above, from orphan locks of a transaction that is committed.
pub fn keys_are_read_from_locks_without_long_values(environment: &Environment) {
    environment.open().put_all(&["b", "c"], long("x"));
    let write = |store: &Opened, txn: &mut Txn| {
        txn.put(&store.rows, "a", long("y")).unwrap();
        txn.delete(&store.rows, "b").unwrap();
        txn.put(&store.rows, "d", long("y")).unwrap();
    };
    environment.leave_behind(write, |groups, rows| {
        let late = commits(groups, &rows.row_key("b")) && !commits(groups, &rows.row_key("a"));
        late.then_some(Act::Refuse)
    });
    let store = environment.open_unswept();
    assert!(store.locks_left() > 0, "the transaction left no lock");
    let snapshot = store.snapshot().unwrap();
    let before = store.hooks.long_values_read();
    assert_eq!(names(snapshot.range(&store.rows, ..).keys()), ["a", "c", "d"]);
    assert!(snapshot.contains_key(&store.rows, "d").unwrap() && !snapshot.contains_key(&store.rows, "b").unwrap());
    assert_eq!(store.hooks.long_values_read(), before);
    assert_eq!(rows(snapshot.range(&store.rows, ..)).len(), 3);
    assert_eq!(store.hooks.long_values_read(), before + 3);
}

/// No page of a scan may read a part of a column that an earlier page has read. Otherwise the time
/// of a scan would be quadratic where one column has many cells and another few, or where the
/// engine must skip many deleted cells.
pub fn no_part_of_a_column_is_read_twice(environment: &Environment) {
    const ROWS: u64 = 1200;
    let mut dice = environment.dice();
    let put = |numbers: std::ops::Range<u64>| {
        move |store: &Opened, txn: &mut Txn| {
            numbers.clone().for_each(|number| txn.put(&store.rows, key(number), "new").unwrap());
        }
    };
    let before = environment.open();
    let mut txn = before.begin().unwrap();
    put(ROWS / 3..ROWS)(&before, &mut txn);
    txn.commit().unwrap();
    drop(before);
    // In key order, the first third of the rows has only locks, the last quarter has locks and
    // versions, and the rest has only versions.
    for numbers in [0..ROWS / 3, ROWS - ROWS / 4..ROWS] {
        let primary = key(numbers.start);
        environment.leave_behind(put(numbers), move |groups, rows| {
            commits(groups, &rows.row_key(&primary)).then_some(Act::Refuse)
        });
    }
    let mut model: Model = (ROWS / 3..ROWS).map(|number| (key(number), "new".into())).collect();

    let store = environment.open_with(environment.builder().background_resolve(false).large_transaction_bytes(8 << 10));
    let snapshot = store.snapshot().unwrap();
    for own in [false, true] {
        let mut txn = store.begin().unwrap();
        if own {
            write_repeatedly(&mut txn, &store, ROWS / 2..ROWS / 2 + ROWS / 8, &mut model);
        }
        let scan_from = |start: u64| {
            let range = key(start)..;
            if own { txn.range(&store.rows, range) } else { snapshot.range(&store.rows, range) }
        };
        let scan = || scan_from(0);
        for turn in 0..5 {
            store.hooks.take_walks();
            let mut seen = match turn {
                0 => rows(scan()),
                1 => rows(scan().rev()),
                _ => alternating(scan(), &mut dice),
            };
            let walks = store.hooks.take_walks();
            seen.sort();
            assert!(seen == model.clone().into_iter().collect::<Vec<_>>(), "own {own}, turn {turn}");
            let views = |column| walks.iter().filter(move |walk| walk.column == column).map(|walk| walk.view);
            assert!(views(Column::Write).count() > 1);
            let lock_views = views(Column::Lock).collect::<BTreeSet<_>>().len();
            assert_eq!(
                lock_views,
                if own && !environment.is_shared() { 2 } else { 1 },
                "engine snapshots whose locks were read"
            );
            for (at, walk) in walks.iter().enumerate() {
                let again = walks.iter().skip(at + 1).find(|again| again.overlaps(walk));
                assert!(again.is_none(), "own {own}, turn {turn}: {walk:?} and again {again:?}");
            }
        }
        // A scan that stops early does not read the locks of the whole remaining range.
        store.hooks.take_walks();
        assert!(scan_from(ROWS / 2).next().is_some());
        let walks = store.hooks.take_walks();
        assert!(walks.len() > 1);
        assert!(walks.iter().all(|walk| walk.over.end == walks[0].over.end), "{walks:?}");
    }
}

/// Writes rows. Overwrites some of them after the large transaction itself has locked them in the
/// store. Rolls back a part of these writes.
fn write_repeatedly(txn: &mut Txn, store: &Opened, numbers: std::ops::Range<u64>, model: &mut Model) {
    for number in numbers.clone() {
        if number % 3 == 0 {
            txn.delete(&store.rows, key(number)).unwrap();
            model.remove(&key(number));
        } else {
            txn.put(&store.rows, key(number), "own").unwrap();
            model.insert(key(number), "own".into());
        }
    }
    let savepoint = txn.savepoint();
    for number in numbers.clone().step_by(5) {
        txn.put(&store.rows, key(number + 1), "rolled back").unwrap();
    }
    txn.rollback_to(savepoint).unwrap();
    for number in numbers.step_by(7) {
        txn.put(&store.rows, key(number), "again").unwrap();
        model.insert(key(number), "again".into());
    }
}

pub fn own_writes_are_read_everywhere(environment: &Environment) {
    let mut dice = environment.dice();
    let store = environment.open();
    let mut committed = Model::new();
    for _ in 0..4 {
        let mut txn = store.begin().unwrap();
        let mut seen = committed.clone();
        for _ in 0..400 {
            let key = key(dice.below(600));
            match dice.below(4) {
                0 => {
                    txn.delete(&store.rows, &key).unwrap();
                    seen.remove(&key);
                }
                1 => {
                    let found = txn.get_for_update(&store.rows, &key).unwrap();
                    assert_eq!(found.as_ref(), seen.get(&key));
                }
                _ => {
                    let value = dice.below(1_000_000).to_string().into_bytes();
                    txn.put(&store.rows, &key, &value).unwrap();
                    seen.insert(key, value.into());
                }
            }
        }
        compare(&txn, &store.rows, &seen, &mut dice);
        txn.commit().unwrap();
        committed = seen;
        assert_eq!(
            rows(store.begin().unwrap().range(&store.rows, ..)),
            committed.clone().into_iter().collect::<Vec<_>>()
        );
    }
}

fn compare(txn: &Txn, keyspace: &Keyspace, model: &Model, dice: &mut Dice) {
    let keys: Vec<Vec<u8>> = (0..600).map(key).collect();
    let wanted: Vec<_> = keys.iter().map(|key| model.get(key).cloned()).collect();
    assert_eq!(txn.multi_get(keyspace, &keys).unwrap(), wanted);
    for (key, value) in keys.iter().zip(&wanted) {
        assert_eq!(
            (txn.get(keyspace, key).unwrap().as_ref(), txn.contains_key(keyspace, key).unwrap()),
            (value.as_ref(), value.is_some())
        );
    }
    for _ in 0..20 {
        let (from, to) = (key(dice.below(600)), key(dice.below(600)));
        let bound = |key: Vec<u8>, sort| match sort {
            0 => Bound::Included(key),
            1 => Bound::Excluded(key),
            _ => Bound::Unbounded,
        };
        let bounds = (bound(from, dice.below(3)), bound(to, dice.below(3)));
        let inside = |key: &Vec<u8>| std::ops::RangeBounds::contains(&bounds, key);
        let wanted: Vec<_> = model.iter().filter(|(key, _)| inside(key)).map(|(k, v)| (k.clone(), v.clone())).collect();
        assert_eq!(rows(txn.range(keyspace, bounds.clone())), wanted);
        assert_eq!(rows(txn.range(keyspace, bounds.clone()).rev()), wanted.iter().rev().cloned().collect::<Vec<_>>());
        assert_eq!(alternating(txn.range(keyspace, bounds.clone()), dice), wanted);
    }
    let wanted: Vec<_> =
        model.iter().filter(|(key, _)| key.starts_with(b"k002")).map(|(k, v)| (k.clone(), v.clone())).collect();
    assert_eq!(rows(txn.prefix(keyspace, "k002")), wanted);
}

/// Versions, long values, locks and scans of keys that have a common prefix.
pub fn prefixes_of_each_other_never_mix(environment: &Environment) {
    // In columns with timestamps keys are escaped and end with `00 01`. Some of these keys would,
    // unescaped, look like the stored form of a shorter key.
    let keys: [&[u8]; 11] = [
        b"a",
        b"a\0",
        b"a\0\0",
        b"a\0\x01",
        b"a\0\x01\xff",
        b"a\0\xff",
        b"a\0\xff\0",
        b"a\x01",
        b"a\xff",
        b"a\xff\xff",
        b"b",
    ];
    let mut dice = environment.dice();
    let mut snapshots = Vec::new();
    let mut model = Model::new();
    let store = environment.open();
    for round in 0..60 {
        let mut txn = store.begin().unwrap();
        for _ in 0..=dice.below(3) {
            let key = keys[dice.below(keys.len() as u64) as usize];
            if dice.below(5) == 0 {
                txn.delete(&store.rows, key).unwrap();
                model.remove(key);
            } else {
                let mut value = format!("{round} {key:?} ").into_bytes();
                value.resize(if dice.below(2) == 0 { 40 } else { 400 }, b'.');
                txn.put(&store.rows, key, &value).unwrap();
                model.insert(key.to_vec(), value.into());
            }
        }
        txn.commit().unwrap();
        snapshots.push((store.snapshot().unwrap(), model.clone()));
    }
    for (snapshot, model) in &snapshots {
        for key in &keys {
            assert_eq!(snapshot.get(&store.rows, key).unwrap().as_ref(), model.get(*key), "{}", key.escape_ascii());
        }
        assert_eq!(rows(snapshot.range(&store.rows, ..)), model.clone().into_iter().collect::<Vec<_>>());
        let inside: Vec<_> =
            model.iter().filter(|(key, _)| key.starts_with(b"a\0")).map(|(k, v)| (k.clone(), v.clone())).collect();
        assert_eq!(rows(snapshot.prefix(&store.rows, b"a\0")), inside);
    }
    drop((snapshots, store));
    let store = environment.open();
    assert_eq!(rows(store.snapshot().unwrap().range(&store.rows, ..)), model.into_iter().collect::<Vec<_>>());
}
