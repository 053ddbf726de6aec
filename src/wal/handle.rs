//! The log's shared half: what is written, what is durable, and the syncs that move the one to the other.
//!
//! A sync first notes how far the log is written, then syncs the files that hold it, older first, and then that sequence is
//! durable. Noted the other way round, after the sync, it would cover frames that were written meanwhile and are not. Older
//! first because a newer segment's header and frames are of no use without the older segment's end.
//!
//! Two syncs never run at once: the second begins when the first has ended, and finds most of its work done.
//!
//! **Failing.** After a failed write or sync the content of the medium is unknown, and the kernel counts the pages as clean, so
//! that the next sync succeeds and proves nothing. So the first failure is kept, everything later fails with it, and the
//! durable sequence never moves again. The next life reads what is there, writes it once more and syncs that
//! ([`begin`](super::resume)).

use std::collections::VecDeque;
use std::io::ErrorKind;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::{fmt, io};

use super::segment::SegmentHeader;
use super::{WalError, segment};
use crate::disk::{Disk, DiskFile};
use crate::sync::Mutex;

/// A handle to the log beside its one writer; clones share the log.
pub struct WalHandle<D: Disk> {
    shared: Arc<WalShared<D>>,
}

pub(super) struct WalShared<D: Disk> {
    disk: D,
    written: AtomicU64,
    durable: AtomicU64,
    failure: OnceLock<Arc<io::Error>>,
    files: Mutex<SegmentFiles<D::File>>,
    /// Held by the one sync that runs.
    syncing: Mutex<()>,
    /// Held while the next segment's file is made.
    next: Mutex<NextSegment<D::File>>,
}

struct SegmentFiles<F> {
    /// Those that a sync has to cover, oldest first; the last is the one being written.
    unsynced: Vec<(u64, Arc<F>)>,
    /// Up to this segment headers are durable.
    synced_segment: u64,
    /// Segments before the one being written, oldest first, each with the sequence of its last frame.
    old_segments: VecDeque<(u64, u64)>,
}

struct NextSegment<F> {
    number: u64,
    file: Option<F>,
}

impl<D: Disk> Clone for WalHandle<D> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }
}

impl<D: Disk> fmt::Debug for WalHandle<D> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (written, durable) = (self.written_sequence(), self.durable_sequence());
        formatter.debug_struct("Syncer").field("written", &written).field("durable", &durable).finish()
    }
}

impl<D: Disk> WalHandle<D> {
    pub(super) fn new(shared: Arc<WalShared<D>>) -> Self {
        Self { shared }
    }

    /// The sequence up to which everything would survive a power cut.
    pub fn durable_sequence(&self) -> u64 {
        self.shared.durable()
    }

    /// The sequence up to which everything would survive the end of the process.
    pub fn written_sequence(&self) -> u64 {
        self.shared.written.load(Ordering::Acquire)
    }

    /// Makes what is written now durable, and returns the durable sequence.
    pub fn sync(&self) -> Result<u64, WalError> {
        let shared = &*self.shared;
        let _one = shared.syncing.lock();
        shared.ensure_ok()?;
        let written = self.written_sequence();
        let files = {
            let files = shared.files.lock();
            let newest = files.unsynced.last().map_or(0, |(number, _)| *number);
            if written == shared.durable() && files.synced_segment == newest {
                return Ok(written);
            }
            files.unsynced.clone()
        };
        for (_, file) in &files {
            let synced = match file.sync() {
                Err(_) if mutated!(SyncErrorIgnored) => file.sync(),
                synced => synced,
            };
            synced.map_err(|why| shared.record_failure(why))?;
        }
        shared.advance_durable(written, files.last().map_or(0, |(number, _)| *number))
    }

    /// Makes the file of the next segment ahead of the [rotation](super::WalWriter::rotate).
    pub fn preallocate_segment(&self) -> Result<(), WalError> {
        self.shared.ensure_ok()?;
        let mut next = self.shared.next.lock();
        if next.file.is_none() {
            next.file = Some(self.shared.make(next.number)?);
        }
        Ok(())
    }

