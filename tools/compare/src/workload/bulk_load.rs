//! A bulk load: sorted rows into an empty store, by one client, durable at its end.

use std::fmt;

use anyhow::Result;
use serde::{Deserialize, Serialize};

use super::{RowGenerator, Work, check_rows, with_thousands};
use crate::client::{Client, Total};
use crate::generator::{Rng, key};
use crate::peer::Session;

#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct BulkLoad {
    pub rows: u64,
}

impl fmt::Display for BulkLoad {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "bulk load, sorted, {} rows", with_thousands(self.rows))
    }
}

impl Work for BulkLoad {
    fn prepare(&self, _: &mut impl Session, _: &mut RowGenerator) -> Result<()> {
        Ok(())
    }

    fn client(&self, session: &mut impl Session, client: &mut Client) -> Result<()> {
        if client.number > 0 || !client.should_continue() {
            return Ok(());
        }
        let bytes = client.value_bytes;
        let written = self.rows * (bytes + size_of_val(&key(0))) as u64;
        let mut values = RowGenerator { rng: Rng::new(client.seed, 1), bytes };
        client.load(self.rows, written, || session.load(values.rows(0..self.rows)))
    }

    fn verify(&self, session: &mut impl Session, _: &Total) -> Result<()> {
        check_rows(&session.reader(None)?, self.rows)
    }
}
