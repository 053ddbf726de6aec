//! The contract of the engine trait as one suite that runs on every engine, and tests of what only
//! some engines do.
//!
//! Each case becomes one test for each engine: `cargo test --release --test conformance
//! sim_shared::` runs the tests of one engine. To add an engine, add a function to `common.rs` that
//! makes the engine, and a `suite!` line.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that cannot go on fails")]
#![allow(clippy::pedantic, reason = "style of a library, not of its tests")]
#![allow(clippy::cast_possible_truncation, reason = "small numbers")]
#![allow(clippy::type_complexity, reason = "tuples that are compared as a whole")]

mod batches;
mod common;
mod crashes;
mod delete_keyspace;
#[cfg(feature = "rocks")]
mod disk;
mod faults;
mod metadata;
mod network;
mod preconditions;
mod rows;
mod scans;
mod snapshots;
mod steps;

/// Makes the tests of one engine, one for each case. The arguments are the engine's name, a
/// function that makes the engine from a seed, and the seeds.
macro_rules! suite {
    ($engine:ident, $make:path, $seeds:expr) => {
        mod $engine {
            suite! {
                @ $engine, $make, $seeds;
                preconditions: [
                    lock_absent_is_met_by_unlocked_rows_only,
                    lock_unchanged_is_met_by_that_version_only,
                    no_commit_after_allows_a_commit_at_that_timestamp,
                    no_txn_record_sees_the_record,
                    no_txn_record_sees_the_newest_version,
                    safe_point_at_most_allows_that_timestamp,
                    every_precondition_of_a_change_must_be_met,
                    a_refusal_returns_the_row_as_found,
                    a_refusal_names_the_first_change_that_failed,
                ],
                batches: [
                    a_refused_batch_changes_no_row,
                    an_applied_batch_changes_every_row,
                    a_batch_sees_earlier_batches_of_its_call,
                    later_batches_do_not_see_a_refused_one,
                    an_empty_batch_succeeds,
                    a_batch_above_the_limit_is_refused_before_it_begins,
                    concurrent_guarded_changes_lose_no_update,
                    random_changes_match_a_model,
                ],
                rows: [
                    absent_keys_have_no_cells,
                    columns_are_put_and_deleted_independently,
                    data_cells_are_put_and_deleted_by_start_ts,
                    records_and_versions_are_independent,
                    rows_that_are_prefixes_of_each_other_never_mix,
                    keys_and_values_of_any_bytes_and_size_are_read_back,
                    multi_get_matches_single_gets,
                ],
                steps: [
                    every_step_is_idempotent,
                    late_requests_change_nothing,
                    a_lock_only_commit_is_idempotent,
                    a_repeated_commit_of_an_overwritten_row_is_no_rollback,
                    a_late_resolver_changes_nothing,
                    gc_removes_a_deleted_row_after_a_lock_only,
                ],
                snapshots: [
                    a_snapshot_is_unchanged_by_later_writes,
                    a_snapshot_shows_everything_applied_before_it,
                    a_snapshot_is_consistent_across_columns_and_rows,
                ],
                scans: [
                    pages_go_both_ways_within_any_bounds,
                    an_inverted_range_is_empty,
                    no_row_is_missed_or_repeated_at_page_borders,
                    deleted_rows_are_on_no_page,
                    a_scan_cursor_changes_no_result,
                    a_page_ends_when_it_is_large,
                    a_page_that_has_no_cell_is_the_last,
                    locks_and_writes_are_scanned_separately,
                ],
                metadata: [
                    entries_are_listed_by_prefix_in_order,
                    entries_are_set_all_or_none,
                    the_safe_point_never_decreases,
                    the_gc_queue_is_ordered_and_bounded,
                    a_limit_of_zero_lists_nothing,
                    gc_done_removes_the_queue_entry,
                    txn_records_are_listed_by_row_below_a_timestamp,
                ],
                delete_keyspace: [
                    deleting_a_keyspace_leaves_its_neighbours,
                    the_last_keyspace_is_deleted,
                    the_last_keyspace_is_deleted_up_to_its_highest_key,
                ],
            }
        }
    };
    (@ $engine:ident, $make:path, $seeds:expr; $($module:ident: [$($case:ident),* $(,)?],)*) => {
        $($(
            #[test]
            fn $case() {
                crate::common::check(stringify!($engine), $seeds, $make, crate::$module::$case);
            }
        )*)*
    };
}

#[cfg(feature = "rocks")]
suite!(rocks, crate::common::rocks, 0..1);
suite!(sim_embedded, crate::common::sim_embedded, 0..4);
suite!(sim_shared, crate::common::sim_shared, 0..4);
suite!(unreliable_sim, crate::common::unreliable_sim, 0..8);
