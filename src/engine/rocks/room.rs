//! Room in the log, written ahead: a sync of bytes that lie within it takes two thirds of the time.
//!
//! When a file has grown, a sync has to write more than its bytes: the file system's journal must say how long the file is and
//! where its new blocks are. Within blocks that were written before there is nothing to say. So where syncs are many and small,
//! which is what durable commits of several clients make, zeros are written behind the records, [`STEP_BYTES`] at a time, and RocksDB
//! writes its records over them. Reserving blocks (`fallocate`) does not do: a reserved block becomes a written one in the journal, too.
//!
//! ```text
//!   log   │ record │ record │ record │ 0 0 0 0 0 0 0 0 0 0 0 0 0 │
//!                                    ▲ RocksDB writes here       ▲ the file ends, the next zeros begin
//! ```
//!
//! - **Nothing is written over.** Zeros are appended: the kernel puts them behind the file's end, wherever that is at that moment. RocksDB
//!   writes a log from its beginning to its end, at a place that it knows by itself, which is never behind the file's.
//! - **Which log it is** RocksDB does not tell. It is the newest, until a record is not found where it should be; then it is looked for
//!   again. Where records lie is known, because of a batch's length it is known how it is put into blocks. Both can be
//!   wrong without harm: the zeros are of no use then, and that is all.
//! - **What is left of the room** RocksDB cuts off when it closes a log, as it does with the blocks that it has reserved itself. After a crash `logs` tells the room from the records, and
//!   whoever opens the store for writing cuts it off first: RocksDB would take it for damage in a log that another one follows. What can lie
//!   behind a hole there, after a power cut, is what `lost` says of any hole.
//!
//! A room that cannot be written is no failure: syncs are slow then, as they would be without, and no other is tried in this life of the store.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Mutex, MutexGuard};

use super::logs;
use super::records::{BLOCK_BYTES, HEADER_BYTES};

/// How much is written ahead at a time. The next sync takes these along.
// Tests of crashes write little, and are to meet all this often.
const STEP_BYTES: usize = if cfg!(feature = "crashtest") { 8 << 10 } else { 256 << 10 };
/// With less room than this there is more made.
const LOW_BYTES: u64 = STEP_BYTES as u64 / 16;
/// Whoever syncs more than this at a time, in the mean, gains little.
const SYNC_MAX_BYTES: u64 = if cfg!(feature = "crashtest") { 1 << 40 } else { 16 << 10 };
/// So many syncs show how it is.
const SYNCS_MIN: u64 = if cfg!(feature = "crashtest") { 1 } else { 8 };

static ZEROS: [u8; STEP_BYTES] = [0; STEP_BYTES];

/// See the [module](self).
pub struct Room {
    folder: PathBuf,
    /// Since it was last asked whether they are small.
    syncs: AtomicU64,
    log: Mutex<Writing>,
}

#[derive(Default)]
struct Writing {
    /// Bytes since the same moment.
    written: u64,
    /// As far as it is known.
    log: Option<Log>,
    has_failed: bool,
}

struct Log {
    file: PathBuf,
    /// Where the last batch begins, and where the next one does.
    last: u64,
    next: u64,
    /// Where the room ends.
    end: u64,
}

/// The right to write to the log, for one at a time: so what is known of it stays true.
pub struct Turn<'a> {
    room: &'a Room,
    writing: MutexGuard<'a, Writing>,
}

impl Room {
    /// For the logs in a folder.
    pub fn new(folder: &Path) -> Self {
        Self { folder: folder.to_owned(), syncs: AtomicU64::new(0), log: Mutex::default() }
    }

    /// To be held during every write.
    pub fn turn(&self) -> Turn<'_> {
        Turn { room: self, writing: self.log.lock() }
    }

    /// The log was synced.
    pub fn synced(&self) {
        self.syncs.fetch_add(1, Ordering::Relaxed);
    }
}

impl Turn<'_> {
    /// A batch of so many bytes was written.
    pub fn wrote(mut self, bytes: usize) {
        let Writing { written, log, has_failed } = &mut *self.writing;
        *written += bytes as u64;
        if let Some(log) = log {
            log.add(bytes);
            if log.next + LOW_BYTES <= log.end {
                return;
            }
        }
        if self.room.syncs.load(Ordering::Relaxed) < SYNCS_MIN {
            return;
        }
        let syncs = self.room.syncs.swap(0, Ordering::Relaxed);
        let mean = std::mem::take(written) / syncs.max(1);
        if mean <= SYNC_MAX_BYTES && !*has_failed {
            let known = log.take().filter(|log| log.is_written().unwrap_or(false));
            *log = make_room(known, &self.room.folder).ok();
            *has_failed = log.is_none();
            crash_point!(RoomMade if log.is_some());
        }
    }
}

fn make_room(known: Option<Log>, folder: &Path) -> io::Result<Log> {
    let mut log = match known {
        Some(log) => log,
        None => newest(folder)?,
    };
    let mut file = if mutated!(RoomOverRecords) {
        let mut file = OpenOptions::new().write(true).open(&log.file)?;
        file.seek(SeekFrom::End(-64))?;
        file
    } else {
        OpenOptions::new().append(true).open(&log.file)?
    };
    file.write_all(&ZEROS)?;
    log.end = file.stream_position()?;
    Ok(log)
}

