//! Batches: each is applied as a whole or not at all, one after the other.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};

use percolite::Timestamp;
use percolite::engine::{ApplyResult, EngineError, OnePhaseWrites, PageRequest, RowBatch, RowRange};
use percolite::row::{
    CellChange, Lock, Mutation, Precondition, RowChange, RowKey, RowState, TxnRecord, Value, WriteRecord,
};

use crate::common::{
    Dice, Subject, all_writes, change, deletion, group, lock, lock_only, make, put, put_data, put_lock, put_status,
    put_write, row, ts, txn, txn_record_pages,
};

fn conditional(preconditions: &[Precondition], change: RowChange) -> RowChange {
    RowChange { preconditions: preconditions.into(), ..change }
}

pub fn a_refused_batch_changes_no_row(engine: &Subject) {
    let keys = ["a", "b", "c", "d"];
    make(&**engine, keys.map(|key| RowChange { write: CellChange::Put(put(20)), ..put_data(key, 19, "kept") }));
    make(&**engine, [put_lock("z", lock(10))]);
    let before = keys.map(|key| engine.read_row(&row(key), ts(50)).unwrap());
    let metas = engine.scan_meta("").unwrap();
    for refusing in 0..=keys.len() {
        let mut changes: Vec<RowChange> = keys
            .iter()
            .map(|key| RowChange {
                lock: CellChange::Put(lock(50)),
                write: CellChange::Put(deletion(60)),
                data: vec![(ts(19), CellChange::Delete), (ts(50), CellChange::Put(b"new".into()))],
                txn_record: CellChange::Put(TxnRecord::RolledBack),
                archived_version: Some(put(20)),
                ..change(key, 50)
            })
            .collect();
        // The batch has a row with preconditions that hold, rows without preconditions, and one row
        // whose precondition fails. The position of the failing row changes in each round.
        changes[0].preconditions = [Precondition::LockAbsent, Precondition::NoCommitAfter(ts(20))].into();
        changes.insert(refusing, conditional(&[Precondition::LockAbsent], put_lock("z", lock(50))));
        let outcomes = engine.apply(&[group(changes)]).unwrap();
        assert!(
            matches!(outcomes[..], [ApplyResult::PreconditionFailed { index, .. }] if index == refusing),
            "{outcomes:?}"
        );
        assert_eq!(keys.map(|key| engine.read_row(&row(key), ts(50)).unwrap()), before);
        let view = engine.snapshot().unwrap();
        for key in keys {
            assert_eq!(view.data(&row(key), ts(19)).unwrap(), Some("kept".into()));
            assert_eq!(view.data(&row(key), ts(50)).unwrap(), None);
            assert_eq!(view.version_at(&row(key), ts(99)).unwrap(), None);
        }
        assert_eq!(engine.scan_meta("").unwrap(), metas, "a refused batch has entries in the GC queue");
    }
}

pub fn an_applied_batch_changes_every_row(engine: &Subject) {
    let keys: Vec<String> = (0..300).map(|number| format!("row {number:03}")).collect();
    make(&**engine, keys.iter().map(|key| conditional(&[Precondition::LockAbsent], put_write(key, put(20)))));
    let expected: Vec<_> = keys.iter().map(|key| (row(key), put(20))).collect();
    assert_eq!(all_writes(&**engine), expected);
}

