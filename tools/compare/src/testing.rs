//! What several tests begin with.

use crate::dice::Skew;
use crate::peer::Kind;
use crate::spec::{Conditions, Line, Measured, Outcome, Setting};
use crate::statistics::Contestant;
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

pub fn contestant(store: Kind) -> Contestant {
    let work = Workload::Transfers(Transfers { accounts: 10, touched: 2, skew: Skew::Uniform });
    Contestant { setting: Setting { work, clients: 4, durable: true }, store }
}

pub fn line(contestant: &Contestant, round: u64, rate: f64) -> Line {
    let outcome = Outcome::Measured(Measured { rate, ..Measured::default() });
    Line { spec: contestant.spec(&conditions(), round), outcome }
}