/// The log that RocksDB writes. Where that has no room yet, the next record comes at its end.
fn newest(folder: &Path) -> io::Result<Log> {
    let newest = std::fs::read_dir(folder)?
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .filter_map(|file| Some((logs::number(&file)?, file)))
        .max();
    let (_, file) = newest.ok_or(ErrorKind::NotFound)?;
    let next = file.metadata()?.len();
    Ok(Log { file, last: next, next, end: next })
}

impl Log {
    /// As RocksDB puts a batch into blocks.
    fn add(&mut self, mut bytes: usize) {
        self.last = fits(self.next);
        loop {
            self.next = fits(self.next);
            let part = bytes.min(left(self.next) - HEADER_BYTES);
            self.next += (HEADER_BYTES + part) as u64;
            bytes -= part;
            if bytes == 0 {
                return;
            }
        }
    }

    /// Whether the last batch is where it should be.
    fn is_written(&self) -> io::Result<bool> {
        let mut file = File::open(&self.file)?;
        file.seek(SeekFrom::Start(self.last))?;
        let mut header = [0; HEADER_BYTES];
        file.read_exact(&mut header)?;
        Ok(header.last().is_some_and(|sort| *sort != 0))
    }
}

/// How much of its block is left.
fn left(at: u64) -> usize {
    let within = usize::try_from(at % BLOCK_BYTES as u64).unwrap_or_default();
    BLOCK_BYTES - within
}

/// The first place from here on where a header fits into its block.
fn fits(at: u64) -> u64 {
    let left = left(at);
    if left < HEADER_BYTES { at + left as u64 } else { at }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::{RocksSetup, RocksStorage};
    use super::*;
    use crate::engine::Compression;
    use crate::engine::storage::{Batch as _, Column, Storage as _};

    const SETUP: RocksSetup = RocksSetup { cache: 1 << 20, write_buffers: 64 << 20, compression: Compression::None };

    /// What a batch of one long value takes besides it: its head, sort and column, the lengths and the key.
    const BATCH_BYTES: usize = 12 + 2 + 1 + 3 + 2;

    fn put(storage: &RocksStorage, bytes: usize) {
        let mut batch = storage.batch(bytes);
        batch.put(Column::Data, b"key", &vec![7; bytes]);
        storage.write(batch).unwrap();
        storage.sync().unwrap();
    }

    /// The log, where the next record is expected, and where the room ends.
    fn known(storage: &RocksStorage) -> Option<(PathBuf, u64, u64)> {
        let writing = storage.room.log.lock();
        writing.log.as_ref().map(|log| (log.file.clone(), log.next, log.end))
    }

    #[test]
    fn records_lie_where_they_are_expected_and_within_the_room() {
        let folder = tempfile::tempdir().unwrap();
        let storage = RocksStorage::open(folder.path(), SETUP).unwrap();
        let (mut within, mut ends) = (0, BTreeSet::new());
        for n in 0..2500_usize {
            // Now and then more than a block.
            let mut bytes = if n % 97 == 0 { 40_000 + n } else { 100 + n * 37 % 700 };
            if let Some((_, next, _)) = known(&storage)
                && left(next) > 300
                && left(next) < 1000
            {
                // So that from none to nine bytes of the block are left, too few for a header or just enough.
                bytes = left(next) - BATCH_BYTES - HEADER_BYTES - n % 10;
                ends.insert(n % 10);
            }
            put(&storage, bytes);
            if let Some((file, next, end)) = known(&storage) {
                let records = logs::read(&file).unwrap();
                assert_eq!((records.length, records.stop), (next, None), "after {n}");
                assert_eq!(file.metadata().unwrap().len(), end.max(next), "after {n}");
                within += usize::from(next <= end);
            }
        }
        assert!(within > 2400 && ends.len() == 10, "{within} {ends:?}");
    }

    #[test]
    fn a_log_that_was_begun_meanwhile_is_found_and_gets_the_room() {
        let folder = tempfile::tempdir().unwrap();
        let storage = RocksStorage::open(folder.path(), SETUP).unwrap();
        let mut logs = Vec::new();
        for _ in 0..3 {
            (0..1000).for_each(|_| put(&storage, 500));
            let (file, next, end) = known(&storage).unwrap();
            assert!(next <= end && !logs.contains(&file), "{} {next} {end}", file.display());
            logs.push(file);
            // Begins a new one.
            storage.database.borrow_owner().db.flush_cf(storage.database.borrow_dependent().data).unwrap();
        }
    }

    #[test]
    fn room_that_cannot_be_made_is_no_failure_and_not_tried_again() {
        let folder = tempfile::tempdir().unwrap();
        let elsewhere = Room::new(&folder.path().join("nowhere"));
        for _ in 0..100 {
            elsewhere.synced();
            elsewhere.turn().wrote(100);
        }
        let writing = elsewhere.log.lock();
        assert!(writing.log.is_none() && writing.has_failed);
    }
}
