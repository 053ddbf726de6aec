//! The segments of a log's directory.

use std::collections::{BTreeMap, BTreeSet};

use super::error::WalError;
use super::segment::{self, FORMAT, HeaderRead, SegmentHeader};
use super::sync_record;
use crate::disk::Disk;

/// Segments in the directory.
#[derive(Debug, Default)]
pub struct SegmentList {
    pub segments: BTreeSet<u64>,
    /// Quarantined segments, with their file names.
    pub quarantined: BTreeMap<u64, String>,
    /// Whether there is a file for the sync record.
    pub has_sync_record: bool,
}

impl SegmentList {
    pub fn list<D: Disk>(disk: &D) -> Result<Self, WalError> {
        let mut names = Self::default();
        for name in disk.list()? {
            if let Some(number) = segment::parse_segment_number(&name) {
                names.segments.insert(number);
            } else if let Some(number) = segment::parse_quarantined_number(&name) {
                names.quarantined.insert(number, name);
            } else if name == sync_record::FILE_NAME {
                names.has_sync_record = true;
            }
        }
        Ok(names)
    }

    /// The greatest number of a segment, quarantined ones included; 0 if there is none.
    pub fn newest(&self) -> u64 {
        let newest = self.segments.last().copied().unwrap_or(0);
        newest.max(self.quarantined.keys().next_back().copied().unwrap_or(0))
    }

    /// The name of the file with this segment, which may be quarantined.
    pub fn file_name(&self, number: u64) -> Option<String> {
        let segment = self.segments.contains(&number).then(|| segment::segment_file_name(number));
        segment.or_else(|| self.quarantined.get(&number).cloned())
    }

    /// The valid headers, by segment number.
    pub fn headers<D: Disk>(&self, disk: &D, wal_id: u64) -> Result<BTreeMap<u64, SegmentHeader>, WalError> {
        let mut headers = BTreeMap::new();
        for number in &self.segments {
            let name = segment::segment_file_name(*number);
            match segment::read_header(&disk.open(&name)?, *number)? {
                HeaderRead::Valid(header) if header.wal_id == wal_id => _ = headers.insert(*number, header),
                HeaderRead::Valid(header) => return Err(WalError::WrongStore { file: name, wal_id: header.wal_id }),
                HeaderRead::UnsupportedFormat(format) => {
                    return Err(WalError::UnsupportedFormat { file: name, format, supported: FORMAT });
                }
                HeaderRead::Invalid | HeaderRead::Misnamed(_) => {}
            }
        }
        Ok(headers)
    }
}
