//! Conversions of RocksDB's errors into engine errors.

use std::path::Path;

use crate::engine::EngineError;

pub fn open_error(path: &Path, is_new: bool, error: rocksdb::Error) -> EngineError {
    match error.kind() {
        rocksdb::ErrorKind::Corruption => {
            EngineError::Corruption(format!("the tables in {}: {}", path.display(), corruption_message(&error)))
        }
        // The marker proves that the store was complete once, so the error is a sign of damage, not
        // of a foreign database.
        rocksdb::ErrorKind::InvalidArgument if !is_new => {
            EngineError::Corruption(format!("the tables in {} are incomplete: {error}", path.display()))
        }
        // A missing file is damage, too, because the store was complete once.
        rocksdb::ErrorKind::IOError if !is_new && error.as_ref().contains("No such file or directory") => {
            EngineError::Corruption(format!("the tables in {} are incomplete: {error}", path.display()))
        }
        _ => EngineError::Io(format!("cannot open the store in {}: {error}", path.display())),
    }
}

/// The message without the prefix "Corruption: ": RocksDB may have added it twice, and
/// [`Error`](crate::Error) adds it again.
pub fn corruption_message(error: &rocksdb::Error) -> &str {
    error.as_ref().trim_start_matches("Corruption: ")
}

fn corruption_error(error: &rocksdb::Error) -> EngineError {
    EngineError::Corruption(corruption_message(error).into())
}

pub fn engine_error(error: rocksdb::Error) -> EngineError {
    match error.kind() {
        rocksdb::ErrorKind::Corruption => corruption_error(&error),
        _ => EngineError::Undetermined(error.to_string()),
    }
}
