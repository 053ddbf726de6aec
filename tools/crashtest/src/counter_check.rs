//! Invariant: a read of a counter shows every increment that was committed before the read, and
//! besides these at most increments of unknown outcome.
//!
//! Increments are counted in the client log: those committed at or below the timestamp of the read,
//! and those of unknown outcome.

use crate::client_log::ClientLog;
use crate::history::{Op, Outcome, Transaction};
use crate::value_encoding::body;
use crate::violation::Violation;
use crate::workload::COUNTER;

/// The first read of the counter that shows too little or too much.
pub fn check_counter(client_log: &ClientLog) -> Option<Violation> {
    let txns: Vec<&Transaction> = client_log.entries().map(|entry| &entry.txn).collect();
    let increments = || txns.iter().filter(|txn| txn.outcome != Outcome::Aborted && increments(txn));
    let mut committed: Vec<u64> = increments().filter_map(|txn| txn.commit_ts).collect();
    committed.sort_unstable();
    let open = increments().filter(|txn| txn.commit_ts.is_none()).count();
    txns.iter().find_map(|txn| {
        let shown = shown(txn)?;
        let min = committed.partition_point(|ts| *ts <= txn.read_ts);
        let max = min + open;
        let fits = shown.parse().is_ok_and(|count: usize| (min..=max).contains(&count));
        (!fits).then(|| {
            let details = format!(
                "row {COUNTER:?} is {shown:?} for a transaction of session {} that reads at {}; {min} increments were \
                 committed until then and {open} have an unknown outcome",
                txn.session, txn.read_ts
            );
            Violation::new("counter", details)
        })
    })
}

/// The value of the counter that a transaction read before it wrote the counter itself.
fn shown(txn: &Transaction) -> Option<&str> {
    txn.ops
        .iter()
        .find_map(|op| match op {
            Op::Write(key, _) if key == COUNTER => Some(None),
            Op::Read(key, value) | Op::ReadForUpdate(key, value) if key == COUNTER => Some(value.as_deref()),
            Op::Scan { rows, .. } => rows.iter().find(|(key, _)| key == COUNTER).map(|(_, value)| Some(value.as_str())),
            _ => None,
        })?
        .map(body)
}

/// Whether the transaction incremented the counter; setting it to zero does not count.
fn increments(txn: &Transaction) -> bool {
    let written = txn.ops.iter().rev().find_map(|op| match op {
        Op::Write(key, value) if key == COUNTER => value.as_deref(),
        _ => None,
    });
    written.is_some_and(|value| body(value) != "0")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client_log::Entry;

    fn entry(read_ts: u64, commit_ts: Option<u64>, outcome: Outcome, ops: Vec<Op>) -> Entry {
        let txn = Transaction {
            id: None,
            session: 1,
            start_ts: None,
            read_ts,
            commit_ts,
            outcome,
            began: None,
            ended: None,
            ops,
        };
        Entry { txn, incarnation: 0, durable: true, marker: None }
    }

    fn write(value: &str) -> Vec<Op> {
        vec![Op::Write(COUNTER.into(), Some(value.into()))]
    }

    fn passes(shown: &str) -> bool {
        let mut client_log = ClientLog::default();
        client_log.record_commit(1, entry(0, Some(2), Outcome::Committed, write("0|1.1.1|0")));
        client_log.record_commit(2, entry(2, Some(4), Outcome::Committed, write("1|1.2.1|0")));
        client_log.record_commit(3, entry(4, None, Outcome::Aborted, write("2|2.1.1|0")));
        client_log.record_commit(4, entry(4, None, Outcome::Unknown, write("2|3.1.1|0")));
        client_log.record_commit(5, entry(6, Some(9), Outcome::Committed, write("3|1.3.1|0")));
        let read = vec![Op::Read(COUNTER.into(), Some(format!("{shown}|9.9.9|0")))];
        client_log.record_commit(6, entry(7, None, Outcome::Committed, read));
        check_counter(&client_log).is_none()
    }

    #[test]
    fn counter_bounds_are_committed_and_unknown_increments() {
        assert_eq!(["0", "1", "2", "3", "?"].map(passes), [false, true, true, false, false]);
    }
}
