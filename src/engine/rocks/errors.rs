//! RocksDB's errors as errors of an engine.

use std::path::Path;

use crate::engine::EngineError;

pub fn open_error(path: &Path, is_new: bool, why: rocksdb::Error) -> EngineError {
    match why.kind() {
        rocksdb::ErrorKind::Corruption => {
            EngineError::Corruption(format!("the database in {}: {}", path.display(), corruption_message(&why)))
        }
        // The marker says that the store was whole once, so this is not somebody else's database.
        rocksdb::ErrorKind::InvalidArgument if !is_new => {
            EngineError::Corruption(format!("the database in {} is not whole: {why}", path.display()))
        }
        // Files go with the marker, which is there.
        rocksdb::ErrorKind::IOError if !is_new && why.as_ref().contains("No such file or directory") => {
            EngineError::Corruption(format!("the database in {} is not whole: {why}", path.display()))
        }
        _ => EngineError::Io(format!("cannot open the store in {}: {why}", path.display())),
    }
}

/// RocksDB says the word first, sometimes twice, and whoever tells of this error says it once more.
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
