//! RocksDB's manifest, looked through before RocksDB reads it.
//!
//! RocksDB 11.8 does not come back from a manifest in which one byte is wrong: that of a record's type, if it then says that the file is a
//! recycled log. If the first record says otherwise, RocksDB meets that record again and again, before it looks at the checksum, and
//! opening never ends. No file here is recycled, so such a record is damaged, and opening returns that.
//!
//! Only headers of records are looked at: 4 bytes checksum, 2 bytes length, 1 byte type. No record crosses the border of a block.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use crate::engine::EngineError;

const BLOCK_BYTES: usize = 32 << 10;
const HEADER_BYTES: usize = 7;

/// A place in a manifest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The file.
    pub file: PathBuf,
    /// Where the record begins, in bytes.
    pub offset: u64,
}

/// Refuses a folder whose manifest RocksDB would read for ever.
pub fn check(folder: &Path) -> Result<(), EngineError> {
    let found = endless(folder)
        .map_err(|why| EngineError::Open(format!("cannot read the manifest in {}: {why}", folder.display())))?;
    let Some(Place { file, offset }) = found else { return Ok(()) };
    let what = format!("{} is damaged: the record at byte {offset} is of a type that is never written", file.display());
    Err(EngineError::Corruption(what))
}

/// The first place at which RocksDB would stay for ever.
pub fn endless(folder: &Path) -> io::Result<Option<Place>> {
    for entry in fs::read_dir(folder)? {
        let file = entry?.path();
        let is_manifest = file.file_name().is_some_and(|name| name.to_string_lossy().starts_with("MANIFEST-"));
        if is_manifest
            && file.is_file()
            && let Some(offset) = endless_in(&mut File::open(&file)?)?
        {
            return Ok(Some(Place { file, offset }));
        }
    }
    Ok(None)
}

fn endless_in(file: &mut impl Read) -> io::Result<Option<u64>> {
    let (mut block, mut begins) = (Vec::with_capacity(BLOCK_BYTES), 0);
    loop {
        block.clear();
        let read = file.by_ref().take(BLOCK_BYTES as u64).read_to_end(&mut block)?;
        if let Some(at) = endless_in_block(&block) {
            return Ok(Some(begins + at as u64));
        }
        if read < BLOCK_BYTES {
            return Ok(None);
        }
        begins += read as u64;
    }
}

fn endless_in_block(block: &[u8]) -> Option<usize> {
    let mut at = 0;
    while let Some(&[_, _, _, _, low, high, kind]) = block.get(at..at + HEADER_BYTES) {
        if is_recycled(kind) {
            return Some(at);
        }
        let length = usize::from(u16::from_le_bytes([low, high]));
        if (kind, length) == (0, 0) {
            // Nothing was written from here on.
            return None;
        }
        at += HEADER_BYTES + length;
    }
    None
}

/// The types of records that only recycled files have.
fn is_recycled(kind: u8) -> bool {
    matches!(kind, 5..=8 | 11 | 131)
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
        assert_eq!(block.len(), BLOCK_BYTES);
        for sort in [5, 6, 7, 8, 11, 131] {
            let log = [&block[..], &record(4, 10), &record(sort, 3), &record(1, 1)].concat();
            assert_eq!(endless_in(&mut &log[..]).unwrap(), Some(BLOCK_BYTES as u64 + 17), "{sort}");
        }
    }

    #[test]
    fn what_a_crash_leaves_is_left_to_rocksdb() {
        let whole = [record(130, 20), record(1, 100), record(9, 3), record(10, 3)].concat();
        for length in 0..=whole.len() {
            assert_eq!(endless_in(&mut &whole[..length]).unwrap(), None, "cut off at {length}");
            let zeros = [&whole[..length], &[0; 100]].concat();
            assert_eq!(endless_in(&mut &zeros[..]).unwrap(), None, "zeros from {length}");
        }
        // A header does not fit into what is left of a block.
        let trailer = [record(1, 32 * 1024 - 7 - 3), vec![5; 3], record(1, 9)].concat();
        assert_eq!(endless_in(&mut &trailer[..]).unwrap(), None);
    }
}
