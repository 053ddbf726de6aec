//! A memtable: the batches of one segment, readable by key and in key order, at the sequence of any
//! open snapshot.
//!
//! ```text
//!   payload   that of the log's frame, as it was written: entries of keys and values
//!   node      a cell: its newest version │ next │ previous │ upper links │ the key's first bytes
//!   version   the entry with its value │ the version before it
//! ```
//!
//! The address of an entry has two parts: the number of its frame (the frame's sequence relative to
//! the memtable's base), and the entry's offset in the payload. A node is found by the hash of its
//! key. For reading in key order, each column has a skip list of its nodes, as in the memtable of
//! `LevelDB`. Nodes, versions and links are in numbered slots of atomic words, without unsafe code.
//! There is one [writer](super::writer). Readers take no lock, and the writer never waits for them.
//!
//! Everything that a snapshot reads was complete before the snapshot's sequence became visible. A
//! reader can also come to newer slots. These are complete, too, because a number that leads to a
//! slot is stored after the slot's content (release, acquire). Nothing is freed before the whole
//! memtable is.

use std::cmp::Ordering as Order;
use std::ops::Bound;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use rapidhash::v3::{RapidSecrets, rapidhash_v3_seeded};

use super::arena::{Arena, AtomicWords};
use super::batch_format::{BatchEntry, Modification};
use super::hash_index::HashIndex;
use super::layout::{
    FIRST_HEAD, MAX_HEIGHT, NIL, NODE_NEWEST, NODE_NEXT, NODE_PREFIX, NODE_PREVIOUS, NODE_UPPER, Node, PREFIX_WORDS,
    VERSION_OFFSET, VERSION_OLDER, VERSION_SEQUENCE, Version,
};
use crate::cell::Column;
use crate::cell::RowRange;

static FULL_RANGE: RowRange = RowRange { start: Bound::Unbounded, end: Bound::Unbounded };

/// The value of a cell; `None` is a tombstone.
pub type CellValue<'a> = Option<&'a [u8]>;

/// The versions of cells and the range tombstones that the batches of one segment have written.
pub struct Memtable {
    /// The last sequence before this memtable. The memtable stores sequences relative to it.
    pub(super) base_sequence: u64,
    hash_secrets: RapidSecrets,
    pub(super) payloads: Arena<OnceLock<Box<[u8]>>>,
    pub(super) nodes: Arena<Node>,
    pub(super) versions: Arena<Version>,
    pub(super) links: Arena<AtomicWords<1>>,
    pub(super) hash: HashIndex,
    pub(super) range_tombstones: Arena<OnceLock<RangeTombstone>>,
    pub(super) tombstone_count: AtomicU32,
    pub(super) payload_bytes: AtomicUsize,
}

/// The deletion of a range of a column. Most memtables have none; then a lookup reads only their
/// number, which is zero.
pub struct RangeTombstone {
    pub(super) sequence: u32,
    /// Column of the range.
    pub column: Column,
    /// The first key.
    pub start: Box<[u8]>,
    /// The end, which is not in the range.
    pub end: Box<[u8]>,
}

impl Memtable {
    /// A memtable whose first sequence follows `base`. The secrets are random, so that keys cannot
    /// be chosen to collide in the hash index.
    pub(super) fn new(base: u64, secrets: RapidSecrets) -> Self {
        let memtable = Self {
            base_sequence: base,
            hash_secrets: secrets,
            payloads: Arena::default(),
            nodes: Arena::default(),
            versions: Arena::default(),
            links: Arena::default(),
            hash: HashIndex::default(),
            range_tombstones: Arena::default(),
            tombstone_count: AtomicU32::new(0),
            payload_bytes: AtomicUsize::new(0),
        };
        for column in Column::ALL {
            let upper = column as u32 * MAX_HEIGHT as u32;
            memtable.nodes.get(head(column))[NODE_UPPER].store(upper, Ordering::Relaxed);
        }
        memtable
    }

    /// Memory in use, without some 100 KiB that every memtable takes.
    pub fn memory_bytes(&self) -> usize {
        let Self { payload_bytes, payloads, nodes, versions, links, hash, range_tombstones, .. } = self;
        let index = nodes.memory_bytes() + versions.memory_bytes() + links.memory_bytes() + hash.memory_bytes();
        payload_bytes.load(Ordering::Relaxed) + payloads.memory_bytes() + index + range_tombstones.memory_bytes()
    }

