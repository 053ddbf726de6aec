//! Point reads while one more client loads rows all the time. The reads are what is counted.

use std::fmt;

use anyhow::{Result, ensure};
use serde::{Deserialize, Serialize};

use super::{Values, Work, check_rows, grouped};
use crate::client::{Client, Total};
use crate::dice::{Dice, Rows, Skew, key, number};
use crate::peer::{LOAD_ROWS, Read as _, Session};

#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ReadsDuringLoad {
    /// That are there before, and are read.
    pub rows: u64,
}

impl fmt::Display for ReadsDuringLoad {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "point read during a load, {} rows", grouped(self.rows))
    }
}

impl Work for ReadsDuringLoad {
    fn prepare(&self, session: &mut impl Session, values: &mut Values) -> Result<()> {
        session.load(values.rows(0..self.rows))
    }

    fn client(&self, session: &mut impl Session, client: &mut Client) -> Result<()> {
        if client.is_extra {
            let bytes = client.value_bytes;
            let mut values = Values { dice: Dice::new(client.seed, client.number), bytes };
            let mut next = self.rows;
            while client.goes_on() {
                let end = next + LOAD_ROWS as u64;
                session.load(values.rows(next..end))?;
                client.loaded(LOAD_ROWS as u64, (LOAD_ROWS * (bytes + size_of_val(&key(0)))) as u64);
                next = end;
            }
            return Ok(());
        }
        let rows = Rows::new(self.rows, Skew::Uniform)?;
        while client.goes_on() {
            let row = rows.draw(&mut client.dice);
            client.reads(|| {
                let mut found = u64::MAX;
                // A view each, since what is loaded is to be seen.
                session.reader(None)?.get(&key(row), |value| found = number(value))?;
                ensure!(found == row, "row {row} is wrong");
                Ok(())
            })?;
        }
        Ok(())
    }

    fn verify(&self, session: &mut impl Session, total: &Total) -> Result<()> {
        check_rows(&session.reader(None)?, self.rows + total.loaded)
    }
}
