//! The reserve: space on the disk with which a store on a full disk can be opened and emptied.
//!
//! To delete needs space, too: opening writes a new manifest and a new segment of the log, and a
//! deletion is a frame in it. So a store keeps the file `RESERVE`, of [`RESERVE_BYTES`], whose
//! blocks are allocated. An opening that finds less free space than that empties the file. Then
//! rows can be deleted and keyspaces dropped, and nothing can be put: otherwise a program that is
//! started again and again would fill the reserve as well. When the disk has [`ENOUGH_BYTES`]
//! again, the file is filled again, and the store is as any other. A quota is not seen in the free
//! space, so the reserve is also given up by an opening that fails for a quota, and tries once
//! more.
//!
//! A file that is not whole says that the reserve is given up, so later openings stay in this
//! state. A close puts into the file what is left: other programs could take it before the next
//! opening. A store that never had room for a reserve has no file, and opens as if there were none.
//!
//! Deletions row by row may use the reserve up. Then the store could not be opened any more, so the
//! last [`OPENING_BYTES`] are left to openings, and to the few rows that drop a keyspace; of these
//! the last [`LAST_OPENING_BYTES`] are left to openings alone. Measured in a store with a full
//! reserve: an opening takes 16 KiB for a segment and 110 KiB for RocksDB's manifest, options and
//! log of events, of which it removes the older ones; a drop and its flush take 40 KiB.
//!
//! Other writes of the log do not ask: the high-water mark of timestamps, of an opening, a close,
//! or each second and a half of commits; the safe point; and the purge of a dropped keyspace. Each
//! takes at most some 200 bytes, and the next flush gives them back.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::access::cannot;
use super::names::RESERVE;
use crate::disk::{Directory, check_own, open_own_to_change};
use crate::engine::{EngineError, SpaceLeft};
use crate::os_limits::free_bytes;
use crate::process::Process;

const RESERVE_BYTES: u64 = 1 << 20;
/// The reserve is made if this much is free.
const ENOUGH_BYTES: u64 = SpaceLeft::ENOUGH_BYTES;
/// Rows are deleted only while this much is free. The deletions that were written until then have
/// at most 640 KiB in the log, and half of it in the tables: a flush of them still fits, after a
/// drop of what else the log has.
const OPENING_BYTES: u64 = 384 << 10;
/// Drops are written only while this much is free.
const LAST_OPENING_BYTES: u64 = 160 << 10;

/// Flushes and compactions leave this much free, for the log and the manifest meanwhile.
const KEPT_BYTES: u64 = 64 << 10;

/// The reserve of a store that is open for writing.
pub struct Reserve {
    directory: Directory,
    process: Process,
    is_given_up: Arc<AtomicBool>,
}

impl Reserve {
    /// Gives the reserve up if the disk has too little space. Makes no file.
    pub fn open(directory: &Directory) -> Result<Self, EngineError> {
        let reserve = Self::check(directory)?;
        let is_too_little = match reserve.path().metadata() {
            Err(_) => false,
            Ok(file) if file.len() < RESERVE_BYTES => reserve.make().is_err_and(|error| is_out_of_space(&error)),
            Ok(_) => reserve.free_bytes() < RESERVE_BYTES,
        };
        if is_too_little {
            reserve.empty();
        }
        Ok(reserve)
    }

    /// Gives the reserve up, because there is less space than the disk has free.
    pub fn give_up(directory: &Directory) -> Result<Self, EngineError> {
        let reserve = Self::check(directory)?;
        reserve.empty();
        Ok(reserve)
    }

    fn check(directory: &Directory) -> Result<Self, EngineError> {
        let process = Process::current();
        let reserve = Self { directory: directory.clone(), process, is_given_up: Arc::default() };
        check_own(&reserve.path()).map_err(|error| cannot("open", &reserve.path(), &error))?;
        Ok(reserve)
    }

    fn empty(&self) {
        // An error is ignored: then the opening may find no space, and says so.
        let _ = self.empty_file();
        self.is_given_up.store(true, Ordering::Relaxed);
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join(RESERVE)
    }

    /// Whether the disk was full at opening and is still.
    pub fn is_given_up(&self) -> bool {
        self.is_given_up.load(Ordering::Relaxed)
    }

    /// [`is_given_up`](Self::is_given_up), for as long as the store is open.
    pub fn given_up_flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.is_given_up)
    }

    /// What the disk has space for.
    pub fn space_left(&self) -> SpaceLeft {
        match self.is_given_up() {
            false => SpaceLeft::Enough,
            true if self.free_bytes() < OPENING_BYTES => SpaceLeft::ForDrops,
            true => SpaceLeft::ForDeletions,
        }
    }

    /// Whether that much can be written to the log while there is the space that is needed.
    pub fn has_space(&self, bytes: u64, needed: SpaceLeft) -> bool {
        let kept = if needed == SpaceLeft::ForDrops { LAST_OPENING_BYTES } else { OPENING_BYTES };
        self.free_bytes() >= bytes.saturating_add(kept)
    }

    /// The free space of the disk, in bytes; the maximum if it is unknown.
    pub fn free_bytes(&self) -> u64 {
        free_bytes(self.directory.path()).unwrap_or(u64::MAX)
    }

    /// The free space that a flush or a compaction may use, which gives space back afterwards.
    pub fn usable_bytes(&self) -> u64 {
        self.free_bytes().saturating_sub(KEPT_BYTES)
    }

    /// Makes the reserve if it is not there and there is enough space. A failure is no error: the
    /// store then has no reserve.
    pub fn replenish(&self) {
        if self.file_bytes() == RESERVE_BYTES || self.make().is_ok() {
            self.is_given_up.store(false, Ordering::Relaxed);
        }
    }

    /// Makes the whole reserve if there is enough space. Quotas leave less than the disk has free,
    /// so all of that space is allocated first.
    fn make(&self) -> io::Result<()> {
        if self.free_bytes().saturating_add(self.file_bytes()) < ENOUGH_BYTES {
            return Err(ErrorKind::StorageFull.into());
        }
        self.fill(ENOUGH_BYTES)?.set_len(RESERVE_BYTES)
    }

    fn file_bytes(&self) -> u64 {
        self.path().metadata().map_or(0, |found| found.len())
    }

    fn empty_file(&self) -> io::Result<File> {
        let file = open_own_to_change(&self.path(), OpenOptions::new().create(true))?;
        file.set_len(0)?;
        Ok(file)
    }

    fn fill(&self, bytes: u64) -> io::Result<File> {
        let file = self.empty_file()?;
        allocate(&file, bytes).inspect_err(|_| _ = file.set_len(0))?;
        Ok(file)
    }
}

impl Drop for Reserve {
    fn drop(&mut self) {
        let left = self.usable_bytes().min(RESERVE_BYTES - 1);
        if self.is_given_up() && left > 0 && self.process.is_surely_current() {
            // An error is ignored: then the next opening needs free space.
            let _ = self.fill(left);
        }
    }
}

fn is_out_of_space(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded)
}

/// Allocates the blocks of the file, so that it is not sparse.
fn allocate(mut file: &File, bytes: u64) -> io::Result<()> {
    #[cfg(unix)]
    match rustix::fs::fallocate(file, rustix::fs::FallocateFlags::empty(), 0, bytes).map_err(io::Error::from) {
        Err(error) if error.kind() == ErrorKind::Unsupported => {}
        allocated => return allocated,
    }
    // A file system without `fallocate`. Not zeros, which some file systems do not store.
    let bytes = usize::try_from(bytes).map_err(io::Error::other)?;
    io::Write::write_all(&mut file, &vec![0x5a; bytes])
}
