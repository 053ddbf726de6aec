//! What the window of a core of our own could find its rows with: candidates side by side.
//!
//! One writer adds keys, as the leader of commits does, and one reader finds rows and scans. A point read goes by hash where the
//! candidate has one. What is timed is the structure alone: a row is an `Arc`, and its versions are not looked at.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use anyhow::{Context as _, Result, anyhow, ensure};
use comfy_table::{CellAlignment, Table};
use crossbeam_skiplist::SkipMap;
use parking_lot::{Mutex, RwLock};
use rapidhash::fast::RandomState;
use serde::Serialize;

use crate::dice::{Dice, key};
use crate::interrupt;
use crate::options::Arguments;
use crate::statistics::Spread;

const KEYS: u64 = 500_000;
const GETS: u64 = 1_000_000;
const SCANS: u64 = 20_000;
const SCANNED: usize = 100;
const SHARDS: usize = 64;

type Key = Arc<[u8]>;
type Row = Arc<u64>;

/// What a candidate does.
trait Index: Default + Sync {
    const NAME: &'static str;
    fn add(&self, key: Key, row: Row);
    fn get(&self, key: &[u8]) -> Option<Row>;
    fn scan(&self, from: &[u8], rows: usize) -> u64;
}

fn sum<'a>(rows: impl Iterator<Item = &'a Row>) -> u64 {
    rows.map(|row| **row).fold(0, u64::wrapping_add)
}

/// A hash map that is read without a lock, and a skip list.
struct HashAndSkipList(papaya::HashMap<Key, Row, RandomState>, SkipMap<Key, Row>);

impl Default for HashAndSkipList {
    fn default() -> Self {
        Self(papaya::HashMap::with_hasher(RandomState::default()), SkipMap::new())
    }
}

impl Index for HashAndSkipList {
    const NAME: &'static str = "papaya, crossbeam-skiplist";

    fn add(&self, key: Key, row: Row) {
        self.1.insert(Arc::clone(&key), Arc::clone(&row));
        self.0.pin().insert(key, row);
    }

    fn get(&self, key: &[u8]) -> Option<Row> {
        self.0.pin().get(key).map(Arc::clone)
    }

    fn scan(&self, from: &[u8], rows: usize) -> u64 {
        skip_scan(&self.1, from, rows)
    }
}

fn skip_scan(list: &SkipMap<Key, Row>, from: &[u8], rows: usize) -> u64 {
    let range = list.range::<[u8], _>((std::ops::Bound::Included(from), std::ops::Bound::Unbounded));
    range.take(rows).map(|entry| **entry.value()).fold(0, u64::wrapping_add)
}

/// The skip list alone.
#[derive(Default)]
struct SkipList(SkipMap<Key, Row>);

impl Index for SkipList {
    const NAME: &'static str = "crossbeam-skiplist";

    fn add(&self, key: Key, row: Row) {
        self.0.insert(key, row);
    }

    fn get(&self, key: &[u8]) -> Option<Row> {
        self.0.get(key).map(|entry| Arc::clone(entry.value()))
    }

    fn scan(&self, from: &[u8], rows: usize) -> u64 {
        skip_scan(&self.0, from, rows)
    }
}

/// A B+ tree and a hash map that are read without locks.
struct HashAndTree(scc::HashIndex<Key, Row, RandomState>, scc::TreeIndex<Key, Row>);

impl Default for HashAndTree {
    fn default() -> Self {
        Self(scc::HashIndex::with_hasher(RandomState::default()), scc::TreeIndex::new())
    }
}

impl Index for HashAndTree {
    const NAME: &'static str = "scc: HashIndex, TreeIndex";

    fn add(&self, key: Key, row: Row) {
        let _ = self.1.insert_sync(Arc::clone(&key), Arc::clone(&row));
        let _ = self.0.insert_sync(key, row);
    }

    fn get(&self, key: &[u8]) -> Option<Row> {
        self.0.peek_with(key, |_, row| Arc::clone(row))
    }

    fn scan(&self, from: &[u8], rows: usize) -> u64 {
        let guard = scc::Guard::new();
        let from: Key = from.into();
        sum(self.1.range(from.., &guard).take(rows).map(|(_, row)| row))
    }
}

/// What needs a lock to be read: hash maps in shards, and one B-tree.
struct Locked(Vec<Mutex<std::collections::HashMap<Key, Row, RandomState>>>, RwLock<BTreeMap<Key, Row>>);

impl Default for Locked {
    fn default() -> Self {
        Self((0..SHARDS).map(|_| Mutex::default()).collect(), RwLock::default())
    }
}

impl Locked {
    fn shard(&self, key: &[u8]) -> &Mutex<std::collections::HashMap<Key, Row, RandomState>> {
        let last = key.last().copied().unwrap_or_default();
        &self.0[usize::from(last) % SHARDS]
    }
}

