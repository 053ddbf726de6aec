//! Conversions of RocksDB's errors into engine errors.

use std::path::Path;

use crate::engine::EngineError;

pub fn open_error(path: &Path, is_new: bool, why: rocksdb::Error) -> EngineError {
    match why.kind() {
        rocksdb::ErrorKind::Corruption => {
            EngineError::Corruption(format!("the tables in {}: {}", path.display(), corruption_message(&why)))
        }
        // The marker proves that the store was complete once, so the error is a sign of damage, not
        // of a foreign database.
        rocksdb::ErrorKind::InvalidArgument if !is_new => {
            EngineError::Corruption(format!("the tables in {} are incomplete: {why}", path.display()))
        }
        // A missing file is damage, too, because the store was complete once.
        rocksdb::ErrorKind::IOError if !is_new && why.as_ref().contains("No such file or directory") => {
            EngineError::Corruption(format!("the tables in {} are incomplete: {why}", path.display()))
        }
        _ => EngineError::Io(format!("cannot open the store in {}: {why}", path.display())),
    }
}

/// The message without the prefix "Corruption: ": RocksDB may have added it twice, and
/// [`Error`](crate::Error) adds it again.
pub fn corruption_message(why: &rocksdb::Error) -> &str {
    why.as_ref().trim_start_matches("Corruption: ")
}

fn corruption_error(why: &rocksdb::Error) -> EngineError {
    EngineError::Corruption(corruption_message(why).into())
}

pub fn engine_error(why: rocksdb::Error) -> EngineError {
    match why.kind() {
        rocksdb::ErrorKind::Corruption => corruption_error(&why),
        _ => EngineError::Undetermined(why.to_string()),
    }
}