pub fn a_batch_sees_earlier_batches_of_its_call(engine: &Subject) {
    // In each case a batch changes what the precondition of a later batch reads. The cases cover
    // every column that a precondition reads.
    let cases = [
        (put_lock("a", lock(10)), Precondition::LockAbsent, false),
        (put_lock("b", lock(10)), Precondition::LockUnchanged(lock(10).version()), true),
        (put_write("c", put(20)), Precondition::NoCommitAfter(ts(19)), false),
        (put_write("d", put(20)), Precondition::NoTxnRecord(ts(19)), false),
        (put_status("e", 19, TxnRecord::RolledBack), Precondition::NoTxnRecord(ts(19)), false),
    ];
    for (first, guard, allowed) in &cases {
        let key = first.row.user_key();
        let second = conditional(&[*guard], put_data(key, 19, "second"));
        let others = || {
            [group([put_write("x", put(5))]), group([conditional(&[Precondition::LockAbsent], put_write("y", put(5)))])]
        };
        let [x, y] = others();
        let outcomes = engine.apply(&[x, group([first.clone()]), y, group([second])]).unwrap();
        assert_eq!(outcomes[..3], [ApplyResult::Applied, ApplyResult::Applied, ApplyResult::Applied]);
        assert_eq!(outcomes[3] == ApplyResult::Applied, *allowed, "{guard:?} after {first:?} in the same call");
        assert_eq!(engine.snapshot().unwrap().data(&row(key), ts(19)).unwrap().is_some(), *allowed);
        let seen = engine.read_row(&row(key), ts(19)).unwrap();
        if let ApplyResult::PreconditionFailed { row, .. } = &outcomes[3] {
            assert_eq!(**row, seen, "the refusal must return the row as the earlier batch left it");
        }
    }
    // The earlier batch may also have preconditions and several rows.
    let first =
        group(["f", "g", "h"].map(|key| conditional(&[Precondition::NoCommitAfter(ts(30))], put_lock(key, lock(30)))));
    let second = group([put_data("i", 40, "no"), conditional(&[Precondition::LockAbsent], put_data("g", 40, "no"))]);
    let outcomes = engine.apply(&[first, second]).unwrap();
    assert_eq!(outcomes[0], ApplyResult::Applied);
    assert!(
        matches!(&outcomes[1], ApplyResult::PreconditionFailed { index: 1, row } if row.lock == Some(lock(30))),
        "{outcomes:?}"
    );
    assert_eq!(engine.snapshot().unwrap().data(&row("i"), ts(40)).unwrap(), None);
    // If several batches of a call write one row, the last one wins.
    let outcomes = engine.apply(&[20, 21, 22, 23].map(|at| group([put_write("j", put(at))]))).unwrap();
    assert_eq!(outcomes, vec![ApplyResult::Applied; 4]);
    assert_eq!(engine.read_row(&row("j"), ts(1)).unwrap().write, Some(put(23)));
}

pub fn later_batches_do_not_see_a_refused_one(engine: &Subject) {
    make(&**engine, [put_lock("a", lock(10))]);
    let refused = group([put_lock("b", lock(20)), conditional(&[Precondition::LockAbsent], put_lock("a", lock(20)))]);
    let after = group([conditional(&[Precondition::LockAbsent], put_data("b", 30, "after"))]);
    let last = group([conditional(&[Precondition::LockUnchanged(lock(10).version())], put_data("a", 30, "last"))]);
    let outcomes = engine.apply(&[refused, after, last]).unwrap();
    assert!(
        matches!(&outcomes[0], ApplyResult::PreconditionFailed { index: 1, row } if row.lock == Some(lock(10))),
        "{outcomes:?}"
    );
    assert_eq!(outcomes[1..], [ApplyResult::Applied, ApplyResult::Applied]);
    let view = engine.snapshot().unwrap();
    assert_eq!(view.lock(&row("b")).unwrap(), None);
    assert_eq!(view.lock(&row("a")).unwrap(), Some(lock(10)));
    assert_eq!(view.data(&row("b"), ts(30)).unwrap(), Some("after".into()));
    assert_eq!(view.data(&row("a"), ts(30)).unwrap(), Some("last".into()));
}

