//! Copies of a store that are made beside its clients.
//!
//! A copy that was cut short is no store; one that opens has everything that was acknowledged before it was begun, and is a
//! store like any that was killed.

use std::path::{Path, PathBuf};

use percolite::engine::EngineError;
use percolite::{Error, Store, Timestamp};

use crate::client_log::ClientLog;
use crate::verify_store::{SMALL_STORE, open_engine};
use crate::violation::Violation;

/// A copy that was begun.
#[derive(Clone, Debug)]
pub struct Checkpoint {
    /// Which.
    pub number: u64,
    /// What its clients were told until then, and all that they asked for.
    pub client_log: ClientLog,
    /// Whether it was finished.
    pub done: bool,
}

/// Where a copy of the store in `folder` is.
pub fn checkpoint_path(folder: &Path, number: u64) -> PathBuf {
    folder.with_extension("copies").join(number.to_string())
}

/// Whether a copy that was cut short is refused; the answer is whether there is one that must be a store.
pub fn is_store(folder: &Path, checkpoint: &Checkpoint) -> Result<bool, Violation> {
    const PROMISE: &str = "atomic checkpoint";
    let number = checkpoint.number;
    if !folder.exists() {
        return if checkpoint.done {
            Err(Violation::new(PROMISE, format!("copy {number} is gone")))
        } else {
            Ok(false)
        };
    }
    if checkpoint.done || folder.join("PERCOLITE").exists() {
        return Ok(true);
    }
    // What is first of a copy is a folder, and an empty one may become a store.
    if folder.read_dir().is_ok_and(|mut entries| entries.next().is_none()) {
        return Ok(false);
    }
    match open_engine(folder, SMALL_STORE) {
        Err(EngineError::NotAStore(_)) => Ok(false),
        other => Err(Violation::new(
            PROMISE,
            format!("copy {number} was cut short and opens with {:?}", other.map(drop).err()),
        )),
    }
}

/// Above this nothing was handed out in a store that nobody has open.
///
/// # Errors
/// Those of opening it.
pub fn last_timestamp(folder: &Path) -> Result<Timestamp, Error> {
    Ok(Store::builder().read_only(true).open(folder)?.snapshot()?.read_ts())
}
