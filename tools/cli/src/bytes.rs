//! Keys and values on the command line: any bytes, as text, hex or base64, and values as JSON, too.
//!
//! Bytes are written in three places, and read back from each: as an argument or for people ([`Form::read`], [`Form::show`]), as
//! a column of plain output ([`Form::plain`], [`Form::read_plain`]), and in JSON ([`Form::json`], [`Form::read_json`]). A value in
//! JSON is a field or two of an object: [`value_fields`] writes them, and [`Fields`] reads them.

use std::borrow::Cow;
use std::ffi::OsStr;
use std::fmt::Write as _;
use std::os::unix::ffi::OsStrExt as _;

use anyhow::Result;
use clap::ValueEnum as _;
use clap::builder::{PossibleValuesParser, TypedValueParser as _};
use data_encoding::{BASE64, Encoding, HEXLOWER, HEXLOWER_PERMISSIVE};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::exit::Code;

/// The longest line or record that is read: the greatest value in hex, and its key.
pub const RECORD_MAX_BYTES: u64 = 80 << 20;

/// In front of the bytes, in hex, of a value that is no JSON where JSON is wanted. No JSON begins with it.
const NO_JSON: &[u8] = b"\\x";

/// How bytes are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Form {
    /// As they are
    #[default]
    Text,
    /// Two digits a byte
    Hex,
    /// With + and /, and padded
    Base64,
    /// As JSON; what is none is \x and two digits a byte
    Json,
}

/// How keys and values are read and shown.
#[derive(Clone, Copy, Debug, Default)]
pub struct Forms {
    pub keys: Form,
    pub values: Form,
}

/// The options for that.
#[derive(Clone, Copy, Debug, Default, clap::Args)]
pub struct FormArgs {
    /// How keys are written, in arguments and in what is shown; default: text
    #[arg(long, value_name = "FORM", value_parser = key_form(), global = true)]
    keys: Option<Form>,
    /// How values are written; default: text
    #[arg(long, value_name = "FORM", global = true)]
    values: Option<Form>,
}

impl FormArgs {
    pub fn get(self) -> Forms {
        self.or(Forms::default())
    }

    /// Those that are said, and these for the others.
    pub fn or(self, others: Forms) -> Forms {
        Forms { keys: self.keys.unwrap_or(others.keys), values: self.values.unwrap_or(others.values) }
    }
}

/// Keys have an order, which JSON has not.
fn key_form() -> impl clap::builder::TypedValueParser<Value = Form> {
    let forms = Form::value_variants().iter().filter(|form| **form != Form::Json);
    PossibleValuesParser::new(forms.filter_map(clap::ValueEnum::to_possible_value))
        .try_map(|name| Form::from_str(&name, false))
}

impl Form {
    /// The bytes of an argument.
    pub fn read(self, text: &OsStr) -> Result<Vec<u8>> {
        self.read_bytes(text.as_bytes())
    }

    fn read_bytes(self, bytes: &[u8]) -> Result<Vec<u8>> {
        let decoded = match self {
            Self::Text => return Ok(bytes.to_vec()),
            Self::Json => return from_json_or_hex(bytes),
            Self::Hex => HEXLOWER_PERMISSIVE.decode(bytes),
            Self::Base64 => BASE64.decode(bytes),
        };
        let name = if self == Self::Hex { "hex" } else { "base64" };
        decoded.map_err(|why| Code::Usage.error(format!("{:?} is no {name}: {why}", excerpt(bytes))))
    }

    /// For people: without control characters.
    pub fn show(self, bytes: &[u8]) -> String {
        match self {
            Self::Text => match std::str::from_utf8(bytes) {
                Ok(text) if !text.chars().any(char::is_control) => text.to_owned(),
                Ok(text) => text
                    .chars()
                    .map(|c| if c.is_control() { c.escape_default().to_string() } else { c.into() })
                    .collect(),
                Err(_) => bytes.escape_ascii().to_string(),
            },
            Self::Hex => HEXLOWER.encode(bytes),
            Self::Base64 => BASE64.encode(bytes),
            Self::Json => match as_json(bytes) {
                // Those that a JSON string may hold.
                Some(text) if text.chars().any(char::is_control) => {
                    one_line(text).chars().map(|c| if c.is_control() { unicode_escape(c) } else { c.into() }).collect()
                }
                Some(text) => text.to_owned(),
                None => format!("\\x{}", HEXLOWER.encode(bytes)),
            },
        }
    }

    /// A column of plain output: without tabs and line ends.
    pub fn plain(self, bytes: &[u8], out: &mut Vec<u8>) {
        match self {
            Self::Text => escape(bytes, out),
            Self::Json => {
                if let Some(text) = as_json(bytes) {
                    out.extend_from_slice(one_line(text).as_bytes());
                } else {
                    out.extend_from_slice(NO_JSON);
                    encode(&HEXLOWER, bytes, out);
                }
            }
            Self::Hex => encode(&HEXLOWER, bytes, out),
            Self::Base64 => encode(&BASE64, bytes, out),
        }
    }

