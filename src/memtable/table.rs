//! A generation: what was written between two hand-downs, found by key and in order, as of any sequence that a view has.
//!
//! ```text
//!   frame     the payload of the log's frame, as it was written: records of keys and contents
//!   node      a cell:    its newest version │ next │ previous │ upper links │ the key's first bytes
//!   version   the record of its content │ the version before it
//! ```
//!
//! A record is named by the number of its frame, which is the frame's sequence from the generation's base on, and where in it the record
//! lies. A node is found by hash, and in order in a skip list, one for each column, as in the memtable of `LevelDB`. Everything is numbered
//! slots and atomic numbers, all of it safe code. There is one [writer](super::writer); readers take no lock and are never waited for.
//!
//! What a view needs was complete before its sequence became visible. A reader can come across newer slots that are being built: a
//! number that leads to a slot is stored after the slot (release, acquire), so every slot that a reader reaches is complete. Nothing is
//! freed before the whole generation is.

use std::cmp::Ordering as Order;
use std::ops::Bound;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use rapidhash::v3::{RapidSecrets, rapidhash_v3_seeded};

use super::arena::{Arena, Words};
use super::batch_format::{Change, Record};
use super::hash_index::Hash;
use crate::engine::RowRange;
use crate::engine::storage::Column;

/// The number that leads nowhere.
pub(super) const NONE: u32 = 0;
/// The heads of the columns' lists are the first nodes.
pub(super) const HEADS: u32 = 1;
/// Levels of a list; each has a quarter of the nodes of the one below.
pub(super) const HEIGHT: usize = 12;

static EVERYTHING: RowRange = RowRange { start: Bound::Unbounded, end: Bound::Unbounded };

// The numbers of a node.
pub(super) const NEWEST: usize = 0;
pub(super) const NEXT: usize = 1;
pub(super) const PREVIOUS: usize = 2;
pub(super) const UPPER: usize = 3;
/// The first bytes of the key, so that the search for a place reads the nodes alone: a key's own bytes are two cache misses away.
pub(super) const PREFIX: usize = 4;
const PREFIX_WORDS: usize = 5;
pub(super) type Node = Words<{ PREFIX + PREFIX_WORDS }>;

// The numbers of a version.
/// Of its record, and so when it was written.
pub(super) const FRAME: usize = 0;
pub(super) const OFFSET: usize = 1;
pub(super) const OLDER: usize = 2;
pub(super) type Version = Words<3>;

/// What a cell holds: `None` if it was deleted.
pub type Content<'a> = Option<&'a [u8]>;

/// See the [module](self).
pub struct Generation {
    /// Sequences are kept relative to this, which belongs to the generation before.
    base: u64,
    secrets: RapidSecrets,
    pub(super) frames: Arena<OnceLock<Box<[u8]>>>,
    pub(super) nodes: Arena<Node>,
    pub(super) versions: Arena<Version>,
    pub(super) links: Arena<Words<1>>,
    pub(super) hash: Hash,
    pub(super) erasures: Arena<OnceLock<Erasure>>,
    pub(super) erased: AtomicU32,
    pub(super) frame_bytes: AtomicUsize,
}

/// A range of a column that was emptied. There are hardly ever any, so a look-up checks their number first.
pub struct Erasure {
    pub(super) sequence: u32,
    /// Of the cells.
    pub column: Column,
    /// The first key.
    pub start: Box<[u8]>,
    /// The key after the last.
    pub end: Box<[u8]>,
}

impl Generation {
    /// One whose first sequence follows `base`. `secrets` keep keys from being chosen so that they collide.
    pub(super) fn new(base: u64, secrets: RapidSecrets) -> Self {
        let generation = Self {
            base,
            secrets,
            frames: Arena::default(),
            nodes: Arena::default(),
            versions: Arena::default(),
            links: Arena::default(),
            hash: Hash::default(),
            erasures: Arena::default(),
            erased: AtomicU32::new(0),
            frame_bytes: AtomicUsize::new(0),
        };
        for column in Column::ALL {
            let upper = column as u32 * HEIGHT as u32;
            generation.nodes.get(head(column))[UPPER].store(upper, Ordering::Relaxed);
        }
        generation
    }

    /// What it takes in memory, beside some 100 KiB that every generation takes.
    pub fn bytes(&self) -> usize {
        let Self { frame_bytes, frames, nodes, versions, links, hash, erasures, .. } = self;
        let index = nodes.bytes() + versions.bytes() + links.bytes() + hash.bytes();
        frame_bytes.load(Ordering::Relaxed) + frames.bytes() + index + erasures.bytes()
    }

