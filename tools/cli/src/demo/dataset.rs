//! The data set of the demo, and which of its fields are the key and the index.
//!
//! The demo uses real data: the user's, else Debian's index of all packages, else the list of
//! installed packages, else a small table that comes with the demo, the chemical elements. The demo
//! prints which data it uses.

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, Cursor};
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, anyhow, bail};
use percolite::MAX_KEY_BYTES;
use serde_json::{Map, Value};

use super::parse::{BadRecord, Record, Records};
use crate::text_input::file_argument;

const ELEMENTS: &str = include_str!("../../data/elements.tsv");
const DPKG_STATUS: &str = "/var/lib/dpkg/status";

/// The longest indexed value, in bytes; longer values are truncated.
const MAX_INDEXED_BYTES: usize = 256;
const KEY_CANDIDATES: [&str; 4] = ["id", "key", "name", "Package"];
/// Names of fields that usually have few different values.
const INDEX_CANDIDATES: [&str; 12] = [
    "section", "category", "type", "kind", "class", "group", "status", "state", "country", "language", "topic", "year",
];
/// The indexed value of records without the field.
const MISSING_VALUE: &str = "(none)";

/// A data set of this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum SampleData {
    /// All packages in Debian's index: apt-cache dumpavail
    Apt,
    /// The installed Debian packages: /var/lib/dpkg/status
    Dpkg,
    /// The chemical elements, a small table that comes with the demo
    Sample,
}

/// A source of records.
pub struct Dataset {
    /// Its name.
    pub name: String,
    /// Why the preferred data sets are not available.
    pub notes: Vec<String>,
    /// The length in bytes, if it is known.
    pub bytes: Option<u64>,
    /// The records.
    pub records: Records,
}

/// Opens the file `input` (`-` is standard input), or else the data set `source`. If neither is
/// given, opens the first data set that exists.
pub fn find(input: Option<&Path>, source: Option<SampleData>) -> Result<Dataset> {
    match (input, source) {
        (Some(path), _) if path == Path::new("-") => {
            open("standard input".into(), "", None, Box::new(io::stdin()), false)
        }
        (Some(path), _) => file(path),
        (None, Some(SampleData::Apt)) => apt(),
        (None, Some(SampleData::Dpkg)) => file(Path::new(DPKG_STATUS)),
        (None, Some(SampleData::Sample)) => sample(),
        (None, None) => {
            let mut notes = Vec::new();
            for find in [apt, || file(Path::new(DPKG_STATUS)), sample] {
                match find() {
                    Ok(found) => return Ok(Dataset { notes, ..found }),
                    Err(err) => notes.push(format!("{err:#}")),
                }
            }
            bail!("no data: {}", notes.join("; "))
        }
    }
}

fn apt() -> Result<Dataset> {
    let dump = Command::new("apt-cache").arg("dumpavail").env("LC_ALL", "C").stdin(Stdio::null()).output();
    let dump = dump.context("cannot run apt-cache")?;
    if !dump.status.success() {
        bail!("apt-cache dumpavail failed: {}", String::from_utf8_lossy(&dump.stderr).trim());
    }
    if dump.stdout.is_empty() {
        bail!("apt-cache dumpavail lists no packages");
    }
    let name = "the Debian package index (apt-cache dumpavail)".into();
    open(name, "", Some(dump.stdout.len() as u64), Box::new(Cursor::new(dump.stdout)), false)
}

fn file(path: &Path) -> Result<Dataset> {
    let cannot = || format!("cannot read {}", path.display());
    let file = File::open(path).with_context(cannot)?;
    let metadata = file.metadata().with_context(cannot)?;
    if metadata.is_dir() {
        bail!("cannot read {}: it is a directory; name a file in it", path.display());
    }
    let bytes = metadata.is_file().then_some(metadata.len());
    let json = path.extension().is_some_and(|extension| extension.to_string_lossy().contains("json"));
    open(path.display().to_string(), &file_argument(path), bytes, Box::new(file), json)
}

fn sample() -> Result<Dataset> {
    let name = "the chemical elements, a table that comes with the demo".into();
    open(name, "", Some(ELEMENTS.len() as u64), Box::new(ELEMENTS.as_bytes()), false)
}

fn open(name: String, file_argument: &str, bytes: Option<u64>, text: Box<dyn io::Read>, json: bool) -> Result<Dataset> {
    match Records::new(text, file_argument, json).with_context(|| format!("cannot read {name}"))? {
        Ok(records) => Ok(Dataset { name, notes: Vec::new(), bytes, records }),
        Err(bad) => Err(record_error(&bad, &name)),
    }
}

