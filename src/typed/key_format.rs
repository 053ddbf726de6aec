//! The bytes that structure a key, and the errors of keys.

use std::fmt::Display;

pub(super) const ABSENT: u8 = 0x00;
pub(super) const PRESENT: u8 = 0x01;
pub(super) const ESCAPE: u8 = 0x00;
pub(super) const ESCAPED_ZERO: u8 = 0xff;
pub(super) const END: u8 = 0x01;

/// Why a value cannot be encoded as a key, or why bytes cannot be decoded as one.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct KeyError(pub String);

impl serde::ser::Error for KeyError {
    fn custom<T: Display>(error: T) -> Self {
        Self(error.to_string())
    }
}

impl serde::de::Error for KeyError {
    fn custom<T: Display>(error: T) -> Self {
        Self(error.to_string())
    }
}
