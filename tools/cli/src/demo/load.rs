//! Loading the data, and checking the index against it.
//!
//! Each transaction takes a few hundred records and writes two rows for each: the record under its key, and an entry in the
//! index. A record whose key is there already replaces it; its old entry goes in the same transaction, so no moment exists
//! at which the index says something else than the records.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use indicatif::{ProgressBar, ProgressStyle};
use percolite::{Snapshot, Store};
use serde_json::{Map, Value};

use super::dataset::{Dataset, Fields, told};
use super::parse::{Bad, Record};
use super::place::Spaces;
use crate::output::{count, say};

const BATCH_RECORDS: usize = 500;
const BATCH_BYTES: u64 = 4 << 20;
const PLAIN_LINES_EVERY: Duration = Duration::from_secs(2);

/// What to load.
pub struct Wish {
    /// See `--key`.
    pub key: Option<String>,
    /// See `--index-by`.
    pub index: Option<String>,
    /// The most records.
    pub rows: u64,
    /// Whether records that cannot be read are left out.
    pub skip_bad: bool,
}

/// What was loaded.
#[derive(Default)]
pub struct Loaded {
    /// Records that were not there before.
    pub new: u64,
    /// Records that replaced another.
    pub replaced: u64,
    /// Records that could not be read.
    pub skipped: u64,
    /// Read from the source.
    pub bytes: u64,
    /// Transactions committed.
    pub commits: u64,
    /// From the first record to the last commit.
    pub took: Duration,
}

/// Loads the data set; the answer also tells which fields were chosen.
pub fn load(store: &Store, spaces: &Spaces, data: &mut Dataset, wish: &Wish) -> Result<(Loaded, Fields)> {
    let began = Instant::now();
    let mut loaded = Loaded::default();
    let mut source = Source { data, left: wish.rows, skip_bad: wish.skip_bad, skipped: 0 };
    let mut batch = source.batch()?;
    if batch.is_empty() {
        bail!("there are no records in {}", source.data.name);
    }
    let fields = Fields::choose(wish.key.as_deref(), wish.index.as_deref(), &batch)
        .with_context(|| format!("cannot load {}", source.data.name))?;
    let key = fields.key.as_deref().unwrap_or("the number of the line");
    say(format_args!("{}; key: {key}; index by: {}", source.data.records.format().name(), fields.index))?;
    let progress = Progress::new(source.data.bytes);
    let mut keyed = Vec::with_capacity(batch.len());
    while !batch.is_empty() {
        keyed.clear();
        for record in batch {
            match fields.key_of(&record) {
                Ok(key) => keyed.push((key, record.fields)),
                Err(bad) => source.bad(&bad)?,
            }
        }
        let (new, replaced) = put(store, spaces, &fields, &keyed)?;
        loaded.new += new;
        loaded.replaced += replaced;
        loaded.commits += u64::from(!keyed.is_empty());
        progress.at(source.data.records.bytes(), loaded.new + loaded.replaced)?;
        batch = source.batch()?;
    }
    progress.bar.finish_and_clear();
    loaded.skipped = source.skipped;
    loaded.bytes = source.data.records.bytes();
    loaded.took = began.elapsed();
    Ok((loaded, fields))
}

/// Records in portions.
struct Source<'a> {
    data: &'a mut Dataset,
    left: u64,
    skip_bad: bool,
    skipped: u64,
}

impl Source<'_> {
    fn batch(&mut self) -> Result<Vec<Record>> {
        let mut batch = Vec::new();
        let begins = self.data.records.bytes();
        while batch.len() < BATCH_RECORDS && self.left > 0 && self.data.records.bytes() - begins < BATCH_BYTES {
            let next = self.data.records.next().with_context(|| format!("cannot read {}", self.data.name))?;
            match next {
                None => break,
                Some(Ok(record)) => {
                    self.left -= 1;
                    batch.push(record);
                }
                Some(Err(bad)) => self.bad(&bad)?,
            }
        }
        Ok(batch)
    }

    fn bad(&mut self, bad: &Bad) -> Result<()> {
        if !self.skip_bad {
            let told = told(bad, &self.data.name);
            bail!("{told}; nothing of its transaction was loaded (--skip-bad leaves such records out)");
        }
        self.skipped += 1;
        Ok(())
    }
}

