//! What a store that keeps history says of itself, and which moments of it can be read.

use crate::engine::{Engine, EngineError};
use crate::error::{Error, ErrorKind, Result};
use crate::timestamp::Timestamp;

/// The name, in the bookkeeping, of what is kept. It is there as long as every commit keeps what it replaces.
pub const RETENTION_KEY: &str = "history";

/// What is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    /// The oldest moment that can be read.
    pub oldest_ts: Timestamp,
    /// How much later it may be than now, in milliseconds.
    pub window_ms: u64,
}

impl Retention {
    /// What the engine keeps, if it keeps history.
    pub fn load(engine: &dyn Engine) -> Result<Option<Self>> {
        let Some(bytes) = engine.get_meta(RETENTION_KEY)? else { return Ok(None) };
        match Self::decode(&bytes) {
            Some(kept) => Ok(Some(kept)),
            None => Err(ErrorKind::Corruption("what is said of the history is damaged".into()).into()),
        }
    }

    /// Notes what is kept, or that nothing is any more.
    pub fn store(kept: Option<Self>, engine: &dyn Engine) -> Result<(), EngineError> {
        let encode = |kept: Self| [kept.oldest_ts.to_u64().to_be_bytes(), kept.window_ms.to_be_bytes()].concat();
        engine.write_meta(&[(RETENTION_KEY.into(), kept.map(encode))])
    }

    /// `None` when the bytes are damaged.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (from, for_ms) = bytes.split_first_chunk()?;
        let from = Timestamp::from_u64(u64::from_be_bytes(*from));
        Some(Self { oldest_ts: from, window_ms: u64::from_be_bytes(for_ms.try_into().ok()?) })
    }
}

/// Refuses a moment that lies before the history.
pub fn check_within_retention(at: Timestamp, from: Option<Timestamp>) -> Result<()> {
    match from {
        None => {
            Err(Error::invalid("the store keeps no history: open it with Builder::history_retention to read the past"))
        }
        Some(from) if at < from && !mutated!(ReadsBelowHistoryFloor) => {
            Err(ErrorKind::SnapshotTooOld(format!("the history begins at {from:#}, and {at:#} lies before that"))
                .into())
        }
        Some(_) => Ok(()),
    }
}

pub fn future_timestamp_error(at: Timestamp) -> Error {
    Error::invalid(format!("{at:#} lies in the future"))
}
