//! The one writer of a generation: it adds frames that the log has.
//!
//! Of the older versions of a cell those stay that a view may read: a view whose sequence lies in [the version's, its successor's).
//! A write unlinks the others, from the newest to the first that a view reads. So a row that is written a million times has a chain
//! as long as there were views at once, at most, and a read of it takes as long as of any other.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use rapidhash::v3::RapidSecrets;

use super::batch_format::{Change, Record, records};
use super::table::{
    Erasure, FRAME, Generation, HEADS, HEIGHT, NEWEST, NEXT, NONE, OFFSET, OLDER, PREFIX, PREVIOUS, Sought, UPPER,
    Version, head, load,
};
use crate::engine::storage::Column;

/// See the [module](self).
pub struct Writer {
    generation: Arc<Generation>,
    last: u64,
    nodes: u32,
    versions: u32,
    links: u32,
    /// For each column and level, the last node at or before the last insertion: the next key often follows it.
    places: [[u32; HEIGHT]; Column::ALL.len()],
    dice: u32,
}

/// A frame that is not made of records.
#[derive(Debug)]
pub struct Malformed;

impl Writer {
    /// Begins a generation whose first sequence follows `base`.
    pub fn new(base: u64, secrets: RapidSecrets) -> Self {
        let generation = Arc::new(Generation::new(base, secrets));
        Self {
            generation,
            last: base,
            nodes: HEADS + Column::ALL.len() as u32,
            versions: NONE + 1,
            links: (Column::ALL.len() * HEIGHT) as u32,
            places: Column::ALL.map(|column| [head(column); HEIGHT]),
            dice: 0x9e37_79b9,
        }
    }

    /// What readers read.
    pub fn generation(&self) -> &Arc<Generation> {
        &self.generation
    }

    /// The sequence of the last frame that was added whole.
    pub fn last(&self) -> u64 {
        self.last
    }

    /// Adds the records of a frame's payload as versions of `sequence`, which is the one after that of the frame before, or
    /// a little greater. `views` are the sequences, ascending, at which anything is read or may be before this is visible.
    pub fn add(&mut self, payload: Box<[u8]>, sequence: u64, views: &[u64]) -> Result<(), Malformed> {
        let generation = Arc::clone(&self.generation);
        let number = generation.relative_of_writer(sequence);
        generation.frame_bytes.fetch_add(payload.len(), Ordering::Relaxed);
        generation.frames.set(number, payload);
        let payload = generation.frames.value(number).ok_or(Malformed)?;
        let views = Views { generation: &generation, views };
        for record in records(payload) {
            let (offset, record) = record.ok_or(Malformed)?;
            if let Change::DeleteRange(end) = record.change {
                generation.frame_bytes.fetch_add(record.key.len() + end.len(), Ordering::Relaxed);
                let (column, start, end) = (record.column, record.key.into(), end.into());
                let erased = generation.erased.load(Ordering::Relaxed);
                generation.erasures.set(erased, Erasure { sequence: number, column, start, end });
                generation.erased.store(erased + 1, Ordering::Release);
                continue;
            }
            let place = (number, u32::try_from(offset).map_err(|_| Malformed)?);
            let hash = generation.hash_of(record.column, record.key);
            if let Some(node) = generation.find_hashed(record.column, record.key, hash) {
                self.add_version(&generation, node, place, &views);
            } else {
                self.add_node(&generation, &record, hash, place);
            }
        }
        self.last = sequence;
        Ok(())
    }

    fn version(&mut self, generation: &Generation, place: (u32, u32), older: u32) -> u32 {
        let number = self.versions;
        self.versions += 1;
        let version = generation.versions.get(number);
        for (at, value) in [(FRAME, place.0), (OFFSET, place.1), (OLDER, older)] {
            version[at].store(value, Ordering::Relaxed);
        }
        number
    }

