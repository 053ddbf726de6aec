//! The backoff before a retry, for the optimistic stores, which have none of their own.
//!
//! The documentation of these stores advises a retry, but states no time to wait before it. In
//! surrealkv, for example, a transaction conflicts with a commit that is still being synced, so an
//! immediate retry is far too early; benches/RESULTS.md has the measurements. percolite has its own
//! backoff, and the stores with one writer need none.

use std::time::Duration;

use rand::RngExt as _;

const FIRST: Duration = Duration::from_micros(100);
const DOUBLINGS: u32 = 5;

#[derive(Default)]
pub struct Backoff {
    attempts: u32,
}

impl Backoff {
    /// Sleeps for 50 to 100 % of a time that is `FIRST` at the first retry and doubles with each of
    /// the next `DOUBLINGS` retries.
    pub fn wait(&mut self) {
        let most = FIRST * (1 << self.attempts.min(DOUBLINGS));
        self.attempts += 1;
        std::thread::sleep(most.mul_f64(rand::rng().random_range(0.5..1.0)));
    }
}
