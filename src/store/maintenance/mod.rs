//! Calls that take long and report progress: dump and restore, verification, repair.

pub(in crate::store) mod dump;
pub(in crate::store) mod progress;
#[cfg(feature = "rocks")]
pub(in crate::store) mod repair;
pub(in crate::store) mod verify;
