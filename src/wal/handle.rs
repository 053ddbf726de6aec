//! What the log's writer shares with other threads: the written and the durable sequence, and the
//! syncs that advance the durable one.
//!
//! A sync first reads the written sequence, then syncs the files that have frames up to this
//! sequence, older files first, and then publishes the sequence as durable. If the written sequence
//! were read after the sync, it would cover frames that were written during the sync and are not
//! durable. Older files come first, because a segment's header and frames are useless without the
//! end of the segment before.
//!
//! Only one sync runs at a time. A sync that has waited for another one mostly has little left to
//! do.
//!
//! **Failures.** After a failed write or sync the content of the medium is unknown. The kernel
//! marks the unwritten pages clean, so the next sync succeeds and proves nothing (PostgreSQL's
//! fsyncgate). So the first failure is permanent: every later write, sync, and creation or removal
//! of a segment returns it, and the durable sequence never rises again. The next incarnation reads
//! the frames that are left, writes them again and syncs them ([`resume`](super::resume())).

use std::collections::{BTreeMap, VecDeque};
use std::io::ErrorKind;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::{fmt, io};

use super::error::WalError;
use super::segment;
use super::segment::SegmentEnd;
use super::sync_record::{SyncRecord, SyncRecordFile};
use crate::disk::{Disk, DiskFile};
use crate::sync::Mutex;

/// A handle to the log for threads other than the writer's; clones share the log.
pub struct WalHandle<D: Disk> {
    shared: Arc<WalShared<D>>,
}

pub(super) struct WalShared<D: Disk> {
    disk: D,
    written: AtomicU64,
    durable: AtomicU64,
    failure: OnceLock<Arc<io::Error>>,
    files: Mutex<SegmentFiles<D::File>>,
    /// Serializes syncs. The lengths of older segments, as the first sync has found them.
    syncing: Mutex<BTreeMap<u64, u64>>,
    /// The segment that the next rotation begins. Stays locked while the file is created, so that
    /// only one thread creates it.
    next: Mutex<NextSegment<D::File>>,
    sync_record: Mutex<SyncRecordFile<D::File>>,
}

struct SegmentFiles<F> {
    /// Number and file of the segments that the next sync covers, oldest first; the last is the
    /// current segment.
    unsynced: Vec<(u64, Arc<F>)>,
    /// Number of the newest segment whose header is durable.
    synced_segment: u64,
    /// Number and last sequence of the segments before the current one, oldest first.
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
        formatter.debug_struct("WalHandle").field("written", &written).field("durable", &durable).finish()
    }
}

impl<D: Disk> WalHandle<D> {
    pub(super) fn new(shared: Arc<WalShared<D>>) -> Self {
        Self { shared }
    }

    /// Frames up to this sequence survive a power cut.
    pub fn durable_sequence(&self) -> u64 {
        self.shared.durable()
    }

    /// Frames up to this sequence survive the end of the process.
    pub fn written_sequence(&self) -> u64 {
        self.shared.written.load(Ordering::Acquire)
    }

    /// Makes all frames written so far durable; returns the durable sequence.
    pub fn sync(&self) -> Result<u64, WalError> {
        let shared = &*self.shared;
        let mut lengths = shared.syncing.lock();
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
            file.sync().map_err(|error| shared.record_failure(error))?;
        }
        shared.check_older_segments(&mut lengths).map_err(|error| shared.record_failure(error))?;
        shared.advance_durable(written, files.last().map_or(0, |(number, _)| *number))
    }

    /// Creates the file of the next segment ahead of the [rotation](super::WalWriter::rotate). If
    /// the disk has no space for the file, that is left to the rotation: the current segment may
    /// have room for more frames, as for deletions that free space.
    pub fn preallocate_segment(&self) -> Result<(), WalError> {
        let shared = &*self.shared;
        shared.ensure_ok()?;
        let mut next = shared.next.lock();
        if next.file.is_some() {
            return Ok(());
        }
        match create_segment(&shared.disk, next.number) {
            Ok(file) => next.file = Some(file),
            Err(error) if is_out_of_space(&error) => remove_if_exists(&shared.disk, next.number)?,
            Err(error) => return Err(shared.record_failure(error)),
        }
        Ok(())
    }

    /// Writes into the [sync record](super::sync_record) what is durable now, if the log is idle or
    /// if the record names an older segment. Without this record, damage to the end of the log
    /// passes for a torn tail.
    pub fn write_sync_record(&self, is_idle: bool) -> Result<(), WalError> {
        let shared = &*self.shared;
        let mut file = shared.sync_record.lock();
        shared.ensure_ok()?;
        let record = {
            let files = shared.files.lock();
            SyncRecord { segment: files.synced_segment, sequence: shared.durable() }
        };
        if !is_idle && file.segment() == record.segment {
            return Ok(());
        }
        file.replace(record).map_err(|error| shared.record_failure(error))
    }

    /// The number of durable frames that the sync record does not cover.
    #[cfg(feature = "crashtest")]
    pub fn unrecorded_frames(&self) -> u64 {
        self.durable_sequence().saturating_sub(self.shared.sync_record.lock().sequence())
    }

    /// Removes each segment that has no frames above the flushed sequence and is older than the
    /// newest segment with a durable header. That newest segment stays, because without it a power
    /// cut could leave no header at all. Returns how many segments were removed. The tables must
    /// durably have everything up to the flushed sequence.
    ///
    /// The directory is not synced: a removed segment that reappears after a crash does no harm,
    /// because it is older than all that recovery reads.
    pub fn remove_segments_upto(&self, flushed_sequence: u64) -> Result<usize, WalError> {
        self.shared.ensure_ok()?;
        let flushed_sequence = flushed_sequence.min(self.durable_sequence());
        let mut removed = 0;
        while let Some((number, last)) = self.shared.pop_removable(flushed_sequence) {
            match self.shared.disk.remove(&segment::segment_file_name(number)) {
                Err(error) if error.kind() != ErrorKind::NotFound => {
                    self.shared.files.lock().old_segments.push_front((number, last));
                    return Err(error.into());
                }
                _ => removed += 1,
            }
        }
        Ok(removed)
    }
}

