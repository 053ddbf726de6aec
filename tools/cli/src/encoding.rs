//! Encodings of keys and values on the command line: text, hex or base64, and JSON for values.
//!
//! Every byte string can be written, and read back unchanged, in three places:
//!
//! | place | written by | read by |
//! |---|---|---|
//! | an argument; a table for people | [`Encoding::display`] | [`Encoding::decode_arg`] |
//! | a column of plain output | [`Encoding::write_column`] | [`Encoding::read_column`] |
//! | JSON | [`Encoding::write_json`] | [`Encoding::read_json`] |
//!
//! A value in JSON takes one or two fields of an object: [`write_value_fields`] writes them, and
//! [`JsonRow`] reads them.

use std::borrow::Cow;
use std::ffi::OsStr;
use std::fmt::Write as _;
use std::os::unix::ffi::OsStrExt as _;

use anyhow::Result;
use clap::ValueEnum as _;
use clap::builder::{PossibleValuesParser, TypedValueParser as _};
use data_encoding::{BASE64, HEXLOWER, HEXLOWER_PERMISSIVE};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::exit::Code;
use crate::json_text::{check_json, compact_json, is_json};

/// In the encoding JSON, a value that is not JSON is written as this prefix and hex digits. No JSON
/// text begins with the prefix.
const HEX_PREFIX: &[u8] = b"\\x";

/// How bytes are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Encoding {
    /// The bytes themselves
    #[default]
    Text,
    /// Two hexadecimal digits a byte
    Hex,
    /// Standard base64, with + and / and padding
    Base64,
    /// JSON; other values as \x and two digits a byte
    Json,
}

/// The encodings of keys and of values.
#[derive(Clone, Copy, Debug, Default)]
pub struct Encodings {
    pub keys: Encoding,
    pub values: Encoding,
}

#[derive(Clone, Copy, Debug, Default, clap::Args)]
pub struct EncodingArgs {
    /// Encoding of keys, in arguments and in the output; default: text
    #[arg(long, value_name = "ENCODING", value_parser = parse_key_encoding(), global = true)]
    key_encoding: Option<Encoding>,
    /// Encoding of values; default: text
    #[arg(long, value_name = "ENCODING", global = true)]
    value_encoding: Option<Encoding>,
}

impl EncodingArgs {
    pub fn get(self) -> Encodings {
        self.or_default_from(Encodings::default())
    }

    /// The encodings that were given, else these defaults.
    pub fn or_default_from(self, default: Encodings) -> Encodings {
        Encodings {
            keys: self.key_encoding.unwrap_or(default.keys),
            values: self.value_encoding.unwrap_or(default.values),
        }
    }
}

/// Parses the encoding of keys. JSON is not allowed: keys are compared as bytes, and equal JSON
/// documents may have different bytes.
fn parse_key_encoding() -> impl clap::builder::TypedValueParser<Value = Encoding> {
    let encodings = Encoding::value_variants().iter().filter(|encoding| **encoding != Encoding::Json);
    PossibleValuesParser::new(encodings.filter_map(clap::ValueEnum::to_possible_value))
        .try_map(|name| Encoding::from_str(&name, false))
}

impl Encoding {
    /// The bytes of an argument.
    pub fn decode_arg(self, text: &OsStr) -> Result<Vec<u8>> {
        self.decode(text.as_bytes())
    }

    fn decode(self, bytes: &[u8]) -> Result<Vec<u8>> {
        let decoded = match self {
            Self::Text => return Ok(bytes.to_vec()),
            Self::Json => return from_json_or_hex(bytes),
            Self::Hex => HEXLOWER_PERMISSIVE.decode(bytes),
            Self::Base64 => BASE64.decode(bytes),
        };
        let name = if self == Self::Hex { "hex" } else { "base64" };
        decoded.map_err(|err| Code::Usage.error(format!("{:?} is not valid {name}: {err}", truncate(bytes))))
    }

