//! A store's own number: random and assigned once. It identifies the store in its dumps.

use crate::engine::{Engine, EngineError};

/// The name of the number in the store's bookkeeping.
pub const IDENTITY: &str = "identity";

/// The store's number; `None` where it has none yet.
pub fn read(engine: &dyn Engine) -> Result<Option<u64>, EngineError> {
    let Some(bytes) = engine.meta(IDENTITY)? else { return Ok(None) };
    let number = bytes.try_into().map(u64::from_be_bytes);
    number.map(Some).map_err(|_| EngineError::Corruption("the store's own number is damaged".into()))
}

/// An entry of the bookkeeping.
type Entry = (String, Option<Vec<u8>>);

/// What goes into the bookkeeping of a store that has none: nothing where it has.
pub fn first(engine: &dyn Engine, random: impl FnOnce() -> u64) -> Result<Option<Entry>, EngineError> {
    let entry = || (IDENTITY.into(), Some(random().to_be_bytes().to_vec()));
    Ok(if read(engine)?.is_none() { Some(entry()) } else { None })
}
