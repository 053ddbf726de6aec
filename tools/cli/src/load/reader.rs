//! Reading keys and values from JSON lines, CSV or TSV.

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

use crate::encoding::{Encoding, Encodings, JsonRow, MAX_RECORD_BYTES};
use crate::exit::Code;
use crate::interrupt::{Interrupt, InterruptibleReader};

/// A portion ends when it has so many bytes.
const BATCH_BYTES: usize = 4 << 20;
/// The CSV reader reads so much ahead.
const CSV_READ_AHEAD: usize = 1 << 16;

/// How a file is laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// One JSON object a line
    Jsonl,
    /// Columns separated by commas, quoted where needed
    Csv,
    /// Columns separated by tabs, never quoted; \t, \n, \r, \\ and \xHH stand for other bytes
    Tsv,
    /// Columns separated by tabs, as they are
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

/// What to read.
pub struct ReadOptions {
    pub format: Option<Format>,
    pub key_field: Option<String>,
    pub header: bool,
    pub skip: u64,
    pub batch: usize,
    pub encodings: Encodings,
}

pub type Pair = (Vec<u8>, Vec<u8>);

/// What comes next in the input.
pub enum Batch {
    Rows(Vec<Pair>),
    /// A record that cannot be used.
    BadRecord {
        line: u64,
        err: String,
    },
    /// The input cannot be read on.
    Failed(anyhow::Error),
    /// It has no more records than these, and more were to be left out.
    FewerThanSkip {
        records: u64,
    },
    End,
}

/// An input.
pub struct RecordReader {
    stream: Box<dyn BufRead + Send>,
    format: Format,
    options: ReadOptions,
    /// Its length in bytes, where it is known.
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

/// Some programs begin UTF-8 with it; it is no part of the first key.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// Behind the end of the input. The first ends the last record, if nothing else does, and the second is no part of any: a record that
/// reaches behind both has a quote that was never closed.
const SENTINEL: &[u8] = b"\n\n";

/// Reads up to a place that moves on with the records, so that none of them takes more memory than it may.
struct LimitedReader<R> {
    stream: R,
    bytes_read: u64,
    end: Rc<Cell<u64>>,
    /// What of [`BEHIND`] is not given yet.
    sentinel: &'static [u8],
    /// How many bytes there were, with those behind; known when all are given.
    total: Rc<Cell<Option<u64>>>,
}

impl<R: Read> Read for LimitedReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.bytes_read >= self.end.get() {
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
    pub fn open(file: &Path, options: ReadOptions, interrupt: &Interrupt) -> Result<Self> {
        let read = Arc::<AtomicU64>::default();
        let cannot = || format!("cannot read {}", file.display());
        let (input, length): (Box<dyn Read + Send>, _) = if file.as_os_str() == "-" {
            // What is redirected is a file as any other.
            let length = io::stdin().as_fd().try_clone_to_owned().and_then(|input| File::from(input).metadata());
            let length = length.ok().filter(Metadata::is_file).map(|found| found.len());
            (Box::new(InterruptibleReader::stdin(interrupt)), length)
        } else {
            let found = file.metadata().with_context(cannot)?;
            let path = file.to_owned();
            let open = move || File::open(path);
            if found.is_file() {
                (Box::new(open().with_context(cannot)?), Some(found.len()))
            } else {
                (Box::new(InterruptibleReader::open(open, interrupt)), None)
            }
        };
        let mut stream = Box::new(BufReader::with_capacity(1 << 18, CountingReader(input, Arc::clone(&read))));
        // Looked at before the store is opened, as far as there is anything.
        let beginning = stream.fill_buf();
        interrupt.check("nothing was loaded")?;
        let mut beginning = beginning.with_context(cannot)?;
        if beginning.starts_with(BYTE_ORDER_MARK) {
            stream.consume(BYTE_ORDER_MARK.len());
            beginning = stream.fill_buf().with_context(cannot)?;
        }
        let layout = match options.format.or_else(|| format_by_extension(file)) {
            Some(layout) => layout,
            None => format_by_content(beginning),
        };
        if options.format.is_none() && is_array(beginning) {
            return Err(format_error(
                file,
                Format::Jsonl,
                "it is one JSON array",
                ", and objects are to be one a line: jq -c '.[]'",
            ));
        }
        if options.key_field.is_some() && layout != Format::Jsonl && !beginning.is_empty() {
            let what = "; where each line is a JSON object, say --format jsonl";
            return Err(format_error(file, layout, "--key is for objects, and the key of columns is the first", what));
        }
        if options.header && layout == Format::Jsonl {
            return Err(format_error(file, layout, "--header is for columns, and fields have their names", ""));
        }
        Ok(Self { stream, format: layout, options, length, bytes_read: read })
    }

