//! Reads of rows that do not change: one at a time, several at a time, short and long scans.

use std::fmt;

use anyhow::{Result, ensure};
use serde::{Deserialize, Serialize};

use super::{Values, Work, check_rows, grouped, skewed, sum};
use crate::client::{Client, Total};
use crate::dice::{Dice, Rows, Skew, key, number};
use crate::peer::{Read as _, Session};

const MULTI_GET: usize = 16;
const SHORT_SCAN: usize = 100;
const LONG_SCAN: usize = 10_000;

/// What is read at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum How {
    Get,
    /// Of rows that were written since the store was opened.
    GetRecent,
    MultiGet,
    Scan,
    LongScan,
}

impl How {
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
    pub how: How,
    pub skew: Skew,
}

impl fmt::Display for Reads {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let what = match self.how {
            How::Get => "point read",
            How::GetRecent => "point read of recent rows",
            How::MultiGet => "multi_get of 16",
            How::Scan => "scan of 100 rows",
            How::LongScan => "scan of 10,000 rows",
        };
        write!(f, "{what}, {} rows{}", grouped(self.rows), skewed(self.skew))
    }
}

impl Work for Reads {
    fn prepare(&self, session: &mut impl Session, values: &mut Values) -> Result<()> {
        ensure!(self.rows >= self.how.rows() as u64, "there are fewer rows than are read at a time");
        if self.how == How::GetRecent { Ok(()) } else { session.load(values.rows(0..self.rows)) }
    }

    fn client(&self, session: &mut impl Session, client: &mut Client) -> Result<()> {
        if client.number == 0 {
            if self.how == How::GetRecent {
                let mut values = Values { dice: Dice::new(client.seed, 1), bytes: client.value_bytes };
                session.load(values.rows(0..self.rows))?;
            }
            // What fits the cache is in the cache.
            sum(&session.reader(None)?)?;
        }
        client.is_ready();
        let reader = session.reader(None)?;
        let rows = Rows::new(self.rows, self.skew)?;
        match self.how {
            How::Get | How::GetRecent => {
                while client.goes_on() {
                    let row = rows.draw(&mut client.dice);
                    client.reads(|| {
                        let mut found = u64::MAX;
                        reader.get(&key(row), |value| found = number(value))?;
                        ensure!(found == row, "row {row} is wrong");
                        Ok(())
                    })?;
                }
            }
            How::MultiGet => {
                while client.goes_on() {
                    let drawn: Vec<u64> = (0..MULTI_GET).map(|_| rows.draw(&mut client.dice)).collect();
                    let keys: Vec<Vec<u8>> = drawn.iter().map(|&row| key(row).to_vec()).collect();
                    client.reads(|| {
                        let mut wanted = drawn.iter();
                        let mut wrong = false;
                        let found = reader.multi_get(&keys, |value| wrong |= wanted.next() != Some(&number(value)))?;
                        ensure!(found == MULTI_GET && !wrong, "one of the rows {drawn:?} is wrong");
                        Ok(())
                    })?;
                }
            }
            How::Scan | How::LongScan => {
                let length = self.how.rows();
                let starts = Rows::new(self.rows - length as u64 + 1, self.skew)?;
                while client.goes_on() {
                    let from = starts.draw(&mut client.dice);
                    client.reads(|| {
                        let (mut next, mut wrong) = (from, false);
                        let found = reader.scan(&key(from), length, |_, value| {
                            wrong |= number(value) != next;
                            next += 1;
                        })?;
                        ensure!(found == length && !wrong, "a scan from row {from} on is wrong");
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
