//! The sync record: a small file, outside of all segments, that says how far the log was durable.
//!
//! ```text
//! wal/synced     "the header of segment 7 and the frames up to 4711 were durable"
//! ```
//!
//! The frames of the newest segment cannot prove that the segment itself is complete: its last
//! frames have no later one, and the whole file may be missing, cut off, or an older copy. The sync
//! record can. It is written when the log is idle, when a segment has become the newest, and when
//! the store is closed. So a log that was closed, or was idle, never loses its end unnoticed.
//!
//! **No crash makes a record wrong.** What was durable once stays durable until the tables have it.
//! So an old record is as true as a new one, and only proves less. A record is written only after
//! the sync that it describes, in place and within one sector: a power cut leaves the old one or
//! the new one. A record that cannot be read proves nothing, and costs nothing.
//!
//! **An accepted data loss ends a record.** The log then goes on, in a new segment, at a sequence
//! that the record calls durable. Without an accepted loss this cannot be: a segment after that of
//! the record begins after all frames that the record covers. So such a segment shows that the
//! record is [obsolete](SyncRecord::is_obsolete), and no write needs to remove it in time.

use std::io;

use super::segment::SegmentHeader;
use crate::disk::{Disk, DiskFile};

/// The file's name.
pub const FILE_NAME: &str = "synced";

const MAGIC: [u8; 8] = *b"percsync";
const CHECKSUMMED_BYTES: usize = 32;
const RECORD_BYTES: usize = CHECKSUMMED_BYTES + 4;

/// What was durable when the record was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SyncRecord {
    /// The newest segment whose header was durable.
    pub segment: u64,
    /// The frames up to this sequence were durable, in this segment and earlier ones.
    pub sequence: u64,
}

impl SyncRecord {
    /// The bytes of the file: magic, WAL id, segment, sequence, CRC32C of the bytes before it.
    fn encode(self, wal_id: u64) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        for number in [wal_id, self.segment, self.sequence] {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        bytes.extend_from_slice(&crc32c::crc32c(&bytes).to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8; RECORD_BYTES], wal_id: u64) -> Option<Self> {
        let number = |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| bytes[at + byte]));
        let record = Self { segment: number(16), sequence: number(24) };
        (record.encode(wal_id) == bytes).then_some(record)
    }

    /// The record in the directory; `None` if there is none, or none of this log that is valid.
    pub fn read<D: Disk>(disk: &D, wal_id: u64) -> io::Result<Option<Self>> {
        let file = match disk.open(FILE_NAME) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            file => file?,
        };
        let mut bytes = [0; RECORD_BYTES];
        file.read_at(0, &mut bytes)?;
        Ok(Self::decode(&bytes, wal_id))
    }

    /// Whether a loss was accepted after this record was written. `chain` has the segments that
    /// were read.
    pub fn is_obsolete<'a>(&self, mut chain: impl Iterator<Item = &'a SegmentHeader>) -> bool {
        chain.any(|header| header.number > self.segment && header.first_sequence <= self.sequence)
    }
}

/// The open file of the record.
pub struct SyncRecordFile<F> {
    file: F,
    wal_id: u64,
    /// The record that this incarnation has written last.
    written: Option<SyncRecord>,
}

impl<F: DiskFile> SyncRecordFile<F> {
    /// Opens the file, and creates it if it is missing. The caller syncs the directory.
    pub fn open<D: Disk<File = F>>(disk: &D, wal_id: u64, exists: bool) -> io::Result<Self> {
        let file = if exists { disk.open_writable(FILE_NAME)? } else { disk.create(FILE_NAME)? };
        Ok(Self { file, wal_id, written: None })
    }

    /// Replaces the record, durably, if it differs from the one written last.
    pub fn replace(&mut self, record: SyncRecord) -> io::Result<()> {
        if self.written == Some(record) {
            return Ok(());
        }
        self.file.write_at(0, &record.encode(self.wal_id))?;
        self.file.sync()?;
        self.written = Some(record);
        Ok(())
    }

    /// The newest segment that the record written last names; 0 if none was written.
    pub fn segment(&self) -> u64 {
        self.written.map_or(0, |record| record.segment)
    }

    /// The sequence that the record written last names; 0 if none was written.
    #[cfg(feature = "crashtest")]
    pub fn sequence(&self) -> u64 {
        self.written.map_or(0, |record| record.sequence)
    }
}
