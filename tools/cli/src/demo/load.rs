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

use super::dataset::{Dataset, FieldChoice, record_error};
use super::parse::{BadRecord, Record};
use super::store::Keyspaces;
use crate::output::{count, print_line};

const BATCH_RECORDS: usize = 500;
const BATCH_BYTES: u64 = 4 << 20;
const PLAIN_PROGRESS_INTERVAL: Duration = Duration::from_secs(2);

/// What to load.
pub struct LoadOptions {
    /// See `--key`.
    pub key: Option<String>,
    /// See `--index-field`.
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
    pub elapsed: Duration,
}

/// Loads the data set; the answer also tells which fields were chosen.
pub fn load(
    store: &Store,
    keyspaces: &Keyspaces,
    data: &mut Dataset,
    options: &LoadOptions,
) -> Result<(Loaded, FieldChoice)> {
    let began = Instant::now();
    let mut loaded = Loaded::default();
    let mut source = BatchReader { data, left: options.rows, skip_bad: options.skip_bad, skipped: 0 };
    let mut batch = source.batch()?;
    if batch.is_empty() {
        bail!("there are no records in {}", source.data.name);
    }
    let fields = FieldChoice::choose(options.key.as_deref(), options.index.as_deref(), &batch)
        .with_context(|| format!("cannot load {}", source.data.name))?;
    let key = fields.key.as_deref().unwrap_or("the number of the line");
    print_line(format_args!("{}; key: {key}; index by: {}", source.data.records.format().name(), fields.index))?;
    let progress = Progress::new(source.data.bytes);
    let mut keyed = Vec::with_capacity(batch.len());
    while !batch.is_empty() {
        keyed.clear();
        for record in batch {
            match fields.key_of(&record) {
                Ok(key) => keyed.push((key, record.fields)),
                Err(bad) => source.bad_record(&bad)?,
            }
        }
        let (new, replaced) = put(store, keyspaces, &fields, &keyed)?;
        loaded.new += new;
        loaded.replaced += replaced;
        loaded.commits += u64::from(!keyed.is_empty());
        progress.at(source.data.records.bytes(), loaded.new + loaded.replaced)?;
        batch = source.batch()?;
    }
    progress.bar.finish_and_clear();
    loaded.skipped = source.skipped;
    loaded.bytes = source.data.records.bytes();
    loaded.elapsed = began.elapsed();
    Ok((loaded, fields))
}

/// Records in portions.
struct BatchReader<'a> {
    data: &'a mut Dataset,
    left: u64,
    skip_bad: bool,
    skipped: u64,
}

impl BatchReader<'_> {
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
                Some(Err(bad)) => self.bad_record(&bad)?,
            }
        }
        Ok(batch)
    }

    fn bad_record(&mut self, bad: &BadRecord) -> Result<()> {
        if !self.skip_bad {
            let told = told(bad, &self.data.name);
            bail!("{told}; nothing of its transaction was loaded (--skip-bad leaves such records out)");
        }
        self.skipped += 1;
        Ok(())
    }
}

/// Puts some records as one transaction; the answer is how many are new and how many replaced another.
fn put(
    store: &Store,
    keyspaces: &Keyspaces,
    fields: &FieldChoice,
    some: &[(String, Map<String, Value>)],
) -> Result<(u64, u64)> {
    store.transact(|txn| {
        let (mut new, mut replaced) = (0, 0);
        for (key, record) in some {
            let key = key.as_bytes();
            match txn.get(&keyspaces.records, key)? {
                None => new += 1,
                Some(old) => {
                    txn.delete(&keyspaces.index, fields.index_key(&decode(&old)?, key))?;
                    replaced += 1;
                }
            }
            txn.put(&keyspaces.records, key, encode(record)?)?;
            txn.put(&keyspaces.index, fields.index_key(record, key), key)?;
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
    pub mismatched: u64,
}

impl Compared {
    /// Whether they match exactly.
    pub fn matches(&self) -> bool {
        self.mismatched == 0 && self.records == self.entries
    }
}

/// Looks for every record's entry, and for every entry's record.
pub fn compare(snapshot: &Snapshot, keyspaces: &Keyspaces, fields: &FieldChoice) -> Result<Compared> {
    let mut compared = Compared { records: 0, entries: 0, mismatched: 0 };
    for row in snapshot.prefix(&keyspaces.records, "") {
        let (key, record) = row?;
        let entry = fields.index_key(&decode(&record)?, &key);
        compared.records += 1;
        compared.mismatched += u64::from(snapshot.get(&keyspaces.index, entry)?.as_ref() != Some(&key));
    }
    for row in snapshot.prefix(&keyspaces.index, "") {
        let (entry, key) = row?;
        let record = snapshot.get(&keyspaces.records, &key)?.map(|record| decode(&record)).transpose()?;
        compared.entries += 1;
        compared.mismatched += u64::from(record.is_none_or(|record| fields.index_key(&record, &key) != entry));
    }
    Ok(compared)
}

/// A bar in a terminal, a line now and then elsewhere.
struct Progress {
    bar: ProgressBar,
    last_printed: std::cell::Cell<Instant>,
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
        Self { bar, last_printed: std::cell::Cell::new(Instant::now()) }
    }

    fn at(&self, bytes: u64, records: u64) -> Result<()> {
        let records = count(records, "record");
        if self.bar.is_hidden() && self.last_printed.get().elapsed() >= PLAIN_PROGRESS_INTERVAL {
            self.last_printed.set(Instant::now());
            print_line(format_args!("… {records}"))?;
        }
        self.bar.set_message(records);
        self.bar.set_position(bytes);
        Ok(())
    }
}
