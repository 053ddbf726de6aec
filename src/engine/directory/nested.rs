//! Stores inside of other stores.
//!
//! What copies, moves or removes a store takes all of its directory. And a store that was created
//! in the directory of RocksDB's files, or of the log, would be among files that are removed when
//! they are no longer needed. So no store is made or opened for writing there. One that is there
//! can be read.

use std::io::Read as _;
use std::path::Path;

use super::names::{MARKER, MARKER_TEXT};
use crate::disk::open_own;
use crate::engine::EngineError;

/// Fails if the path, which need not exist, leads into the directory of a store.
pub fn check_not_nested(path: &Path) -> Result<(), EngineError> {
    let Ok(absolute) = std::path::absolute(path) else { return Ok(()) };
    // What cannot be resolved fails when it is created.
    let Some((existing, resolved)) = absolute.ancestors().find_map(|part| Some((part, part.canonicalize().ok()?)))
    else {
        return Ok(());
    };
    // The path's own directory may be a store.
    let skipped = usize::from(existing == absolute);
    match resolved.ancestors().skip(skipped).find(|directory| is_store(directory)) {
        None => Ok(()),
        Some(outer) => Err(EngineError::Io(format!(
            "{} is inside of the store {}, and would be copied, moved and removed with it: choose another directory; a \
             store that is there already can be opened read-only, or moved",
            path.display(),
            outer.display()
        ))),
    }
}

fn is_store(directory: &Path) -> bool {
    let mut text = String::new();
    let read = open_own(&directory.join(MARKER)).map(|file| file.take(MARKER_TEXT.len() as u64));
    read.and_then(|mut file| file.read_to_string(&mut text)).is_ok() && text == MARKER_TEXT
}