pub fn an_empty_batch_succeeds(engine: &Subject) {
    assert_eq!(engine.apply(&[]).unwrap(), []);
    assert_eq!(engine.apply(&[group([]), group([])]).unwrap(), [ApplyResult::Applied, ApplyResult::Applied]);
    assert_eq!(engine.apply(&[group([change("a", 10)])]).unwrap(), [ApplyResult::Applied]);
    let unmet = conditional(&[Precondition::LockUnchanged(lock(10).version())], change("a", 10));
    let outcomes = engine.apply(&[group([]), group([unmet]), group([])]).unwrap();
    assert!(
        matches!(
            outcomes[..],
            [ApplyResult::Applied, ApplyResult::PreconditionFailed { index: 0, .. }, ApplyResult::Applied]
        ),
        "a precondition is checked without a change too: {outcomes:?}"
    );
    assert_eq!(engine.read_row(&row("a"), ts(10)).unwrap(), RowState::default());
    engine.write_meta(&[]).unwrap();
    engine.sync().unwrap();
}

/// An engine without a limit, or with one above `PLENTY`, must accept a batch of `PLENTY` rows.
/// Nothing more is tested of it.
pub fn a_batch_above_the_limit_is_refused_before_it_begins(engine: &Subject) {
    const PLENTY: usize = 3000;
    let limit = engine.capabilities().batch_rows_max;
    let rows = |count: usize, at: u64| group((0..count).map(|number| put_write(format!("{number:06}"), put(at))));
    make(&**engine, rows(limit.min(PLENTY), 20).changes().into_owned());
    assert_eq!(all_writes(&**engine).len(), limit.min(PLENTY));
    if limit > PLENTY {
        return;
    }
    let too_large = rows(limit + 1, 30);
    let small = group([put_write("small", put(30))]);
    for groups in [vec![too_large.clone()], vec![small.clone(), too_large.clone()], vec![too_large, small]] {
        match engine.apply(&groups) {
            Err(EngineError::Limit { requested, limit: said, .. }) => assert_eq!((requested, said), (limit + 1, limit)),
            other => panic!("{} rows where {limit} are allowed: {other:?}", limit + 1),
        }
        assert!(
            all_writes(&**engine).iter().all(|(_, write)| *write == put(20)),
            "a refused request was applied in part"
        );
    }
    // The limit is for a batch, not for a call.
    let outcomes = engine.apply(&[rows(limit, 40), rows(limit, 41)]).unwrap();
    assert_eq!(outcomes, [ApplyResult::Applied, ApplyResult::Applied]);
}

pub fn concurrent_guarded_changes_lose_no_update(engine: &Subject) {
    const THREADS: u64 = 4;
    const EACH: u64 = 50;
    make(&**engine, [put_lock("counter", Lock { write_seq: 0, ..lock(10) }), put_lock("mirror", lock(10))]);
    let tickets = AtomicU64::new(100);
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                for _ in 0..EACH {
                    // A unique TTL makes each change distinct.
                    let ttl_ms = tickets.fetch_add(1, Ordering::Relaxed);
                    loop {
                        let Some(seen) = engine.read_row(&row("counter"), ts(10)).unwrap().lock else { panic!() };
                        let next = Lock { write_seq: seen.write_seq + 1, ttl_ms, ..seen.clone() };
                        let counter = conditional(
                            &[Precondition::LockUnchanged(seen.version())],
                            put_lock("counter", next.clone()),
                        );
                        // An engine that repeats requests refuses the second copy of an applied
                        // request. The row `mirror` then shows that the first copy was applied.
                        let mirror = put_status("mirror", ttl_ms, TxnRecord::Committed(ts(next.write_seq.into())));
                        engine.apply(&[group([counter, mirror])]).unwrap();
                        if engine.read_row(&row("mirror"), ts(ttl_ms)).unwrap().txn_record.is_some() {
                            break;
                        }
                    }
                }
            });
        }
    });
    let counter = engine.read_row(&row("counter"), ts(10)).unwrap().lock.unwrap();
    assert_eq!(u64::from(counter.write_seq), THREADS * EACH);
    let mut counted: Vec<_> =
        (100..100 + THREADS * EACH).map(|at| engine.read_row(&row("mirror"), ts(at)).unwrap().txn_record).collect();
    counted.sort_by_key(|status| match status {
        Some(TxnRecord::Committed(at)) => *at,
        other => panic!("{other:?}"),
    });
    let expected: Vec<_> = (1..=THREADS * EACH).map(|at| Some(TxnRecord::Committed(ts(at)))).collect();
    assert_eq!(counted, expected, "two changes were applied to the same state");
}

