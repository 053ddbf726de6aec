//! Checks of timestamps alone: conflicts, sessions, real time, reuse.
//!
//! Wrong but consistent timestamps would pass the sweep: a store that always shows yesterday's
//! state is perfectly isolated. These checks tie timestamps to what clients observe: a session does
//! not go back in time, and what was committed or read, and acknowledged, before a transaction
//! began is in the transaction's snapshot.

use rustc_hash::FxHashMap;

use crate::history::{History, InternedOp, TxnIndex};

use super::anomaly::Anomaly;
use super::finding::Finding;
use super::sweep::WriteConflict;
use super::writers::last_write;

/// Classifies a conflict.
pub fn classify_conflict(history: &History, conflict: &WriteConflict) -> Finding {
    let WriteConflict { first, second, key } = *conflict;
    let read_first = history.ops(second).iter().find_map(|op| match *op {
        InternedOp::Read(read, _) | InternedOp::ReadForUpdate(read, _) if read == key => Some(true),
        InternedOp::Write(written, _) if written == key => Some(false),
        _ => None,
    });
    let both_write = [first, second].iter().all(|txn| last_write(history, *txn, key).is_some());
    let lost = both_write && read_first == Some(true);
    let anomaly = if lost { Anomaly::LostUpdate } else { Anomaly::WriteConflict };
    let expected =
        format!("no other commit between its read_ts {} and its commit_ts", history.transaction(second).read_ts);
    let found = format!("transaction {} in between", history.transaction(first).id);
    Finding::of_row(history, (anomaly, second, key), expected, found, [first])
}

/// Transactions whose own timestamps are in the wrong order.
pub fn own_timestamps<'h>(history: &'h History, commits: &'h [Option<u64>]) -> impl Iterator<Item = Finding> {
    history.indexed().zip(commits).filter_map(|((txn, transaction), commit_ts)| {
        let read_ts = transaction.read_ts;
        let (expected, found) = match (transaction.start_ts, *commit_ts) {
            (Some(start_ts), _) if start_ts < read_ts => {
                (format!("a start_ts at or above its read_ts {read_ts}"), format!("start_ts {start_ts}"))
            }
            (Some(start_ts), Some(commit_ts)) if commit_ts <= start_ts => {
                (format!("a commit_ts above its start_ts {start_ts}"), format!("commit_ts {commit_ts}"))
            }
            (_, Some(commit_ts)) if commit_ts <= read_ts => {
                (format!("a commit_ts above its read_ts {read_ts}"), format!("commit_ts {commit_ts}"))
            }
            _ => return None,
        };
        Some(Finding::of_times(history, (Anomaly::TimestampOrder, txn), expected, found, None))
    })
}

/// Timestamps that two transactions use.
pub fn reuse<'h>(history: &'h History, commits: &'h [Option<u64>]) -> impl Iterator<Item = Finding> {
    let mut used: Vec<(u64, TxnIndex)> = Vec::with_capacity(2 * commits.len());
    for ((txn, transaction), commit_ts) in history.indexed().zip(commits) {
        used.extend(transaction.start_ts.map(|ts| (ts, txn)));
        used.extend(commit_ts.map(|ts| (ts, txn)));
    }
    used.sort_unstable();
    let mut at = 0;
    std::iter::from_fn(move || {
        loop {
            let [(ts, first), (same, second)] = *used.get(at..at + 2)? else { return None };
            at += 1;
            if ts == same && first != second {
                let (expected, found) = ("unique timestamps".to_owned(), format!("timestamp {ts} twice"));
                let place = (Anomaly::TimestampReuse, second);
                return Some(Finding::of_times(history, place, expected, found, Some(first)));
            }
        }
    })
}

/// Sessions that go back in time. The lines of a session are in the order of its transactions. A
/// snapshot is compared only with the earlier transactions that were acknowledged: a read without
/// an acknowledgement may have shown data that a crash lost.
pub fn sessions(history: &History) -> impl Iterator<Item = Finding> {
    let mut last: FxHashMap<u64, (u64, TxnIndex)> = FxHashMap::default();
    history.indexed().filter_map(move |(txn, transaction)| {
        let known = last.entry(transaction.session).or_insert((0, txn));
        let (least, whose) = *known;
        if transaction.is_acknowledged() {
            let commit_ts = transaction.committed_at().unwrap_or(0);
            *known = (*known).max((commit_ts.max(transaction.read_ts), txn));
        }
        (transaction.read_ts < least).then(|| {
            let expected = format!("a read_ts of at least {least}, as the session has seen or committed");
            let found = format!("read_ts {}", transaction.read_ts);
            Finding::of_times(history, (Anomaly::SessionOrder, txn), expected, found, Some(whose))
        })
    })
}

/// Snapshots older than what was acknowledged before the transaction began: a commit, or a read. A
/// reader without `began` has read the past on purpose.
pub fn real_time(history: &History) -> impl Iterator<Item = Finding> {
    let acknowledged = history.indexed().filter(|(_, txn)| txn.is_acknowledged());
    let mut acknowledged: Vec<(u64, u64, TxnIndex)> = acknowledged
        .filter_map(|(index, txn)| {
            let newest = txn.committed_at().or(txn.began.map(|_| txn.read_ts))?;
            Some((txn.ended?, newest, index))
        })
        .collect();
    acknowledged.sort_unstable();
    let mut began: Vec<(u64, TxnIndex)> =
        history.indexed().filter_map(|(index, txn)| Some((txn.began?, index))).collect();
    began.sort_unstable();

    let mut acknowledged = acknowledged.into_iter().peekable();
    let mut newest = (0, 0);
    began.into_iter().filter_map(move |(began, txn)| {
        while let Some((_, commit_ts, whose)) = acknowledged.next_if(|(ended, ..)| *ended < began) {
            newest = newest.max((commit_ts, whose));
        }
        let (least, whose) = newest;
        let read_ts = history.transaction(txn).read_ts;
        (read_ts < least).then(|| {
            let expected = format!("a read_ts of at least {least}, acknowledged before it began");
            let found = format!("read_ts {read_ts}");
            Finding::of_times(history, (Anomaly::RealTimeOrder, txn), expected, found, Some(whose))
        })
    })
}