    /// The bytes of such a column.
    pub fn read_plain(self, column: &[u8]) -> Result<Vec<u8>> {
        if self == Self::Text { unescape(column) } else { self.read_bytes(column) }
    }

    /// As a JSON string, or an object where they are no text. Of values see [`value_fields`].
    pub fn json(self, bytes: &[u8], out: &mut Vec<u8>) {
        match (self, std::str::from_utf8(bytes)) {
            (Self::Text, Ok(text)) => string(text, out),
            (Self::Text, Err(_)) => string_in(("{\"hex\":", "}"), &HEXLOWER.encode(bytes), out),
            _ => string(&self.show(bytes), out),
        }
    }

    /// The same, of a key.
    pub fn json_value(self, bytes: &[u8]) -> Value {
        match (self, std::str::from_utf8(bytes)) {
            (Self::Text, Ok(text)) => text.into(),
            (Self::Text, Err(_)) => json!({ "hex": HEXLOWER.encode(bytes) }),
            _ => self.show(bytes).into(),
        }
    }

    /// The bytes of something in JSON: text in this form, an object that names its form, or else the JSON itself.
    pub fn read_json(self, json: &RawValue) -> Result<Vec<u8>> {
        let raw = json.get();
        match raw.as_bytes().first() {
            _ if self == Self::Json => {}
            Some(b'"') => {
                let text: Cow<'_, str> = serde_json::from_str(raw)?;
                return self.read_bytes(text.as_bytes());
            }
            Some(b'{') => {
                if let Ok(named) = serde_json::from_str::<Named>(raw) {
                    return match named {
                        Named::Hex(text) => Self::Hex.read_bytes(text.as_bytes()),
                        Named::Base64(text) => Self::Base64.read_bytes(text.as_bytes()),
                    };
                }
            }
            _ => {}
        }
        Ok(raw.as_bytes().to_vec())
    }
}

/// Bytes that say how they are written.
#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum Named {
    Hex(String),
    Base64(String),
}

/// A value, or that there is none, as fields of a JSON object. Where values are JSON, `value` is there if it is JSON, and what of its
/// bytes that does not say is in `text`, or in `hex` if they are no text.
pub fn value_fields(form: Form, value: Option<&[u8]>, out: &mut Vec<u8>) {
    match (form, value) {
        (Form::Json, None) => {}
        (_, None) => out.extend_from_slice(b",\"value\":null"),
        (Form::Json, Some(bytes)) => {
            let Ok(text) = std::str::from_utf8(bytes) else {
                return string_in((",\"hex\":", ""), &HEXLOWER.encode(bytes), out);
            };
            let mut is_said = false;
            if is_json(text) {
                let line = one_line(text);
                is_said = line == text;
                out.extend_from_slice(b",\"value\":");
                out.extend_from_slice(line.as_bytes());
            }
            if !is_said {
                string_in((",\"text\":", ""), text, out);
            }
        }
        (_, Some(bytes)) => {
            out.extend_from_slice(b",\"value\":");
            form.json(bytes, out);
        }
    }
}

/// The fields of a row in JSON.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fields<'a> {
    #[serde(borrow)]
    pub key: &'a RawValue,
    #[serde(borrow, default, deserialize_with = "even_null")]
    value: Option<&'a RawValue>,
    #[serde(borrow)]
    text: Option<Cow<'a, str>>,
    #[serde(borrow)]
    hex: Option<Cow<'a, str>>,
}

fn even_null<'de, D: Deserializer<'de>>(from: D) -> Result<Option<&'de RawValue>, D::Error> {
    Deserialize::deserialize(from).map(Some)
}

impl Fields<'_> {
    /// The bytes of the value; `None` if the fields are not those of one.
    pub fn value(&self, form: Form) -> Option<Result<Vec<u8>>> {
        match (form, self.value, &self.text, &self.hex) {
            (form, Some(value), None, None) => Some(form.read_json(value)),
            // Only what `text` says besides: who has changed `value` does not mean what it was before.
            (Form::Json, Some(value), Some(text), None) => {
                let is_same = is_json(text) && one_line(text) == one_line(value.get());
                let taken = if is_same { text } else { value.get() };
                Some(Ok(taken.as_bytes().to_vec()))
            }
            (Form::Json, None, Some(text), None) => Some(Ok(text.as_bytes().to_vec())),
            (Form::Json, None, None, Some(hex)) => Some(Form::Hex.read_bytes(hex.as_bytes())),
            _ => None,
        }
    }
}

fn as_json(bytes: &[u8]) -> Option<&str> {
    std::str::from_utf8(bytes).ok().filter(|text| is_json(text))
}

fn is_json(text: &str) -> bool {
    check_json(text).is_ok()
}

/// Half of a surrogate pair is no text, and other programs end there: only where there may be one are strings decoded.
fn check_json(text: &str) -> serde_json::Result<()> {
    serde_json::from_str::<serde::de::IgnoredAny>(text)?;
    if text.contains("\\ud") || text.contains("\\uD") {
        serde_json::from_str::<serde_json::Value>(text)?;
    }
    Ok(())
}