    /// Removes segments that hold nothing above the position, which must be durable elsewhere; returns how many.
    ///
    /// The folder is not synced: a segment that reappears after a crash lies before what is read. A segment stays until the header
    /// of a later one is durable, else a power cut could leave none.
    pub fn remove_segments_upto(&self, position: u64) -> Result<usize, WalError> {
        self.shared.ensure_ok()?;
        let position = position.min(self.durable_sequence());
        let mut freed = 0;
        while let Some((number, last)) = self.shared.pop_removable(position) {
            match self.shared.disk.remove(&segment::segment_file_name(number)) {
                Err(why) if why.kind() != ErrorKind::NotFound => {
                    self.shared.files.lock().old_segments.push_front((number, last));
                    return Err(why.into());
                }
                _ => freed += 1,
            }
        }
        Ok(freed)
    }
}

impl<D: Disk> WalShared<D> {
    /// A log that has been written and synced up to `last`, and whose newest segment, the one with this number, is durable.
    pub(super) fn new(disk: D, last: u64, number: u64, file: Arc<D::File>, older: VecDeque<(u64, u64)>) -> Self {
        Self {
            disk,
            written: AtomicU64::new(last),
            durable: AtomicU64::new(last),
            failure: OnceLock::new(),
            files: Mutex::new(SegmentFiles {
                unsynced: vec![(number, file)],
                synced_segment: number,
                old_segments: older,
            }),
            syncing: Mutex::new(()),
            next: Mutex::new(NextSegment { number: number + 1, file: None }),
        }
    }

    pub(super) fn durable(&self) -> u64 {
        self.durable.load(Ordering::Acquire)
    }

    pub(super) fn set_written_sequence(&self, sequence: u64) {
        self.written.store(sequence, Ordering::Release);
    }

    pub(super) fn ensure_ok(&self) -> Result<(), WalError> {
        let failure = self.failure.get().filter(|_| !mutated!(AppendsAfterFailure));
        failure.map_or(Ok(()), |why| Err(WalError::Failed(Arc::clone(why))))
    }

    /// Keeps the first failure for good, and returns it.
    pub(super) fn record_failure(&self, why: io::Error) -> WalError {
        // The lock orders this before or after a sync's end, never between its check and its effect.
        let _files = self.files.lock();
        WalError::Failed(Arc::clone(self.failure.get_or_init(|| Arc::new(why))))
    }

    fn advance_durable(&self, written: u64, number: u64) -> Result<u64, WalError> {
        let mut files = self.files.lock();
        self.ensure_ok()?;
        files.unsynced.retain(|(other, _)| *other >= number);
        files.synced_segment = number;
        self.durable.store(written, Ordering::Release);
        Ok(written)
    }

    /// The next segment's file, its first step filled. The name is durable, so frames can be written to it.
    fn make(&self, number: u64) -> Result<D::File, WalError> {
        create_segment(&self.disk, number, None).map_err(|why| self.record_failure(why))
    }

    /// The next segment's number and file.
    pub(super) fn take_preallocated(&self) -> Result<(u64, Arc<D::File>), WalError> {
        let mut next = self.next.lock();
        let number = next.number;
        let file = match next.file.take() {
            Some(file) => file,
            None => self.make(number)?,
        };
        next.number += 1;
        Ok((number, Arc::new(file)))
    }

    /// The segment that was written ends with `last`; from here on this one is.
    pub(super) fn switch_segment(&self, last: u64, number: u64, file: Arc<D::File>) {
        let mut files = self.files.lock();
        if let Some((ended, _)) = files.unsynced.last() {
            let ended = *ended;
            files.old_segments.push_back((ended, last));
        }
        files.unsynced.push((number, file));
    }

    fn pop_removable(&self, position: u64) -> Option<(u64, u64)> {
        let mut files = self.files.lock();
        let covered = files.synced_segment;
        files.old_segments.front().filter(|(number, last)| *number < covered && *last <= position)?;
        files.old_segments.pop_front()
    }
}

/// Makes a segment's file, its first step filled, after the header if there is one already; all of it durable.
pub(super) fn create_segment<D: Disk>(disk: &D, number: u64, header: Option<&SegmentHeader>) -> io::Result<D::File> {
    let file = disk.create(&segment::segment_file_name(number))?;
    segment::preallocate(&file, 0, 0)?;
    if let Some(header) = header {
        file.write_at(0, &header.encode())?;
    }
    file.sync()?;
    if !mutated!(SegmentDirNotSynced) {
        disk.sync_directory()?;
    }
    Ok(file)
}