    fn add_version(&mut self, generation: &Generation, node: u32, place: (u32, u32), views: &Views<'_>) {
        let node = generation.nodes.get(node);
        let before = load(node, NEWEST);
        let version = self.version(generation, place, before);
        views.forget(generation.versions.get(version));
        // What was visible before the batch is still read; the one before that mostly no more.
        views.forget(generation.versions.get(before));
        node[NEWEST].store(version, Ordering::Release);
    }

    fn add_node(&mut self, generation: &Generation, record: &Record<'_>, hash: u64, place: (u32, u32)) {
        let (number, height) = (self.nodes, self.height());
        self.nodes += 1;
        let version = self.version(generation, place, NONE);
        let key = Sought::new(record.key);
        let before = self.seek(generation, record.column, &key, height);
        let node = generation.nodes.get(number);
        for (at, word) in (PREFIX..).zip(key.prefix) {
            node[at].store(word, Ordering::Relaxed);
        }
        let next = load(generation.nodes.get(before[0]), NEXT);
        let upper = self.links;
        self.links += height as u32 - 1;
        let numbers = [(NEWEST, version), (PREVIOUS, before[0]), (UPPER, upper)];
        for (at, value) in numbers {
            node[at].store(value, Ordering::Relaxed);
        }
        for (level, before) in before.iter().enumerate().take(height) {
            let beyond = generation.link(*before, level).load(Ordering::Relaxed);
            generation.link(number, level).store(beyond, Ordering::Relaxed);
        }
        if next != NONE {
            generation.nodes.get(next)[PREVIOUS].store(number, Ordering::Release);
        }
        for (level, before) in before.iter().enumerate().take(height) {
            generation.link(*before, level).store(number, Ordering::Release);
        }
        generation.hash.add(hash, number);
        let places = &mut self.places[record.column as usize];
        *places = before;
        places[..height].fill(number);
    }

    /// The last node before the key, of as many levels as are asked for and those above that are known.
    fn seek(&self, generation: &Generation, column: Column, key: &Sought<'_>, height: usize) -> [u32; HEIGHT] {
        let mut before = self.places[column as usize];
        let is_before = |node| generation.order(node, key).is_lt();
        let is_at_or_before_its_place = before[0] == head(column) || is_before(before[0]);
        let next = load(generation.nodes.get(before[0]), NEXT);
        if !is_at_or_before_its_place || (next != NONE && is_before(next)) {
            generation.last_before(column, Some((key, false)), |level, node| before[level] = node);
            return before;
        }
        for (level, node) in before.iter_mut().enumerate().take(height).skip(1) {
            loop {
                let next = generation.link(*node, level).load(Ordering::Relaxed);
                if next == NONE || !is_before(next) {
                    break;
                }
                *node = next;
            }
        }
        before
    }

    /// One level, and another with a chance of a quarter, and so on (xorshift).
    fn height(&mut self) -> usize {
        self.dice ^= self.dice << 13;
        self.dice ^= self.dice >> 17;
        self.dice ^= self.dice << 5;
        (1 + self.dice.trailing_zeros() as usize / 2).min(HEIGHT)
    }
}

struct Views<'a> {
    generation: &'a Generation,
    views: &'a [u64],
}

impl Views<'_> {
    /// Takes those before a version out of its chain that no view reads. A reader that is at one of them goes on from there.
    fn forget(&self, version: &Version) {
        let mut successor = load(version, FRAME);
        let mut older = load(version, OLDER);
        while older != NONE {
            let found = self.generation.versions.get(older);
            if self.any_between(load(found, FRAME), successor) {
                break;
            }
            successor = load(found, FRAME);
            older = load(found, OLDER);
        }
        version[OLDER].store(older, Ordering::Release);
    }

    /// Whether any reads what was the newest from `start` on until something of `end` took its place.
    fn any_between(&self, start: u32, end: u32) -> bool {
        let first = self.views.partition_point(|view| self.generation.relative_of_writer(*view) < start);
        self.views.get(first).is_some_and(|view| self.generation.relative_of_writer(*view) < end)
    }
}