    /// The cell's value for a snapshot at `sequence`; `None` if this memtable neither sets nor
    /// deletes the cell.
    #[inline]
    pub fn get(&self, column: Column, key: &[u8], sequence: u64) -> Option<CellValue<'_>> {
        let sequence = self.checked_offset(sequence)?;
        match self.find(column, key).and_then(|node| self.version_at(node, sequence)) {
            Some((written, content)) => Some(self.hide_if_covered(column, key, written, sequence, content)),
            None => self.max_covering_tombstone(column, key, sequence).map(|_| None),
        }
    }

    /// Whether no entry was added.
    pub fn is_empty(&self) -> bool {
        self.payload_bytes.load(Ordering::Relaxed) == 0
    }

    pub fn has_range_tombstones(&self) -> bool {
        self.tombstone_count.load(Ordering::Acquire) > 0
    }

    fn range_tombstones(&self) -> impl Iterator<Item = &RangeTombstone> {
        (0..self.tombstone_count.load(Ordering::Acquire)).filter_map(|number| self.range_tombstones.value(number))
    }

    /// Range tombstones after the sequence `after`, up to `upto`.
    pub fn range_tombstones_between(&self, after: u64, upto: u64) -> impl Iterator<Item = &RangeTombstone> {
        let is_in = move |tombstone: &&RangeTombstone| {
            (after + 1..=upto).contains(&(self.base_sequence + u64::from(tombstone.sequence)))
        };
        self.range_tombstones().filter(is_in)
    }

    /// Whether a range tombstone deletes the cell for a snapshot at `sequence`, so that versions in
    /// the older memtable and in the tables do not count.
    pub fn is_range_deleted(&self, column: Column, key: &[u8], sequence: u64) -> bool {
        self.checked_offset(sequence)
            .is_some_and(|sequence| self.max_covering_tombstone(column, key, sequence).is_some())
    }

    fn max_covering_tombstone(&self, column: Column, key: &[u8], sequence: u32) -> Option<u32> {
        let covers = |tombstone: &&RangeTombstone| {
            tombstone.column == column
                && tombstone.sequence <= sequence
                && *tombstone.start <= *key
                && *key < *tombstone.end
        };
        self.range_tombstones().filter(covers).map(|tombstone| tombstone.sequence).max()
    }

    fn hide_if_covered<'a>(
        &self,
        column: Column,
        key: &[u8],
        written: u32,
        sequence: u32,
        content: CellValue<'a>,
    ) -> CellValue<'a> {
        content.filter(|_| self.max_covering_tombstone(column, key, sequence).is_none_or(|deleted| deleted <= written))
    }

    /// The cells of a range for a snapshot at `sequence`, tombstones included.
    pub fn range<'a>(
        &'a self,
        column: Column,
        range: &'a RowRange,
        backwards: bool,
        sequence: u64,
    ) -> impl Iterator<Item = (&'a [u8], CellValue<'a>)> {
        self.iter_visible(column, range, backwards, sequence).map(|(key, _, content)| (key, content))
    }

    /// The cells of a column that were written after the sequence `after`, as a snapshot at `upto`
    /// has them, without those that a range tombstone of this memtable hides.
    pub fn changed_between(
        &self,
        column: Column,
        after: u64,
        upto: u64,
    ) -> impl Iterator<Item = (&[u8], CellValue<'_>)> {
        let after = self.checked_offset(after).unwrap_or(0);
        let cells = self.iter_visible(column, &FULL_RANGE, false, upto).filter(move |(_, written, _)| *written > after);
        let upto = self.checked_offset(upto).unwrap_or(0);
        let is_hidden = move |key: &[u8], written: u32| {
            self.max_covering_tombstone(column, key, upto).is_some_and(|deleted| deleted > written)
        };
        cells.filter(move |(key, written, _)| !is_hidden(key, *written)).map(|(key, _, content)| (key, content))
    }

    fn iter_visible<'a>(
        &'a self,
        column: Column,
        range: &'a RowRange,
        backwards: bool,
        sequence: u64,
    ) -> impl Iterator<Item = (&'a [u8], u32, CellValue<'a>)> {
        let sequence = self.checked_offset(sequence);
        let first = || if backwards { self.seek_last(column, range) } else { self.seek_first(column, range) };
        let mut node = if sequence.is_some() { first() } else { NIL };
        std::iter::from_fn(move || {
            while node >= FIRST_HEAD + Column::ALL.len() as u32 {
                let this = node;
                node = load(self.nodes.get(this), if backwards { NODE_PREVIOUS } else { NODE_NEXT });
                let key = self.key(this);
                if !is_before_end(key, range, backwards) {
                    node = NIL;
                } else if let Some((written, content)) = self.version_at(this, sequence?) {
                    return Some((key, written, self.hide_if_covered(column, key, written, sequence?, content)));
                }
            }
            None
        })
    }

    /// The length of a cell's chain of versions.
    #[cfg(test)]
    pub fn chain_len(&self, column: Column, key: &[u8]) -> usize {
        let newest = self.find(column, key).map_or(NIL, |node| load(self.nodes.get(node), NODE_NEWEST));
        let older = |version: &u32| Some(load(self.versions.get(*version), VERSION_OLDER));
        std::iter::successors(Some(newest), older).take_while(|version| *version != NIL).count()
    }

    fn checked_offset(&self, sequence: u64) -> Option<u32> {
        let relative = sequence.checked_sub(self.base_sequence).filter(|relative| *relative > 0)?;
        Some(u32::try_from(relative).unwrap_or(u32::MAX))
    }

    /// The sequence of a snapshot relative to the base: 0 if the snapshot is older than all batches
    /// of the memtable.
    pub(super) fn offset_of(&self, sequence: u64) -> u32 {
        self.checked_offset(sequence).unwrap_or(0)
    }

    pub(super) fn hash_of(&self, column: Column, key: &[u8]) -> u64 {
        rapidhash_v3_seeded(key, &self.hash_secrets).rotate_left(column as u32 * 13)
    }

    fn find(&self, column: Column, key: &[u8]) -> Option<u32> {
        self.find_with_hash(column, key, self.hash_of(column, key))
    }

    pub(super) fn find_with_hash(&self, column: Column, key: &[u8], hash: u64) -> Option<u32> {
        let matches = |entry: BatchEntry<'_>| entry.key == key && entry.column == column;
        self.hash.find(hash, |node| matches(self.newest_entry(node)))
    }

    /// The value of a node's cell at a sequence, and the sequence of that version.
    #[inline]
    fn version_at(&self, node: u32, sequence: u32) -> Option<(u32, CellValue<'_>)> {
        let mut version = load(self.nodes.get(node), NODE_NEWEST);
        while version != NIL {
            let found = self.versions.get(version);
            let written = load(found, VERSION_SEQUENCE);
            if written <= sequence {
                return match self.entry(found).modification {
                    Modification::Put(content) => Some((written, Some(content))),
                    Modification::Delete | Modification::DeleteRange(_) => Some((written, None)),
                };
            }
            version = load(found, VERSION_OLDER);
        }
        None
    }

    /// A version without its entry would hide a committed write from every reader.
    #[inline]
    fn entry(&self, version: &Version) -> BatchEntry<'_> {
        let payload = self.payloads.value(version[VERSION_SEQUENCE].load(Ordering::Relaxed));
        let offset = version[VERSION_OFFSET].load(Ordering::Relaxed) as usize;
        let entry = payload.and_then(|payload| BatchEntry::decode(payload.get(offset..)?));
        let Some((entry, _)) = entry else { unreachable!("invariant: a version has its entry in a payload") };
        entry
    }

    /// The entry of a cell's newest version. The entries of all versions have the cell's key; the
    /// newest one is read for it, because a reader mostly needs its value next.
    #[inline]
    fn newest_entry(&self, node: u32) -> BatchEntry<'_> {
        self.entry(self.versions.get(load(self.nodes.get(node), NODE_NEWEST)))
    }

    #[inline]
    pub(super) fn key(&self, node: u32) -> &[u8] {
        self.newest_entry(node).key
    }

    /// A node's link to the next node of a level.
    #[inline]
    pub(super) fn link(&self, node: u32, level: usize) -> &AtomicU32 {
        let node = self.nodes.get(node);
        match level.checked_sub(1) {
            None => &node[NODE_NEXT],
            Some(upper) => &self.links.get(node[NODE_UPPER].load(Ordering::Relaxed) + upper as u32)[0],
        }
    }

    #[inline]
    pub(super) fn compare_key(&self, node: u32, key: &LookupKey<'_>) -> Order {
        let prefix = self.nodes.get(node)[NODE_PREFIX..].iter().map(|word| word.load(Ordering::Relaxed));
        prefix.cmp(key.prefix).then_with(|| self.key(node).cmp(key.bytes))
    }

    /// In one column, finds the last node with a key less than `key`; if the flag beside `key` is
    /// set, the last with a key less or equal; if `key` is `None`, the last of all. Calls
    /// `on_level` for each level, with the last such node that the level has.
    pub(super) fn find_less_than(
        &self,
        column: Column,
        key: Option<(&LookupKey<'_>, bool)>,
        mut on_level: impl FnMut(usize, u32),
    ) -> u32 {
        let is_before = |node: u32| {
            key.is_none_or(|(key, included)| {
                let order = self.compare_key(node, key);
                order.is_lt() || (included && order.is_eq())
            })
        };
        let (mut node, mut beyond) = (head(column), NIL);
        for level in (0..MAX_HEIGHT).rev() {
            loop {
                let next = self.link(node, level).load(Ordering::Acquire);
                // A level above has shown that the node `beyond` is not before the key.
                if next == NIL || next == beyond {
                    break;
                }
                if !is_before(next) {
                    beyond = next;
                    break;
                }
                node = next;
            }
            on_level(level, node);
        }
        node
    }

    fn find_last_before(&self, column: Column, key: &[u8], included: bool) -> u32 {
        self.find_less_than(column, Some((&LookupKey::new(key), included)), |_, _| {})
    }

    fn seek_first(&self, column: Column, range: &RowRange) -> u32 {
        let before = match &range.start {
            Bound::Unbounded => head(column),
            Bound::Included(start) => self.find_last_before(column, start, false),
            Bound::Excluded(start) => self.find_last_before(column, start, true),
        };
        load(self.nodes.get(before), NODE_NEXT)
    }

    fn seek_last(&self, column: Column, range: &RowRange) -> u32 {
        match &range.end {
            Bound::Unbounded => self.find_less_than(column, None, |_, _| {}),
            Bound::Included(end) => self.find_last_before(column, end, true),
            Bound::Excluded(end) => self.find_last_before(column, end, false),
        }
    }
}

