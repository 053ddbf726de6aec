//! Memtables compared with a model: every version of every cell, at every sequence.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use proptest::prelude::*;
use rapidhash::v3::RapidSecrets;

use crate::cell::Column;
use crate::cell::RowRange;
use crate::memtable::*;

const BASE: u64 = 1 << 40;

/// A cell with its value; `None` for a tombstone.
type Cell = (Column, Vec<u8>, Option<Vec<u8>>);

fn change() -> impl Strategy<Value = Cell> {
    let column = prop::sample::select(Column::ALL.to_vec());
    let key = prop::collection::vec(0..4_u8, 0..4);
    (column, key, prop::option::weighted(0.8, prop::collection::vec(any::<u8>(), 0..20)))
}

fn frame(changes: &[Cell]) -> Vec<u8> {
    let mut frame = Vec::new();
    for (column, key, content) in changes {
        let change = content.as_deref().map_or(Modification::Delete, Modification::Put);
        BatchEntry { column: *column, key, modification: change }.encode(&mut frame);
    }
    frame
}

fn add(writer: &mut MemtableWriter, changes: &[Cell], sequence: u64, snapshots: &[u64]) {
    writer.add(frame(changes).into(), sequence, snapshots).unwrap();
}

fn writer(seed: u64) -> MemtableWriter {
    MemtableWriter::new(BASE, RapidSecrets::seed(seed))
}

/// The cells at a sequence.
type State = BTreeMap<(Column, Vec<u8>), Option<Vec<u8>>>;

fn bound(key: Vec<u8>, kind: u8) -> Bound<Vec<u8>> {
    match kind % 3 {
        0 => Bound::Unbounded,
        1 => Bound::Included(key),
        _ => Bound::Excluded(key),
    }
}

fn is_in(key: &[u8], range: &RowRange) -> bool {
    let after_start = match &range.start {
        Bound::Unbounded => true,
        Bound::Included(start) => key >= &start[..],
        Bound::Excluded(start) => key > &start[..],
    };
    let before_end = match &range.end {
        Bound::Unbounded => true,
        Bound::Included(end) => key <= &end[..],
        Bound::Excluded(end) => key < &end[..],
    };
    after_start && before_end
}

