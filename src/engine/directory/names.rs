//! The names in a store's directory, and random numbers.

use crate::env::{Env as _, SystemEnv};

/// The marker of a store.
pub const MARKER: &str = "PERCOLITE";
/// How the marker's text begins.
pub const MARKER_TEXT: &str = "percolite store, format ";
/// The write-ahead log.
pub const WAL_DIR: &str = "wal";
/// The reserve for a full disk.
pub const RESERVE: &str = "RESERVE";
/// RocksDB's files.
pub const TABLES_DIR: &str = "tables";

/// A random number, for ids, salts and seeds.
pub fn random() -> u64 {
    SystemEnv::default().random()
}
