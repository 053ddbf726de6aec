//! Helpers that the tests share.

#![allow(dead_code, reason = "each test uses a part")]

pub mod elle;
pub mod graph;
pub mod naive;
pub mod store;

use percolite_crashtest::checker::{Report, check};
use percolite_crashtest::history::{History, Line};

/// These lines as a history.
pub fn interned(lines: &[Line]) -> History {
    let mut history = History::default();
    for line in lines {
        history.push(line).unwrap();
    }
    history
}

/// The checker's report on these lines.
pub fn report(lines: &[Line]) -> Report {
    check(&interned(lines))
}

/// These lines as the text of a file.
pub fn text(lines: &[Line]) -> String {
    let mut text = Vec::new();
    for line in lines {
        line.write(&mut text).unwrap();
    }
    String::from_utf8(text).unwrap()
}

/// The seed of a randomised test: `CRASHTEST_SEED`, or a new one. The seed is printed, so that a
/// failing test shows it.
pub fn seed() -> u64 {
    let seed = std::env::var("CRASHTEST_SEED").ok().map(|seed| seed.parse().unwrap());
    let seed = seed.unwrap_or_else(|| u64::from(rand::random::<u32>()));
    println!("CRASHTEST_SEED={seed}");
    seed
}
