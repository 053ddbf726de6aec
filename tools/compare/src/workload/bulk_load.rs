//! A bulk load: rows in the order of their keys into an empty store, by one client, durable at the end.

use std::fmt;

use anyhow::Result;
use serde::{Deserialize, Serialize};

use super::{Values, Work, check_rows, grouped};
use crate::client::{Client, Total};
use crate::dice::{Dice, key};
use crate::peer::Session;

#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct BulkLoad {
    pub rows: u64,
}

impl fmt::Display for BulkLoad {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "bulk load, sorted, {} rows", grouped(self.rows))
    }
}

impl Work for BulkLoad {
    fn prepare(&self, _: &mut impl Session, _: &mut Values) -> Result<()> {
        Ok(())
    }

    fn client(&self, session: &mut impl Session, client: &mut Client) -> Result<()> {
        if client.number > 0 || !client.goes_on() {
            return Ok(());
        }
        let bytes = client.value_bytes;
        let written = self.rows * (bytes + size_of_val(&key(0))) as u64;
        let mut values = Values { dice: Dice::new(client.seed, 1), bytes };
        client.loads(self.rows, written, || session.load(values.rows(0..self.rows)))
    }

    fn verify(&self, session: &mut impl Session, _: &Total) -> Result<()> {
        check_rows(&session.reader(None)?, self.rows)
    }
}
