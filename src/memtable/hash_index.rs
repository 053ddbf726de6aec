//! A hash index from keys to nodes.
//!
//! The index uses open addressing with linear probing. It has 64 shards, chosen by bits of the
//! hash. Each has a table of its own, so that growing one table pauses the writer only briefly. A
//! slot is one atomic number with other bits of the hash and the node's number. Probing for a hash
//! begins at its *home slot*.
//!
//! A table that is three quarters full doubles *in place*, so no old table stays in memory:
//!
//! 1. A second half is added. Each entry whose home slot in the larger table is after its old slot
//!    is copied to its new place.
//! 2. The new size is stored.
//! 3. The entries that were copied are removed from their old slots.
//!
//! A reader takes no lock. A reader that has read the old size can miss an entry that step 3
//! removes. But step 3 follows the store of the new size (release, acquire), so a reader that has
//! missed an entry then sees that the size has changed, and searches again. No other entry is moved
//! or removed. A removed entry leaves a slot that searches skip, and that a later entry may take.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// The number of shards, a power of two.
const SHARDS: usize = 64;
/// A shard begins with 8 slots. With all `CHUNKS` it has 2^32.
const FIRST_BITS: u32 = 3;
const CHUNKS: usize = 30;

/// The content of a slot whose entry was removed. The slot has no node, but is not empty, so that
/// searches go on to the next slot.
const DELETED_SLOT: u64 = 1 << 32;

/// Finds the node of a key by the hash of the key.
pub struct HashIndex {
    shards: Box<[Shard]>,
    bytes: AtomicUsize,
}

/// A shard's table. Its slots are those of its chunks, one after the other. From the second on,
/// each chunk has as many slots as all chunks before it.
struct Shard {
    chunks: [OnceLock<Box<[AtomicU64]>>; CHUNKS],
    /// How many chunks are in use.
    chunks_used: AtomicU32,
    entries: AtomicU32,
}

impl Default for HashIndex {
    fn default() -> Self {
        let shard = || Shard {
            chunks: [const { OnceLock::new() }; CHUNKS],
            chunks_used: AtomicU32::new(0),
            entries: AtomicU32::new(0),
        };
        Self { shards: (0..SHARDS).map(|_| shard()).collect(), bytes: AtomicUsize::new(0) }
    }
}

impl HashIndex {
    /// Memory of the slots.
    pub fn memory_bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// The node with this hash for which `matches` returns `true`.
    #[inline]
    pub fn find(&self, hash: u64, mut matches: impl FnMut(u32) -> bool) -> Option<u32> {
        let shard = self.shard(hash);
        let mut used = shard.chunks_used.load(Ordering::Acquire);
        loop {
            let found = shard.find(used, stored_bits(hash), &mut matches);
            let now = shard.chunks_used.load(Ordering::Acquire);
            if found.is_some() || now == used {
                return found;
            }
            used = now;
        }
    }

    /// Adds a node, whose number must not be 0. Only the writer may call this.
    pub fn insert(&self, hash: u64, node: u32) {
        let shard = self.shard(hash);
        let used = shard.chunks_used.load(Ordering::Relaxed);
        let entries = shard.entries.load(Ordering::Relaxed) + 1;
        shard.entries.store(entries, Ordering::Relaxed);
        if entries as usize * 4 > capacity(used) * 3 && (used as usize) < CHUNKS {
            self.bytes.fetch_add(shard.grow(used), Ordering::Relaxed);
        }
        shard.store_entry(
            shard.chunks_used.load(Ordering::Relaxed),
            u64::from(stored_bits(hash)) << 32 | u64::from(node),
        );
    }

    fn shard(&self, hash: u64) -> &Shard {
        &self.shards[(hash >> 58) as usize % SHARDS]
    }
}

impl Shard {
    #[inline]
    fn find(&self, used: u32, hash: u32, matches: &mut impl FnMut(u32) -> bool) -> Option<u32> {
        for slot in self.probe(used, hash) {
            let entry = slot.load(Ordering::Acquire);
            if entry == 0 {
                return None;
            }
            let (stored, node) = unpack(entry);
            if stored == hash && node != 0 && matches(node) {
                return Some(node);
            }
        }
        None
    }

    fn store_entry(&self, used: u32, entry: u64) {
        let is_free = |slot: &&AtomicU64| unpack(slot.load(Ordering::Relaxed)).1 == 0;
        // A cell without its entry would be read from the tables, although the memtable has it.
        let Some(free) = self.probe(used, unpack(entry).0).find(is_free) else {
            unreachable!("invariant: a shard has a free slot for each of its cells")
        };
        free.store(entry, Ordering::Release);
    }

