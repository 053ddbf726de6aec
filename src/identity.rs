//! A store's own number: random, and assigned once. It identifies the store in its dumps.
//!
//! Part of a log may be lost. Then the store is not what its earlier dumps are of: they may have what it has no longer, and no
//! increment may follow them. So it gets another number.

use crate::engine::{Engine, EngineError};

/// The name of the number in the store's bookkeeping.
pub const STORE_ID_KEY: &str = "identity";

/// The store's number; `None` where it has none yet.
pub fn load(engine: &dyn Engine) -> Result<Option<u64>, EngineError> {
    let Some(bytes) = engine.get_meta(STORE_ID_KEY)? else { return Ok(None) };
    let number = bytes.try_into().map(u64::from_be_bytes);
    number.map(Some).map_err(|_| EngineError::Corruption("the store's own number is damaged".into()))
}

/// An entry of the bookkeeping.
type Entry = (String, Option<Vec<u8>>);

/// What goes into the bookkeeping when a store is opened: a new number where it has none, or has lost something; else nothing.
pub fn at_opening(engine: &dyn Engine, random: impl FnOnce() -> u64) -> Result<Option<Entry>, EngineError> {
    let entry = || (STORE_ID_KEY.into(), Some(random().to_be_bytes().to_vec()));
    Ok(if load(engine)?.is_none() || !engine.data_losses().is_empty() { Some(entry()) } else { None })
}
