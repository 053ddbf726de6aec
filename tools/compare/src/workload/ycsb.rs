//! The core workloads of YCSB (Cooper et al., "Benchmarking Cloud Serving Systems with YCSB", and
//! its wiki, "Core Workloads").
//!
//! Rows are drawn from a scattered zipf distribution; D draws among the newest rows. A scan in E
//! reads 1 to 100 rows. Unlike in YCSB, a row has one field, as long as the values of all
//! workloads of this tool. Each operation has its own transaction or view.

use std::fmt;

use anyhow::{Result, ensure};
use serde::{Deserialize, Serialize};

use super::{RowGenerator, Work, with_thousands};
use crate::client::{Client, Total};
use crate::generator::{RowChooser, Skew, key, number};
use crate::peer::{Read as _, Session};

const SCAN_MAX: u64 = 100;
/// The rows that client `number` inserts start at `(number + 1) * CLIENT_ROWS`.
const CLIENT_ROWS: u64 = 1 << 40;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Mix {
    /// Half reads, half updates.
    A,
    /// 95 % reads, 5 % updates.
    B,
    /// Reads.
    C,
    /// 95 % reads of the newest, 5 % insertions.
    D,
    /// 95 % scans, 5 % insertions.
    E,
    /// Half reads, half read-modify-writes.
    F,
}

impl Mix {
    /// The percentage of operations that write.
    fn writes(self) -> u64 {
        match self {
            Self::A | Self::F => 50,
            Self::B | Self::D | Self::E => 5,
            Self::C => 0,
        }
    }

    fn inserts(self) -> bool {
        matches!(self, Self::D | Self::E)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Ycsb {
    pub mix: Mix,
    pub rows: u64,
}

impl fmt::Display for Ycsb {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "YCSB {:?}, {} rows", self.mix, with_thousands(self.rows))
    }
}

impl Work for Ycsb {
    fn prepare(&self, session: &mut impl Session, values: &mut RowGenerator) -> Result<()> {
        session.load(values.rows(0..self.rows))
    }

    fn client(&self, session: &mut impl Session, client: &mut Client) -> Result<()> {
        let rows = RowChooser::new(self.rows, Skew::Zipf)?;
        let first_own = (client.number + 1) * CLIENT_ROWS;
        let mut own = 0;
        while client.should_continue() {
            let drawn = rows.draw(&mut client.rng);
            if client.rng.below(100) < self.mix.writes() {
                let row = if self.mix.inserts() { first_own + own } else { drawn };
                let value = client.rng.value(row, client.value_bytes);
                let must_read = self.mix == Mix::F;
                client.transact(session, value.len() + size_of_val(&key(row)), 1, |txn| {
                    if must_read {
                        ensure!(txn.get_for_update(&key(row), &mut |_| ())?, "row {row} is missing");
                    }
                    txn.put(&key(row), &value)
                })?;
                own += u64::from(self.mix.inserts());
                continue;
            }
            // The newest rows are those that the client has inserted, then the last loaded ones.
            let row = match self.mix {
                Mix::D if drawn < own => first_own + own - 1 - drawn,
                Mix::D => self.rows - 1 - drawn,
                _ => drawn,
            };
            let scanned = if self.mix == Mix::E { Some(1 + client.rng.below(SCAN_MAX)) } else { None };
            client.read(|| {
                let reader = session.reader(None)?;
                let mut first = None;
                match scanned {
                    None => _ = reader.get(&key(row), |value| first = Some(number(value)))?,
                    Some(length) => {
                        reader.scan(&key(row), usize::try_from(length)?, |_, value| {
                            first.get_or_insert(number(value));
                        })?;
                    }
                }
                ensure!(first == Some(row), "row {row} is wrong");
                Ok(())
            })?;
        }
        Ok(())
    }

    fn verify(&self, session: &mut impl Session, total: &Total) -> Result<()> {
        let (mut rows, mut wrong) = (0, 0_u64);
        session.reader(None)?.scan(&[0], usize::MAX >> 1, |found, value| {
            rows += 1;
            wrong += u64::from(number(found) != number(value));
        })?;
        let right = self.rows + if self.mix.inserts() { total.commits } else { 0 };
        ensure!(rows == right, "{rows} rows instead of {right}");
        ensure!(wrong == 0, "{wrong} of {rows} rows are wrong");
        Ok(())
    }
}