fn cells(memtable: &Memtable, column: Column, range: &RowRange, backwards: bool, sequence: u64) -> Vec<Cell> {
    let cell = |(key, content): (&[u8], CellValue<'_>)| (column, key.to_vec(), content.map(<[u8]>::to_vec));
    let mut found: Vec<_> = memtable.range(column, range, backwards, sequence).map(cell).collect();
    if backwards {
        found.reverse();
    }
    found
}

proptest! {
    #[test]
    fn a_snapshot_reads_the_state_at_its_sequence(
        seed in any::<u64>(),
        batches in prop::collection::vec((prop::collection::vec(change(), 1..8), any::<bool>()), 1..40),
        ranges in prop::collection::vec(
            (prop::collection::vec(0..4_u8, 0..4), 0..3_u8, prop::collection::vec(0..4_u8, 0..4), 0..3_u8), 1..6),
    ) {
        let mut writer = writer(seed);
        let (mut state, mut snapshots) = (State::new(), vec![(BASE, State::new())]);
        for (number, (changes, opens_snapshot)) in batches.iter().enumerate() {
            let sequence = BASE + 1 + number as u64;
            let mut alive: Vec<u64> = snapshots.iter().map(|(sequence, _)| *sequence).collect();
            // Until the batch is visible, new snapshots open at the sequence before it.
            alive.push(sequence - 1);
            add(&mut writer, changes, sequence, &alive);
            for (column, key, content) in changes {
                state.insert((*column, key.clone()), content.clone());
            }
            if *opens_snapshot {
                snapshots.push((sequence, state.clone()));
            }
        }
        snapshots.push((BASE + batches.len() as u64, state));
        let memtable = writer.memtable();
        for (sequence, state) in &snapshots {
            for at in snapshots.last().unwrap().1.keys() {
                let found = memtable.get(at.0, &at.1, *sequence).map(|content| content.map(<[u8]>::to_vec));
                prop_assert_eq!(found, state.get(at).cloned(), "{:?} at {}", at, sequence);
            }
            for (start, start_kind, end, end_kind) in &ranges {
                let range = RowRange { start: bound(start.clone(), *start_kind), end: bound(end.clone(), *end_kind) };
                for column in Column::ALL {
                    let expected: Vec<Cell> = state
                        .iter()
                        .filter(|((of, key), _)| *of == column && is_in(key, &range))
                        .map(|((of, key), content)| (*of, key.clone(), content.clone()))
                        .collect();
                    prop_assert_eq!(cells(memtable, column, &range, false, *sequence), expected.clone());
                    prop_assert_eq!(cells(memtable, column, &range, true, *sequence), expected);
                }
            }
        }
    }

    #[test]
    fn random_bytes_decode_to_none_or_encode_back(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
        for entry in entries(&bytes) {
            let Some((at, entry)) = entry else { break };
            let mut again = Vec::new();
            entry.encode(&mut again);
            prop_assert_eq!(&bytes[at..at + again.len()], &again[..]);
        }
    }
}

#[test]
fn a_version_chain_is_no_longer_than_the_open_snapshots() {
    let mut writer = writer(1);
    let change = |number: u64| [(Column::Write, b"hot".to_vec(), Some(number.to_be_bytes().to_vec()))];
    let snapshots = [BASE + 10, BASE + 20_000];
    for number in 1..=200_000 {
        let alive: Vec<u64> =
            snapshots.iter().copied().filter(|sequence| *sequence < BASE + number).chain([BASE + number - 1]).collect();
        add(&mut writer, &change(number), BASE + number, &alive);
    }
    let read = |sequence| writer.memtable().get(Column::Write, b"hot", sequence).unwrap().unwrap().to_vec();
    assert_eq!(read(BASE + 10), 10_u64.to_be_bytes());
    assert_eq!(read(BASE + 20_000), 20_000_u64.to_be_bytes());
    assert_eq!(read(BASE + 200_000), 200_000_u64.to_be_bytes());
    assert!(writer.memtable().chain_len(Column::Write, b"hot") <= 5);
}

#[test]
fn keys_are_found_and_sorted_in_any_order_of_insertion() {
    let (mut writer, mut model) = (writer(2), BTreeMap::new());
    let count = 100_000_u64;
    for number in 0..count {
        // Half of the keys ascend, as in a bulk load; the others are scattered.
        let place = if number % 2 == 0 { number } else { number * 7_919 % count };
        let key = place.to_be_bytes().to_vec();
        let change = [(Column::Write, key.clone(), Some(number.to_be_bytes().to_vec()))];
        add(&mut writer, &change, BASE + 1 + number, &[BASE + number]);
        model.insert(key, Some(number.to_be_bytes().to_vec()));
    }
    let memtable = writer.memtable();
    let all = cells(memtable, Column::Write, &RowRange::all(), false, u64::MAX);
    assert!(all.iter().map(|(_, key, content)| (key, content)).eq(model.iter()));
    for (key, content) in &model {
        assert_eq!(memtable.get(Column::Write, key, u64::MAX), Some(content.as_deref()));
    }
    assert_eq!(memtable.get(Column::Lock, &model.keys().next().unwrap()[..], u64::MAX), None);
}

#[test]
fn concurrent_readers_see_whole_batches_at_their_sequence() {
    const KEYS: u64 = 50;
    let mut writer = writer(3);
    let memtable = Arc::clone(writer.memtable());
    let (visible, stopped) = (AtomicU64::new(BASE), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let read = || {
            let mut reads = 0_u64;
            while !stopped.load(Ordering::Relaxed) || reads == 0 {
                let sequence = visible.load(Ordering::Acquire);
                // The keys are 1 to 50. Batch n gives the value n to every key that is a divisor of
                // n. So at sequence n each key up to n has as its value its largest multiple up to
                // n.
                let found = cells(&memtable, Column::Write, &RowRange::all(), reads.is_multiple_of(2), sequence);
                let expected = (1..=KEYS.min(sequence - BASE)).count();
                assert_eq!(found.len(), expected, "at {}", sequence - BASE);
                for (_, key, content) in found {
                    let key = u64::from_be_bytes(key.try_into().unwrap());
                    let content = u64::from_be_bytes(content.unwrap().try_into().unwrap());
                    assert_eq!(content, (sequence - BASE) / key * key, "key {key} at {}", sequence - BASE);
                }
                reads += 1;
            }
        };
        let readers = [scope.spawn(read), scope.spawn(read)];
        for number in 1..=60_000_u64 {
            let due = (1..=KEYS).filter(|key| number % key == 0);
            let put = |key: u64| (Column::Write, key.to_be_bytes().to_vec(), Some(number.to_be_bytes().to_vec()));
            let changes: Vec<Cell> = due.map(put).collect();
            // The test does not know the readers' sequences, so it keeps what a reader at any of
            // the last 2,000 sequences reads.
            let alive: Vec<u64> = (BASE + number.saturating_sub(2_000)..BASE + number).collect();
            add(&mut writer, &changes, BASE + number, &alive);
            visible.store(BASE + number, Ordering::Release);
        }
        stopped.store(true, Ordering::Relaxed);
        for reader in readers {
            reader.join().unwrap();
        }
    });
}

