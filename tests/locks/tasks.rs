//! The same cases for tasks.

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
