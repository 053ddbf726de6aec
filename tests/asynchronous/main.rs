//! The asynchronous store: dropped futures, panics, both kinds of runtimes and their shutdown,
//! streams.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that cannot go on fails")]
#![allow(clippy::pedantic, missing_docs, reason = "style of a library, not of its tests")]

mod cancelling;
mod common;
mod dropping;
#[path = "../support/hooked_engine.rs"]
#[allow(dead_code, reason = "the cases of the store use more of it")]
mod hooked_engine;
mod runtimes;
mod scans;
#[path = "../support/mod.rs"]
mod support;
