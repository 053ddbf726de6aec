//! Checks of RocksDB's manifest before RocksDB reads it.
//!
//! A manifest is a file of blocks of 32 KiB. A block has records: 4 bytes checksum, 2 bytes length,
//! 1 byte type, content. A record that does not fit into its block is stored as several fragments,
//! each of which has this layout, too. RocksDB 11.8 cannot handle two kinds of damage.
//!
//! **Torn records.** A power cut may leave pages of zeros in a record, if the file system had
//! stored the file's new length but not yet the content. RocksDB ignores zeros that reach to the
//! end of the file, and a last record that the end of the file cuts short. For any other invalid
//! record it refuses to open the directory.
//!
//! [`find_torn_record`] finds a torn record. [`truncate`] removes this record and all that follows.
//! What is left is an older manifest. Whether anything is lost with it depends on the write-ahead
//! log: see `engine::directory::torn_manifest`.
//!
//! **Recycled record types.** RocksDB has record types for files that it writes over older ones
//! ("recycled" files). In a manifest, a record of such a type sends RocksDB into an endless loop,
//! before the checksum is verified: RocksDB reads the record again and again. The store recycles no
//! files, so such a record is damage. [`reject_recycled_record`] returns an error for it.

#[cfg(test)]
use std::fs::File;
use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use crate::disk::{open_own, open_own_to_change, shown};
use crate::engine::EngineError;

const MANIFEST_BLOCK_BYTES: usize = 32 << 10;
const RECORD_HEADER_BYTES: usize = 7;
/// RocksDB starts a manifest with at least this many records: two for the database, and two for
/// each of the five columns. It syncs them before `CURRENT` names the manifest.
const INITIAL_RECORDS: usize = 12;

/// The location of a record in a manifest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordLocation {
    /// The file.
    pub file: PathBuf,
    /// The offset of the record, in bytes.
    pub offset: u64,
}

/// Finds the first torn record of the current manifest: one for which RocksDB would refuse to open
/// the directory. The initial records do not count, because they were synced before the manifest
/// was used.
pub fn find_torn_record(directory: &Path) -> Result<Option<RecordLocation>, EngineError> {
    let find = || {
        // A missing `CURRENT` or manifest, and a `CURRENT` that is no text, are left to RocksDB,
        // whose own error is better.
        let named = match open_own(&directory.join("CURRENT")).and_then(io::read_to_string) {
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::InvalidData) => return Ok(None),
            named => named?,
        };
        let file = directory.join(named.trim_end());
        if !is_manifest(&file) {
            return Ok(None);
        }
        let found = find_torn_record_in(&mut open_own(&file)?)?;
        Ok(found.map(|offset| RecordLocation { file, offset }))
    };
    find().map_err(|error| cannot_read(directory, &error))
}

/// Removes the record and all that follows it, durably.
pub fn truncate(record: &RecordLocation) -> Result<(), EngineError> {
    let set_length = || {
        let file = open_own_to_change(&record.file, &mut OpenOptions::new())?;
        file.set_len(record.offset)?;
        file.sync_all()
    };
    set_length().map_err(|error| EngineError::Io(format!("cannot truncate {}: {error}", shown(&record.file))))
}

/// Fails if the current manifest has a torn record, for callers that must not truncate it. They
/// cannot tell a power cut from damage, which is the same error when the store is opened for
/// writing.
pub fn reject_torn_record(directory: &Path) -> Result<(), EngineError> {
    let Some(RecordLocation { file, offset }) = find_torn_record(directory)? else { return Ok(()) };
    let what = format!(
        "{} has a torn record at byte {offset}; if a power cut caused it, opening the store for writing repairs it",
        shown(&file)
    );
    Err(EngineError::Corruption(what))
}

/// Fails if any manifest has a record that sends RocksDB into an endless loop.
pub fn reject_recycled_record(directory: &Path) -> Result<(), EngineError> {
    let found = find_recycled_record(directory).map_err(|error| cannot_read(directory, &error))?;
    let Some(RecordLocation { file, offset }) = found else { return Ok(()) };
    let what = format!("{} is damaged: the record at byte {offset} is of a type that is never written", shown(&file));
    Err(EngineError::Corruption(what))
}

fn cannot_read(directory: &Path, error: &io::Error) -> EngineError {
    EngineError::Io(format!("cannot read the manifest in {}: {error}", shown(directory)))
}

/// Searches all manifests of the directory for a record of a *recycled* type: see the
/// [module](self). Returns the first that it finds.
pub fn find_recycled_record(directory: &Path) -> io::Result<Option<RecordLocation>> {
    for entry in fs::read_dir(directory)? {
        let file = entry?.path();
        if is_manifest(&file)
            && let Some(offset) = find_recycled_record_in(&mut open_own(&file)?)?
        {
            return Ok(Some(RecordLocation { file, offset }));
        }
    }
    Ok(None)
}

