//! Counters: each transaction increments one of a few counters.

use std::fmt;

use anyhow::{Result, ensure};
use serde::{Deserialize, Serialize};

use super::{RowGenerator, Work, skew_suffix, sum, with_thousands};
use crate::client::{Client, Total};
use crate::generator::{RowChooser, Skew, key, number};
use crate::peer::Session;

#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Counters {
    pub counters: u64,
    pub skew: Skew,
}

impl fmt::Display for Counters {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "increment, 1 of {}{}", with_thousands(self.counters), skew_suffix(self.skew))
    }
}

impl Work for Counters {
    fn prepare(&self, session: &mut impl Session, values: &mut RowGenerator) -> Result<()> {
        session.load(values.rows_of(0..self.counters, 0))
    }

    fn client(&self, session: &mut impl Session, client: &mut Client) -> Result<()> {
        let rows = RowChooser::new(self.counters, self.skew)?;
        while client.should_continue() {
            let counter = key(rows.draw(&mut client.rng));
            let mut value = client.rng.value(0, client.value_bytes);
            client.transact(session, value.len() + counter.len(), 1, |txn| {
                let mut count = 0;
                ensure!(txn.get_for_update(&counter, &mut |value| count = number(value))?, "a counter is missing");
                value[..8].copy_from_slice(&(count + 1).to_be_bytes());
                txn.put(&counter, &value)
            })?;
        }
        Ok(())
    }

    fn verify(&self, session: &mut impl Session, total: &Total) -> Result<()> {
        let (rows, sum) = sum(&session.reader(None)?)?;
        ensure!(rows == self.counters, "{rows} counters instead of {}", self.counters);
        ensure!(
            sum == total.commits,
            "the sum of the counters is {sum} instead of {}, the number of acknowledged increments",
            total.commits
        );
        Ok(())
    }
}
