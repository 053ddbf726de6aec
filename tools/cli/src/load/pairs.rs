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

use crate::bytes::{Fields, Form, Forms, RECORD_MAX_BYTES};
use crate::exit::Code;
use crate::interrupt::{Interrupt, Patient};

/// A portion ends when it has so many bytes.
const PORTION_BYTES: usize = 4 << 20;
/// The CSV reader reads so much ahead.
const AHEAD_BYTES: usize = 1 << 16;

/// How a file is laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Layout {
    /// One JSON object a line
    Jsonl,
    /// Columns separated by commas, quoted where needed
    Csv,
    /// Columns separated by tabs, never quoted; \t, \n, \r, \\ and \xHH stand for other bytes
    Tsv,
    /// Columns separated by tabs, as they are
    RawTsv,
}

impl Layout {
    fn name(self) -> &'static str {
        match self {
            Self::Jsonl => "JSON lines",
            Self::Csv => "CSV",
            Self::Tsv | Self::RawTsv => "TSV",
        }
    }
}

/// What to read.
pub struct Wish {
    pub layout: Option<Layout>,
    pub key: Option<String>,
    pub header: bool,
    pub skip: u64,
    pub batch: usize,
    pub forms: Forms,
}

pub type Pair = (Vec<u8>, Vec<u8>);

/// What comes next in the input.
pub enum Portion {
    Rows(Vec<Pair>),
    /// A record that cannot be used.
    Bad {
        line: u64,
        why: String,
    },
    /// The input cannot be read on.
    Failed(anyhow::Error),
    /// It has no more records than these, and more were to be left out.
    Short {
        records: u64,
    },
    End,
}

/// An input.
pub struct Source {
    stream: Box<dyn BufRead + Send>,
    layout: Layout,
    wish: Wish,
    /// Its length in bytes, where it is known.
    pub length: Option<u64>,
    /// Bytes read so far.
    pub read: Arc<AtomicU64>,
}

struct Counted<R>(R, Arc<AtomicU64>);

impl<R: Read> Read for Counted<R> {
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
const BEHIND: &[u8] = b"\n\n";

/// Reads up to a place that moves on with the records, so that none of them takes more memory than it may.
struct Bounded<R> {
    stream: R,
    given: u64,
    end: Rc<Cell<u64>>,
    /// What of [`BEHIND`] is not given yet.
    behind: &'static [u8],
    /// How many bytes there were, with those behind; known when all are given.
    all: Rc<Cell<Option<u64>>>,
}

impl<R: Read> Read for Bounded<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.given >= self.end.get() {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        let read = match self.stream.read(buffer)? {
            0 => self.behind.read(buffer)?,
            read => read,
        };
        self.given += read as u64;
        if self.behind.is_empty() {
            self.all.set(Some(self.given));
        }
        Ok(read)
    }
}

impl Source {
    pub fn open(file: &Path, wish: Wish, interrupt: &Interrupt) -> Result<Self> {
        let read = Arc::<AtomicU64>::default();
        let cannot = || format!("cannot read {}", file.display());
        let (input, length): (Box<dyn Read + Send>, _) = if file.as_os_str() == "-" {
            // What is redirected is a file as any other.
            let length = io::stdin().as_fd().try_clone_to_owned().and_then(|input| File::from(input).metadata());
            let length = length.ok().filter(Metadata::is_file).map(|found| found.len());
            (Box::new(Patient::stdin(interrupt)), length)
        } else {
            let found = file.metadata().with_context(cannot)?;
            let path = file.to_owned();
            let open = move || File::open(path);
            if found.is_file() {
                (Box::new(open().with_context(cannot)?), Some(found.len()))
            } else {
                (Box::new(Patient::open(open, interrupt)), None)
            }
        };
        let mut stream = Box::new(BufReader::with_capacity(1 << 18, Counted(input, Arc::clone(&read))));
        // Looked at before the store is opened, as far as there is anything.
        let beginning = stream.fill_buf();
        interrupt.check("nothing was loaded")?;
        let mut beginning = beginning.with_context(cannot)?;
        if beginning.starts_with(BYTE_ORDER_MARK) {
            stream.consume(BYTE_ORDER_MARK.len());
            beginning = stream.fill_buf().with_context(cannot)?;
        }
        let layout = match wish.layout.or_else(|| by_name(file)) {
            Some(layout) => layout,
            None => by_beginning(beginning),
        };
        if wish.layout.is_none() && is_array(beginning) {
            return Err(refused(
                file,
                Layout::Jsonl,
                "it is one JSON array",
                ", and objects are to be one a line: jq -c '.[]'",
            ));
        }
        if wish.key.is_some() && layout != Layout::Jsonl && !beginning.is_empty() {
            let what = "; where each line is a JSON object, say --layout jsonl";
            return Err(refused(file, layout, "--key is for objects, and the key of columns is the first", what));
        }
        if wish.header && layout == Layout::Jsonl {
            return Err(refused(file, layout, "--header is for columns, and fields have their names", ""));
        }
        Ok(Self { stream, layout, wish, length, read })
    }

