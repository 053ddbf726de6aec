//! Pages of rows: bounds, directions, limits, sizes and cursors.

use std::ops::Bound;

use percolite::engine::storage::Column;
use percolite::engine::{EngineSnapshot, MAX_PAGE_BYTES, PageBuffer, PageRequest, RowRange, ScanCursor};
use percolite::row::{CellChange, KeyspaceId, Lock, LockType, RowChange, RowKey, WriteRecord};

use crate::common::{Dice, Subject, between, change, inline, lock, make, put, put_lock, put_write, row, ts};

fn written(view: &dyn EngineSnapshot, range: &RowRange, backwards: bool, limit: usize) -> Vec<RowKey> {
    view.scan_writes(&PageRequest { range, backwards, limit, cursor: None })
        .unwrap()
        .into_iter()
        .map(|(row, _)| row)
        .collect()
}

/// The expected page, from rows in ascending order.
fn expected(rows: &[RowKey], range: &RowRange, backwards: bool, limit: usize) -> Vec<RowKey> {
    let after_start = |row: &RowKey| match &range.start {
        Bound::Included(start) => row.as_bytes() >= start.as_slice(),
        Bound::Excluded(start) => row.as_bytes() > start.as_slice(),
        Bound::Unbounded => true,
    };
    let before_end = |row: &RowKey| match &range.end {
        Bound::Included(end) => row.as_bytes() <= end.as_slice(),
        Bound::Excluded(end) => row.as_bytes() < end.as_slice(),
        Bound::Unbounded => true,
    };
    let mut inside: Vec<RowKey> = rows.iter().filter(|row| after_start(row) && before_end(row)).cloned().collect();
    if backwards {
        inside.reverse();
    }
    inside.truncate(limit);
    inside
}

/// The same eight keys in each of four keyspaces, two of which have neighbouring ids.
fn populate(engine: &Subject) -> Vec<RowKey> {
    let keys: [&[u8]; 8] = [b"", b"\0", b"a", b"a\0", b"a\0\0", b"a\x01", b"b", b"\xff\xff"];
    let mut rows: Vec<RowKey> =
        [0, 7, 8, u32::MAX].iter().flat_map(|id| keys.map(|key| RowKey::new(KeyspaceId(*id), key))).collect();
    rows.sort();
    for (at, row) in (10..).zip(&rows) {
        make(&**engine, [RowChange { row: row.clone(), ..put_write("", put(at)) }]);
    }
    rows
}

fn borders(rows: &[RowKey]) -> Vec<Vec<u8>> {
    let mut borders: Vec<Vec<u8>> = rows.iter().map(|row| row.as_bytes().to_vec()).collect();
    borders.extend([vec![], vec![0], vec![0, 0, 0, 7], vec![0, 0, 0, 7, b'a', 0, 0, 0], vec![0xff; 9]]);
    borders
}

fn bounds(border: &[u8]) -> [Bound<Vec<u8>>; 3] {
    [Bound::Included(border.to_vec()), Bound::Excluded(border.to_vec()), Bound::Unbounded]
}

pub fn pages_go_both_ways_within_any_bounds(engine: &Subject) {
    let rows = populate(engine);
    let view = engine.snapshot().unwrap();
    let borders = borders(&rows);
    for start in &borders {
        for end in &borders {
            for start in bounds(start) {
                for end in bounds(end) {
                    let range = RowRange { start: start.clone(), end };
                    for backwards in [false, true] {
                        let found = written(view.as_ref(), &range, backwards, 100);
                        assert_eq!(found, expected(&rows, &range, backwards, 100), "{range:?} {backwards}");
                    }
                }
            }
        }
    }
    let mut dice = Dice(engine.seed);
    for _ in 0..300 {
        let mut bound = || bounds(&borders[dice.index(borders.len())])[dice.index(3)].clone();
        let range = RowRange { start: bound(), end: bound() };
        for backwards in [false, true] {
            for limit in [0, 1, 2, 7, 100, usize::MAX] {
                let found = written(view.as_ref(), &range, backwards, limit);
                assert_eq!(found, expected(&rows, &range, backwards, limit), "{range:?} {backwards} {limit}");
            }
        }
    }
}

