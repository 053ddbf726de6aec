//! Reads at earlier timestamps: every row has been overwritten several times.

use std::fmt;

use anyhow::{Result, ensure};
use serde::{Deserialize, Serialize};

use super::{RowGenerator, Work, with_thousands};
use crate::client::{Client, Total};
use crate::generator::{RowChooser, Skew, key, number};
use crate::peer::{HistoryTs, Read as _, Session};

/// The number of versions of each row.
const VERSIONS: u64 = 8;
const ROWS_PER_COMMIT: u64 = 1000;
/// The rows that store the timestamps of the versions start here, above all other rows.
const TIMESTAMP_ROWS: u64 = 1 << 48;

#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct TimeTravel {
    pub rows: u64,
}

impl fmt::Display for TimeTravel {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "time-travel read, {VERSIONS} versions of {} rows", with_thousands(self.rows))
    }
}

impl TimeTravel {
    fn timestamps(session: &mut impl Session) -> Result<Vec<HistoryTs>> {
        let mut timestamps = Vec::new();
        session.reader(None)?.scan(&key(TIMESTAMP_ROWS), usize::MAX >> 1, |_, value| timestamps.push(number(value)))?;
        Ok(timestamps)
    }
}

impl Work for TimeTravel {
    fn prepare(&self, session: &mut impl Session, values: &mut RowGenerator) -> Result<()> {
        for version in 0..VERSIONS {
            let mut from = 0;
            while from < self.rows {
                let to = (from + ROWS_PER_COMMIT).min(self.rows);
                let batch: Vec<_> = values.rows_of(from..to, version).collect();
                session.transact(&mut |txn| batch.iter().try_for_each(|(key, value)| txn.put(key, value)))?;
                from = to;
            }
            let timestamp = session.current_ts()?;
            session.transact(&mut |txn| txn.put(&key(TIMESTAMP_ROWS + version), &timestamp.to_be_bytes()))?;
        }
        Ok(())
    }

    fn client(&self, session: &mut impl Session, client: &mut Client) -> Result<()> {
        let timestamps = Self::timestamps(session)?;
        let rows = RowChooser::new(self.rows, Skew::Uniform)?;
        while client.should_continue() {
            let version = client.rng.below(VERSIONS);
            let row = rows.draw(&mut client.rng);
            client.read(|| {
                let mut found = u64::MAX;
                let timestamp = timestamps.get(usize::try_from(version)?).copied();
                session.reader(timestamp)?.get(&key(row), |value| found = number(value))?;
                ensure!(found == version, "row {row} has version {found} instead of {version}");
                Ok(())
            })?;
        }
        Ok(())
    }

    fn verify(&self, session: &mut impl Session, _: &Total) -> Result<()> {
        let timestamps = Self::timestamps(session)?;
        ensure!(timestamps.len() as u64 == VERSIONS, "{} timestamps instead of {VERSIONS}", timestamps.len());
        for (version, timestamp) in timestamps.into_iter().enumerate() {
            let reader = session.reader(Some(timestamp))?;
            for row in 0..self.rows {
                let mut found = u64::MAX;
                reader.get(&key(row), |value| found = number(value))?;
                ensure!(found == version as u64, "row {row} has version {found} instead of {version}");
            }
        }
        Ok(())
    }
}
