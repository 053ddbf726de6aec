//! The document in which the process that has a folder open tells what it does: a file `STATUS` beside the marker, which
//! a checkpoint leaves out.
//!
//! It appears whole or not at all to those who read it while its writer lives. After a power cut there may be anything in it.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read as _};
use std::path::Path;

use crate::engine::EngineError;

const STATUS_FILE: &str = "STATUS";
/// What it is called until it is whole.
const UNFINISHED: &str = "STATUS.new";
/// Far above what any is long, so that reading is bounded.
const STATUS_BYTES_MAX: u64 = 16 << 20;

/// Puts a document there, or takes it away.
pub fn write(folder: &Path, document: Option<&[u8]>) -> io::Result<()> {
    let (place, unfinished) = (folder.join(STATUS_FILE), folder.join(UNFINISHED));
    let remove_if_exists = |file: &Path| match fs::remove_file(file) {
        Err(why) if why.kind() != ErrorKind::NotFound => Err(why),
        _ => Ok(()),
    };
    let Some(document) = document else { return remove_if_exists(&place).and(remove_if_exists(&unfinished)) };
    let written = fs::write(&unfinished, document).and_then(|()| fs::rename(&unfinished, place));
    // Half of it takes space that a full disk has none of.
    written.inspect_err(|_| drop(remove_if_exists(&unfinished)))
}

/// The document, if there is one.
pub(crate) fn read(folder: &Path) -> Result<Option<Vec<u8>>, EngineError> {
    let place = folder.join(STATUS_FILE);
    let mut document = Vec::new();
    match File::open(&place).and_then(|file| file.take(STATUS_BYTES_MAX).read_to_end(&mut document)) {
        Ok(_) => Ok(Some(document)),
        Err(why) if matches!(why.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(None),
        Err(why) => Err(EngineError::Io(format!("cannot read {}: {why}", place.display()))),
    }
}