pub fn a_scan_cursor_changes_no_result(engine: &Subject) {
    let rows = populate(engine);
    for (at, row) in (100..).zip(&rows) {
        make(&**engine, [RowChange { row: row.clone(), ..put_lock("", lock(at)) }]);
    }
    let older = engine.snapshot().unwrap();
    make(&**engine, [put_write("a\0\x01", put(90))]);
    let view = engine.snapshot().unwrap();
    let newest = written(view.as_ref(), &RowRange::all(), false, usize::MAX);
    assert_ne!(newest, rows);

    // A scan reads page after page of one range with one cursor.
    for backwards in [false, true] {
        let (cursor, mut range, mut found) = (ScanCursor::default(), RowRange::all(), Vec::new());
        loop {
            let page = PageRequest { range: &range, backwards, limit: 3, cursor: Some(&cursor) };
            let rows: Vec<RowKey> = view.scan_writes(&page).unwrap().into_iter().map(|(row, _)| row).collect();
            let Some(last) = rows.last() else { break };
            *(if backwards { &mut range.end } else { &mut range.start }) = Bound::Excluded(last.as_bytes().to_vec());
            found.extend(rows);
        }
        assert_eq!(found, expected(&newest, &RowRange::all(), backwards, usize::MAX));
    }

    // One cursor for random pages: some continue the last one, others change the snapshot, column,
    // direction or range.
    let cursor = ScanCursor::default();
    let borders = borders(&rows);
    let mut dice = Dice(engine.seed);
    let mut last: Option<Vec<u8>> = None;
    let mut range = RowRange::all();
    let (mut backwards, mut of_newest, mut locks) = (false, false, false);
    for _ in 0..3000 {
        match dice.index(8) {
            0 => backwards = !backwards,
            1 => of_newest = !of_newest,
            2 => locks = !locks,
            3 => {
                let mut bound = || bounds(&borders[dice.index(borders.len())])[dice.index(3)].clone();
                range = RowRange { start: bound(), end: bound() };
            }
            _ => {}
        }
        if let Some(last) = last.take().filter(|_| dice.index(4) > 0) {
            *(if backwards { &mut range.end } else { &mut range.start }) = Bound::Excluded(last);
        }
        let (view, all) = if of_newest { (&view, &newest) } else { (&older, &rows) };
        let limit = 1 + dice.index(4);
        let page = PageRequest { range: &range, backwards, limit, cursor: Some(&cursor) };
        let found: Vec<RowKey> = if locks {
            view.scan_locks(&page).unwrap().into_iter().map(|(row, _)| row).collect()
        } else {
            view.scan_writes(&page).unwrap().into_iter().map(|(row, _)| row).collect()
        };
        let all = if locks { &rows } else { all };
        assert_eq!(found, expected(all, &range, backwards, limit), "{range:?} {backwards} {locks}");
        last = found.last().map(|row| row.as_bytes().to_vec());
    }
}

pub fn a_page_ends_when_it_is_large(engine: &Subject) {
    // Small cells, then large cells, then small cells again: the size of the next cell cannot be
    // known from those before it.
    const ROWS: u8 = 30;
    for at in 0..ROWS {
        let length = if (10..20).contains(&at) { 300 << 10 } else { 1 };
        let large = inline(vec![b'x'; length]);
        let write = WriteRecord { value: Some(large.clone()), ..put(10) };
        let lock = Lock { lock_type: LockType::Put(large), ..lock(20) };
        make(&**engine, [RowChange { lock: CellChange::Put(lock), write: CellChange::Put(write), ..change([at], 9) }]);
    }
    let view = engine.snapshot().unwrap();
    for (column, backwards) in [Column::Lock, Column::Write].into_iter().flat_map(|one| [(one, false), (one, true)]) {
        let (cursor, mut range, mut cells) = (ScanCursor::default(), RowRange::all(), PageBuffer::default());
        let mut found = Vec::new();
        let mut pages = 0;
        loop {
            let page = PageRequest { range: &range, backwards, limit: usize::MAX, cursor: Some(&cursor) };
            let has_more = view.scan_page(column, &page, &mut cells).unwrap();
            let Some((last, content)) = cells.last() else { break };
            let before = cells.size_bytes() - last.len() - content.len();
            assert!(before < MAX_PAGE_BYTES, "{before} bytes before the last cell");
            found.extend(cells.iter().map(|(row, _)| row.to_vec()));
            *(if backwards { &mut range.end } else { &mut range.start }) = Bound::Excluded(last.to_vec());
            pages += 1;
            if !has_more {
                break;
            }
        }
        let mut expected: Vec<Vec<u8>> = (0..ROWS).map(|at| row([at]).as_bytes().to_vec()).collect();
        if backwards {
            expected.reverse();
        }
        assert_eq!((found, pages), (expected, 3), "{column:?} {backwards}");
    }
}

pub fn a_page_that_has_no_cell_is_the_last(engine: &Subject) {
    make(&**engine, ["a", "b", "c"].map(|key| put_lock(key, lock(10))));
    let view = engine.snapshot().unwrap();
    for (limit, backwards) in [1, 2, 3, 4].into_iter().flat_map(|limit| [(limit, false), (limit, true)]) {
        let (mut range, mut cells, mut found) = (RowRange::all(), PageBuffer::default(), 0);
        loop {
            let page = PageRequest { range: &range, backwards, limit, cursor: None };
            let has_more = view.scan_page(Column::Lock, &page, &mut cells).unwrap();
            found += cells.len();
            let Some((last, _)) = cells.last() else {
                assert!(!has_more, "an empty page must be the last, {limit} cells a page");
                break;
            };
            assert!(has_more || cells.len() < limit || found == 3);
            *(if backwards { &mut range.end } else { &mut range.start }) = Bound::Excluded(last.to_vec());
            if !has_more {
                break;
            }
        }
        assert_eq!(found, 3, "{limit} cells a page, {backwards}");
    }
}

