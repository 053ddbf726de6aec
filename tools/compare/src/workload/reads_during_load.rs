//! Point reads while another client loads rows. Only the reads are measured.

use std::fmt;

use anyhow::{Result, ensure};
use serde::{Deserialize, Serialize};

use super::{RowGenerator, Work, check_rows, with_thousands};
use crate::client::{Client, Total};
use crate::generator::{Rng, RowChooser, Skew, key, number};
use crate::peer::{LOAD_BATCH_ROWS, Read as _, Session};

#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ReadsDuringLoad {
    /// The rows of the preparation, which are read.
    pub rows: u64,
}

impl fmt::Display for ReadsDuringLoad {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "point read during a load, {} rows", with_thousands(self.rows))
    }
}

impl Work for ReadsDuringLoad {
    fn prepare(&self, session: &mut impl Session, values: &mut RowGenerator) -> Result<()> {
        session.load(values.rows(0..self.rows))
    }

    fn client(&self, session: &mut impl Session, client: &mut Client) -> Result<()> {
        if client.is_background {
            let bytes = client.value_bytes;
            let mut values = RowGenerator { rng: Rng::new(client.seed, client.number), bytes };
            let mut next = self.rows;
            while client.should_continue() {
                let end = next + LOAD_BATCH_ROWS as u64;
                session.load(values.rows(next..end))?;
                client.note_load(LOAD_BATCH_ROWS as u64, (LOAD_BATCH_ROWS * (bytes + size_of_val(&key(0)))) as u64);
                next = end;
            }
            return Ok(());
        }
        let rows = RowChooser::new(self.rows, Skew::Uniform)?;
        while client.should_continue() {
            let row = rows.draw(&mut client.rng);
            client.read(|| {
                let mut found = u64::MAX;
                // A new view for each read, so that the view includes the rows loaded meanwhile.
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
