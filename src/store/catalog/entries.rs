//! The entries of the catalog: their keys and values.

use crate::error::{Error, ErrorKind, Result};
use crate::row::KeyspaceId;
use crate::store::limits::MAX_KEYSPACE_NAME_BYTES;

pub(in crate::store) const CATALOG_ID: KeyspaceId = KeyspaceId::CATALOG;
pub(in crate::store) const NAME_PREFIX: &str = "name/";
/// The prefix of the keys of lease rows; the name of the named lock follows. See
/// `named_locks::lease_row`.
pub(in crate::store) const LOCK_PREFIX: &str = "lock/";
pub(in crate::store) const NEXT_ID_KEY: &[u8] = b"next";
pub(in crate::store) const DROPPED_PREFIX: &str = "dropped/";
/// The value of a staged keyspace's `dropped/` entry. The keyspace has no name yet, and its rows
/// are deleted if the restore does not finish.
pub(in crate::store) const STAGED_MARK: &[u8] = b"new";

pub(in crate::store) fn check_name(name: &str) -> Result<()> {
    if name.is_empty() || name.len() > MAX_KEYSPACE_NAME_BYTES || name.chars().any(char::is_control) {
        return Err(Error::invalid(format!(
            "invalid keyspace name {name:?}: expected 1 to {MAX_KEYSPACE_NAME_BYTES} bytes without control characters"
        )));
    }
    Ok(())
}

pub(in crate::store) fn name_key(name: &str) -> String {
    format!("{NAME_PREFIX}{name}")
}

pub(in crate::store) fn dropped_key(id: KeyspaceId) -> String {
    format!("{DROPPED_PREFIX}{:010}", id.0)
}

pub(in crate::store) fn decode_dropped_id(key: &[u8]) -> Result<KeyspaceId> {
    let id = String::from_utf8_lossy(key.get(DROPPED_PREFIX.len()..).unwrap_or_default()).parse().map(KeyspaceId);
    id.map_err(|_| ErrorKind::Corruption(format!("invalid catalog entry \"{}\"", key.escape_ascii())).into())
}

/// The keyspace of a `name/` or `dropped/` entry; `None` for other entries.
pub(in crate::store) fn entry_id(key: &[u8], value: &[u8]) -> Result<Option<KeyspaceId>> {
    if key.starts_with(NAME_PREFIX.as_bytes()) {
        decode_id(value).map(Some)
    } else if key.starts_with(DROPPED_PREFIX.as_bytes()) {
        decode_dropped_id(key).map(Some)
    } else {
        Ok(None)
    }
}

/// The name in a `name/` entry; `None` for other entries.
pub(in crate::store) fn entry_name(key: &[u8]) -> Option<String> {
    key.strip_prefix(NAME_PREFIX.as_bytes()).map(|name| String::from_utf8_lossy(name).into_owned())
}

/// The name in an entry that a scan of the prefix `name/` has found.
pub(in crate::store) fn scanned_name(key: &[u8]) -> String {
    let Some(name) = entry_name(key) else {
        unreachable!("invariant: a scan of a prefix returns keys with this prefix")
    };
    name
}

pub(in crate::store) fn decode_id(bytes: &[u8]) -> Result<KeyspaceId> {
    let id = bytes.try_into().map(u32::from_be_bytes);
    id.map(KeyspaceId).map_err(|_| ErrorKind::Corruption("corrupt keyspace id in the catalog".into()).into())
}
