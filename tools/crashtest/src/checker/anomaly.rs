//! What can be wrong with a history, in the words of the field.
//!
//! The names are part of the output format and stay as they are. Snapshot isolation forbids all of these; write skew, which
//! it permits, is not here.

use serde::Serialize;

/// A way to break snapshot isolation, or what clients rely on beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Anomaly {
    /// It read what an aborted transaction wrote (G1a).
    AbortedRead,
    /// It read what another transaction wrote and then overwrote itself (G1b).
    IntermediateRead,
    /// It read what nobody ever wrote.
    GarbageRead,
    /// It did not read what it had written itself.
    LostOwnWrite,
    /// It read the same row twice, and not the same value.
    NonRepeatableRead,
    /// It saw some of another transaction's writes and not the others (G-single, read skew).
    FracturedRead,
    /// A write acknowledged before it began was not there.
    LostAcknowledgedWrite,
    /// A scan missed a row of its snapshot, or showed one that is not in it.
    Phantom,
    /// It and another reader saw two independent writes in opposite orders, so one of them read what does not fit its snapshot.
    LongFork,
    /// It read what had been overwritten before its snapshot, or did not find a row that was there.
    StaleRead,
    /// It read what was committed after its snapshot.
    FutureRead,
    /// A scan showed a row twice, or one outside of its range.
    MalformedScan,
    /// It overwrote what another transaction had written since its snapshot, having read the value before (P4).
    LostUpdate,
    /// Two transactions whose times overlap wrote, or claimed, the same row.
    WriteConflict,
    /// A session went back in time: an older snapshot than before, or than its own last commit.
    SessionOrder,
    /// Its snapshot is older than a commit acknowledged before it began.
    RealTimeOrder,
    /// A transaction's own timestamps are in the wrong order.
    TimestampOrder,
    /// A timestamp that must be unique was used twice.
    TimestampReuse,
}

impl Anomaly {
    /// Every anomaly.
    pub const ALL: [Self; 18] = [
        Self::AbortedRead,
        Self::IntermediateRead,
        Self::GarbageRead,
        Self::LostOwnWrite,
        Self::NonRepeatableRead,
        Self::FracturedRead,
        Self::LostAcknowledgedWrite,
        Self::Phantom,
        Self::LongFork,
        Self::StaleRead,
        Self::FutureRead,
        Self::MalformedScan,
        Self::LostUpdate,
        Self::WriteConflict,
        Self::SessionOrder,
        Self::RealTimeOrder,
        Self::TimestampOrder,
        Self::TimestampReuse,
    ];

    /// Whether it is wrong whatever should have been read instead.
    pub(super) fn is_unconditional(self) -> bool {
        matches!(self, Self::AbortedRead | Self::IntermediateRead | Self::GarbageRead)
    }

    /// The name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::AbortedRead => "aborted-read",
            Self::IntermediateRead => "intermediate-read",
            Self::GarbageRead => "garbage-read",
            Self::LostOwnWrite => "lost-own-write",
            Self::NonRepeatableRead => "non-repeatable-read",
            Self::FracturedRead => "fractured-read",
            Self::LostAcknowledgedWrite => "lost-acknowledged-write",
            Self::Phantom => "phantom",
            Self::LongFork => "long-fork",
            Self::StaleRead => "stale-read",
            Self::FutureRead => "future-read",
            Self::MalformedScan => "malformed-scan",
            Self::LostUpdate => "lost-update",
            Self::WriteConflict => "write-conflict",
            Self::SessionOrder => "session-order",
            Self::RealTimeOrder => "real-time-order",
            Self::TimestampOrder => "timestamp-order",
            Self::TimestampReuse => "timestamp-reuse",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_the_same_in_json() {
        let mut names = Vec::new();
        for anomaly in Anomaly::ALL {
            assert_eq!(serde_json::to_string(&anomaly).unwrap(), format!("{:?}", anomaly.name()));
            names.push(anomaly.name());
        }
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), Anomaly::ALL.len());
    }
}