impl<D: Disk> WalShared<D> {
    /// A log that is written and durable up to this end, in its newest segment.
    pub(super) fn new(
        disk: D,
        SegmentEnd { number, last_sequence: last, .. }: SegmentEnd,
        file: Arc<D::File>,
        older: VecDeque<(u64, u64)>,
        sync_record: SyncRecordFile<D::File>,
    ) -> Self {
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
            syncing: Mutex::default(),
            next: Mutex::new(NextSegment { number: number + 1, file: None }),
            sync_record: Mutex::new(sync_record),
        }
    }

    pub(super) fn preallocation_step(&self) -> u64 {
        self.disk.preallocation_step()
    }

    pub(super) fn durable(&self) -> u64 {
        self.durable.load(Ordering::Acquire)
    }

    pub(super) fn set_written_sequence(&self, sequence: u64) {
        self.written.store(sequence, Ordering::Release);
    }

    pub(super) fn ensure_ok(&self) -> Result<(), WalError> {
        self.failure.get().map_or(Ok(()), |error| Err(WalError::Failed(Arc::clone(error))))
    }

    /// Fails if an older segment that recovery would read was removed by something else, or is
    /// shorter than at the first check.
    fn check_older_segments(&self, lengths: &mut BTreeMap<u64, u64>) -> io::Result<()> {
        let Some(directory) = self.disk.names_to_check() else { return Ok(()) };
        let listed: Vec<u64> = self.files.lock().old_segments.iter().map(|(number, _)| *number).collect();
        lengths.retain(|number, _| listed.contains(number));
        for number in &listed {
            let name = segment::segment_file_name(*number);
            let lost = match directory.length_of(&name)? {
                Some(found) if found >= *lengths.entry(*number).or_insert(found) => continue,
                Some(_) => "truncated",
                None => "removed",
            };
            // This store takes a segment from the list before it removes the file.
            if self.files.lock().old_segments.iter().any(|(other, _)| other == number) {
                let text = format!("the segment {name} was {lost} while the store was open");
                return Err(io::Error::new(ErrorKind::NotFound, text));
            }
        }
        Ok(())
    }

    /// Keeps the first failure permanently, and returns it.
    pub(super) fn record_failure(&self, error: io::Error) -> WalError {
        // `advance_durable` keeps `files` locked from its check for a failure until it has
        // published the durable sequence, so no failure is recorded in between.
        let _files = self.files.lock();
        WalError::Failed(Arc::clone(self.failure.get_or_init(|| Arc::new(error))))
    }

    fn advance_durable(&self, written: u64, number: u64) -> Result<u64, WalError> {
        let mut files = self.files.lock();
        self.ensure_ok()?;
        files.unsynced.retain(|(other, _)| *other >= number);
        files.synced_segment = number;
        self.durable.store(written, Ordering::Release);
        Ok(written)
    }

    /// Creates a segment's file and makes its name durable, so that frames may be written to the
    /// file.
    fn make(&self, number: u64) -> Result<D::File, WalError> {
        create_segment(&self.disk, number).map_err(|error| self.record_failure(error))
    }

    /// Number and file of the next segment; creates the file if none is preallocated.
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

    /// Makes `file` the current segment; the segment before ends with sequence `last`.
    pub(super) fn switch_segment(&self, last: u64, number: u64, file: Arc<D::File>) {
        let mut files = self.files.lock();
        // A segment that is not listed would never be removed.
        let Some(ended) = files.unsynced.last().map(|(ended, _)| *ended) else {
            unreachable!("invariant: the current segment is in the list of those that may need a sync")
        };
        files.old_segments.push_back((ended, last));
        files.unsynced.push((number, file));
    }

    fn pop_removable(&self, flushed_sequence: u64) -> Option<(u64, u64)> {
        let mut files = self.files.lock();
        let synced = files.synced_segment;
        files.old_segments.front().filter(|(number, last)| *number < synced && *last <= flushed_sequence)?;
        files.old_segments.pop_front()
    }
}

/// Creates a segment's file and preallocates the first step. All that is made here is durable when
/// the function returns; only then may the header be written.
pub(super) fn create_segment<D: Disk>(disk: &D, number: u64) -> io::Result<D::File> {
    let file = disk.create(&segment::segment_file_name(number))?;
    segment::preallocate(&file, disk.preallocation_step(), 0, 0)?;
    file.sync()?;
    disk.sync_directory()?;
    Ok(file)
}

fn is_out_of_space(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded)
}

fn remove_if_exists<D: Disk>(disk: &D, number: u64) -> io::Result<()> {
    match disk.remove(&segment::segment_file_name(number)) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
