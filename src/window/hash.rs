//! Finds a node by the hash of its key.
//!
//! An open-addressing table for each of 64 parts of the hash: one that grows is small, so the writer does not pause for it. A slot is
//! one atomic number, the hash and the node's. A table that is half full is copied into one twice as large, and stays for readers
//! that are in it. They miss entries that are added later, which are newer than their views. All tables of a part together take twice
//! as much as its last one.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

/// A power of two.
const PARTS: usize = 64;
/// The first table of a part has 8 slots; the last one possible has 2^32.
const FIRST_BITS: u32 = 3;
const TABLES: usize = 30;

type Table = Box<[AtomicU64]>;

/// See the [module](self).
pub struct Hash(Box<[Part]>);

struct Part {
    tables: [OnceLock<Table>; TABLES],
    /// Which of them is the newest.
    newest: AtomicU8,
    entries: AtomicU32,
}

impl Default for Hash {
    fn default() -> Self {
        let part = || Part {
            tables: [const { OnceLock::new() }; TABLES],
            newest: AtomicU8::new(0),
            entries: AtomicU32::new(0),
        };
        Self((0..PARTS).map(|_| part()).collect())
    }
}

impl Hash {
    /// The node with this hash for which `is_it` returns `true`.
    #[inline]
    pub fn find(&self, hash: u64, mut is_it: impl FnMut(u32) -> bool) -> Option<u32> {
        let part = self.part(hash);
        let table = part.tables[usize::from(part.newest.load(Ordering::Acquire))].get()?;
        for place in probe(table, hash) {
            let entry = table[place].load(Ordering::Acquire);
            if entry == 0 {
                return None;
            }
            let (stored, node) = split(entry);
            if stored == low(hash) && is_it(node) {
                return Some(node);
            }
        }
        None
    }

    /// Adds a node, whose number is not 0. Only for the writer.
    pub fn add(&self, hash: u64, node: u32) {
        let part = self.part(hash);
        let newest = part.newest.load(Ordering::Relaxed);
        let entries = part.entries.load(Ordering::Relaxed) + 1;
        part.entries.store(entries, Ordering::Relaxed);
        let mut table = part.tables[usize::from(newest)].get_or_init(|| zeros(FIRST_BITS));
        if entries as usize * 2 > table.len() && usize::from(newest) + 1 < TABLES {
            let larger = zeros(FIRST_BITS + u32::from(newest) + 1);
            for entry in table.iter().map(|slot| slot.load(Ordering::Relaxed)).filter(|entry| *entry != 0) {
                put(&larger, entry);
            }
            table = part.tables[usize::from(newest) + 1].get_or_init(|| larger);
            part.newest.store(newest + 1, Ordering::Release);
        }
        put(table, u64::from(low(hash)) << 32 | u64::from(node));
    }

    fn part(&self, hash: u64) -> &Part {
        &self.0[(hash >> 58) as usize % PARTS]
    }
}

/// What of a hash is stored. The part is chosen by other bits.
fn low(hash: u64) -> u32 {
    (hash & u64::from(u32::MAX)) as u32
}

fn split(entry: u64) -> (u32, u32) {
    (low(entry >> 32), low(entry))
}

fn zeros(bits: u32) -> Table {
    (0..1_usize << bits).map(|_| AtomicU64::new(0)).collect()
}

/// The places in which an entry can be, the likeliest first.
#[inline]
fn probe(table: &[AtomicU64], hash: u64) -> impl Iterator<Item = usize> {
    let (mask, first) = (table.len() - 1, low(hash) as usize);
    (0..=mask).map(move |step| (first + step) & mask)
}

fn put(table: &[AtomicU64], entry: u64) {
    if let Some(free) = probe(table, u64::from(split(entry).0)).find(|place| table[*place].load(Ordering::Relaxed) == 0)
    {
        table[free].store(entry, Ordering::Release);
    }
}
