//! Parses records, one at a time, from three formats of text.
//!
//! - JSON lines: one object per line.
//! - TSV: a header line, then one record per line, with tabs between cells.
//! - Debian's package lists: stanzas of `Field: value` with an empty line between them; a
//!   continuation line begins with a blank.
//!
//! Every record becomes a JSON object. A bad record is returned with its line number, and the
//! caller may continue after it; an I/O error ends the reading.

use std::io::{BufRead, Read as _};

use anyhow::{Context as _, Result};
use serde_json::{Map, Value};

/// The longest line; the limit bounds the memory for a source without line ends.
const MAX_LINE_BYTES: u64 = 16 << 20;

/// The fields of a Debian package that are kept.
const PACKAGE_FIELDS: [&str; 11] = [
    "Package",
    "Version",
    "Architecture",
    "Section",
    "Priority",
    "Installed-Size",
    "Size",
    "Maintainer",
    "Depends",
    "Homepage",
    "Description",
];

/// A record.
#[derive(Debug)]
pub struct Record {
    /// Its first line.
    pub line: u64,
    /// Its fields.
    pub fields: Map<String, Value>,
}

/// A record that cannot be used.
#[derive(Debug)]
pub struct BadRecord {
    /// Its first line.
    pub line: u64,
    /// Why it cannot be used.
    pub reason: String,
}

/// The format of the text.
pub enum Format {
    /// One object per line.
    JsonLines,
    /// Columns with these names.
    Tsv(Vec<String>),
    /// Stanzas of fields.
    Debian,
}

impl Format {
    /// Its name.
    pub fn name(&self) -> &'static str {
        match self {
            Self::JsonLines => "JSON lines",
            Self::Tsv(_) => "tab-separated values",
            Self::Debian => "Debian package list",
        }
    }
}

/// The records of a source, in order.
pub struct Records {
    lines: LineReader,
    format: Format,
}

impl Records {
    /// Detects the format from the first line; `json` means that the file name has a JSON
    /// extension.
    pub fn new(source: Box<dyn BufRead>, json: bool) -> Result<Result<Self, BadRecord>> {
        let mut lines = LineReader { source, line: 0, bytes: 0, pushed_back: None };
        let first = match lines.next_non_empty()? {
            Some(Ok(first)) => first,
            Some(Err(bad)) => return Ok(Err(bad)),
            None => String::new(),
        };
        let bad = |reason: &str| Ok(Err(BadRecord { line: lines.line, reason: reason.into() }));
        let start = first.trim_start();
        let format = if json || start.is_empty() || start.starts_with('{') {
            if start.starts_with('[') {
                return bad("is a JSON array, not one object per line; to convert it: jq -c '.[]'");
            }
            Format::JsonLines
        } else if first.contains('\t') {
            let names: Vec<String> = first.split('\t').map(|name| name.trim().to_owned()).collect();
            for (index, name) in names.iter().enumerate() {
                if name.is_empty() || names.iter().take(index).any(|other| other == name) {
                    return bad(&format!(
                        "names its column {} {name:?}; names must differ and not be empty",
                        index + 1
                    ));
                }
            }
            return Ok(Ok(Self { lines, format: Format::Tsv(names) }));
        } else if first.split_once(": ").is_some_and(|(name, _)| !name.is_empty() && !name.contains(' ')) {
            Format::Debian
        } else {
            return bad("is the start of neither JSON lines, tab-separated values nor a Debian package list");
        };
        if !first.is_empty() {
            lines.pushed_back = Some(first);
        }
        Ok(Ok(Self { lines, format }))
    }

    /// The format of the text.
    pub fn format(&self) -> &Format {
        &self.format
    }

    /// The bytes read so far.
    pub fn bytes(&self) -> u64 {
        self.lines.bytes
    }

    /// The next record, if there is one; it may be bad.
    pub fn next(&mut self) -> Result<Option<Result<Record, BadRecord>>> {
        match &self.format {
            Format::Debian => self.next_stanza(),
            Format::JsonLines | Format::Tsv(_) => {
                let Some(text) = self.lines.next_non_empty()? else { return Ok(None) };
                let line = self.lines.line;
                let fields = text.and_then(|text| self.fields(&text).map_err(|reason| BadRecord { line, reason }));
                Ok(Some(fields.map(|fields| Record { line, fields })))
            }
        }
    }

