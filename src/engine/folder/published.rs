//! The document in which the process that has a folder open tells what it does: a file `STATUS` beside the marker, which
//! a checkpoint leaves out.
//!
//! It appears whole or not at all to those who read it while its writer lives. After a power cut there may be anything in it.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read as _};
use std::path::Path;

use crate::engine::EngineError;

const NAME: &str = "STATUS";
/// What it is called until it is whole.
const UNFINISHED: &str = "STATUS.new";
/// Far above what any is long, so that reading is bounded.
const MAX_BYTES: u64 = 16 << 20;

/// Puts a document there, or takes it away.
pub fn publish(folder: &Path, document: Option<&[u8]>) -> io::Result<()> {
    let (place, unfinished) = (folder.join(NAME), folder.join(UNFINISHED));
    let gone = |file: &Path| match fs::remove_file(file) {
        Err(why) if why.kind() != ErrorKind::NotFound => Err(why),
        _ => Ok(()),
    };
    let Some(document) = document else { return gone(&place).and(gone(&unfinished)) };
    let written = fs::write(&unfinished, document).and_then(|()| fs::rename(&unfinished, place));
    // Half of it takes space that a full disk has none of.
    written.inspect_err(|_| drop(gone(&unfinished)))
}

/// The document, if there is one.
pub(crate) fn published(folder: &Path) -> Result<Option<Vec<u8>>, EngineError> {
    let place = folder.join(NAME);
    let mut document = Vec::new();
    match File::open(&place).and_then(|file| file.take(MAX_BYTES).read_to_end(&mut document)) {
        Ok(_) => Ok(Some(document)),
        Err(why) if matches!(why.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(None),
        Err(why) => Err(EngineError::Open(format!("cannot read {}: {why}", place.display()))),
    }
}
