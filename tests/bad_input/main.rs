//! Bad input: what is answered to it, and that nothing is lost by it.
//!
//! | input | what happens | test |
//! |---|---|---|
//! | an empty key | `InvalidArgument`, also where it is read | `a_key_that_no_row_can_have_is_refused_by_reads_as_by_writes` |
//! | a key over the limit | `TooLarge`, with both sizes | `a_key_that_no_row_can_have_is_refused_by_reads_as_by_writes` |
//! | a value, or a transaction, over the limit | `TooLarge`; the transaction goes on as it was | `what_is_too_large_is_refused_and_the_transaction_goes_on` |
//! | the same on the command line | exit code 1 | `limits_are_told` |
//! | an option out of its bounds | `InvalidArgument`, with option, value and bounds; nothing is made | `an_option_works_or_is_refused` |
//! | the same on the command line | exit code 2 | `the_store_is_run_with_the_memory_and_the_compression_that_are_asked_for` |
//! | use after close | `Closed`, from everything that can fail | `everything_answers_closed_after_close` |
//! | a second process | `Busy`, exit code 4 | `beside_a_process_that_has_the_store_open_every_command_says_so` |
//! | a folder that is no store | `NotAStore`, exit code 5; it stays as it is | `a_folder_that_is_no_store_is_refused_by_every_command_and_stays_as_it_is` |
//! | a newer format | `NotAStore`, with both formats; it stays as it is | `a_folder_that_is_no_store_is_refused_by_every_command_and_stays_as_it_is` |
//! | a read-only folder | it can be looked at; writing says why not | `a_store_on_a_read_only_file_system_can_be_looked_at_and_says_that_it_cannot_be_written_to` |
//! | a full disk | the store fails; what was acknowledged is there when there is room again | `a_full_disk_costs_nothing_that_was_acknowledged` |
//! | a corrupt record, in each column | `Corruption`, naming column and place; all else goes on; `verify` tells | `a_corrupt_record_is_named_and_costs_nothing_else` |
//! | records that contradict each other | `Corruption`; no call and no closing hangs | `a_lock_that_its_commit_cannot_reach_is_an_error_and_not_a_loop` |
//! | a clock set back | timestamps go on from where they were | `a_clock_set_back_an_hour_over_a_restart_is_overtaken` |
//! | an unknown keyspace | `KeyspaceNotFound`, exit code 3 with those that there are | `an_unknown_keyspace_is_told_with_those_that_there_are` |
//! | a name too long or not allowed | `InvalidArgument`; there is no such keyspace where one is looked for | `a_name_that_is_not_allowed_is_refused_before_anything_is_made` |
//! | another store's keyspace | `InvalidArgument` | `a_keyspace_of_another_store_is_refused` |
//! | a range that starts after its end | it is empty | `a_range_that_starts_after_its_end_is_empty` |
//! | the same on the command line | exit code 2 | `a_command_line_that_makes_no_sense_is_exit_code_2` |
//! | a snapshot older than the history | `SnapshotTooOld`, with where it begins | `moments_that_cannot_be_read_are_refused` |
//! | a transaction used after `commit` | it does not compile | `Txn::commit`'s documentation |
//! | one used after it met a conflict while streaming | it repeats the conflict | `a_write_that_meets_a_conflict_ends_it` |
//! | a panic inside the closure | it goes on to the caller; nothing is written, held or left | `a_panic_in_the_closure_leaves_nothing_behind` |
//! | 100,000 live snapshots | each shows its own moment | `a_hundred_thousand_snapshots_each_show_their_own_moment` |
//! | nested `transact` | two transactions; a row that both write exhausts the outer one | `nested_transactions_are_two` |
//! | a closure that never stops conflicting | `RetriesExhausted`, after the attempts or the time given | `a_closure_that_never_stops_conflicting_is_given_up` |
//! | any bytes as a record, a key | an error or a record, never a panic | `no_bytes_make_decoding_panic`, `damaged_records_do_not_make_decoding_panic`, `no_bytes_make_splitting_panic` |
//! | any text as an argument, a statement | an error or a meaning, never a panic | `no_argument_makes_reading_it_panic`, `no_line_makes_a_statement_panic` |
//! | a damaged dump | all of it is refused | `a_dump_that_was_cut_off_or_damaged_is_refused_and_leaves_nothing` |
//! | a damaged folder | an error, or a store that is whole up to a commit, or one of which `verify` tells | `a_damaged_folder_never_passes_for_a_whole_one` |
//!
//! The last kinds are random. Each run takes a small number of cases; `PROPTEST_CASES=1000` takes as many as it says.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that cannot go on fails")]
#![allow(clippy::pedantic, missing_docs, reason = "style of a library, not of its tests")]

mod calls;
mod closures;
mod corrupt;
#[cfg(feature = "rocks")]
mod folders;
#[cfg(feature = "rocks")]
#[path = "../support/folders.rs"]
mod folders_of_stores;
mod snapshots;

/// Every test that the table names exists.
#[test]
fn the_table_names_tests_that_there_are() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut sources = String::new();
    let mut folders = ["src", "tests", "tools/cli/src", "tools/cli/tests"].map(|folder| root.join(folder)).to_vec();
    while let Some(folder) = folders.pop() {
        // The command line is not part of the published crate.
        for entry in std::fs::read_dir(folder).into_iter().flatten() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
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
