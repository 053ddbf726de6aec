//! Anomalies, with their names from the literature (Adya, Berenson et al., Elle).
//!
//! The names are part of the output format and must not change. Write skew has no name here,
//! because snapshot isolation permits it.

use serde::Serialize;

/// A violation of snapshot isolation, of session order or of real-time order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Anomaly {
    /// A read of a value that an aborted transaction wrote (G1a).
    AbortedRead,
    /// A read of a value that its writer overwrote itself (G1b).
    IntermediateRead,
    /// A read of a value that no transaction wrote.
    GarbageRead,
    /// A read that does not show the transaction's own write.
    LostOwnWrite,
    /// Two reads of one row in one transaction with different values.
    NonRepeatableRead,
    /// A transaction that sees only a part of the writes of another transaction (G-single, read
    /// skew).
    FracturedRead,
    /// A write that was acknowledged before the reader began is missing.
    LostAcknowledgedWrite,
    /// A scan that lacks a row of its snapshot, or shows one that is not in it.
    Phantom,
    /// A read that does not match its snapshot; together with the reads of another transaction it
    /// shows two independent writes in opposite orders.
    LongFork,
    /// A read that shows a value which was overwritten before the snapshot, or no row although the
    /// row exists.
    StaleRead,
    /// A read of a value that was committed after the snapshot.
    FutureRead,
    /// A scan that shows a row twice, or one outside of its range.
    MalformedScan,
    /// A transaction read and wrote a row, and between its snapshot and its commit another
    /// transaction committed a write of the row (P4).
    LostUpdate,
    /// Two overlapping transactions wrote or locked the same row.
    WriteConflict,
    /// A snapshot that is older than an earlier snapshot or commit of the same session.
    SessionOrder,
    /// A snapshot that is older than a commit acknowledged before the transaction began.
    RealTimeOrder,
    /// The timestamps of a transaction are in the wrong order.
    TimestampOrder,
    /// A timestamp that must be unique was used twice.
    TimestampReuse,
}

impl Anomaly {
    /// All anomalies.
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

    /// Whether the found value is wrong by itself, whatever value was expected.
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
    fn names_are_unique_and_match_json() {
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