/// Puts some records as one transaction; the answer is how many are new and how many replaced another.
fn put(store: &Store, spaces: &Spaces, fields: &Fields, some: &[(String, Map<String, Value>)]) -> Result<(u64, u64)> {
    store.transact(|txn| {
        let (mut new, mut replaced) = (0, 0);
        for (key, record) in some {
            let key = key.as_bytes();
            match txn.get(&spaces.records, key)? {
                None => new += 1,
                Some(old) => {
                    txn.delete(&spaces.index, fields.entry_of(&decode(&old)?, key))?;
                    replaced += 1;
                }
            }
            txn.put(&spaces.records, key, encode(record)?)?;
            txn.put(&spaces.index, fields.entry_of(record, key), key)?;
        }
        Ok((new, replaced))
    })
}

/// A record as it is stored.
pub fn encode(record: &Map<String, Value>) -> Result<Vec<u8>> {
    serde_json::to_vec(record).context("cannot write a record as JSON")
}

/// A record as it was stored.
pub fn decode(stored: &[u8]) -> Result<Map<String, Value>> {
    serde_json::from_slice(stored).context("a stored record is not a JSON object")
}

/// How index and records compare.
pub struct Compared {
    /// Records that there are.
    pub records: u64,
    /// Entries that there are.
    pub entries: u64,
    /// Records without their entry, and entries without their record.
    pub astray: u64,
}

impl Compared {
    /// Whether they match exactly.
    pub fn is_whole(&self) -> bool {
        self.astray == 0 && self.records == self.entries
    }
}

/// Looks for every record's entry, and for every entry's record.
pub fn compare(snapshot: &Snapshot, spaces: &Spaces, fields: &Fields) -> Result<Compared> {
    let mut compared = Compared { records: 0, entries: 0, astray: 0 };
    for row in snapshot.prefix(&spaces.records, "") {
        let (key, record) = row?;
        let entry = fields.entry_of(&decode(&record)?, &key);
        compared.records += 1;
        compared.astray += u64::from(snapshot.get(&spaces.index, entry)?.as_ref() != Some(&key));
    }
    for row in snapshot.prefix(&spaces.index, "") {
        let (entry, key) = row?;
        let record = snapshot.get(&spaces.records, &key)?.map(|record| decode(&record)).transpose()?;
        compared.entries += 1;
        compared.astray += u64::from(record.is_none_or(|record| fields.entry_of(&record, &key) != entry));
    }
    Ok(compared)
}

/// A bar in a terminal, a line now and then elsewhere.
struct Progress {
    bar: ProgressBar,
    told: std::cell::Cell<Instant>,
}

impl Progress {
    fn new(bytes: Option<u64>) -> Self {
        let bar = match bytes {
            Some(bytes) => ProgressBar::new(bytes),
            None => ProgressBar::new_spinner(),
        };
        let template = match bytes {
            Some(_) => "{bar:32} {bytes} of {total_bytes}, {msg}, {elapsed}",
            None => "{spinner} {bytes}, {msg}, {elapsed}",
        };
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        Self { bar, told: std::cell::Cell::new(Instant::now()) }
    }

    fn at(&self, bytes: u64, records: u64) -> Result<()> {
        let records = count(records, "record");
        if self.bar.is_hidden() && self.told.get().elapsed() >= PLAIN_LINES_EVERY {
            self.told.set(Instant::now());
            say(format_args!("… {records}"))?;
        }
        self.bar.set_message(records);
        self.bar.set_position(bytes);
        Ok(())
    }
}
