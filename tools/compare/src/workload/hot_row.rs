//! Reads of one row with many versions, among rows with one version.

use std::fmt;

use anyhow::{Result, ensure};
use serde::{Deserialize, Serialize};

use super::{RowGenerator, Work, with_thousands};
use crate::client::{Client, Total};
use crate::generator::{key, number};
use crate::peer::{Read as _, Session};

/// The row with many versions is in the middle of this many rows.
const ROWS: u64 = 100;
const HOT: u64 = 50;

#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct HotRow {
    pub versions: u64,
}

impl fmt::Display for HotRow {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "read of a row with {} versions", with_thousands(self.versions))
    }
}

impl Work for HotRow {
    fn prepare(&self, session: &mut impl Session, values: &mut RowGenerator) -> Result<()> {
        session.load(values.rows_of(0..ROWS, 1))?;
        for version in 2..=self.versions {
            let value = values.rng.value(version, values.bytes);
            session.transact(&mut |txn| txn.put(&key(HOT), &value))?;
        }
        Ok(())
    }

    fn client(&self, session: &mut impl Session, client: &mut Client) -> Result<()> {
        let reader = session.reader(None)?;
        let versions = self.versions;
        while client.should_continue() {
            client.read(|| {
                let mut found = 0;
                reader.get(&key(HOT), |value| found = number(value))?;
                ensure!(found == versions, "the hot row has version {found} instead of {versions}");
                Ok(())
            })?;
        }
        Ok(())
    }

    fn verify(&self, session: &mut impl Session, _: &Total) -> Result<()> {
        let mut rows = 0;
        let mut sum = 0;
        session.reader(None)?.scan(&[0], usize::MAX >> 1, |_, value| {
            rows += 1;
            sum += number(value);
        })?;
        ensure!(rows == ROWS && sum == ROWS - 1 + self.versions, "{rows} rows have the wrong sum {sum}");
        Ok(())
    }
}
