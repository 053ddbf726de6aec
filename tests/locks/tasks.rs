//! The cases of asynchronous tasks: cases of threads in which tasks may behave differently, and
//! cases that exist for tasks only.

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
