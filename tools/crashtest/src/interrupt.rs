//! Ctrl-C and SIGTERM: a run ends early, with everything that it has seen so far.
//!
//! The first signal is only noted. Runs ask between two cases, and whoever waits for a process asks meanwhile; a case that is
//! cut short says nothing and is not counted. So whatever was put up is taken down as after any other run. A second signal ends
//! the program at once and leaves what is there; its children end by themselves.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

/// The exit code of an interrupted program; none was, while it is zero.
static CODE: LazyLock<Arc<AtomicUsize>> = LazyLock::new(Arc::default);

/// Has signals noted from now on, instead of ending the program.
///
/// # Errors
/// The system refuses.
pub fn watch() -> io::Result<()> {
    let is_second = Arc::new(AtomicBool::new(false));
    for (signal, code) in [(SIGINT, 130), (SIGTERM, 143)] {
        // In this order: what the first signal sets is for the second to find.
        flag::register_conditional_shutdown(signal, code, Arc::clone(&is_second))?;
        flag::register(signal, Arc::clone(&is_second))?;
        flag::register_usize(signal, Arc::clone(&CODE), usize::try_from(code).unwrap_or_default())?;
    }
    Ok(())
}

/// Whether one came.
pub fn is_requested() -> bool {
    CODE.load(Ordering::SeqCst) != 0
}

/// With which code the program ends, if one came.
pub fn exit_code() -> Option<u8> {
    u8::try_from(CODE.load(Ordering::SeqCst)).ok().filter(|code| *code != 0)
}
