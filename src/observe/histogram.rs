//! Latency histograms.
//!
//! A duration is counted in one of 1,280 buckets, each an atomic counter. Recording is one
//! increment without a lock; reading copies all counters. A duration is reported as the greatest
//! duration of its bucket. Buckets are 3 % wide, so a reported duration is at most 3 % too high,
//! and never too low. Only a duration above 2^44 ns, nearly five hours, is reported too low: as
//! 2^44 ns.

use std::time::Duration;

use histogram::{AtomicHistogram, Config};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The buckets: for durations of up to 2^44 ns, with 2^5 buckets from each power of two to the
/// next.
#[allow(clippy::panic, reason = "evaluated by the compiler")]
const CONFIG: Config = match Config::new(5, 44) {
    Ok(config) => config,
    Err(_) => panic!("out of range"),
};
const LONGEST_NANOS: u64 = (1 << 44) - 1;

/// A concurrent histogram of durations.
pub(crate) struct Histogram {
    buckets: AtomicHistogram,
    #[cfg(feature = "metrics")]
    facade: metrics::Histogram,
}

impl Histogram {
    pub fn new(#[cfg(feature = "metrics")] facade: metrics::Histogram) -> Self {
        Self {
            buckets: AtomicHistogram::with_config(&CONFIG),
            #[cfg(feature = "metrics")]
            facade,
        }
    }

    /// A histogram that no recorder exports.
    pub fn unexported() -> Self {
        Self::new(
            #[cfg(feature = "metrics")]
            metrics::Histogram::noop(),
        )
    }

    pub fn record(&self, took: Duration) {
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(LONGEST_NANOS).min(LONGEST_NANOS);
        // Cannot fail, because `nanos` is at most `LONGEST_NANOS`.
        let _ = self.buckets.increment(nanos);
        #[cfg(feature = "metrics")]
        self.facade.record(took.as_secs_f64());
    }

    pub fn snapshot(&self) -> LatencyHistogram {
        LatencyHistogram(self.buckets.load())
    }
}

/// A latency distribution, whose durations are rounded up by at most 3 %.
///
/// ```
/// # fn main() -> percolite::Result<()> {
/// # let store = percolite::Store::in_memory()?;
/// # let rows = store.keyspace("rows")?;
/// let before = store.latencies();
/// store.transact(|txn| txn.put(&rows, "key", "value"))?;
/// let commits = store.latencies().since(&before).commit_durable;
/// assert_eq!(commits.count(), 1);
/// println!("median {:?}, at most {:?}", commits.percentile(50.0), commits.max());
/// # Ok(()) }
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct LatencyHistogram(histogram::Histogram);

impl LatencyHistogram {
    /// Number of measurements.
    pub fn count(&self) -> u64 {
        self.0.as_slice().iter().sum()
    }

    /// The given percentile; zero without measurements. `percent` is from 0 to 100; other values
    /// are clamped.
    pub fn percentile(&self, percent: f64) -> Duration {
        let quantile = if percent.is_nan() { 0.0 } else { (percent / 100.0).clamp(0.0, 1.0) };
        let bucket = self.0.quantile_bucket(quantile).ok().flatten();
        bucket.map_or(Duration::ZERO, |bucket| Duration::from_nanos(bucket.end()))
    }

    /// The longest duration, rounded up as all others; zero without measurements.
    pub fn max(&self) -> Duration {
        self.percentile(100.0)
    }

    /// The measurements since `earlier`, an older reading of the same store.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let mut later = self.0.clone();
        for (now, then) in later.as_mut_slice().iter_mut().zip(earlier.0.as_slice()) {
            *now = now.saturating_sub(*then);
        }
        Self(later)
    }
}

impl Default for LatencyHistogram {
    fn default() -> Self {
        Self(histogram::Histogram::with_config(&CONFIG))
    }
}

/// Serialized as one pair for each bucket that is not empty, shortest first: the bucket's greatest
/// duration in nanoseconds, and its count.
impl Serialize for LatencyHistogram {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let measured = self.0.iter().filter(|bucket| bucket.count() > 0);
        serializer.collect_seq(measured.map(|bucket| (bucket.end(), bucket.count())))
    }
}

impl<'de> Deserialize<'de> for LatencyHistogram {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut latency = Self::default();
        for (nanos, times) in Vec::<(u64, u64)>::deserialize(deserializer)? {
            // Cannot fail, because no value is above `LONGEST_NANOS`.
            let _ = latency.0.add(nanos.min(LONGEST_NANOS), times);
        }
        Ok(latency)
    }
}

impl std::fmt::Debug for LatencyHistogram {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Latency")
            .field("count", &self.count())
            .field("p50", &self.percentile(50.0))
            .field("p99", &self.percentile(99.0))
            .field("max", &self.max())
            .finish()
    }
}

/// Latencies of the phases of transactions since the store was opened: see
/// [`Store::latencies`](crate::Store::latencies).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
#[serde(default)]
pub struct Latencies {
    /// Durable commits that wrote something, from call to return.
    pub commit_durable: LatencyHistogram,
    /// Buffered commits that wrote something, from call to return.
    pub commit_buffered: LatencyHistogram,
    /// Waits of an attempt of `transact` before it starts: in the row queue, for a row lock, for
    /// admission. Only attempts that had to wait count.
    pub admission_wait: LatencyHistogram,
    /// From the submission of a commit until the leader has applied its changes. The time in the
    /// queue is included. Empty on a shared engine.
    pub commit_apply: LatencyHistogram,
    /// Syncs of the write-ahead log. Empty on a shared engine.
    pub wal_sync: LatencyHistogram,
    /// Successful calls of `transact`, with all attempts and waits.
    pub transact: LatencyHistogram,
}

impl Latencies {
    /// The measurements since `earlier`, an older reading of the same store.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            commit_durable: self.commit_durable.since(&earlier.commit_durable),
            commit_buffered: self.commit_buffered.since(&earlier.commit_buffered),
            admission_wait: self.admission_wait.since(&earlier.admission_wait),
            commit_apply: self.commit_apply.since(&earlier.commit_apply),
            wal_sync: self.wal_sync.since(&earlier.wal_sync),
            transact: self.transact.since(&earlier.transact),
        }
    }
}
