//! Test fixtures.

use crate::generator::Skew;
use crate::peer::StoreKind;
use crate::spec::{Conditions, Metrics, Outcome, ResultLine, Setting};
use crate::statistics::Entry;
use crate::workload::{Transfers, Workload};

pub fn conditions() -> Conditions {
    Conditions {
        value_bytes: 100,
        cache_bytes: 16 << 20,
        write_buffer_bytes: 16 << 20,
        memory_bytes: 1 << 30,
        warm_up_millis: 0,
        millis: 100,
        operations: None,
    }
}

pub fn entry(store: StoreKind) -> Entry {
    let work = Workload::Transfers(Transfers { accounts: 10, rows_per_transfer: 2, skew: Skew::Uniform });
    Entry { setting: Setting { work, clients: 4, durable: true }, store }
}

pub fn line(entry: &Entry, round: u64, rate: f64) -> ResultLine {
    let outcome = Outcome::Measured(Metrics { rate, ..Metrics::default() });
    ResultLine { spec: entry.spec(&conditions(), round), outcome }
}
