//! What several files of this test need.

pub mod clocks;
pub mod gate;

use std::time::{Duration, Instant};

/// For what comes about at once unless something is broken.
const LONG: Duration = Duration::from_secs(20);

/// Returns once it is true.
#[track_caller]
pub fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + LONG;
    while !is_so() {
        assert!(Instant::now() < end, "waited in vain: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}