/// A key to be found, with its prefix words (RocksDB's `LookupKey`).
pub(super) struct LookupKey<'a> {
    bytes: &'a [u8],
    pub(super) prefix: [u32; PREFIX_WORDS],
}

impl<'a> LookupKey<'a> {
    /// The prefix of a short key is padded with zeros. So two prefixes can be equal although the
    /// keys are not; then the keys are compared.
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        let mut padded = [0; PREFIX_WORDS * 4];
        let length = bytes.len().min(padded.len());
        padded[..length].copy_from_slice(&bytes[..length]);
        let mut prefix = [0; PREFIX_WORDS];
        for (word, four) in prefix.iter_mut().zip(padded.as_chunks().0) {
            *word = u32::from_be_bytes(*four);
        }
        Self { bytes, prefix }
    }
}

pub(super) fn head(column: Column) -> u32 {
    FIRST_HEAD + column as u32
}

#[inline]
pub(super) fn load<const N: usize>(slot: &AtomicWords<N>, number: usize) -> u32 {
    slot[number].load(Ordering::Acquire)
}

/// Whether a scan that has reached the key is still in the range.
fn is_before_end(key: &[u8], range: &RowRange, backwards: bool) -> bool {
    match if backwards { &range.start } else { &range.end } {
        Bound::Unbounded => true,
        Bound::Included(far) if backwards => key >= &far[..],
        Bound::Excluded(far) if backwards => key > &far[..],
        Bound::Included(far) => key <= &far[..],
        Bound::Excluded(far) => key < &far[..],
    }
}
