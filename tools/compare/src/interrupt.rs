//! Ctrl-C and SIGTERM: the first signal sets a flag, so that the run stops and removes its
//! processes and directories. A second signal ends the program immediately.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

/// The exit code of an interrupted program.
pub const CODE: u8 = 130;

static INTERRUPTED: LazyLock<Arc<AtomicBool>> = LazyLock::new(Arc::default);

/// Installs the signal handlers.
pub fn watch() -> io::Result<()> {
    for signal in [SIGINT, SIGTERM] {
        // Handlers run in the order of their registration. The handler that ends the program if the
        // flag is set must run first, and then the one that sets the flag. In the other order the
        // first signal would already end the program.
        flag::register_conditional_shutdown(signal, i32::from(CODE), Arc::clone(&INTERRUPTED))?;
        flag::register(signal, Arc::clone(&INTERRUPTED))?;
    }
    Ok(())
}

/// Whether a signal has arrived.
pub fn interrupted() -> bool {
    INTERRUPTED.load(Ordering::SeqCst)
}
