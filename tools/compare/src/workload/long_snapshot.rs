//! Transfers beside one more client, whose snapshots are held for ten seconds each. The transfers are what is counted.

use std::fmt;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use serde::{Deserialize, Serialize};

use super::transfers::OPENING_BALANCE;
use super::{Transfers, Values, Work, sum};
use crate::client::{Client, Total};
use crate::peer::Session;

const HELD: Duration = Duration::from_secs(10);
/// All rows of a snapshot are read at its end, so that nothing that it needs may have gone; it is not held for longer than the run.
const LOOK_EVERY: Duration = Duration::from_millis(20);

#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct LongSnapshot {
    pub transfers: Transfers,
}

impl fmt::Display for LongSnapshot {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{} beside snapshots of {} s", self.transfers, HELD.as_secs())
    }
}

impl Work for LongSnapshot {
    fn prepare(&self, session: &mut impl Session, values: &mut Values) -> Result<()> {
        self.transfers.prepare(session, values)
    }

    fn client(&self, session: &mut impl Session, client: &mut Client) -> Result<()> {
        if !client.is_extra {
            return self.transfers.client(session, client);
        }
        while client.goes_on() {
            let (view, began) = (session.reader(None)?, Instant::now());
            while client.goes_on() && began.elapsed() < HELD {
                std::thread::sleep(LOOK_EVERY);
            }
            let (rows, sum) = sum(&view)?;
            ensure!(rows == self.transfers.accounts, "a snapshot has {rows} accounts");
            ensure!(sum == rows * OPENING_BALANCE, "the sum of a snapshot is {sum}");
        }
        Ok(())
    }

    fn verify(&self, session: &mut impl Session, total: &Total) -> Result<()> {
        self.transfers.verify(session, total)
    }
}
