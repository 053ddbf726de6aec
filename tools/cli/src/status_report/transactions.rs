//! Transactions of a published status: active ones, calls that retry, slow ones.

use std::time::Duration;

use indicatif::HumanCount;
use percolite::{ActiveTransactionStatus, ConflictStatus, RetryingCallStatus, SlowTransactionStatus};

use super::{MAX_LISTED, NOT_MEASURED, short_duration};
use crate::table;

const ROW_WIDTH: usize = 40;

/// A table of active transactions and snapshots.
pub fn active_table<'a>(active: impl IntoIterator<Item = &'a ActiveTransactionStatus>, total: u64) -> String {
    let row = |txn: &ActiveTransactionStatus| {
        let buffered = HumanCount(txn.buffered_rows);
        [
            txn.kind.clone(),
            txn.label.clone().unwrap_or_else(|| "-".into()),
            txn.owner_id.clone().unwrap_or_else(|| "-".into()),
            short_duration(txn.age),
            if txn.is_large {
                format!("{buffered}, and {} locked", HumanCount(txn.locked_rows))
            } else {
                buffered.to_string()
            },
        ]
    };
    let mut rows: Vec<_> = active.into_iter().take(MAX_LISTED).map(row).collect();
    if let more @ 1.. = total.saturating_sub(rows.len() as u64) {
        rows.push([format!("and {more} more"), String::new(), String::new(), String::new(), String::new()]);
    }
    table::text_table(["active, oldest first", "label", "owner", "age", "rows written"], rows)
}

/// A table of slow transactions; `title` is the header of the first column.
pub fn slow_table<'a>(title: &str, slow: impl IntoIterator<Item = &'a SlowTransactionStatus>) -> String {
    let row = |slow: &SlowTransactionStatus| {
        let mut parts: Vec<(&String, Duration)> = slow
            .breakdown
            .iter()
            .map(|(phase, seconds)| (phase, Duration::try_from_secs_f64(*seconds).unwrap_or_default()))
            .collect();
        parts.sort_by_key(|(_, time)| std::cmp::Reverse(*time));
        let main = parts.iter().take(2).filter(|(_, time)| *time >= slow.duration / 20);
        let parts: Vec<String> = main.map(|(phase, time)| format!("{} {phase}", short_duration(*time))).collect();
        let last_conflict = slow.conflicts.last().map_or_else(|| NOT_MEASURED.into(), conflict_text);
        [
            slow.label.clone().unwrap_or_else(|| "-".into()),
            short_duration(slow.duration),
            slow.attempts.to_string(),
            parts.join("\n"),
            last_conflict,
        ]
    };
    let header = [title, "duration", "attempts", "time spent in", "last conflict"];
    table::text_table(header, slow.into_iter().take(MAX_LISTED).map(row).collect())
}

/// A table of the calls that retry.
pub fn retrying_table(retrying: &[RetryingCallStatus], total: u64) -> String {
    let row = |call: &RetryingCallStatus| {
        [
            call.label.clone().unwrap_or_else(|| "-".into()),
            short_duration(call.age),
            call.failed_attempts.to_string(),
            conflict_text(&call.last_conflict),
        ]
    };
    let mut rows: Vec<_> = retrying.iter().take(MAX_LISTED).map(row).collect();
    if let more @ 1.. = total.saturating_sub(rows.len() as u64) {
        rows.push([format!("and {more} more"), String::new(), String::new(), String::new()]);
    }
    table::text_table(["retrying, oldest first", "age of the call", "failed attempts", "last conflict"], rows)
}

/// The row of a conflict, and the transaction that was first.
fn conflict_text(conflict: &ConflictStatus) -> String {
    let row = row_name(conflict.keyspace.as_deref(), &conflict.key);
    let owner = conflict.owner_id.as_ref().map_or_else(|| "unknown".into(), |owner| format!("owner {owner}"));
    format!("{row}, {}", conflict.label.clone().unwrap_or(owner))
}

pub fn row_name(keyspace: Option<&str>, key: &str) -> String {
    table::truncate(&format!("{}/{key}", keyspace.unwrap_or_default()), ROW_WIDTH)
}
