//! Transfers beside a client whose snapshots stay open for ten seconds each (on RocksDB, whose
//! reads use no snapshot, the client only waits and reads). Only the transfers are measured.

use std::fmt;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use serde::{Deserialize, Serialize};

use super::transfers::OPENING_BALANCE;
use super::{RowGenerator, Transfers, Work, sum};
use crate::client::{Client, Total};
use crate::peer::Session;

const SNAPSHOT_AGE: Duration = Duration::from_secs(10);
/// How often the client checks whether the run has ended, because a snapshot must not outlast the
/// run.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct LongSnapshot {
    pub transfers: Transfers,
}

impl fmt::Display for LongSnapshot {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{} beside snapshots of {} s", self.transfers, SNAPSHOT_AGE.as_secs())
    }
}

impl Work for LongSnapshot {
    fn prepare(&self, session: &mut impl Session, values: &mut RowGenerator) -> Result<()> {
        self.transfers.prepare(session, values)
    }

    fn client(&self, session: &mut impl Session, client: &mut Client) -> Result<()> {
        if !client.is_background {
            return self.transfers.client(session, client);
        }
        while client.should_continue() {
            let (reader, started) = (session.reader(None)?, Instant::now());
            while client.should_continue() && started.elapsed() < SNAPSHOT_AGE {
                std::thread::sleep(POLL_INTERVAL);
            }
            // All versions that the snapshot shows must still be available.
            let (rows, sum) = sum(&reader)?;
            ensure!(rows == self.transfers.accounts, "a snapshot has {rows} accounts");
            ensure!(sum == rows * OPENING_BALANCE, "the sum of a snapshot is {sum}");
        }
        Ok(())
    }

    fn verify(&self, session: &mut impl Session, total: &Total) -> Result<()> {
        self.transfers.verify(session, total)
    }
}
