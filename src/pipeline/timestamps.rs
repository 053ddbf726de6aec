//! Allocation of timestamps from the oracle's durable reservation.
//!
//! Every timestamp handed out is at or below the end of the reservation, which is durable, so no
//! later incarnation hands out the same timestamp. A sync extends the reservation, usually well
//! before the reservation is used up. If the reservation is used up, the caller waits for a sync;
//! the caller may be the leader in the middle of a group.

use std::sync::Arc;

use super::group_sync::GroupSync;
use crate::env::Env;
use crate::error::{Error, ErrorKind, Result};
use crate::local_oracle::{LocalOracle, is_exhausted};
use crate::timestamp::Timestamp;

/// Hands out timestamps. If the reservation is used up, waits for the sync that extends it.
pub struct Timestamps {
    oracle: Arc<LocalOracle>,
    env: Arc<dyn Env>,
    sync: Arc<GroupSync>,
}

impl Timestamps {
    pub fn new(oracle: Arc<LocalOracle>, env: Arc<dyn Env>, sync: Arc<GroupSync>) -> Self {
        Self { oracle, env, sync }
    }

    /// A timestamp greater than all others handed out before this call. May wait for a sync.
    pub fn next(&self) -> Result<Timestamp> {
        self.next_and_clock().map(|(ts, _)| ts)
    }

    /// [`Timestamps::next`], and the wall clock in milliseconds since 1970.
    pub fn next_and_clock(&self) -> Result<(Timestamp, u64)> {
        loop {
            let now = self.env.unix_millis();
            if let Some(ts) = self.oracle.next(now) {
                return Ok((ts, now));
            }
            self.sync.wait_for_reservation()?;
        }
    }

    /// [`Timestamps::next`] without a wait; `None` if the reservation is used up.
    #[cfg(feature = "tokio")]
    pub fn try_next(&self) -> Option<Timestamp> {
        self.oracle.next(self.env.unix_millis())
    }

    /// If less than half of the reservation is left, requests a sync that extends it, so that
    /// callers rarely wait.
    pub fn request_reservation(&self) {
        if self.oracle.needs_reservation(self.env.unix_millis()) {
            self.sync.request_sync();
        }
    }

    /// Keeps timestamps from lagging behind the wall clock: see [`LocalOracle::track_wall_clock`].
    /// If the clock has passed the end of the reservation, as after a pause, the next call for a
    /// timestamp then waits until a sync has extended the reservation.
    pub fn track_wall_clock(&self) {
        self.oracle.track_wall_clock();
    }

    /// Makes every later timestamp greater than `ts`, which comes from another store. May wait for
    /// a sync.
    ///
    /// # Errors
    /// `Corruption` if `ts` is so high that no room for reservations is left.
    pub fn advance_past(&self, ts: Timestamp) -> Result<()> {
        if is_exhausted(ts) {
            return Err(exhausted());
        }
        self.oracle.advance_past(ts);
        self.next().map(drop)
    }
}

/// The error when no timestamps are left.
pub fn exhausted() -> Error {
    ErrorKind::Corruption("the timestamp oracle is exhausted".into()).into()
}
