//! Recovery: reads the log of earlier incarnations and changes nothing.
//!
//! The newest segment with a valid header is the head of a chain. The chain is followed from each
//! segment to its predecessor, until a segment begins at or below the first sequence that the
//! tables lack. If the chain leads to a segment whose header is torn, a crash has broken the log
//! there. This chain is then given up for another one: its head is the newest segment with a valid
//! header among those older than the torn one.
//!
//! Then the frames are read, from the oldest segment of the chain on, each segment up to the end
//! that the next segment's header names. Reading stops at the *break*, the first place where no
//! valid frame follows. The break is the end of the log, unless a [durability proof beyond
//! it](super::loss_scan) makes it data loss.
//!
//! Last, the [files](super::file_check) at the end of the log and the [sync
//! record](super::sync_record) are checked: they show losses after which no frame is left to prove
//! them.
//!
//! Without damage, a break loses no acknowledged frame, and a chain that leads back far enough
//! always exists: a segment is removed only when the tables have all its frames and the header of a
//! later segment is durable.

use std::collections::BTreeMap;

use super::error::{DataLoss, WalError};
use super::file_check;
use super::file_damage::FileDamage;
use super::frame::FrameReader;
use super::loss_scan::{TailScan, scan_tail};
use super::segment::{self, HeaderRead, SegmentEnd, SegmentHeader};
use super::segment_list::SegmentList;
use super::sync_record::SyncRecord;
use crate::disk::Disk;

/// A segment that was read.
#[derive(Debug)]
pub struct RecoveredSegment {
    pub header: SegmentHeader,
    /// Where reading ended.
    pub end: SegmentEnd,
}

/// Result of [`recover`], from which [`resume`](super::resume()) continues.
#[derive(Debug)]
pub struct Recovered {
    pub(super) wal_id: u64,
    pub(super) names: SegmentList,
    /// The newest segment, if it has no valid header: a spare one, or one whose creation was
    /// interrupted.
    pub(super) spare: Option<u64>,
    pub(super) sync_record: Option<SyncRecord>,
    /// The segments that were read, oldest first. The break is in the last one.
    pub(super) segments: Vec<RecoveredSegment>,
    /// The highest sequence with a durability proof.
    pub(super) durable_sequence: u64,
    last: u64,
    lost: Option<DataLoss>,
}

/// The segments to be read, oldest first.
#[derive(Debug, Default)]
struct Chain {
    headers: Vec<SegmentHeader>,
    /// Set if a chain failed because the file of a segment is missing: the number of that segment.
    /// Set, too, if a chain's oldest segment begins after the first sequence that the tables lack,
    /// but names no predecessor: the number of that oldest segment.
    missing: Option<u64>,
}

impl Chain {
    /// Finds the newest chain that leads back to the first sequence that the tables lack. A chain
    /// fails at a segment that has no valid header, or that begins after this sequence and has no
    /// predecessor. Then the next chain is tried: its head is the newest segment with a valid
    /// header among those older than the segment at which the chain failed.
    fn find(headers: &BTreeMap<u64, SegmentHeader>, names: &SegmentList, flushed_sequence: u64) -> Self {
        let mut missing_segment = None;
        let mut bound = u64::MAX;
        while let Some((_, head)) = headers.range(..bound).next_back() {
            let mut chain = vec![*head];
            let mut oldest = *head;
            loop {
                if oldest.first_sequence <= flushed_sequence.saturating_add(1) {
                    chain.reverse();
                    return Self { headers: chain, missing: missing_segment };
                }
                let Some(before) = oldest.predecessor else {
                    missing_segment = Some(oldest.number);
                    bound = oldest.number;
                    break;
                };
                let Some(header) = headers.get(&before.number) else {
                    if !names.segments.contains(&before.number) {
                        missing_segment = Some(before.number);
                    }
                    bound = before.number;
                    break;
                };
                chain.push(*header);
                oldest = *header;
            }
        }
        Self { headers: Vec::new(), missing: missing_segment }
    }

