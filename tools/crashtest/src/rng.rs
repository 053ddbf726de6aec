//! Seeded random choices: a run can be repeated from its seed.

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

/// A random number generator with a seed.
#[derive(Debug)]
pub struct SeededRng(StdRng);

impl SeededRng {
    /// The generator of a seed.
    pub fn new(seed: u64) -> Self {
        Self(StdRng::seed_from_u64(seed))
    }

    /// An independent generator for a part of the run, so that a further choice in one part does
    /// not change the choices of other parts.
    #[must_use]
    pub fn split(&mut self) -> Self {
        Self::new(self.bits())
    }

    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0.random()
    }

    /// A number from 0 to `limit - 1`; 0 if `limit` is 0.
    pub fn below(&mut self, limit: usize) -> usize {
        if limit < 2 { 0 } else { self.0.random_range(0..limit) }
    }

    /// True with a probability of 1 in `times`.
    pub fn one_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }

    /// A random element.
    pub fn pick<'a, T>(&mut self, choices: &'a [T]) -> Option<&'a T> {
        choices.get(self.below(choices.len()))
    }
}
