//! The operations on a store, and how they are generated.

use std::fmt;
use std::ops::Bound;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};

/// The maximum numbers of transactions, snapshots and open scans at a time, and the number of
/// keyspaces.
pub const TXNS: usize = 3;
pub const SNAPSHOTS: usize = 2;
pub const SCANS: usize = 2;
pub const KEYSPACES: usize = 2;
/// The initial rows of [`Profile::ManyRows`]: enough for several pages of a scan.
pub const MANY_ROWS: usize = 1500;

/// How many rows a store has.
#[derive(Clone, Copy, Debug)]
pub enum Profile {
    /// A handful of keys, so that transactions conflict.
    FewRows,
    /// Several pages of rows, for scans.
    ManyRows,
}

/// A store and the operations on it.
#[derive(Clone, Debug)]
pub struct Case {
    pub profile: Profile,
    /// The size of the store's conflict cache. With one row, the engine checks almost every
    /// precondition.
    pub conflict_set_rows: usize,
    pub large_transaction_bytes: usize,
    pub operations: Vec<Operation>,
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key(pub Vec<u8>);

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "b\"{}\"", self.0.escape_ascii())
    }
}

/// A keyspace and a key.
pub type Place = (usize, Key);

/// A transaction or snapshot that reads, by its slot.
#[derive(Clone, Copy, Debug)]
pub enum Reader {
    Txn(usize),
    Snapshot(usize),
}

/// The rows of a scan.
#[derive(Clone, Debug)]
pub enum Extent {
    Range(Bound<Key>, Bound<Key>),
    Prefix(Key),
}

/// An operation. Transactions, snapshots and open scans are named by slot; an empty slot gets a
/// transaction or snapshot at its first use.
#[derive(Clone, Debug)]
pub enum Operation {
    Begin {
        slot: usize,
        two_phases: bool,
        buffered: bool,
    },
    Get(Reader, Place),
    MultiGet(Reader, usize, Vec<Key>),
    Contains(Reader, Place),
    GetForUpdate(usize, Place),
    Put(usize, Place, usize),
    Insert(usize, Place, usize),
    Delete(usize, Place),
    /// Writes `rows` rows, numbered from `first` on: puts values of length `put`, or deletes the
    /// rows if it is `None`.
    Band {
        slot: usize,
        keyspace: usize,
        first: usize,
        rows: usize,
        put: Option<usize>,
    },
    /// Reads all rows of a scan. The list says for each step whether it goes backwards, and is
    /// repeated until the scan ends.
    Scan(Reader, usize, Extent, Vec<bool>),
    /// Opens a scan that stays open during other operations.
    OpenScan(usize, Reader, usize, Extent),
    StepScan {
        slot: usize,
        backwards: bool,
        rows: usize,
    },
    Savepoint(usize),
    RollbackTo(usize, Index),
    Commit(usize),
    RollBack(usize),
    Drop(usize),
    Snapshot(usize),
    Reopen,
}

pub fn cases(profile: Profile) -> impl Strategy<Value = Case> {
    let length = match profile {
        Profile::FewRows => 1..120,
        Profile::ManyRows => 1..40,
    };
    let conflict_set_rows = prop_oneof![1 => Just(1_usize), 3 => Just(1 << 16)];
    let large_transaction_bytes = prop_oneof![3 => Just(16_usize << 20), 1 => Just(1), 1 => Just(400)];
    (conflict_set_rows, large_transaction_bytes, vec(operation(profile), length)).prop_map(
        move |(conflict_set_rows, large_transaction_bytes, operations)| Case {
            profile,
            conflict_set_rows,
            large_transaction_bytes,
            operations,
        },
    )
}

/// The key of one of the many rows.
pub fn numbered(row: usize) -> Key {
    Key(format!("{row:04}").into_bytes())
}

fn key(profile: Profile) -> BoxedStrategy<Key> {
    // Keys that are prefixes of each other, and keys with zero bytes and with the highest bytes.
    let nasty: &[&[u8]] = &[b"a", b"a\0", b"a\0\xff", b"a\0\0", b"\0", b"b", b"\xff", b"\xff\xff"];
    // The first three of these keys are used more often.
    let few = prop_oneof![2 => select(&nasty[..3]), 1 => select(nasty)].prop_map(|key| Key(key.to_vec()));
    match profile {
        Profile::FewRows => few.boxed(),
        Profile::ManyRows => prop_oneof![1 => few, 6 => (0..MANY_ROWS).prop_map(numbered)].boxed(),
    }
}

