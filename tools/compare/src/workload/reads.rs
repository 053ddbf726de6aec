//! Reads of rows that do not change: single rows, several at a time, short and long scans.

use std::fmt;

use anyhow::{Result, ensure};
use serde::{Deserialize, Serialize};

use super::{RowGenerator, Work, check_rows, skew_suffix, sum, with_thousands};
use crate::client::{Client, Total};
use crate::generator::{Rng, RowChooser, Skew, key, number};
use crate::peer::{Read as _, Session};

const MULTI_GET: usize = 16;
const SHORT_SCAN: usize = 100;
const LONG_SCAN: usize = 10_000;

/// The kind of read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ReadKind {
    Get,
    /// Rows that were written since the store was opened.
    GetRecent,
    MultiGet,
    Scan,
    LongScan,
}

impl ReadKind {
    pub fn unit(self) -> &'static str {
        match self {
            Self::Get | Self::GetRecent => "reads",
            Self::MultiGet => "reads of 16",
            Self::Scan => "scans of 100",
            Self::LongScan => "scans of 10,000",
        }
    }

    fn rows(self) -> usize {
        match self {
            Self::Get | Self::GetRecent => 1,
            Self::MultiGet => MULTI_GET,
            Self::Scan => SHORT_SCAN,
            Self::LongScan => LONG_SCAN,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Reads {
    pub rows: u64,
    pub kind: ReadKind,
    pub skew: Skew,
}

impl fmt::Display for Reads {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let what = match self.kind {
            ReadKind::Get => "point read",
            ReadKind::GetRecent => "point read of recent rows",
            ReadKind::MultiGet => "multi_get of 16",
            ReadKind::Scan => "scan of 100 rows",
            ReadKind::LongScan => "scan of 10,000 rows",
        };
        write!(f, "{what}, {} rows{}", with_thousands(self.rows), skew_suffix(self.skew))
    }
}

impl Work for Reads {
    fn prepare(&self, session: &mut impl Session, values: &mut RowGenerator) -> Result<()> {
        ensure!(self.rows >= self.kind.rows() as u64, "the store has fewer rows than one read returns");
        if self.kind == ReadKind::GetRecent { Ok(()) } else { session.load(values.rows(0..self.rows)) }
    }

    fn client(&self, session: &mut impl Session, client: &mut Client) -> Result<()> {
        if client.number == 0 {
            if self.kind == ReadKind::GetRecent {
                let mut values = RowGenerator { rng: Rng::new(client.seed, 1), bytes: client.value_bytes };
                session.load(values.rows(0..self.rows))?;
            }
            // Warms the cache.
            sum(&session.reader(None)?)?;
        }
        client.wait_start();
        let reader = session.reader(None)?;
        let rows = RowChooser::new(self.rows, self.skew)?;
        match self.kind {
            ReadKind::Get | ReadKind::GetRecent => {
                while client.should_continue() {
                    let row = rows.draw(&mut client.rng);
                    client.read(|| {
                        let mut found = u64::MAX;
                        reader.get(&key(row), |value| found = number(value))?;
                        ensure!(found == row, "row {row} is wrong");
                        Ok(())
                    })?;
                }
            }
            ReadKind::MultiGet => {
                while client.should_continue() {
                    let drawn: Vec<u64> = (0..MULTI_GET).map(|_| rows.draw(&mut client.rng)).collect();
                    let keys: Vec<Vec<u8>> = drawn.iter().map(|&row| key(row).to_vec()).collect();
                    client.read(|| {
                        let mut wanted = drawn.iter();
                        let mut wrong = false;
                        let found = reader.multi_get(&keys, |value| wrong |= wanted.next() != Some(&number(value)))?;
                        ensure!(found == MULTI_GET && !wrong, "one of the rows {drawn:?} is wrong");
                        Ok(())
                    })?;
                }
            }
            ReadKind::Scan | ReadKind::LongScan => {
                let length = self.kind.rows();
                let starts = RowChooser::new(self.rows - length as u64 + 1, self.skew)?;
                while client.should_continue() {
                    let from = starts.draw(&mut client.rng);
                    client.read(|| {
                        let (mut next, mut wrong) = (from, false);
                        let found = reader.scan(&key(from), length, |_, value| {
                            wrong |= number(value) != next;
                            next += 1;
                        })?;
                        ensure!(found == length && !wrong, "a scan from row {from} is wrong");
                        Ok(())
                    })?;
                }
            }
        }
        Ok(())
    }

    fn verify(&self, session: &mut impl Session, _: &Total) -> Result<()> {
        check_rows(&session.reader(None)?, self.rows)
    }
}