    /// Adds a chunk; returns the chunk's size in bytes.
    fn grow(&self, used: u32) -> usize {
        let old = capacity(used);
        let size = if used == 0 { 1 << FIRST_BITS } else { old };
        let chunk = self.chunks[used as usize].get_or_init(|| bytemuck::zeroed_slice_box(size));
        let is_beyond = |place: &usize| {
            let (hash, node) = unpack(self.slot(*place).load(Ordering::Relaxed));
            node != 0 && home(used + 1, hash) > *place
        };
        let moved: Vec<usize> = (0..old).filter(is_beyond).collect();
        for place in &moved {
            self.store_entry(used + 1, self.slot(*place).load(Ordering::Relaxed));
        }
        self.chunks_used.store(used + 1, Ordering::Release);
        for place in moved.into_iter().rev() {
            // If the next slot is empty, this one can become empty, too, in place of
            // `DELETED_SLOT`: a search that went on would end at the next slot anyway.
            let is_last = self.slot(place + 1).load(Ordering::Relaxed) == 0;
            self.slot(place).store(if is_last { 0 } else { DELETED_SLOT }, Ordering::Release);
        }
        size_of_val(&**chunk)
    }

    fn slot(&self, slot: usize) -> &AtomicU64 {
        let (chunk, at) = chunk_of(slot);
        &self.chunks[chunk].get().map_or(&[][..], |chunk| chunk)[at]
    }

    /// The slots in which an entry with this hash can be, in probing order.
    #[inline]
    fn probe(&self, used: u32, hash: u32) -> impl Iterator<Item = &AtomicU64> {
        let (first, at) = chunk_of(home(used, hash));
        // From the home slot to the end of the last chunk, then from the start of the first chunk.
        // The second part ends with the home slot's whole chunk, so some slots come twice.
        let chunks = (first..used as usize).chain(0..(first + 1).min(used as usize));
        chunks
            .enumerate()
            .filter_map(move |(step, chunk)| self.chunks[chunk].get()?.get(if step == 0 { at } else { 0 }..))
            .flatten()
    }
}

/// How many slots the first `used` chunks have.
fn capacity(used: u32) -> usize {
    if used == 0 { 0 } else { 1 << (FIRST_BITS + used - 1) }
}

/// The slot at which probing for a hash begins.
fn home(used: u32, hash: u32) -> usize {
    hash as usize & capacity(used).saturating_sub(1)
}

/// A slot's chunk, and its index in the chunk.
#[inline]
fn chunk_of(place: usize) -> (usize, usize) {
    match (place >> FIRST_BITS).checked_ilog2() {
        None => (0, place),
        Some(bits) => (bits as usize + 1, place - (1 << (FIRST_BITS + bits))),
    }
}

/// The bits of a hash that an entry stores. Other bits choose the shard.
fn stored_bits(hash: u64) -> u32 {
    (hash & u64::from(u32::MAX)) as u32
}

fn unpack(entry: u64) -> (u32, u32) {
    (stored_bits(entry >> 32), stored_bits(entry))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_search_during_growth_is_repeated() {
        // The home slot of this hash is the sixth of eight slots, and the fourteenth of sixteen.
        const MOVED: u64 = 0b1101;
        let hash = HashIndex::default();
        hash.insert(MOVED, 1);
        hash.insert(MOVED, 2);
        let bytes = hash.memory_bytes();
        let found = hash.find(MOVED, |node| {
            if hash.memory_bytes() == bytes {
                for other in 0..5 {
                    hash.insert(other, 10);
                }
            }
            node == 2
        });
        assert_eq!((found, hash.memory_bytes()), (Some(2), 2 * bytes));
    }

    #[test]
    fn every_entry_is_found_after_each_growth_and_nothing_else() {
        let hash = HashIndex::default();
        // Hashes of 20 bits: all are in the first shard, and many have the same home slot.
        let hash_of = |node: u32| u64::from(node.wrapping_mul(0x9e37_79b1) >> 12);
        for node in 1..=5_000 {
            assert_eq!(hash.find(hash_of(node), |found| found == node), None);
            hash.insert(hash_of(node), node);
            for known in (1..=node).step_by(1 + node as usize / 50) {
                assert_eq!(hash.find(hash_of(known), |found| found == known), Some(known), "{known} of {node}");
            }
        }
        assert_eq!(hash.memory_bytes(), 8 * 8_192);
    }

    #[test]
    #[should_panic(expected = "invariant: a shard has a free slot for each of its cells")]
    fn a_shard_without_a_free_slot_breaks_an_invariant() {
        HashIndex::default().shards[0].store_entry(0, 1);
    }
}
