//! The limit of file size (`ulimit -f`), checked before an opening for writing.
//!
//! A write beyond it sends the signal `SIGXFSZ`. A process that ignores the signal, or has a
//! handler for it, gets an error from the write, and the store a failure that says so. Any other
//! process ends at once. So there an opening asks for a limit that no file of a store reaches: the
//! largest are tables of 64 MiB, the log's segments, and the manifest.

use crate::engine::EngineError;
use crate::os_limits::file_size_limit;

/// The largest table or manifest, with room for what RocksDB adds to it.
const FILE_BYTES_MAX: u64 = 128 << 20;

/// Fails if a file of a store with these write buffers may reach a limit at which the process ends.
pub fn check_file_size_limit(write_buffer_bytes: usize) -> Result<(), EngineError> {
    let least = FILE_BYTES_MAX.saturating_add(write_buffer_bytes as u64);
    match file_size_limit() {
        Some(limit) if limit < least && !is_signal_handled() => Err(EngineError::Io(format!(
            "this process may write files of {} KiB, and a larger one of a store would end it (SIGXFSZ): raise the \
             limit to {} KiB (ulimit -f, LimitFSIZE), or ignore the signal",
            limit >> 10,
            least.div_ceil(1 << 10)
        ))),
        _ => Ok(()),
    }
}

/// Whether the process ignores `SIGXFSZ` or has a handler for it. Where this cannot be seen, it is
/// taken to be so.
fn is_signal_handled() -> bool {
    // Without `/proc` the limit is not checked.
    std::fs::read_to_string("/proc/self/status").map_or(true, |status| is_handled_in(&status))
}

fn is_handled_in(status: &str) -> bool {
    const SIGXFSZ: u32 = 25;
    let has_signal = |field: &str| {
        let mask = status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
        mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
            .is_none_or(|mask| mask >> (SIGXFSZ - 1) & 1 == 1)
    };
    has_signal("SigIgn") || has_signal("SigCgt")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_signal_is_found_in_the_masks() {
        let status =
            |ignored: u64, caught: u64| format!("SigBlk:\t0\nSigIgn:\t{ignored:016x}\nSigCgt:\t{caught:016x}\n");
        let signal = 1 << 24;
        assert!(!is_handled_in(&status(!signal, !signal)));
        assert!(is_handled_in(&status(signal, 0)));
        assert!(is_handled_in(&status(0, signal)));
        assert!(is_handled_in("no such field"));
    }
}