/// The expected contents of an engine, in plain maps.
#[derive(Clone, Default)]
struct Model {
    locks: BTreeMap<RowKey, Lock>,
    writes: BTreeMap<RowKey, WriteRecord>,
    data: BTreeMap<(RowKey, Timestamp), Value>,
    txn_records: BTreeMap<(RowKey, Timestamp), TxnRecord>,
    versions: BTreeMap<(RowKey, Timestamp), WriteRecord>,
    gc_queue: BTreeSet<(Timestamp, RowKey)>,
    safe_point: u64,
}

impl Model {
    fn row(&self, row: &RowKey, start_ts: Timestamp) -> RowState {
        RowState {
            lock: self.locks.get(row).cloned(),
            write: self.writes.get(row).cloned(),
            txn_record: self.txn_records.get(&(row.clone(), start_ts)).copied(),
            safe_point: ts(self.safe_point),
        }
    }

    /// The preconditions, implemented independently of the library.
    fn allows(&self, change: &RowChange) -> bool {
        let row = self.row(&change.row, change.start_ts);
        let newest = row
            .write
            .as_ref()
            .map_or(0, |write| write.commit_ts.to_u64().max(write.lock_only_ts.map_or(0, Timestamp::to_u64)));
        change.preconditions.iter().all(|guard| match guard {
            Precondition::LockAbsent => !self.locks.contains_key(&change.row),
            Precondition::LockUnchanged(stamp) => match &row.lock {
                None => false,
                Some(lock) => {
                    (lock.txn.start_ts, lock.txn.owner) == (stamp.txn.start_ts, stamp.txn.owner)
                        && (lock.write_seq, lock.ttl_ms) == (stamp.write_seq, stamp.ttl_ms)
                        && lock.min_commit_ts == stamp.min_commit_ts
                }
            },
            Precondition::NoCommitAfter(at) => newest < at.to_u64() + 1,
            Precondition::NoTxnRecord(start_ts) => {
                row.txn_record.is_none() && row.write.as_ref().map(|write| write.txn.start_ts) != Some(*start_ts)
            }
            Precondition::SafePointAtMost(at) => self.safe_point < at.to_u64() + 1,
        })
    }

    fn apply(&mut self, group: &RowBatch) -> ApplyResult {
        let changes = group.changes();
        for (index, change) in changes.iter().enumerate() {
            if !self.allows(change) {
                return ApplyResult::PreconditionFailed {
                    index,
                    row: Box::new(self.row(&change.row, change.start_ts)),
                };
            }
        }
        for change in changes.iter() {
            let key = &change.row;
            edit(&mut self.locks, key.clone(), &change.lock);
            edit(&mut self.writes, key.clone(), &change.write);
            edit(&mut self.txn_records, (key.clone(), change.start_ts), &change.txn_record);
            for (start_ts, data) in &change.data {
                edit(&mut self.data, (key.clone(), *start_ts), data);
            }
            if let Some(version) = &change.archived_version {
                self.versions.insert((key.clone(), version.commit_ts), version.clone());
            }
            for commit_ts in &change.deleted_versions {
                self.versions.remove(&(key.clone(), *commit_ts));
            }
            if let CellChange::Put(WriteRecord { commit_ts, value, .. }) = &change.write
                && (value.is_none() || change.archived_version.is_some())
            {
                self.gc_queue.insert((*commit_ts, key.clone()));
            }
            for at in &change.gc_done {
                self.gc_queue.remove(&(*at, key.clone()));
            }
        }
        ApplyResult::Applied
    }
}

fn edit<K: Ord, T: Clone>(cells: &mut BTreeMap<K, T>, key: K, edit: &CellChange<T>) {
    match edit {
        CellChange::Keep => {}
        CellChange::Put(content) => drop(cells.insert(key, content.clone())),
        CellChange::Delete => drop(cells.remove(&key)),
    }
}