/// JSON as it is given but for the blanks around it, or what is shown of something else.
fn from_json_or_hex(bytes: &[u8]) -> Result<Vec<u8>> {
    if let Some(digits) = bytes.strip_prefix(NO_JSON) {
        return Form::Hex.read_bytes(digits);
    }
    let wrong = |why: String| Code::Usage.error(format!("{:?} is no JSON: {why}", excerpt(bytes)));
    let text = std::str::from_utf8(bytes).map_err(|why| wrong(why.to_string()))?;
    check_json(text).map_err(|why| wrong(why.to_string()))?;
    Ok(text.trim_ascii().as_bytes().to_vec())
}

/// JSON without what divides its lines, or stands around it. Where there is nothing of that it stays as it is, to the byte.
fn one_line(json: &str) -> Cow<'_, str> {
    let divides = |byte: u8| matches!(byte, b'\t' | b'\n' | b'\r');
    let trimmed = json.trim_ascii();
    if !trimmed.bytes().any(divides) {
        return trimmed.into();
    }
    let (mut quoted, mut escaped) = (false, false);
    let keeps = |c: &char| {
        if quoted {
            (quoted, escaped) = (escaped || *c != '"', !escaped && *c == '\\');
            return true;
        }
        quoted = *c == '"';
        !c.is_ascii_whitespace()
    };
    trimmed.chars().filter(keeps).collect()
}

fn unicode_escape(c: char) -> String {
    let mut units = [0; 2];
    c.encode_utf16(&mut units).iter().fold(String::new(), |mut text, unit| {
        // Writing to a string does not fail.
        let _ = write!(text, "\\u{unit:04x}");
        text
    })
}

/// A JSON string.
fn string(text: &str, out: &mut Vec<u8>) {
    // Writing a string to memory does not fail.
    let _ = serde_json::to_writer(out, text);
}

fn encode(encoding: &Encoding, bytes: &[u8], out: &mut Vec<u8>) {
    let end = out.len();
    out.resize(end + encoding.encode_len(bytes.len()), 0);
    encoding.encode_mut(bytes, out.get_mut(end..).unwrap_or_default());
}

fn string_in((before, after): (&str, &str), text: &str, out: &mut Vec<u8>) {
    out.extend_from_slice(before.as_bytes());
    string(text, out);
    out.extend_from_slice(after.as_bytes());
}

/// As `SCRATCH_DIR` of `PostgreSQL`: \t, \n, \r, \\, and \xHH for other control characters and for bytes that are no text.
fn escape(bytes: &[u8], out: &mut Vec<u8>) {
    if bytes.iter().all(|byte| matches!(byte, b' '..=b'~') && *byte != b'\\') {
        return out.extend_from_slice(bytes);
    }
    let by_digits = |bytes: &[u8], out: &mut Vec<u8>| {
        for byte in bytes {
            out.extend_from_slice(NO_JSON);
            encode(&HEXLOWER, &[*byte], out);
        }
    };
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            let mut units = [0; 4];
            let unit = c.encode_utf8(&mut units).as_bytes();
            match c {
                '\t' => out.extend_from_slice(b"\\t"),
                '\n' => out.extend_from_slice(b"\\n"),
                '\r' => out.extend_from_slice(b"\\r"),
                '\\' => out.extend_from_slice(b"\\\\"),
                // The last is left out where a file begins with it.
                c if c.is_control() || c == '\u{feff}' => by_digits(unit, out),
                _ => out.extend_from_slice(unit),
            }
        }
        by_digits(chunk.invalid(), out);
    }
}

fn unescape(column: &[u8]) -> Result<Vec<u8>> {
    if !column.contains(&b'\\') {
        return Ok(column.to_vec());
    }
    let mut bytes = Vec::with_capacity(column.len());
    let mut left = column;
    while let Some((byte, rest)) = left.split_first() {
        left = rest;
        if *byte != b'\\' {
            bytes.push(*byte);
            continue;
        }
        let (decoded, length) = match left {
            [b't', ..] => (b'\t', 1),
            [b'n', ..] => (b'\n', 1),
            [b'r', ..] => (b'\r', 1),
            [b'\\', ..] => (b'\\', 1),
            [b'x', digits @ ..] if digits.len() >= 2 => {
                let decoded = HEXLOWER_PERMISSIVE.decode(digits.get(..2).unwrap_or_default());
                (decoded.ok().and_then(|bytes| bytes.first().copied()).ok_or_else(|| no_escape(left))?, 3)
            }
            _ => return Err(no_escape(left)),
        };
        bytes.push(decoded);
        left = left.get(length..).unwrap_or_default();
    }
    Ok(bytes)
}

fn no_escape(behind: &[u8]) -> anyhow::Error {
    let shown = excerpt(behind.get(..behind.len().min(3)).unwrap_or_default());
    Code::Usage.error(format!(
        "a backslash before {shown:?} is no escape (\\t, \\n, \\r, \\\\, \\xHH); --layout raw-tsv takes backslashes as they are"
    ))
}

/// Of something long that is told in an error.
fn excerpt(bytes: &[u8]) -> String {
    const CHARS: usize = 60;
    crate::table::shorten(&String::from_utf8_lossy(bytes), CHARS)
}

#[cfg(test)]
mod tests;
