//! Ctrl-C and SIGTERM: noted, so that what was put up is taken down. A second one ends the program at once.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

/// The exit code of a program that was interrupted.
pub const CODE: u8 = 130;

static CAME: LazyLock<Arc<AtomicBool>> = LazyLock::new(Arc::default);

/// Has signals noted from now on.
pub fn watch() -> io::Result<()> {
    for signal in [SIGINT, SIGTERM] {
        // In this order: what the first signal sets is for the second to find.
        flag::register_conditional_shutdown(signal, i32::from(CODE), Arc::clone(&CAME))?;
        flag::register(signal, Arc::clone(&CAME))?;
    }
    Ok(())
}

pub fn came() -> bool {
    CAME.load(Ordering::SeqCst)
}
