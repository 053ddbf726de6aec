//! The one writer of a generation: it adds frames that the log has.
//!
//! Of the older versions of a cell those stay that a view may read: a view whose sequence lies in [the version's, its successor's).
//! A write unlinks the others, from the newest to the first that a view reads. So a row that is written a million times has a chain
//! as long as there were views at once, at most, and a read of it takes as long as of any other.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use rapidhash::v3::RapidSecrets;

use super::batch_format::{BatchEntry, Modification, entries};
use super::table::{
    FIRST_HEAD, LookupKey, MAX_HEIGHT, Memtable, NIL, NODE_NEWEST, NODE_NEXT, NODE_PREFIX, NODE_PREVIOUS, NODE_UPPER,
    RangeTombstone, VERSION_OFFSET, VERSION_OLDER, VERSION_SEQUENCE, Version, head, load,
};
use crate::engine::storage::Column;

/// See the [module](self).
pub struct MemtableWriter {
    memtable: Arc<Memtable>,
    last_sequence: u64,
    nodes: u32,
    versions: u32,
    links: u32,
    /// For each column and level, the last node at or before the last insertion: the next key often follows it.
    splice: [[u32; MAX_HEIGHT]; Column::ALL.len()],
    rng: u32,
}

/// A frame that is not made of records.
#[derive(Debug)]
pub struct MalformedPayload;

impl MemtableWriter {
    /// Begins a generation whose first sequence follows `base`.
    pub fn new(base: u64, secrets: RapidSecrets) -> Self {
        let generation = Arc::new(Memtable::new(base, secrets));
        Self {
            memtable: generation,
            last_sequence: base,
            nodes: FIRST_HEAD + Column::ALL.len() as u32,
            versions: NIL + 1,
            links: (Column::ALL.len() * MAX_HEIGHT) as u32,
            splice: Column::ALL.map(|column| [head(column); MAX_HEIGHT]),
            rng: 0x9e37_79b9,
        }
    }

    /// What readers read.
    pub fn memtable(&self) -> &Arc<Memtable> {
        &self.memtable
    }

    /// The sequence of the last frame that was added whole.
    pub fn last_sequence(&self) -> u64 {
        self.last_sequence
    }

    /// Adds the records of a frame's payload as versions of `sequence`, which is the one after that of the frame before, or
    /// a little greater. `views` are the sequences, ascending, at which anything is read or may be before this is visible.
    pub fn add(&mut self, payload: Box<[u8]>, sequence: u64, snapshots: &[u64]) -> Result<(), MalformedPayload> {
        let generation = Arc::clone(&self.memtable);
        let number = generation.offset_of(sequence);
        generation.payload_bytes.fetch_add(payload.len(), Ordering::Relaxed);
        generation.payloads.set(number, payload);
        let payload = generation.payloads.value(number).ok_or(MalformedPayload)?;
        let views = OpenSequences { memtable: &generation, sequences: snapshots };
        for record in entries(payload) {
            let (offset, record) = record.ok_or(MalformedPayload)?;
            if let Modification::DeleteRange(end) = record.modification {
                generation.payload_bytes.fetch_add(record.key.len() + end.len(), Ordering::Relaxed);
                let (column, start, end) = (record.column, record.key.into(), end.into());
                let erased = generation.tombstone_count.load(Ordering::Relaxed);
                generation.range_tombstones.set(erased, RangeTombstone { sequence: number, column, start, end });
                generation.tombstone_count.store(erased + 1, Ordering::Release);
                continue;
            }
            let place = (number, u32::try_from(offset).map_err(|_| MalformedPayload)?);
            let hash = generation.hash_of(record.column, record.key);
            if let Some(node) = generation.find_with_hash(record.column, record.key, hash) {
                self.add_version(&generation, node, place, &views);
            } else {
                self.add_node(&generation, &record, hash, place);
            }
        }
        self.last_sequence = sequence;
        Ok(())
    }

    fn version(&mut self, memtable: &Memtable, position: (u32, u32), older: u32) -> u32 {
        let number = self.versions;
        self.versions += 1;
        let version = memtable.versions.get(number);
        for (at, value) in [(VERSION_SEQUENCE, position.0), (VERSION_OFFSET, position.1), (VERSION_OLDER, older)] {
            version[at].store(value, Ordering::Relaxed);
        }
        number
    }

