//! Text that people bring: one reader for every command that reads text.
//!
//! `load`, the piped `shell`, the data of `demo`, and `put --value-file` with the encoding JSON
//! read text, and all of them read it here:
//!
//! | the input has | what happens |
//! |---|---|
//! | UTF-8, with or without a byte order mark | it is read; the mark is skipped |
//! | UTF-16, UTF-32 or a NUL byte | the whole input is refused |
//! | the beginning of a packed file or of a dump | the whole input is refused |
//! | other bytes that are not UTF-8 | the line or record is refused |
//! | LF, CR LF or CR | a line ends |
//! | no line end at its end | the rest is the last line |
//! | a line of 80 MiB | the input is refused |
//!
//! [`TextStream`] looks at the bytes, and [`Lines`] splits them. A NUL byte is an error of the
//! input and not of a record, so that no option skips it: UTF-16 has such a byte in every line of
//! ASCII, and other lines of it can look like records. The first 256 KiB are looked at before
//! anything is stored.
//!
//! A value from a file is no text: `put --value-file` stores its bytes.

use std::io::{self, BufRead, Cursor, Read};
use std::path::Path;

use anyhow::{Context as _, Result, bail};

use crate::file_kind;
use crate::quoting::shell_quoted;

/// The longest line or record that is read: room for the longest value in hex, and its key.
pub const MAX_RECORD_BYTES: u64 = 80 << 20;
/// This much of the input is looked at as a whole.
const BEGINNING_BYTES: usize = 256 << 10;

const UTF_8_MARK: &[u8] = b"\xef\xbb\xbf";
/// The longer marks come first, because two of them begin with another one.
const FOREIGN_MARKS: [(&[u8], &str); 4] =
    [(b"\xff\xfe\0\0", "UTF-32"), (b"\0\0\xfe\xff", "UTF-32"), (b"\xff\xfe", "UTF-16"), (b"\xfe\xff", "UTF-16")];

/// The name of the input in an error.
pub fn input_name(file: &Path) -> String {
    if file.as_os_str() == "-" { "standard input".into() } else { file.display().to_string() }
}

/// The file as an argument of a recommended command, with a blank before it; nothing for standard
/// input.
pub fn file_argument(file: &Path) -> String {
    if file.as_os_str() == "-" { String::new() } else { format!(" {}", shell_quoted(file)) }
}

/// The bytes of a text without its byte order mark. A read fails if they are no text.
pub struct TextStream<R> {
    stream: R,
    /// See [`file_argument`].
    file_argument: String,
    /// The beginning of the input; `None` if nothing is read yet.
    beginning: Option<Cursor<Vec<u8>>>,
    bytes_read: u64,
    /// The offset of a NUL byte, which the next read reports.
    nul_at: Option<u64>,
}

impl<R: Read> TextStream<R> {
    pub fn new(stream: R, file_argument: String) -> Self {
        Self { stream, file_argument, beginning: None, bytes_read: 0, nul_at: None }
    }

    /// Reads until it is known whether the input begins with a mark.
    fn read_beginning(&mut self) -> io::Result<&mut Cursor<Vec<u8>>> {
        let is_part_of_mark = |bytes: &[u8]| {
            let marks = FOREIGN_MARKS.iter().map(|(mark, _)| *mark).chain([UTF_8_MARK]);
            marks.into_iter().any(|mark| mark.len() > bytes.len() && mark.starts_with(bytes))
        };
        let (mut bytes, mut chunk) = (Vec::new(), vec![0; BEGINNING_BYTES]);
        while is_part_of_mark(&bytes) || file_kind::is_part_of_magic(&bytes) {
            match self.stream.read(&mut chunk) {
                Err(err) if err.kind() == io::ErrorKind::Interrupted => {}
                Err(err) => return Err(err),
                Ok(0) => break,
                Ok(length) => bytes.extend_from_slice(chunk.get(..length).unwrap_or_default()),
            }
        }
        if let Some(problem) = self.foreign(&bytes) {
            return Err(not_text(problem));
        }
        self.bytes_read = bytes.len() as u64;
        let mark_bytes = if bytes.starts_with(UTF_8_MARK) { UTF_8_MARK.len() as u64 } else { 0 };
        let beginning = self.beginning.insert(Cursor::new(bytes));
        beginning.set_position(mark_bytes);
        Ok(beginning)
    }

