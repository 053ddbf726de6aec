//! All tests of `gluesql-test-suite`.

#![allow(clippy::unwrap_used, clippy::wildcard_imports, missing_docs, reason = "a test that cannot continue fails")]

use gluesql_core::prelude::Glue;
use gluesql_test_suite::*;
use percolite_outside_gluesql::PercoliteStorage;
use tempfile::TempDir;

/// A database in a directory of its own.
struct Database {
    glue: Glue<PercoliteStorage>,
    _directory: TempDir,
}

impl Tester<PercoliteStorage> for Database {
    fn new(_test: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let storage = PercoliteStorage::open(directory.path().join("store")).unwrap();
        Self { glue: Glue::new(storage), _directory: directory }
    }

    fn get_glue(&mut self) -> &mut Glue<PercoliteStorage> {
        &mut self.glue
    }
}

generate_store_tests!(test, Database);
generate_alter_table_tests!(test, Database);
generate_custom_function_tests!(test, Database);
generate_index_tests!(test, Database);
generate_transaction_tests!(test, Database);
generate_alter_table_index_tests!(test, Database);
generate_transaction_alter_table_tests!(test, Database);
generate_transaction_index_tests!(test, Database);
generate_metadata_table_tests!(test, Database);
generate_metadata_index_tests!(test, Database);
