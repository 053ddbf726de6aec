//! The single writer of a memtable: it adds batches that are already in the log.
//!
//! An older version of a cell is kept as long as a snapshot may read it: a snapshot whose sequence
//! is at or above the version's and below the next newer version's. A write unlinks the versions
//! that no snapshot reads, from the newest back, and stops at the first one that a snapshot reads.
//! So the version chain of a row that is written a million times is bounded by the number of
//! snapshots that were open at a time, and such a row is read as fast as any other.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use rapidhash::v3::RapidSecrets;

use super::batch_format::{BatchEntry, Modification, entries};
use super::layout::{
    FIRST_HEAD, MAX_HEIGHT, NIL, NODE_NEWEST, NODE_NEXT, NODE_PREFIX, NODE_PREVIOUS, NODE_UPPER, VERSION_OFFSET,
    VERSION_OLDER, VERSION_SEQUENCE, Version,
};
use super::table::{LookupKey, Memtable, RangeTombstone, head, load};
use crate::cell::Column;

/// Adds batches to one memtable.
pub struct MemtableWriter {
    memtable: Arc<Memtable>,
    last_sequence: u64,
    nodes: u32,
    versions: u32,
    links: u32,
    /// For each column and level, the node inserted last; on a level that it does not have, a node
    /// before it (RocksDB's `Splice`). A new key often belongs right after the key inserted last.
    /// Then the search for its place begins here, otherwise at the head.
    splice: [[u32; MAX_HEIGHT]; Column::ALL.len()],
    rng: u32,
}

/// A payload that is not made of valid entries.
#[derive(Debug)]
pub struct MalformedPayload;

impl MemtableWriter {
    /// Starts a memtable whose first sequence follows `base`.
    pub fn new(base: u64, secrets: RapidSecrets) -> Self {
        Self {
            memtable: Arc::new(Memtable::new(base, secrets)),
            last_sequence: base,
            nodes: FIRST_HEAD + Column::ALL.len() as u32,
            versions: NIL + 1,
            links: (Column::ALL.len() * MAX_HEIGHT) as u32,
            splice: Column::ALL.map(|column| [head(column); MAX_HEIGHT]),
            rng: 0x9e37_79b9,
        }
    }

    /// The memtable, for readers.
    pub fn memtable(&self) -> &Arc<Memtable> {
        &self.memtable
    }

    /// The sequence of the last batch that was added completely.
    pub fn last_sequence(&self) -> u64 {
        self.last_sequence
    }

    /// Adds the entries of a payload as versions of `sequence`, which must be above the sequence of
    /// the batch before. `snapshots` are the sequences, ascending, of the open snapshots and of
    /// those that may open before this batch is visible.
    pub fn add(&mut self, payload: Box<[u8]>, sequence: u64, snapshots: &[u64]) -> Result<(), MalformedPayload> {
        let memtable = Arc::clone(&self.memtable);
        assert!(sequence > self.last_sequence, "invariant: batch {sequence} follows batch {}", self.last_sequence);
        let number = offset_of_batch(&memtable, sequence);
        memtable.payload_bytes.fetch_add(payload.len(), Ordering::Relaxed);
        let payload = memtable.payloads.set(number, payload);
        let snapshots = OpenSequences { memtable: &memtable, sequences: snapshots };
        for entry in entries(payload) {
            let (offset, entry) = entry.ok_or(MalformedPayload)?;
            if let Modification::DeleteRange(end) = entry.modification {
                memtable.payload_bytes.fetch_add(entry.key.len() + end.len(), Ordering::Relaxed);
                let (column, start, end) = (entry.column, entry.key.into(), end.into());
                let tombstones = memtable.tombstone_count.load(Ordering::Relaxed);
                memtable.range_tombstones.set(tombstones, RangeTombstone { sequence: number, column, start, end });
                memtable.tombstone_count.store(tombstones + 1, Ordering::Release);
                continue;
            }
            let place = (number, u32::try_from(offset).map_err(|_| MalformedPayload)?);
            let hash = memtable.hash_of(entry.column, entry.key);
            if let Some(node) = memtable.find_with_hash(entry.column, entry.key, hash) {
                self.add_version(&memtable, node, place, &snapshots);
            } else {
                self.add_node(&memtable, &entry, hash, place);
            }
        }
        self.last_sequence = sequence;
        Ok(())
    }

    fn version(&mut self, memtable: &Memtable, place: (u32, u32), older: u32) -> u32 {
        let number = self.versions;
        self.versions += 1;
        let version = memtable.versions.get(number);
        for (at, value) in [(VERSION_SEQUENCE, place.0), (VERSION_OFFSET, place.1), (VERSION_OLDER, older)] {
            version[at].store(value, Ordering::Relaxed);
        }
        number
    }

    fn add_version(&mut self, memtable: &Memtable, node: u32, place: (u32, u32), snapshots: &OpenSequences<'_>) {
        let node = memtable.nodes.get(node);
        let before = load(node, NODE_NEWEST);
        let version = self.version(memtable, place, before);
        snapshots.prune_versions(memtable.versions.get(version));
        // The call above mostly unlinks nothing, because new snapshots read the version `before`
        // until the batch is visible. The call below unlinks versions that are older than `before`;
        // mostly no snapshot reads them any more.
        snapshots.prune_versions(memtable.versions.get(before));
        node[NODE_NEWEST].store(version, Ordering::Release);
    }

    fn add_node(&mut self, memtable: &Memtable, entry: &BatchEntry<'_>, hash: u64, place: (u32, u32)) {
        let (number, height) = (self.nodes, self.height());
        self.nodes += 1;
        let version = self.version(memtable, place, NIL);
        let key = LookupKey::new(entry.key);
        let before = self.find_splice(memtable, entry.column, &key, height);
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
        let splice = &mut self.splice[entry.column as usize];
        *splice = before;
        splice[..height].fill(number);
    }

    /// For each level below `height`, the last node before the key; for a higher level, a node
    /// before the key that need not be the last.
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

    /// A random height, by xorshift: each level above the first has a chance of a quarter.
    fn height(&mut self) -> usize {
        self.rng ^= self.rng << 13;
        self.rng ^= self.rng >> 17;
        self.rng ^= self.rng << 5;
        (1 + self.rng.trailing_zeros() as usize / 2).min(MAX_HEIGHT)
    }
}

/// The sequence of a batch relative to the base. With any other number, no snapshot or every
/// snapshot would read the batch.
fn offset_of_batch(memtable: &Memtable, sequence: u64) -> u32 {
    let base = memtable.base_sequence;
    let relative = sequence.checked_sub(base).and_then(|relative| u32::try_from(relative).ok());
    let Some(relative) = relative.filter(|relative| (1..u32::MAX).contains(relative)) else {
        unreachable!("invariant: batch {sequence} is within 2^32 of the memtable's base {base}")
    };
    relative
}

/// The sequences of open snapshots, which decide which versions are kept.
struct OpenSequences<'a> {
    memtable: &'a Memtable,
    sequences: &'a [u64],
}

impl OpenSequences<'_> {
    /// Unlinks the versions older than this one, newest first, and stops at the first one that a
    /// snapshot reads. A reader that is at an unlinked version can continue, because the unlinked
    /// version keeps its own link.
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

    /// Whether a snapshot reads the version of sequence `start`; the next newer version has
    /// sequence `end`.
    fn any_snapshot_in(&self, start: u32, end: u32) -> bool {
        let first = self.sequences.partition_point(|sequence| self.memtable.offset_of(*sequence) < start);
        self.sequences.get(first).is_some_and(|sequence| self.memtable.offset_of(*sequence) < end)
    }
}
