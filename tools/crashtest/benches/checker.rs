//! How long a million transactions of five operations take to parse and to check.
//!
//! `cargo bench -p percolite-crashtest --bench checker`.

#![allow(missing_docs, clippy::unwrap_used, clippy::pedantic)]

#[path = "../tests/support/mod.rs"]
mod support;

use std::time::Instant;

use clap::Parser;
use percolite_crashtest::checker::{Verdict, check};
use percolite_crashtest::history::{History, Line};

use crate::support::store::{Shape, history};
use crate::support::text;

#[derive(Parser)]
struct Arguments {
    /// How many transactions there are, committed or not.
    #[arg(long, default_value_t = 1_000_000)]
    transactions: usize,
    /// How many rows there are.
    #[arg(long, default_value_t = 100_000)]
    keys: usize,
    /// The share of scans among the operations.
    #[arg(long, default_value_t = 0.0)]
    scans: f64,
    /// The share of transactions whose outcome is unknown.
    #[arg(long, default_value_t = 0.001)]
    unknown: f64,
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Given by cargo.
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() {
    let arguments = Arguments::parse();
    let shape = Shape {
        transactions: arguments.transactions,
        keys: arguments.keys,
        sessions: 32,
        fixed: true,
        scans: arguments.scans,
        unknown: arguments.unknown,
        crashes: 0.0,
        roll_backs: 0.0,
        ..Shape::busy()
    };
    let lines = history(1, &shape);
    let committed = lines.iter().filter(|line| matches!(line, Line::Transaction(txn) if txn.outcome == percolite_crashtest::history::Outcome::Committed)).count();
    let text = text(&lines);
    drop(lines);
    println!(
        "{} transactions of {} operations, {committed} committed, {} MB",
        shape.transactions,
        shape.ops,
        text.len() >> 20
    );
    for _ in 0..arguments.rounds {
        let started = Instant::now();
        let history = History::read(text.as_bytes()).unwrap();
        let parsed = started.elapsed();
        let report = check(&history);
        let checked = started.elapsed().checked_sub(parsed).unwrap();
        assert_eq!(report.verdict, Verdict::Consistent, "{report}");
        println!(
            "parsed in {:.2} s, checked in {:.2} s, {} seen",
            parsed.as_secs_f64(),
            checked.as_secs_f64(),
            report.inferred
        );
    }
}
