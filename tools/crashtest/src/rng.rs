//! Chance that can be repeated: every choice of a run comes from its seed.

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

/// A source of choices.
#[derive(Debug)]
pub struct SeededRng(StdRng);

impl SeededRng {
    /// The choices that belong to a seed.
    pub fn new(seed: u64) -> Self {
        Self(StdRng::seed_from_u64(seed))
    }

    /// Dice of their own for a part of the run, so that one part's throws do not shift another's.
    #[must_use]
    pub fn split(&mut self) -> Self {
        Self::new(self.bits())
    }

    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0.random()
    }

    /// A number from 0 to `limit`, without the limit; 0 if there is no other.
    pub fn below(&mut self, limit: usize) -> usize {
        if limit < 2 { 0 } else { self.0.random_range(0..limit) }
    }

    /// True once in so many throws.
    pub fn one_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }

    /// One of several.
    pub fn pick<'a, T>(&mut self, choices: &'a [T]) -> Option<&'a T> {
        choices.get(self.below(choices.len()))
    }
}
