//! Fedimint's tests of a database.

#![allow(clippy::unwrap_used, missing_docs, reason = "a test that cannot continue fails")]

use fedimint_core::db;
use fedimint_core::db::mem_impl::MemDatabase;
use fedimint_core::db::{Database, IRawDatabaseExt as _};
use percolite_outside_fedimint::PercoliteDatabase;

fn database() -> Database {
    PercoliteDatabase::in_memory().unwrap().into_database()
}

macro_rules! tests {
    ($($name:ident)*) => {
        $(#[tokio::test]
        async fn $name() {
            db::$name(database()).await;
        })*
    };
}

tests! {
    verify_insert_elements
    verify_remove_nonexisting
    verify_remove_existing
    verify_read_own_writes
    verify_prevent_dirty_reads
    verify_find_by_range
    verify_find_by_prefix
    verify_commit
    verify_rollback_to_savepoint
    verify_prevent_nonrepeatable_reads
    verify_snapshot_isolation
    verify_phantom_entry
    expect_write_conflict
    verify_remove_by_prefix
    verify_module_prefix
}

#[tokio::test]
async fn verify_module_db() {
    let database = database();
    let module = database.with_prefix_module_id(1).0;
    db::verify_module_db(database, module).await;
}

/// `verify_string_prefix` writes two keys and asks for four rows. Fedimint does not run it on its
/// own database in memory, where it fails in the same way.
#[tokio::test]
async fn verify_string_prefix_fails_on_fedimints_own_database_too() {
    for database in [database(), MemDatabase::new().into_database()] {
        let failed = tokio::spawn(db::verify_string_prefix(database)).await.unwrap_err().into_panic();
        let message = failed.downcast::<String>().unwrap();
        assert!(message.ends_with("left: 2\n right: 4"), "{message}");
    }
}
