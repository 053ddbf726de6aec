//! Ctrl-C and SIGTERM: a run ends early and reports what it has done so far.
//!
//! The first signal sets a flag. Runs check the flag between two cases and while they wait for a
//! process, so everything that was set up is cleaned up as usual. An interrupted case is not
//! counted. A second signal ends the program immediately and leaves temporary files; the child
//! processes end by themselves.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

/// The exit code of an interrupted program; zero before an interrupt.
static CODE: LazyLock<Arc<AtomicUsize>> = LazyLock::new(Arc::default);

/// Installs the signal handlers.
///
/// # Errors
/// Errors of the system.
pub fn watch() -> io::Result<()> {
    let is_second = Arc::new(AtomicBool::new(false));
    for (signal, code) in [(SIGINT, 130), (SIGTERM, 143)] {
        // The shutdown is registered before the flag, so that each signal checks `is_second` before
        // it sets it. So only the second signal ends the program.
        flag::register_conditional_shutdown(signal, code, Arc::clone(&is_second))?;
        flag::register(signal, Arc::clone(&is_second))?;
        flag::register_usize(signal, Arc::clone(&CODE), usize::try_from(code).unwrap_or_default())?;
    }
    Ok(())
}

/// Whether a signal has arrived.
pub fn is_requested() -> bool {
    CODE.load(Ordering::SeqCst) != 0
}

/// The exit code of an interrupted program.
pub fn exit_code() -> Option<u8> {
    u8::try_from(CODE.load(Ordering::SeqCst)).ok().filter(|code| *code != 0)
}
