//! The one call that no crate offers safely: ext4's shutdown.
#![allow(unsafe_code, reason = "that call is all that is in this file")]

use std::fs::File;
use std::io;

use rustix::ioctl::{Opcode, Setter, ioctl, opcode};

/// `EXT4_IOC_SHUTDOWN`.
const SHUTDOWN: Opcode = opcode::read::<u32>(b'X', 125);
/// `EXT4_GOING_FLAGS_NOLOGFLUSH`: without writing the journal.
const WITHOUT_LOG: u32 = 2;

/// Has the file system of an open file go down at once.
pub fn shut_down(file: &File) -> io::Result<()> {
    // SAFETY: the kernel defines this call as reading one `u32` behind the pointer, which is what `Setter` passes; it writes
    // nothing there, and a file system that does not know the call refuses it.
    unsafe { ioctl(file, Setter::<SHUTDOWN, u32>::new(WITHOUT_LOG)) }.map_err(io::Error::from)
}
