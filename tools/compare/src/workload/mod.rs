//! The workloads, one file each.
//!
//! A workload prepares its rows, runs the operations of one client, and verifies the rows after the
//! store has been closed and opened again.

mod bulk_load;
mod bystanders;
mod counters;
mod hot_row;
mod index;
mod long_snapshot;
mod reads;
mod reads_during_load;
mod time_travel;
mod transfers;
mod ycsb;

use std::fmt;

use anyhow::{Result, ensure};
use serde::{Deserialize, Serialize};

pub use self::bulk_load::BulkLoad;
pub use self::bystanders::Bystanders;
pub use self::counters::Counters;
pub use self::hot_row::HotRow;
pub use self::index::Index;
pub use self::long_snapshot::LongSnapshot;
pub use self::reads::{ReadKind, Reads};
pub use self::reads_during_load::ReadsDuringLoad;
pub use self::time_travel::TimeTravel;
pub use self::transfers::Transfers;
pub use self::ycsb::{Mix, Ycsb};
use crate::client::{Client, Total};
use crate::generator::{Rng, Skew, key, number};
use crate::peer::{Read, Row, Session, StoreKind};

/// A workload with its parameters.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Workload {
    Transfers(Transfers),
    LongSnapshot(LongSnapshot),
    Bystanders(Bystanders),
    Ycsb(Ycsb),
    Index(Index),
    Counters(Counters),
    BulkLoad(BulkLoad),
    Reads(Reads),
    ReadsDuringLoad(ReadsDuringLoad),
    TimeTravel(TimeTravel),
    HotRow(HotRow),
}

/// A kind of workload.
pub trait Work: Sync {
    /// Writes the rows. The store is then closed and opened again, so that all stores start from
    /// their files.
    fn prepare(&self, session: &mut impl Session, values: &mut RowGenerator) -> Result<()>;

    /// Runs the operations of one client until the run ends.
    fn client(&self, session: &mut impl Session, client: &mut Client) -> Result<()>;

    /// Verifies the rows of the reopened store.
    fn verify(&self, session: &mut impl Session, total: &Total) -> Result<()>;
}

/// Generates rows.
pub struct RowGenerator {
    pub rng: Rng,
    pub bytes: usize,
}

impl RowGenerator {
    /// Rows with these numbers. Each value starts with the number of its row.
    pub fn rows(&mut self, numbers: std::ops::Range<u64>) -> impl Iterator<Item = Row> {
        numbers.map(|row| (key(row).to_vec(), self.rng.value(row, self.bytes)))
    }

    /// Rows with these numbers. All values start with `number`.
    pub fn rows_of(&mut self, numbers: std::ops::Range<u64>, number: u64) -> impl Iterator<Item = Row> {
        numbers.map(move |row| (key(row).to_vec(), self.rng.value(number, self.bytes)))
    }
}

impl Workload {
    /// Whether the store supports the workload.
    pub fn supports(&self, store: StoreKind) -> bool {
        match self {
            Self::Reads(_) | Self::BulkLoad(_) | Self::ReadsDuringLoad(_) => true,
            Self::TimeTravel(_) => store.has_history(),
            Self::HotRow(_) => store == StoreKind::Percolite,
            _ => store != StoreKind::Rocks,
        }
    }

    /// Whether the store has to keep replaced versions.
    pub fn needs_history(&self) -> bool {
        matches!(self, Self::TimeTravel(_) | Self::HotRow(_))
    }

    /// Whether the workload is a single operation, instead of many during a given time.
    pub fn is_single_run(&self) -> bool {
        matches!(self, Self::BulkLoad(_))
    }

    /// The number of clients whose work is not measured.
    pub fn background_clients(&self) -> u64 {
        match self {
            Self::ReadsDuringLoad(_) | Self::LongSnapshot(_) => 1,
            Self::Bystanders(work) => work.contending,
            _ => 0,
        }
    }

    /// Whether the measured operations are reads, so that durability does not matter.
    pub fn is_read_only(&self) -> bool {
        matches!(self, Self::Reads(_) | Self::TimeTravel(_) | Self::HotRow(_) | Self::ReadsDuringLoad(_))
    }

    /// The unit of its operations.
    pub fn unit(&self) -> &'static str {
        match self {
            Self::Transfers(_) | Self::LongSnapshot(_) | Self::Bystanders(_) => "transfers",
            Self::Ycsb(_) => "operations",
            Self::Index(_) => "records",
            Self::Counters(_) => "increments",
            Self::BulkLoad(_) => "rows",
            Self::Reads(reads) => reads.kind.unit(),
            Self::ReadsDuringLoad(_) | Self::TimeTravel(_) | Self::HotRow(_) => "reads",
        }
    }
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Self::Transfers(work) => work.fmt(f),
            Self::LongSnapshot(work) => work.fmt(f),
            Self::Bystanders(work) => work.fmt(f),
            Self::Ycsb(work) => work.fmt(f),
            Self::Index(work) => work.fmt(f),
            Self::Counters(work) => work.fmt(f),
            Self::BulkLoad(work) => work.fmt(f),
            Self::Reads(work) => work.fmt(f),
            Self::ReadsDuringLoad(work) => work.fmt(f),
            Self::TimeTravel(work) => work.fmt(f),
            Self::HotRow(work) => work.fmt(f),
        }
    }
}

/// Evaluates an expression with the concrete type of the workload.
macro_rules! with_work {
    ($workload:expr, $work:ident => $what:expr) => {
        match $workload {
            $crate::workload::Workload::Transfers($work) => $what,
            $crate::workload::Workload::LongSnapshot($work) => $what,
            $crate::workload::Workload::Bystanders($work) => $what,
            $crate::workload::Workload::Ycsb($work) => $what,
            $crate::workload::Workload::Index($work) => $what,
            $crate::workload::Workload::Counters($work) => $what,
            $crate::workload::Workload::BulkLoad($work) => $what,
            $crate::workload::Workload::Reads($work) => $what,
            $crate::workload::Workload::ReadsDuringLoad($work) => $what,
            $crate::workload::Workload::TimeTravel($work) => $what,
            $crate::workload::Workload::HotRow($work) => $what,
        }
    };
}
pub(crate) use with_work;

/// A number with thousands separators.
pub fn with_thousands(number: u64) -> String {
    let digits = number.to_string();
    let parts: Vec<&str> =
        digits.as_bytes().rchunks(3).rev().filter_map(|part| std::str::from_utf8(part).ok()).collect();
    parts.join(",")
}

fn skew_suffix(skew: Skew) -> &'static str {
    match skew {
        Skew::Uniform => "",
        Skew::Zipf => ", zipf 0.99",
    }
}

/// The number of rows of a view, and the sum of the numbers at the start of their values.
fn sum(reader: &impl Read) -> Result<(u64, u64)> {
    let (mut rows, mut sum) = (0, 0_u64);
    reader.scan(&[0], usize::MAX >> 1, |_, value| {
        rows += 1;
        sum = sum.wrapping_add(number(value));
    })?;
    Ok((rows, sum))
}

/// Checks that a view has exactly the rows below `rows`, each with its own number.
fn check_rows(reader: &impl Read, rows: u64) -> Result<()> {
    let (mut seen, mut wrong) = (0, 0_u64);
    reader.scan(&[0], usize::MAX >> 1, |found, value| {
        wrong += u64::from(number(found) != seen || number(value) != seen);
        seen += 1;
    })?;
    ensure!(seen == rows, "{seen} rows instead of {rows}");
    ensure!(wrong == 0, "{wrong} of {rows} rows are wrong");
    Ok(())
}
