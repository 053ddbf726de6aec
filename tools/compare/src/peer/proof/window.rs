//! The window: the versions of recent rows, in generations, and what is below them.
//!
//! One writer, the leader, adds versions; readers take no lock but that of one row, for as long as copying a pointer takes. Rows are
//! found by hash, and in order in a skip list, which is touched only when a key enters. No key leaves: a generation goes as a whole.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::Result;
use crossbeam_skiplist::SkipMap;
use parking_lot::Mutex;

use super::below::{Below, Cursor};

pub type Key = Arc<[u8]>;
pub type Value = Arc<[u8]>;

/// What a key and its row take beside its bytes, about.
const ROW_BYTES: usize = 200;

/// The versions of a row, the newest first, as far as they are needed.
#[derive(Default)]
struct Versions {
    newest: Option<(u64, Value)>,
    /// Ascending. Most rows have none.
    older: Vec<(u64, Value)>,
}

/// A row of a generation.
#[derive(Default)]
pub struct Row(Mutex<Versions>);

impl Row {
    fn at(&self, sequence: u64) -> Option<Value> {
        let versions = self.0.lock();
        let (newest, value) = versions.newest.as_ref()?;
        if *newest <= sequence {
            return Some(Arc::clone(value));
        }
        let older = versions.older.iter().rev().find(|(older, _)| *older <= sequence);
        older.map(|(_, value)| Arc::clone(value))
    }

    pub fn newest(&self) -> u64 {
        self.0.lock().newest.as_ref().map_or(0, |(sequence, _)| *sequence)
    }

    /// Adds a version. Of the others those go that no view at `oldest` or later reads; the one before always stays, for views of this
    /// moment.
    fn add(&self, sequence: u64, value: Value, oldest: u64) {
        let mut versions = self.0.lock();
        let Some(before) = versions.newest.replace((sequence, value)) else { return };
        if before.0 < sequence {
            versions.older.push(before);
            let needed = versions.older.partition_point(|(older, _)| *older <= oldest).saturating_sub(1);
            versions.older.drain(..needed);
        }
    }
}

/// What was written since the last time that the window was frozen.
pub struct Generation {
    rows: papaya::HashMap<Key, Arc<Row>, rapidhash::fast::RandomState>,
    index: SkipMap<Key, Arc<Row>>,
    bytes: AtomicUsize,
}

impl Generation {
    pub fn new() -> Self {
        Self {
            rows: papaya::HashMap::with_hasher(rapidhash::fast::RandomState::default()),
            index: SkipMap::new(),
            bytes: AtomicUsize::new(0),
        }
    }

    /// When the row was last written; 0 if never.
    pub fn newest(&self, key: &[u8]) -> u64 {
        self.rows.pin().get(key).map_or(0, |row| row.newest())
    }

    pub fn add(&self, key: &[u8], value: Value, sequence: u64, oldest: u64) {
        let mut bytes = value.len() + 48;
        let rows = self.rows.pin();
        if let Some(row) = rows.get(key) {
            row.add(sequence, value, oldest);
        } else {
            let (key, row): (Key, _) = (key.into(), Arc::new(Row::default()));
            bytes += key.len() + ROW_BYTES;
            row.add(sequence, value, oldest);
            self.index.insert(Arc::clone(&key), Arc::clone(&row));
            rows.insert(key, row);
        }
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// What it takes in memory, versions that have gone included.
    pub fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    fn get(&self, key: &[u8], sequence: u64) -> Option<Value> {
        self.rows.pin().get(key)?.at(sequence)
    }

    /// The newest version of each row, in order.
    pub fn each(&self, mut see: impl FnMut(&[u8], &[u8]) -> Result<()>) -> Result<()> {
        for entry in &self.index {
            if let Some(value) = entry.value().at(u64::MAX) {
                see(entry.key(), &value)?;
            }
        }
        Ok(())
    }

    fn from<'a>(&'a self, from: &'a [u8], sequence: u64) -> impl Iterator<Item = (Key, Value)> + 'a {
        let range = self.index.range::<[u8], _>((std::ops::Bound::Included(from), std::ops::Bound::Unbounded));
        range.filter_map(move |entry| Some((Arc::clone(entry.key()), entry.value().at(sequence)?)))
    }
}

/// The generations, the newest first, and the tables below them as of one moment.
pub struct Layers {
    pub active: Arc<Generation>,
    pub frozen: Option<Arc<Generation>>,
    pub below: Arc<Below>,
}

impl Layers {
    fn generations(&self) -> impl Iterator<Item = &Generation> {
        std::iter::once(&*self.active).chain(self.frozen.as_deref())
    }

    pub fn get(&self, key: &[u8], sequence: u64, see: impl FnOnce(&[u8])) -> Result<bool> {
        for generation in self.generations() {
            if let Some(value) = generation.get(key, sequence) {
                see(&value);
                return Ok(true);
            }
        }
        self.below.get(key, see)
    }

    /// Merges the layers; of a key that several have the uppermost counts.
    pub fn scan(&self, from: &[u8], rows: usize, sequence: u64, mut see: impl FnMut(&[u8], &[u8])) -> Result<usize> {
        let mut above: Vec<_> =
            self.generations().map(|generation| generation.from(from, sequence).peekable()).collect();
        let mut below: Cursor<'_> = self.below.cursor(from);
        let mut seen = 0;
        while seen < rows {
            let mut first: Option<(usize, Key)> = None;
            for (layer, rows) in above.iter_mut().enumerate() {
                if let Some((key, _)) = rows.peek()
                    && first.as_ref().is_none_or(|(_, first)| key < first)
                {
                    first = Some((layer, Arc::clone(key)));
                }
            }
            let Some((layer, key)) = first else {
                // Nothing is above what is left.
                while seen < rows && below.see(&mut see)? {
                    seen += 1;
                }
                return Ok(seen);
            };
            match below.key().map(|found| found.cmp(&*key)) {
                Some(std::cmp::Ordering::Less) => {
                    below.see(&mut see)?;
                }
                order => {
                    if order == Some(std::cmp::Ordering::Equal) {
                        below.next()?;
                    }
                    for (other, rows) in above.iter_mut().enumerate() {
                        if let Some((_, value)) = rows.next_if(|(next, _)| *next == key)
                            && other == layer
                        {
                            see(&key, &value);
                        }
                    }
                }
            }
            seen += 1;
        }
        Ok(seen)
    }
}
