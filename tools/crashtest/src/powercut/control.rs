//! Control files that show whether a power cut has lost anything.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::Path;

/// The metric of lost file tails.
pub const TAILS: &str = "lost tails";
/// The metric of lost directory entries.
pub const ENTRIES: &str = "lost directory entries";

const SYNCED: &str = "control.synced";
const UNSYNCED: &str = "control.unsynced";
const BODY: &[u8] = b"synced, so it survives";
const TAIL: &[u8] = b" and this is lost";

/// What was lost.
pub struct Lost {
    /// File tails.
    pub tails: u64,
    /// Directory entries.
    pub entries: u64,
}

/// Writes two files. The first is synced before it gets its tail, the second is never synced. Must
/// be called right before the power cut: a sync of any file in between would also write the
/// directory entry of the second file, so the cut could not lose the entry.
pub fn write(disk: &Path) -> io::Result<()> {
    let mut synced = File::create_new(disk.join(SYNCED))?;
    synced.write_all(BODY)?;
    synced.sync_all()?;
    File::open(disk)?.sync_all()?;
    synced.write_all(TAIL)?;
    File::create_new(disk.join(UNSYNCED))?.write_all(TAIL)
}

/// Counts what was lost, and removes both files: a file that replaces an existing one is written
/// out when it is closed, so the next cut could not lose its tail.
pub fn count(disk: &Path) -> io::Result<Lost> {
    let body = fs::read(disk.join(SYNCED))?;
    if !body.starts_with(BODY) {
        return Err(io::Error::other("synced bytes of the control file are missing: this disk does not honour syncs"));
    }
    fs::remove_file(disk.join(SYNCED))?;
    let unsynced = disk.join(UNSYNCED);
    let there = unsynced.try_exists()?;
    if there {
        fs::remove_file(&unsynced)?;
    }
    Ok(Lost { tails: u64::from(body.len() < BODY.len() + TAIL.len()), entries: u64::from(!there) })
}
