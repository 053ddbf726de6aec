//! Reads keys and values from JSON lines, CSV or TSV, and sends them in batches.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{File, Metadata};
use std::io::{self, BufRead, BufReader, Read};
use std::os::fd::AsFd as _;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::SyncSender;

use anyhow::{Context as _, Result};
use percolite::{MAX_KEY_BYTES, MAX_VALUE_BYTES};
use serde_json::value::RawValue;

use crate::advice::is_store;
use crate::encoding::{Encoding, Encodings, JsonRow};
use crate::exit::Code;
use crate::interrupt::{Interrupt, InterruptibleReader};
use crate::json_text::{check_surrogates, is_array, not_json, not_one_a_line};
use crate::output::count;
use crate::quoting::shell_quoted;
use crate::text_input::{Lines, MAX_RECORD_BYTES, TextStream, check_utf_8, file_argument, input_name};

/// A batch is sent when its keys and values have this many bytes.
const BATCH_BYTES: usize = 4 << 20;
/// The buffer of the CSV reader.
const CSV_READ_AHEAD: usize = 1 << 16;

/// The format of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// One JSON object per line
    Jsonl,
    /// Columns separated by commas, quoted where needed
    Csv,
    /// Columns separated by tabs, with the escapes \t, \n, \r, \\ and \xHH, without quotes
    Tsv,
    /// Columns separated by tabs, without escapes and quotes
    RawTsv,
}

impl Format {
    fn name(self) -> &'static str {
        match self {
            Self::Jsonl => "JSON lines",
            Self::Csv => "CSV",
            Self::Tsv | Self::RawTsv => "TSV",
        }
    }
}

/// The options of `load` for reading.
pub struct ReadOptions {
    pub format: Option<Format>,
    pub key_field: Option<String>,
    pub header: bool,
    pub skip: u64,
    /// The maximum number of rows of a batch.
    pub batch: usize,
    pub encodings: Encodings,
}

pub type Pair = (Vec<u8>, Vec<u8>);

/// The next part of the input.
pub enum Batch {
    Rows(Vec<Pair>),
    /// A record that cannot be used.
    BadRecord {
        line: u64,
        reason: String,
    },
    /// The rest of the input cannot be read.
    Failed(anyhow::Error),
    /// The input has only this many records, fewer than were to be skipped.
    FewerThanSkip {
        records: u64,
    },
    End,
}

/// A reader of records.
pub struct RecordReader {
    stream: Box<dyn BufRead + Send>,
    format: Format,
    options: ReadOptions,
    /// The length of the input in bytes, if it is known.
    pub length: Option<u64>,
    /// Bytes read so far.
    pub bytes_read: Arc<AtomicU64>,
}

struct CountingReader<R>(R, Arc<AtomicU64>);

impl<R: Read> Read for CountingReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.0.read(buffer)?;
        self.1.fetch_add(read as u64, Ordering::Relaxed);
        Ok(read)
    }
}

/// Appended to the input, to detect an unclosed quote. The first line end ends the last record if
/// the input does not end with a line end. The second line end belongs to a record only if a quote
/// is open. So a record that extends to the end of the sentinel has an unclosed quote.
const SENTINEL: &[u8] = b"\n\n";

/// A reader that fails beyond `limit`. The limit moves forward with each record, so no record takes
/// more memory than [`MAX_RECORD_BYTES`].
struct LimitedReader<R> {
    stream: R,
    bytes_read: u64,
    limit: Rc<Cell<u64>>,
    /// The rest of [`SENTINEL`] that is not read yet.
    sentinel: &'static [u8],
    /// The length of the input with the sentinel; set when both were read completely.
    total: Rc<Cell<Option<u64>>>,
}

impl<R: Read> Read for LimitedReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.bytes_read >= self.limit.get() {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        let read = match self.stream.read(buffer)? {
            0 => self.sentinel.read(buffer)?,
            read => read,
        };
        self.bytes_read += read as u64;
        if self.sentinel.is_empty() {
            self.total.set(Some(self.bytes_read));
        }
        Ok(read)
    }
}

