//! The disk as the log uses it: one directory of files.
//!
//! [`Disk`] and [`DiskFile`] have the calls whose order decides what a power cut leaves: writes,
//! syncs of a file's content, changes to the directory, and syncs of the directory. Only the two
//! kinds of sync give guarantees.
//!
//! A write may reach the medium in part and in any order until a sync of its file returns. A name
//! that was created, renamed or removed may revert until a sync of the directory returns. Writes
//! and names are lost only if the whole machine fails: if just the process ends, the kernel still
//! has everything that was written.
//!
//! [`OsDisk`] is a real [`Directory`]. [`SimDisk`] keeps files in memory. Its simulated crash can
//! lose unsynced writes and changes of names, in part and in any order; the caller decides which,
//! by a seed or one by one.

mod check_interval;
mod directory;
mod file;
mod named_file;
mod own_file;
mod sim;
mod sim_file;
mod standard_streams;
#[cfg(test)]
mod tests;

use std::io;

#[cfg(feature = "rocks")]
pub use check_interval::CheckInterval;
pub use directory::{Directory, readable, shown};
pub use file::OsDisk;
pub use named_file::truncated_error;
#[cfg(feature = "rocks")]
pub use own_file::{check_own, check_regular, open_own, open_own_to_change, open_own_with, replace_own};
pub use sim::{CallKind, SimDisk};
pub use standard_streams::occupy_standard_streams;

use crate::tunables::{PREALLOCATION_STEP, PREALLOCATION_STEP_ON_FULL_DISK};

/// A directory of files. Names have no separators.
pub trait Disk: Send + Sync + 'static {
    /// An open file.
    type File: DiskFile;

    /// Creates an empty file for reading and writing; fails if the name exists.
    fn create(&self, name: &str) -> io::Result<Self::File>;
    /// Opens a file for reading.
    fn open(&self, name: &str) -> io::Result<Self::File>;
    /// Opens a file for reading and writing.
    fn open_writable(&self, name: &str) -> io::Result<Self::File>;
    /// The names of all files, in no order.
    fn list(&self) -> io::Result<Vec<String>>;
    /// Removes a name. Open files stay usable.
    fn remove(&self, name: &str) -> io::Result<()>;
    /// Renames a file; replaces one that has the new name.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    /// Returns once every earlier change to the names would survive a power cut.
    fn sync_directory(&self) -> io::Result<()>;
    /// The directory, if its names are to be looked at now: other processes can change them.
    fn names_to_check(&self) -> Option<&Directory> {
        None
    }
    /// Whether the disk was full when the store was opened; always the same.
    fn is_full(&self) -> bool {
        false
    }
    /// A segment of the log is preallocated in steps of this many bytes.
    fn preallocation_step(&self) -> u64 {
        if self.is_full() { PREALLOCATION_STEP_ON_FULL_DISK as u64 } else { PREALLOCATION_STEP as u64 }
    }
}

/// An open file.
pub trait DiskFile: Send + Sync + 'static {
    /// Writes all bytes at the offset; a gap between the old end and the offset reads as zeros.
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()>;
    /// Reads at the offset until `into` is full or the file ends; returns the number of bytes.
    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<usize>;
    /// The file's length in bytes.
    fn len(&self) -> io::Result<u64>;
    /// Returns once all earlier writes to the file would survive a power cut, with a file length
    /// that includes them.
    fn sync(&self) -> io::Result<()>;
}