    /// Reads to the end, or as long as anybody listens.
    pub fn send(self, to: &SyncSender<Batch>) {
        let Self { stream, format: layout, options, .. } = self;
        let mut sending = BatchSender { to, rows: Vec::new(), bytes: 0, skip: options.skip, batch: options.batch };
        let read = match layout {
            Format::Jsonl => json_lines(stream, &options, &mut sending),
            Format::Csv => columns(stream, b',', layout, &options, &mut sending),
            Format::Tsv | Format::RawTsv => columns(stream, b'\t', layout, &options, &mut sending),
        };
        let end = match read {
            // Nobody listens any more.
            Ok(false) => return,
            Ok(true) if sending.skip > 0 => Batch::FewerThanSkip { records: options.skip - sending.skip },
            Ok(true) => Batch::End,
            Err(err) => Batch::Failed(err),
        };
        if sending.flush() {
            // As above.
            let _ = to.send(end);
        }
    }
}

/// Gathers records; each method answers whether anybody still listens.
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
            Err(err) => self.flush() && self.to.send(Batch::BadRecord { line, err }).is_ok(),
        }
    }

    fn flush(&mut self) -> bool {
        self.bytes = 0;
        let rows = std::mem::take(&mut self.rows);
        rows.is_empty() || self.to.send(Batch::Rows(rows)).is_ok()
    }
}

