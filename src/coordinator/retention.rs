//! The retention record: whether the store keeps history, and the oldest timestamp that can be
//! read. It is an entry of the store's metadata, so every opening continues the same history.

use crate::engine::{Engine, EngineError};
use crate::error::{Error, ErrorKind, Result};
use crate::timestamp::Timestamp;

/// Name of the retention record in the metadata. The record exists while every commit keeps the
/// versions that it replaces.
pub const RETENTION_KEY: &str = "history";

/// The history that a store keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    /// The oldest timestamp that can be read.
    pub oldest_ts: Timestamp,
    /// How long a replaced version stays readable, in milliseconds.
    pub window_ms: u64,
}

impl Retention {
    /// Reads the record; `None` if no history is kept.
    pub fn load(engine: &dyn Engine) -> Result<Option<Self>> {
        let Some(bytes) = engine.get_meta(RETENTION_KEY)? else { return Ok(None) };
        match Self::decode(&bytes) {
            Some(kept) => Ok(Some(kept)),
            None => Err(ErrorKind::Corruption("the history retention record is damaged".into()).into()),
        }
    }

    /// Writes the record, or deletes it for `None`.
    pub fn store(kept: Option<Self>, engine: &dyn Engine) -> Result<(), EngineError> {
        let encode = |kept: Self| [kept.oldest_ts.to_u64().to_be_bytes(), kept.window_ms.to_be_bytes()].concat();
        engine.write_meta(&[(RETENTION_KEY.into(), kept.map(encode))])
    }

    /// `None` if the bytes are damaged.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (from, for_ms) = bytes.split_first_chunk()?;
        let from = Timestamp::from_u64(u64::from_be_bytes(*from));
        Some(Self { oldest_ts: from, window_ms: u64::from_be_bytes(for_ms.try_into().ok()?) })
    }
}

/// Checks that `at` is within the history. `from`: the oldest readable timestamp; `None` without
/// history.
pub fn check_within_retention(at: Timestamp, from: Option<Timestamp>) -> Result<()> {
    match from {
        None => Err(Error::invalid(
            "the store keeps no history; Builder::history_retention keeps what is replaced from then on",
        )),
        Some(from) if at < from => {
            Err(ErrorKind::SnapshotTooOld(format!("{at:#} is older than the history, which begins at {from:#}")).into())
        }
        Some(_) => Ok(()),
    }
}

pub fn future_timestamp_error(at: Timestamp) -> Error {
    Error::invalid(format!("timestamp {at:#} is in the future"))
}
