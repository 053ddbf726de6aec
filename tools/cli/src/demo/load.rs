//! Loads the data, and compares the index with the records.
//!
//! A transaction loads a few hundred records and writes two rows for each: the record, and an index
//! entry. If the key exists already, the same transaction deletes the old index entry. So in every
//! snapshot the index matches the records.

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
    /// The field of the key, if `--key-field` names one.
    pub key: Option<String>,
    /// The indexed field, if `--index-field` names one.
    pub index: Option<String>,
    /// At most this many records are loaded.
    pub rows: u64,
    /// Whether records that cannot be read are skipped.
    pub skip_bad: bool,
}

/// What was loaded.
#[derive(Default)]
pub struct Loaded {
    /// Records with a new key.
    pub new: u64,
    /// Records that replaced another one.
    pub replaced: u64,
    /// Records that could not be read.
    pub skipped: u64,
    /// Bytes read from the source.
    pub bytes: u64,
    /// Committed transactions.
    pub commits: u64,
    /// The time from the first record to the last commit.
    pub elapsed: Duration,
}

/// Loads the data set; also returns which fields were chosen.
pub fn load(
    store: &Store,
    keyspaces: &Keyspaces,
    data: &mut Dataset,
    options: &LoadOptions,
) -> Result<(Loaded, FieldChoice)> {
    let started = Instant::now();
    let mut loaded = Loaded::default();
    let mut reader = BatchReader { data, left: options.rows, skip_bad: options.skip_bad, skipped: 0 };
    let mut batch = reader.batch()?;
    if batch.is_empty() {
        bail!("there are no records in {}", reader.data.name);
    }
    let fields = FieldChoice::choose(options.key.as_deref(), options.index.as_deref(), &batch)
        .with_context(|| format!("cannot load {}", reader.data.name))?;
    let key = fields.key.as_deref().unwrap_or("the line number");
    print_line(format_args!("{}; key: {key}; index: {}", reader.data.records.format().name(), fields.index))?;
    let progress = Progress::new(reader.data.bytes);
    let mut keyed = Vec::with_capacity(batch.len());
    while !batch.is_empty() {
        keyed.clear();
        for record in batch {
            match fields.key_of(&record) {
                Ok(key) => keyed.push((key, record.fields)),
                Err(bad) => reader.bad_record(&bad)?,
            }
        }
        let (new, replaced) = put(store, keyspaces, &fields, &keyed)?;
        loaded.new += new;
        loaded.replaced += replaced;
        loaded.commits += u64::from(!keyed.is_empty());
        progress.set(reader.data.records.bytes(), loaded.new + loaded.replaced)?;
        batch = reader.batch()?;
    }
    progress.bar.finish_and_clear();
    loaded.skipped = reader.skipped;
    loaded.bytes = reader.data.records.bytes();
    loaded.elapsed = started.elapsed();
    Ok((loaded, fields))
}

/// Reads records in batches, one per transaction.
struct BatchReader<'a> {
    data: &'a mut Dataset,
    left: u64,
    skip_bad: bool,
    skipped: u64,
}

impl BatchReader<'_> {
    fn batch(&mut self) -> Result<Vec<Record>> {
        let mut batch = Vec::new();
        let start = self.data.records.bytes();
        while batch.len() < BATCH_RECORDS && self.left > 0 && self.data.records.bytes() - start < BATCH_BYTES {
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
            let err = record_error(bad, &self.data.name);
            bail!("{err}; its transaction was not committed (--skip-bad skips such records)");
        }
        self.skipped += 1;
        Ok(())
    }
}

/// Puts records in one transaction; returns how many are new, and how many replaced another one.
fn put(
    store: &Store,
    keyspaces: &Keyspaces,
    fields: &FieldChoice,
    records: &[(String, Map<String, Value>)],
) -> Result<(u64, u64)> {
    store.transact(|txn| {
        let (mut new, mut replaced) = (0, 0);
        for (key, record) in records {
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

/// The stored form of a record.
pub fn encode(record: &Map<String, Value>) -> Result<Vec<u8>> {
    serde_json::to_vec(record).context("cannot write a record as JSON")
}

/// The record that [`encode`] has stored.
pub fn decode(stored: &[u8]) -> Result<Map<String, Value>> {
    serde_json::from_slice(stored).context("a stored record is not a JSON object")
}

/// The comparison of index and records.
pub struct Compared {
    /// The number of records.
    pub records: u64,
    /// The number of index entries.
    pub entries: u64,
    /// Records without their entry, and entries without their record.
    pub mismatched: u64,
}

impl Compared {
    /// Whether index and records match exactly.
    pub fn matches(&self) -> bool {
        self.mismatched == 0 && self.records == self.entries
    }
}

/// Reads the index entry of every record, and the record of every entry.
pub fn compare(snapshot: &Snapshot, keyspaces: &Keyspaces, fields: &FieldChoice) -> Result<Compared> {
    let mut compared = Compared { records: 0, entries: 0, mismatched: 0 };
    for row in snapshot.prefix(&keyspaces.records, "") {
        let row = row?;
        let entry = fields.index_key(&decode(row.value())?, row.key());
        compared.records += 1;
        compared.mismatched += u64::from(snapshot.get(&keyspaces.index, entry)?.as_deref() != Some(row.key()));
    }
    for row in snapshot.prefix(&keyspaces.index, "") {
        let entry = row?;
        let key = entry.value();
        let record = snapshot.get(&keyspaces.records, key)?.map(|record| decode(&record)).transpose()?;
        compared.entries += 1;
        compared.mismatched += u64::from(record.is_none_or(|record| fields.index_key(&record, key) != entry.key()));
    }
    Ok(compared)
}

/// A progress bar on a terminal, and elsewhere a line every few seconds.
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

    fn set(&self, bytes: u64, records: u64) -> Result<()> {
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
