//! The segments of a log's directory.

use std::collections::{BTreeMap, BTreeSet};

use super::error::WalError;
use super::segment::{self, FORMAT, HeaderRead, SegmentHeader};
use crate::disk::Disk;

/// Segments in the directory.
#[derive(Debug, Default)]
pub struct SegmentList {
    pub segments: BTreeSet<u64>,
    /// Quarantined segments, with their file names.
    pub quarantined: BTreeMap<u64, String>,
}

impl SegmentList {
    pub fn list<D: Disk>(disk: &D) -> Result<Self, WalError> {
        let mut names = Self::default();
        for name in disk.list()? {
            if let Some(number) = segment::parse_segment_number(&name) {
                names.segments.insert(number);
            } else if let Some(number) = segment::parse_quarantined_number(&name) {
                names.quarantined.insert(number, name);
            }
        }
        Ok(names)
    }

    /// A number above those of all segments, quarantined ones included.
    pub fn next_number(&self) -> u64 {
        let newest = self.segments.last().copied().unwrap_or(0);
        let lost = self.quarantined.keys().next_back().copied().unwrap_or(0);
        newest.max(lost).saturating_add(1)
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
                HeaderRead::Invalid => {}
            }
        }
        Ok(headers)
    }
}
