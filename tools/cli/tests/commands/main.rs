//! The commands as their users meet them: the built program, real stores, its output and its exit codes.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that cannot go on fails")]
#![allow(clippy::pedantic, missing_docs, reason = "style of a library, not of its tests")]

mod backup;
mod common;
mod help;
mod inspecting;
mod loading;
mod locking;
#[path = "../../../../tests/support/orphans.rs"]
mod orphans;
mod past;
mod rows;
mod shell;
mod showing;
mod watching;
mod wrong;
