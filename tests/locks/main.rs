//! Locks by name, from outside. Each case is a letter of the table in `docs/locks.md`.

mod bad_input;
mod claims;
mod commits;
mod fences;
mod leases;
mod modes;
mod support;
mod table;
#[cfg(feature = "tokio")]
mod tasks;
mod waiting;
