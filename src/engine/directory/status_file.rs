//! The status file: the process that has the store open describes its state in the file `STATUS`,
//! beside the marker. Checkpoints do not contain it.
//!
//! Each document replaces the last one by a rename, so other processes read complete documents
//! only. The file is not synced: after a power cut its content is undefined.

use std::fs;
use std::io::{self, ErrorKind, Read as _};
use std::path::Path;

use crate::disk::{Directory, open_own, replace_own};
use crate::engine::EngineError;

const STATUS_FILE: &str = "STATUS";
/// The name of the file until it is complete.
const UNFINISHED: &str = "STATUS.new";
/// Reading stops at this limit, which is far above the size of a document.
const STATUS_BYTES_MAX: u64 = 16 << 20;

/// Replaces the status file; `None` removes it.
pub fn write(directory: &Directory, document: Option<&[u8]>) -> io::Result<()> {
    let (file, unfinished) = (directory.path().join(STATUS_FILE), directory.path().join(UNFINISHED));
    let remove_if_exists = |file: &Path| match fs::remove_file(file) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    };
    let Some(document) = document else { return remove_if_exists(&file).and(remove_if_exists(&unfinished)) };
    let written = replace_own(&unfinished, document).and_then(|()| fs::rename(&unfinished, file));
    // A partial file would take space on a disk that may be full.
    written.inspect_err(|_| drop(remove_if_exists(&unfinished)))
}

/// Reads the status file; `None` if there is none.
pub(crate) fn read(directory: &Path) -> Result<Option<Vec<u8>>, EngineError> {
    let path = directory.join(STATUS_FILE);
    let mut document = Vec::new();
    match open_own(&path).and_then(|file| file.take(STATUS_BYTES_MAX).read_to_end(&mut document)) {
        Ok(_) => Ok(Some(document)),
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(None),
        Err(error) => Err(EngineError::Io(format!("cannot read {}: {error}", path.display()))),
    }
}
