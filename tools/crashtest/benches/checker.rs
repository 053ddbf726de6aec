//! The time that the checker takes to parse and to check 20,000 transactions of five operations.
//!
//! Unknown outcomes cost time, because the checker sweeps the history again for those that it
//! infers. So a history with 0.1 % of unknown outcomes is checked, and another one with 2 %.
//!
//! `cargo bench -p percolite-crashtest --bench checker`.

#![allow(clippy::unwrap_used, reason = "a failure stops the bench")]

#[allow(clippy::pedantic, reason = "shared with the tests")]
#[path = "../tests/support/mod.rs"]
mod support;

use std::time::Duration;

use criterion::{Criterion, SamplingMode, Throughput, criterion_group, criterion_main};
use percolite_crashtest::checker::{CheckResult, check};
use percolite_crashtest::history::History;

use crate::support::store::{Shape, history};
use crate::support::{interned, text};

const TRANSACTIONS: usize = 20_000;

fn bench_checker(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("checker");
    group.sampling_mode(SamplingMode::Flat).throughput(Throughput::Elements(TRANSACTIONS as u64));

    let lines = history(1, &shape(0.001));
    let written = text(&lines);
    group.bench_function("parse", |bencher| bencher.iter(|| History::read(written.as_bytes()).unwrap()));

    let few = interned(&lines);
    let many = interned(&history(1, &shape(0.02)));
    for (name, history) in [("check", few), ("check-unknown", many)] {
        let report = check(&history);
        assert_eq!(report.result, CheckResult::Consistent, "{report}");
        group.bench_function(name, |bencher| bencher.iter(|| check(&history)));
    }
}

fn shape(unknown: f64) -> Shape {
    Shape {
        transactions: TRANSACTIONS,
        keys: TRANSACTIONS / 10,
        sessions: 32,
        fixed: true,
        scans: 0.0,
        unknown,
        crashes: 0.0,
        roll_backs: 0.0,
        ..Shape::busy()
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .without_plots()
        .sample_size(20)
        .warm_up_time(Duration::from_secs(1))
        .measurement_time(Duration::from_secs(3));
    targets = bench_checker
}
criterion_main!(benches);
