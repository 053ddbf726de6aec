//! The modes of a named lock, and which of them exclude each other.

use std::fmt;

use serde::{Deserialize, Serialize};

/// What a named lock excludes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum LockMode {
    /// One holder, and no other of any mode.
    #[default]
    Exclusive,
    /// Any number of holders, all of them shared.
    Shared,
    /// At most this number of holders, all of them semaphores of the same number.
    Semaphore(u32),
}

impl LockMode {
    /// Whether a request of this mode can be granted beside `others` grants of the mode `other`.
    pub(crate) fn is_compatible_with(self, other: Self, others: usize) -> bool {
        match (self, other) {
            (Self::Shared, Self::Shared) => true,
            (Self::Semaphore(most), Self::Semaphore(_)) => others < most as usize,
            _ => false,
        }
    }

    /// Whether grants of this mode and of the mode `other` exclude each other, whatever their
    /// number.
    pub(crate) fn excludes(self, other: Self) -> bool {
        match (self, other) {
            (Self::Shared, Self::Shared) => false,
            // Semaphores of different numbers can follow each other on a name, but not overlap.
            (Self::Semaphore(most), Self::Semaphore(others)) => most != others,
            _ => true,
        }
    }
}

impl fmt::Display for LockMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exclusive => f.write_str("exclusive"),
            Self::Shared => f.write_str("shared"),
            Self::Semaphore(most) => write!(f, "semaphore({most})"),
        }
    }
}