fn is_manifest(file: &Path) -> bool {
    file.file_name().is_some_and(|name| name.to_string_lossy().starts_with("MANIFEST-")) && file.is_file()
}

/// The offset of the file's first torn record: see [`find_torn_record`].
fn find_torn_record_in(file: &mut (impl Read + Seek)) -> io::Result<Option<u64>> {
    let (mut records, mut start) = (0, 0);
    let invalid = walk(file, |record| {
        if !record.is_continuation() {
            start = record.offset;
            records += 1;
        }
        (!record.is_valid()).then_some(record.offset..record.end)
    })?;
    let Some(invalid) = invalid.filter(|_| records > INITIAL_RECORDS) else { return Ok(None) };
    let is_cut_short = invalid.end > file.seek(SeekFrom::End(0))?;
    file.seek(SeekFrom::Start(invalid.start))?;
    let mut rest = io::BufReader::new(file).bytes();
    let has_content = rest.find(|byte| !matches!(byte, Ok(0))).transpose()?.is_some();
    Ok((has_content && !is_cut_short).then_some(start))
}

fn find_recycled_record_in(file: &mut impl Read) -> io::Result<Option<u64>> {
    walk(file, |record| record.is_recycled().then_some(record.offset))
}

struct Record<'a> {
    offset: u64,
    end: u64,
    checksum: u32,
    kind: u8,
    /// The type byte and the content; `None` if the record does not fit into the block.
    content: Option<&'a [u8]>,
}

/// The checksum of a type byte and the content after it. RocksDB rotates the CRC and adds a
/// constant, because content may itself contain CRCs.
fn checksum(content: &[u8]) -> u32 {
    crc32c::crc32c(content).rotate_right(15).wrapping_add(0xa282_ead8)
}

impl Record<'_> {
    fn is_valid(&self) -> bool {
        self.content.is_some_and(|content| checksum(content) == self.checksum)
    }

    /// Whether this is a later fragment of a record of several blocks.
    fn is_continuation(&self) -> bool {
        matches!(self.kind, 3 | 4)
    }

    /// Whether only recycled files have records of this type.
    fn is_recycled(&self) -> bool {
        matches!(self.kind, 5..=8 | 11 | 131)
    }
}

