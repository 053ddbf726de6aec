//! Locks in the status of a running store: of rows, and by name.

use percolite::{OwnerId, RowLockStatus, Status};
use serde_json::{Value, json};

use super::place;
use crate::lock::shown;
use crate::table;

/// So many row locks are shown,
const LOCKS_SHOWN: usize = 12;
/// of those in a status, which are so many at most.
const LOCKS_LISTED: usize = 100;

/// Locks by name: those that are held, and those that have waited longest, so many of each.
pub fn by_name(status: &Status, shown: usize) -> Vec<String> {
    let held = status.held_locks.get(..shown).unwrap_or(&status.held_locks);
    let more = status.held_locks_total.saturating_sub(held.len() as u64);
    // The holders are needed too: a waiter is shown with the holder that it waits for.
    let entries: Vec<_> = status.held_locks.iter().chain(&status.lock_waits).cloned().collect();
    let more_wait = status.lock_waits_total.saturating_sub(status.lock_waits.len() as u64);
    shown::held(held, more).into_iter().chain(shown::waiting(&entries, status.written, shown, more_wait)).collect()
}

/// How many requests for locks by name a status does not list.
pub fn not_listed(status: &Status) -> u64 {
    let listed = status.held_locks.len() + status.lock_waits.len();
    (status.held_locks_total + status.lock_waits_total).saturating_sub(listed as u64)
}

/// A row lock as `locks --json` shows one; the keys are as the process that has the store open has put them.
pub fn lock_json(lock: &RowLockStatus) -> Value {
    let RowLockStatus {
        keyspace,
        key,
        owner,
        start_ts,
        primary_keyspace,
        primary,
        commit_point,
        commit_ts,
        orphan,
        ..
    } = lock;
    let began = u64::from_str_radix(owner, 16).ok().map(|owner| OwnerId::from_u64(owner).began_millis());
    json!({
        "kind": "row",
        "keyspace": keyspace,
        "key": key,
        "start_ts": start_ts.to_string(),
        "start_time": table::moment(*start_ts),
        "owner": owner,
        "owner_began_ms": began,
        "primary": { "keyspace": primary_keyspace, "key": primary },
        "commit_point": commit_point,
        "commit_ts": commit_ts.map(|ts| ts.to_string()),
        "commit_time": commit_ts.map(table::moment),
        "orphan": orphan,
    })
}

/// A table of locked rows, if there are any.
pub fn row_locks(locks: &[RowLockStatus]) -> Option<String> {
    let row = |lock: &RowLockStatus| {
        [
            place(lock.keyspace.as_deref(), &lock.key),
            lock.owner.clone(),
            place(lock.primary_keyspace.as_deref(), &lock.primary),
            if lock.orphan { format!("{}, its owner is gone", lock.commit_point) } else { lock.commit_point.clone() },
        ]
    };
    let mut rows: Vec<_> = locks.iter().take(LOCKS_SHOWN).map(row).collect();
    if let more @ 1.. = locks.len().saturating_sub(LOCKS_SHOWN) {
        // A status has no more than the first.
        let at_least = if locks.len() >= LOCKS_LISTED { "at least " } else { "" };
        rows.push([format!("and {at_least}{more} more"), String::new(), String::new(), String::new()]);
    }
    (!rows.is_empty()).then(|| table::texts(["locked row", "owner", "primary", "commit point"], rows))
}
