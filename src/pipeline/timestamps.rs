//! Timestamps for transactions, from the oracle's durable reservation.

use std::sync::Arc;

use super::group_sync::GroupSync;
use crate::error::{Error, ErrorKind, Result};
use crate::oracle::{LocalOracle, is_exhausted};
use crate::runtime::Env;
use crate::timestamp::Timestamp;

/// Allocates timestamps, and waits for a sync where the reservation is used up.
pub struct Timestamps {
    oracle: Arc<LocalOracle>,
    env: Arc<dyn Env>,
    sync: Arc<GroupSync>,
}

impl Timestamps {
    pub fn new(oracle: Arc<LocalOracle>, env: Arc<dyn Env>, sync: Arc<GroupSync>) -> Self {
        Self { oracle, env, sync }
    }

    pub fn next(&self) -> Result<Timestamp> {
        self.next_and_clock().map(|(ts, _)| ts)
    }

    /// A timestamp, and the wall clock in milliseconds since 1970.
    pub fn next_and_clock(&self) -> Result<(Timestamp, u64)> {
        loop {
            let now = self.env.unix_millis();
            if let Some(ts) = self.oracle.next(now) {
                return Ok((ts, now));
            }
            self.sync.wait_for_reservation()?;
        }
    }

    /// A timestamp, unless it would have to be waited for.
    #[cfg(feature = "tokio")]
    pub fn try_next(&self) -> Option<Timestamp> {
        self.oracle.next(self.env.unix_millis())
    }

    /// Requests a further reservation when less than half of it is left, so that no caller has to wait
    /// for one.
    pub fn request_reservation(&self) {
        if self.oracle.needs_reservation(self.env.unix_millis()) {
            self.sync.request_sync();
        }
    }

    /// Keeps timestamps close to the wall clock: after a pause the first commit waits for one more sync.
    pub fn track_wall_clock(&self) {
        self.oracle.track_wall_clock();
    }

    /// Makes every later timestamp greater than `ts`, which comes from another store.
    pub fn advance_past(&self, ts: Timestamp) -> Result<()> {
        if is_exhausted(ts) {
            return Err(exhausted());
        }
        self.oracle.advance_past(ts);
        self.next().map(drop)
    }
}

/// The error where no timestamps are left.
pub fn exhausted() -> Error {
    ErrorKind::Corruption("the timestamp oracle is exhausted".into()).into()
}
