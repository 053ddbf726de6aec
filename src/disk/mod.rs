//! The disk, as far as the log needs it: one folder of files.
//!
//! The trait names the calls whose order decides what a power cut leaves: a write, a sync of a file's content, a change to the
//! folder, a sync of the folder. Nothing else is promised between them. A write may reach the medium in part and in any order
//! until a sync of its file returns, and a name that was made, changed or removed may come back as it was until a sync of the
//! folder returns. Both hold for a whole machine only: when nothing but the process dies, the kernel has what was written.
//!
//! [`OsDisk`] is a real folder. [`SimDisk`] keeps files in memory, and a crash of it uses each of these freedoms, by
//! a number that the caller passes.

mod file;
mod sim;
mod sim_file;
#[cfg(test)]
mod tests;

use std::io;

pub use file::OsDisk;
pub use sim::{CallKind, SimDisk, SplitMix64};

/// A folder of files. Names have no separators.
pub trait Disk: Send + Sync + 'static {
    /// An open file.
    type File: DiskFile;

    /// Makes an empty file, to be written and read; fails if the name exists.
    fn create(&self, name: &str) -> io::Result<Self::File>;
    /// Opens a file to be read.
    fn open(&self, name: &str) -> io::Result<Self::File>;
    /// Opens a file to be read and written.
    fn open_writable(&self, name: &str) -> io::Result<Self::File>;
    /// The names of all files, in no order.
    fn list(&self) -> io::Result<Vec<String>>;
    /// Removes a name. Open files stay usable.
    fn remove(&self, name: &str) -> io::Result<()>;
    /// Renames a file; one that has the new name is replaced.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    /// Returns once every change to the names would survive a power cut.
    fn sync_directory(&self) -> io::Result<()>;
}

/// An open file.
pub trait DiskFile: Send + Sync + 'static {
    /// Writes all bytes at the offset; a gap between the old end and the offset reads as zeros.
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()>;
    /// Fills `into` with what is at the offset, as far as the file reaches, and returns the number of bytes.
    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<usize>;
    /// How many bytes the file has.
    fn len(&self) -> io::Result<u64>;
    /// Returns once what was written to the file, and a length that makes it readable, would survive a power cut.
    fn sync(&self) -> io::Result<()>;
}
