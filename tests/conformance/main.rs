//! One suite of promises that every engine keeps, and the tests of what only some engines can do.
//!
//! Each case becomes one test an engine: `cargo test --release --workspace --test conformance sim_shared::`. To add an
//! engine, add a `suite!` line with a function of `common.rs` that makes one.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that cannot go on fails")]
#![allow(clippy::pedantic, reason = "style of a library, not of its tests")]
#![allow(clippy::cast_possible_truncation, reason = "small numbers")]
#![allow(clippy::type_complexity, reason = "tuples that are compared as a whole")]

mod common;
mod crashes;
#[cfg(feature = "rocks")]
mod disk;
mod erasing;
mod faults;
mod groups;
mod guards;
mod metas;
mod network;
mod rows;
mod scans;
mod steps;
mod views;

/// Every case over one engine: a name, how to make one from a seed, and the seeds to try.
macro_rules! suite {
    ($engine:ident, $make:path, $seeds:expr) => {
        mod $engine {
            suite! {
                @ $engine, $make, $seeds;
                guards: [
                    lock_absent_holds_on_an_unlocked_row_only,
                    lock_is_holds_for_that_very_state_only,
                    no_commit_after_allows_a_commit_at_that_timestamp,
                    no_record_of_sees_the_status,
                    no_record_of_sees_the_newest_version,
                    safe_point_below_allows_a_safe_point_at_that_timestamp,
                    every_guard_of_a_change_must_hold,
                    a_refused_row_answers_with_what_was_found,
                    a_refusal_names_the_first_change_whose_guard_fails,
                ],
                groups: [
                    a_refused_group_changes_nothing_in_any_row,
                    an_applied_group_changes_every_row,
                    groups_see_those_before_them_in_the_same_call,
                    a_refused_group_is_not_seen_by_those_after_it,
                    nothing_to_do_is_done,
                    the_limit_is_allowed_and_one_more_refused_before_it_begins,
                    racing_guarded_changes_lose_no_update,
                    random_changes_leave_what_a_model_says,
                ],
                rows: [
                    absent_keys_hold_nothing,
                    every_column_is_put_and_deleted_on_its_own,
                    data_entries_are_put_and_deleted_by_start_ts,
                    statuses_and_versions_do_not_disturb_each_other,
                    rows_that_are_prefixes_of_each_other_never_mix,
                    keys_and_values_of_any_bytes_and_size_come_back,
                    many_cells_at_once_are_what_each_is_alone,
                ],
                steps: [
                    every_step_made_twice_answers_the_same,
                    requests_that_arrive_after_the_end_change_nothing,
                    a_held_row_committed_twice_answers_the_same,
                    a_repeated_commit_is_told_so_though_the_row_has_moved_on,
                    a_resolver_that_comes_late_has_nothing_to_do,
                    a_deleted_row_that_was_held_since_can_be_collected,
                ],
                views: [
                    a_view_stays_as_it_was_while_everything_changes,
                    a_view_sees_everything_applied_before_it,
                    a_view_is_of_one_moment_in_all_columns_and_rows,
                ],
                scans: [
                    pages_go_both_ways_within_any_bounds,
                    an_inverted_range_is_empty,
                    no_row_is_missed_or_repeated_at_page_borders,
                    emptied_rows_are_on_no_page,
                    a_bookmark_changes_no_answer,
                    a_page_ends_when_it_is_large,
                    a_page_that_has_no_cell_is_the_last,
                    locks_and_writes_are_scanned_apart,
                ],
                metas: [
                    entries_come_by_prefix_and_in_order,
                    entries_are_set_all_or_none,
                    the_safe_point_never_goes_back,
                    the_deletions_list_is_ordered_and_bounded,
                    a_list_of_none_is_empty,
                    a_collected_deletion_leaves_the_list,
                    statuses_are_listed_by_row_below_a_timestamp,
                ],
                erasing: [
                    erasing_a_keyspace_leaves_its_neighbours,
                    the_last_keyspace_is_erased_too,
                    the_last_keyspace_is_erased_up_to_its_highest_key,
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
