//! The shutdown of an ext4 file system, an ioctl that no crate offers safely.
#![allow(unsafe_code, reason = "the file contains only this call")]

use std::fs::File;
use std::io;

use rustix::ioctl::{Opcode, Setter, ioctl, opcode};

/// `EXT4_IOC_SHUTDOWN`.
const SHUTDOWN: Opcode = opcode::read::<u32>(b'X', 125);
/// `EXT4_GOING_FLAGS_NOLOGFLUSH`: without writing the journal.
const WITHOUT_LOG: u32 = 2;

/// Shuts the file system of an open file down, without writing its journal.
pub fn shut_down(file: &File) -> io::Result<()> {
    // SAFETY: the kernel defines this call as reading one `u32` through the pointer, which is what
    // `Setter` passes. The kernel writes nothing there, and a file system without this call returns
    // an error.
    unsafe { ioctl(file, Setter::<SHUTDOWN, u32>::new(WITHOUT_LOG)) }.map_err(io::Error::from)
}