pub fn an_inverted_range_is_empty(engine: &Subject) {
    make(
        &**engine,
        ["a", "b", "c"].map(|key| RowChange { write: CellChange::Put(put(20)), ..put_lock(key, lock(10)) }),
    );
    let (a, b, c) = (row("a"), row("b"), row("c"));
    let (a, b, c) = (a.as_bytes(), b.as_bytes(), c.as_bytes());
    let view = engine.snapshot().unwrap();
    let empty = [
        between(Bound::Included(c), Bound::Included(a)),
        between(Bound::Included(c), Bound::Excluded(a)),
        between(Bound::Excluded(c), Bound::Included(a)),
        between(Bound::Excluded(c), Bound::Excluded(a)),
        between(Bound::Included(b), Bound::Excluded(b)),
        between(Bound::Excluded(b), Bound::Included(b)),
        between(Bound::Excluded(b), Bound::Excluded(b)),
        between(Bound::Excluded(a), Bound::Excluded(b)),
    ];
    for range in &empty {
        for backwards in [false, true] {
            let page = PageRequest { range, backwards, limit: 10, cursor: None };
            assert_eq!(view.scan_writes(&page).unwrap(), [], "{range:?} {backwards}");
            assert_eq!(view.scan_locks(&page).unwrap(), [], "{range:?} {backwards}");
        }
    }
    let one = between(Bound::Included(b), Bound::Included(b));
    assert_eq!(written(view.as_ref(), &one, false, 10), [row("b")]);
    assert_eq!(written(view.as_ref(), &one, true, 10), [row("b")]);
}

pub fn no_row_is_missed_or_repeated_at_page_borders(engine: &Subject) {
    let rows = populate(engine);
    for backwards in [false, true] {
        for limit in 1..=rows.len() + 1 {
            let view = engine.snapshot().unwrap();
            let mut range = RowRange::all();
            let mut found: Vec<RowKey> = Vec::new();
            loop {
                let page = written(view.as_ref(), &range, backwards, limit);
                assert!(page.len() <= limit);
                let Some(last) = page.last() else { break };
                let next = Bound::Excluded(last.as_bytes().to_vec());
                if backwards {
                    range.end = next;
                } else {
                    range.start = next;
                }
                found.extend(page);
                assert!(found.len() <= rows.len(), "rows are repeated endlessly: {found:?}");
            }
            assert_eq!(found, expected(&rows, &RowRange::all(), backwards, usize::MAX), "{limit} rows a page");
        }
    }
}

pub fn deleted_rows_are_on_no_page(engine: &Subject) {
    let keys: Vec<String> = (0..60).map(|number| format!("{number:02}")).collect();
    make(&**engine, keys.iter().map(|key| RowChange { write: CellChange::Put(put(20)), ..put_lock(key, lock(10)) }));
    let is_deleted = |number: usize| number.is_multiple_of(3) || (20..40).contains(&number);
    let changes = (0..60).filter(|number| is_deleted(*number)).map(|number| RowChange {
        lock: CellChange::Delete,
        write: CellChange::Delete,
        ..change(&keys[number], 10)
    });
    make(&**engine, changes);
    let left: Vec<RowKey> = (0..60).filter(|number| !is_deleted(*number)).map(|number| row(&keys[number])).collect();
    let view = engine.snapshot().unwrap();
    for backwards in [false, true] {
        // A page has `limit` rows as long as rows are left: deleted rows do not count.
        for limit in [1, 5, 13, 14, 100] {
            let range = RowRange::all();
            assert_eq!(written(view.as_ref(), &range, backwards, limit), expected(&left, &range, backwards, limit));
            let page = PageRequest { range: &range, backwards, limit, cursor: None };
            let locked: Vec<RowKey> = view.scan_locks(&page).unwrap().into_iter().map(|(row, _)| row).collect();
            assert_eq!(locked, expected(&left, &range, backwards, limit));
        }
    }
}

pub fn locks_and_writes_are_scanned_separately(engine: &Subject) {
    make(
        &**engine,
        [put_write("a", put(20)), put_lock("b", lock(30)), put_write("c", put(40)), put_lock("c", lock(50))],
    );
    // An unbounded page must not run into another column, in either direction.
    make(&**engine, [crate::common::put_data("d", 10, "data"), crate::common::put_version("e", put(20))]);
    engine.write_meta(&[("zzz".into(), Some(vec![1])), ("\0".into(), Some(vec![2]))]).unwrap();
    let view = engine.snapshot().unwrap();
    for backwards in [false, true] {
        let page = PageRequest { range: &RowRange::all(), backwards, limit: 10, cursor: None };
        let mut writes = vec![(row("a"), put(20)), (row("c"), put(40))];
        let mut locks = vec![(row("b"), lock(30)), (row("c"), lock(50))];
        if backwards {
            writes.reverse();
            locks.reverse();
        }
        assert_eq!(view.scan_writes(&page).unwrap(), writes);
        assert_eq!(view.scan_locks(&page).unwrap(), locks);
    }
    assert_eq!(view.data(&row("d"), ts(10)).unwrap(), Some("data".into()));
}