    /// Text for people: without control characters.
    pub fn display(self, bytes: &[u8]) -> String {
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
                // A JSON string may contain control characters, such as DEL.
                Some(text) if text.chars().any(char::is_control) => compact_json(text)
                    .chars()
                    .map(|c| if c.is_control() { unicode_escape(c) } else { c.into() })
                    .collect(),
                Some(text) => text.to_owned(),
                None => format!("\\x{}", HEXLOWER.encode(bytes)),
            },
        }
    }

    /// Writes a column of plain output: without tabs and line ends.
    pub fn write_column(self, bytes: &[u8], out: &mut Vec<u8>) {
        match self {
            Self::Text => escape(bytes, out),
            Self::Json => {
                if let Some(text) = as_json(bytes) {
                    out.extend_from_slice(compact_json(text).as_bytes());
                } else {
                    out.extend_from_slice(HEX_PREFIX);
                    append_encoded(&HEXLOWER, bytes, out);
                }
            }
            Self::Hex => append_encoded(&HEXLOWER, bytes, out),
            Self::Base64 => append_encoded(&BASE64, bytes, out),
        }
    }

    /// The bytes of a column that [`Encoding::write_column`] has written.
    pub fn read_column(self, column: &[u8]) -> Result<Vec<u8>> {
        if self == Self::Text { unescape(column) } else { self.decode(column) }
    }

    /// Writes a JSON string, or an object `{"hex": …}` for bytes that are not UTF-8. For values
    /// there is [`write_value_fields`].
    pub fn write_json(self, bytes: &[u8], out: &mut Vec<u8>) {
        match (self, std::str::from_utf8(bytes)) {
            (Self::Text, Ok(text)) => write_string(text, out),
            (Self::Text, Err(_)) => write_string_between(("{\"hex\":", "}"), &HEXLOWER.encode(bytes), out),
            _ => write_string(&self.display(bytes), out),
        }
    }

    /// Like [`Encoding::write_json`], but returns a [`Value`].
    pub fn to_json(self, bytes: &[u8]) -> Value {
        match (self, std::str::from_utf8(bytes)) {
            (Self::Text, Ok(text)) => text.into(),
            (Self::Text, Err(_)) => json!({ "hex": HEXLOWER.encode(bytes) }),
            _ => self.display(bytes).into(),
        }
    }

    /// The bytes of a JSON value: a string in this encoding, an object `{"hex": …}` or
    /// `{"base64": …}`, or else the JSON text itself.
    pub fn read_json(self, json: &RawValue) -> Result<Vec<u8>> {
        let raw = json.get();
        match raw.as_bytes().first() {
            _ if self == Self::Json => {}
            Some(b'"') => {
                let text: Cow<'_, str> = serde_json::from_str(raw)?;
                return self.decode(text.as_bytes());
            }
            Some(b'{') => {
                if let Ok(named) = serde_json::from_str::<EncodedBytes>(raw) {
                    return match named {
                        EncodedBytes::Hex(text) => Self::Hex.decode(text.as_bytes()),
                        EncodedBytes::Base64(text) => Self::Base64.decode(text.as_bytes()),
                    };
                }
            }
            _ => {}
        }
        Ok(raw.as_bytes().to_vec())
    }
}

/// Bytes with the name of their encoding.
#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum EncodedBytes {
    Hex(String),
    Base64(String),
}

/// Writes a value, or the fact that there is none, as fields of a JSON object.
///
/// In the encoding JSON the fields depend on the value. JSON is in `value`, in one line; if the
/// exact value differs from that line, it is in `text` as well. Other UTF-8 is in `text` only, and
/// all other bytes are in `hex` only. If there is no value, all three fields are missing. In other
/// encodings there is only `value`, which is null if there is no value.
pub fn write_value_fields(encoding: Encoding, value: Option<&[u8]>, out: &mut Vec<u8>) {
    match (encoding, value) {
        (Encoding::Json, None) => {}
        (_, None) => out.extend_from_slice(b",\"value\":null"),
        (Encoding::Json, Some(bytes)) => {
            let Ok(text) = std::str::from_utf8(bytes) else {
                return write_string_between((",\"hex\":", ""), &HEXLOWER.encode(bytes), out);
            };
            let mut is_exact = false;
            if is_json(text) {
                let line = compact_json(text);
                is_exact = line == text;
                out.extend_from_slice(b",\"value\":");
                out.extend_from_slice(line.as_bytes());
            }
            if !is_exact {
                write_string_between((",\"text\":", ""), text, out);
            }
        }
        (_, Some(bytes)) => {
            out.extend_from_slice(b",\"value\":");
            encoding.write_json(bytes, out);
        }
    }
}

/// A row in JSON: its key, and the fields of [`write_value_fields`].
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JsonRow<'a> {
    #[serde(borrow)]
    pub key: &'a RawValue,
    #[serde(borrow, default, deserialize_with = "nullable")]
    value: Option<&'a RawValue>,
    #[serde(borrow)]
    text: Option<Cow<'a, str>>,
    #[serde(borrow)]
    hex: Option<Cow<'a, str>>,
}

fn nullable<'de, D: Deserializer<'de>>(from: D) -> Result<Option<&'de RawValue>, D::Error> {
    Deserialize::deserialize(from).map(Some)
}

