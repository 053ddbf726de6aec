//! The content of a simulated file: sectors with all contents that a crash may leave.
//!
//! A sector that was written since the last sync has several versions: the durable one, and each
//! content since. A crash keeps any one of them. When a sync fails, the kernel marks the pages
//! clean all the same: the versions stay, but the next sync does not cover the sector. Only a new
//! write makes the sector dirty again.

use std::collections::BTreeMap;

/// The unit that a medium writes completely or not at all.
pub const SECTOR: usize = 512;

type Sector = [u8; SECTOR];
/// What a sector may contain after a crash: first the durable version, last the current one.
type SectorVersions = Vec<Box<Sector>>;

/// A file's content.
#[derive(Clone, Debug)]
pub struct SimContent {
    current: Vec<u8>,
    /// Sectors written since the last sync.
    dirty: BTreeMap<usize, SectorVersions>,
    /// Sectors that were dirty when a sync failed, and were not written since.
    sync_failed: BTreeMap<usize, SectorVersions>,
    /// Lengths that a crash may leave.
    possible_lengths: Vec<usize>,
    /// The greatest offset at which a write since the last sync has ended.
    unsynced_end: usize,
    has_grown: bool,
}

impl SimContent {
    /// An empty file, which is durable.
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
                let versions = self.sync_failed.remove(&number).unwrap_or_else(|| vec![self.sector(number)]);
                self.dirty.insert(number, versions);
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
            if let Some(versions) = self.dirty.get_mut(&number)
                && versions.last() != Some(&content)
            {
                versions.push(content);
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
        // If the file has grown since the last sync, this sync makes the new length durable. If
        // not, the length may still be uncertain, because an earlier sync failed. Then this sync
        // rules out only the lengths that would cut off what was written since.
        let synced_end = if self.has_grown { self.current.len() } else { self.unsynced_end };
        self.possible_lengths.retain(|length| *length >= synced_end);
        if !self.possible_lengths.contains(&self.current.len()) {
            self.possible_lengths.push(self.current.len());
        }
        (self.unsynced_end, self.has_grown) = (0, false);
    }

    /// A sync fails: nothing becomes durable, and no later sync covers the sectors that were dirty.
    pub fn fail_sync(&mut self) {
        self.sync_failed.append(&mut self.dirty);
        (self.unsynced_end, self.has_grown) = (0, false);
    }

    /// Keeps one version of each sector, and one length. `choose` gets the number of possibilities
    /// and returns an index.
    pub fn crash(&mut self, choose: &mut dyn FnMut(usize) -> usize) {
        let mut uncertain = std::mem::take(&mut self.sync_failed);
        uncertain.append(&mut self.dirty);
        for (number, versions) in uncertain {
            let kept = &versions[choose(versions.len()) % versions.len()];
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

    /// Drops the pages of failed syncs, as the kernel may at any time: reads then return what the
    /// medium has.
    pub fn evict(&mut self, choose: &mut dyn FnMut(usize) -> usize) {
        for (number, mut versions) in std::mem::take(&mut self.sync_failed) {
            let kept = versions.swap_remove(choose(versions.len()) % versions.len());
            let start = number * SECTOR;
            let end = (start + SECTOR).min(self.current.len());
            if start < end {
                self.current[start..end].copy_from_slice(&kept[..end - start]);
            }
        }
    }

    /// Damage: sets the length, durably.
    pub fn set_len(&mut self, length: usize) {
        self.current.resize(length, 0);
        self.possible_lengths = vec![length];
        (self.unsynced_end, self.has_grown) = (0, false);
    }

    /// Damage: inverts the bits of `mask` in a byte.
    pub fn flip(&mut self, offset: usize, mask: u8) {
        if let Some(byte) = self.current.get_mut(offset) {
            *byte ^= mask;
        }
    }
}
