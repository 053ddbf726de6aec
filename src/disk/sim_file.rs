//! The content of a simulated file: sectors that remember what they have been.
//!
//! A sector that was written since the last sync has a past: what the medium holds for certain, and each content that it has
//! had since. A crash keeps any one of them. When a sync fails, the kernel marks the pages clean all the same: the sector's past
//! stays, but the next sync no longer covers it. Only a new write to it does.

use std::collections::BTreeMap;

/// What a medium writes whole or not at all.
pub const SECTOR: usize = 512;

type Sector = [u8; SECTOR];
/// What a sector may be after a crash: first what is certain, last what it is now.
type Past = Vec<Box<Sector>>;

/// A file's content.
#[derive(Clone, Debug)]
pub struct Content {
    now: Vec<u8>,
    /// Written since the last sync.
    dirty: BTreeMap<usize, Past>,
    /// Given up by a sync that failed.
    given_up: BTreeMap<usize, Past>,
    /// What the length may be after a crash.
    lengths: Vec<usize>,
    /// The highest end of a write since the last sync.
    reach: usize,
    has_grown: bool,
}

impl Content {
    /// Nothing, and that for certain.
    pub fn new() -> Self {
        Self {
            now: Vec::new(),
            dirty: BTreeMap::new(),
            given_up: BTreeMap::new(),
            lengths: vec![0],
            reach: 0,
            has_grown: false,
        }
    }

    pub fn len(&self) -> usize {
        self.now.len()
    }

    pub fn read(&self, offset: usize, into: &mut [u8]) -> usize {
        let there = self.now.get(offset..).unwrap_or_default();
        let count = there.len().min(into.len());
        into[..count].copy_from_slice(&there[..count]);
        count
    }

    pub fn write(&mut self, offset: usize, bytes: &[u8]) {
        let end = offset + bytes.len();
        if bytes.is_empty() {
            return;
        }
        for number in offset / SECTOR..end.div_ceil(SECTOR) {
            if !self.dirty.contains_key(&number) {
                let past = self.given_up.remove(&number).unwrap_or_else(|| vec![self.sector(number)]);
                self.dirty.insert(number, past);
            }
        }
        if end > self.now.len() {
            self.now.resize(end, 0);
            self.lengths.push(end);
            self.has_grown = true;
        }
        self.now[offset..end].copy_from_slice(bytes);
        self.reach = self.reach.max(end);
        for number in offset / SECTOR..end.div_ceil(SECTOR) {
            let content = self.sector(number);
            if let Some(past) = self.dirty.get_mut(&number)
                && past.last() != Some(&content)
            {
                past.push(content);
            }
        }
    }

    fn sector(&self, number: usize) -> Box<Sector> {
        let mut sector = Box::new([0; SECTOR]);
        self.read(number * SECTOR, sector.as_mut_slice());
        sector
    }

    pub fn sync(&mut self) {
        self.dirty.clear();
        // What was made durable must be readable, whatever an earlier failure has left of the length.
        let reach = if self.has_grown { self.now.len() } else { self.reach };
        self.lengths.retain(|length| *length >= reach);
        if !self.lengths.contains(&self.now.len()) {
            self.lengths.push(self.now.len());
        }
        (self.reach, self.has_grown) = (0, false);
    }

    /// A sync fails: nothing is durable that was not, and no later sync tries again.
    pub fn fail_sync(&mut self) {
        self.given_up.append(&mut self.dirty);
        (self.reach, self.has_grown) = (0, false);
    }

    /// Keeps one content of each sector, and one length. `choose` gets the number of possibilities and returns an index.
    pub fn crash(&mut self, choose: &mut dyn FnMut(usize) -> usize) {
        let mut uncertain = std::mem::take(&mut self.given_up);
        uncertain.append(&mut self.dirty);
        for (number, past) in uncertain {
            let kept = &past[choose(past.len()) % past.len()];
            let start = number * SECTOR;
            if self.now.len() < start + SECTOR {
                self.now.resize(start + SECTOR, 0);
            }
            self.now[start..start + SECTOR].copy_from_slice(kept.as_slice());
        }
        self.lengths.dedup();
        let length = self.lengths[choose(self.lengths.len()) % self.lengths.len()];
        self.set(length);
    }

    /// What was given up may leave the kernel's memory at any time, and then the medium is read again.
    pub fn evict(&mut self, choose: &mut dyn FnMut(usize) -> usize) {
        for (number, mut past) in std::mem::take(&mut self.given_up) {
            let kept = past.swap_remove(choose(past.len()) % past.len());
            let start = number * SECTOR;
            let end = (start + SECTOR).min(self.now.len());
            if start < end {
                self.now[start..end].copy_from_slice(&kept[..end - start]);
            }
        }
    }

    /// Damage: the length is this, for certain.
    pub fn set(&mut self, length: usize) {
        self.now.resize(length, 0);
        self.lengths = vec![length];
        (self.reach, self.has_grown) = (0, false);
    }

    /// Damage: the bits of `mask` are turned.
    pub fn flip(&mut self, offset: usize, mask: u8) {
        if let Some(byte) = self.now.get_mut(offset) {
            *byte ^= mask;
        }
    }
}
