//! The commands as their users meet them: the built program, real stores, its output and its exit codes.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that cannot go on fails")]
#![allow(clippy::pedantic, missing_docs, reason = "style of a library, not of its tests")]

#[path = "commands/backup.rs"]
mod backup;
#[path = "commands/common.rs"]
mod common;
#[path = "commands/help.rs"]
mod help;
#[path = "commands/inspecting.rs"]
mod inspecting;
#[path = "commands/loading.rs"]
mod loading;
#[path = "commands/locking.rs"]
mod locking;
#[path = "../../../tests/support/orphans.rs"]
mod orphans;
#[path = "commands/past.rs"]
mod past;
#[path = "commands/rows.rs"]
mod rows;
#[path = "commands/shell.rs"]
mod shell;
#[path = "commands/showing.rs"]
mod showing;
#[path = "commands/watching.rs"]
mod watching;
#[path = "commands/wrong.rs"]
mod wrong;
