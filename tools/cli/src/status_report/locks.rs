//! Row locks and named locks of a published status.

use percolite::{LockEntry, OwnerId, RowLockStatus, StoreStatus};
use serde_json::{Value, json};

use super::row_name;
use crate::lock::render;
use crate::table;

/// The maximum number of row locks in a table.
const MAX_ROW_LOCKS: usize = 12;
/// The lists of a status (row locks, held named locks, waiting requests) have at most this many
/// entries each.
const STATUS_LIST_MAX: usize = 100;

/// The held named locks, and the requests that have waited longest; at most `limit` of each.
pub fn named_lock_tables(status: &StoreStatus, limit: usize) -> Vec<String> {
    let held = status.held_locks.get(..limit).unwrap_or(&status.held_locks);
    let not_listed = not_listed(status);
    let more = not_listed.held + (status.held_locks.len() - held.len()) as u64;
    // The entries include all holders, not only the first `limit`, because a waiter is shown with
    // the holder that blocks it.
    let entries: Vec<_> = status.held_locks.iter().chain(&status.lock_waits).cloned().collect();
    let waiting = render::waiters_table(&entries, status.taken_at, limit, not_listed.waiting);
    render::held_table(held, more).into_iter().chain(waiting).collect()
}

/// How many named locks and waiting requests a status does not list.
#[derive(Clone, Copy)]
pub struct NotListed {
    pub held: u64,
    pub waiting: u64,
}

impl NotListed {
    pub fn all(self) -> u64 {
        self.held.saturating_add(self.waiting)
    }

    /// The JSON line for the entries that are not listed, if there are any.
    pub fn json(self) -> Option<Value> {
        let Self { held, waiting } = self;
        (self.all() > 0).then(|| json!({ "kind": "not_listed", "held": held, "waiting": waiting }))
    }
}

/// How many entries the lists of a status leave out. A list that is shorter than
/// [`STATUS_LIST_MAX`] leaves out none, even if the total is greater than its length: the total may
/// count expired leases, and each conversion twice.
pub fn not_listed(status: &StoreStatus) -> NotListed {
    let more = |total: u64, listed: &[LockEntry]| {
        if listed.len() < STATUS_LIST_MAX { 0 } else { total.saturating_sub(listed.len() as u64) }
    };
    NotListed {
        held: more(status.held_locks_total, &status.held_locks),
        waiting: more(status.lock_waits_total, &status.lock_waits),
    }
}

/// A row lock in the JSON of `locks`. The keys are text, as the publishing process has encoded
/// them.
pub fn row_lock_json(lock: &RowLockStatus) -> Value {
    let RowLockStatus {
        keyspace,
        key,
        owner_id: owner,
        start_ts,
        primary_keyspace,
        primary,
        txn_status,
        commit_ts,
        is_orphan,
        ..
    } = lock;
    let created_ms = u64::from_str_radix(owner, 16).ok().map(|owner| OwnerId::from_u64(owner).created_at_millis());
    json!({
        "kind": "row",
        "keyspace": keyspace,
        "key": key,
        "start_ts": start_ts.to_string(),
        "start_time": table::format_timestamp(*start_ts),
        "owner_id": owner,
        "owner_created_ms": created_ms,
        "primary": { "keyspace": primary_keyspace, "key": primary },
        "txn_status": txn_status,
        "commit_ts": commit_ts.map(|ts| ts.to_string()),
        "commit_time": commit_ts.map(table::format_timestamp),
        "is_orphan": is_orphan,
    })
}

/// A table of the row locks, if there are any.
pub fn row_lock_table(locks: &[RowLockStatus]) -> Option<String> {
    let row = |lock: &RowLockStatus| {
        [
            row_name(lock.keyspace.as_deref(), &lock.key),
            lock.owner_id.clone(),
            row_name(lock.primary_keyspace.as_deref(), &lock.primary),
            if lock.is_orphan { format!("{}, orphan lock", lock.txn_status) } else { lock.txn_status.clone() },
        ]
    };
    let mut rows: Vec<_> = locks.iter().take(MAX_ROW_LOCKS).map(row).collect();
    if let more @ 1.. = locks.len().saturating_sub(MAX_ROW_LOCKS) {
        // A list at its limit may have been truncated.
        let at_least = if locks.len() >= STATUS_LIST_MAX { "at least " } else { "" };
        rows.push([format!("and {at_least}{more} more"), String::new(), String::new(), String::new()]);
    }
    (!rows.is_empty()).then(|| table::text_table(["locked row", "owner", "primary", "transaction status"], rows))
}
