//! All tests of `openraft`'s suite for storages.

#![allow(clippy::unwrap_used, missing_docs, reason = "a test that cannot continue fails")]

use openraft::StorageError;
use openraft::testing::{StoreBuilder, Suite};
use percolite::AsyncStore;
use percolite_outside_openraft::{Log, StateMachine, TypeConfig, open};
use tempfile::TempDir;

/// Opens a store in a directory of its own for each test.
struct Directories;

impl StoreBuilder<TypeConfig, Log, StateMachine, TempDir> for Directories {
    async fn build(&self) -> Result<(TempDir, Log, StateMachine), StorageError<u64>> {
        let directory = tempfile::tempdir().unwrap();
        let store = AsyncStore::open(directory.path().join("store")).await.unwrap();
        let (log, machine) = open(store).await.unwrap();
        Ok((directory, log, machine))
    }
}

#[test]
fn all_tests_of_the_suite() {
    Suite::test_all(Directories).unwrap();
}
