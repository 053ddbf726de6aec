//! The log: segments that are filled with zeros ahead, so that a sync writes blocks that exist.
//!
//! A frame is a header of its length, the checksum of the rest, the sequence of its batch, and the sequence that was durable when
//! it was written; then the records of the window. A segment begins a generation of the window, and goes once that is below.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, Result};

/// A segment is made longer by so much at a time.
const STEP: u64 = 1 << 20;
/// So much is there when a segment begins.
const FIRST: u64 = 4 << 20;
/// And written by so much: one write of all makes pages of the cache that large, and the kernel goes through all blocks of such a page at
/// each write into it, which takes longer than the rest of a commit.
const PIECE: usize = 4096;
pub const HEADER: usize = 24;

/// See the [module](self).
pub struct Segment {
    pub path: PathBuf,
    pub file: Arc<File>,
    written: u64,
    filled: u64,
}

impl Segment {
    pub fn new(folder: &Path, number: u64) -> Result<Self> {
        let path = folder.join(format!("{number:09}.segment"));
        let file = File::create(&path).with_context(|| format!("cannot make {}", path.display()))?;
        let mut segment = Self { path, file: Arc::new(file), written: 0, filled: 0 };
        segment.fill(FIRST)?;
        segment.file.sync_all()?;
        File::open(folder)?.sync_all()?;
        Ok(segment)
    }

    fn fill(&mut self, to: u64) -> Result<()> {
        let zeros = [0; PIECE];
        while self.filled < to {
            let end = self.filled + STEP;
            while self.filled < end {
                self.file.write_all_at(&zeros, self.filled)?;
                self.filled += zeros.len() as u64;
            }
        }
        Ok(())
    }

    /// Writes a frame whose records follow [`HEADER`] bytes that are free.
    pub fn append(&mut self, frame: &mut [u8], sequence: u64, durable: u64) -> Result<()> {
        let length = u32::try_from(frame.len())?;
        frame[8..16].copy_from_slice(&sequence.to_le_bytes());
        frame[16..24].copy_from_slice(&durable.to_le_bytes());
        let sum = crc32c::crc32c(&frame[8..]);
        frame[..4].copy_from_slice(&length.to_le_bytes());
        frame[4..8].copy_from_slice(&sum.to_le_bytes());
        let end = self.written + frame.len() as u64;
        if end > self.filled {
            self.fill(end)?;
        }
        self.file.write_all_at(frame, self.written)?;
        self.written = end;
        Ok(())
    }

    /// Shows each whole frame, with its sequence.
    pub fn replay(path: &Path, mut see: impl FnMut(u64, Vec<u8>) -> Result<()>) -> Result<()> {
        let bytes = std::fs::read(path)?;
        let mut rest = &bytes[..];
        while let Some((header, _)) = rest.split_first_chunk::<HEADER>() {
            let length = u32::from_le_bytes(header[..4].try_into()?) as usize;
            let sum = u32::from_le_bytes(header[4..8].try_into()?);
            if length < HEADER || length > rest.len() || crc32c::crc32c(&rest[8..length]) != sum {
                break;
            }
            see(u64::from_le_bytes(header[8..16].try_into()?), rest[..length].into())?;
            rest = &rest[length..];
        }
        Ok(())
    }
}
