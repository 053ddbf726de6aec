//! Conversions of RocksDB's errors into engine errors.

use std::borrow::Cow;
use std::path::Path;

use crate::disk::{readable, shown};
use crate::engine::EngineError;
use crate::os_limits::{is_limit_reached, with_advice};

pub fn open_error(path: &Path, is_new: bool, error: rocksdb::Error) -> EngineError {
    match error.kind() {
        _ if is_locked(error.as_ref()) => open_elsewhere(path),
        // RocksDB reports a file that it cannot open in several ways, as incomplete tables, too.
        _ if is_limit_reached(error.as_ref()) => cannot_open(path, &error),
        rocksdb::ErrorKind::Corruption => {
            EngineError::Corruption(format!("the tables in {}: {}", shown(path), corruption_message(&error)))
        }
        // The marker proves that the store was complete once, so the error is a sign of damage, not
        // of a foreign database.
        rocksdb::ErrorKind::InvalidArgument if !is_new => {
            EngineError::Corruption(format!("the tables in {} are incomplete: {}", shown(path), message(&error)))
        }
        // A missing file is damage, too, because the store was complete once.
        rocksdb::ErrorKind::IOError if !is_new && error.as_ref().contains("No such file or directory") => {
            EngineError::Corruption(format!("the tables in {} are incomplete: {}", shown(path), message(&error)))
        }
        _ => cannot_open(path, &error),
    }
}

/// The error of a subdirectory that another store has open, though the marker is free.
pub fn open_elsewhere(path: &Path) -> EngineError {
    EngineError::AlreadyOpen(format!(
        "{} is already open in this or another process: the store's marker was replaced meanwhile, or another store \
         shares this directory; close it there first",
        shown(path)
    ))
}

/// Whether the error says that RocksDB's own lock is taken.
fn is_locked(error: &str) -> bool {
    let is_taken = ["lock hold by current process", "Resource temporarily unavailable"];
    error.contains("LOCK") && is_taken.iter().any(|text| error.contains(text))
}

fn cannot_open(path: &Path, error: &rocksdb::Error) -> EngineError {
    EngineError::Io(format!("cannot open the store in {}: {}", shown(path), message(error)))
}

/// The message without the prefix "Corruption: ": RocksDB may have added it twice, and
/// [`Error`](crate::Error) adds it again.
pub fn corruption_message(error: &rocksdb::Error) -> String {
    message(error).trim_start_matches("Corruption: ").into()
}

/// The message with the paths of files as a user knows them.
fn message(error: &rocksdb::Error) -> Cow<'_, str> {
    readable(error.as_ref())
}

fn corruption_error(error: &rocksdb::Error) -> EngineError {
    EngineError::Corruption(corruption_message(error))
}

pub fn engine_error(error: rocksdb::Error) -> EngineError {
    match error.kind() {
        rocksdb::ErrorKind::Corruption => corruption_error(&error),
        _ => EngineError::Undetermined(with_advice(message(&error))),
    }
}