    /// Where the segment must end for the next one to continue it; `None` for the newest.
    fn expected_end(&self, index: usize) -> Option<SegmentEnd> {
        self.headers.get(index + 1)?.predecessor
    }
}

/// Calls `apply` with each frame above the tables' flushed sequence. A log without segments is data
/// loss, unless `may_be_empty` is `true` and the flushed sequence is 0: then an interrupted
/// creation of the store can have left such a log.
///
/// A log that another process is writing can look damaged, so the caller must have locked the
/// store.
pub fn recover<D: Disk, E: From<WalError>>(
    disk: &D,
    wal_id: u64,
    flushed_sequence: u64,
    may_be_empty: bool,
    mut apply: impl FnMut(u64, &[u8]) -> Result<(), E>,
) -> Result<Recovered, E> {
    let names = SegmentList::list(disk)?;
    let headers = names.headers(disk, wal_id)?;
    let chain = Chain::find(&headers, &names, flushed_sequence);
    let mut recovered = Recovered::new(wal_id, names, flushed_sequence);
    recovered.spare = recovered.names.segments.last().copied().filter(|newest| !headers.contains_key(newest));
    for (index, header) in chain.headers.iter().enumerate() {
        let limit = chain.expected_end(index);
        recovered.replay_segment(disk, header, limit, flushed_sequence, &mut apply)?;
        let end = recovered.segments.last().map(|link| link.end);
        let continues = chain
            .headers
            .get(index + 1)
            .is_some_and(|next| Some(next.first_sequence - 1) == end.map(|end| end.last_sequence));
        if limit != end || !continues {
            break;
        }
    }
    let is_damaged = chain.missing.is_some()
        || recovered.segments.last().is_some_and(|link| link.end.last_sequence < flushed_sequence)
        || recovered.segments.is_empty() && (!may_be_empty || flushed_sequence > 0 || !headers.is_empty());
    recovered.read_sync_record(disk)?;
    recovered.detect_loss(disk, flushed_sequence, is_damaged, chain.missing)?;
    Ok(recovered)
}

/// WAL id and first sequence of the oldest segment whose header can be read.
pub fn oldest_segment<D: Disk>(disk: &D) -> Result<Option<(u64, u64)>, WalError> {
    for number in &SegmentList::list(disk)?.segments {
        if let HeaderRead::Valid(header) =
            segment::read_header(&disk.open(&segment::segment_file_name(*number))?, *number)?
        {
            return Ok(Some((header.wal_id, header.first_sequence)));
        }
    }
    Ok(None)
}

impl Recovered {
    /// A log without segments, whose next frame follows the flushed sequence.
    pub(super) fn new(wal_id: u64, names: SegmentList, flushed_sequence: u64) -> Self {
        Self {
            wal_id,
            names,
            spare: None,
            sync_record: None,
            segments: Vec::new(),
            durable_sequence: flushed_sequence,
            last: flushed_sequence,
            lost: None,
        }
    }

    /// The sequence of the last frame that was read, or the flushed sequence if that is greater.
    pub fn last_sequence(&self) -> u64 {
        self.last
    }

    /// How many segments were read.
    pub fn segment_count(&self) -> usize {
        self.segments.len()
    }

    /// Set if acknowledged frames are missing.
    pub fn data_loss(&self) -> Option<&DataLoss> {
        self.lost.as_ref()
    }

    /// The end that the new segment will name as its predecessor. Segments without frames are
    /// skipped, so that no chain needs them: if a process ended while it created its first segment,
    /// the header of that segment may not be durable, and a power cut may lose it.
    pub(super) fn log_end(&self) -> Option<SegmentEnd> {
        let filled = self.segments.iter().rev().find(|link| link.end.last_sequence >= link.header.first_sequence);
        filled.map(|link| link.end).or_else(|| self.segments.first()?.header.predecessor)
    }

