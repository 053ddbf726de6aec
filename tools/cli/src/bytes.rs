//! Keys and values on the command line: any bytes, as text, hex or base64.
//!
//! To people, text that is not printable is shown escaped. To machines (`--json`) bytes that are no text are shown as an
//! object, `{"hex": "00ff"}`, which `load` reads back, so nothing is lost in between.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;

use anyhow::Result;
use data_encoding::{BASE64, HEXLOWER, HEXLOWER_PERMISSIVE};
use serde_json::{Value, json};

use crate::exit::Code;

/// The longest line or record that is read: the greatest value in hex, and its key.
pub const RECORD_MAX_BYTES: u64 = 80 << 20;

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
}

/// How keys and values are read and shown.
#[derive(Clone, Copy, Debug, Default, clap::Args)]
pub struct Forms {
    /// How keys are written, in arguments and in what is shown
    #[arg(long, value_name = "FORM", default_value = "text", global = true)]
    pub keys: Form,
    /// How values are written
    #[arg(long, value_name = "FORM", default_value = "text", global = true)]
    pub values: Form,
}

impl Form {
    /// The bytes of an argument.
    pub fn read(self, text: &OsStr) -> Result<Vec<u8>> {
        let bytes = text.as_bytes();
        let decoded = match self {
            Self::Text => return Ok(bytes.to_vec()),
            Self::Hex => HEXLOWER_PERMISSIVE.decode(bytes),
            Self::Base64 => BASE64.decode(bytes),
        };
        let name = if self == Self::Hex { "hex" } else { "base64" };
        decoded.map_err(|why| Code::Usage.error(format!("{:?} is no {name}: {why}", text.to_string_lossy())))
    }

    /// For people.
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
        }
    }

    /// For machines.
    pub fn json(self, bytes: &[u8]) -> Value {
        match (self, std::str::from_utf8(bytes)) {
            (Self::Text, Ok(text)) => text.into(),
            (Self::Text, Err(_)) => json!({ "hex": HEXLOWER.encode(bytes) }),
            _ => self.show(bytes).into(),
        }
    }

    /// The bytes of something in JSON: text in this form, an object that names its form, or else the JSON itself.
    pub fn read_json(self, value: &Value) -> Result<Vec<u8>> {
        match value {
            Value::String(text) => self.read(OsStr::new(text)),
            Value::Object(named) if named.len() == 1 => match named.iter().next() {
                Some((name, Value::String(text))) if name == "hex" => Self::Hex.read(OsStr::new(text)),
                Some((name, Value::String(text))) if name == "base64" => Self::Base64.read(OsStr::new(text)),
                _ => Ok(value.to_string().into_bytes()),
            },
            other => Ok(other.to_string().into_bytes()),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn any_bytes_come_back_from_every_form() {
        let all: Vec<u8> = (0..=255).collect();
        for bytes in [&all[..], b"", b"plain", "Z\u{fc}rich\n".as_bytes()] {
            for form in [Form::Text, Form::Hex, Form::Base64] {
                assert_eq!(form.read_json(&form.json(bytes)).unwrap(), bytes, "{form:?}");
            }
            for form in [Form::Hex, Form::Base64] {
                assert_eq!(form.read(OsStr::new(&form.show(bytes))).unwrap(), bytes, "{form:?}");
            }
        }
    }

    proptest::proptest! {
        #[test]
        fn no_argument_makes_reading_it_panic(bytes: Vec<u8>, text: String) {
            for form in [Form::Text, Form::Hex, Form::Base64] {
                for argument in [OsStr::from_bytes(&bytes), OsStr::new(&text)] {
                    // What is read is what is shown again, but for the case of digits.
                    match form.read(argument) {
                        Ok(read) if form != Form::Text => assert!(form.show(&read).eq_ignore_ascii_case(&argument.to_string_lossy())),
                        Ok(read) => assert_eq!(read, argument.as_bytes()),
                        Err(why) => assert!(!why.to_string().contains('\n')),
                    }
                }
                assert_eq!(form.read_json(&form.json(&bytes)).unwrap(), bytes.clone());
                assert!(!form.show(&bytes).chars().any(char::is_control));
            }
        }
    }

    #[test]
    fn what_is_shown_to_people_has_no_control_characters() {
        for bytes in [&b"\x1b[31mred"[..], b"a\nb", b"\xff\x00"] {
            assert!(!Form::Text.show(bytes).chars().any(char::is_control));
        }
    }
}
