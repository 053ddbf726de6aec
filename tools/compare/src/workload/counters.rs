//! Counters: each transaction adds one to one of a few.

use std::fmt;

use anyhow::{Result, ensure};
use serde::{Deserialize, Serialize};

use super::{Values, Work, grouped, skewed, sum};
use crate::client::{Client, Total};
use crate::dice::{Rows, Skew, key, number};
use crate::peer::Session;

#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Counters {
    pub counters: u64,
    pub skew: Skew,
}

impl fmt::Display for Counters {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "increment, 1 of {}{}", grouped(self.counters), skewed(self.skew))
    }
}

impl Work for Counters {
    fn prepare(&self, session: &mut impl Session, values: &mut Values) -> Result<()> {
        session.load(values.rows_of(0..self.counters, 0))
    }

    fn client(&self, session: &mut impl Session, client: &mut Client) -> Result<()> {
        let rows = Rows::new(self.counters, self.skew)?;
        while client.goes_on() {
            let counter = key(rows.draw(&mut client.dice));
            let mut value = client.dice.value(0, client.value_bytes);
            client.commits(session, value.len() + counter.len(), 1, |txn| {
                let mut count = 0;
                ensure!(txn.get_to_write(&counter, &mut |value| count = number(value))?, "a counter is missing");
                value[..8].copy_from_slice(&(count + 1).to_be_bytes());
                txn.put(&counter, &value)
            })?;
        }
        Ok(())
    }

    fn verify(&self, session: &mut impl Session, total: &Total) -> Result<()> {
        let (rows, sum) = sum(&session.reader(None)?)?;
        ensure!(rows == self.counters, "{rows} counters are there instead of {}", self.counters);
        ensure!(
            sum == total.commits,
            "the counters add up to {sum}, and {} increments were acknowledged",
            total.commits
        );
        Ok(())
    }
}
