//! What the stores are asked to do: one file for each sort of work.
//!
//! A workload prepares its rows, drives one client, and judges what is there when the store has been closed and opened again.

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
pub use self::reads::{How, Reads};
pub use self::reads_during_load::ReadsDuringLoad;
pub use self::time_travel::TimeTravel;
pub use self::transfers::Transfers;
pub use self::ycsb::{Mix, Ycsb};
use crate::client::{Client, Total};
use crate::dice::{Dice, Skew, key, number};
use crate::peer::{Kind, Read, Row, Session};

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

/// What every workload does.
pub trait Work: Sync {
    /// Puts the rows there. The store is closed and opened again behind it, so that all begin with what they read from files.
    fn prepare(&self, session: &mut impl Session, values: &mut Values) -> Result<()>;

    /// What one client does until it is to end.
    fn client(&self, session: &mut impl Session, client: &mut Client) -> Result<()>;

    /// Whether what is there at the end is right. The store has been opened again.
    fn verify(&self, session: &mut impl Session, total: &Total) -> Result<()>;
}

/// Makes rows.
pub struct Values {
    pub dice: Dice,
    pub bytes: usize,
}

impl Values {
    /// Rows with these numbers, each value beginning with its number.
    pub fn rows(&mut self, numbers: std::ops::Range<u64>) -> impl Iterator<Item = Row> {
        numbers.map(|row| (key(row).to_vec(), self.dice.value(row, self.bytes)))
    }

    /// Rows with these numbers, all values beginning with `number`.
    pub fn rows_of(&mut self, numbers: std::ops::Range<u64>, number: u64) -> impl Iterator<Item = Row> {
        numbers.map(move |row| (key(row).to_vec(), self.dice.value(number, self.bytes)))
    }
}

impl Workload {
    /// Whether the store can be asked for it.
    pub fn suits(&self, store: Kind) -> bool {
        match self {
            Self::Reads(_) | Self::BulkLoad(_) | Self::ReadsDuringLoad(_) => true,
            Self::TimeTravel(_) => store.can_travel(),
            Self::HotRow(_) => store == Kind::Percolite,
            _ => store != Kind::Rocks,
        }
    }

    /// Whether what is replaced is to be kept.
    pub fn needs_history(&self) -> bool {
        matches!(self, Self::TimeTravel(_) | Self::HotRow(_))
    }

    /// Whether it is one piece of work, and not for a time.
    pub fn is_one_piece(&self) -> bool {
        matches!(self, Self::BulkLoad(_))
    }

    /// How many clients do other work beside those that are counted.
    pub fn extras(&self) -> u64 {
        match self {
            Self::ReadsDuringLoad(_) | Self::LongSnapshot(_) => 1,
            Self::Bystanders(work) => work.others,
            _ => 0,
        }
    }

    /// Whether it writes nothing that is counted, so that durability says nothing.
    pub fn only_reads(&self) -> bool {
        matches!(self, Self::Reads(_) | Self::TimeTravel(_) | Self::HotRow(_) | Self::ReadsDuringLoad(_))
    }

    /// What one operation is.
    pub fn unit(&self) -> &'static str {
        match self {
            Self::Transfers(_) | Self::LongSnapshot(_) | Self::Bystanders(_) => "transfers",
            Self::Ycsb(_) => "operations",
            Self::Index(_) => "records",
            Self::Counters(_) => "increments",
            Self::BulkLoad(_) => "rows",
            Self::Reads(reads) => reads.how.unit(),
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

/// Does something with the workload, whichever it is.
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

/// A number with thousands apart.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let parts: Vec<&str> =
        digits.as_bytes().rchunks(3).rev().filter_map(|part| std::str::from_utf8(part).ok()).collect();
    parts.join(",")
}

fn skewed(skew: Skew) -> &'static str {
    match skew {
        Skew::Uniform => "",
        Skew::Zipf => ", zipf 0.99",
    }
}

/// All rows of a view: how many, and the sum of the numbers that their values begin with.
fn sum(reader: &impl Read) -> Result<(u64, u64)> {
    let (mut rows, mut sum) = (0, 0_u64);
    reader.scan(&[0], usize::MAX >> 1, |_, value| {
        rows += 1;
        sum = sum.wrapping_add(number(value));
    })?;
    Ok((rows, sum))
}

/// That a view has exactly the rows below `rows`, each with its own number.
fn check_rows(reader: &impl Read, rows: u64) -> Result<()> {
    let (mut seen, mut wrong) = (0, 0_u64);
    reader.scan(&[0], usize::MAX >> 1, |found, value| {
        wrong += u64::from(number(found) != seen || number(value) != seen);
        seen += 1;
    })?;
    ensure!(seen == rows, "{seen} rows are there instead of {rows}");
    ensure!(wrong == 0, "{wrong} of {rows} rows are wrong");
    Ok(())
}