impl JsonRow<'_> {
    /// The bytes of the value; `None` if the fields are not those of a value.
    pub fn value(&self, encoding: Encoding) -> Option<Result<Vec<u8>>> {
        match (encoding, self.value, &self.text, &self.hex) {
            (encoding, Some(value), None, None) => Some(encoding.read_json(value)),
            // `text` has the exact bytes of the JSON in `value`. If the two differ in their
            // one-line form, the file was edited, and `value` takes precedence.
            (Encoding::Json, Some(value), Some(text), None) => {
                let is_same = is_json(text) && compact_json(text) == compact_json(value.get());
                let exact = if is_same { text } else { value.get() };
                Some(Ok(exact.as_bytes().to_vec()))
            }
            (Encoding::Json, None, Some(text), None) => Some(Ok(text.as_bytes().to_vec())),
            (Encoding::Json, None, None, Some(hex)) => Some(Encoding::Hex.decode(hex.as_bytes())),
            _ => None,
        }
    }
}

fn as_json(bytes: &[u8]) -> Option<&str> {
    std::str::from_utf8(bytes).ok().filter(|text| is_json(text))
}

/// Decodes what the encoding JSON has written: hex digits after [`HEX_PREFIX`], else JSON, which is
/// returned verbatim except for the whitespace around it.
fn from_json_or_hex(bytes: &[u8]) -> Result<Vec<u8>> {
    if let Some(digits) = bytes.strip_prefix(HEX_PREFIX) {
        return Encoding::Hex.decode(digits);
    }
    let invalid = |err: String| Code::Usage.error(format!("{:?} is not valid JSON: {err}", truncate(bytes)));
    let text = std::str::from_utf8(bytes).map_err(|err| invalid(err.to_string()))?;
    check_json(text).map_err(invalid)?;
    Ok(text.trim_ascii().as_bytes().to_vec())
}

fn unicode_escape(c: char) -> String {
    let mut units = [0; 2];
    c.encode_utf16(&mut units).iter().fold(String::new(), |mut text, unit| {
        // Writing to a String does not fail.
        let _ = write!(text, "\\u{unit:04x}");
        text
    })
}

/// Appends a JSON string.
fn write_string(text: &str, out: &mut Vec<u8>) {
    // Writing to a Vec does not fail.
    let _ = serde_json::to_writer(out, text);
}

fn append_encoded(encoding: &data_encoding::Encoding, bytes: &[u8], out: &mut Vec<u8>) {
    let end = out.len();
    out.resize(end + encoding.encode_len(bytes.len()), 0);
    encoding.encode_mut(bytes, out.get_mut(end..).unwrap_or_default());
}

fn write_string_between((before, after): (&str, &str), text: &str, out: &mut Vec<u8>) {
    out.extend_from_slice(before.as_bytes());
    write_string(text, out);
    out.extend_from_slice(after.as_bytes());
}

/// Writes the bytes with the escapes that PostgreSQL's `COPY` reads: \t, \n, \r, \\, and \xHH for
/// other control characters and for bytes that are not UTF-8.
fn escape(bytes: &[u8], out: &mut Vec<u8>) {
    if bytes.iter().all(|byte| matches!(byte, b' '..=b'~') && *byte != b'\\') {
        return out.extend_from_slice(bytes);
    }
    let by_digits = |bytes: &[u8], out: &mut Vec<u8>| {
        for byte in bytes {
            out.extend_from_slice(HEX_PREFIX);
            append_encoded(&HEXLOWER, &[*byte], out);
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
                // A byte order mark is escaped, because a reader would skip it at the start of a
                // file.
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
                (decoded.ok().and_then(|bytes| bytes.first().copied()).ok_or_else(|| bad_escape(left))?, 3)
            }
            _ => return Err(bad_escape(left)),
        };
        bytes.push(decoded);
        left = left.get(length..).unwrap_or_default();
    }
    Ok(bytes)
}

fn bad_escape(after: &[u8]) -> anyhow::Error {
    let shown = truncate(after.get(..after.len().min(3)).unwrap_or_default());
    Code::Usage.error(format!(
        "a backslash before {shown:?} is no escape (\\t, \\n, \\r, \\\\, \\xHH); \
         --format raw-tsv keeps backslashes unchanged"
    ))
}

/// The beginning of the bytes, for an error text.
fn truncate(bytes: &[u8]) -> String {
    const CHARS: usize = 60;
    crate::table::truncate(&String::from_utf8_lossy(bytes), CHARS)
}

#[cfg(test)]
mod tests;
