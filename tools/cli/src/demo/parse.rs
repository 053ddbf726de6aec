//! Parses records, one at a time, from three formats of text.
//!
//! - JSON lines: one object per line.
//! - TSV: a header line, then one record per line, with tabs between cells.
//! - Debian's package lists: stanzas of `Field: value` with an empty line between them; a
//!   continuation line begins with a blank.
//!
//! Every record becomes a JSON object. A bad record is returned with its line number, and the
//! caller may continue after it; an I/O error ends the reading.

use std::io::{BufRead, BufReader, Read};

use anyhow::Result;
use serde_json::{Map, Value};

use crate::json_text::{not_json, not_one_a_line};
use crate::text_input::{Lines, TextStream};

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
    /// extension. `file_argument` is that of [`crate::text_input::file_argument`].
    pub fn new(source: Box<dyn Read>, file_argument: &str, json: bool) -> Result<Result<Self, BadRecord>> {
        let mut text = BufReader::new(TextStream::new(source, file_argument.to_owned()));
        let problem = not_one_a_line(text.fill_buf()?, file_argument);
        let mut lines = LineReader { lines: Lines::new(Box::new(text)), pushed_back: None };
        let first = match lines.next_non_empty()? {
            Some(Ok(first)) => first,
            Some(Err(bad)) => return Ok(Err(bad)),
            None => String::new(),
        };
        let bad = |reason: &str| Ok(Err(BadRecord { line: lines.number(), reason: reason.into() }));
        let start = first.trim_start();
        let format = if json || start.is_empty() || start.starts_with(['{', '[']) {
            if let Some(problem) = problem {
                return bad(&format!("is no record: {problem}"));
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
        self.lines.lines.bytes
    }

    /// The next record, if there is one; it may be bad.
    pub fn next(&mut self) -> Result<Option<Result<Record, BadRecord>>> {
        match &self.format {
            Format::Debian => self.next_stanza(),
            Format::JsonLines | Format::Tsv(_) => {
                let Some(text) = self.lines.next_non_empty()? else { return Ok(None) };
                let line = self.lines.number();
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
            Err(err) => Err(not_json(text, &err)),
        }
    }

    fn next_stanza(&mut self) -> Result<Option<Result<Record, BadRecord>>> {
        let mut fields: Map<String, Value> = Map::new();
        let mut bad = None;
        let mut first_line = None;
        let mut current_field: Option<String> = None;
        while let Some(text) = self.lines.next()? {
            let line = self.lines.number();
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

/// Reads lines, and the first one twice.
struct LineReader {
    lines: Lines<Box<dyn BufRead>>,
    pushed_back: Option<String>,
}

impl LineReader {
    /// The number of the line that was read last.
    fn number(&self) -> u64 {
        self.lines.number
    }

    /// The next line without its end, if there is one; it is bad if it is not UTF-8.
    fn next(&mut self) -> Result<Option<Result<String, BadRecord>>> {
        if let Some(text) = self.pushed_back.take() {
            return Ok(Some(Ok(text)));
        }
        let text = self.lines.next()?.map(|text| text.map(ToOwned::to_owned));
        Ok(text.map(|text| text.map_err(|reason| BadRecord { line: self.number(), reason })))
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