impl RecordReader {
    /// Opens the file, and detects its format.
    pub fn open(file: &Path, options: ReadOptions, interrupt: &Interrupt) -> Result<Self> {
        let bytes_read = Arc::<AtomicU64>::default();
        let cannot = || format!("cannot read {}", input_name(file));
        let (input, length): (Box<dyn Read + Send>, _) = if file.as_os_str() == "-" {
            // The length is known if standard input is redirected from a file.
            let length = io::stdin().as_fd().try_clone_to_owned().and_then(|input| File::from(input).metadata());
            let length = length.ok().filter(Metadata::is_file).map(|found| found.len());
            (Box::new(InterruptibleReader::stdin(interrupt)), length)
        } else {
            let found = file.metadata().with_context(cannot)?;
            if is_store(file) {
                let store = shell_quoted(file);
                return Err(Code::Failed.error(format!(
                    "{store} is a store, not a file of rows: percolite scan {store} KEYSPACE --json prints its rows"
                )));
            }
            let path = file.to_owned();
            let open = move || File::open(path);
            if found.is_file() {
                (Box::new(open().with_context(cannot)?), Some(found.len()))
            } else {
                (Box::new(InterruptibleReader::open(open, interrupt)), None)
            }
        };
        let text = TextStream::new(CountingReader(input, Arc::clone(&bytes_read)), file_argument(file));
        let mut stream = Box::new(BufReader::with_capacity(1 << 18, text));
        // The beginning is read before the store is opened, so that no store is created for an
        // unusable input.
        let beginning = stream.fill_buf();
        interrupt.check("nothing was loaded")?;
        let beginning = beginning.with_context(cannot)?;
        let format = match options.format {
            Some(format) => format,
            None if is_array(beginning) => Format::Jsonl,
            None => format_by_extension(file).unwrap_or_else(|| format_by_content(beginning)),
        };
        if format == Format::Jsonl
            && let Some(problem) = not_one_a_line(beginning, &file_argument(file))
        {
            return Err(format_error(file, format, &problem));
        }
        if options.key_field.is_some() && format != Format::Jsonl && !beginning.is_empty() {
            let problem = "--key-field is for JSON objects, the key of columns is the first one; \
                           if each line is a JSON object, use --format jsonl";
            return Err(format_error(file, format, problem));
        }
        if options.header && format == Format::Jsonl {
            return Err(format_error(file, format, "--header is for columns, JSON objects have named fields"));
        }
        Ok(Self { stream, format, options, length, bytes_read })
    }

    /// Reads and sends the input, until its end or until the receiver is dropped.
    pub fn send(self, to: &SyncSender<Batch>) {
        let Self { stream, format, options, .. } = self;
        let mut sender = BatchSender { to, rows: Vec::new(), bytes: 0, skip: options.skip, batch: options.batch };
        let read = match format {
            Format::Jsonl => json_lines(stream, &options, &mut sender),
            Format::Csv => columns(stream, b',', format, &options, &mut sender),
            Format::Tsv | Format::RawTsv => columns(stream, b'\t', format, &options, &mut sender),
        };
        let end = match read {
            // The receiver is dropped.
            Ok(false) => return,
            Ok(true) if sender.skip > 0 => Batch::FewerThanSkip { records: options.skip - sender.skip },
            Ok(true) => Batch::End,
            Err(err) => Batch::Failed(err),
        };
        if sender.flush() {
            // Sending fails if the receiver is dropped.
            let _ = to.send(end);
        }
    }
}

/// Gathers records into batches. Its methods return false if the receiver is dropped.
struct BatchSender<'a> {
    to: &'a SyncSender<Batch>,
    rows: Vec<Pair>,
    bytes: usize,
    skip: u64,
    batch: usize,
}

impl BatchSender<'_> {
    fn record(&mut self, line: u64, pair: Result<Pair, String>) -> bool {
        if self.skip > 0 {
            self.skip -= 1;
            return true;
        }
        match pair.and_then(validated) {
            Ok((key, value)) => {
                self.bytes += key.len() + value.len();
                self.rows.push((key, value));
                self.rows.len() < self.batch && self.bytes < BATCH_BYTES || self.flush()
            }
            Err(reason) => self.flush() && self.to.send(Batch::BadRecord { line, reason }).is_ok(),
        }
    }

    fn flush(&mut self) -> bool {
        self.bytes = 0;
        let rows = std::mem::take(&mut self.rows);
        rows.is_empty() || self.to.send(Batch::Rows(rows)).is_ok()
    }
}