    /// Why the beginning is no text in UTF-8.
    fn foreign(&self, beginning: &[u8]) -> Option<String> {
        let file = &self.file_argument;
        let convert = |encoding: &str| format!("to convert it: iconv -f {encoding} -t UTF-8{file}");
        if let Some((_, name)) = FOREIGN_MARKS.iter().find(|(mark, _)| beginning.starts_with(mark)) {
            return Some(format!("it is {name}, not UTF-8; {}", convert(name)));
        }
        if let Some(problem) = file_kind::not_text(beginning, file) {
            return Some(problem);
        }
        let nuls = || beginning.iter().enumerate().filter(|(_, byte)| **byte == 0).map(|(at, _)| at);
        let first = nuls().next()?;
        // In UTF-16 the high byte of each ASCII character is 0.
        let is_utf_16 = nuls().nth(1).is_some() && nuls().all(|at| at % 2 == first % 2);
        let name = match utf_32(beginning) {
            Some(name) => name,
            None if !is_utf_16 => return Some(nul_problem(first as u64)),
            None if first % 2 == 1 => "UTF-16LE",
            None => "UTF-16BE",
        };
        Some(format!("{}, and looks like {name}; {}", nul_problem(first as u64), convert(name)))
    }
}

/// The encoding of text that has four bytes for each character, and no mark.
fn utf_32(beginning: &[u8]) -> Option<&'static str> {
    // Two characters of UTF-16, or four of ASCII, are no character of the planes that are in use.
    let all = |number: fn([u8; 4]) -> u32| {
        let mut characters = beginning.chunks_exact(4).map(|bytes| bytes.try_into().map_or(0, number));
        beginning.len() >= 4
            && characters.all(|number| number != 0 && number < 0x3_0000 && char::from_u32(number).is_some())
    };
    if all(u32::from_le_bytes) {
        return Some("UTF-32LE");
    }
    all(u32::from_be_bytes).then_some("UTF-32BE")
}

fn nul_problem(offset: u64) -> String {
    format!("it is no text: it has a NUL byte at offset {offset}")
}

fn not_text(problem: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, problem)
}

impl<R: Read> Read for TextStream<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let beginning = match &mut self.beginning {
            Some(beginning) => beginning,
            None => self.read_beginning()?,
        };
        let length = beginning.read(buffer)?;
        if length > 0 || buffer.is_empty() {
            return Ok(length);
        }
        if let Some(offset) = self.nul_at {
            return Err(not_text(nul_problem(offset)));
        }
        let length = self.stream.read(buffer)?;
        let before_nul = buffer.iter().take(length).position(|byte| *byte == 0);
        self.nul_at = before_nul.map(|at| self.bytes_read + at as u64);
        self.bytes_read += length as u64;
        // Reading nothing would mean the end of the input.
        if before_nul == Some(0) { self.read(buffer) } else { Ok(before_nul.unwrap_or(length)) }
    }
}

/// The lines of a text.
pub struct Lines<R> {
    stream: R,
    line: Vec<u8>,
    /// The number of the line that was read last, from 1.
    pub number: u64,
    /// Bytes read so far.
    pub bytes: u64,
    /// Whether the last line ended with CR. An LF that follows belongs to the same line end; it is
    /// skipped with the next line, since waiting for it could take forever.
    skips_line_feed: bool,
}

impl<R: BufRead> Lines<R> {
    pub fn new(stream: R) -> Self {
        Self { stream, line: Vec::new(), number: 0, bytes: 0, skips_line_feed: false }
    }

    /// The next line without its end, if there is one; if it is not UTF-8, why.
    pub fn next(&mut self) -> Result<Option<Result<&str, String>>> {
        self.line.clear();
        let mut is_line = false;
        loop {
            let chunk = match self.stream.fill_buf() {
                Err(err) if err.kind() == io::ErrorKind::Interrupted => continue,
                chunk => chunk.context("cannot read the input")?,
            };
            let Some(first) = chunk.first() else { break };
            if std::mem::take(&mut self.skips_line_feed) && *first == b'\n' {
                self.stream.consume(1);
                self.bytes += 1;
                continue;
            }
            is_line = true;
            let end = chunk.iter().position(|byte| matches!(byte, b'\n' | b'\r'));
            let used = end.unwrap_or(chunk.len());
            self.line.extend_from_slice(chunk.get(..used).unwrap_or_default());
            self.skips_line_feed = chunk.get(used) == Some(&b'\r');
            let consumed = used + usize::from(end.is_some());
            self.stream.consume(consumed);
            self.bytes += consumed as u64;
            if self.line.len() as u64 >= MAX_RECORD_BYTES {
                bail!("line {} has more than {}", self.number + 1, indicatif::HumanBytes(MAX_RECORD_BYTES));
            }
            if end.is_some() {
                break;
            }
        }
        if !is_line {
            return Ok(None);
        }
        self.number += 1;
        Ok(Some(check_utf_8(&self.line)))
    }
}

/// The bytes as text, or why they are none.
pub fn check_utf_8(bytes: &[u8]) -> Result<&str, String> {
    std::str::from_utf8(bytes).map_err(|err| {
        let at = err.valid_up_to();
        let byte = bytes.get(at).copied().unwrap_or_default();
        format!("is not UTF-8: byte {} is {byte:02x}; if it is Latin-1: iconv -f LATIN1 -t UTF-8", at + 1)
    })
}

#[cfg(test)]
mod tests;
