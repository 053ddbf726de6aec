//! Bad input: it must return the right error, and lose nothing.
//!
//! | input | what happens | test |
//! |---|---|---|
//! | an empty key | `InvalidArgument`, from reads too | `an_invalid_key_is_refused_by_reads_and_writes` |
//! | a key above the limit | `TooLarge`, with both sizes | `an_invalid_key_is_refused_by_reads_and_writes` |
//! | a value or a transaction above the limit | `TooLarge`; the transaction continues unchanged | `a_too_large_write_is_refused_and_changes_nothing` |
//! | the same on the command line | exit code 1 | `limits_are_in_the_error` |
//! | an option out of its bounds | `InvalidArgument`, with option, value and bounds; no file is created | `an_option_works_or_is_refused` |
//! | the same on the command line | exit code 2 | `memory_budget_and_compression_options_apply` |
//! | use after close | `Closed`, from every call that can fail | `every_call_returns_closed_after_close` |
//! | a second process | `AlreadyOpen`, exit code 4 | `every_command_reports_a_busy_store` |
//! | a directory that is no store | `UnrecognizedFormat`, exit code 5; it is unchanged | `a_directory_that_is_no_store_is_refused_unchanged` |
//! | a newer format | `UnrecognizedFormat`, with both formats; it is unchanged | `a_directory_that_is_no_store_is_refused_unchanged` |
//! | a read-only directory | it can be read; a write names the reason | `a_store_on_a_read_only_file_system_can_be_read` |
//! | a full disk | the store fails; acknowledged commits are there once there is space | `a_full_disk_loses_no_acknowledged_row` |
//! | a corrupt record, in each column | `Corruption`, with column and row; other rows work; `verify` reports it | `a_corrupt_record_is_named_and_affects_no_other` |
//! | records that contradict each other | `Corruption`; neither a call nor `close` hangs | `a_lock_above_its_commit_ts_is_an_error_not_a_loop` |
//! | a clock set back | timestamps still increase | `timestamps_rise_when_the_clock_is_set_back_over_a_restart` |
//! | an unknown keyspace | `KeyspaceNotFound`, exit code 3 and the existing names | `the_error_of_an_unknown_keyspace_lists_the_others` |
//! | a name too long or not allowed | `InvalidArgument` to create it, `KeyspaceNotFound` to open it | `invalid_names_are_refused_before_creation` |
//! | another store's keyspace | `InvalidArgument` | `a_keyspace_of_another_store_is_refused` |
//! | a range that starts after its end | it is empty | `a_range_that_starts_after_its_end_is_empty` |
//! | the same on the command line | exit code 2 | `an_invalid_command_line_is_exit_code_2` |
//! | a snapshot older than the history | `SnapshotTooOld`, with the history's first timestamp | `unreadable_timestamps_are_refused` |
//! | a transaction used after `commit` | it does not compile | `Txn::commit`'s documentation |
//! | a large transaction used after a conflict | it repeats the conflict | `a_conflict_ends_a_large_transaction` |
//! | a panic in the closure | it reaches the caller; no writes, locks or permits are left | `a_panic_in_the_closure_releases_everything` |
//! | 100,000 open snapshots | each shows its own state | `a_hundred_thousand_snapshots_each_show_their_state` |
//! | nested `transact` | two transactions; a row that both write exhausts the retries of the outer one | `nested_transactions_are_two` |
//! | a closure that always conflicts | `RetriesExhausted`, after the attempts or the timeout | `endless_conflicts_exhaust_the_retries` |
//! | any bytes as a record, a key | an error or a record, never a panic | `decoding_a_record_never_panics`, `decoding_a_damaged_record_never_panics`, `decoding_a_key_never_panics` |
//! | any text as an argument, a statement | an error or a parsed value, never a panic | `decoding_an_argument_never_panics`, `parsing_never_panics` |
//! | a damaged dump | it is refused as a whole | `a_truncated_or_damaged_dump_restores_nothing` |
//! | a damaged table, met by a compaction | `Corruption`, from every later call too | `a_damaged_table_met_by_a_compaction_is_corruption` |
//! | a damaged directory | an error, the state after some commit, or damage that `verify` reports | `a_damaged_directory_never_passes_as_intact` |
//!
//! Bytes, texts and damage to directories are random. A run tries a small number of cases;
//! `PROPTEST_CASES=1000` sets another number.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that cannot go on fails")]
#![allow(clippy::pedantic, missing_docs, reason = "style of a library, not of its tests")]

mod calls;
mod closures;
mod corrupt;
#[cfg(feature = "rocks")]
mod damaged_tables;
#[cfg(feature = "rocks")]
mod directories;
mod snapshots;
#[cfg(feature = "rocks")]
#[path = "../support/directories.rs"]
mod store_directories;

#[test]
fn every_test_in_the_table_exists() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut sources = String::new();
    let mut directories =
        ["src", "tests", "tools/cli/src", "tools/cli/tests"].map(|directory| root.join(directory)).to_vec();
    while let Some(directory) = directories.pop() {
        // The published crate does not contain the command line, so its directories may be missing.
        for entry in std::fs::read_dir(directory).into_iter().flatten() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                directories.push(path);
            } else if path.extension().is_some_and(|end| end == "rs") {
                sources += &std::fs::read_to_string(path).unwrap();
            }
        }
    }
    let rows = include_str!("main.rs").lines().filter_map(|line| line.strip_prefix("//! | "));
    let named: Vec<&str> =
        rows.skip(1).flat_map(|row| row.split('|').nth(2).unwrap().split('`').skip(1).step_by(2)).collect();
    assert!(named.len() > 25, "{named:?}");
    for name in named.into_iter().filter(|name| !name.contains("::")) {
        assert!(sources.contains(&format!("fn {name}(")), "there is no test {name}");
    }
}
