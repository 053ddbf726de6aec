//! Which runs have large transactions, and whether large transactions were committed.

use super::ChildConfig;
use crate::layer_result::LayerResult;
use crate::rng::SeededRng;
use crate::violation::Violation;
use crate::workload;

/// The metric: commits of large transactions.
pub const LARGE_COMMITS: &str = "large commits";
/// The metric: runs whose limit is low enough to make transactions large.
pub const RUNS_WITH_LARGE: &str = "runs with large transactions";
/// After this many runs with large transactions at least one large commit is expected.
const RUNS_WITH_LARGE_MIN: f64 = 8.0;

/// The workload of a seed and its `large_transaction_bytes`. Of six consecutive seeds two have
/// large transactions: one through many rows, one through a limit of 100 bytes.
pub fn workload_for(seed: u64, rng: &mut SeededRng) -> (&'static str, usize) {
    let small = rng.pick(workload::ALL).map_or("bank", |workload| workload.name());
    match seed % 6 {
        0 => (workload::LARGE.name(), 4000),
        3 => (small, 100),
        _ => (small, 16 << 20),
    }
}

/// Counts the large commits of one incarnation.
pub fn count_large_commits(outcome: &mut LayerResult, config: &ChildConfig, large_commits: u64) {
    outcome.count(RUNS_WITH_LARGE, u64::from(config.large_transaction_bytes < 16 << 20));
    outcome.count(LARGE_COMMITS, large_commits);
}

/// Returns a violation if there were enough runs with large transactions, and no large commit in
/// any of them.
pub fn check_large_commits(outcome: &LayerResult) -> Option<Violation> {
    let sum = |name: &str| outcome.metrics.get(name).into_iter().flatten().sum::<f64>();
    let missing = sum(RUNS_WITH_LARGE) >= RUNS_WITH_LARGE_MIN && sum(LARGE_COMMITS) <= 0.0;
    missing.then(|| {
        Violation::new("harness", format!("{} runs with large transactions, and no large commit", sum(RUNS_WITH_LARGE)))
    })
}
