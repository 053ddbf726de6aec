//! The store id: a random number that identifies the store in its dumps (RocksDB's `IDENTITY`). It
//! is assigned at the first opening.
//!
//! After a data loss the store gets a new id. Earlier dumps may have rows that the store has lost,
//! so no incremental dump may be based on them.

use crate::engine::{Engine, EngineError};

/// The key of the store id in the meta column.
pub const STORE_ID_KEY: &str = "identity";

/// The store id; `None` if none is assigned yet.
pub fn load(engine: &dyn Engine) -> Result<Option<u64>, EngineError> {
    let Some(bytes) = engine.get_meta(STORE_ID_KEY)? else { return Ok(None) };
    let number = bytes.try_into().map(u64::from_be_bytes);
    number.map(Some).map_err(|_| EngineError::Corruption("corrupt store id".into()))
}

/// An entry of the meta column: key and value.
type Entry = (String, Option<Vec<u8>>);

/// The entry to write when a store is opened: a new id if there is none or after a data loss; else
/// `None`.
pub fn at_opening(engine: &dyn Engine, random: impl FnOnce() -> u64) -> Result<Option<Entry>, EngineError> {
    let entry = || (STORE_ID_KEY.into(), Some(random().to_be_bytes().to_vec()));
    Ok(if load(engine)?.is_none() || !engine.data_losses().is_empty() { Some(entry()) } else { None })
}
