//! Protocol scripts: single steps of the protocol, with all columns after each step.
//!
//! A script in `tests/protocol/scripts/` is a story that DESIGN.md tells: two transfers, a crash on
//! either side of the commit point, a reader that pushes a lock. Each script runs on every engine,
//! and all engines must show the same columns.
//!
//! To add a script, write its commands and run `UPDATE_GOLDENFILES=1 cargo test --release --test
//! protocol`: the output of the simulated engine is written into the script. Read that output
//! before you commit it. `runner.rs` defines the commands.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that cannot go on fails")]
#![allow(clippy::pedantic, reason = "style of a library, not of its tests")]

mod runner;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use percolite::engine::sim::SimStorage;

use crate::runner::Runner;

#[test]
fn simulated_engine_shows_the_columns_of_every_script() {
    for path in scripts() {
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.starts_with("# "), "{} does not begin with a line that says what it shows", path.display());
        let mut runner = Runner::new(Arc::new(SimStorage::new().exclusive_engine()));
        goldenscript::run(&mut runner, &path).unwrap();
    }
}

#[cfg(feature = "rocks")]
#[test]
fn engine_on_disk_shows_the_same_columns() {
    use percolite::engine::Compression;
    use percolite::engine::directory::{DirectoryOptions, DirectoryStorage};
    use percolite::engine::local::LocalEngine;
    let options = DirectoryOptions {
        block_cache_bytes: 4 << 20,
        write_buffer_bytes: 4 << 20,
        compression: Compression::Lz4,
        accept_data_loss: None,
    };
    for path in scripts() {
        let dir = tempfile::tempdir().unwrap();
        let storage = DirectoryStorage::open(dir.path(), options).unwrap();
        let engine = LocalEngine::new(storage, true);
        let expected = std::fs::read_to_string(&path).unwrap();
        let output = goldenscript::generate(&mut Runner::new(Arc::new(engine)), &expected).unwrap();
        assert_eq!(output, expected, "{}", path.display());
    }
}

fn scripts() -> Vec<PathBuf> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/protocol/scripts");
    let mut paths: Vec<PathBuf> = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    assert!(!paths.is_empty());
    paths
}
