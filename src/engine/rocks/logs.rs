//! RocksDB's logs, looked through before RocksDB reads them.
//!
//! RocksDB 11.8 does not come back from a log in which one byte is wrong: that of a record's type, if it then says that the
//! log file is a recycled one. In a log whose first record says otherwise it meets that record again and again, before it looks
//! at the checksum, and opening never ends. Its manifest is written in the same form. This store recycles no files, so the
//! record is damaged, and who opens the folder is told so.
//!
//! For that only headers are looked at, `records` says of what form. The same pass asks it which records are whole; `lost` judges the
//! answer. Where a log ends in the middle of a record, a crash has most likely cut it off, and what comes before is good.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use super::records::{BLOCK_BYTES, HEADER_BYTES, Records};
use crate::engine::EngineError;

/// A place in a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The log.
    pub file: PathBuf,
    /// Where the record begins, in bytes.
    pub offset: u64,
}

/// A log that was looked through.
pub struct Log {
    /// Where it is.
    pub file: PathBuf,
    /// Later logs have higher ones.
    pub number: u64,
    /// What is in it.
    pub records: Records,
}

/// Refuses a folder whose logs RocksDB would read for ever. The answer is all logs, oldest first.
pub fn check(folder: &Path) -> Result<Vec<Log>, EngineError> {
    let mut logs = Vec::new();
    let endless = walk(folder, |file, number, block| {
        if logs.last().is_none_or(|last: &Log| last.number != number) {
            logs.push(Log { file: file.to_owned(), number, records: Records::default() });
        }
        if let Some(last) = logs.last_mut() {
            last.records.block(block);
        }
    });
    match endless.map_err(|why| EngineError::Open(format!("cannot read the logs in {}: {why}", folder.display())))? {
        None => {
            logs.sort_by_key(|log| log.number);
            logs.iter_mut().for_each(|log| log.records.end());
            Ok(logs)
        }
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
    walk(folder, |_, _, _| ())
}

/// Which records of a log are whole.
pub fn read(log: &Path) -> io::Result<Records> {
    let mut records = Records::default();
    let mut file = File::open(log)?;
    each_block(&mut file, |_, block| {
        records.block(block);
        None::<()>
    })?;
    records.end();
    Ok(records)
}

/// Cuts off what was written ahead and not used.
pub fn cut_room(logs: &[Log]) -> io::Result<()> {
    for log in logs.iter().filter(|log| log.records.room > 0) {
        File::options().write(true).open(&log.file)?.set_len(log.records.length)?;
    }
    Ok(())
}

/// A log, of those from `oldest` on, that RocksDB would take for damaged because of its room, and leave out what comes behind it.
pub fn with_room_before_a_later_one(logs: &[Log], oldest: u64) -> Option<&Path> {
    let needed = || logs.iter().filter(|log| log.number >= oldest);
    let last = needed().rfind(|log| log.records.bytes > 0)?.number;
    let found = needed().find(|log| log.number < last && log.records.room > 0);
    found.map(|log| log.file.as_path())
}

/// The number of a log that has a name as RocksDB gives it.
pub fn number(log: &Path) -> Option<u64> {
    let is_log = log.extension().is_some_and(|end| end == "log");
    log.file_stem().filter(|_| is_log)?.to_str()?.parse().ok()
}

/// Hands each block of each log to `see`, until there is a place at which RocksDB would stay for ever.
fn walk(folder: &Path, mut see: impl FnMut(&Path, u64, &[u8])) -> io::Result<Option<Place>> {
    for entry in fs::read_dir(folder)? {
        let file = entry?.path();
        let is_manifest = file.file_name().is_some_and(|name| name.to_string_lossy().starts_with("MANIFEST-"));
        let number = number(&file);
        if !(is_manifest || number.is_some()) || !file.is_file() {
            continue;
        }
        let found = each_block(&mut File::open(&file)?, |begins, block| {
            let at = endless_in_block(block);
            if let (None, Some(number)) = (at, number) {
                see(&file, number, block);
            }
            at.map(|at| begins + at as u64)
        })?;
        if let Some(offset) = found {
            return Ok(Some(Place { file, offset }));
        }
    }
    Ok(None)
}

/// Until `see` answers.
fn each_block<T>(file: &mut impl Read, mut see: impl FnMut(u64, &[u8]) -> Option<T>) -> io::Result<Option<T>> {
    let (mut block, mut begins) = (Vec::with_capacity(BLOCK_BYTES), 0);
    loop {
        block.clear();
        let read = file.by_ref().take(BLOCK_BYTES as u64).read_to_end(&mut block)?;
        if let Some(answer) = see(begins, &block) {
            return Ok(Some(answer));
        }
        if read < BLOCK_BYTES {
            return Ok(None);
        }
        begins += read as u64;
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

    fn endless_in(mut log: &[u8]) -> io::Result<Option<u64>> {
        each_block(&mut log, |begins, block| endless_in_block(block).map(|at| begins + at as u64))
    }

    #[test]
    fn a_record_of_a_recycled_file_is_found_in_any_block() {
        let block = [record(1, 100), record(2, 32 * 1024 - 107 - 7)].concat();
        assert_eq!(block.len(), BLOCK_BYTES);
        for sort in [5, 6, 7, 8, 11, 131] {
            let log = [&block[..], &record(4, 10), &record(sort, 3), &record(1, 1)].concat();
            assert_eq!(endless_in(&log).unwrap(), Some(BLOCK_BYTES as u64 + 17), "{sort}");
        }
    }

    #[test]
    fn room_is_cut_off_to_the_byte_and_a_log_without_any_is_left() {
        let folder = tempfile::tempdir().unwrap();
        let batch = |bytes: u8| {
            let payload = vec![bytes; usize::from(bytes)];
            let sum = crc32c::crc32c(&[&[1], &payload[..]].concat()).rotate_right(15).wrapping_add(0xa282_ead8);
            [&sum.to_le_bytes()[..], &[bytes, 0, 1], &payload].concat()
        };
        let records = [batch(30), batch(90)].concat();
        for (name, behind) in [("000004.log", &[0; 5000][..]), ("000007.log", &[]), ("000009.log", &[0, 0, 3])] {
            fs::write(folder.path().join(name), [&records[..], behind].concat()).unwrap();
        }
        let logs = check(folder.path()).unwrap();
        assert_eq!(with_room_before_a_later_one(&logs, 0), Some(folder.path().join("000004.log").as_path()));
        assert_eq!(with_room_before_a_later_one(&logs, 5), None);
        cut_room(&logs).unwrap();
        let lengths = logs.iter().map(|log| log.file.metadata().unwrap().len() - records.len() as u64);
        assert_eq!(lengths.collect::<Vec<_>>(), [0, 0, 3]);
    }

    #[test]
    fn what_a_crash_leaves_is_left_to_rocksdb() {
        let whole = [record(130, 20), record(1, 100), record(9, 3), record(10, 3)].concat();
        for length in 0..=whole.len() {
            assert_eq!(endless_in(&whole[..length]).unwrap(), None, "cut off at {length}");
            let zeros = [&whole[..length], &[0; 100]].concat();
            assert_eq!(endless_in(&zeros).unwrap(), None, "zeros from {length}");
        }
        // A header does not fit into what is left of a block.
        let trailer = [record(1, 32 * 1024 - 7 - 3), vec![5; 3], record(1, 9)].concat();
        assert_eq!(endless_in(&trailer).unwrap(), None);
    }
}
