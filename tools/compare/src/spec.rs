//! What is measured, and what came out: a cell is one workload on one store, once.

use serde::{Deserialize, Serialize};

use crate::peer::Kind;
use crate::workload::Workload;

/// A cell. It is handed to the process that measures it and kept beside its outcome, which is how a run that goes on knows
/// what it has.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Spec {
    pub setting: Setting,
    pub store: Kind,
    pub conditions: Conditions,
    /// Counts from zero; the seed of all chance.
    pub round: u64,
}

/// What the stores of one comparison have in common.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Setting {
    pub work: Workload,
    pub clients: u64,
    pub durable: bool,
}

/// What is the same for everything in a run.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Conditions {
    pub value_bytes: usize,
    pub cache_bytes: usize,
    pub write_buffer_bytes: usize,
    /// That the process may use of its own; files that are mapped do not count.
    pub memory_bytes: u64,
    pub warm_up_millis: u64,
    pub millis: u64,
    /// Instead of a time: so many operations of each client.
    pub operations: Option<u64>,
}

/// What became of a cell.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Outcome {
    Measured(Measured),
    /// It crashed, or what it left is wrong.
    Failed(String),
}

/// Figures of a cell that went well. Those that a file of results does not have are of an older version.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Measured {
    /// Operations a second.
    pub rate: f64,
    pub operations: u64,
    /// Of the processor for each operation, in microseconds.
    pub processor: f64,
    /// Acknowledged, warming up included.
    pub commits: u64,
    /// `None` where nothing was committed.
    pub aborts_per_commit: Option<f64>,
    /// Latencies, in microseconds.
    pub p50: f64,
    pub p95: f64,
    pub p99: f64,
    pub p999: f64,
    /// Sent to the disk, opening and closing included, for each byte of keys and values committed.
    pub disk_per_byte: Option<f64>,
    /// Where no disk can be asked: of pages that got dirty instead, which may be many times as much.
    pub dirtied_per_byte: Option<f64>,
    /// Resident at most since the rows were there, mapped files included.
    pub peak_bytes: u64,
    /// Rows a second, by clients that do nothing else and are not counted otherwise. `None` where there are none.
    pub loaded_beside: Option<f64>,
    /// `None` where nothing was committed.
    pub attempts: Option<Attempts>,
    /// Operations of each client.
    pub by_client: Vec<u64>,
}

/// How often transactions were begun until they committed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attempts {
    pub p50: u64,
    pub p99: u64,
    pub max: u64,
}

impl Measured {
    /// What the slowest client did, of what all did on average. `None` where nobody did anything.
    #[allow(clippy::cast_precision_loss, reason = "figures for people")]
    pub fn slowest_share(&self) -> Option<f64> {
        let (least, sum) = (*self.by_client.iter().min()?, self.by_client.iter().sum::<u64>());
        (sum > 0).then(|| least as f64 * self.by_client.len() as f64 / sum as f64)
    }
}

/// A line of the file of results.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Line {
    pub spec: Spec,
    pub outcome: Outcome,
}

impl std::fmt::Display for Setting {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        let clients = if self.clients == 1 { "client" } else { "clients" };
        let durability = match (self.work.only_reads(), self.durable) {
            (true, _) => "",
            (false, true) => "durable ",
            (false, false) => "buffered ",
        };
        write!(f, "{durability}{}, {} {clients}", self.work, self.clients)
    }
}

impl Outcome {
    pub fn measured(&self) -> Option<&Measured> {
        match self {
            Self::Measured(measured) => Some(measured),
            Self::Failed(_) => None,
        }
    }
}