/// The error of a bad record.
pub fn record_error(bad: &BadRecord, source: &str) -> anyhow::Error {
    anyhow!("line {} of {source} {}", bad.line, bad.reason)
}

/// Which fields are the key and the index.
#[derive(Clone, Debug)]
pub struct FieldChoice {
    /// The field of the key; `None` if the line number is the key.
    pub key: Option<String>,
    /// The field of the index.
    pub index: String,
}

impl FieldChoice {
    /// The fields that the user has named, else fields chosen from the first records.
    pub fn choose(key: Option<&str>, index: Option<&str>, first: &[Record]) -> Result<Self> {
        let sample = first.first().map(|record| &record.fields).ok_or_else(|| anyhow!("there are no records"))?;
        let has = |name: &str| first.iter().any(|record| record.fields.contains_key(name));
        let names = || sample.keys().cloned().collect::<Vec<_>>().join(", ");
        for (option, name) in [("--key-field", key), ("--index-field", index)] {
            if let Some(name) = name.filter(|name| !has(name)) {
                bail!("{option} {name}: the records have no such field; the first one has {}", names());
            }
        }
        let key = match key {
            Some(name) => Some(name.to_owned()),
            None => KEY_CANDIDATES.iter().find_map(|name| sample.contains_key(*name).then(|| (*name).to_owned())),
        };
        let index = match index {
            Some(name) => Some(name.to_owned()),
            None => field_by_name(sample, key.as_deref()).or_else(|| field_by_cardinality(first, key.as_deref())),
        };
        let index = index.or_else(|| sample.keys().next().cloned());
        Ok(Self { key, index: index.ok_or_else(|| anyhow!("the first record has no fields"))? })
    }

    /// The key of a record.
    pub fn key_of(&self, record: &Record) -> Result<String, BadRecord> {
        let Some(name) = &self.key else { return Ok(format!("{:012}", record.line)) };
        let bad = |reason| BadRecord { line: record.line, reason };
        let key = match record.fields.get(name) {
            None | Some(Value::Null) => return Err(bad(format!("has no field {name:?}, which is the key"))),
            Some(Value::Array(_) | Value::Object(_)) => {
                return Err(bad(format!("has a field {name:?} that is neither text nor number and cannot be the key")));
            }
            Some(scalar) => text_of(scalar),
        };
        // An index key has an indexed value and a zero byte before the key.
        let limit = MAX_KEY_BYTES - MAX_INDEXED_BYTES - 1;
        match key.len() {
            0 => Err(bad(format!("has an empty field {name:?}, which is the key"))),
            length if length > limit => Err(bad(format!("has a key of {length} bytes, more than {limit}"))),
            _ => Ok(key),
        }
    }

    /// The key of the record's index entry. A zero byte ends the indexed value; zero bytes of the
    /// value itself are replaced.
    pub fn index_key(&self, fields: &Map<String, Value>, key: &[u8]) -> Vec<u8> {
        let value = match fields.get(&self.index) {
            None | Some(Value::Null) => String::new(),
            Some(value) => text_of(value).replace('\0', " "),
        };
        let end = (0..=MAX_INDEXED_BYTES.min(value.len())).rev().find(|end| value.is_char_boundary(*end));
        let value = value.get(..end.unwrap_or_default()).filter(|value| !value.is_empty()).unwrap_or(MISSING_VALUE);
        [value.as_bytes(), b"\0", key].concat()
    }
}

/// A field with one of the names of [`INDEX_CANDIDATES`].
fn field_by_name(sample: &Map<String, Value>, key: Option<&str>) -> Option<String> {
    INDEX_CANDIDATES.iter().find_map(|group| {
        sample.keys().find(|name| name.eq_ignore_ascii_case(group) && Some(name.as_str()) != key).cloned()
    })
}

/// The field with the fewest different values, but at least two.
fn field_by_cardinality(first: &[Record], key: Option<&str>) -> Option<String> {
    let sample = &first.first()?.fields;
    let different = |name: &String| {
        let values: HashSet<String> = first.iter().filter_map(|record| record.fields.get(name)).map(text_of).collect();
        values.len()
    };
    let others = sample.keys().filter(|name| Some(name.as_str()) != key);
    others
        .map(|name| (different(name), name))
        .filter(|(different, _)| *different > 1)
        .min_by_key(|(different, _)| *different)
        .map(|(_, name)| name.clone())
}

fn text_of(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}
