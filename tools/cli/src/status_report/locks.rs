//! Locks in the status of a running store: of rows, and by name.

use percolite::{LockEntry, OwnerId, RowLockStatus, StoreStatus};
use serde_json::{Value, json};

use super::row_name;
use crate::lock::render;
use crate::table;

/// So many row locks are shown,
const MAX_ROW_LOCKS: usize = 12;
/// of those in a status, which are so many at most. Of locks by name it has so many that are held, and so many that wait.
const STATUS_LIST_MAX: usize = 100;

/// Locks by name: those that are held, and those that have waited longest, so many of each.
pub fn named_lock_tables(status: &StoreStatus, shown: usize) -> Vec<String> {
    let held = status.held_locks.get(..shown).unwrap_or(&status.held_locks);
    let not_listed = not_listed(status);
    let more = not_listed.held + (status.held_locks.len() - held.len()) as u64;
    // The holders are needed too: a waiter is shown with the holder that it waits for.
    let entries: Vec<_> = status.held_locks.iter().chain(&status.lock_waits).cloned().collect();
    let waiting = render::waiters_table(&entries, status.taken_at, shown, not_listed.waiting);
    render::held_table(held, more).into_iter().chain(waiting).collect()
}

/// How many requests for locks by name a status does not list.
#[derive(Clone, Copy)]
pub struct NotListed {
    pub held: u64,
    pub waiting: u64,
}

impl NotListed {
    pub fn all(self) -> u64 {
        self.held.saturating_add(self.waiting)
    }

    /// The last of the JSON lines, if not all are listed.
    pub fn json(self) -> Option<Value> {
        let Self { held, waiting } = self;
        (self.all() > 0).then(|| json!({ "kind": "not_listed", "held": held, "waiting": waiting }))
    }
}

/// A list with room left is whole, whatever the total says: leases that are over may count in it, and conversions twice.
pub fn not_listed(status: &StoreStatus) -> NotListed {
    let more = |total: u64, listed: &[LockEntry]| {
        if listed.len() < STATUS_LIST_MAX { 0 } else { total.saturating_sub(listed.len() as u64) }
    };
    NotListed {
        held: more(status.held_locks_total, &status.held_locks),
        waiting: more(status.lock_waits_total, &status.lock_waits),
    }
}

/// A row lock as `locks --json` shows one; the keys are as the process that has the store open has put them.
pub fn row_lock_json(lock: &RowLockStatus) -> Value {
    let RowLockStatus {
        keyspace,
        key,
        owner,
        start_ts,
        primary_keyspace,
        primary,
        txn_status: commit_point,
        commit_ts,
        is_orphan: orphan,
        ..
    } = lock;
    let began = u64::from_str_radix(owner, 16).ok().map(|owner| OwnerId::from_u64(owner).created_at_millis());
    json!({
        "kind": "row",
        "keyspace": keyspace,
        "key": key,
        "start_ts": start_ts.to_string(),
        "start_time": table::format_timestamp(*start_ts),
        "owner": owner,
        "owner_began_ms": began,
        "primary": { "keyspace": primary_keyspace, "key": primary },
        "commit_point": commit_point,
        "commit_ts": commit_ts.map(|ts| ts.to_string()),
        "commit_time": commit_ts.map(table::format_timestamp),
        "orphan": orphan,
    })
}

/// A table of locked rows, if there are any.
pub fn row_lock_table(locks: &[RowLockStatus]) -> Option<String> {
    let row = |lock: &RowLockStatus| {
        [
            row_name(lock.keyspace.as_deref(), &lock.key),
            lock.owner.clone(),
            row_name(lock.primary_keyspace.as_deref(), &lock.primary),
            if lock.is_orphan { format!("{}, its owner is gone", lock.txn_status) } else { lock.txn_status.clone() },
        ]
    };
    let mut rows: Vec<_> = locks.iter().take(MAX_ROW_LOCKS).map(row).collect();
    if let more @ 1.. = locks.len().saturating_sub(MAX_ROW_LOCKS) {
        // A status has no more than the first.
        let at_least = if locks.len() >= STATUS_LIST_MAX { "at least " } else { "" };
        rows.push([format!("and {at_least}{more} more"), String::new(), String::new(), String::new()]);
    }
    (!rows.is_empty()).then(|| table::text_table(["locked row", "owner", "primary", "commit point"], rows))
}