    fn replay_segment<D: Disk, E: From<WalError>>(
        &mut self,
        disk: &D,
        header: &SegmentHeader,
        limit: Option<SegmentEnd>,
        flushed_sequence: u64,
        apply: &mut impl FnMut(u64, &[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let file = disk.open(&segment::segment_file_name(header.number)).map_err(WalError::from)?;
        let mut frames = FrameReader::new(&file, header.salt, limit.map(|end| end.offset)).map_err(WalError::from)?;
        let mut end = header.empty_end();
        self.durable_sequence = self.durable_sequence.max(header.durable_sequence);
        while let Some(next) = end.last_sequence.checked_add(1)
            && let Some(frame) = frames.read_at(end.offset, next..=next).map_err(WalError::from)?
        {
            self.durable_sequence = self.durable_sequence.max(frame.durable_sequence);
            (end.offset, end.last_sequence) = (frame.end, next);
            if next > flushed_sequence {
                apply(next, frame.payload())?;
            }
        }
        self.last = self.last.max(end.last_sequence);
        self.segments.push(RecoveredSegment { header: *header, end });
        Ok(())
    }

    /// Reads the sync record. Frames that it covers have a durability proof.
    fn read_sync_record<D: Disk>(&mut self, disk: &D) -> Result<(), WalError> {
        let record = SyncRecord::read(disk, self.wal_id)?;
        self.sync_record = record.filter(|record| !record.is_obsolete(self.segments.iter().map(|link| &link.header)));
        let proven = self.sync_record.map_or(0, |record| record.sequence).min(self.last);
        self.durable_sequence = self.durable_sequence.max(proven);
        Ok(())
    }

    /// Damage to the files at the end of the log that no crash leaves.
    fn find_file_damage<D: Disk>(&self, disk: &D) -> Result<Option<FileDamage>, WalError> {
        let Some(RecoveredSegment { header: last, .. }) = self.segments.last() else { return Ok(None) };
        if let Some(damage) = file_check::find_damage(disk, &self.names, last)? {
            return Ok(Some(damage));
        }
        let lost = self.sync_record.filter(|record| record.segment > last.number);
        Ok(lost.map(|record| FileDamage::HeaderLost(record.segment)))
    }

    fn detect_loss<D: Disk>(
        &mut self,
        disk: &D,
        flushed_sequence: u64,
        is_damaged: bool,
        missing_segment: Option<u64>,
    ) -> Result<(), WalError> {
        let missing = self.last.saturating_add(1);
        let broken = self.segments.last().map(|link| (&link.header, link.end));
        let mut beyond = scan_tail(disk, &self.names, broken, missing)?;
        beyond.durable = beyond.durable.max(self.sync_record.map_or(0, |record| record.sequence));
        let cause = self.find_file_damage(disk)?;
        if is_damaged || cause.is_some() || beyond.durable >= missing {
            let end = broken.map_or(SegmentEnd { number: 0, offset: 0, last_sequence: 0 }, |(_, end)| end);
            let needed = missing_segment.or(self.names.segments.first().copied()).unwrap_or(1);
            let number = if broken.is_some() { end.number } else { needed };
            self.lost = Some(DataLoss {
                segment: segment::segment_file_name(number),
                offset: end.offset,
                cause,
                first_missing: missing,
                durable_sequence: beyond.durable.max(flushed_sequence),
                intact_frames: beyond.frames,
                intact_bytes: beyond.bytes,
                fingerprint: fingerprint([self.wal_id, end.number, end.offset, missing, flushed_sequence], beyond),
            });
        }
        Ok(())
    }
}

/// The fingerprint of a loss. It does not depend on what an interrupted acceptance has renamed.
fn fingerprint(place: [u64; 5], beyond: TailScan) -> u64 {
    let mut bytes = Vec::with_capacity(64);
    for number in place.into_iter().chain([beyond.durable, beyond.frames, beyond.bytes]) {
        bytes.extend_from_slice(&number.to_le_bytes());
    }
    let low = crc32c::crc32c(&bytes);
    u64::from(crc32c::crc32c_append(!low, &bytes)) << 32 | u64::from(low)
}