    fn fields(&self, text: &str) -> Result<Map<String, Value>, String> {
        if let Format::Tsv(names) = &self.format {
            let cells: Vec<&str> = text.split('\t').collect();
            if cells.len() != names.len() {
                return Err(format!("has {} cells, the header has {}", cells.len(), names.len()));
            }
            return Ok(names.iter().cloned().zip(cells.into_iter().map(Value::from)).collect());
        }
        match serde_json::from_str(text) {
            Ok(Value::Object(fields)) => Ok(fields),
            Ok(_) => Err("is JSON, but not an object".into()),
            Err(err) => {
                // serde_json's line number is always 1 here, so it is left out.
                let message = err.to_string();
                let message = message.split(" at line ").next().unwrap_or_default();
                Err(format!("is not JSON: {message} (column {})", err.column()))
            }
        }
    }

    fn next_stanza(&mut self) -> Result<Option<Result<Record, BadRecord>>> {
        let mut fields: Map<String, Value> = Map::new();
        let mut bad = None;
        let mut first_line = None;
        let mut current_field: Option<String> = None;
        while let Some(text) = self.lines.next()? {
            let line = self.lines.line;
            let text = match text {
                Ok(text) => text,
                Err(err) => {
                    first_line = first_line.or(Some(line));
                    bad = bad.or(Some(err));
                    continue;
                }
            };
            if text.trim().is_empty() {
                if first_line.is_some() {
                    break;
                }
                continue;
            }
            first_line = first_line.or(Some(line));
            if text.starts_with([' ', '\t']) {
                // Only the first line of a description is kept.
                if let Some(name) = current_field.as_ref().filter(|name| *name != "Description")
                    && let Some(Value::String(value)) = fields.get_mut(name)
                {
                    value.push(' ');
                    value.push_str(text.trim());
                }
            } else if let Some((name, value)) = text.split_once(':') {
                current_field = PACKAGE_FIELDS.contains(&name).then(|| name.to_owned());
                if current_field.is_some() {
                    fields.insert(name.to_owned(), value.trim().into());
                }
            } else {
                bad = bad.or_else(|| Some(BadRecord { line, reason: "is not a field (Name: value)".into() }));
            }
        }
        Ok(first_line.map(|line| bad.map_or(Ok(Record { line, fields }), Err)))
    }
}

/// Reads and counts lines.
struct LineReader {
    source: Box<dyn BufRead>,
    line: u64,
    bytes: u64,
    pushed_back: Option<String>,
}

impl LineReader {
    /// The next line without its end, if there is one; it is bad if it is not UTF-8.
    fn next(&mut self) -> Result<Option<Result<String, BadRecord>>> {
        if let Some(text) = self.pushed_back.take() {
            return Ok(Some(Ok(text)));
        }
        let mut bytes = Vec::new();
        let limited = &mut self.source.by_ref().take(MAX_LINE_BYTES);
        let length = limited.read_until(b'\n', &mut bytes).context("cannot read the input")?;
        if length == 0 {
            return Ok(None);
        }
        self.line += 1;
        self.bytes += length as u64;
        if length as u64 == MAX_LINE_BYTES {
            anyhow::bail!("line {} has more than {} bytes", self.line, indicatif::HumanCount(MAX_LINE_BYTES));
        }
        if bytes.last() == Some(&b'\n') {
            bytes.pop();
            if bytes.last() == Some(&b'\r') {
                bytes.pop();
            }
        }
        let text = String::from_utf8(bytes).map_err(|_| BadRecord { line: self.line, reason: "is not UTF-8".into() });
        Ok(Some(text.map(|text| match text.strip_prefix('\u{feff}') {
            Some(without_mark) if self.line == 1 => without_mark.to_owned(),
            _ => text,
        })))
    }

    /// The next line that is not empty.
    fn next_non_empty(&mut self) -> Result<Option<Result<String, BadRecord>>> {
        loop {
            match self.next()? {
                Some(Ok(text)) if text.trim().is_empty() => {}
                other => return Ok(other),
            }
        }
    }
}