const KEYS: [&str; 5] = ["", "a", "a\0", "a\0b", "b"];

/// A change with small timestamps, so that changes collide. Start timestamps are even and commit
/// timestamps odd: no timestamp is both.
fn random_change(dice: &mut Dice, key: &str, unique: u64) -> RowChange {
    let start_ts = 2 * dice.below(8);
    let commit_ts = 2 * dice.below(8) + 1;
    let state = |dice: &mut Dice| Lock { write_seq: dice.below(2) as u32, ..lock(2 * dice.below(3)) };
    let mut change = change(key, start_ts);
    for _ in 0..dice.below(3) {
        let drawn = match dice.below(5) {
            0 => Precondition::LockAbsent,
            1 => Precondition::LockUnchanged(state(dice).version()),
            2 => Precondition::NoCommitAfter(ts(dice.below(16))),
            3 => Precondition::NoTxnRecord(ts(start_ts)),
            _ => Precondition::SafePointAtMost(ts(dice.below(8))),
        };
        // If a kind of precondition is added, this `match` does not compile: a reminder to draw the
        // new kind above.
        change.preconditions.push(match drawn {
            Precondition::LockAbsent
            | Precondition::LockUnchanged(_)
            | Precondition::NoCommitAfter(_)
            | Precondition::NoTxnRecord(_)
            | Precondition::SafePointAtMost(_) => drawn,
        });
    }
    match dice.below(4) {
        0 => change.lock = CellChange::Put(state(dice)),
        1 => change.lock = CellChange::Delete,
        _ => {}
    }
    match dice.below(6) {
        0 => change.write = CellChange::Put(WriteRecord { txn: txn(start_ts), ..put(commit_ts) }),
        1 => change.write = CellChange::Put(WriteRecord { txn: txn(start_ts), ..deletion(commit_ts) }),
        2 => {
            change.write =
                CellChange::Put(WriteRecord { txn: txn(start_ts), ..lock_only(commit_ts, 2 * dice.below(8) + 1) })
        }
        3 => change.write = CellChange::Delete,
        _ => {}
    }
    match dice.below(5) {
        0 => change.txn_record = CellChange::Put(TxnRecord::RolledBack),
        1 => change.txn_record = CellChange::Put(TxnRecord::Committed(ts(commit_ts))),
        2 => change.txn_record = CellChange::Delete,
        _ => {}
    }
    if dice.one_in(4) {
        change.archived_version = Some(put(commit_ts));
    }
    if dice.one_in(4) {
        let times = dice.below(3);
        change.gc_done = (0..times).map(|_| ts(2 * dice.below(8) + 1)).filter(|at| *at != ts(commit_ts)).collect();
    }
    if dice.one_in(4) {
        change.deleted_versions = vec![ts(2 * dice.below(8) + 1)];
        change.deleted_versions.retain(|at| *at != ts(commit_ts));
    }
    if dice.one_in(4) {
        change.data.push((ts(2 * dice.below(4) + 1000), CellChange::Delete));
    }
    // A unique value makes this change distinct from every other.
    change.data.push((ts(2 * dice.below(4) + 2000), CellChange::Put(unique.to_be_bytes().into())));
    change
}

/// A batch of one-phase writes to some rows.
fn random_versions(dice: &mut Dice, unique: u64) -> RowBatch {
    let (start_ts, commit_ts) = (2 * dice.below(8), 2 * dice.below(8) + 1);
    let unchanged_since = if dice.one_in(2) { Some(ts(dice.below(16))) } else { None };
    let mut rows = Vec::new();
    let mut keys = KEYS.to_vec();
    for place in 0..=dice.below(3) {
        let mutation = match dice.below(4) {
            // A unique value makes this batch distinct from every other.
            _ if place == 0 => Mutation::Put(unique.to_be_bytes().into()),
            0 => Mutation::Delete,
            1 => Mutation::LockOnly,
            _ => Mutation::Put([7; 300].into()),
        };
        let key = keys.swap_remove(dice.index(keys.len()));
        rows.push((row(key), mutation));
    }
    RowBatch::OnePhaseWrites(OnePhaseWrites::new((txn(start_ts), ts(commit_ts)), unchanged_since, rows))
}

