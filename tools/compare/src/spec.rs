//! Measurements and their results: a measurement is one workload on one store, in one round.
//!
//! The specification of a measurement is JSON on the command line of the measuring process, and the
//! outcome is JSON on the standard output of that process. Each line of the file of results has
//! both; `--resume` reads from the file what has been measured.

use serde::{Deserialize, Serialize};

use crate::peer::StoreKind;
use crate::workload::Workload;

/// One measurement.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Spec {
    pub setting: Setting,
    pub store: StoreKind,
    pub conditions: Conditions,
    /// The round, counted from zero; also the seed of all random choices.
    pub round: u64,
}

/// What is the same for all stores of one comparison.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Setting {
    pub work: Workload,
    pub clients: u64,
    pub durable: bool,
}

/// What is the same for all measurements of a run.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Conditions {
    pub value_bytes: usize,
    pub cache_bytes: usize,
    pub write_buffer_bytes: usize,
    /// The limit of the process's private memory; mapped files do not count.
    pub memory_bytes: u64,
    pub warm_up_millis: u64,
    pub millis: u64,
    /// The number of operations of each client, instead of a duration.
    pub operations: Option<u64>,
}

/// The outcome of a measurement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Outcome {
    Measured(Metrics),
    /// The process crashed or timed out, or an operation or the verification failed.
    Failed(String),
}

/// The metrics of a successful measurement. Fields that are missing in a file of results of an
/// older version have their default.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Metrics {
    /// Operations per second.
    pub rate: f64,
    pub operations: u64,
    /// Processor time per operation, in microseconds.
    pub cpu: f64,
    /// Acknowledged commits, including the warm-up.
    pub commits: u64,
    /// `None` without commits.
    pub aborts_per_commit: Option<f64>,
    /// Latencies, in microseconds.
    pub p50: f64,
    pub p95: f64,
    pub p99: f64,
    pub p999: f64,
    /// Bytes sent to the disk per committed byte of keys and values, including open and close.
    pub write_amplification: Option<f64>,
    /// Bytes of dirtied pages per committed byte, if the directory is on no block device. This may
    /// be many times what reaches a disk.
    pub dirtied_amplification: Option<f64>,
    /// The maximum resident memory after the preparation, including mapped files.
    pub peak_bytes: u64,
    /// Rows per second that background clients have loaded. `None` without such clients.
    pub concurrent_load: Option<f64>,
    /// `None` without commits.
    pub attempts: Option<Attempts>,
    /// The operations of each client.
    pub by_client: Vec<u64>,
}

/// Attempts per committed transaction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attempts {
    pub p50: u64,
    pub p99: u64,
    pub max: u64,
}

impl Metrics {
    /// The operations of the slowest client, divided by the mean. `None` without operations.
    #[allow(clippy::cast_precision_loss, reason = "approximate statistics")]
    pub fn slowest_share(&self) -> Option<f64> {
        let (slowest, sum) = (*self.by_client.iter().min()?, self.by_client.iter().sum::<u64>());
        (sum > 0).then(|| slowest as f64 * self.by_client.len() as f64 / sum as f64)
    }
}

/// A line of the file of results.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ResultLine {
    pub spec: Spec,
    pub outcome: Outcome,
}

impl std::fmt::Display for Setting {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        let clients = if self.clients == 1 { "client" } else { "clients" };
        let durability = match (self.work.is_read_only(), self.durable) {
            (true, _) => "",
            (false, true) => "durable ",
            (false, false) => "buffered ",
        };
        write!(f, "{durability}{}, {} {clients}", self.work, self.clients)
    }
}

impl Outcome {
    pub fn metrics(&self) -> Option<&Metrics> {
        match self {
            Self::Measured(measured) => Some(measured),
            Self::Failed(_) => None,
        }
    }
}
