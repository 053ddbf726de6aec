//! Stores among the files of other stores.
//!
//! A store that was made in the directory of RocksDB's files, or of the log, would be among files
//! that are removed when they are no longer needed. So no store is made or opened for writing
//! there. One that is there can be read. Elsewhere in a store's directory a store may be.

use std::io::Read as _;
use std::path::Path;

use super::names::{MARKER, MARKER_TEXT, TABLES_DIR, WAL_DIR};
use crate::disk::open_own;
use crate::engine::EngineError;

/// Fails if the path, which need not exist, leads to the files of a store.
pub fn check_not_nested(path: &Path) -> Result<(), EngineError> {
    let Ok(absolute) = std::path::absolute(path) else { return Ok(()) };
    // What cannot be resolved fails when it is created.
    let Some(resolved) = absolute.ancestors().find_map(|part| part.canonicalize().ok()) else { return Ok(()) };
    let has_files_of_a_store = |directory: &&Path| {
        [WAL_DIR, TABLES_DIR].iter().any(|name| directory.ends_with(name)) && directory.parent().is_some_and(is_store)
    };
    // `wal` and `tables` may be symbolic links.
    match resolved.ancestors().chain(absolute.ancestors()).find(has_files_of_a_store) {
        None => Ok(()),
        Some(files) => Err(EngineError::Io(format!(
            "{} would be among the files of another store, in {}, which removes files: choose another directory; a \
             store that is there already can be opened read-only, or moved",
            path.display(),
            files.display()
        ))),
    }
}

fn is_store(directory: &Path) -> bool {
    let mut text = String::new();
    let read = open_own(&directory.join(MARKER)).map(|file| file.take(MARKER_TEXT.len() as u64));
    read.and_then(|mut file| file.read_to_string(&mut text)).is_ok() && text == MARKER_TEXT
}
