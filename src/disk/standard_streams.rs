//! Descriptors 0 to 2.
//!
//! They are the standard streams by convention. If a program has closed one, the next file that is
//! opened gets its number, and what the program prints goes into that file. So before files are
//! opened, each of these descriptors that is free is taken by the root directory, opened for
//! reading. Writing to it fails as it does on a closed descriptor.

use std::io;

/// Takes the descriptors 0 to 2 that are free, for good.
#[cfg(unix)]
pub fn occupy_standard_streams() -> io::Result<()> {
    use std::os::fd::AsRawFd as _;

    const LAST: i32 = 2;
    loop {
        let placeholder = std::fs::File::open("/")?;
        if placeholder.as_raw_fd() > LAST {
            return Ok(());
        }
        std::mem::forget(placeholder);
    }
}

#[cfg(not(unix))]
pub fn occupy_standard_streams() -> io::Result<()> {
    Ok(())
}