    fn add_version(&mut self, memtable: &Memtable, node: u32, position: (u32, u32), views: &OpenSequences<'_>) {
        let node = memtable.nodes.get(node);
        let before = load(node, NODE_NEWEST);
        let version = self.version(memtable, position, before);
        views.prune_versions(memtable.versions.get(version));
        // What was visible before the batch is still read; the one before that mostly no more.
        views.prune_versions(memtable.versions.get(before));
        node[NODE_NEWEST].store(version, Ordering::Release);
    }

    fn add_node(&mut self, memtable: &Memtable, record: &BatchEntry<'_>, hash: u64, position: (u32, u32)) {
        let (number, height) = (self.nodes, self.height());
        self.nodes += 1;
        let version = self.version(memtable, position, NIL);
        let key = LookupKey::new(record.key);
        let before = self.find_splice(memtable, record.column, &key, height);
        let node = memtable.nodes.get(number);
        for (at, word) in (NODE_PREFIX..).zip(key.prefix) {
            node[at].store(word, Ordering::Relaxed);
        }
        let next = load(memtable.nodes.get(before[0]), NODE_NEXT);
        let upper = self.links;
        self.links += height as u32 - 1;
        let numbers = [(NODE_NEWEST, version), (NODE_PREVIOUS, before[0]), (NODE_UPPER, upper)];
        for (at, value) in numbers {
            node[at].store(value, Ordering::Relaxed);
        }
        for (level, before) in before.iter().enumerate().take(height) {
            let beyond = memtable.link(*before, level).load(Ordering::Relaxed);
            memtable.link(number, level).store(beyond, Ordering::Relaxed);
        }
        if next != NIL {
            memtable.nodes.get(next)[NODE_PREVIOUS].store(number, Ordering::Release);
        }
        for (level, before) in before.iter().enumerate().take(height) {
            memtable.link(*before, level).store(number, Ordering::Release);
        }
        memtable.hash.insert(hash, number);
        let places = &mut self.splice[record.column as usize];
        *places = before;
        places[..height].fill(number);
    }

    /// The last node before the key, of as many levels as are asked for and those above that are known.
    fn find_splice(
        &self,
        memtable: &Memtable,
        column: Column,
        key: &LookupKey<'_>,
        height: usize,
    ) -> [u32; MAX_HEIGHT] {
        let mut before = self.splice[column as usize];
        let is_before = |node| memtable.compare_key(node, key).is_lt();
        let is_at_or_before_its_place = before[0] == head(column) || is_before(before[0]);
        let next = load(memtable.nodes.get(before[0]), NODE_NEXT);
        if !is_at_or_before_its_place || (next != NIL && is_before(next)) {
            memtable.find_less_than(column, Some((key, false)), |level, node| before[level] = node);
            return before;
        }
        for (level, node) in before.iter_mut().enumerate().take(height).skip(1) {
            loop {
                let next = memtable.link(*node, level).load(Ordering::Relaxed);
                if next == NIL || !is_before(next) {
                    break;
                }
                *node = next;
            }
        }
        before
    }

    /// One level, and another with a chance of a quarter, and so on (xorshift).
    fn height(&mut self) -> usize {
        self.rng ^= self.rng << 13;
        self.rng ^= self.rng >> 17;
        self.rng ^= self.rng << 5;
        (1 + self.rng.trailing_zeros() as usize / 2).min(MAX_HEIGHT)
    }
}

struct OpenSequences<'a> {
    memtable: &'a Memtable,
    sequences: &'a [u64],
}

impl OpenSequences<'_> {
    /// Takes those before a version out of its chain that no view reads. A reader that is at one of them goes on from there.
    fn prune_versions(&self, version: &Version) {
        let mut successor = load(version, VERSION_SEQUENCE);
        let mut older = load(version, VERSION_OLDER);
        while older != NIL {
            let found = self.memtable.versions.get(older);
            if self.any_snapshot_in(load(found, VERSION_SEQUENCE), successor) {
                break;
            }
            successor = load(found, VERSION_SEQUENCE);
            older = load(found, VERSION_OLDER);
        }
        version[VERSION_OLDER].store(older, Ordering::Release);
    }

    /// Whether any reads what was the newest from `start` on until something of `end` took its place.
    fn any_snapshot_in(&self, start: u32, end: u32) -> bool {
        let first = self.sequences.partition_point(|view| self.memtable.offset_of(*view) < start);
        self.sequences.get(first).is_some_and(|view| self.memtable.offset_of(*view) < end)
    }
}