    /// Reads to the end, or as long as anybody listens.
    pub fn send(self, to: &SyncSender<Portion>) {
        let Self { stream, layout, wish, .. } = self;
        let mut sending = Sending { to, rows: Vec::new(), bytes: 0, skip: wish.skip, batch: wish.batch };
        let read = match layout {
            Layout::Jsonl => json_lines(stream, &wish, &mut sending),
            Layout::Csv => columns(stream, b',', layout, &wish, &mut sending),
            Layout::Tsv | Layout::RawTsv => columns(stream, b'\t', layout, &wish, &mut sending),
        };
        let end = match read {
            // Nobody listens any more.
            Ok(false) => return,
            Ok(true) if sending.skip > 0 => Portion::Short { records: wish.skip - sending.skip },
            Ok(true) => Portion::End,
            Err(why) => Portion::Failed(why),
        };
        if sending.flush() {
            // As above.
            let _ = to.send(end);
        }
    }
}

/// Gathers records; each method answers whether anybody still listens.
struct Sending<'a> {
    to: &'a SyncSender<Portion>,
    rows: Vec<Pair>,
    bytes: usize,
    skip: u64,
    batch: usize,
}

impl Sending<'_> {
    fn record(&mut self, line: u64, pair: Result<Pair, String>) -> bool {
        if self.skip > 0 {
            self.skip -= 1;
            return true;
        }
        match pair.and_then(checked) {
            Ok((key, value)) => {
                self.bytes += key.len() + value.len();
                self.rows.push((key, value));
                self.rows.len() < self.batch && self.bytes < PORTION_BYTES || self.flush()
            }
            Err(why) => self.flush() && self.to.send(Portion::Bad { line, why }).is_ok(),
        }
    }

    fn flush(&mut self) -> bool {
        self.bytes = 0;
        let rows = std::mem::take(&mut self.rows);
        rows.is_empty() || self.to.send(Portion::Rows(rows)).is_ok()
    }
}

