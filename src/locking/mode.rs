//! The modes of a lock.

use std::fmt;

use serde::{Deserialize, Serialize};

/// What a lock excludes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum LockMode {
    /// One holder, and no other of any mode.
    #[default]
    Exclusive,
    /// Any number of holders, all of them shared.
    Shared,
    /// So many holders at most, all of them of the same semaphore.
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

    /// Whether a grant of this mode excludes one of the mode `other`, however many there are.
    pub(crate) fn excludes(self, other: Self) -> bool {
        match (self, other) {
            (Self::Shared, Self::Shared) => false,
            // Those of another number are not granted beside each other, only after each other.
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
