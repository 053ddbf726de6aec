//! How long the benches measure.

use std::time::Duration;

use criterion::Criterion;

/// For what takes nanoseconds.
#[allow(dead_code, reason = "each bench uses one of the two")]
pub fn of_steps() -> Criterion {
    lasting(Duration::from_millis(500), Duration::from_secs(2))
}

/// For what a store does.
#[allow(dead_code, reason = "each bench uses one of the two")]
pub fn of_stores() -> Criterion {
    lasting(Duration::from_secs(1), Duration::from_secs(3))
}

fn lasting(warm_up: Duration, measured: Duration) -> Criterion {
    Criterion::default().without_plots().warm_up_time(warm_up).measurement_time(measured)
}