/// What the store would refuse, and with it the whole transaction.
fn validated(pair: Pair) -> Result<Pair, String> {
    let limit = |what, bytes: usize, most| {
        if bytes <= most {
            return Ok(());
        }
        Err(format!("cannot be used: {what} of {bytes} bytes exceeds the limit of {most} bytes"))
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

/// Of a JSON array of objects or arrays; a line of columns does not begin so.
fn is_array(bytes: &[u8]) -> bool {
    let mut visible = bytes.iter().filter(|byte| !byte.is_ascii_whitespace());
    visible.next() == Some(&b'[') && matches!(visible.next(), Some(b'{' | b'['))
}

/// A key of columns may begin as an object does.
fn format_by_content(bytes: &[u8]) -> Format {
    let mut lines = bytes.split_inclusive(|byte| *byte == b'\n');
    let first = lines.find(|line| !line.trim_ascii().is_empty()).unwrap_or_default();
    let is_object = || serde_json::from_slice::<serde::de::IgnoredAny>(first).is_ok();
    match first.trim_ascii_start().first() {
        Some(b'{') if !first.contains(&b'\t') || !first.ends_with(b"\n") || is_object() => Format::Jsonl,
        _ if first.contains(&b'\t') => Format::Tsv,
        _ => Format::Csv,
    }
}

fn format_error(file: &Path, layout: Format, err: &str, remedy: &str) -> anyhow::Error {
    let name = if file.as_os_str() == "-" { "standard input".into() } else { file.display().to_string() };
    Code::Usage.error(format!("{name} is taken for {}: {err}{remedy}", layout.name()))
}

fn json_lines(
    mut stream: Box<dyn BufRead + Send>,
    options: &ReadOptions,
    sending: &mut BatchSender<'_>,
) -> Result<bool> {
    let mut text = Vec::new();
    for line in 1.. {
        text.clear();
        let length = stream.by_ref().take(MAX_RECORD_BYTES).read_until(b'\n', &mut text).context("cannot read on")?;
        if length == 0 {
            break;
        }
        if length as u64 == MAX_RECORD_BYTES {
            anyhow::bail!("line {line} has more than {}", indicatif::HumanBytes(MAX_RECORD_BYTES));
        }
        if !text.trim_ascii().is_empty() && !sending.record(line, from_json(&text, options)) {
            return Ok(false);
        }
    }
    Ok(true)
}

fn from_json(text: &[u8], options: &ReadOptions) -> Result<Pair, String> {
    let told = |err: anyhow::Error| format!("cannot be used: {err}");
    let Some(name) = &options.key_field else {
        let fields: JsonRow<'_> = serde_json::from_slice(text).map_err(|err| not_a_row(text, &err))?;
        let value = fields.value(options.encodings.values).ok_or_else(|| not_a_value(text))?;
        return Ok((options.encodings.keys.read_json(fields.key).map_err(told)?, value.map_err(told)?));
    };
    let fields: BTreeMap<String, &RawValue> = serde_json::from_slice(text).map_err(|err| not_an_object(&err))?;
    let key = fields.get(name).filter(|key| key.get() != "null");
    let key = key.ok_or_else(|| {
        let names: Vec<&str> = fields.keys().map(String::as_str).collect();
        format!("has no field {name:?}, only {}", names.join(", "))
    })?;
    Ok((options.encodings.keys.read_json(key).map_err(told)?, text.trim_ascii().to_vec()))
}

/// Why a line is no object.
fn not_an_object(err: &serde_json::Error) -> String {
    if err.is_data() {
        return "is JSON, but not an object".into();
    }
    let told = err.to_string();
    // serde_json counts lines too, and here there is always one.
    format!("is not JSON: {} (column {})", told.split(" at line ").next().unwrap_or_default(), err.column())
}

/// Why a line is no row.
fn not_a_row(text: &[u8], err: &serde_json::Error) -> String {
    match serde_json::from_slice::<BTreeMap<String, &RawValue>>(text) {
        Err(err) => not_an_object(&err),
        Ok(_) if err.is_data() => not_a_value(text),
        Ok(_) => not_an_object(err),
    }
}

fn not_a_value(text: &[u8]) -> String {
    let names = serde_json::from_slice::<BTreeMap<String, &RawValue>>(text).unwrap_or_default();
    if names.contains_key("key") && (names.contains_key("text") || names.contains_key("hex")) {
        return "has a value as --value-encoding json writes them: say --value-encoding json".into();
    }
    "is not {\"key\": …, \"value\": …}; --key says which field is the key of other objects".into()
}

fn columns(
    stream: Box<dyn BufRead + Send>,
    comma: u8,
    layout: Format,
    options: &ReadOptions,
    sending: &mut BatchSender<'_>,
) -> Result<bool> {
    let (all, end) = (Rc::default(), Rc::new(Cell::new(MAX_RECORD_BYTES + CSV_READ_AHEAD as u64)));
    let quoted = layout == Format::Csv;
    let stream =
        LimitedReader { stream, bytes_read: 0, end: Rc::clone(&end), sentinel: SENTINEL, total: Rc::clone(&all) };
    let mut reader = csv::ReaderBuilder::new()
        .has_headers(options.header)
        .delimiter(comma)
        .quoting(quoted)
        .flexible(true)
        .buffer_capacity(CSV_READ_AHEAD)
        .from_reader(stream);
    let cannot = |line: u64, err: csv::Error| {
        if !is_too_long(&err) {
            return anyhow::Error::new(err).context("cannot read on");
        }
        let quote = if quoted { "; is a quote not closed?" } else { "" };
        let most = indicatif::HumanBytes(MAX_RECORD_BYTES);
        anyhow::anyhow!("the record that begins in line {line} has more than {most}{quote}")
    };
    let closed = |record: &csv::ByteRecord, position: &csv::Position| {
        // An input of nothing has a header of nothing, and that ends with it.
        if record.is_empty() || all.get() != Some(position.byte()) {
            return Ok(());
        }
        // All that is behind the quote is in the last column.
        let column = record.iter().next_back().unwrap_or_default();
        let lines = column.split(|byte| *byte == b'\n').skip(1).count() as u64;
        Err(anyhow::anyhow!("the quote that opens in line {} is never closed", position.line().saturating_sub(lines)))
    };
    if options.header {
        let names = reader.byte_headers().map_err(|err| cannot(1, err))?.clone();
        closed(&names, reader.position())?;
    }
    let mut record = csv::ByteRecord::new();
    loop {
        let (line, began) = (reader.position().line(), reader.position().byte());
        end.set(began.saturating_add(MAX_RECORD_BYTES + CSV_READ_AHEAD as u64));
        if !reader.read_byte_record(&mut record).map_err(|err| cannot(line, err))? {
            return Ok(true);
        }
        closed(&record, reader.position())?;
        let pair = match (record.get(0), record.get(1), record.len()) {
            (Some(key), Some(value), 2) => from_columns(key, value, layout, options.encodings),
            (_, _, columns) => Err(format!("has {columns} columns, not a key and a value")),
        };
        if !sending.record(line, pair) {
            return Ok(false);
        }
    }
}

fn is_too_long(err: &csv::Error) -> bool {
    matches!(err.kind(), csv::ErrorKind::Io(err) if err.kind() == io::ErrorKind::FileTooLarge)
}

fn from_columns(key: &[u8], value: &[u8], layout: Format, encodings: Encodings) -> Result<Pair, String> {
    use std::os::unix::ffi::OsStrExt as _;
    let read = |encoding: Encoding, bytes: &[u8]| {
        let read = if layout == Format::Tsv {
            encoding.read_column(bytes)
        } else {
            encoding.decode_arg(OsStr::from_bytes(bytes))
        };
        read.map_err(|err| format!("cannot be used: {err}"))
    };
    Ok((read(encodings.keys, key)?, read(encodings.values, value)?))
}

#[cfg(test)]
mod tests;
