//! Random rows and values, by seed: uniform or skewed, as YCSB's generators.
//!
//! A skewed row is drawn by its rank in the zipf distribution, and ranks are scattered over all
//! rows. Otherwise the most frequent rows would be neighbours, which would favour stores whose
//! pages hold neighbouring rows.

use anyhow::Result;
use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};
use rand_distr::{Distribution as _, Zipf};
use serde::{Deserialize, Serialize};

/// The exponent that YCSB uses.
const ZIPF_EXPONENT: f64 = 0.99;
/// The size of the random bytes from which values are cut.
const INCOMPRESSIBLE_BYTES: usize = 64 << 10;
/// The multiplier of `scatter`: a prime above any number of rows, so different ranks get different
/// rows.
const SCATTER: u128 = 0x9e37_79b9_7f4a_7c55;

/// The distribution of rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, clap::ValueEnum)]
pub enum Skew {
    Uniform,
    /// Zipf with the exponent 0.99.
    Zipf,
}

/// Draws row numbers below `count`.
#[derive(Clone)]
pub struct RowChooser {
    count: u64,
    zipf: Option<Zipf<f64>>,
}

impl RowChooser {
    #[allow(clippy::cast_precision_loss, reason = "the number of rows is below 2^53")]
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
        reason = "a rank is between 1 and the number of rows"
    )]
    pub fn draw(&self, rng: &mut Rng) -> u64 {
        match &self.zipf {
            None => rng.below(self.count),
            Some(zipf) => scatter((zipf.sample(&mut rng.rng) as u64).clamp(1, self.count) - 1, self.count),
        }
    }

    /// `count` different rows, in ascending order.
    pub fn draw_different(&self, count: usize, rng: &mut Rng) -> Vec<u64> {
        let mut drawn: Vec<u64> = Vec::with_capacity(count);
        while drawn.len() < count {
            let row = self.draw(rng);
            if let Err(place) = drawn.binary_search(&row) {
                drawn.insert(place, row);
            }
        }
        drawn
    }
}

/// A permutation of the numbers below `count`.
#[allow(clippy::cast_possible_truncation, reason = "a remainder of a 64-bit number")]
fn scatter(rank: u64, count: u64) -> u64 {
    (u128::from(rank) * SCATTER % u128::from(count)) as u64
}

/// The random numbers and values of one client.
pub struct Rng {
    rng: SmallRng,
    incompressible: Vec<u8>,
}

impl Rng {
    pub fn new(seed: u64, client: u64) -> Self {
        let mut rng = SmallRng::seed_from_u64(seed.wrapping_mul(1 << 20).wrapping_add(client));
        let mut incompressible = vec![0; INCOMPRESSIBLE_BYTES];
        rng.fill(&mut incompressible[..]);
        Self { rng, incompressible }
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.rng.random_range(0..bound)
    }

    /// A value that starts with `number`; the rest is incompressible.
    pub fn value(&mut self, number: u64, bytes: usize) -> Vec<u8> {
        let mut value = Vec::with_capacity(bytes.max(8));
        value.extend_from_slice(&number.to_be_bytes());
        let mut remaining = bytes.saturating_sub(8);
        while remaining > 0 {
            let some = remaining.min(INCOMPRESSIBLE_BYTES / 2);
            let from = self.rng.random_range(0..INCOMPRESSIBLE_BYTES - some);
            value.extend_from_slice(&self.incompressible[from..from + some]);
            remaining -= some;
        }
        value
    }
}

/// The key of a row: eight bytes that sort as the numbers.
pub fn key(row: u64) -> [u8; 8] {
    row.to_be_bytes()
}

/// The number at the start of a key or a value.
pub fn number(bytes: &[u8]) -> u64 {
    bytes.first_chunk().map_or(0, |chunk| u64::from_be_bytes(*chunk))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROWS: u64 = 1000;
    const DRAWS: usize = 400_000;

    fn counts(skew: Skew) -> Vec<f64> {
        let rows = RowChooser::new(ROWS, skew).unwrap();
        let mut rng = Rng::new(7, 0);
        let mut counts = vec![0.0; 1000];
        (0..DRAWS).for_each(|_| counts[usize::try_from(rows.draw(&mut rng)).unwrap()] += 1.0);
        counts
    }

    #[test]
    fn zipf_ranks_have_their_weight() {
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
    fn uniform_rows_are_equally_frequent() {
        let counts = counts(Skew::Uniform);
        assert!(counts.iter().all(|&count| (250.0..560.0).contains(&count)));
    }

    #[test]
    fn scattering_is_a_permutation() {
        for count in [1, 10, 100, 10_000] {
            let mut all: Vec<u64> = (0..count).map(|rank| scatter(rank, count)).collect();
            all.sort_unstable();
            assert!(all.into_iter().eq(0..count));
        }
    }

    #[test]
    fn different_rows_are_sorted() {
        let rows = RowChooser::new(10, Skew::Zipf).unwrap();
        let drawn = rows.draw_different(10, &mut Rng::new(1, 1));
        assert!(drawn.into_iter().eq(0..10));
    }

    #[test]
    fn values_have_number_and_length() {
        let value = Rng::new(1, 1).value(42, 100_000);
        assert_eq!((number(&value), value.len()), (42, 100_000));
    }
}
