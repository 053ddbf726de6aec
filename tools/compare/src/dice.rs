//! Which rows are touched: by seed, uniform or skewed.
//!
//! The skewed ones are drawn by rank and then scattered over all rows, so that the favourites are not neighbours: that would
//! favour stores whose pages hold neighbours.

use anyhow::Result;
use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};
use rand_distr::{Distribution as _, Zipf};
use serde::{Deserialize, Serialize};

/// The exponent that YCSB uses.
const ZIPF_EXPONENT: f64 = 0.99;
/// Bytes that a compressor can do nothing about.
const NOISE_BYTES: usize = 64 << 10;
/// Odd and prime; it has no factor in common with a number of rows below it.
const SCATTER: u128 = 0x9e37_79b9_7f4a_7c55;

/// How rows are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, clap::ValueEnum)]
pub enum Skew {
    Uniform,
    /// With the exponent 0.99.
    Zipf,
}

/// Draws row numbers below a bound.
#[derive(Clone)]
pub struct Rows {
    count: u64,
    zipf: Option<Zipf<f64>>,
}

impl Rows {
    #[allow(clippy::cast_precision_loss, reason = "there are fewer rows than a float can count")]
    pub fn new(count: u64, skew: Skew) -> Result<Self> {
        let zipf = match skew {
            Skew::Uniform => None,
            Skew::Zipf => Some(Zipf::new(count as f64, ZIPF_EXPONENT)?),
        };
        Ok(Self { count, zipf })
    }

    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a rank lies between 1 and the number of rows"
    )]
    pub fn draw(&self, dice: &mut Dice) -> u64 {
        match &self.zipf {
            None => dice.below(self.count),
            Some(zipf) => scatter((zipf.sample(&mut dice.random) as u64).clamp(1, self.count) - 1, self.count),
        }
    }

    /// So many different ones, in order.
    pub fn draw_different(&self, how_many: usize, dice: &mut Dice) -> Vec<u64> {
        let mut drawn: Vec<u64> = Vec::with_capacity(how_many);
        while drawn.len() < how_many {
            let row = self.draw(dice);
            if let Err(place) = drawn.binary_search(&row) {
                drawn.insert(place, row);
            }
        }
        drawn
    }
}

/// A permutation of the numbers below `count`.
#[allow(clippy::cast_possible_truncation, reason = "a remainder of a number of 64 bits")]
fn scatter(rank: u64, count: u64) -> u64 {
    (u128::from(rank) * SCATTER % u128::from(count)) as u64
}

/// One client's chance.
pub struct Dice {
    random: SmallRng,
    noise: Vec<u8>,
}

impl Dice {
    pub fn new(seed: u64, client: u64) -> Self {
        let mut random = SmallRng::seed_from_u64(seed.wrapping_mul(1 << 20).wrapping_add(client));
        let mut noise = vec![0; NOISE_BYTES];
        random.fill(&mut noise[..]);
        Self { random, noise }
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.random.random_range(0..bound)
    }

    /// A value that begins with a number; the rest cannot be compressed.
    pub fn value(&mut self, number: u64, bytes: usize) -> Vec<u8> {
        let mut value = Vec::with_capacity(bytes.max(8));
        value.extend_from_slice(&number.to_be_bytes());
        let mut left = bytes.saturating_sub(8);
        while left > 0 {
            let some = left.min(NOISE_BYTES / 2);
            let from = self.random.random_range(0..NOISE_BYTES - some);
            value.extend_from_slice(&self.noise[from..from + some]);
            left -= some;
        }
        value
    }
}

/// A row's key: eight bytes that sort as the numbers do.
pub fn key(row: u64) -> [u8; 8] {
    row.to_be_bytes()
}

/// The number that a key or a value begins with.
pub fn number(bytes: &[u8]) -> u64 {
    bytes.first_chunk().map_or(0, |chunk| u64::from_be_bytes(*chunk))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROWS: u64 = 1000;
    const DRAWS: usize = 400_000;

    fn counts(skew: Skew) -> Vec<f64> {
        let rows = Rows::new(ROWS, skew).unwrap();
        let mut dice = Dice::new(7, 0);
        let mut counts = vec![0.0; 1000];
        (0..DRAWS).for_each(|_| counts[usize::try_from(rows.draw(&mut dice)).unwrap()] += 1.0);
        counts
    }

    #[test]
    fn a_zipf_rank_comes_as_often_as_its_weight_says() {
        let counts = counts(Skew::Zipf);
        let weights: Vec<f64> = (1..=1000).map(|rank| f64::from(rank).powf(-ZIPF_EXPONENT)).collect();
        let all: f64 = weights.iter().sum();
        for (rank, weight) in weights.iter().enumerate().take(50) {
            let place = usize::try_from(scatter(rank as u64, ROWS)).unwrap();
            let expected = weight / all * DRAWS as f64;
            assert!((counts[place] / expected - 1.0).abs() < 0.15, "rank {rank}: {} for {expected}", counts[place]);
        }
    }

    #[test]
    fn uniform_rows_come_alike() {
        let counts = counts(Skew::Uniform);
        assert!(counts.iter().all(|&count| (250.0..560.0).contains(&count)));
    }

    #[test]
    fn scattering_loses_no_row() {
        for count in [1, 10, 100, 10_000] {
            let mut all: Vec<u64> = (0..count).map(|rank| scatter(rank, count)).collect();
            all.sort_unstable();
            assert!(all.into_iter().eq(0..count));
        }
    }

    #[test]
    fn different_rows_are_different_and_in_order() {
        let rows = Rows::new(10, Skew::Zipf).unwrap();
        let drawn = rows.draw_different(10, &mut Dice::new(1, 1));
        assert!(drawn.into_iter().eq(0..10));
    }

    #[test]
    fn a_value_has_its_number_and_its_length() {
        let value = Dice::new(1, 1).value(42, 100_000);
        assert_eq!((number(&value), value.len()), (42, 100_000));
    }
}