impl Index for Locked {
    const NAME: &'static str = "mutexes around HashMap, RwLock around BTreeMap";

    fn add(&self, key: Key, row: Row) {
        self.1.write().insert(Arc::clone(&key), Arc::clone(&row));
        self.shard(&key).lock().insert(key, row);
    }

    fn get(&self, key: &[u8]) -> Option<Row> {
        self.shard(key).lock().get(key).map(Arc::clone)
    }

    fn scan(&self, from: &[u8], rows: usize) -> u64 {
        let range = (std::ops::Bound::Included(from), std::ops::Bound::Unbounded);
        sum(self.1.read().range::<[u8], _>(range).take(rows).map(|(_, row)| row))
    }
}

/// What came out, in nanoseconds for each.
#[derive(Serialize)]
pub struct Candidate {
    pub name: &'static str,
    pub added: Spread,
    pub found: Spread,
    pub found_beside_the_writer: Spread,
    /// Of 100 rows.
    pub scanned: Spread,
}

/// `None` if the run was interrupted.
pub fn run(arguments: &Arguments) -> Result<Option<Vec<Candidate>>> {
    let mut all: [Vec<[f64; 4]>; 4] = Default::default();
    for round in 0..arguments.rounds() {
        all[0].push(measure::<HashAndSkipList>(round)?);
        all[1].push(measure::<SkipList>(round)?);
        all[2].push(measure::<HashAndTree>(round)?);
        all[3].push(measure::<Locked>(round)?);
        if interrupt::came() {
            return Ok(None);
        }
    }
    let names = [HashAndSkipList::NAME, SkipList::NAME, HashAndTree::NAME, Locked::NAME];
    let summarize = |(name, rounds): (&'static str, &Vec<[f64; 4]>)| {
        let of = |at: usize| Spread::of(rounds.iter().map(|round| round[at]).collect()).context("no round");
        let (added, found, found_beside_the_writer) = (of(0)?, of(1)?, of(2)?);
        Ok(Candidate { name, added, found, found_beside_the_writer, scanned: of(3)? })
    };
    names.into_iter().zip(&all).map(summarize).collect::<Result<_>>().map(Some)
}

#[allow(clippy::cast_precision_loss, reason = "figures for people")]
fn measure<I: Index>(round: u64) -> Result<[f64; 4]> {
    let (index, mut dice) = (I::default(), Dice::new(round, 0));
    let timed = |count: u64, mut work: Box<dyn FnMut() -> Result<()> + '_>| -> Result<f64> {
        let began = Instant::now();
        for _ in 0..count {
            work()?;
        }
        Ok(began.elapsed().as_nanos() as f64 / count as f64)
    };
    let mut next = 0;
    let added = timed(
        KEYS,
        Box::new(|| {
            // Scattered, and every one of them once.
            let number = next * 7919 % KEYS;
            index.add(key(number).as_slice().into(), Arc::new(number));
            next += 1;
            Ok(())
        }),
    )?;
    let mut get = || {
        let number = dice.below(KEYS);
        let found = index.get(&key(number)).context("a key is missing")?;
        ensure!(*found == number, "key {number} has another row");
        Ok(())
    };
    let found = timed(GETS, Box::new(&mut get))?;
    let is_over = AtomicBool::new(false);
    let beside = std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut number = KEYS;
            while !is_over.load(Ordering::Relaxed) {
                index.add(key(number).as_slice().into(), Arc::new(number));
                number += 1;
            }
        });
        let beside = timed(GETS, Box::new(&mut get));
        is_over.store(true, Ordering::Relaxed);
        writer.join().map_err(|_| anyhow!("the writer panicked"))?;
        beside
    })?;
    let scanned = timed(
        SCANS,
        Box::new(|| {
            black_box(index.scan(&key(dice.below(KEYS - SCANNED as u64)), SCANNED));
            Ok(())
        }),
    )?;
    Ok([added, found, beside, scanned])
}

/// As people read it.
pub fn show(all: &[Candidate]) -> Table {
    let mut table = Table::new();
    table.load_preset(comfy_table::presets::UTF8_HORIZONTAL_ONLY);
    table.set_header(["candidate", "a new key", "get", "get beside a writer", "scan of 100"]);
    for one in all {
        let nanos = |spread: Spread| format!("{:.0} ns ({:.0}..{:.0})", spread.median, spread.least, spread.greatest);
        table.add_row([
            one.name.to_owned(),
            nanos(one.added),
            nanos(one.found),
            nanos(one.found_beside_the_writer),
            nanos(one.scanned),
        ]);
    }
    table.column_iter_mut().skip(1).for_each(|column| column.set_cell_alignment(CellAlignment::Right));
    table
}
