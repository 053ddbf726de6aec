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
type SectorVersions = Vec<Box<Sector>>;

/// A file's content.
#[derive(Clone, Debug)]
pub struct SimContent {
    current: Vec<u8>,
    /// Written since the last sync.
    dirty: BTreeMap<usize, SectorVersions>,
    /// Given up by a sync that failed.
    sync_failed: BTreeMap<usize, SectorVersions>,
    /// What the length may be after a crash.
    possible_lengths: Vec<usize>,
    /// The highest end of a write since the last sync.
    unsynced_end: usize,
    has_grown: bool,
}

impl SimContent {
    /// Nothing, and that for certain.
    pub fn new() -> Self {
        Self {
            current: Vec::new(),
            dirty: BTreeMap::new(),
            sync_failed: BTreeMap::new(),
            possible_lengths: vec![0],
            unsynced_end: 0,
            has_grown: false,
        }
    }

    pub fn len(&self) -> usize {
        self.current.len()
    }

    pub fn read(&self, offset: usize, into: &mut [u8]) -> usize {
        let there = self.current.get(offset..).unwrap_or_default();
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
                let past = self.sync_failed.remove(&number).unwrap_or_else(|| vec![self.sector(number)]);
                self.dirty.insert(number, past);
            }
        }
        if end > self.current.len() {
            self.current.resize(end, 0);
            self.possible_lengths.push(end);
            self.has_grown = true;
        }
        self.current[offset..end].copy_from_slice(bytes);
        self.unsynced_end = self.unsynced_end.max(end);
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
        let reach = if self.has_grown { self.current.len() } else { self.unsynced_end };
        self.possible_lengths.retain(|length| *length >= reach);
        if !self.possible_lengths.contains(&self.current.len()) {
            self.possible_lengths.push(self.current.len());
        }
        (self.unsynced_end, self.has_grown) = (0, false);
    }

    /// A sync fails: nothing is durable that was not, and no later sync tries again.
    pub fn fail_sync(&mut self) {
        self.sync_failed.append(&mut self.dirty);
        (self.unsynced_end, self.has_grown) = (0, false);
    }

    /// Keeps one content of each sector, and one length. `choose` gets the number of possibilities and returns an index.
    pub fn crash(&mut self, choose: &mut dyn FnMut(usize) -> usize) {
        let mut uncertain = std::mem::take(&mut self.sync_failed);
        uncertain.append(&mut self.dirty);
        for (number, past) in uncertain {
            let kept = &past[choose(past.len()) % past.len()];
            let start = number * SECTOR;
            if self.current.len() < start + SECTOR {
                self.current.resize(start + SECTOR, 0);
            }
            self.current[start..start + SECTOR].copy_from_slice(kept.as_slice());
        }
        self.possible_lengths.dedup();
        let length = self.possible_lengths[choose(self.possible_lengths.len()) % self.possible_lengths.len()];
        self.set_len(length);
    }

    /// What was given up may leave the kernel's memory at any time, and then the medium is read again.
    pub fn evict(&mut self, choose: &mut dyn FnMut(usize) -> usize) {
        for (number, mut past) in std::mem::take(&mut self.sync_failed) {
            let kept = past.swap_remove(choose(past.len()) % past.len());
            let start = number * SECTOR;
            let end = (start + SECTOR).min(self.current.len());
            if start < end {
                self.current[start..end].copy_from_slice(&kept[..end - start]);
            }
        }
    }

    /// Damage: the length is this, for certain.
    pub fn set_len(&mut self, length: usize) {
        self.current.resize(length, 0);
        self.possible_lengths = vec![length];
        (self.unsynced_end, self.has_grown) = (0, false);
    }

    /// Damage: the bits of `mask` are turned.
    pub fn flip(&mut self, offset: usize, mask: u8) {
        if let Some(byte) = self.current.get_mut(offset) {
            *byte ^= mask;
        }
    }
}