    /// What the cell holds for a view at `sequence`; `None` if nothing of it is in this generation.
    #[inline]
    pub fn get(&self, column: Column, key: &[u8], sequence: u64) -> Option<Content<'_>> {
        let sequence = self.relative(sequence)?;
        match self.find(column, key).and_then(|node| self.at(node, sequence)) {
            Some((written, content)) => Some(self.unless_erased(column, key, written, sequence, content)),
            None => self.erased_at(column, key, sequence).map(|_| None),
        }
    }

    /// Whether nothing was written to it.
    pub fn is_empty(&self) -> bool {
        self.frame_bytes.load(Ordering::Relaxed) == 0
    }

    /// Whether any range was emptied.
    pub fn has_erasures(&self) -> bool {
        self.erased.load(Ordering::Acquire) > 0
    }

    fn erasures(&self) -> impl Iterator<Item = &Erasure> {
        (0..self.erased.load(Ordering::Acquire)).filter_map(|number| self.erasures.value(number))
    }

    /// Ranges that were emptied after the sequence `after`, up to `upto`.
    pub fn erasures_of(&self, after: u64, upto: u64) -> impl Iterator<Item = &Erasure> {
        let is_in = move |erasure: &&Erasure| (after + 1..=upto).contains(&(self.base + u64::from(erasure.sequence)));
        self.erasures().filter(is_in)
    }

    /// Whether a view at `sequence` has the cell emptied by a range, so that what older generations and the tables have of it is gone.
    pub fn erases(&self, column: Column, key: &[u8], sequence: u64) -> bool {
        self.relative(sequence).is_some_and(|sequence| self.erased_at(column, key, sequence).is_some())
    }

    fn erased_at(&self, column: Column, key: &[u8], sequence: u32) -> Option<u32> {
        let covers = |erasure: &&Erasure| {
            erasure.column == column && erasure.sequence <= sequence && *erasure.start <= *key && *key < *erasure.end
        };
        self.erasures().filter(covers).map(|erasure| erasure.sequence).max()
    }

    fn unless_erased<'a>(
        &self,
        column: Column,
        key: &[u8],
        written: u32,
        sequence: u32,
        content: Content<'a>,
    ) -> Content<'a> {
        content.filter(|_| self.erased_at(column, key, sequence).is_none_or(|erased| erased <= written))
    }

    /// When the cell was last written; `None` if it was not.
    pub fn newest(&self, column: Column, key: &[u8]) -> Option<u64> {
        let newest = load(self.nodes.get(self.find(column, key)?), NEWEST);
        Some(self.base + u64::from(load(self.versions.get(newest), FRAME)))
    }

    /// The cells of a range as a view at `sequence` has them, those included that were deleted.
    pub fn range<'a>(
        &'a self,
        column: Column,
        range: &'a RowRange,
        backwards: bool,
        sequence: u64,
    ) -> impl Iterator<Item = (&'a [u8], Content<'a>)> {
        self.walk(column, range, backwards, sequence).map(|(key, _, content)| (key, content))
    }

    /// The cells of a column that were written after the sequence `after`, as a view at `upto` has them.
    pub fn written_since(&self, column: Column, after: u64, upto: u64) -> impl Iterator<Item = (&[u8], Content<'_>)> {
        let after = self.relative(after).unwrap_or(0);
        let cells = self.walk(column, &EVERYTHING, false, upto).filter(move |(_, written, _)| *written > after);
        cells.map(|(key, _, content)| (key, content))
    }

    fn walk<'a>(
        &'a self,
        column: Column,
        range: &'a RowRange,
        backwards: bool,
        sequence: u64,
    ) -> impl Iterator<Item = (&'a [u8], u32, Content<'a>)> {
        let sequence = self.relative(sequence);
        let first = || if backwards { self.last_in(column, range) } else { self.first_in(column, range) };
        let mut node = if sequence.is_some() { first() } else { NONE };
        std::iter::from_fn(move || {
            while node >= HEADS + Column::ALL.len() as u32 {
                let this = node;
                node = load(self.nodes.get(this), if backwards { PREVIOUS } else { NEXT });
                let key = self.key(this);
                if !is_within(key, range, backwards) {
                    node = NONE;
                } else if let Some((written, content)) = self.at(this, sequence?) {
                    return Some((key, written, self.unless_erased(column, key, written, sequence?, content)));
                }
            }
            None
        })
    }

    /// The length of a cell's chain of versions.
    #[cfg(test)]
    pub fn versions_of(&self, column: Column, key: &[u8]) -> usize {
        let newest = self.find(column, key).map_or(NONE, |node| load(self.nodes.get(node), NEWEST));
        let older = |version: &u32| Some(load(self.versions.get(*version), OLDER));
        std::iter::successors(Some(newest), older).take_while(|version| *version != NONE).count()
    }

    fn relative(&self, sequence: u64) -> Option<u32> {
        let relative = sequence.checked_sub(self.base).filter(|relative| *relative > 0)?;
        Some(u32::try_from(relative).unwrap_or(u32::MAX))
    }

    /// How far from its base a sequence of this generation lies. A generation ends long before there are 2^32.
    pub(super) fn relative_of_writer(&self, sequence: u64) -> u32 {
        self.relative(sequence).unwrap_or(0)
    }

    pub(super) fn hash_of(&self, column: Column, key: &[u8]) -> u64 {
        rapidhash_v3_seeded(key, &self.secrets).rotate_left(column as u32 * 13)
    }

    fn find(&self, column: Column, key: &[u8]) -> Option<u32> {
        self.find_hashed(column, key, self.hash_of(column, key))
    }

    pub(super) fn find_hashed(&self, column: Column, key: &[u8], hash: u64) -> Option<u32> {
        let is_it = |record: Record<'_>| record.key == key && record.column == column;
        self.hash.find(hash, |node| self.newest_record(node).is_some_and(is_it))
    }

    /// What a node's cell holds at a sequence, and since when.
    #[inline]
    fn at(&self, node: u32, sequence: u32) -> Option<(u32, Content<'_>)> {
        let mut version = load(self.nodes.get(node), NEWEST);
        while version != NONE {
            let found = self.versions.get(version);
            let written = load(found, FRAME);
            if written <= sequence {
                return match self.record(found)?.change {
                    Change::Put(content) => Some((written, Some(content))),
                    Change::Delete | Change::DeleteRange(_) => Some((written, None)),
                };
            }
            version = load(found, OLDER);
        }
        None
    }

    #[inline]
    fn record(&self, version: &Version) -> Option<Record<'_>> {
        let frame = self.frames.value(version[FRAME].load(Ordering::Relaxed))?;
        let bytes = frame.get(version[OFFSET].load(Ordering::Relaxed) as usize..)?;
        Record::decode(bytes).map(|(record, _)| record)
    }

    /// Every version's record has the cell's key; a reader mostly goes on to the newest one.
    #[inline]
    fn newest_record(&self, node: u32) -> Option<Record<'_>> {
        self.record(self.versions.get(load(self.nodes.get(node), NEWEST)))
    }

    #[inline]
    pub(super) fn key(&self, node: u32) -> &[u8] {
        self.newest_record(node).map_or(&[], |record| record.key)
    }

    /// The link of a node to the next one of a level.
    #[inline]
    pub(super) fn link(&self, node: u32, level: usize) -> &AtomicU32 {
        let node = self.nodes.get(node);
        match level.checked_sub(1) {
            None => &node[NEXT],
            Some(upper) => &self.links.get(node[UPPER].load(Ordering::Relaxed) + upper as u32)[0],
        }
    }

    /// The order of a node's key and another.
    #[inline]
    pub(super) fn order(&self, node: u32, key: &Sought<'_>) -> Order {
        let prefix = self.nodes.get(node)[PREFIX..].iter().map(|word| word.load(Ordering::Relaxed));
        prefix.cmp(key.prefix).then_with(|| self.key(node).cmp(key.bytes))
    }

    /// The last node of a column before a key, or at it if it is included; before none, the last of all. `see` is called with the one
    /// of each level.
    pub(super) fn last_before(
        &self,
        column: Column,
        key: Option<(&Sought<'_>, bool)>,
        mut see: impl FnMut(usize, u32),
    ) -> u32 {
        let is_before = |node: u32| {
            key.is_none_or(|(key, included)| {
                let order = self.order(node, key);
                order.is_lt() || (included && order.is_eq())
            })
        };
        let (mut node, mut beyond) = (head(column), NONE);
        for level in (0..HEIGHT).rev() {
            loop {
                let next = self.link(node, level).load(Ordering::Acquire);
                // Found to be no more before on the level above.
                if next == NONE || next == beyond {
                    break;
                }
                if !is_before(next) {
                    beyond = next;
                    break;
                }
                node = next;
            }
            see(level, node);
        }
        node
    }

    fn before(&self, column: Column, key: &[u8], included: bool) -> u32 {
        self.last_before(column, Some((&Sought::new(key), included)), |_, _| {})
    }

    fn first_in(&self, column: Column, range: &RowRange) -> u32 {
        let before = match &range.start {
            Bound::Unbounded => head(column),
            Bound::Included(start) => self.before(column, start, false),
            Bound::Excluded(start) => self.before(column, start, true),
        };
        load(self.nodes.get(before), NEXT)
    }

    fn last_in(&self, column: Column, range: &RowRange) -> u32 {
        match &range.end {
            Bound::Unbounded => self.last_before(column, None, |_, _| {}),
            Bound::Included(end) => self.before(column, end, true),
            Bound::Excluded(end) => self.before(column, end, false),
        }
    }
}

/// A key whose place is looked for.
pub(super) struct Sought<'a> {
    bytes: &'a [u8],
    pub(super) prefix: [u32; PREFIX_WORDS],
}

impl<'a> Sought<'a> {
    /// Keys that end early go on with zeros; where prefixes are equal, the keys are compared.
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
    HEADS + column as u32
}

#[inline]
pub(super) fn load<const N: usize>(slot: &Words<N>, number: usize) -> u32 {
    slot[number].load(Ordering::Acquire)
}

/// Whether a scan that has reached the key is still in the range.
fn is_within(key: &[u8], range: &RowRange, backwards: bool) -> bool {
    match if backwards { &range.start } else { &range.end } {
        Bound::Unbounded => true,
        Bound::Included(far) if backwards => key >= &far[..],
        Bound::Excluded(far) if backwards => key > &far[..],
        Bound::Included(far) => key <= &far[..],
        Bound::Excluded(far) => key < &far[..],
    }
}
