//! The cases of asynchronous tasks: those of threads that may differ for tasks, and those that only
//! tasks have.

mod commits;
mod common;
mod conversions;
mod counted;
mod dropping;
mod fences;
mod leases;
mod lost;
mod modes;
mod names;
mod paused;
mod reopening;
mod threads;
mod waiting;
