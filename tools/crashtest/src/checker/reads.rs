//! The classification of reads that do not show what they should.
//!
//! The sweep gives the expected value and its writer. The writer of the value that *was* read
//! decides the anomaly. Three facts make the anomaly more specific: another operation of the reader
//! has read another value of the row; the reader saw only a part of the writes of another
//! transaction; the missing write was acknowledged before the reader began.

use crate::history::{History, InternedOp, Key, Outcome, TxnIndex, Value};

use super::anomaly::Anomaly;
use super::finding::{Finding, value_json};
use super::sweep::{BadScanRow, Mismatch, Writer};
use super::writers::{Writers, last_write};

/// Possible origins of a value, from the most to the least likely.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Origin {
    /// Committed before the snapshot; the number is the distance of the commit from the snapshot.
    Before(u64, Option<TxnIndex>),
    /// Committed after the snapshot.
    After(u64, TxnIndex),
    /// Written by the reader itself, later.
    OwnLater,
    /// Overwritten by its writer.
    Intermediate(TxnIndex),
    /// The writer was aborted, or its outcome is unknown and no commit was inferred for it.
    Aborted(TxnIndex),
    /// No known writer.
    Unwritten,
}

/// The data for the classification.
pub struct Classifier<'h> {
    /// The history.
    pub history: &'h History,
    /// The commit timestamp of each transaction that committed.
    pub commits: &'h [Option<u64>],
    /// The writers of all values.
    pub writers: &'h Writers,
}