fn extent(profile: Profile) -> BoxedStrategy<Extent> {
    let end = move || {
        // No row has the empty key, but it may be a bound.
        let key = prop_oneof![8 => key(profile), 1 => Just(Key(Vec::new()))];
        prop_oneof![
            2 => key.clone().prop_map(Bound::Included),
            2 => key.prop_map(Bound::Excluded),
            1 => Just(Bound::Unbounded),
        ]
    };
    let prefix = (key(profile), 0..3_usize).prop_map(|(mut key, cut)| {
        key.0.truncate(key.0.len().saturating_sub(cut));
        Extent::Prefix(key)
    });
    prop_oneof![3 => (end(), end()).prop_map(|(start, end)| Extent::Range(start, end)), 1 => prefix].boxed()
}

fn directions() -> impl Strategy<Value = Vec<bool>> {
    prop_oneof![
        2 => Just(vec![false]),
        2 => Just(vec![true]),
        3 => vec(any::<bool>(), 2..9),
        // A long run from one end and then one from the other, so that both cross borders of pages.
        2 => (1..80_usize, 1..80_usize).prop_map(|(forth, back)| [vec![false; forth], vec![true; back]].concat()),
    ]
}

fn operation(profile: Profile) -> BoxedStrategy<Operation> {
    let txn = || 0..TXNS;
    let reader = || prop_oneof![3 => txn().prop_map(Reader::Txn), 1 => (0..SNAPSHOTS).prop_map(Reader::Snapshot)];
    let keyspace = || prop_oneof![5 => Just(0_usize), 1 => 1..KEYSPACES];
    let place = move || (keyspace(), key(profile));
    let length = || select(&[0_usize, 1, 255, 256, 1000][..]);
    let (bands, rows) = match profile {
        Profile::FewRows => (1, 1..4_usize),
        Profile::ManyRows => (4, 1..700),
    };
    let band = (txn(), keyspace(), 0..MANY_ROWS, rows, proptest::option::of(length()))
        .prop_map(|(slot, keyspace, first, rows, put)| Operation::Band { slot, keyspace, first, rows, put });
    prop_oneof![
        3 => (txn(), any::<bool>(), any::<bool>())
            .prop_map(|(slot, two_phases, buffered)| Operation::Begin { slot, two_phases, buffered }),
        4 => (reader(), place()).prop_map(|(reader, place)| Operation::Get(reader, place)),
        1 => (reader(), keyspace(), vec(key(profile), 0..12)).prop_map(|(r, k, keys)| Operation::MultiGet(r, k, keys)),
        1 => (reader(), place()).prop_map(|(reader, place)| Operation::Contains(reader, place)),
        3 => (txn(), place()).prop_map(|(txn, place)| Operation::GetForUpdate(txn, place)),
        12 => (txn(), place(), length()).prop_map(|(txn, place, length)| Operation::Put(txn, place, length)),
        3 => (txn(), place(), length()).prop_map(|(txn, place, length)| Operation::Insert(txn, place, length)),
        5 => (txn(), place()).prop_map(|(txn, place)| Operation::Delete(txn, place)),
        bands => band,
        6 => (reader(), keyspace(), extent(profile), directions()).prop_map(|(r, k, e, d)| Operation::Scan(r, k, e, d)),
        1 => (0..SCANS, reader(), keyspace(), extent(profile)).prop_map(|(s, r, k, e)| Operation::OpenScan(s, r, k, e)),
        3 => (0..SCANS, any::<bool>(), 1..50_usize)
            .prop_map(|(slot, backwards, rows)| Operation::StepScan { slot, backwards, rows }),
        2 => txn().prop_map(Operation::Savepoint),
        2 => (txn(), any::<Index>()).prop_map(|(txn, which)| Operation::RollbackTo(txn, which)),
        10 => txn().prop_map(Operation::Commit),
        1 => txn().prop_map(Operation::RollBack),
        1 => txn().prop_map(Operation::Drop),
        2 => (0..SNAPSHOTS).prop_map(Operation::Snapshot),
        1 => Just(Operation::Reopen),
    ]
    .boxed()
}
