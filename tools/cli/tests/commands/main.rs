//! The commands end to end: the built program, real stores, its output and its exit codes.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that cannot go on fails")]
#![allow(clippy::pedantic, missing_docs, reason = "style of a library, not of its tests")]

mod advice;
mod backup;
mod backup_advice;
mod common;
mod errors;
mod few_resources;
mod file_kinds;
mod full_disk;
mod help;
mod history;
mod inspect;
mod load;
mod lock;
mod lock_processes;
mod lock_views;
mod open_stores;
#[path = "../../../../tests/support/orphans.rs"]
mod orphans;
mod rows;
mod shell;
mod text_input;
mod trouble;