#[test]
fn readers_find_every_visible_key_while_the_hash_grows() {
    const KEYS: u64 = 300_000;
    let mut writer = writer(4);
    let memtable = Arc::clone(writer.memtable());
    let visible = AtomicU64::new(BASE);
    std::thread::scope(|scope| {
        let read = |mut random: u64| {
            let mut at = BASE;
            while at < BASE + KEYS {
                at = visible.load(Ordering::Acquire);
                for _ in 0..100.min(at - BASE) {
                    random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    let key = 1 + (random >> 33) % (at - BASE);
                    let found = memtable.get(Column::Write, &key.to_be_bytes(), at);
                    assert_eq!(found, Some(Some(&key.to_be_bytes()[..])), "key {key} at {}", at - BASE);
                }
            }
        };
        scope.spawn(move || read(1));
        scope.spawn(move || read(2));
        for number in 1..=KEYS {
            let change = [(Column::Write, number.to_be_bytes().to_vec(), Some(number.to_be_bytes().to_vec()))];
            add(&mut writer, &change, BASE + number, &[BASE + number - 1]);
            visible.store(BASE + number, Ordering::Release);
        }
    });
}

#[test]
fn a_malformed_payload_is_refused() {
    assert!(writer(5).add([0xff; 16].into(), BASE + 1, &[]).is_err());
}

#[test]
fn golden_bytes_of_entries() {
    let golden: [(Modification<'_>, &[u8]); 3] = [
        (Modification::Put(b"v1"), b"\x43\x01\x02\0kv1"),
        (Modification::Delete, b"\x4b\x01\0\0k"),
        (Modification::DeleteRange(b"m"), b"\x53\x01\x01\0km"),
    ];
    for (change, bytes) in golden {
        let mut frame = Vec::new();
        BatchEntry { column: Column::Write, key: b"k", modification: change }.encode(&mut frame);
        assert_eq!(frame, bytes);
    }
    let mut frame = Vec::new();
    BatchEntry::encode_put(Column::Write, b"k", |frame| frame.extend_from_slice(b"v1"), &mut frame);
    assert_eq!(frame, golden[0].1);
}

#[test]
fn the_long_form_is_used_only_if_a_length_does_not_fit() {
    for (key_bytes, content_bytes) in [(255, 65_535), (256, 0), (0, 65_536), (70_000, 70_000)] {
        let (key, content) = (vec![b'k'; key_bytes], vec![b'c'; content_bytes]);
        let mut frame = b"before".to_vec();
        let entry = BatchEntry { column: Column::Data, key: &key, modification: Modification::Put(&content) };
        entry.encode(&mut frame);
        frame.extend_from_slice(b"after");
        let length = frame.len() - b"beforeafter".len();
        assert_eq!(BatchEntry::decode(&frame[6..]), Some((entry, length)));
        assert_eq!(length - key_bytes - content_bytes, if key_bytes == 255 { 4 } else { 9 });
    }
    let long = b"\x83\x01\0\0\0\x02\0\0\0kv1";
    assert_eq!(BatchEntry::decode(long), None);
    let without_form = b"\x03\x01\x02\0kv1";
    assert_eq!(BatchEntry::decode(without_form), None);
}

#[test]
#[should_panic(expected = "invariant: batch 1099511627777 follows batch 1099511627777")]
fn a_batch_that_is_not_newer_than_the_last_one_breaks_an_invariant() {
    let mut writer = writer(1);
    let change = [(Column::Write, vec![1], Some(vec![1]))];
    add(&mut writer, &change, BASE + 1, &[]);
    add(&mut writer, &change, BASE + 1, &[]);
}

/// At any other offset no snapshot would read the batch, or each one would.
#[test]
#[should_panic(expected = "is within 2^32 of the memtable's base")]
fn a_batch_outside_of_the_memtable_breaks_an_invariant() {
    add(&mut writer(1), &[(Column::Data, b"key".to_vec(), None)], BASE + (1 << 32), &[]);
}
