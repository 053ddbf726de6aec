//! The wait before another attempt, in the optimistic stores, whose own interfaces have none.
//!
//! Their documentation says to begin again and not when. At once is far too soon where a commit that is being synced
//! counts as a conflict, as in surrealkv; DESIGN.md has what the waits brought. percolite, which has its own way of waiting,
//! and the stores with one writer do not come here.

use std::time::Duration;

use rand::RngExt as _;

const FIRST: Duration = Duration::from_micros(100);
const DOUBLINGS: u32 = 5;

#[derive(Default)]
pub struct Backoff {
    attempts: u32,
}

impl Backoff {
    /// Between half and the whole of a time that doubles with each attempt.
    pub fn wait(&mut self) {
        let most = FIRST * (1 << self.attempts.min(DOUBLINGS));
        self.attempts += 1;
        std::thread::sleep(most.mul_f64(rand::rng().random_range(0.5..1.0)));
    }
}