/// Visits the records, fragments included, until `visit` returns a value.
fn walk<T>(file: &mut impl Read, mut visit: impl FnMut(&Record<'_>) -> Option<T>) -> io::Result<Option<T>> {
    let (mut block, mut begins) = (Vec::with_capacity(MANIFEST_BLOCK_BYTES), 0);
    loop {
        block.clear();
        let read = file.by_ref().take(MANIFEST_BLOCK_BYTES as u64).read_to_end(&mut block)?;
        let mut at = 0;
        while let Some(&[a, b, c, d, low, high, kind]) = block.get(at..at + RECORD_HEADER_BYTES) {
            let length = usize::from(u16::from_le_bytes([low, high]));
            let content = block.get(at + RECORD_HEADER_BYTES - 1..at + RECORD_HEADER_BYTES + length);
            let (offset, checksum) = (begins + at as u64, u32::from_le_bytes([a, b, c, d]));
            at += RECORD_HEADER_BYTES + length;
            if let Some(answer) = visit(&Record { offset, end: begins + at as u64, checksum, kind, content }) {
                return Ok(Some(answer));
            }
            if (kind, length) == (0, 0) {
                // The rest of the block is empty.
                break;
            }
        }
        if read < MANIFEST_BLOCK_BYTES {
            return Ok(None);
        }
        begins += read as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::Directory;
    use crate::engine::Compression;
    use crate::engine::directory::marker::lock_exclusive;
    use crate::engine::rocks::{RocksOptions, RocksStorage};
    use crate::engine::storage::{Batch as _, Column, Storage as _};

    fn record(kind: u8, length: usize) -> Vec<u8> {
        let [low, high] = u16::try_from(length).unwrap().to_le_bytes();
        [&[1, 2, 3, 4, low, high, kind][..], &vec![5; length]].concat()
    }

    #[test]
    fn a_record_of_a_recycled_file_is_found_in_any_block() {
        let block = [record(1, 100), record(2, 32 * 1024 - 107 - 7)].concat();
        assert_eq!(block.len(), MANIFEST_BLOCK_BYTES);
        for kind in [5, 6, 7, 8, 11, 131] {
            let manifest = [&block[..], &record(4, 10), &record(kind, 3), &record(1, 1)].concat();
            assert_eq!(
                find_recycled_record_in(&mut &manifest[..]).unwrap(),
                Some(MANIFEST_BLOCK_BYTES as u64 + 17),
                "{kind}"
            );
        }
    }

    /// A record with a valid checksum.
    fn whole(length: usize) -> Vec<u8> {
        let mut record = record(1, length);
        let checksum = checksum(&record[6..]);
        record[..4].copy_from_slice(&checksum.to_le_bytes());
        record
    }

    fn broken(content: &[u8]) -> Option<u64> {
        find_torn_record_in(&mut io::Cursor::new(content)).unwrap()
    }

    #[test]
    fn a_record_with_missing_pages_is_torn() {
        let first = whole(100).repeat(INITIAL_RECORDS);
        let content = [&first[..], &whole(20_000), &whole(300), &whole(9_000), &whole(300)].concat();
        let (begins, last) = (first.len(), content.len() - 307);
        assert_eq!(broken(&content), None);
        for zeros in [4096..content.len(), 4096..8192, 8192..12_288, 16_384..20_480] {
            let mut torn = content.clone();
            torn[zeros.clone()].fill(0);
            assert_eq!(broken(&torn), Some(begins as u64), "{zeros:?}");
        }
        let mut torn = content.clone();
        torn[begins..last].fill(0);
        assert_eq!(broken(&torn), Some(begins as u64), "its header is missing, but not what follows");
        let mut torn = content;
        torn[begins..].fill(0);
        assert_eq!(broken(&torn), None, "RocksDB ignores zeros up to the end");
    }

    #[test]
    fn a_record_of_several_blocks_is_torn_as_a_whole() {
        let first = whole(100).repeat(INITIAL_RECORDS);
        let mut begin = whole(MANIFEST_BLOCK_BYTES - first.len() - RECORD_HEADER_BYTES);
        begin[6] = 2;
        let checksum = checksum(&begin[6..]);
        begin[..4].copy_from_slice(&checksum.to_le_bytes());
        let end = [record(4, 5000), vec![0; 5000]].concat();
        let content = [&first[..], &begin, &end[..4096], &[0; 6000]].concat();
        assert_eq!(broken(&content), Some(first.len() as u64));
    }

    /// [`INITIAL_RECORDS`] depends on the version of RocksDB.
    #[test]
    fn a_new_manifest_has_the_initial_records() {
        let directory = tempfile::tempdir().unwrap();
        let setup = RocksOptions {
            block_cache_bytes: 1 << 20,
            write_buffer_bytes: 64 << 10,
            compression: Compression::default(),
            is_disk_full: false,
        };
        let path = directory.path().join("tables");
        fs::create_dir(&path).unwrap();
        for opening in 0..3 {
            let locked = tempfile::tempdir().unwrap();
            let marker = lock_exclusive(locked.path()).unwrap().marker;
            let tables = RocksStorage::open(&Directory::open(&path).unwrap(), setup, opening == 0, marker).unwrap();
            let named = fs::read_to_string(path.join("CURRENT")).unwrap();
            let (mut columns, mut at_open, mut valid) = (Vec::new(), 0, 0);
            walk(&mut File::open(path.join(named.trim_end())).unwrap(), |record| {
                valid += usize::from(record.is_valid());
                let content = record.content.unwrap();
                if content.windows(7).any(|bytes| bytes == b"history") {
                    columns.push(at_open);
                }
                at_open += 1;
                None::<()>
            })
            .unwrap();
            assert_eq!(valid, at_open, "all checksums are valid");
            if opening > 0 {
                assert_eq!(columns, [INITIAL_RECORDS - 2], "the last initial record but one names the last column");
                assert!(at_open > INITIAL_RECORDS, "{at_open}");
            }
            let mut batch = tables.new_batch(0);
            Column::ALL.into_iter().for_each(|column| batch.put(column, b"key", &[opening; 100]));
            tables.write(batch).unwrap();
            tables.sync().unwrap();
        }
    }

    #[test]
    fn the_initial_records_are_never_torn() {
        let first = whole(100).repeat(INITIAL_RECORDS - 1);
        let mut content = [&first[..], &whole(6000)].concat();
        content[4096..].fill(0);
        assert_eq!(broken(&content), None);
    }

    #[test]
    fn truncated_and_zeroed_tails_are_left_to_rocksdb() {
        let records = [record(130, 20), record(1, 100), record(9, 3), record(10, 3)].concat();
        for length in 0..=records.len() {
            assert_eq!(find_recycled_record_in(&mut &records[..length]).unwrap(), None, "truncated at {length}");
            assert_eq!(broken(&records[..length]), None, "truncated at {length}");
            let zeros = [&records[..length], &[0; 100]].concat();
            assert_eq!(find_recycled_record_in(&mut &zeros[..]).unwrap(), None, "zeros from {length}");
        }
        // The rest of a block is too short for a header.
        let trailer = [record(1, 32 * 1024 - 7 - 3), vec![5; 3], record(1, 9)].concat();
        assert_eq!(find_recycled_record_in(&mut &trailer[..]).unwrap(), None);
    }
}
