//! What the benches share: rounds that interleave the contestants, and ratios taken within a round.
//!
//! A machine's speed drifts, so a figure by itself says little. Every round runs every contestant once, one after the
//! other, and what is quoted is the median of the rounds' ratios, with the smallest and the largest.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Small and fast; the same numbers in every run.
pub struct Numbers(u64);

impl Numbers {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) % bound
    }
}

/// Has `clients` threads repeat `step` for a while; the answer is how often a second it was done, all together.
pub fn rate(clients: u64, duration: Duration, step: impl Fn(&mut Numbers) + Sync) -> f64 {
    let stop = AtomicBool::new(false);
    let done = AtomicU64::new(0);
    let began = Instant::now();
    std::thread::scope(|scope| {
        for client in 0..clients {
            let (stop, done, step) = (&stop, &done, &step);
            scope.spawn(move || {
                let mut numbers = Numbers::new(client);
                let mut own = 0;
                while !stop.load(Ordering::Relaxed) {
                    step(&mut numbers);
                    own += 1;
                }
                done.fetch_add(own, Ordering::Relaxed);
            });
        }
        std::thread::sleep(duration);
        stop.store(true, Ordering::Relaxed);
    });
    done.load(Ordering::Relaxed) as f64 / began.elapsed().as_secs_f64()
}

/// The middle of the figures, and `(smallest, largest)`.
pub fn median(mut figures: Vec<f64>) -> (f64, f64, f64) {
    figures.sort_by(f64::total_cmp);
    let at = |index: usize| figures.get(index).copied().unwrap_or(f64::NAN);
    (at(figures.len() / 2), at(0), at(figures.len().saturating_sub(1)))
}

/// One line of figures: the contestants' medians and, for all but the last, the ratio to the last.
pub fn line(names: &[&str], rounds: &[Vec<f64>]) -> Vec<String> {
    let column = |index: usize| rounds.iter().filter_map(|round| round.get(index).copied()).collect::<Vec<f64>>();
    let last = names.len() - 1;
    let mut cells: Vec<String> = (0..names.len()).map(|index| format!("{:.0}", median(column(index)).0)).collect();
    for index in 0..last {
        let ratios = column(index).iter().zip(column(last)).map(|(ours, theirs)| ours / theirs).collect();
        let (middle, least, most) = median(ratios);
        cells.push(format!("{middle:.2} ({least:.2}..{most:.2})"));
    }
    cells
}
