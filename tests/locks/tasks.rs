//! The same cases for tasks.

mod commits;
mod common;
mod conversions;
mod counted;
mod dropping;
mod ends;
mod fences;
mod leases;
mod lost;
mod modes;
mod names;
mod paused;
mod threads;
mod waiting;
