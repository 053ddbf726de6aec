//! Checkpoints that are made while clients run.
//!
//! A checkpoint with a marker file must open as a store. One that was interrupted before it had
//! this file must be refused. A store that opens must have everything that was acknowledged before
//! the start of the checkpoint, and is verified like a killed store.

use std::path::{Path, PathBuf};

use percolite::engine::EngineError;
use percolite::{Error, Store, Timestamp};

use crate::client_log::ClientLog;
use crate::verify_store::{SMALL_STORE, open_engine};
use crate::violation::Violation;

/// A checkpoint that was started.
#[derive(Clone, Debug)]
pub struct Checkpoint {
    /// The number of the checkpoint.
    pub number: u64,
    /// The client log at the start of the checkpoint, with all later requests and aborts. Later
    /// commits are not in it as committed, because the checkpoint may or may not have them.
    pub client_log: ClientLog,
    /// Whether the checkpoint was completed.
    pub done: bool,
}

/// The path of a checkpoint of the store in `store_dir`.
pub fn checkpoint_path(store_dir: &Path, number: u64) -> PathBuf {
    store_dir.with_extension("checkpoints").join(number.to_string())
}

/// Whether the checkpoint in `store_dir` must open as a store: it was completed, or has its marker
/// file. Returns a violation if a completed checkpoint is missing, or if an interrupted one without
/// a marker file opens.
pub fn is_store(store_dir: &Path, checkpoint: &Checkpoint) -> Result<bool, Violation> {
    const INVARIANT: &str = "atomic checkpoint";
    let number = checkpoint.number;
    if !store_dir.exists() {
        return if checkpoint.done {
            Err(Violation::new(INVARIANT, format!("checkpoint {number} is missing")))
        } else {
            Ok(false)
        };
    }
    if checkpoint.done || store_dir.join("PERCOLITE").exists() {
        return Ok(true);
    }
    // An interrupted checkpoint may leave an empty directory. Such a directory is not opened here,
    // because opening it rightly creates a store.
    if store_dir.read_dir().is_ok_and(|mut entries| entries.next().is_none()) {
        return Ok(false);
    }
    match open_engine(store_dir, SMALL_STORE) {
        Err(EngineError::NotAStore(_)) => Ok(false),
        other => Err(Violation::new(
            INVARIANT,
            format!("checkpoint {number} was interrupted and opens with {:?}", other.map(drop).err()),
        )),
    }
}

/// The high-water mark of the store in `store_dir`: before it was closed or copied, it handed out
/// no timestamp above this.
///
/// # Errors
/// Errors of opening the store.
pub fn last_timestamp(store_dir: &Path) -> Result<Timestamp, Error> {
    Ok(Store::builder().read_only(true).open(store_dir)?.snapshot()?.read_ts())
}