impl Classifier<'_> {
    /// Classifies a read.
    pub fn classify(&self, read: &Mismatch) -> Finding {
        let origin = if read.writer == Writer::Own { Origin::Unwritten } else { self.origin(read) };
        let expected_of = match read.writer {
            Writer::Other(txn) => Some(txn),
            Writer::Initial | Writer::Own => None,
        };
        let found_of = match origin {
            Origin::Before(_, txn) => txn,
            Origin::After(_, txn) | Origin::Intermediate(txn) | Origin::Aborted(txn) => Some(txn),
            Origin::OwnLater | Origin::Unwritten => None,
        };
        let (anomaly, other_key) = match origin {
            _ if read.writer == Writer::Own => (Anomaly::LostOwnWrite, None),
            Origin::Aborted(_) => (Anomaly::AbortedRead, None),
            Origin::Intermediate(_) => (Anomaly::IntermediateRead, None),
            Origin::Unwritten if read.found != Value::NONE => (Anomaly::GarbageRead, None),
            _ if self.has_other_read(read) => (Anomaly::NonRepeatableRead, None),
            Origin::Before(..) | Origin::Unwritten => self.classify_old(read, expected_of),
            Origin::After(_, writer) => self.classify_new(read, writer),
            Origin::OwnLater => (Anomaly::FutureRead, None),
        };
        let fork = matches!(anomaly, Anomaly::StaleRead | Anomaly::FutureRead)
            .then(|| self.find_long_fork(read.txn, read.key, read.found))
            .flatten();
        let anomaly = if fork.is_some() { Anomaly::LongFork } else { anomaly };
        let others = expected_of.into_iter().chain(found_of);
        let (expected, found) = (value_json(self.history, read.expected), value_json(self.history, read.found));
        let mut finding = Finding::of_row(self.history, (anomaly, read.txn, read.key), expected, found, others);
        finding.keys.extend(other_key);
        if let Some(fork) = fork {
            finding.keys.push(fork.key);
            finding.involved.extend(fork.involved);
        }
        finding
    }

    fn origin(&self, read: &Mismatch) -> Origin {
        let read_ts = self.history.transaction(read.txn).read_ts;
        let initial = (self.writers.initial(read.key) == read.found).then_some(Origin::Before(u64::MAX, None));
        let written = self.writers.of(read.key, read.found).map(|txn| {
            if last_write(self.history, txn, read.key) != Some(read.found) {
                return if txn == read.txn { Origin::OwnLater } else { Origin::Intermediate(txn) };
            }
            match self.commits[txn as usize] {
                _ if txn == read.txn => Origin::OwnLater,
                Some(ts) if ts <= read_ts => Origin::Before(read_ts - ts, Some(txn)),
                Some(ts) => Origin::After(ts - read_ts, txn),
                None => Origin::Aborted(txn),
            }
        });
        // All deletions look the same. So a missing row is attributed only to a committed state,
        // not to a deletion that was aborted or that its own transaction overwrote.
        let explains =
            |origin: &Origin| read.found != Value::NONE || matches!(origin, Origin::Before(..) | Origin::After(..));
        written.chain(initial).filter(explains).min().unwrap_or(Origin::Unwritten)
    }

    /// Classifies a read that should have shown a newer value.
    fn classify_old(&self, read: &Mismatch, missed: Option<TxnIndex>) -> (Anomaly, Option<Key>) {
        let reader = self.history.transaction(read.txn);
        let Some(missed) = missed else { return (self.classify_scan(read, Anomaly::StaleRead), None) };
        let seen = |key, value| value != Value::NONE && last_write(self.history, missed, key) == Some(value);
        if let Some(key) = self.find_external(read, |key, value| key != read.key && seen(key, value)) {
            return (Anomaly::FracturedRead, Some(key));
        }
        let writer = self.history.transaction(missed);
        let acknowledged =
            writer.outcome == Outcome::Committed && writer.ended.zip(reader.began).is_some_and(|(a, b)| a < b);
        (if acknowledged { Anomaly::LostAcknowledgedWrite } else { self.classify_scan(read, Anomaly::StaleRead) }, None)
    }

    /// Classifies a read of a value that was committed after the snapshot.
    fn classify_new(&self, read: &Mismatch, writer: TxnIndex) -> (Anomaly, Option<Key>) {
        let missed = |key, value| last_write(self.history, writer, key).is_some_and(|written| written != value);
        match self.find_external(read, |key, value| key != read.key && missed(key, value)) {
            Some(key) => (Anomaly::FracturedRead, Some(key)),
            None => (self.classify_scan(read, Anomaly::FutureRead), None),
        }
    }

    /// A scan with the wrong rows is a phantom; a scan with a wrong value is classified like a
    /// point read.
    fn classify_scan(&self, read: &Mismatch, otherwise: Anomaly) -> Anomaly {
        let scanned = matches!(self.history.ops(read.txn)[read.step], InternedOp::Scan(_));
        let differs = (read.expected == Value::NONE) != (read.found == Value::NONE);
        if scanned && differs { Anomaly::Phantom } else { otherwise }
    }

    /// Whether another read of the transaction returned another value of the same row.
    fn has_other_read(&self, read: &Mismatch) -> bool {
        self.find_external(read, |key, value| key == read.key && value != read.found).is_some()
    }

    /// The first row that the transaction read without having written it, and for which `wanted`
    /// holds.
    fn find_external(&self, read: &Mismatch, wanted: impl Fn(Key, Value) -> bool) -> Option<Key> {
        let mut own = rustc_hash::FxHashSet::default();
        for op in self.history.ops(read.txn) {
            match *op {
                InternedOp::Write(key, _) => {
                    own.insert(key);
                }
                InternedOp::Read(key, value) | InternedOp::ReadForUpdate(key, value) => {
                    if wanted(key, value) && !own.contains(&key) {
                        return Some(key);
                    }
                }
                InternedOp::Scan(scan) => {
                    let shown = self.history.rows(scan).iter();
                    let mut seen = shown.filter(|(key, value)| wanted(*key, *value) && !own.contains(key));
                    if let Some((key, _)) = seen.next() {
                        return Some(*key);
                    }
                }
            }
        }
        None
    }

    /// Classifies a row that a scan showed twice, or that is outside of the scan's range.
    pub fn classify_scan_row(&self, row: &BadScanRow) -> Finding {
        let place = (Anomaly::MalformedScan, row.txn, row.key);
        let (expected, found) = if row.twice {
            ("each row once", "a row twice")
        } else {
            ("rows of the range", "a row outside of the range")
        };
        Finding::of_row(self.history, place, expected.to_owned(), found.to_owned(), None)
    }
}