/// Checks the limits of the store, so that a bad record does not fail a whole transaction.
fn validated(pair: Pair) -> Result<Pair, String> {
    let limit = |name, bytes: usize, limit| {
        if bytes <= limit {
            return Ok(());
        }
        Err(format!("cannot be used: {name} of {bytes} bytes exceeds the limit of {limit} bytes"))
    };
    if pair.0.is_empty() {
        return Err("cannot be used: a key must not be empty".into());
    }
    limit("a key", pair.0.len(), MAX_KEY_BYTES)?;
    limit("a value", pair.1.len(), MAX_VALUE_BYTES)?;
    Ok(pair)
}

fn format_by_extension(file: &Path) -> Option<Format> {
    match file.extension()?.to_str()? {
        "jsonl" | "ndjson" | "json" => Some(Format::Jsonl),
        "csv" => Some(Format::Csv),
        "tsv" | "tab" => Some(Format::Tsv),
        _ => None,
    }
}

/// The format, detected from the first line that is not empty. A line that begins with a brace may
/// be CSV or TSV, too.
fn format_by_content(bytes: &[u8]) -> Format {
    let is_end = |byte: &u8| matches!(byte, b'\n' | b'\r');
    let mut lines = bytes.split_inclusive(is_end);
    let first = lines.find(|line| !line.trim_ascii().is_empty()).unwrap_or_default();
    let is_object = || serde_json::from_slice::<serde::de::IgnoredAny>(first).is_ok();
    match first.trim_ascii_start().first() {
        Some(b'{') if !first.contains(&b'\t') || !first.last().is_some_and(is_end) || is_object() => Format::Jsonl,
        _ if first.contains(&b'\t') => Format::Tsv,
        _ => Format::Csv,
    }
}

fn format_error(file: &Path, format: Format, problem: &str) -> anyhow::Error {
    Code::Usage.error(format!("{} is read as {}: {problem}", input_name(file), format.name()))
}

/// Reads JSON lines; false if the receiver is dropped.
fn json_lines(stream: Box<dyn BufRead + Send>, options: &ReadOptions, sender: &mut BatchSender<'_>) -> Result<bool> {
    let mut lines = Lines::new(stream);
    while let Some(text) = lines.next()? {
        let pair = match text {
            Ok(text) if text.trim_ascii().is_empty() => continue,
            text => text.and_then(|text| from_json(text, options)),
        };
        if !sender.record(lines.number, pair) {
            return Ok(false);
        }
    }
    Ok(true)
}

fn from_json(text: &str, options: &ReadOptions) -> Result<Pair, String> {
    let unusable = |err: anyhow::Error| format!("cannot be used: {err}");
    let check = || check_surrogates(text).map_err(|err| format!("cannot be used: {err}"));
    let Some(name) = &options.key_field else {
        let row: JsonRow<'_> = serde_json::from_str(text).map_err(|err| not_a_row(text, &err))?;
        check()?;
        let value = row.value(options.encodings.values).ok_or_else(|| not_a_value(text))?;
        return Ok((options.encodings.keys.read_json(row.key).map_err(unusable)?, value.map_err(unusable)?));
    };
    let fields: BTreeMap<String, &RawValue> = serde_json::from_str(text).map_err(|err| not_an_object(text, &err))?;
    check()?;
    let key = fields.get(name).filter(|key| key.get() != "null");
    let key = key.ok_or_else(|| {
        let names: Vec<&str> = fields.keys().map(String::as_str).collect();
        format!("has no field {name:?}, only {}", names.join(", "))
    })?;
    Ok((options.encodings.keys.read_json(key).map_err(unusable)?, text.trim_ascii().into()))
}

/// Why a line is not a JSON object.
fn not_an_object(text: &str, err: &serde_json::Error) -> String {
    if err.is_data() {
        return "is JSON, but not an object".into();
    }
    not_json(text, err)
}

/// Why a line is not a row.
fn not_a_row(text: &str, err: &serde_json::Error) -> String {
    match serde_json::from_str::<BTreeMap<String, &RawValue>>(text) {
        Err(err) => not_an_object(text, &err),
        Ok(_) if err.is_data() => not_a_value(text),
        Ok(_) => not_an_object(text, err),
    }
}

