//! RocksDB's logs, looked through before RocksDB reads them.
//!
//! RocksDB 11.8 does not come back from a log in which one byte is wrong: that of a record's type, if it then says that the
//! log file is a recycled one. In a log whose first record says otherwise it meets that record again and again, before it looks
//! at the checksum, and opening never ends. Its manifest is written in the same form. This store recycles no files, so the
//! record is damaged, and who opens the folder is told so.
//!
//! Only headers are looked at. Whether records are whole is RocksDB's business, and its answer is needed: where a log ends in the
//! middle of a record, a crash has most likely cut it off, and what comes before is good.
//!
//! ```text
//!   file:    block (32 KiB)*
//!   record:  checksum (4) ‖ length (2, little-endian) ‖ type (1) ‖ payload, within one block
//! ```

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use crate::engine::EngineError;

const BLOCK_BYTES: u64 = 32 << 10;
const HEADER_BYTES: usize = 7;

/// A place in a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The log.
    pub file: PathBuf,
    /// Where the record begins, in bytes.
    pub offset: u64,
}

/// Refuses a folder whose logs RocksDB would read for ever.
pub fn check(folder: &Path) -> Result<(), EngineError> {
    match endless(folder)
        .map_err(|why| EngineError::Open(format!("cannot read the logs in {}: {why}", folder.display())))?
    {
        None => Ok(()),
        Some(Place { file, offset }) => {
            let what = format!(
                "{} is damaged: the record at byte {offset} is of a sort that is never written",
                file.display()
            );
            Err(EngineError::Corruption(what))
        }
    }
}

/// The first place at which RocksDB would stay for ever.
pub fn endless(folder: &Path) -> io::Result<Option<Place>> {
    for entry in fs::read_dir(folder)? {
        let file = entry?.path();
        let is_manifest = file.file_name().is_some_and(|name| name.to_string_lossy().starts_with("MANIFEST-"));
        let is_log = file.extension().is_some_and(|end| end == "log");
        if !(is_manifest || is_log) || !file.is_file() {
            continue;
        }
        if let Some(offset) = endless_in(File::open(&file)?)? {
            return Ok(Some(Place { file, offset }));
        }
    }
    Ok(None)
}

fn endless_in(mut file: impl Read) -> io::Result<Option<u64>> {
    let (mut block, mut begins) = (Vec::new(), 0);
    loop {
        block.clear();
        let read = file.by_ref().take(BLOCK_BYTES).read_to_end(&mut block)? as u64;
        if let Some(at) = endless_in_block(&block) {
            return Ok(Some(begins + at as u64));
        }
        if read < BLOCK_BYTES {
            return Ok(None);
        }
        begins += read;
    }
}

fn endless_in_block(block: &[u8]) -> Option<usize> {
    let mut at = 0;
    while let Some(&[_, _, _, _, low, high, sort]) = block.get(at..at + HEADER_BYTES) {
        if is_recycled(sort) {
            return Some(at);
        }
        let length = usize::from(u16::from_le_bytes([low, high]));
        if (sort, length) == (0, 0) {
            // Nothing was written from here on.
            return None;
        }
        at += HEADER_BYTES + length;
    }
    None
}

/// The sorts of records that only recycled files have.
fn is_recycled(sort: u8) -> bool {
    matches!(sort, 5..=8 | 11 | 131)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(sort: u8, length: usize) -> Vec<u8> {
        let [low, high] = u16::try_from(length).unwrap().to_le_bytes();
        [&[1, 2, 3, 4, low, high, sort][..], &vec![5; length]].concat()
    }

    #[test]
    fn a_record_of_a_recycled_file_is_found_in_any_block() {
        let block = [record(1, 100), record(2, 32 * 1024 - 107 - 7)].concat();
        assert_eq!(block.len() as u64, BLOCK_BYTES);
        for sort in [5, 6, 7, 8, 11, 131] {
            let log = [&block[..], &record(4, 10), &record(sort, 3), &record(1, 1)].concat();
            assert_eq!(endless_in(log.as_slice()).unwrap(), Some(BLOCK_BYTES + 17), "{sort}");
        }
    }

    #[test]
    fn what_a_crash_leaves_is_left_to_rocksdb() {
        let whole = [record(130, 20), record(1, 100), record(9, 3), record(10, 3)].concat();
        for length in 0..=whole.len() {
            assert_eq!(endless_in(&whole[..length]).unwrap(), None, "cut off at {length}");
            let zeros = [&whole[..length], &[0; 100]].concat();
            assert_eq!(endless_in(zeros.as_slice()).unwrap(), None, "zeros from {length}");
        }
        // A header does not fit into what is left of a block.
        let trailer = [record(1, 32 * 1024 - 7 - 3), vec![5; 3], record(1, 9)].concat();
        assert_eq!(endless_in(trailer.as_slice()).unwrap(), None);
    }
}
