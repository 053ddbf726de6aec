//! How long the benches warm up and measure.

use std::time::Duration;

use criterion::Criterion;

/// Times for benches of operations that take nanoseconds.
#[allow(dead_code, reason = "each bench uses one of the two")]
pub fn micro() -> Criterion {
    with_times(Duration::from_millis(500), Duration::from_secs(2))
}

/// Times for benches of operations of a store.
#[allow(dead_code, reason = "each bench uses one of the two")]
pub fn store() -> Criterion {
    with_times(Duration::from_secs(1), Duration::from_secs(3))
}

fn with_times(warm_up: Duration, measurement: Duration) -> Criterion {
    Criterion::default().without_plots().warm_up_time(warm_up).measurement_time(measurement)
}
