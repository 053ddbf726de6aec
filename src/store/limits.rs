//! The limits of keys, values and names, and their checks.

use crate::error::{Error, ErrorKind, Result};

/// The maximum size of a key, in bytes. The minimum is one byte.
pub const MAX_KEY_BYTES: usize = 16 << 10;
/// The maximum size of a value, in bytes.
pub const MAX_VALUE_BYTES: usize = 32 << 20;
/// The maximum size of a keyspace name, in bytes.
pub const MAX_KEYSPACE_NAME_BYTES: usize = 255;

/// Rejects a key that is empty or too long.
pub(in crate::store) fn check_key(key: &[u8]) -> Result<()> {
    if key.is_empty() {
        return Err(Error::invalid("a key must not be empty"));
    }
    check_size("a key", key.len(), MAX_KEY_BYTES)
}

pub(in crate::store) fn check_size(what: &'static str, bytes: usize, limit: usize) -> Result<()> {
    if bytes > limit { Err(ErrorKind::TooLarge { what, bytes, limit }.into()) } else { Ok(()) }
}