/// What the store would refuse, and with it the whole transaction.
fn checked(pair: Pair) -> Result<Pair, String> {
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

fn by_name(file: &Path) -> Option<Layout> {
    match file.extension()?.to_str()? {
        "jsonl" | "ndjson" | "json" => Some(Layout::Jsonl),
        "csv" => Some(Layout::Csv),
        "tsv" | "tab" => Some(Layout::Tsv),
        _ => None,
    }
}

/// Of a JSON array of objects or arrays; a line of columns does not begin so.
fn is_array(bytes: &[u8]) -> bool {
    let mut visible = bytes.iter().filter(|byte| !byte.is_ascii_whitespace());
    visible.next() == Some(&b'[') && matches!(visible.next(), Some(b'{' | b'['))
}

/// A key of columns may begin as an object does.
fn by_beginning(bytes: &[u8]) -> Layout {
    let mut lines = bytes.split_inclusive(|byte| *byte == b'\n');
    let first = lines.find(|line| !line.trim_ascii().is_empty()).unwrap_or_default();
    let is_object = || serde_json::from_slice::<serde::de::IgnoredAny>(first).is_ok();
    match first.trim_ascii_start().first() {
        Some(b'{') if !first.contains(&b'\t') || !first.ends_with(b"\n") || is_object() => Layout::Jsonl,
        _ if first.contains(&b'\t') => Layout::Tsv,
        _ => Layout::Csv,
    }
}

fn refused(file: &Path, layout: Layout, why: &str, remedy: &str) -> anyhow::Error {
    let name = if file.as_os_str() == "-" { "standard input".into() } else { file.display().to_string() };
    Code::Usage.error(format!("{name} is taken for {}: {why}{remedy}", layout.name()))
}

fn json_lines(mut stream: Box<dyn BufRead + Send>, wish: &Wish, sending: &mut Sending<'_>) -> Result<bool> {
    let mut text = Vec::new();
    for line in 1.. {
        text.clear();
        let length = stream.by_ref().take(RECORD_MAX_BYTES).read_until(b'\n', &mut text).context("cannot read on")?;
        if length == 0 {
            break;
        }
        if length as u64 == RECORD_MAX_BYTES {
            anyhow::bail!("line {line} has more than {}", indicatif::HumanBytes(RECORD_MAX_BYTES));
        }
        if !text.trim_ascii().is_empty() && !sending.record(line, from_json(&text, wish)) {
            return Ok(false);
        }
    }
    Ok(true)
}

fn from_json(text: &[u8], wish: &Wish) -> Result<Pair, String> {
    let told = |why: anyhow::Error| format!("cannot be used: {why}");
    let Some(name) = &wish.key else {
        let fields: Fields<'_> = serde_json::from_slice(text).map_err(|why| no_row(text, &why))?;
        let value = fields.value(wish.forms.values).ok_or_else(|| no_value(text))?;
        return Ok((wish.forms.keys.read_json(fields.key).map_err(told)?, value.map_err(told)?));
    };
    let fields: BTreeMap<String, &RawValue> = serde_json::from_slice(text).map_err(|why| no_object(&why))?;
    let key = fields.get(name).filter(|key| key.get() != "null");
    let key = key.ok_or_else(|| {
        let names: Vec<&str> = fields.keys().map(String::as_str).collect();
        format!("has no field {name:?}, only {}", names.join(", "))
    })?;
    Ok((wish.forms.keys.read_json(key).map_err(told)?, text.trim_ascii().to_vec()))
}

/// Why a line is no object.
fn no_object(why: &serde_json::Error) -> String {
    if why.is_data() {
        return "is JSON, but not an object".into();
    }
    let told = why.to_string();
    // serde_json counts lines too, and here there is always one.
    format!("is not JSON: {} (column {})", told.split(" at line ").next().unwrap_or_default(), why.column())
}

/// Why a line is no row.
fn no_row(text: &[u8], why: &serde_json::Error) -> String {
    match serde_json::from_slice::<BTreeMap<String, &RawValue>>(text) {
        Err(why) => no_object(&why),
        Ok(_) if why.is_data() => no_value(text),
        Ok(_) => no_object(why),
    }
}

fn no_value(text: &[u8]) -> String {
    let names = serde_json::from_slice::<BTreeMap<String, &RawValue>>(text).unwrap_or_default();
    if names.contains_key("key") && (names.contains_key("text") || names.contains_key("hex")) {
        return "has a value as --values json writes them: say --values json".into();
    }
    "is not {\"key\": …, \"value\": …}; --key says which field is the key of other objects".into()
}

fn columns(
    stream: Box<dyn BufRead + Send>,
    comma: u8,
    layout: Layout,
    wish: &Wish,
    sending: &mut Sending<'_>,
) -> Result<bool> {
    let (all, end) = (Rc::default(), Rc::new(Cell::new(RECORD_MAX_BYTES + AHEAD_BYTES as u64)));
    let quoted = layout == Layout::Csv;
    let stream = Bounded { stream, given: 0, end: Rc::clone(&end), behind: BEHIND, all: Rc::clone(&all) };
    let mut reader = csv::ReaderBuilder::new()
        .has_headers(wish.header)
        .delimiter(comma)
        .quoting(quoted)
        .flexible(true)
        .buffer_capacity(AHEAD_BYTES)
        .from_reader(stream);
    let cannot = |line: u64, why: csv::Error| {
        if !is_too_long(&why) {
            return anyhow::Error::new(why).context("cannot read on");
        }
        let quote = if quoted { "; is a quote not closed?" } else { "" };
        let most = indicatif::HumanBytes(RECORD_MAX_BYTES);
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
    if wish.header {
        let names = reader.byte_headers().map_err(|why| cannot(1, why))?.clone();
        closed(&names, reader.position())?;
    }
    let mut record = csv::ByteRecord::new();
    loop {
        let (line, began) = (reader.position().line(), reader.position().byte());
        end.set(began.saturating_add(RECORD_MAX_BYTES + AHEAD_BYTES as u64));
        if !reader.read_byte_record(&mut record).map_err(|why| cannot(line, why))? {
            return Ok(true);
        }
        closed(&record, reader.position())?;
        let pair = match (record.get(0), record.get(1), record.len()) {
            (Some(key), Some(value), 2) => from_columns(key, value, layout, wish.forms),
            (_, _, columns) => Err(format!("has {columns} columns, not a key and a value")),
        };
        if !sending.record(line, pair) {
            return Ok(false);
        }
    }
}

fn is_too_long(why: &csv::Error) -> bool {
    matches!(why.kind(), csv::ErrorKind::Io(why) if why.kind() == io::ErrorKind::FileTooLarge)
}

fn from_columns(key: &[u8], value: &[u8], layout: Layout, forms: Forms) -> Result<Pair, String> {
    use std::os::unix::ffi::OsStrExt as _;
    let read = |form: Form, bytes: &[u8]| {
        let read = if layout == Layout::Tsv { form.read_plain(bytes) } else { form.read(OsStr::from_bytes(bytes)) };
        read.map_err(|why| format!("cannot be used: {why}"))
    };
    Ok((read(forms.keys, key)?, read(forms.values, value)?))
}

#[cfg(test)]
mod tests;