pub fn random_changes_match_a_model(engine: &Subject) {
    let mut dice = Dice(engine.seed);
    let mut model = Model::default();
    let mut refusals = 0;
    for call in 0..400 {
        // On an engine that repeats calls, a call has only one batch. With several batches, the
        // repeated first batch would be checked after the last batch was applied: it could be
        // refused, or overwrite what a later batch wrote. The model applies each batch once.
        let count = if engine.repeats { 1 } else { dice.below(5) };
        let groups: Vec<RowBatch> = (0..count)
            .map(|number| {
                if dice.one_in(4) {
                    return random_versions(&mut dice, call * 100 + number * 10);
                }
                let mut keys = KEYS.to_vec();
                let rows = 1 + dice.below(3);
                let changes = (0..rows).map(|place| {
                    let key = keys.swap_remove(dice.index(keys.len()));
                    random_change(&mut dice, key, call * 100 + number * 10 + place)
                });
                group(changes.collect::<Vec<_>>())
            })
            .collect();
        let expected: Vec<ApplyResult> = groups.iter().map(|group| model.apply(group)).collect();
        refusals += expected.iter().filter(|outcome| **outcome != ApplyResult::Applied).count();
        assert_eq!(engine.apply(&groups).unwrap(), expected, "call {call}: {groups:?}");
        if dice.one_in(100) {
            model.safe_point = model.safe_point.max(dice.below(8));
            engine.advance_safe_point(ts(model.safe_point)).unwrap();
        }
        if call % 10 == 9 {
            assert_matches(engine, &model);
        }
    }
    assert!(refusals > 50, "only {refusals} refusals: the test is too weak");
}

fn assert_matches(engine: &Subject, model: &Model) {
    let view = engine.snapshot().unwrap();
    let page = PageRequest { range: &RowRange::all(), backwards: false, limit: 100, cursor: None };
    assert_eq!(view.scan_locks(&page).unwrap(), model.locks.clone().into_iter().collect::<Vec<_>>());
    assert_eq!(view.scan_writes(&page).unwrap(), model.writes.clone().into_iter().collect::<Vec<_>>());
    let gc_queue: Vec<_> = model.gc_queue.iter().cloned().collect();
    assert_eq!(engine.gc_candidates(None, Timestamp::MAX, 1000).unwrap(), gc_queue);
    let mut txn_records = txn_record_pages(&**engine, ts(9), 1000).0;
    txn_records.sort();
    let expected: Vec<_> = model.txn_records.keys().filter(|(_, start_ts)| *start_ts < ts(9)).cloned().collect();
    assert_eq!(txn_records, expected);
    for key in KEYS.map(row) {
        assert_eq!(view.lock(&key).unwrap(), model.locks.get(&key).cloned());
        assert_eq!(view.write(&key).unwrap(), model.writes.get(&key).cloned());
        for at in 0..20 {
            let newest = model.versions.range((key.clone(), ts(0))..=(key.clone(), ts(at))).next_back();
            assert_eq!(
                view.version_at(&key, ts(at)).unwrap().as_ref(),
                newest.map(|(_, version)| version),
                "{key:?} {at}"
            );
        }
        for start_ts in (0..16).step_by(2).map(ts) {
            assert_eq!(
                view.txn_record(&key, start_ts).unwrap(),
                model.txn_records.get(&(key.clone(), start_ts)).copied()
            );
            assert_eq!(engine.read_row(&key, start_ts).unwrap(), model.row(&key, start_ts));
        }
        for start_ts in (1000..1008).chain(2000..2008).map(ts) {
            assert_eq!(view.data(&key, start_ts).unwrap(), model.data.get(&(key.clone(), start_ts)).cloned());
        }
    }
}