fn not_a_value(text: &str) -> String {
    let names = serde_json::from_str::<BTreeMap<String, &RawValue>>(text).unwrap_or_default();
    if names.contains_key("key") && (names.contains_key("text") || names.contains_key("hex")) {
        return "has a value in the encoding JSON: use --value-encoding json".into();
    }
    "is not {\"key\": …, \"value\": …}; --key-field names the key of other objects".into()
}

/// Reads CSV or TSV; false if the receiver is dropped.
fn columns(
    stream: Box<dyn BufRead + Send>,
    delimiter: u8,
    format: Format,
    options: &ReadOptions,
    sender: &mut BatchSender<'_>,
) -> Result<bool> {
    let (total, limit) = (Rc::default(), Rc::new(Cell::new(MAX_RECORD_BYTES + CSV_READ_AHEAD as u64)));
    let quoted = format == Format::Csv;
    let stream =
        LimitedReader { stream, bytes_read: 0, limit: Rc::clone(&limit), sentinel: SENTINEL, total: Rc::clone(&total) };
    let mut reader = csv::ReaderBuilder::new()
        .has_headers(options.header)
        .delimiter(delimiter)
        .quoting(quoted)
        .flexible(true)
        .buffer_capacity(CSV_READ_AHEAD)
        .from_reader(stream);
    let cannot = |line: u64, err: csv::Error| {
        if !is_too_long(&err) {
            return anyhow::Error::new(err).context("cannot read the input");
        }
        let quote = if quoted { "; is a quote not closed?" } else { "" };
        let limit = indicatif::HumanBytes(MAX_RECORD_BYTES);
        anyhow::anyhow!("the record that begins in line {line} has more than {limit}{quote}")
    };
    let check_quotes = |record: &csv::ByteRecord, position: &csv::Position| {
        // An empty input has an empty header, which also ends at the end of the sentinel, but
        // without an unclosed quote.
        if record.is_empty() || total.get() != Some(position.byte()) {
            return Ok(());
        }
        // The last column contains everything after the unclosed quote. So the line of the quote is
        // as many lines back as this column has line ends.
        let column = record.iter().next_back().unwrap_or_default();
        let lines = column.split(|byte| *byte == b'\n').skip(1).count() as u64;
        Err(anyhow::anyhow!("the quote that opens in line {} is never closed", position.line().saturating_sub(lines)))
    };
    if options.header {
        let names = reader.byte_headers().map_err(|err| cannot(1, err))?.clone();
        check_quotes(&names, reader.position())?;
    }
    let mut record = csv::ByteRecord::new();
    loop {
        let (line, start) = (reader.position().line(), reader.position().byte());
        limit.set(start.saturating_add(MAX_RECORD_BYTES + CSV_READ_AHEAD as u64));
        if !reader.read_byte_record(&mut record).map_err(|err| cannot(line, err))? {
            return Ok(true);
        }
        check_quotes(&record, reader.position())?;
        let pair = match (record.get(0), record.get(1), record.len()) {
            (Some(key), Some(value), 2) => from_columns(key, value, format, options.encodings),
            (_, _, columns) => Err(format!("has {}, not a key and a value", count(columns as u64, "column"))),
        };
        if !sender.record(line, pair) {
            return Ok(false);
        }
    }
}

fn is_too_long(err: &csv::Error) -> bool {
    matches!(err.kind(), csv::ErrorKind::Io(err) if err.kind() == io::ErrorKind::FileTooLarge)
}

fn from_columns(key: &[u8], value: &[u8], format: Format, encodings: Encodings) -> Result<Pair, String> {
    use std::os::unix::ffi::OsStrExt as _;
    let decode = |encoding: Encoding, bytes: &[u8]| {
        let bytes = check_utf_8(bytes)?.as_bytes();
        let decoded = if format == Format::Tsv {
            encoding.read_column(bytes)
        } else {
            encoding.decode_arg(OsStr::from_bytes(bytes))
        };
        decoded.map_err(|err| format!("cannot be used: {err}"))
    };
    Ok((decode(encodings.keys, key)?, decode(encodings.values, value)?))
}

#[cfg(test)]
mod tests;
